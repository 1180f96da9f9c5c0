//! The native runtime, as both generations have it. Part of `libxpurt.so.1` and `libxpurt.so.2`, which are
//! crates of their own since a shared object has one soname.
//!
//! Prototypes and numbers: `xpu/runtime.h` and `xpu/defs.h` of XRE 4.33.

mod memory;
mod streams;

use std::ffi::c_char;

use iccl_sim_kunlun::{INVALID_DEVICE, INVALID_PARAM, Outcome, Status, ask, pci_bus, put, status};

use crate::machine;

#[allow(unused_imports, reason = "for what only one generation has")]
pub(crate) use memory::sides;

fn device(index: i32) -> Result<u32, Status> {
    let index = u32::try_from(index).map_err(|_| INVALID_DEVICE)?;
    machine().device(index).map(|_| index).map_err(status)
}

#[unsafe(no_mangle)]
extern "C" fn xpu_device_count(count: *mut i32) -> Status {
    ask(machine(), "xpu_device_count", |machine| put(count, machine.devices().len() as i32))
}

#[unsafe(no_mangle)]
extern "C" fn xpu_set_device(index: i32) -> Status {
    ask(machine(), "xpu_set_device", |machine| {
        machine.set_current_device(device(index)?).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn xpu_current_device(out: *mut i32) -> Status {
    ask(machine(), "xpu_current_device", |machine| put(out, machine.current_device() as i32))
}

const PCI_ADDRESS: i32 = 0;
const MODEL: i32 = 4;
const MAIN_CAPACITY: i32 = 5;

#[unsafe(no_mangle)]
extern "C" fn xpu_device_get_attr(out: *mut u64, attribute: i32, index: i32) -> Status {
    ask(machine(), "xpu_device_get_attr", |machine| -> Outcome {
        let index = device(index)?;
        let physical = machine.device(index).map_err(status)?.physical();
        let value = match attribute {
            // Domain, bus, device and function, from the top.
            PCI_ADDRESS => u64::from(pci_bus(physical)) << 8,
            MODEL => machine.settings().number("model", crate::MODEL),
            MAIN_CAPACITY => machine.room(index).1,
            1..=10 => 0,
            _ => return Err(INVALID_PARAM),
        };
        put(out, value)
    })
}

fn version(major: *mut u32, minor: *mut u32) -> Outcome {
    put(major, crate::VERSION.0)?;
    put(minor, crate::VERSION.1)
}

/// Needs no card.
#[unsafe(no_mangle)]
extern "C" fn xpu_get_runtime_version(major: *mut u32, minor: *mut u32) -> Status {
    version(major, minor).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn xpu_get_driver_version(major: *mut u32, minor: *mut u32) -> Status {
    ask(machine(), "xpu_get_driver_version", |_| version(major, minor))
}

#[unsafe(no_mangle)]
extern "C" fn xpu_get_runtime_commit(out: *mut c_char) -> Status {
    let text = c"simulated".to_bytes_with_nul();
    iccl_sim_core::entry::put_bytes(out.cast(), text).map_err(status).err().unwrap_or(0)
}
