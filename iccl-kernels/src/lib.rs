//! Reduction over host memory: every element type and operation, several sources in one pass, one
//! rounding.
//!
//! # Numerics
//!
//! These rules hold wherever iccl itself reduces, at every [`Level`], in debug and in release:
//!
//! * The bits of an element of the result are a pure function of that element's contributions **in
//!   the order of `sources`**. Neither the number of elements, nor alignment, nor the instruction
//!   set plays a part: no fused multiply-add, no reordering of sources. Ranks that reduce the same
//!   sources in the same order get the same bits. (The floating-point environment must be the
//!   default one: round to nearest even, no flushing of subnormals.)
//! * **Integers** wrap on sum and product.
//! * **f16 and bf16** sums and products are accumulated in f32 over all sources and rounded once,
//!   to nearest even. So bf16 {256, 1, 1} gives 258, and f16 {2048, 1, 1, 1} gives 2052 (2051
//!   rounded once), where rounding at each step would have lost every 1.
//! * **f32 and f64** sums and products are computed in their own type.
//! * **Minimum and maximum** of floats are like IEEE 754-2019 `minimum` and `maximum`: a NaN
//!   anywhere gives NaN, −0 is less than +0, and the order of the sources does not matter.
//! * A **NaN** in a result is always the type's canonical quiet NaN (positive, empty payload),
//!   since which operand's payload a processor keeps differs between processors.
//! * **AVG** is [`RedOp::Sum`] with [`Finish::DivideByRanks`].
//!   * Integers: the sum is widened (it does not wrap), then divided, truncating towards zero:
//!     the mean of i32 −3 and −4 is −3.
//!   * Floats: the sum above is divided (a true division, never a multiplication by a reciprocal)
//!     before the one rounding.
//!   * The mean of finite values is finite. Where the sum of finite contributions overflowed, that
//!     element is summed again in a wider range: f32 and bf16 in f64; f64 with every contribution
//!     scaled by 2⁻ᵏ, k the smallest number with 2ᵏ ≥ the number of sources, and the mean scaled
//!     back. An infinity or NaN among the contributions keeps its IEEE meaning.
//!   * Both hold only if all contributions are reduced in one call: a partial sum that wrapped or
//!     overflowed before it came here cannot be mended.
//! * **One source** with nothing to divide is copied bit by bit, NaN payloads included.
//! * **8-bit floats** are not reduced yet: [`supports`] says so and [`reduce`] refuses.
//!
//! # Speed
//!
//! The destination is made block by block: up to four sources are folded per pass into an
//! accumulator block that stays in the first-level cache. The loops are plain Rust that the
//! compiler vectorises, compiled once per [`Level`]; intrinsics stand only where that falls short
//! (f16 conversion). The table of kernels is chosen once, at the first call.

// The loops are compiled once per level by being inlined into functions that enable its
// instructions; a call that stayed a call would fall back to the portable ones.
#![allow(clippy::inline_always)]

mod blocks;
mod convert;
#[cfg(target_arch = "x86_64")]
mod f16c;
mod floats;
mod integers;
mod level;
pub mod reference;

use core::fmt;

use iccl_plugin_api::{DataType, RedOp};

use blocks::Job;
pub use level::Level;

/// What is done to the reduced value before it is rounded and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// Nothing: the reduced value is the result.
    None,
    /// AVG: the sum is divided by this many ranks. Goes with [`RedOp::Sum`] only; never 0.
    DivideByRanks(u32),
}

/// Why a reduction was refused. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Unsupported {
    /// The element type that was asked for.
    pub dtype: DataType,
    /// The operation that was asked for.
    pub op: RedOp,
    /// What is wrong with the two.
    pub reason: Reason,
}

