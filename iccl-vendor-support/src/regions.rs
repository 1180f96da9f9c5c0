//! Memory that was given out for NICs to register, until it is taken back.

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_plugin_api::tables::{MemoryRegion, region_form};

/// The regions of a card that are given out.
#[derive(Debug, Default)]
pub struct Regions {
    /// The descriptor of each, if its form has one, by the mark of the region.
    known: Mutex<HashMap<u64, Option<OwnedFd>>>,
    last: AtomicU64,
}

impl Regions {
    /// Gives memory out by its address.
    pub fn by_address(&self, pointer: *mut c_void, bytes: u64) -> MemoryRegion {
        let address = pointer.expose_provenance() as u64;
        self.give(MemoryRegion { address, ..region(region_form::ADDRESS, bytes) }, None)
    }

    /// Gives memory out as a dma-buf, in which it begins at `offset`. The descriptor is closed when
    /// the region is taken back.
    pub fn by_descriptor(&self, descriptor: OwnedFd, offset: u64, bytes: u64) -> MemoryRegion {
        let region = MemoryRegion {
            descriptor: descriptor.as_raw_fd(),
            offset,
            ..region(region_form::DMA_BUF, bytes)
        };
        self.give(region, Some(descriptor))
    }

    fn give(&self, region: MemoryRegion, descriptor: Option<OwnedFd>) -> MemoryRegion {
        let cookie = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.locked().insert(cookie, descriptor);
        MemoryRegion { cookie, ..region }
    }

    /// Takes a region back, once.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not given out.
    pub fn release(&self, region: &MemoryRegion) -> PluginResult<()> {
        self.locked().remove(&region.cookie).map(drop).ok_or_else(|| {
            PluginError::invalid(format!("there is no region {} of this card", region.cookie))
        })
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Option<OwnedFd>>> {
        // Changed in one step, so a panic elsewhere can't have left it half-made.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn region(form: u32, length: u64) -> MemoryRegion {
    MemoryRegion { form, descriptor: -1, address: 0, offset: 0, length, cookie: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_taken_back_once_and_its_descriptor_is_closed() {
        let regions = Regions::default();
        let pointer = std::ptr::without_provenance_mut::<c_void>(0x1000);
        let plain = regions.by_address(pointer, 64);
        assert_eq!((plain.form, plain.address, plain.descriptor), (region_form::ADDRESS, 4096, -1));
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        let number = file.as_raw_fd();
        let shared = regions.by_descriptor(file, 16, 48);
        assert_eq!((shared.form, shared.descriptor), (region_form::DMA_BUF, number));
        assert_eq!((shared.address, shared.offset, shared.length), (0, 16, 48));
        assert_ne!(plain.cookie, shared.cookie);
        let is_open = || std::fs::read_link(format!("/proc/self/fd/{number}"));
        let before = is_open().unwrap();
        regions.release(&shared).unwrap();
        assert_ne!(is_open().ok(), Some(before));
        assert!(regions.release(&shared).is_err());
        regions.release(&plain).unwrap();
    }
}
