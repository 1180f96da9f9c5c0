//! What the simulated libraries of Ascend share: numbers of errors, kinds of cards, what pointers and
//! handles of C mean.
//!
//! Numbers and behaviour are those of `acl_base.h`, `rt_error_codes.h` and `hccl_types.h` (CANN 8.1 and
//! 9), and of CANN's documents.

// The statuses say why something is refused.
#![allow(clippy::missing_errors_doc)]

use std::ffi::c_void;
use std::sync::Arc;

use iccl_sim_core::{Machine, Refusal, Span, Stream, Vendor, entry};

mod product;
pub use product::{Product, chip};

/// The vendor.
pub const VENDOR: Vendor = Vendor { name: "ascend", visible: Some("ASCEND_RT_VISIBLE_DEVICES") };

/// The object that owns the machine.
pub const RUNTIME: &str = "libascendcl.so";

/// A status of the runtime or of HCCL; 0 is success.
pub type Status = i32;
/// Success, or another status.
pub type Outcome = Result<(), Status>;

pub const UNINITIALIZE: Status = 100_001;
pub const REPEAT_INITIALIZE: Status = 100_002;
pub const API_NOT_SUPPORT: Status = 200_001;
pub const PARAM_INVALID: Status = 107_000;
pub const INVALID_DEVICEID: Status = 107_001;
pub const CONTEXT_NULL: Status = 107_002;
pub const STREAM_CONTEXT: Status = 107_003;
pub const ADDR_UNALIGNED: Status = 107_008;
pub const STREAM_SUBSCRIBE: Status = 107_011;
pub const THREAD_SUBSCRIBE: Status = 107_012;
pub const STREAM_NO_CB_REG: Status = 107_015;
pub const INVALID_HANDLE: Status = 107_017;
pub const STREAM_ABORT: Status = 107_023;
pub const FEATURE_NOT_SUPPORT: Status = 207_000;
pub const MEMORY_ALLOCATION: Status = 207_001;
pub const NO_DEVICE: Status = 207_004;
pub const INTERNAL_ERROR: Status = 507_000;
pub const EVENT_NOT_COMPLETE: Status = 507_006;
pub const REPORT_TIMEOUT: Status = 507_012;
pub const AICORE_EXCEPTION: Status = 507_015;
pub const STREAM_SYNC_TIMEOUT: Status = 507_046;

/// The status for what the machine refuses.
pub fn status(refusal: Refusal) -> Status {
    match refusal {
        Refusal::InvalidValue | Refusal::AlreadyRegistered | Refusal::NotRegistered => {
            PARAM_INVALID
        }
        Refusal::OutOfMemory => MEMORY_ALLOCATION,
        Refusal::InvalidDevice => INVALID_DEVICEID,
        Refusal::InvalidHandle | Refusal::OwnHandle => INVALID_HANDLE,
        Refusal::NotReady => EVENT_NOT_COMPLETE,
        Refusal::NotSupported => FEATURE_NOT_SUPPORT,
        Refusal::System => INTERNAL_ERROR,
        Refusal::Broken(code) => code,
    }
}

/// Writes an output.
pub fn put<T>(out: *mut T, value: T) -> Outcome {
    entry::put(out, value).map_err(status)
}

/// The card that the calling thread has chosen.
pub fn chosen(machine: &Machine) -> Result<u32, Status> {
    machine.chosen_device().ok_or(CONTEXT_NULL)
}

/// The stream behind a handle, on which something may be put now: null is the card's default stream. It
/// must be of the card that the thread has chosen.
pub fn stream(machine: &'static Machine, handle: *mut c_void) -> Result<Arc<Stream>, Status> {
    let device = chosen(machine)?;
    if handle.is_null() {
        return machine.default_stream(device).map_err(status);
    }
    let stream = machine.stream(handle as u64).map_err(status)?;
    if stream.device() != device {
        return Err(STREAM_CONTEXT);
    }
    if stream.is_aborted() { Err(STREAM_ABORT) } else { Ok(stream) }
}

/// What lies at a pointer.
pub fn span(machine: &Machine, pointer: *const c_void, bytes: usize) -> Result<Span, Status> {
    machine.span(pointer as u64, bytes as u64).map_err(status)
}
