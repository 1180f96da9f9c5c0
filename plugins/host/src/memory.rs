//! Allocation: aligned, and freed by address alone.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};

/// Alignment of every allocation in bytes: a cache line.
const ALIGNMENT: usize = 64;

/// What is allocated, by address.
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    layouts: Mutex<HashMap<usize, Layout>>,
}

impl Allocations {
    pub(crate) fn allocate(&self, bytes: u64) -> PluginResult<*mut c_void> {
        let refuse =
            || PluginError::new(Status::OutOfResources, format!("cannot allocate {bytes} bytes"));
        let size = usize::try_from(bytes.max(1)).map_err(|_| refuse())?;
        let layout = Layout::from_size_align(size, ALIGNMENT).map_err(|_| refuse())?;
        // SAFETY: the size is at least 1.
        let pointer = unsafe { alloc(layout) };
        if pointer.is_null() {
            return Err(refuse());
        }
        let mut layouts = self.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        layouts.insert(pointer as usize, layout);
        Ok(pointer.cast())
    }

    /// # Safety
    /// Nothing uses the memory any more.
    pub(crate) unsafe fn free(&self, pointer: *mut c_void) -> PluginResult<()> {
        let mut layouts = self.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        let layout = layouts.remove(&(pointer as usize)).ok_or_else(|| {
            PluginError::invalid(format!("{pointer:p} was not allocated here, or is freed already"))
        })?;
        drop(layouts);
        // SAFETY: it was allocated with this layout and is removed from the table, so it is freed
        // once; the caller promises that nothing uses it.
        unsafe { dealloc(pointer.cast(), layout) }
        Ok(())
    }
}
