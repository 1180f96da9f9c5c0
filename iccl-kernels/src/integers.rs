//! Reductions of integers: they wrap, and means are taken of a sum that does not.

use core::marker::PhantomData;
use core::ops::{BitAnd, BitOr, BitXor};

use crate::blocks::{Job, Reduction};

/// An integer type of the ABI.
pub(crate) trait Integer:
    Copy + Ord + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self>
{
    /// Holds the sum of as many values as there can be sources.
    type Wide: Wide;

    fn wrapping_add(self, other: Self) -> Self;
    fn wrapping_mul(self, other: Self) -> Self;
    fn widen(self) -> Self::Wide;
    /// The low bits, which are all there is unless more sources were summed than ranks divide.
    fn narrow(wide: Self::Wide) -> Self;
}

macro_rules! integer {
    ($($type:ty as $wide:ty),+ $(,)?) => { $(
        impl Integer for $type {
            type Wide = $wide;

            #[inline(always)]
            fn wrapping_add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn wrapping_mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn widen(self) -> $wide {
                <$wide>::from(self)
            }

            #[inline(always)]
            fn narrow(wide: $wide) -> Self {
                wide as Self
            }
        }
    )+ };
}

integer!(i8 as i64, u8 as i64, i16 as i64, u16 as i64, i32 as i64, u32 as i64);
integer!(i64 as i128, u64 as i128);

/// What integers are summed in before they are divided.
pub(crate) trait Wide: Copy {
    fn add(self, other: Self) -> Self;

    /// The quotient by 2^`exponent`, truncated towards zero.
    fn shift(self, exponent: u32) -> Self;

    /// The quotient, truncated towards zero.
    fn divide(self, ranks: u32) -> Self;

    /// [`Self::divide`] where the sum is of at most [`Self::FEW_SOURCES`] values.
    fn divide_sum_of_few(self, ranks: u32) -> Self;

    const FEW_SOURCES: usize;
}

macro_rules! wide {
    ($type:ty) => {
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // Only 2^31 sources, whose pointers alone take 16 GiB, could wrap an i64.
            self.wrapping_add(other)
        }

        #[inline(always)]
        fn shift(self, exponent: u32) -> Self {
            // A shift rounds down; what is added first to a negative sum makes that upwards.
            let below_one = ((1 << exponent) - 1) & (self >> (<$type>::BITS - 1));
            self.wrapping_add(below_one) >> exponent
        }

        #[inline(always)]
        fn divide(self, ranks: u32) -> Self {
            self / Self::from(ranks)
        }
    };
}

/// Sums of integers of up to 32 bits.
impl Wide for i64 {
    wide!(i64);

    /// The sum stays below 2^50 in magnitude.
    const FEW_SOURCES: usize = 1 << 18;

    #[inline(always)]
    fn divide_sum_of_few(self, ranks: u32) -> Self {
        // f64 holds the sum exactly, and division of integers below 2^53 does not round up to the
        // next integer: the distance to it is at least 1/ranks, more than half a last place of the
        // quotient. Processors divide floats many at a time, integers one by one.
        let quotient = self as f64 / f64::from(ranks);
        // SAFETY: The quotient is finite and below 2^50 in magnitude.
        unsafe { quotient.to_int_unchecked() }
    }
}

/// Sums of integers of 64 bits.
impl Wide for i128 {
    wide!(i128);

    const FEW_SOURCES: usize = 0;

    #[inline(always)]
    fn divide_sum_of_few(self, ranks: u32) -> Self {
        self.divide(ranks)
    }
}

/// A reduction that stays within the type.
macro_rules! within_the_type {
    ($name:ident, |$left:ident, $right:ident| $combine:expr) => {
        pub(crate) struct $name<T>(PhantomData<T>);

        impl<T: Integer> Reduction for $name<T> {
            type Stored = T;
            type Accumulator = T;

            #[inline(always)]
            fn widen(stored: T) -> T {
                stored
            }

            #[inline(always)]
            fn combine($left: T, $right: T) -> T {
                $combine
            }

            #[inline(always)]
            fn narrow(accumulator: T) -> T {
                accumulator
            }
        }
    };
}

within_the_type!(IntegerSum, |left, right| left.wrapping_add(right));
within_the_type!(IntegerProduct, |left, right| left.wrapping_mul(right));
within_the_type!(IntegerMinimum, |left, right| if right < left { right } else { left });
within_the_type!(IntegerMaximum, |left, right| if right > left { right } else { left });
within_the_type!(IntegerAnd, |left, right| left & right);
within_the_type!(IntegerOr, |left, right| left | right);
within_the_type!(IntegerXor, |left, right| left ^ right);

pub(crate) struct IntegerMean<T>(PhantomData<T>);

impl<T: Integer> Reduction for IntegerMean<T> {
    type Stored = T;
    type Accumulator = T::Wide;

    #[inline(always)]
    fn widen(stored: T) -> T::Wide {
        stored.widen()
    }

    #[inline(always)]
    fn combine(left: T::Wide, right: T::Wide) -> T::Wide {
        left.add(right)
    }

    #[inline(always)]
    unsafe fn finish(block: *mut T::Wide, length: usize, job: &Job<'_>, _offset: usize) {
        let ranks = job.ranks;
        // SAFETY: The contract is the same.
        unsafe {
            if ranks.is_power_of_two() {
                let exponent = ranks.trailing_zeros();
                map_block(block, length, |sum| sum.shift(exponent));
            } else if job.sources.len() <= T::Wide::FEW_SOURCES {
                map_block(block, length, |sum| sum.divide_sum_of_few(ranks));
            } else {
                map_block(block, length, |sum| sum.divide(ranks));
            }
        }
    }

    #[inline(always)]
    fn narrow(accumulator: T::Wide) -> T {
        T::narrow(accumulator)
    }
}

/// Replaces each sum by a function of it.
///
/// # Safety
///
/// `block` holds `length` initialised accumulators.
#[inline(always)]
unsafe fn map_block<W: Copy>(block: *mut W, length: usize, mean: impl Fn(W) -> W) {
    for index in 0..length {
        // SAFETY: `index` is less than `length`, for which the caller vouches.
        unsafe { block.add(index).write(mean(block.add(index).read())) };
    }
}
