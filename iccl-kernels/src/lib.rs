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
//! * **Integers** wrap on sum and product. **Bitwise** operations are for integers only.
//! * **f16, bf16 and both 8-bit floats**: sums and products are accumulated in f32 over all sources and rounded once,
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
//! * **8-bit floats** that overflow follow the conversions of the OCP document ("OFP8", revision 1.0)
//!   without saturation, as in `PyTorch` and `ml_dtypes`: E5M2 becomes infinity from 61440 on; E4M3,
//!   which has none, becomes NaN above 464. (NCCL saturates: it gives the largest value, with
//!   which nothing shows that a sum overflowed.) The NaN of E4M3 is 0x7F, that of E5M2 0x7E.
//! * **Scaling** ([`scale`]) multiplies as a product of two sources does, so the product is rounded to
//!   the element type; integers wrap.
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
use core::mem::MaybeUninit;
use core::ptr;

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
    /// Bitwise operations are for integers.
    BitsOfFloats,
    /// A pre-multiplied sum was given as an operation instead of [`scale`] and a sum.
    ScalingAsOperation,
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
            Reason::BitsOfFloats => f.write_str("bitwise operations are for integers"),
            Reason::ScalingAsOperation => {
                f.write_str("premulsum is a sum of contributions that were scaled before")
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

/// Whether elements of this type can be reduced with this operation: all but bits of floats.
/// [`RedOp::Avg`] stands for a sum with [`Finish::DivideByRanks`], [`RedOp::PreMulSum`] for [`scale`] and a
/// sum.
pub fn supports(dtype: DataType, op: RedOp) -> bool {
    dtype.is_integer() || !op.is_bitwise()
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
        reason: Reason::BitsOfFloats,
    })?;
    assert!(!sources.is_empty(), "a reduction needs at least one source");
    if count == 0 {
        return Ok(());
    }
    if sources.len() == 1 && ranks == 1 {
        // SAFETY: Both are valid for this many bytes by the caller's contract; `copy` allows equal
        // pointers.
        unsafe { ptr::copy(sources[0], destination, count * dtype.size_bytes()) };
        return Ok(());
    }
    // SAFETY: The caller's contract is the kernel's; `table` asserted that the processor has the
    // level, so the kernel's instructions exist; there is at least one source.
    unsafe { kernel(&Job { destination, sources, count, ranks }) };
    Ok(())
}

/// Multiplies each element of `source` by one scalar of the same type and rounds the product to it:
/// `destination[i] = source[i] · scalar`. Integers wrap.
///
/// # Safety
///
/// `source` must be readable and `destination` writable for `count` elements of `dtype`, `scalar` readable
/// for one, and nobody else may write to what is read or touch `destination` during the call.
/// `destination` may be exactly equal to `source`; any other overlap is forbidden. The pointers need
/// not be aligned. If `count` is 0 they may be anything, null included.
pub unsafe fn scale(
    dtype: DataType,
    destination: *mut u8,
    source: *const u8,
    scalar: *const u8,
    count: usize,
) {
    // SAFETY: The contract is the same, and the best level is available.
    unsafe { scale_at(Level::best(), dtype, destination, source, scalar, count) }
}

/// [`scale`] with the kernels of one level, so that tests and benchmarks can compare them.
///
/// # Panics
///
/// If this processor does not have the level.
///
/// # Safety
///
/// As [`scale`].
#[doc(hidden)]
pub unsafe fn scale_at(
    level: Level,
    dtype: DataType,
    destination: *mut u8,
    source: *const u8,
    scalar: *const u8,
    count: usize,
) {
    let kernel = level::table(level)
        .kernel(dtype, RedOp::Prod)
        .unwrap_or_else(|| unreachable!("every element type has a product"));
    // The second source of the product: one block's worth of scalars, which stays in the cache.
    let mut scalars = MaybeUninit::<[u64; blocks::BLOCK_ELEMENTS]>::uninit();
    let scalars = scalars.as_mut_ptr().cast::<u8>();
    let size = dtype.size_bytes();
    for index in 0..count.min(blocks::BLOCK_ELEMENTS) {
        // SAFETY: The index is within the block, whose elements are at least as large; the caller
        // vouches for the scalar.
        unsafe { ptr::copy_nonoverlapping(scalar, scalars.add(index * size), size) };
    }
    for first in (0..count).step_by(blocks::BLOCK_ELEMENTS) {
        let count = blocks::BLOCK_ELEMENTS.min(count - first);
        // SAFETY: The elements from `first` are within what the caller vouches for, as many scalars are
        // initialised, and `table` asserted that the processor has the level.
        unsafe {
            let sources = [source.add(first * size), scalars.cast_const()];
            let destination = destination.add(first * size);
            kernel(&Job { destination, sources: &sources, count, ranks: 1 });
        }
    }
}

/// The column of the kernel table and the divisor (1 where nothing is divided).
fn check(dtype: DataType, op: RedOp, finish: Finish) -> Result<(RedOp, u32), Unsupported> {
    let refuse = |reason| Err(Unsupported { dtype, op, reason });
    match (op, finish) {
        (RedOp::Avg, _) => refuse(Reason::AverageAsOperation),
        (RedOp::PreMulSum, _) => refuse(Reason::ScalingAsOperation),
        (_, Finish::None) => Ok((op, 1)),
        (_, Finish::DivideByRanks(0)) => refuse(Reason::DivisionByZeroRanks),
        (RedOp::Sum, Finish::DivideByRanks(ranks)) => Ok((RedOp::Avg, ranks)),
        (_, Finish::DivideByRanks(_)) => refuse(Reason::DivisionOfOtherThanSum),
    }
}
