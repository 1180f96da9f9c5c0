//! Memory of a communicator's for what HCCL may write and nobody reads.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use iccl_plugin_api::sdk::PluginResult;

use crate::context::CardContext;
use crate::sys;

/// The least that is allocated.
const LEAST_BYTES: usize = 1 << 16;

/// Memory of a card. What was given out stays until the end, since streams may still be on their way
/// to it; each block is at least twice as large as the one before, so that all are less than twice the
/// last.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    blocks: Mutex<Vec<Block>>,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    pointer: *mut c_void,
    bytes: usize,
}

// SAFETY: addresses of a card's memory, used by its streams only.
unsafe impl Send for Block {}

impl Scratch {
    /// Room for this many bytes. All who ask get the same. The card's context is current.
    pub(crate) fn room(&self, context: &CardContext, bytes: usize) -> PluginResult<*mut c_void> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let last = blocks.last().copied();
        if let Some(block) = last.filter(|block| block.bytes >= bytes) {
            return Ok(block.pointer);
        }
        let least = last.map_or(LEAST_BYTES, |block| 2 * block.bytes);
        let bytes = bytes.max(least);
        let table = &context.acl.table;
        let mut pointer = std::ptr::null_mut();
        let answer =
            // SAFETY: there is room for the pointer.
            unsafe { (table.aclrtMalloc)(&raw mut pointer, bytes, sys::MALLOC_HUGE_FIRST) };
        table.check(format_args!("aclrtMalloc({bytes})"), answer)?;
        blocks.push(Block { pointer, bytes });
        Ok(pointer)
    }

    /// Frees everything. No stream is on its way to it, and the card's context is current.
    pub(crate) fn free(&self, context: &CardContext) -> PluginResult<()> {
        let blocks =
            std::mem::take(&mut *self.blocks.lock().unwrap_or_else(PoisonError::into_inner));
        let table = &context.acl.table;
        blocks.iter().try_for_each(|block| {
            // SAFETY: it came from `aclrtMalloc`, and the caller promises that it is not used.
            table.check("aclrtFree", unsafe { (table.aclrtFree)(block.pointer) })
        })
    }
}
