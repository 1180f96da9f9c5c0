//! Memory: the number of a copy's direction, and what a pointer is.

use std::ffi::{c_int, c_void};

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_vendor_support::Direction;

use crate::sys;

/// The runtime's number of a direction.
pub(crate) fn direction(destination: MemoryKind, source: MemoryKind) -> c_int {
    match Direction::new(destination, source) {
        Direction::HostToHost => sys::HOST_TO_HOST,
        Direction::HostToDevice => sys::HOST_TO_DEVICE,
        Direction::DeviceToHost => sys::DEVICE_TO_HOST,
        Direction::DeviceToDevice => sys::DEVICE_TO_DEVICE,
    }
}

/// What kind of memory the runtime's answer about a pointer means to card `ordinal`.
pub(crate) fn kind(
    attributes: &sys::PointerAttributes,
    ordinal: c_int,
    pointer: *const c_void,
) -> PluginResult<MemoryKind> {
    match attributes.memory_type {
        sys::MEMORY_UNREGISTERED => Ok(MemoryKind::Host),
        sys::MEMORY_HOST => Ok(MemoryKind::PinnedHost),
        sys::MEMORY_DEVICE if attributes.device == ordinal => Ok(MemoryKind::Device),
        sys::MEMORY_DEVICE => Err(PluginError::invalid(format!(
            "{pointer:p} is memory of card {}, not of card {ordinal}",
            attributes.device
        ))),
        other => {
            Err(PluginError::invalid(format!("{pointer:p} is memory of unknown type {other}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_have_cambricons_numbers() {
        use MemoryKind::{Device, Host, PinnedHost};
        let expected = [
            (Device, Host, 0),
            (Device, PinnedHost, 0),
            (Device, Device, 1),
            (Host, Device, 2),
            (PinnedHost, Device, 2),
            (Host, PinnedHost, 3),
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
                size: 0,
                device_pointer: std::ptr::null_mut(),
                host_pointer: std::ptr::null_mut(),
                newer: [0; 28],
            };
            kind(&attributes, 1, std::ptr::null())
        };
        assert_eq!(kind_of(0, -1).unwrap(), MemoryKind::Host);
        assert_eq!(kind_of(1, 0).unwrap(), MemoryKind::PinnedHost);
        assert_eq!(kind_of(2, 1).unwrap(), MemoryKind::Device);
        assert!(kind_of(2, 0).unwrap_err().message.contains("memory of card 0, not of card 1"));
        assert!(kind_of(3, 1).is_err());
        assert_eq!(size_of::<sys::PointerAttributes>(), 256);
    }
}
