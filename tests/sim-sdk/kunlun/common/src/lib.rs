//! What the simulated libraries of Kunlun share: status codes, how a call is entered, what pointers and
//! handles of C mean.
//!
//! Numbers are those of `xpu/defs.h` (XRE 4.33). Functions of libxpurt answer with the negative number.

// The statuses say why something is refused.
#![allow(clippy::missing_errors_doc)]

use std::ffi::c_void;
use std::sync::Arc;

pub use iccl_sim_core::entry::enter;
use iccl_sim_core::{Machine, Refusal, Span, Stream, Vendor, entry};

/// The vendor.
pub const VENDOR: Vendor = Vendor { name: "kunlun", visible: Some("XPU_VISIBLE_DEVICES") };

/// A status of libxpurt; 0 is success, failures are negative.
pub type Status = i32;
/// Success, or another status.
pub type Outcome = Result<(), Status>;

pub const INVALID_DEVICE: Status = -701;
pub const NO_DEVICE: Status = -703;
pub const NO_MEMORY: Status = -705;
pub const INVALID_PARAM: Status = -707;
pub const NOT_SUPPORTED: Status = -712;
pub const ABNORMAL: Status = -713;
pub const BUSY: Status = -716;
pub const UNEXPECTED: Status = -800;
pub const HOST_MEMORY_ALREADY_REGISTERED: Status = -816;

/// The status for what the machine refuses.
pub fn status(refusal: Refusal) -> Status {
    match refusal {
        Refusal::InvalidValue
        | Refusal::InvalidHandle
        | Refusal::NotRegistered
        | Refusal::OwnHandle => INVALID_PARAM,
        Refusal::OutOfMemory => NO_MEMORY,
        Refusal::InvalidDevice => INVALID_DEVICE,
        Refusal::NotReady => BUSY,
        Refusal::AlreadyRegistered => HOST_MEMORY_ALREADY_REGISTERED,
        Refusal::NotSupported => NOT_SUPPORTED,
        Refusal::System => UNEXPECTED,
        // The other face of the same card has other numbers.
        Refusal::Broken(code) => {
            if code < 0 {
                code
            } else {
                ABNORMAL
            }
        }
    }
}

/// A call that asks or chooses a card, which works also when the current one is in error.
pub fn ask(
    machine: &'static Machine,
    symbol: &'static str,
    body: impl FnOnce(&'static Machine) -> Outcome,
) -> Status {
    match enter(machine, symbol) {
        Err(code) => code,
        Ok(_) if machine.devices().is_empty() => NO_DEVICE,
        Ok(_) => body(machine).err().unwrap_or(0),
    }
}

/// A call that uses cards: refused when the current one is in error.
pub fn call(
    machine: &'static Machine,
    symbol: &'static str,
    body: impl FnOnce(&'static Machine) -> Outcome,
) -> Status {
    ask(machine, symbol, |machine| {
        machine.health(machine.current_device()).map_err(status)?;
        body(machine)
    })
}

/// Writes an output.
pub fn put<T>(out: *mut T, value: T) -> Outcome {
    entry::put(out, value).map_err(status)
}

/// What lies at a pointer.
pub fn span(machine: &Machine, pointer: *const c_void, bytes: u64) -> Result<Span, Status> {
    machine.span(pointer as u64, bytes).map_err(status)
}

/// The stream behind a handle, which must be of the current card. Null is its default stream.
pub fn stream(machine: &'static Machine, handle: *mut c_void) -> Result<Arc<Stream>, Status> {
    let current = machine.current_device();
    let found = match handle as u64 {
        0 => machine.default_stream(current),
        handle => machine.stream(handle),
    };
    let found = found.map_err(status)?;
    if found.device() == current { Ok(found) } else { Err(INVALID_PARAM) }
}

/// The bus of a card; domain, device and function are 0.
pub fn pci_bus(physical: u32) -> u32 {
    0x51 + physical
}
