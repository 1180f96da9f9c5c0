//! The CUDA runtime, as both versions have it. Part of `libcudart.so.12` and `libcudart.so.13`, which are
//! crates of their own since a shared object has one soname.
//!
//! Prototypes and behaviour: `cuda_runtime_api.h` of CUDA 12.9 and 13.5.

mod devices;
mod events;
mod memory;
pub(crate) mod properties;
mod streams;

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};

use iccl_sim_core::{Device, Machine, share};
use iccl_sim_nvidia::{
    DRIVER, INSUFFICIENT_DRIVER, Outcome, Status, call, description, driver_version, name, put,
};

thread_local! {
    static LAST_ERROR: Cell<Status> = const { Cell::new(0) };
}

/// The driver's machine; none without a driver, or with one that is too old.
fn driver() -> Option<&'static Machine> {
    let machine = share::find(DRIVER, cudaRuntimeGetVersion as *const c_void)?;
    (driver_version(machine) / 1000 >= crate::VERSION / 1000).then_some(machine)
}

/// A call: entered as all are, its error kept for `cudaGetLastError`.
fn runtime(symbol: &'static str, body: impl FnOnce(&'static Machine) -> Outcome) -> Status {
    let code = driver().map_or(INSUFFICIENT_DRIVER, |machine| {
        machine.initialise();
        call(machine, symbol, body)
    });
    keep(code)
}

fn keep(code: Status) -> Status {
    if code != 0 {
        LAST_ERROR.set(code);
    }
    code
}

#[unsafe(no_mangle)]
extern "C" fn cudaRuntimeGetVersion(version: *mut i32) -> Status {
    keep(put(version, crate::VERSION).err().unwrap_or(0))
}

/// 0 without a driver, and success.
#[unsafe(no_mangle)]
extern "C" fn cudaDriverGetVersion(version: *mut i32) -> Status {
    let machine = share::find(DRIVER, cudaRuntimeGetVersion as *const c_void);
    keep(put(version, machine.map_or(0, driver_version)).err().unwrap_or(0))
}

/// An error that stays is told again and again, and so is a missing driver; others once.
fn last_error(forget: bool) -> Status {
    let Some(machine) = driver() else { return INSUFFICIENT_DRIVER };
    let sticky = machine.device(machine.current_device()).map_or(0, Device::error);
    if sticky != 0 {
        return sticky;
    }
    if forget { LAST_ERROR.replace(0) } else { LAST_ERROR.get() }
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> Status {
    last_error(true)
}

#[unsafe(no_mangle)]
extern "C" fn cudaPeekAtLastError() -> Status {
    last_error(false)
}

fn or_unrecognized(found: Option<&'static CStr>) -> *const c_char {
    found.unwrap_or(c"unrecognized error code").as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(code: Status) -> *const c_char {
    or_unrecognized(description(code))
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(code: Status) -> *const c_char {
    or_unrecognized(name(code, false))
}
