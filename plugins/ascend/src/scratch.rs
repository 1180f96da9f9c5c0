//! Memory of a communicator's for what HCCL may write and nobody reads, and for copies of what it wants elsewhere.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use iccl_plugin_api::sdk::PluginResult;

use crate::sys;

/// The least that is allocated.
const LEAST_BYTES: usize = 1 << 16;

/// Memory of a card. Each stream has its own: what comes later on the same stream writes after what came
/// before has read, and on another it may not. What was given out stays until the end, since streams may
/// still be on their way to it; each block of a stream is at least twice as large as the one before, so that
/// all are less than twice the last.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    blocks: Mutex<Vec<Block>>,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    stream: sys::Stream,
    pointer: *mut c_void,
    bytes: usize,
}

// SAFETY: addresses of a card's memory, used by its streams only.
unsafe impl Send for Block {}

impl Scratch {
    /// Room for this many bytes. All calls on a stream get the same. The card's context is current.
    pub(crate) fn room(
        &self,
        table: &sys::Acl,
        stream: sys::Stream,
        bytes: usize,
    ) -> PluginResult<*mut c_void> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let last = blocks.iter().rev().find(|block| block.stream == stream).copied();
        if let Some(block) = last.filter(|block| block.bytes >= bytes) {
            return Ok(block.pointer);
        }
        let least = last.map_or(LEAST_BYTES, |block| 2 * block.bytes);
        let bytes = bytes.max(least);
        let mut pointer = std::ptr::null_mut();
        let answer =
            // SAFETY: there is room for the pointer.
            unsafe { (table.aclrtMalloc)(&raw mut pointer, bytes, sys::MALLOC_HUGE_FIRST) };
        table.check(format_args!("aclrtMalloc({bytes})"), answer)?;
        blocks.push(Block { stream, pointer, bytes });
        Ok(pointer)
    }

    /// Frees everything. No stream is on its way to it, and the card's context is current.
    pub(crate) fn free(&self, table: &sys::Acl) -> PluginResult<()> {
        let blocks =
            std::mem::take(&mut *self.blocks.lock().unwrap_or_else(PoisonError::into_inner));
        blocks.iter().try_for_each(|block| {
            // SAFETY: it came from `aclrtMalloc`, and the caller promises that it is not used.
            table.check("aclrtFree", unsafe { (table.aclrtFree)(block.pointer) })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    unsafe extern "C" fn malloc(pointer: *mut *mut c_void, bytes: usize, _: i32) -> sys::AclError {
        static NEXT: AtomicUsize = AtomicUsize::new(1 << 20);
        let address = NEXT.fetch_add(bytes, Ordering::AcqRel);
        // SAFETY: the caller has room for the pointer.
        unsafe { pointer.write(std::ptr::without_provenance_mut(address)) };
        sys::ACL_SUCCESS
    }

    #[test]
    fn streams_do_not_share_and_a_stream_gets_the_same_until_it_is_too_small() {
        // SAFETY: nothing but `aclrtMalloc` is called.
        let table = unsafe { sys::Acl::resolve_by(|_| Some(malloc as *const c_void)) }.unwrap();
        let scratch = Scratch::default();
        let [first, second] = [1, 2].map(std::ptr::without_provenance_mut);
        let room = |stream, bytes| scratch.room(&table, stream, bytes).unwrap().addr();
        let own = room(first, 8);
        assert!(room(second, 8).abs_diff(own) >= LEAST_BYTES);
        assert_eq!(room(first, LEAST_BYTES), own);
        let larger = room(first, LEAST_BYTES + 1);
        assert_ne!(larger, own);
        assert_eq!(room(first, 2 * LEAST_BYTES), larger);
    }
}
