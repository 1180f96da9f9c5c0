//! What the simulated libraries of NVIDIA share: status codes, how a call is entered, what pointers and
//! handles of C mean.
//!
//! Numbers and behaviour are those of `driver_types.h` and `cuda.h` (CUDA 12.9 and 13.5), whose error
//! numbers agree.

// The statuses say why something is refused.
#![allow(clippy::missing_errors_doc)]
// Outputs of C come as addresses, and its headers say what they must be.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

use std::ffi::c_void;
use std::sync::Arc;

pub use iccl_sim_core::entry::enter;
use iccl_sim_core::{Machine, Refusal, Span, Stream, Vendor, entry};

mod errors;
pub use errors::{description, name};

/// The vendor.
pub const VENDOR: Vendor = Vendor { name: "nvidia", visible: Some("CUDA_VISIBLE_DEVICES") };

/// The object that owns the machine.
pub const DRIVER: &str = "libcuda.so.1";

/// A status of CUDA; 0 is success.
pub type Status = i32;
/// Success, or another status.
pub type Outcome = Result<(), Status>;

pub const INVALID_VALUE: Status = 1;
pub const MEMORY_ALLOCATION: Status = 2;
pub const NOT_INITIALIZED: Status = 3;
pub const INVALID_MEMCPY_DIRECTION: Status = 21;
pub const INSUFFICIENT_DRIVER: Status = 35;
pub const NO_DEVICE: Status = 100;
pub const INVALID_DEVICE: Status = 101;
pub const INVALID_CONTEXT: Status = 201;
pub const OPERATING_SYSTEM: Status = 304;
pub const INVALID_HANDLE: Status = 400;
pub const NOT_READY: Status = 600;
pub const PEER_ACCESS_ALREADY_ENABLED: Status = 704;
pub const PEER_ACCESS_NOT_ENABLED: Status = 705;
pub const HOST_MEMORY_ALREADY_REGISTERED: Status = 712;
pub const HOST_MEMORY_NOT_REGISTERED: Status = 713;
pub const NOT_PERMITTED: Status = 800;
pub const NOT_SUPPORTED: Status = 801;

/// The status for what the machine refuses.
pub fn status(refusal: Refusal) -> Status {
    match refusal {
        Refusal::InvalidValue => INVALID_VALUE,
        Refusal::OutOfMemory => MEMORY_ALLOCATION,
        Refusal::InvalidDevice => INVALID_DEVICE,
        Refusal::InvalidHandle => INVALID_HANDLE,
        Refusal::NotReady => NOT_READY,
        Refusal::AlreadyRegistered => HOST_MEMORY_ALREADY_REGISTERED,
        Refusal::NotRegistered => HOST_MEMORY_NOT_REGISTERED,
        Refusal::NotSupported => NOT_SUPPORTED,
        Refusal::OwnHandle => INVALID_CONTEXT,
        Refusal::System => OPERATING_SYSTEM,
        Refusal::Broken(code) => code,
    }
}

/// The version of the driver, as `cuDriverGetVersion` tells it.
pub fn driver_version(machine: &Machine) -> i32 {
    machine.settings().number("driver_version", 13000)
}

/// A call that uses cards: refused in a host function, without cards, and when the current one is in
/// error.
pub fn call(
    machine: &'static Machine,
    symbol: &'static str,
    body: impl FnOnce(&'static Machine) -> Outcome,
) -> Status {
    let ready = || {
        if let Err(code) = enter(machine, symbol) {
            return if code == 0 { Ok(false) } else { Err(code) };
        }
        if machine.in_callback() {
            return Err(NOT_PERMITTED);
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

/// The stream behind a handle: null and 1 are the current card's default stream, 2 is the thread's.
pub fn stream(machine: &'static Machine, handle: *mut c_void) -> Result<Arc<Stream>, Status> {
    let found = match handle as u64 {
        0 | 1 => machine.default_stream(machine.current_device()),
        2 => machine.thread_stream(),
        handle => machine.stream(handle),
    };
    found.map_err(status)
}

/// What lies at a pointer.
pub fn span(machine: &Machine, pointer: *const c_void, bytes: usize) -> Result<Span, Status> {
    machine.span(pointer as u64, bytes as u64).map_err(status)
}

/// The PCI address of a card.
pub fn pci_address(physical: u32) -> String {
    format!("0000:{:02X}:00.0", pci_bus(physical))
}

fn pci_bus(physical: u32) -> u32 {
    0x21 + physical
}

/// A card's 16 bytes that no other card has.
pub fn uuid(machine: &Machine, index: u32) -> Result<[u8; 16], Status> {
    let identity = machine.identity(index).map_err(status)?;
    let mut bytes = [0x5a; 16];
    bytes[8..].copy_from_slice(&identity.to_be_bytes());
    Ok(bytes)
}

/// An attribute of a card, by its number in both interfaces.
pub fn attribute(machine: &Machine, attribute: i32, index: i32) -> Result<i32, Status> {
    let index = u32::try_from(index).map_err(|_| INVALID_DEVICE)?;
    let physical = machine.device(index).map_err(status)?.physical();
    let dma_buf = i32::from(machine.settings().is_on("dma_buf"));
    Ok(match attribute {
        // Multiprocessors.
        16 => 16,
        // PCI bus; device and domain are 0.
        33 => pci_bus(physical) as i32,
        // Compute capability.
        75 => machine.settings().number("compute_major", 9),
        76 => machine.settings().number("compute_minor", 0),
        // Maps host memory, one address space, copy engines, priorities, waits on 32 and 64 bits (both
        // generations of the interface), host registration, memory pools, peer memory, shared events.
        // How RDMA writes are flushed (117): by a call of the host's.
        19 | 41 | 78 | 92 | 93 | 99 | 115 | 116 | 117 | 122 | 125 => 1,
        40 => 2,
        // How far RDMA writes are ordered without: for the card that owns the memory.
        118 => 100,
        124 => dma_buf,
        134 => machine.settings().number("numa", 0),
        1..=160 => 0,
        _ => return Err(INVALID_VALUE),
    })
}
