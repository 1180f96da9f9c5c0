//! Cards: choice, attributes, peers.

use std::ffi::{CStr, c_char};

use iccl_sim_cambricon::{
    ARGS_INVALID, DEVICE_INVALID, Status, attribute, device, has_peer_access, pci_address, put,
    put_text, status,
};

use super::runtime;

#[unsafe(no_mangle)]
extern "C" fn cnrtGetDeviceCount(count: *mut u32) -> Status {
    runtime("cnrtGetDeviceCount", |machine| put(count, machine.devices().len() as u32))
}

#[unsafe(no_mangle)]
extern "C" fn cnrtSetDevice(index: i32) -> Status {
    runtime("cnrtSetDevice", |machine| {
        machine.set_current_device(device(machine, index)?).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtGetDevice(out: *mut i32) -> Status {
    runtime("cnrtGetDevice", |machine| put(out, machine.current_device() as i32))
}

#[unsafe(no_mangle)]
extern "C" fn cnrtSyncDevice() -> Status {
    runtime("cnrtSyncDevice", |machine| {
        machine.synchronize_device(machine.current_device()).map_err(status)
    })
}

/// Ends the error that the card is in. What was allocated stays, unlike with the real one.
#[unsafe(no_mangle)]
extern "C" fn cnrtDeviceReset() -> Status {
    if let Some(machine) = super::driver()
        && let Ok(device) = machine.device(machine.current_device())
    {
        device.reset();
    }
    runtime("cnrtDeviceReset", |_| Ok(()))
}

/// How the host waits: spin, block, yield, or as the library likes.
#[unsafe(no_mangle)]
extern "C" fn cnrtSetDeviceFlag(flag: u32) -> Status {
    runtime("cnrtSetDeviceFlag", |_| if flag <= 3 { Ok(()) } else { Err(ARGS_INVALID) })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtDeviceGetAttribute(out: *mut i32, number: i32, index: i32) -> Status {
    runtime("cnrtDeviceGetAttribute", |machine| {
        put(out, attribute(machine, number, device(machine, index)?)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtDeviceGetPCIBusId(out: *mut c_char, length: i32, index: i32) -> Status {
    runtime("cnrtDeviceGetPCIBusId", |machine| {
        let index = device(machine, index)?;
        let physical = machine.device(index).map_err(status)?.physical();
        put_text(out.cast(), length, &pci_address(physical))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtDeviceGetByPCIBusId(out: *mut i32, text: *const c_char) -> Status {
    runtime("cnrtDeviceGetByPCIBusId", |machine| {
        if text.is_null() {
            return Err(ARGS_INVALID);
        }
        // SAFETY: C passes a text that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        let is_it = |physical| text.eq_ignore_ascii_case(&pci_address(physical));
        let found = machine.devices().iter().position(|device| is_it(device.physical()));
        put(out, found.ok_or(DEVICE_INVALID)? as i32)
    })
}

/// Nothing has to be enabled.
#[unsafe(no_mangle)]
extern "C" fn cnrtGetPeerAccessibility(out: *mut u32, index: i32, peer: i32) -> Status {
    runtime("cnrtGetPeerAccessibility", |machine| {
        let is_pair = device(machine, index)? != device(machine, peer)?;
        put(out, u32::from(is_pair && has_peer_access(machine)))
    })
}
