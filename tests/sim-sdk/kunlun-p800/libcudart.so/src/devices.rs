//! Cards: choice and what they are.

use std::ffi::{c_char, c_void};

use iccl_sim_core::Machine;
use iccl_sim_kunlun::pci_bus;
use iccl_sim_nvidia::{INVALID_DEVICE, Status, put, put_bytes, put_text, status};

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

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetPCIBusId(out: *mut c_char, length: i32, index: i32) -> Status {
    runtime("cudaDeviceGetPCIBusId", |machine| {
        let index = device(machine, index)?;
        let physical = machine.device(index).map_err(status)?.physical();
        put_text(out.cast(), length, &format!("0000:{:02X}:00.0", pci_bus(physical)))
    })
}

/// sizeof(cudaDeviceProp) of CUDA 11.
const PROPERTIES_BYTES: usize = 712;

/// The name, and nothing else: nobody may rely on the rest.
#[unsafe(no_mangle)]
extern "C" fn cudaGetDeviceProperties(out: *mut c_void, index: i32) -> Status {
    runtime("cudaGetDeviceProperties", |machine| {
        device(machine, index)?;
        let mut bytes = [0; PROPERTIES_BYTES];
        let name = b"Kunlun P800 Simulated";
        bytes[..name.len()].copy_from_slice(name);
        put_bytes(out, &bytes)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> Status {
    runtime("cudaMemGetInfo", |machine| {
        let room = machine.room(machine.current_device());
        put(free, room.0 as usize)?;
        put(total, room.1 as usize)
    })
}
