//! A card's memory as a NIC registers it.

use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_plugin_api::tables::{MemoryRegion, region_form};
use iccl_vendor_support::{page_bytes, pages};

use crate::device::Card;
use crate::sys;

impl Card {
    /// Gives memory in the best form that there is.
    pub(crate) fn export(&self, pointer: *mut c_void, bytes: u64) -> PluginResult<MemoryRegion> {
        if self.region_form == 0 {
            return Err(PluginError::not_supported(
                "the driver gives this card's memory to no NIC, and peer_memory is not set",
            ));
        }
        let length = bytes as usize;
        if self.allocations.holds(pointer.addr(), length) != Some(MemoryKind::Device) {
            let text = format!("{bytes} bytes at {pointer:p} are no memory of this card");
            return Err(PluginError::invalid(text));
        }
        if self.region_form == region_form::ADDRESS {
            return Ok(self.regions.by_address(pointer, bytes));
        }
        let (descriptor, offset) = self.dma_buf(pointer, length)?;
        Ok(self.regions.by_descriptor(descriptor, offset as u64, bytes))
    }

    /// A descriptor of the pages around some memory, and where in them it begins.
    fn dma_buf(&self, pointer: *mut c_void, bytes: usize) -> PluginResult<(OwnedFd, usize)> {
        let Some(get) = self.neuware().driver.cnMemGetHandleForAddressRange else {
            return Err(PluginError::not_supported("the driver gives no dma-buf descriptors"));
        };
        let Some((begin, length, offset)) = pages(pointer.expose_provenance(), bytes, page_bytes())
        else {
            return Err(PluginError::invalid("more than an address space"));
        };
        let _current = self.current.enter()?;
        let mut descriptor: c_int = -1;
        let place = (&raw mut descriptor).cast();
        // SAFETY: there is room for the descriptor.
        let answer = unsafe { get(place, begin as u64, length, sys::RANGE_HANDLE_DMA_BUF_FD, 0) };
        let call = format_args!("cnMemGetHandleForAddressRange({begin:#x}, {length})");
        self.runtime().check(call, answer)?;
        if descriptor < 0 {
            return Err(PluginError::not_supported("the driver gave no descriptor"));
        }
        // SAFETY: the driver made it for the caller.
        Ok((unsafe { OwnedFd::from_raw_fd(descriptor) }, offset))
    }
}
