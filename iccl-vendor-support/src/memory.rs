//! Memory: what was allocated, which way a copy goes, and the pages around something.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_plugin_api::{MemoryKind, Status};

/// What a device has allocated, by address.
#[derive(Debug, Default)]
pub struct Allocations {
    known: Mutex<BTreeMap<usize, Allocation>>,
}

/// One allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its length.
    pub bytes: usize,
    /// Its kind.
    pub kind: MemoryKind,
}

impl Allocations {
    /// Remembers an allocation.
    pub fn insert(&self, pointer: *mut c_void, allocation: Allocation) {
        self.locked().insert(pointer.addr(), allocation);
    }

    /// Forgets the allocation that begins there, and says what it was.
    ///
    /// # Errors
    /// `InvalidArgument` if there is none.
    pub fn remove(&self, pointer: *mut c_void) -> PluginResult<Allocation> {
        self.locked().remove(&pointer.addr()).ok_or_else(|| {
            PluginError::invalid(format!("{pointer:p} was not allocated by this device"))
        })
    }

    /// The kind of the allocation that holds `bytes` from an address on.
    pub fn holds(&self, address: usize, bytes: usize) -> Option<MemoryKind> {
        let known = self.locked();
        let (begin, allocation) = known.range(..=address).next_back()?;
        let end = address.checked_add(bytes)?;
        (end <= begin + allocation.bytes).then_some(allocation.kind)
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, Allocation>> {
        // Changed in one step, so a panic elsewhere can't have left it half-made.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much a card is asked for: at least a byte, and nothing that is not its own to give.
///
/// # Errors
/// `NotSupported` for ordinary host memory, `OutOfResources` for more than an address space.
pub fn allocation_bytes(bytes: u64, kind: MemoryKind) -> PluginResult<usize> {
    if kind == MemoryKind::Host {
        return Err(PluginError::not_supported("ordinary host memory is not a card's"));
    }
    let bytes = usize::try_from(bytes)
        .map_err(|_| PluginError::new(Status::OutOfResources, "more than an address space"))?;
    Ok(bytes.max(1))
}

/// Which way a copy goes. Every maker has numbers of its own for these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Within the host.
    HostToHost,
    /// Onto the card.
    HostToDevice,
    /// From the card.
    DeviceToHost,
    /// Between places of the card.
    DeviceToDevice,
}

impl Direction {
    /// Of a copy between these kinds; pinned memory is the host's.
    pub fn new(destination: MemoryKind, source: MemoryKind) -> Self {
        use MemoryKind::{Device, Host, PinnedHost};
        match (destination, source) {
            (Host | PinnedHost, Host | PinnedHost) => Self::HostToHost,
            (Device, Host | PinnedHost) => Self::HostToDevice,
            (Host | PinnedHost, Device) => Self::DeviceToHost,
            (Device, Device) => Self::DeviceToDevice,
        }
    }
}

/// The whole pages around some memory: their address, their length, and where in them it begins.
pub fn pages(address: usize, bytes: usize, page: usize) -> Option<(usize, usize, usize)> {
    let begin = address - address % page;
    let end = address.checked_add(bytes)?.checked_next_multiple_of(page)?;
    Some((begin, end - begin, address - begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_memory_is_the_hosts_side_of_a_copy() {
        use Direction::{DeviceToDevice, DeviceToHost, HostToDevice, HostToHost};
        use MemoryKind::{Device, Host, PinnedHost};
        let expected = [
            (Host, Host, HostToHost),
            (Host, PinnedHost, HostToHost),
            (PinnedHost, Host, HostToHost),
            (PinnedHost, PinnedHost, HostToHost),
            (Device, Host, HostToDevice),
            (Device, PinnedHost, HostToDevice),
            (Host, Device, DeviceToHost),
            (PinnedHost, Device, DeviceToHost),
            (Device, Device, DeviceToDevice),
        ];
        for (destination, source, direction) in expected {
            assert_eq!(Direction::new(destination, source), direction, "{destination}, {source}");
        }
    }

    #[test]
    fn a_card_gives_its_own_memory_and_never_none() {
        assert_eq!(allocation_bytes(0, MemoryKind::Device), Ok(1));
        assert_eq!(allocation_bytes(64, MemoryKind::PinnedHost), Ok(64));
        let error = allocation_bytes(64, MemoryKind::Host).unwrap_err();
        assert_eq!(error.status, Status::NotSupported);
    }

    #[test]
    fn memory_inside_an_allocation_is_of_its_kind() {
        let allocations = Allocations::default();
        let pointer = std::ptr::without_provenance_mut::<c_void>(4096);
        let allocation = Allocation { bytes: 64, kind: MemoryKind::PinnedHost };
        allocations.insert(pointer, allocation);
        assert_eq!(allocations.holds(4096 + 56, 8), Some(MemoryKind::PinnedHost));
        assert_eq!(allocations.holds(4096 + 57, 8), None);
        assert_eq!(allocations.holds(4095, 8), None);
        assert_eq!(allocations.remove(pointer).unwrap(), allocation);
        assert!(allocations.remove(pointer).is_err());
    }

    #[test]
    fn pages_hold_all_of_the_memory() {
        assert_eq!(pages(0x10010, 0x10, 0x1000), Some((0x10000, 0x1000, 0x10)));
        assert_eq!(pages(0x10ff8, 0x10, 0x1000), Some((0x10000, 0x2000, 0xff8)));
        assert_eq!(pages(0x10000, 0x2000, 0x1000), Some((0x10000, 0x2000, 0)));
        assert_eq!(pages(usize::MAX - 8, 16, 0x1000), None);
    }
}
