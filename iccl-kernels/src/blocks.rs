//! The loop that every kernel is an instance of: block by block, fold the sources into
//! accumulators, finish them, store them.
//!
//! All sources of a block are read before the first byte of the block is written, which is what
//! allows the destination to be one of the sources.

use core::mem::MaybeUninit;

/// Elements of a block. Large enough to hide the per-block work, and small enough that the
/// accumulators (8 KiB for f32) and a piece of each of four sources share a first-level cache.
pub(crate) const BLOCK_ELEMENTS: usize = 2048;

/// What a kernel is called with; the contract is that of [`crate::reduce`], with at least one
/// source.
pub(crate) struct Job<'a> {
    pub(crate) destination: *mut u8,
    pub(crate) sources: &'a [*const u8],
    pub(crate) count: usize,
    /// The divisor of AVG. Other kernels pay no attention to it.
    pub(crate) ranks: u32,
}

/// A reduction of one element type with one operation.
///
/// The methods on single elements define it. Those on blocks apply them in a loop, and may be
/// replaced by faster ones that give the same bits.
pub(crate) trait Reduction {
    /// An element as it lies in memory.
    type Stored: Copy;
    /// What is carried from source to source.
    type Accumulator: Copy;

    fn widen(stored: Self::Stored) -> Self::Accumulator;
    fn combine(left: Self::Accumulator, right: Self::Accumulator) -> Self::Accumulator;
    fn narrow(accumulator: Self::Accumulator) -> Self::Stored;

    /// Folds `N` sources into the block, the first of them starting it afresh if `FIRST`.
    ///
    /// # Safety
    ///
    /// `block` is valid for `length` accumulators (initialised unless `FIRST`), each source for
    /// `length` elements, at any alignment.
    #[inline(always)]
    unsafe fn accumulate<const N: usize, const FIRST: bool>(
        block: *mut Self::Accumulator,
        sources: [*const Self::Stored; N],
        length: usize,
    ) {
        for index in 0..length {
            // SAFETY: `index` is less than `length`, for which the caller vouches.
            unsafe {
                let value =
                    |source: *const Self::Stored| Self::widen(source.add(index).read_unaligned());
                let mut accumulator =
                    if FIRST { value(sources[0]) } else { block.add(index).read() };
                for &source in &sources[usize::from(FIRST)..] {
                    accumulator = Self::combine(accumulator, value(source));
                }
                block.add(index).write(accumulator);
            }
        }
    }

    /// What is done to the accumulators before they are rounded; `offset` is the index of the
    /// block's first element.
    ///
    /// # Safety
    ///
    /// `block` holds `length` initialised accumulators, and elements `offset..offset + length` of
    /// the sources are still as they were given.
    #[inline(always)]
    unsafe fn finish(
        _block: *mut Self::Accumulator,
        _length: usize,
        _job: &Job<'_>,
        _offset: usize,
    ) {
    }

    /// Rounds the block into the destination.
    ///
    /// # Safety
    ///
    /// `block` holds `length` initialised accumulators; `destination` is writable for `length`
    /// elements, at any alignment.
    #[inline(always)]
    unsafe fn store(
        block: *const Self::Accumulator,
        destination: *mut Self::Stored,
        length: usize,
    ) {
        for index in 0..length {
            // SAFETY: `index` is less than `length`, for which the caller vouches.
            unsafe {
                let rounded = Self::narrow(block.add(index).read());
                destination.add(index).write_unaligned(rounded);
            }
        }
    }
}

/// The kernel of a reduction. Inlined into a function that enables the instructions of a level.
///
/// # Safety
///
/// See [`Job`].
#[inline(always)]
pub(crate) unsafe fn run<R: Reduction>(job: &Job<'_>) {
    let mut storage = MaybeUninit::<[R::Accumulator; BLOCK_ELEMENTS]>::uninit();
    let block = storage.as_mut_ptr().cast::<R::Accumulator>();
    let destination = job.destination.cast::<R::Stored>();
    let mut offset = 0;
    while offset < job.count {
        let length = BLOCK_ELEMENTS.min(job.count - offset);
        // SAFETY: `length` elements from `offset` are within `count`, for which the caller vouches
        // on every pointer, and within the block. The first step of `fold` initialises the block.
        // The destination is written after the last use of this part of the sources.
        unsafe {
            fold::<R>(block, job.sources, offset, length);
            R::finish(block, length, job, offset);
            R::store(block, destination.add(offset), length);
        }
        offset += length;
    }
}

/// Folds one block of all sources, in order, into accumulators.
///
/// # Safety
///
/// `block` is valid for `length` accumulators, each source for `offset + length` elements; there is
/// at least one source.
#[inline(always)]
unsafe fn fold<R: Reduction>(
    block: *mut R::Accumulator,
    sources: &[*const u8],
    offset: usize,
    length: usize,
) {
    let at = |source: *const u8| {
        // SAFETY: The caller vouches for `offset` elements and more.
        unsafe { source.cast::<R::Stored>().add(offset) }
    };
    // SAFETY: The caller vouches for `length` elements from `offset` of each source; the first step
    // initialises the block for the others.
    unsafe {
        let mut rest = match *sources {
            [a, b, c, d, ref rest @ ..] => {
                R::accumulate::<4, true>(block, [at(a), at(b), at(c), at(d)], length);
                rest
            }
            [a, b, ref rest @ ..] => {
                R::accumulate::<2, true>(block, [at(a), at(b)], length);
                rest
            }
            [a, ref rest @ ..] => {
                R::accumulate::<1, true>(block, [at(a)], length);
                rest
            }
            [] => return,
        };
        while let [a, b, c, d, ref after @ ..] = *rest {
            R::accumulate::<4, false>(block, [at(a), at(b), at(c), at(d)], length);
            rest = after;
        }
        for &a in rest {
            R::accumulate::<1, false>(block, [at(a)], length);
        }
    }
}
