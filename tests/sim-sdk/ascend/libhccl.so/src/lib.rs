//! A simulated `libhccl.so`, with operations and communicators. In CANN 9 the communicators have a library
//! of their own, `libhcomm.so`: tests make the two from this one, by hiding symbols in a copy of each. So
//! nothing here is kept in statics, which would be there twice.
//!
//! Prototypes: `hccl.h`, `hccl_comm.h` and `hccl_types.h` of CANN 8.1 and 9.

mod calls;
mod communicators;
mod messages;

use std::ffi::{c_char, c_void};

use iccl_sim_ascend::RUNTIME;
use iccl_sim_core::group::Invitation;
use iccl_sim_core::{Fault, Machine, entry, share};

/// `HcclResult`.
pub(crate) type Status = i32;
pub(crate) type Outcome = Result<(), Status>;

pub(crate) const PARA: Status = 1;
pub(crate) const PTR: Status = 2;
pub(crate) const INTERNAL: Status = 4;
pub(crate) const NOT_SUPPORT: Status = 5;
pub(crate) const SYSCALL: Status = 8;
pub(crate) const TIMEOUT: Status = 9;
pub(crate) const TCP_CONNECT: Status = 11;
pub(crate) const RUNTIME_ERROR: Status = 15;
pub(crate) const AGAIN: Status = 20;
pub(crate) const REMOTE: Status = 21;

/// A call that uses cards.
pub(crate) fn call(
    symbol: &'static str,
    body: impl FnOnce(&'static Machine, Option<Fault>) -> Outcome,
) -> Status {
    let outcome = || -> Outcome {
        // No symbol that a copy of this library hides.
        let inside = RootInfo::invitation as *const c_void;
        let machine = share::find(RUNTIME, inside).ok_or(RUNTIME_ERROR)?;
        let fault = match entry::enter(machine, symbol) {
            Ok(fault) => fault,
            Err(0) => return Ok(()),
            Err(code) => return Err(code),
        };
        if machine.in_callback() || !machine.is_initialised() {
            return Err(RUNTIME_ERROR);
        }
        body(machine, fault)
    };
    outcome().err().unwrap_or(0)
}

/// Writes an output.
pub(crate) fn put<T>(out: *mut T, value: T) -> Outcome {
    entry::put(out, value).map_err(|_| PTR)
}

#[unsafe(no_mangle)]
extern "C" fn HcclGetErrorString(code: Status) -> *const c_char {
    let text = match code {
        0 => c"no error",
        1 => c"parameter error",
        2 => c"empty pointer",
        3 => c"memory error",
        4 => c"internal error",
        5 => c"not support feature",
        8 => c"call system interface error",
        9 => c"timeout",
        11 => c"call tcp connect fail",
        15 => c"call runtime api fail",
        20 => c"call return again",
        21 => c"error cqe",
        _ => c"unknow error",
    };
    text.as_ptr()
}

/// `HcclRootInfo`.
#[repr(C)]
pub(crate) struct RootInfo {
    pub(crate) internal: [u8; 4108],
}

/// Where in it, behind the address that the real one holds, the invitation lies: not in the first
/// bytes, and not in the last, so that one that was cut is of no use.
const INVITATION_AT: usize = 4108 - 64;

/// Only on the root, which has chosen a card.
#[unsafe(no_mangle)]
extern "C" fn HcclGetRootInfo(out: *mut RootInfo) -> Status {
    call("HcclGetRootInfo", |machine, _| {
        machine.chosen_device().ok_or(RUNTIME_ERROR)?;
        let invitation = Invitation::new().map_err(|_| SYSCALL)?.to_bytes();
        let mut internal = [0; 4108];
        internal[..12].copy_from_slice(b"127.0.0.1%lo");
        internal[INVITATION_AT..INVITATION_AT + Invitation::BYTES].copy_from_slice(&invitation);
        put(out, RootInfo { internal })
    })
}

impl RootInfo {
    /// Of the address that C passes.
    pub(crate) fn invitation(root: *const Self) -> Result<Invitation, Status> {
        if root.is_null() {
            return Err(PTR);
        }
        // SAFETY: C passes the address of a whole structure.
        let internal = unsafe { &(*root).internal };
        let mut bytes = [0; Invitation::BYTES];
        bytes.copy_from_slice(&internal[INVITATION_AT..INVITATION_AT + Invitation::BYTES]);
        Ok(Invitation::from_bytes(bytes))
    }
}
