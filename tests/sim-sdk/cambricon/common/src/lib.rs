//! What the simulated libraries of Cambricon share: status codes, how a call is entered, what pointers and
//! handles of C mean.
//!
//! Numbers: cnrt.h 6.14.1 and `cn_api.h` 2.15.5, whose error numbers agree from 100000 on.

// The statuses say why something is refused.
#![allow(clippy::missing_errors_doc)]
// Outputs of C come as addresses, and its headers say what they must be.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub use iccl_sim_core::entry::enter;
use iccl_sim_core::{Machine, Refusal, Span, Stream, Vendor, entry};

mod errors;
pub use errors::{description, name};

/// The vendor.
pub const VENDOR: Vendor = Vendor { name: "cambricon", visible: Some("MLU_VISIBLE_DEVICES") };

/// The object that owns the machine.
pub const DRIVER: &str = "libcndrv.so";

/// A status of CNRT or of the driver; 0 is success.
pub type Status = i32;
/// Success, or another status.
pub type Outcome = Result<(), Status>;

pub const NOT_READY: Status = 1;
pub const INIT: Status = 100_002;
pub const NO_DEVICE: Status = 100_004;
pub const DEVICE_INVALID: Status = 100_005;
pub const ARGS_INVALID: Status = 100_006;
pub const SYS: Status = 100_007;
pub const INVALID_RESOURCE_HANDLE: Status = 100_014;
pub const ILLEGAL_STATE: Status = 100_015;
pub const NOT_SUPPORT: Status = 100_050;
pub const OPS_NOT_PERMITTED: Status = 100_051;
pub const NO_MEM: Status = 100_100;
pub const INVALID_DEVICE_ADDRESS: Status = 100_102;
pub const NO_ATTRIBUTE: Status = 632_009;
pub const MEMCPY_DIRECTION_INVALID: Status = 632_013;

/// The status for what the machine refuses.
pub fn status(refusal: Refusal) -> Status {
    match refusal {
        Refusal::InvalidValue | Refusal::AlreadyRegistered | Refusal::NotRegistered => ARGS_INVALID,
        Refusal::OutOfMemory => NO_MEM,
        Refusal::InvalidDevice => DEVICE_INVALID,
        Refusal::InvalidHandle => INVALID_RESOURCE_HANDLE,
        Refusal::NotReady => NOT_READY,
        Refusal::NotSupported => NOT_SUPPORT,
        Refusal::OwnHandle => OPS_NOT_PERMITTED,
        Refusal::System => SYS,
        Refusal::Broken(code) => code,
    }
}

/// Whether this process was forked after the first call of this library; the header forbids all calls then.
pub fn is_forked() -> bool {
    static FIRST: AtomicU32 = AtomicU32::new(0);
    let own = std::process::id();
    let first = FIRST.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire);
    first.is_err_and(|first| first != own)
}

/// A call that uses cards: refused in a host function, without cards, and when the current one is in
/// error.
pub fn call(
    machine: &'static Machine,
    symbol: &'static str,
    body: impl FnOnce(&'static Machine) -> Outcome,
) -> Status {
    let ready = || {
        if is_forked() {
            return Err(ILLEGAL_STATE);
        }
        if let Err(code) = enter(machine, symbol) {
            return if code == 0 { Ok(false) } else { Err(code) };
        }
        if machine.in_callback() {
            return Err(OPS_NOT_PERMITTED);
        }
        if machine.devices().is_empty() {
            return Err(NO_DEVICE);
        }
        machine.health(machine.current_device()).map_err(status)?;
        Ok(true)
    };
    match ready() {
        Ok(true) => body(machine).err().unwrap_or(0),
        Ok(false) => 0,
        Err(code) => code,
    }
}

/// Writes an output.
pub fn put<T>(out: *mut T, value: T) -> Outcome {
    entry::put(out, value).map_err(status)
}

/// Writes bytes to a buffer of the caller's.
pub fn put_bytes(out: *mut c_void, bytes: &[u8]) -> Outcome {
    entry::put_bytes(out, bytes).map_err(status)
}

/// Writes a text that ends with a zero byte; refused if it does not fit.
pub fn put_text(out: *mut c_void, length: i32, text: &str) -> Outcome {
    entry::put_text(out, length, text).map_err(status)
}

/// Writes the three numbers of a version.
pub fn put_version(outs: [*mut i32; 3], version: [i32; 3]) -> Outcome {
    outs.into_iter().zip(version).try_for_each(|(out, number)| put(out, number))
}

/// The version of the driver.
pub const DRIVER_VERSION: [i32; 3] = [3, 6, 2];

/// The queue behind a handle: null and 2 are the current card's default queue, 1 is the thread's.
pub fn queue(machine: &'static Machine, handle: *mut c_void) -> Result<Arc<Stream>, Status> {
    let found = match handle as u64 {
        0 | 2 => machine.default_stream(machine.current_device()),
        1 => machine.thread_stream(),
        handle => machine.stream(handle),
    };
    found.map_err(status)
}

/// What lies at a pointer.
pub fn span(machine: &Machine, pointer: *const c_void, bytes: usize) -> Result<Span, Status> {
    machine.span(pointer as u64, bytes as u64).map_err(status)
}

/// A card by its number.
pub fn device(machine: &Machine, index: i32) -> Result<u32, Status> {
    let index = u32::try_from(index).map_err(|_| DEVICE_INVALID)?;
    machine.device(index).map(|_| index).map_err(status)
}

/// The PCI address of a card.
pub fn pci_address(physical: u32) -> String {
    format!("0000:{:02x}:00.0", pci_bus(physical))
}

fn pci_bus(physical: u32) -> u32 {
    0x61 + physical
}

/// An attribute of a card that both interfaces know.
pub fn attribute(machine: &Machine, attribute: i32, index: u32) -> Result<i32, Status> {
    let physical = machine.device(index).map_err(status)?.physical();
    Ok(match attribute {
        // Notifiers of other processes.
        0x10a => 1,
        // Clusters, and cores of each.
        0x205 => 8,
        0x206 => 4,
        // Handles of memory for other processes, of each context.
        0x20c => 1 << 16,
        // Memory in megabytes.
        0x405 => (machine.room(index).1 >> 20) as i32,
        0x406 => pci_bus(physical) as i32,
        // PCI device and domain; virtual memory, and its export.
        0x407 | 0x408 | 0x30b | 0x30c => 0,
        _ => return Err(NO_ATTRIBUTE),
    })
}

/// Whether cards reach each other: a setting, on by default.
pub fn has_peer_access(machine: &Machine) -> bool {
    machine.settings().number("peer_access", 1) != 0
}
