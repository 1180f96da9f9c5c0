//! Memory: the number of a copy's direction, and what a pointer is.

use std::ffi::{c_int, c_void};

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_vendor_support::Direction;

use crate::sys;

/// The runtime's number of a direction.
pub(crate) fn direction_number(direction: Direction) -> c_int {
    match direction {
        Direction::HostToHost => sys::MEMCPY_HOST_TO_HOST,
        Direction::HostToDevice => sys::MEMCPY_HOST_TO_DEVICE,
        Direction::DeviceToHost => sys::MEMCPY_DEVICE_TO_HOST,
        Direction::DeviceToDevice => sys::MEMCPY_DEVICE_TO_DEVICE,
    }
}

/// What kind of memory the runtime's answer about a pointer means to card `ordinal`.
pub(crate) fn kind(
    attributes: &sys::PointerAttributes,
    ordinal: i32,
    pointer: *const c_void,
) -> PluginResult<MemoryKind> {
    let (place, id) = (attributes.location_type, attributes.location_id);
    match place {
        sys::LOCATION_UNREGISTERED => Ok(MemoryKind::Host),
        sys::LOCATION_HOST => Ok(MemoryKind::PinnedHost),
        sys::LOCATION_DEVICE if i64::from(id) == i64::from(ordinal) => Ok(MemoryKind::Device),
        sys::LOCATION_DEVICE => {
            let text = format!("{pointer:p} is memory of card {id}, not of card {ordinal}");
            Err(PluginError::invalid(text))
        }
        other => Err(PluginError::invalid(format!("{pointer:p} is memory of type {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_have_ascends_numbers() {
        use Direction::{DeviceToDevice, DeviceToHost, HostToDevice, HostToHost};
        let numbers =
            [HostToHost, HostToDevice, DeviceToHost, DeviceToDevice].map(direction_number);
        assert_eq!(numbers, [0, 1, 2, 3]);
    }

    #[test]
    fn a_pointer_of_another_card_or_of_an_unknown_type_is_refused() {
        let kind_of = |location_type, location_id| {
            let attributes = sys::PointerAttributes {
                location_id,
                location_type,
                ..sys::PointerAttributes::default()
            };
            kind(&attributes, 1, std::ptr::null())
        };
        assert_eq!(kind_of(2, 0).unwrap(), MemoryKind::Host);
        assert_eq!(kind_of(0, 0).unwrap(), MemoryKind::PinnedHost);
        assert_eq!(kind_of(1, 1).unwrap(), MemoryKind::Device);
        assert!(kind_of(1, 0).unwrap_err().message.contains("memory of card 0, not of card 1"));
        // Managed memory, and what later versions may add.
        assert!(kind_of(3, 1).is_err() && kind_of(4, 1).is_err());
    }
}
