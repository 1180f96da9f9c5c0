//! A simulated `libnccl.so.2`, of version 2.28. `iccl_sim_nccl_version` in its data is patched to make older
//! ones, in which newer symbols are hidden.
//!
//! Prototypes: `nccl.h` 2.28.

mod calls;
mod communicators;
mod group;
mod operators;

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};

use iccl_sim_core::{Fault, Machine, group::Invitation, share};
use iccl_sim_nvidia::{DRIVER, enter, put_bytes};

/// `ncclResult_t`.
pub(crate) type Status = i32;
pub(crate) type Outcome = Result<(), Status>;
pub(crate) const UNHANDLED_CUDA_ERROR: Status = 1;
pub(crate) const SYSTEM_ERROR: Status = 2;
pub(crate) const INTERNAL_ERROR: Status = 3;
pub(crate) const INVALID_ARGUMENT: Status = 4;
pub(crate) const INVALID_USAGE: Status = 5;
pub(crate) const REMOTE_ERROR: Status = 6;
pub(crate) const IN_PROGRESS: Status = 7;

/// What `ncclGetVersion` says, as digits behind a mark by which it is found in the file.
#[unsafe(no_mangle)]
static iccl_sim_nccl_version: [u8; 24] = *b"iccl-sim-nccl-ver:022803";

/// 10000 × major + 100 × minor + patch.
pub(crate) fn version() -> i32 {
    let mark = &raw const iccl_sim_nccl_version;
    // SAFETY: a static of this object; read as it lies in memory, since the file may have been patched.
    let text = unsafe { mark.read_volatile() };
    text[18..].iter().fold(0, |number, digit| number * 10 + i32::from(digit - b'0'))
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Keeps the text for `ncclGetLastError` and gives the status.
pub(crate) fn fail(code: Status, text: &str) -> Status {
    LAST_ERROR.set(CString::new(text).unwrap_or_default());
    code
}

/// A call that uses cards.
pub(crate) fn call(
    symbol: &'static str,
    body: impl FnOnce(&'static Machine, Option<Fault>) -> Outcome,
) -> Status {
    let inside = ncclGetVersion as *const c_void;
    let Some(machine) = share::find(DRIVER, inside) else {
        let text = "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'";
        return fail(UNHANDLED_CUDA_ERROR, text);
    };
    let fault = match enter(machine, symbol) {
        Ok(fault) => fault,
        Err(code) => return code,
    };
    if machine.in_callback() {
        return fail(UNHANDLED_CUDA_ERROR, "Cuda failure 'operation not permitted'");
    }
    if machine.devices().is_empty() {
        return fail(UNHANDLED_CUDA_ERROR, "Cuda failure 'no CUDA-capable device is detected'");
    }
    machine.initialise();
    body(machine, fault).err().unwrap_or(0)
}

/// Writes an output.
pub(crate) fn put<T>(out: *mut T, value: T) -> Outcome {
    iccl_sim_nvidia::put(out, value).map_err(|_| INVALID_ARGUMENT)
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetVersion(out: *mut i32) -> Status {
    put(out, version()).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: Status) -> *const c_char {
    let text = match code {
        0 => c"no error",
        1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        2 => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the NCCL developers",
        4 => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        5 => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// The calling thread's last error; good until its next one.
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_communicator: *mut c_void) -> *const c_char {
    LAST_ERROR.with_borrow(|text| text.as_ptr())
}

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId {
    pub(crate) internal: [u8; 128],
}

/// Where in the id, behind the magic and the address that the real one holds, the invitation lies.
const INVITATION_AT: usize = 32;

impl UniqueId {
    pub(crate) fn new() -> Result<Self, Status> {
        let invitation = Invitation::new().map_err(|_| SYSTEM_ERROR)?.to_bytes();
        let mut internal = [0; 128];
        // As the real one: a magic number, then an IPv4 address.
        internal[..8]
            .copy_from_slice(&std::process::id().wrapping_mul(0x9e37_79b9).to_le_bytes().repeat(2));
        internal[8..16].copy_from_slice(&[2, 0, 0x12, 0x34, 127, 0, 0, 1]);
        internal[INVITATION_AT..INVITATION_AT + Invitation::BYTES].copy_from_slice(&invitation);
        Ok(Self { internal })
    }

    pub(crate) fn invitation(&self) -> Invitation {
        let mut bytes = [0; Invitation::BYTES];
        bytes.copy_from_slice(&self.internal[INVITATION_AT..INVITATION_AT + Invitation::BYTES]);
        Invitation::from_bytes(bytes)
    }
}

/// Needs no card and no driver.
#[unsafe(no_mangle)]
extern "C" fn ncclGetUniqueId(out: *mut UniqueId) -> Status {
    if let Some(machine) = share::find(DRIVER, ncclGetVersion as *const c_void)
        && let Err(code) = enter(machine, "ncclGetUniqueId")
    {
        return code;
    }
    let made = UniqueId::new()
        .and_then(|id| put_bytes(out.cast(), &id.internal).map_err(|_| INVALID_ARGUMENT));
    made.err().unwrap_or(0)
}
