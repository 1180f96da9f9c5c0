//! A card's memory as a NIC registers it.

use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_plugin_api::tables::MemoryRegion;
use iccl_vendor_support::{page_bytes, pages};

use crate::device::Card;
use crate::sys;

impl Card {
    /// Gives memory in the best form that there is: dma-buf, which the kernel keeps alive, before a
    /// plain address.
    pub(crate) fn export(&self, pointer: *mut c_void, bytes: u64) -> PluginResult<MemoryRegion> {
        if !self.direct.dma_buf && !self.direct.peer_memory {
            return Err(PluginError::not_supported(
                "neither driver nor kernel gives this card's memory to a NIC",
            ));
        }
        let length = bytes as usize;
        if self.allocations.holds(pointer.addr(), length) != Some(MemoryKind::Device) {
            let text = format!("{bytes} bytes at {pointer:p} are no memory of this card");
            return Err(PluginError::invalid(text));
        }
        let _current = self.context.enter()?;
        self.synchronise_copies(pointer)?;
        if self.direct.dma_buf {
            let (descriptor, offset) = self.dma_buf(pointer, length)?;
            return Ok(self.regions.by_descriptor(descriptor, offset as u64, bytes));
        }
        Ok(self.regions.by_address(pointer, bytes))
    }

    /// Copies of memory that a NIC reaches must be over when they say so.
    fn synchronise_copies(&self, pointer: *mut c_void) -> PluginResult<()> {
        let Some(set) = self.driver().cuPointerSetAttribute else { return Ok(()) };
        let on: c_int = 1;
        let address = pointer.expose_provenance() as u64;
        let answer =
            // SAFETY: the attribute is a number; the pointer is memory of this card.
            unsafe { set((&raw const on).cast(), sys::POINTER_ATTRIBUTE_SYNC_MEMOPS, address) };
        self.driver().check("cuPointerSetAttribute(SYNC_MEMOPS)", answer)
    }

    /// A descriptor of the pages around some memory, and where in them it begins.
    fn dma_buf(&self, pointer: *mut c_void, bytes: usize) -> PluginResult<(OwnedFd, usize)> {
        let Some(get) = self.driver().cuMemGetHandleForAddressRange else {
            return Err(PluginError::not_supported("the driver gives no dma-buf descriptors"));
        };
        let Some((begin, length, offset)) = pages(pointer.expose_provenance(), bytes, page_bytes())
        else {
            return Err(PluginError::invalid("more than an address space"));
        };
        let mut descriptor: c_int = -1;
        let place = (&raw mut descriptor).cast();
        // SAFETY: there is room for the descriptor.
        let answer = unsafe { get(place, begin as u64, length, sys::RANGE_HANDLE_DMA_BUF_FD, 0) };
        let call = format_args!("cuMemGetHandleForAddressRange({begin:#x}, {length})");
        self.driver().check(call, answer)?;
        if descriptor < 0 {
            return Err(PluginError::not_supported("the driver gave no descriptor"));
        }
        // SAFETY: the driver made it for the caller.
        Ok((unsafe { OwnedFd::from_raw_fd(descriptor) }, offset))
    }

    /// Makes what NICs wrote visible to the card, where it is not by itself.
    pub(crate) fn flush_writes(&self) -> PluginResult<()> {
        let flush = match self.runtime().cudaDeviceFlushGPUDirectRDMAWrites {
            Some(flush) if self.direct.needs_flush => flush,
            _ => return Ok(()),
        };
        let _current = self.context.enter()?;
        // SAFETY: the card's context is current.
        let answer = unsafe { flush(sys::FLUSH_TARGET_CURRENT_DEVICE, sys::FLUSH_TO_OWNER) };
        self.runtime().check("cudaDeviceFlushGPUDirectRDMAWrites", answer)
    }
}
