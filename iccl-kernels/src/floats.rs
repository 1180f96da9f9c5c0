//! Reductions of floats: sums and products in an accumulator type with one rounding, minimum and
//! maximum on integer keys, and means that do not overflow.

use core::marker::PhantomData;

use crate::blocks::{Job, Reduction};
use crate::convert;

/// A floating-point format of the ABI.
pub(crate) trait Format {
    /// The bits of an element.
    type Bits: Copy;
    /// The type that sums are carried in.
    type Accumulator: Arithmetic;
    /// A signed integer as wide as the element.
    type Key: Copy + Ord;

    fn widen(bits: Self::Bits) -> Self::Accumulator;
    /// Rounds to nearest even; every NaN becomes the canonical one.
    fn narrow(value: Self::Accumulator) -> Self::Bits;

    /// A key whose order is that of the values, −0 below +0, with every NaN above them all.
    fn key_with_nan_on_top(bits: Self::Bits) -> Self::Key;
    fn from_key_with_nan_on_top(key: Self::Key) -> Self::Bits;
    /// The same with every NaN below them all.
    fn key_with_nan_below(bits: Self::Bits) -> Self::Key;
    fn from_key_with_nan_below(key: Self::Key) -> Self::Bits;

    /// The mean of finite contributions whose plain sum overflows; `contributions` gives the same
    /// ones at each call. `sources` is how many there are.
    fn mean_without_overflow(
        contributions: impl Iterator<Item = Self::Accumulator>,
        sources: usize,
        ranks: u32,
    ) -> Self::Accumulator;
}

/// What sums are carried in.
pub(crate) trait Arithmetic: Copy {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn divide(self, ranks: u32) -> Self;
    /// Exact for a power of two.
    fn reciprocal(ranks: u32) -> Self;
    fn is_finite(self) -> bool;
}

macro_rules! arithmetic {
    ($type:ty) => {
        impl Arithmetic for $type {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self * other
            }

            // The macro serves f32 too, for which this rounds (above 2^24 ranks).
            #[allow(clippy::cast_lossless)]
            #[inline(always)]
            fn divide(self, ranks: u32) -> Self {
                self / ranks as Self
            }

            #[allow(clippy::cast_lossless)]
            #[inline(always)]
            fn reciprocal(ranks: u32) -> Self {
                1.0 / ranks as Self
            }

            #[inline(always)]
            fn is_finite(self) -> bool {
                self.abs() < Self::INFINITY
            }
        }
    };
}

arithmetic!(f32);
arithmetic!(f64);

/// The bits of a float as a signed integer that is ordered like the value, or back.
macro_rules! ordered {
    ($bits:expr, $key:ty) => {{
        let bits = $bits as $key;
        bits ^ ((bits >> (<$key>::BITS - 1)) & <$key>::MAX)
    }};
}

/// The keys of [`Format`], from the bits as a signed integer.
///
/// Flipping the lower bits of negative values makes signed comparison of bits the order of the
/// values, with NaNs at both ends, by their sign. Turning the whole range by the number of NaNs at
/// one end brings these next to those at the other.
macro_rules! keys {
    ($bits:ty, $key:ty, infinity = $infinity:literal, nan = $nan:literal) => {
        type Key = $key;

        #[inline(always)]
        fn key_with_nan_on_top(bits: $bits) -> $key {
            ordered!(bits, $key).wrapping_sub(<$key>::MAX - $infinity)
        }

        #[inline(always)]
        fn from_key_with_nan_on_top(key: $key) -> $bits {
            let bits = ordered!(key.wrapping_add(<$key>::MAX - $infinity), $key);
            if bits & <$key>::MAX > $infinity { $nan } else { bits as $bits }
        }

        #[inline(always)]
        fn key_with_nan_below(bits: $bits) -> $key {
            ordered!(bits, $key).wrapping_add(<$key>::MAX - $infinity)
        }

        #[inline(always)]
        fn from_key_with_nan_below(key: $key) -> $bits {
            let bits = ordered!(key.wrapping_sub(<$key>::MAX - $infinity), $key);
            if bits & <$key>::MAX > $infinity { $nan } else { bits as $bits }
        }
    };
}

pub(crate) enum F16 {}

impl Format for F16 {
    type Bits = u16;
    type Accumulator = f32;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        convert::f16_to_f32(bits)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        convert::f32_to_f16(value)
    }

    keys!(u16, i16, infinity = 0x7C00, nan = 0x7E00);

    #[inline(always)]
    fn mean_without_overflow(
        contributions: impl Iterator<Item = f32>,
        _sources: usize,
        ranks: u32,
    ) -> f32 {
        mean_in_f64(contributions, ranks)
    }
}

