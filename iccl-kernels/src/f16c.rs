//! f16 sums and products with the conversion instructions of x86-64, which the compiler does not
//! find by itself. They are exact, subnormals included, and round as told; the bits are those of
//! [`crate::convert`].

// The loads and stores of vectors that are named here take any alignment.
#![allow(clippy::cast_ptr_alignment)]

use core::arch::x86_64::{
    __m128i, __m256, __m256i, __m512, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128,
    _mm_storeu_si128, _mm256_add_ps, _mm256_blendv_ps, _mm256_cmp_ps, _mm256_cvtph_ps,
    _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_mul_ps, _mm256_set1_ps,
    _mm256_storeu_ps, _mm256_storeu_si256, _mm512_add_ps, _mm512_cmp_ps_mask, _mm512_cvtph_ps,
    _mm512_cvtps_ph, _mm512_loadu_ps, _mm512_mask_blend_ps, _mm512_mul_ps, _mm512_set1_ps,
    _mm512_storeu_ps,
};
use core::marker::PhantomData;

use crate::blocks::{Job, Reduction};
use crate::floats::{F16, FloatMean, FloatProduct, FloatSum};

/// Several f32 in one register.
///
/// # Safety
///
/// The processor must have the instructions that the implementor names. Pointers are valid for
/// [`Self::LANES`] elements, at any alignment.
pub(crate) trait Lanes: Copy {
    const LANES: usize;

    unsafe fn load(pointer: *const f32) -> Self;
    unsafe fn load_f16(pointer: *const u16) -> Self;
    unsafe fn store(value: Self, pointer: *mut f32);
    /// Rounds to nearest even; every NaN becomes the canonical one.
    unsafe fn store_f16(value: Self, pointer: *mut u16);
    unsafe fn add(left: Self, right: Self) -> Self;
    unsafe fn multiply(left: Self, right: Self) -> Self;
}

/// The methods of [`Lanes`], each one expression of intrinsics.
macro_rules! lanes {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? = $body:expr;)+) => { $(
        #[inline(always)]
        unsafe fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: The processor has the instruction and the pointer is valid, as the trait
            // demands of the caller.
            unsafe { $body }
        }
    )+ };
}

/// AVX and F16C.
impl Lanes for __m256 {
    const LANES: usize = 8;

    lanes! {
        load(pointer: *const f32) -> Self = _mm256_loadu_ps(pointer);
        load_f16(pointer: *const u16) -> Self =
            _mm256_cvtph_ps(_mm_loadu_si128(pointer.cast::<__m128i>()));
        add(left: Self, right: Self) -> Self = _mm256_add_ps(left, right);
        multiply(left: Self, right: Self) -> Self = _mm256_mul_ps(left, right);
        store(value: Self, pointer: *mut f32) = _mm256_storeu_ps(pointer, value);
        store_f16(value: Self, pointer: *mut u16) = {
            let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(value, value);
            let value = _mm256_blendv_ps(value, _mm256_set1_ps(f32::NAN), is_nan);
            let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value);
            _mm_storeu_si128(pointer.cast::<__m128i>(), rounded);
        };
    }
}

/// AVX-512 F.
impl Lanes for __m512 {
    const LANES: usize = 16;

    lanes! {
        load(pointer: *const f32) -> Self = _mm512_loadu_ps(pointer);
        load_f16(pointer: *const u16) -> Self =
            _mm512_cvtph_ps(_mm256_loadu_si256(pointer.cast::<__m256i>()));
        add(left: Self, right: Self) -> Self = _mm512_add_ps(left, right);
        multiply(left: Self, right: Self) -> Self = _mm512_mul_ps(left, right);
        store(value: Self, pointer: *mut f32) = _mm512_storeu_ps(pointer, value);
        store_f16(value: Self, pointer: *mut u16) = {
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
            let value = _mm512_mask_blend_ps(is_nan, value, _mm512_set1_ps(f32::NAN));
            let rounded = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value);
            _mm256_storeu_si256(pointer.cast::<__m256i>(), rounded);
        };
    }
}

/// A reduction of f16 through f32 whose combination is known on registers too.
pub(crate) trait OnLanes: Reduction<Stored = u16, Accumulator = f32> {
    /// # Safety
    ///
    /// As [`Lanes`].
    unsafe fn combine_lanes<L: Lanes>(left: L, right: L) -> L;
}

macro_rules! on_lanes {
    ($($reduction:ident: $method:ident),+) => { $(
        impl OnLanes for $reduction<F16> {
            #[inline(always)]
            unsafe fn combine_lanes<L: Lanes>(left: L, right: L) -> L {
                // SAFETY: The contract is the same.
                unsafe { L::$method(left, right) }
            }
        }
    )+ };
}

on_lanes!(FloatSum: add, FloatProduct: multiply, FloatMean: add);

/// The reduction `R` on registers `L`; what does not fill a register is left to `R`.
pub(crate) struct Converted<L, R>(PhantomData<(L, R)>);

impl<L: Lanes, R: OnLanes> Reduction for Converted<L, R> {
    type Stored = u16;
    type Accumulator = f32;

    #[inline(always)]
    fn widen(stored: u16) -> f32 {
        R::widen(stored)
    }

    #[inline(always)]
    fn combine(left: f32, right: f32) -> f32 {
        R::combine(left, right)
    }

    #[inline(always)]
    fn narrow(accumulator: f32) -> u16 {
        R::narrow(accumulator)
    }

    #[inline(always)]
    unsafe fn accumulate<const N: usize, const FIRST: bool>(
        block: *mut f32,
        sources: [*const u16; N],
        length: usize,
    ) {
        let whole = length - length % L::LANES;
        // SAFETY: All indices are less than `length`, for which the caller vouches; this kernel is
        // called only where the processor has its level.
        unsafe {
            for index in (0..whole).step_by(L::LANES) {
                let mut accumulator = if FIRST {
                    L::load_f16(sources[0].add(index))
                } else {
                    L::load(block.add(index))
                };
                for &source in &sources[usize::from(FIRST)..] {
                    accumulator = R::combine_lanes(accumulator, L::load_f16(source.add(index)));
                }
                L::store(accumulator, block.add(index));
            }
            let rest = sources.map(|source| source.add(whole));
            R::accumulate::<N, FIRST>(block.add(whole), rest, length - whole);
        }
    }

    #[inline(always)]
    unsafe fn finish(block: *mut f32, length: usize, job: &Job<'_>, offset: usize) {
        // SAFETY: The contract is the same.
        unsafe { R::finish(block, length, job, offset) }
    }

    #[inline(always)]
    unsafe fn store(block: *const f32, destination: *mut u16, length: usize) {
        let whole = length - length % L::LANES;
        // SAFETY: As in `accumulate`.
        unsafe {
            for index in (0..whole).step_by(L::LANES) {
                L::store_f16(L::load(block.add(index)), destination.add(index));
            }
            R::store(block.add(whole), destination.add(whole), length - whole);
        }
    }
}
