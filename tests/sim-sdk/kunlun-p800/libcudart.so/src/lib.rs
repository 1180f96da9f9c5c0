//! A simulated `libcudart.so` of Kunlun's: CUDA's prototypes over libxpurt.so.2, as XRE 5 has them for P800.
//!
//! Where it differs from NVIDIA's: what is asynchronous by name is synchronous in effect (fills, allocation
//! in streams), `cudaHostRegister` with the Mapped flag ends the process, of a card's properties only the
//! name is filled.

mod devices;
#[path = "../../../nvidia/cudart/events.rs"]
mod events;
mod memory;
#[path = "../../../nvidia/cudart/streams.rs"]
mod streams;

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};

use iccl_sim_core::{Device, Machine, share};
use iccl_sim_nvidia::{INSUFFICIENT_DRIVER, Outcome, Status, call, description, name, put};

/// The object that owns the machine.
const DRIVER: &str = "libxpurt.so.2";
/// The version of CUDA whose layouts XRE 4.33's headers declare.
const VERSION: i32 = 11070;

thread_local! {
    static LAST_ERROR: Cell<Status> = const { Cell::new(0) };
}

fn driver() -> Option<&'static Machine> {
    share::find(DRIVER, cudaRuntimeGetVersion as *const c_void)
}

/// A call: entered as all are, its error kept for `cudaGetLastError`.
fn runtime(symbol: &'static str, body: impl FnOnce(&'static Machine) -> Outcome) -> Status {
    keep(driver().map_or(INSUFFICIENT_DRIVER, |machine| call(machine, symbol, body)))
}

fn keep(code: Status) -> Status {
    if code != 0 {
        LAST_ERROR.set(code);
    }
    code
}

#[unsafe(no_mangle)]
extern "C" fn cudaRuntimeGetVersion(version: *mut i32) -> Status {
    keep(put(version, VERSION).err().unwrap_or(0))
}

#[unsafe(no_mangle)]
extern "C" fn cudaDriverGetVersion(version: *mut i32) -> Status {
    keep(put(version, driver().map_or(0, |_| VERSION)).err().unwrap_or(0))
}

/// An error that stays is told again and again; others once.
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
