//! Cards: choice, attributes, peers.

use std::ffi::{CStr, c_char};

use iccl_sim_core::Machine;
use iccl_sim_nvidia::{
    INVALID_DEVICE, INVALID_VALUE, Outcome, PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED,
    Status, attribute, pci_address, put, put_text, status,
};

use super::runtime;

fn device(machine: &Machine, index: i32) -> Result<u32, Status> {
    let index = u32::try_from(index).map_err(|_| INVALID_DEVICE)?;
    machine.device(index).map(|_| index).map_err(status)
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetDeviceCount(count: *mut i32) -> Status {
    runtime("cudaGetDeviceCount", |machine| put(count, machine.devices().len() as i32))
}

#[unsafe(no_mangle)]
extern "C" fn cudaSetDevice(index: i32) -> Status {
    runtime("cudaSetDevice", |machine| {
        machine.set_current_device(device(machine, index)?).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetDevice(out: *mut i32) -> Status {
    runtime("cudaGetDevice", |machine| put(out, machine.current_device() as i32))
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceSynchronize() -> Status {
    runtime("cudaDeviceSynchronize", |machine| {
        machine.synchronize_device(machine.current_device()).map_err(status)
    })
}

/// Ends the error that the card is in. What was allocated stays, unlike with the real one.
#[unsafe(no_mangle)]
extern "C" fn cudaDeviceReset() -> Status {
    if let Some(machine) = super::driver()
        && let Ok(device) = machine.device(machine.current_device())
    {
        device.reset();
    }
    runtime("cudaDeviceReset", |_| Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetAttribute(out: *mut i32, number: i32, index: i32) -> Status {
    runtime("cudaDeviceGetAttribute", |machine| put(out, attribute(machine, number, index)?))
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetPCIBusId(out: *mut c_char, length: i32, index: i32) -> Status {
    runtime("cudaDeviceGetPCIBusId", |machine| {
        let index = device(machine, index)?;
        let physical = machine.device(index).map_err(status)?.physical();
        put_text(out.cast(), length, &pci_address(physical))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetByPCIBusId(out: *mut i32, text: *const c_char) -> Status {
    runtime("cudaDeviceGetByPCIBusId", |machine| {
        if text.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: C passes a text that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        let is_it = |physical| text.eq_ignore_ascii_case(&pci_address(physical));
        let found = machine.devices().iter().position(|device| is_it(device.physical()));
        put(out, found.ok_or(INVALID_DEVICE)? as i32)
    })
}

/// Whether cards reach each other directly: a setting, on by default.
fn has_peer_access(machine: &Machine) -> bool {
    machine.settings().number("peer_access", 1) != 0
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceCanAccessPeer(out: *mut i32, index: i32, peer: i32) -> Status {
    runtime("cudaDeviceCanAccessPeer", |machine| {
        let (index, peer) = (device(machine, index)?, device(machine, peer)?);
        put(out, i32::from(index != peer && has_peer_access(machine)))
    })
}

/// cudaErrorPeerAccessUnsupported.
const PEER_ACCESS_UNSUPPORTED: Status = 217;

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceEnablePeerAccess(peer: i32, flags: u32) -> Status {
    runtime("cudaDeviceEnablePeerAccess", |machine| {
        let (index, peer) = (machine.current_device(), device(machine, peer)?);
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if index == peer || !has_peer_access(machine) {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        let is_new = machine.enable_peer(index, peer).map_err(status)?;
        if is_new { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceDisablePeerAccess(peer: i32) -> Status {
    runtime("cudaDeviceDisablePeerAccess", |machine| {
        let peer = device(machine, peer)?;
        let was = machine.disable_peer(machine.current_device(), peer).map_err(status)?;
        if was { Ok(()) } else { Err(PEER_ACCESS_NOT_ENABLED) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetP2PAttribute(out: *mut i32, number: i32, from: i32, to: i32) -> Status {
    runtime("cudaDeviceGetP2PAttribute", |machine| {
        let is_pair = device(machine, from)? != device(machine, to)?;
        match number {
            // Rank of performance, of which 0 is the best; native atomics.
            1 | 3 => put(out, 0),
            2 => put(out, i32::from(is_pair && has_peer_access(machine))),
            _ => Err(INVALID_VALUE),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceFlushGPUDirectRDMAWrites(target: i32, scope: i32) -> Status {
    runtime("cudaDeviceFlushGPUDirectRDMAWrites", |_| -> Outcome {
        if target == 0 && matches!(scope, 100 | 200) { Ok(()) } else { Err(INVALID_VALUE) }
    })
}