pub(crate) enum Bf16 {}

impl Format for Bf16 {
    type Bits = u16;
    type Accumulator = f32;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        convert::bf16_to_f32(bits)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        convert::f32_to_bf16(value)
    }

    keys!(u16, i16, infinity = 0x7F80, nan = 0x7FC0);

    #[inline(always)]
    fn mean_without_overflow(
        contributions: impl Iterator<Item = f32>,
        _sources: usize,
        ranks: u32,
    ) -> f32 {
        mean_in_f64(contributions, ranks)
    }
}

/// The formats of 8 bits. No sum of their values overflows f32.
macro_rules! eight_bits {
    ($name:ident, $widen:ident, $narrow:ident, infinity = $infinity:literal, nan = $nan:literal) => {
        pub(crate) enum $name {}

        impl Format for $name {
            type Bits = u8;
            type Accumulator = f32;

            #[inline(always)]
            fn widen(bits: u8) -> f32 {
                convert::$widen(bits)
            }

            #[inline(always)]
            fn narrow(value: f32) -> u8 {
                convert::$narrow(value)
            }

            keys!(u8, i8, infinity = $infinity, nan = $nan);

            #[inline(always)]
            fn mean_without_overflow(
                contributions: impl Iterator<Item = f32>,
                _sources: usize,
                ranks: u32,
            ) -> f32 {
                mean_in_f64(contributions, ranks)
            }
        }
    };
}

// E4M3 has no infinity; what stands here is its largest value, above which all is NaN.
eight_bits!(F8E4M3, e4m3_to_f32, f32_to_e4m3, infinity = 0x7E, nan = 0x7F);
eight_bits!(F8E5M2, e5m2_to_f32, f32_to_e5m2, infinity = 0x7C, nan = 0x7E);

pub(crate) enum F32 {}

impl Format for F32 {
    type Bits = u32;
    type Accumulator = f32;

    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        f32::from_bits(bits)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u32 {
        if value.is_nan() { 0x7FC0_0000 } else { value.to_bits() }
    }

    keys!(u32, i32, infinity = 0x7F80_0000, nan = 0x7FC0_0000);

    #[inline(always)]
    fn mean_without_overflow(
        contributions: impl Iterator<Item = f32>,
        _sources: usize,
        ranks: u32,
    ) -> f32 {
        mean_in_f64(contributions, ranks)
    }
}

/// f64 holds the multiples of the largest f32 exactly, so the mean stays at or below it.
fn mean_in_f64(contributions: impl Iterator<Item = f32>, ranks: u32) -> f32 {
    let sum = contributions.fold(0.0, |sum, value| sum + f64::from(value));
    (sum / f64::from(ranks)) as f32
}

pub(crate) enum F64 {}

impl Format for F64 {
    type Bits = u64;
    type Accumulator = f64;

    #[inline(always)]
    fn widen(bits: u64) -> f64 {
        f64::from_bits(bits)
    }

    #[inline(always)]
    fn narrow(value: f64) -> u64 {
        if value.is_nan() { 0x7FF8_0000_0000_0000 } else { value.to_bits() }
    }

    keys!(u64, i64, infinity = 0x7FF0_0000_0000_0000, nan = 0x7FF8_0000_0000_0000);

    fn mean_without_overflow(
        contributions: impl Iterator<Item = f64>,
        sources: usize,
        ranks: u32,
    ) -> f64 {
        // An exact power of two.
        let scale = sources.next_power_of_two() as f64;
        let sum = contributions.fold(0.0, |sum, value| sum + value / scale);
        // The rounding of the sum cannot carry the mean of values up to MAX over the edge: the sum
        // of n times MAX stays at least one place below n times 2^1024, since a sum that is one
        // place below, less the last place of the next MAX, is rounded away from that edge even
        // where places become twice as large.
        sum / f64::from(ranks) * scale
    }
}

/// A sum or product in the accumulator type of the format.
macro_rules! in_the_accumulator {
    ($name:ident, $combine:ident) => {
        pub(crate) struct $name<F>(PhantomData<F>);

        impl<F: Format> Reduction for $name<F> {
            type Stored = F::Bits;
            type Accumulator = F::Accumulator;

            #[inline(always)]
            fn widen(stored: F::Bits) -> F::Accumulator {
                F::widen(stored)
            }

            #[inline(always)]
            fn combine(left: F::Accumulator, right: F::Accumulator) -> F::Accumulator {
                left.$combine(right)
            }

            #[inline(always)]
            fn narrow(accumulator: F::Accumulator) -> F::Bits {
                F::narrow(accumulator)
            }
        }
    };
}