/// The part of [`Unsupported`] that says what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// No kernel reduces this element type.
    ElementType,
    /// AVG was given as an operation instead of sum and [`Finish::DivideByRanks`].
    AverageAsOperation,
    /// [`Finish::DivideByRanks`] was given with another operation than sum.
    DivisionOfOtherThanSum,
    /// [`Finish::DivideByRanks`] was given with 0 ranks.
    DivisionByZeroRanks,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dtype, op, reason } = self;
        write!(f, "cannot reduce {dtype} with {op} on the host: ")?;
        match reason {
            Reason::ElementType => {
                write!(f, "elements of type {dtype} can be moved but not reduced")
            }
            Reason::AverageAsOperation => {
                f.write_str("avg is a sum divided by the ranks at its end")
            }
            Reason::DivisionOfOtherThanSum => f.write_str("only a sum can be divided by the ranks"),
            Reason::DivisionByZeroRanks => f.write_str("the number of ranks to divide by is 0"),
        }
    }
}

impl core::error::Error for Unsupported {}

/// Whether elements of this type can be reduced with this operation. [`RedOp::Avg`] stands for a
/// sum with [`Finish::DivideByRanks`].
pub fn supports(dtype: DataType, op: RedOp) -> bool {
    level::table(Level::best()).kernel(dtype, op).is_some()
}

/// Reduces `sources` element by element, in the order of the slice, into `destination`.
///
/// # Errors
///
/// [`Unsupported`] if there is no such reduction (see [`Reason`]); nothing was written then.
///
/// # Panics
///
/// If `sources` is empty: there is no value that the result could have.
///
/// # Safety
///
/// Each source must be readable and `destination` writable for `count` elements of `dtype`, and
/// nobody else may write to a source or touch `destination` during the call. `destination` may be
/// exactly equal to one or more sources; any other overlap of it with a source is forbidden. The
/// pointers need not be aligned. If `count` is 0 they may be anything, null included.
pub unsafe fn reduce(
    dtype: DataType,
    op: RedOp,
    finish: Finish,
    destination: *mut u8,
    sources: &[*const u8],
    count: usize,
) -> Result<(), Unsupported> {
    // SAFETY: The contract is the same, and the best level is available.
    unsafe { reduce_at(Level::best(), dtype, op, finish, destination, sources, count) }
}

/// [`reduce`] with the kernels of one level, so that tests and benchmarks can compare them.
///
/// # Errors
///
/// As [`reduce`].
///
/// # Panics
///
/// As [`reduce`], and if this processor does not have the level.
///
/// # Safety
///
/// As [`reduce`].
#[doc(hidden)]
pub unsafe fn reduce_at(
    level: Level,
    dtype: DataType,
    op: RedOp,
    finish: Finish,
    destination: *mut u8,
    sources: &[*const u8],
    count: usize,
) -> Result<(), Unsupported> {
    let (column, ranks) = check(dtype, op, finish)?;
    let kernel = level::table(level).kernel(dtype, column).ok_or(Unsupported {
        dtype,
        op,
        reason: Reason::ElementType,
    })?;
    assert!(!sources.is_empty(), "a reduction needs at least one source");
    if count == 0 {
        return Ok(());
    }
    if sources.len() == 1 && ranks == 1 {
        // SAFETY: Both are valid for this many bytes by the caller's contract; `copy` allows equal
        // pointers.
        unsafe { core::ptr::copy(sources[0], destination, count * dtype.size_bytes()) };
        return Ok(());
    }
    // SAFETY: The caller's contract is the kernel's; `table` asserted that the processor has the
    // level, so the kernel's instructions exist; there is at least one source.
    unsafe { kernel(&Job { destination, sources, count, ranks }) };
    Ok(())
}

/// The column of the kernel table and the divisor (1 where nothing is divided).
fn check(dtype: DataType, op: RedOp, finish: Finish) -> Result<(RedOp, u32), Unsupported> {
    let refuse = |reason| Err(Unsupported { dtype, op, reason });
    match (op, finish) {
        (RedOp::Avg, _) => refuse(Reason::AverageAsOperation),
        (_, Finish::None) => Ok((op, 1)),
        (_, Finish::DivideByRanks(0)) => refuse(Reason::DivisionByZeroRanks),
        (RedOp::Sum, Finish::DivideByRanks(ranks)) => Ok((RedOp::Avg, ranks)),
        (_, Finish::DivideByRanks(_)) => refuse(Reason::DivisionOfOtherThanSum),
    }
}
