//! Reductions of integers: they wrap, and means are taken of a sum that does not.

use core::marker::PhantomData;

use crate::blocks::{Job, Reduction};

/// An integer type of the ABI.
pub(crate) trait Integer: Copy + Ord {
    /// Holds the sum of as many values as there can be sources.
    type Wide: Copy;

    fn wrapping_add(self, other: Self) -> Self;
    fn wrapping_mul(self, other: Self) -> Self;
    fn widen(self) -> Self::Wide;
    fn add_wide(left: Self::Wide, right: Self::Wide) -> Self::Wide;
    /// The quotient, truncated towards zero.
    fn divide(sum: Self::Wide, ranks: u32) -> Self::Wide;
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
            fn add_wide(left: $wide, right: $wide) -> $wide {
                left.wrapping_add(right)
            }

            #[inline(always)]
            fn divide(sum: $wide, ranks: u32) -> $wide {
                sum / <$wide>::from(ranks)
            }

            #[inline(always)]
            fn narrow(wide: $wide) -> Self {
                wide as Self
            }
        }
    )+ };
}

// A slice of sources has fewer than 2^60 pointers, and 2^31 of them already fit where the wide type
// is i64: more would take 16 GiB of pointers alone.
integer!(i8 as i64, u8 as i64, i16 as i64, u16 as i64, i32 as i64, u32 as i64);
integer!(i64 as i128, u64 as i128);

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
        T::add_wide(left, right)
    }

    #[inline(always)]
    unsafe fn finish(block: *mut T::Wide, length: usize, job: &Job<'_>, _offset: usize) {
        for index in 0..length {
            // SAFETY: `index` is less than `length`, for which the caller vouches.
            unsafe {
                let element = block.add(index);
                element.write(T::divide(element.read(), job.ranks));
            }
        }
    }

    #[inline(always)]
    fn narrow(accumulator: T::Wide) -> T {
        T::narrow(accumulator)
    }
}
