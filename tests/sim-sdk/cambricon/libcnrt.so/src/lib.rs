//! A simulated `libcnrt.so`.
//!
//! Prototypes and behaviour: cnrt.h 6.14.1 and the CNRT guide.

mod devices;
mod memory;
mod notifiers;
mod queues;

use std::cell::Cell;
use std::ffi::{c_char, c_void};

use iccl_sim_cambricon::{
    DRIVER, DRIVER_VERSION, INIT, NOT_READY, Outcome, Status, call, description, name, put_version,
};
use iccl_sim_core::{Machine, share};

/// The version of this library.
const VERSION: [i32; 3] = [7, 6, 1];

thread_local! {
    static LAST_ERROR: Cell<Status> = const { Cell::new(0) };
}

/// The driver's machine; none in a folder without the driver.
fn driver() -> Option<&'static Machine> {
    share::find(DRIVER, cnrtGetLibVersion as *const c_void)
}

/// A call: entered as all are, its error kept for `cnrtGetLastError`.
fn runtime(symbol: &'static str, body: impl FnOnce(&'static Machine) -> Outcome) -> Status {
    let code = driver().map_or(INIT, |machine| {
        machine.initialise();
        call(machine, symbol, body)
    });
    if code != 0 {
        LAST_ERROR.set(code);
    }
    code
}

/// What is not done yet: the header says 632014, the guide and the driver 1. A setting.
fn pending(machine: &Machine) -> Status {
    machine.settings().number("pending", NOT_READY)
}

#[unsafe(no_mangle)]
extern "C" fn cnrtGetLibVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) -> Status {
    put_version([major, minor, patch], VERSION).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn cnrtDriverGetVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) -> Status {
    match driver() {
        Some(_) => put_version([major, minor, patch], DRIVER_VERSION).err().unwrap_or(0),
        None => INIT,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cnrtGetErrorStr(code: Status) -> *const c_char {
    description(code).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cnrtGetErrorName(code: Status) -> *const c_char {
    name(code).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cnrtGetLastError() -> Status {
    LAST_ERROR.replace(0)
}

#[unsafe(no_mangle)]
extern "C" fn cnrtPeekAtLastError() -> Status {
    LAST_ERROR.get()
}
