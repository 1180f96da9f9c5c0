//! Scratch memory that outlives operations: taken and given back, never allocated per call once it
//! is warm.

use std::alloc::{Layout, alloc, dealloc};

use crate::{Error, ErrorKind, Result};

/// Alignment of scratch memory in bytes: a cache line, and a full vector register.
const ALIGNMENT: usize = 64;
/// Blocks kept for later use, in bytes altogether.
const KEPT_BYTES: usize = 64 << 20;

/// An aligned block of bytes with any content.
#[derive(Debug)]
pub(super) struct Block {
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: the block owns its memory.
unsafe impl Send for Block {}

impl Block {
    const EMPTY: Self = Self { pointer: std::ptr::null_mut(), bytes: 0 };

    fn new(bytes: usize) -> Result<Self> {
        let refuse = || {
            Error::new(
                ErrorKind::OutOfResources,
                format!("cannot allocate {bytes} bytes of scratch memory for an operation"),
            )
        };
        let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| refuse())?;
        // SAFETY: the size is not 0 (`take` never asks for that).
        let pointer = unsafe { alloc(layout) };
        if pointer.is_null() { Err(refuse()) } else { Ok(Self { pointer, bytes }) }
    }

    pub(super) fn pointer(&self) -> *mut u8 {
        self.pointer
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let layout = Layout::from_size_align(self.bytes, ALIGNMENT)
                .unwrap_or_else(|_| unreachable!("the same layout was valid in `new`"));
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.pointer, layout) }
        }
    }
}

/// Blocks that wait for the next operation.
#[derive(Debug, Default)]
pub(super) struct Pool {
    blocks: Vec<Block>,
    kept_bytes: usize,
}

impl Pool {
    /// A block of at least `bytes`.
    pub(super) fn take(&mut self, bytes: u64) -> Result<Block> {
        if bytes == 0 {
            return Ok(Block::EMPTY);
        }
        let wanted = usize::try_from(bytes).map_err(|_| {
            Error::new(ErrorKind::OutOfResources, format!("{bytes} bytes of scratch do not fit"))
        })?;
        let fitting = self
            .blocks
            .iter()
            .enumerate()
            .filter(|(_, block)| block.bytes >= wanted)
            .min_by_key(|(_, block)| block.bytes)
            .map(|(index, _)| index);
        if let Some(index) = fitting {
            let block = self.blocks.swap_remove(index);
            self.kept_bytes -= block.bytes;
            return Ok(block);
        }
        Block::new(wanted.checked_next_multiple_of(4096).unwrap_or(wanted))
    }

    /// Takes a block back.
    pub(super) fn give_back(&mut self, block: Block) {
        if block.bytes > 0 && self.kept_bytes + block.bytes <= KEPT_BYTES {
            self.kept_bytes += block.bytes;
            self.blocks.push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_comes_back_and_is_used_again() {
        let mut pool = Pool::default();
        let block = pool.take(1000).expect("1000 bytes");
        assert_eq!(block.pointer() as usize % ALIGNMENT, 0);
        let pointer = block.pointer();
        pool.give_back(block);
        assert_eq!(pool.take(4000).expect("4000 bytes").pointer(), pointer);
        assert!(pool.take(0).expect("nothing").pointer().is_null());
    }

    #[test]
    fn what_is_kept_is_bounded_and_absurd_sizes_are_refused() {
        let mut pool = Pool::default();
        for _ in 0..3 {
            let blocks: Vec<_> = (0..3).map(|_| pool.take(KEPT_BYTES as u64 / 2)).collect();
            for block in blocks {
                pool.give_back(block.expect("half of what is kept"));
            }
        }
        assert!(pool.kept_bytes <= KEPT_BYTES);
        let error = pool.take(u64::MAX - 4096).expect_err("more than memory");
        assert_eq!(error.kind(), ErrorKind::OutOfResources);
    }
}
