//! Memory: what was allocated, what a pointer is, and the direction of a copy.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{PluginError, PluginResult};

use crate::sys;

/// What a device has allocated, by address.
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    known: Mutex<BTreeMap<usize, Allocation>>,
}

/// One allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) bytes: usize,
    pub(crate) kind: MemoryKind,
}

impl Allocations {
    pub(crate) fn insert(&self, pointer: *mut c_void, allocation: Allocation) {
        self.locked().insert(pointer.addr(), allocation);
    }

    /// Forgets the allocation that begins there, and says what it was.
    pub(crate) fn remove(&self, pointer: *mut c_void) -> PluginResult<Allocation> {
        self.locked().remove(&pointer.addr()).ok_or_else(|| {
            PluginError::invalid(format!("{pointer:p} was not allocated by this device"))
        })
    }

    /// The kind of the allocation that holds `bytes` from an address on.
    pub(crate) fn holds(&self, address: usize, bytes: usize) -> Option<MemoryKind> {
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

/// The direction of a copy.
pub(crate) fn direction(destination: MemoryKind, source: MemoryKind) -> c_int {
    use MemoryKind::{Device, Host, PinnedHost};
    match (destination, source) {
        (Host | PinnedHost, Host | PinnedHost) => sys::MEMCPY_HOST_TO_HOST,
        (Device, Host | PinnedHost) => sys::MEMCPY_HOST_TO_DEVICE,
        (Host | PinnedHost, Device) => sys::MEMCPY_DEVICE_TO_HOST,
        (Device, Device) => sys::MEMCPY_DEVICE_TO_DEVICE,
    }
}

/// What kind of memory the runtime's answer about a pointer means to card `ordinal`.
pub(crate) fn kind(
    attributes: &sys::PointerAttributes,
    ordinal: c_int,
    pointer: *const c_void,
) -> PluginResult<MemoryKind> {
    match attributes.memory_type {
        sys::MEMORY_TYPE_UNREGISTERED => Ok(MemoryKind::Host),
        sys::MEMORY_TYPE_HOST => Ok(MemoryKind::PinnedHost),
        sys::MEMORY_TYPE_DEVICE if attributes.device == ordinal => Ok(MemoryKind::Device),
        sys::MEMORY_TYPE_DEVICE => Err(PluginError::invalid(format!(
            "{pointer:p} is memory of card {}, not of card {ordinal}",
            attributes.device
        ))),
        // It moves to where it is used; copies take it as the card's.
        sys::MEMORY_TYPE_MANAGED => Ok(MemoryKind::Device),
        other => {
            Err(PluginError::invalid(format!("{pointer:p} is memory of unknown type {other}")))
        }
    }
}

/// The whole pages around some memory: their address, their length, and where in them it begins.
pub(crate) fn pages(address: usize, bytes: usize, page: usize) -> Option<(usize, usize, usize)> {
    let begin = address - address % page;
    let end = address.checked_add(bytes)?.checked_next_multiple_of(page)?;
    Some((begin, end - begin, address - begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_memory_is_the_hosts_side_of_a_copy() {
        use MemoryKind::{Device, Host, PinnedHost};
        let expected = [
            (Host, Host, 0),
            (Host, PinnedHost, 0),
            (PinnedHost, Host, 0),
            (PinnedHost, PinnedHost, 0),
            (Device, Host, 1),
            (Device, PinnedHost, 1),
            (Host, Device, 2),
            (PinnedHost, Device, 2),
            (Device, Device, 3),
        ];
        for (destination, source, number) in expected {
            assert_eq!(direction(destination, source), number, "{destination} from {source}");
        }
    }

    #[test]
    fn a_pointer_of_another_card_or_of_an_unknown_type_is_refused() {
        let kind_of = |memory_type, device| {
            let attributes = sys::PointerAttributes {
                memory_type,
                device,
                device_pointer: std::ptr::null_mut(),
                host_pointer: std::ptr::null_mut(),
                reserved: [0; 13],
            };
            kind(&attributes, 1, std::ptr::null())
        };
        assert_eq!(kind_of(0, -2).unwrap(), MemoryKind::Host);
        assert_eq!(kind_of(1, 0).unwrap(), MemoryKind::PinnedHost);
        assert_eq!(kind_of(2, 1).unwrap(), MemoryKind::Device);
        assert_eq!(kind_of(3, 0).unwrap(), MemoryKind::Device);
        assert!(kind_of(2, 0).unwrap_err().message.contains("memory of card 0, not of card 1"));
        assert!(kind_of(4, 1).is_err());
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