in_the_accumulator!(FloatSum, add);
in_the_accumulator!(FloatProduct, multiply);

/// Minimum or maximum: of keys, in which NaN always wins.
macro_rules! on_keys {
    ($name:ident, $to_key:ident, $from_key:ident, |$left:ident, $right:ident| $combine:expr) => {
        pub(crate) struct $name<F>(PhantomData<F>);

        impl<F: Format> Reduction for $name<F> {
            type Stored = F::Bits;
            type Accumulator = F::Key;

            #[inline(always)]
            fn widen(stored: F::Bits) -> F::Key {
                F::$to_key(stored)
            }

            #[inline(always)]
            fn combine($left: F::Key, $right: F::Key) -> F::Key {
                $combine
            }

            #[inline(always)]
            fn narrow(accumulator: F::Key) -> F::Bits {
                F::$from_key(accumulator)
            }
        }
    };
}

on_keys!(FloatMaximum, key_with_nan_on_top, from_key_with_nan_on_top, |left, right| {
    if right > left { right } else { left }
});
on_keys!(FloatMinimum, key_with_nan_below, from_key_with_nan_below, |left, right| {
    if right < left { right } else { left }
});

/// A sum divided by the ranks.
pub(crate) struct FloatMean<F>(PhantomData<F>);

impl<F: Format> Reduction for FloatMean<F> {
    type Stored = F::Bits;
    type Accumulator = F::Accumulator;

    #[inline(always)]
    fn widen(stored: F::Bits) -> F::Accumulator {
        F::widen(stored)
    }

    #[inline(always)]
    fn combine(left: F::Accumulator, right: F::Accumulator) -> F::Accumulator {
        left.add(right)
    }

    #[inline(always)]
    unsafe fn finish(block: *mut F::Accumulator, length: usize, job: &Job<'_>, offset: usize) {
        // SAFETY: The caller's contract is that of both.
        unsafe {
            if !divide_block(block, length, job.ranks) {
                mend_block::<F>(block, length, job, offset);
            }
        }
    }

    #[inline(always)]
    fn narrow(accumulator: F::Accumulator) -> F::Bits {
        F::narrow(accumulator)
    }
}

/// Divides sums by the ranks, and says whether they all were finite.
///
/// # Safety
///
/// `block` holds `length` initialised accumulators.
#[inline(always)]
unsafe fn divide_block<A: Arithmetic>(block: *mut A, length: usize, ranks: u32) -> bool {
    if ranks.is_power_of_two() {
        // The reciprocal is exact, and so the product has the bits of the quotient, but is faster.
        let reciprocal = A::reciprocal(ranks);
        // SAFETY: The contract is the same.
        unsafe { map_block(block, length, |sum| sum.multiply(reciprocal)) }
    } else {
        // SAFETY: The contract is the same.
        unsafe { map_block(block, length, |sum| sum.divide(ranks)) }
    }
}

/// Replaces each sum by a function of it, and says whether the sums all were finite.
///
/// # Safety
///
/// `block` holds `length` initialised accumulators.
#[inline(always)]
unsafe fn map_block<A: Arithmetic>(block: *mut A, length: usize, mean: impl Fn(A) -> A) -> bool {
    let mut all_finite = true;
    for index in 0..length {
        // SAFETY: `index` is less than `length`, for which the caller vouches.
        unsafe {
            let sum = block.add(index).read();
            all_finite &= sum.is_finite();
            block.add(index).write(mean(sum));
        }
    }
    all_finite
}

/// Replaces the means of finite contributions that are not finite.
///
/// # Safety
///
/// As [`Reduction::finish`].
#[cold]
#[inline(never)]
unsafe fn mend_block<F: Format>(
    block: *mut F::Accumulator,
    length: usize,
    job: &Job<'_>,
    offset: usize,
) {
    for index in 0..length {
        // SAFETY: `index` is less than `length`, for which the caller vouches.
        let mean = unsafe { block.add(index) };
        // SAFETY: As above, and the block is initialised.
        if unsafe { mean.read() }.is_finite() {
            continue;
        }
        let contributions = || {
            job.sources.iter().map(|source| {
                let element = source.cast::<F::Bits>().wrapping_add(offset + index);
                // SAFETY: `offset + index` is less than the job's count, and the caller vouches
                // that this part of the sources is as it was given.
                F::widen(unsafe { element.read_unaligned() })
            })
        };
        if contributions().all(Arithmetic::is_finite) {
            let mended = F::mean_without_overflow(contributions(), job.sources.len(), job.ranks);
            // SAFETY: `index` is less than `length`.
            unsafe { mean.write(mended) };
        }
    }
}
