//! A simulated `libcncl.so.1`, of version 1.25.
//!
//! Prototypes: cncl.h 1.25.0.

mod calls;
mod cliques;
mod group;
mod types;

use std::ffi::{c_char, c_void};

use iccl_sim_cambricon::{DRIVER, is_forked, put_version};
use iccl_sim_core::{Fault, Machine, entry, group::Invitation, share};

/// `cnclResult_t`: the low four bits are its class.
pub(crate) type Status = i32;
pub(crate) type Outcome = Result<(), Status>;
pub(crate) const INTERNAL: Status = 0x01;
pub(crate) const UNSUPPORTED: Status = 0x11;
pub(crate) const NULL_POINTER: Status = 0x21;
pub(crate) const BUILD_RING: Status = 0x31;
pub(crate) const REINIT: Status = 0x71;
pub(crate) const SYS_SOCKET: Status = 0x22;
pub(crate) const MLU_RUNTIME: Status = 0x03;
pub(crate) const CNRT_DEVICE: Status = 0x13;
pub(crate) const ASYNC_ERROR: Status = 0x16;
pub(crate) const ARGUMENTS: Status = 0x07;

const VERSION: [i32; 3] = [1, 25, 0];

fn machine() -> Option<&'static Machine> {
    share::find(DRIVER, cnclGetLibVersion as *const c_void)
}

/// A call that uses cards.
pub(crate) fn call(
    symbol: &'static str,
    body: impl FnOnce(&'static Machine, Option<Fault>) -> Outcome,
) -> Status {
    let Some(machine) = machine() else { return MLU_RUNTIME };
    if is_forked() {
        return MLU_RUNTIME;
    }
    let fault = match entry::enter(machine, symbol) {
        Ok(fault) => fault,
        Err(code) => return code,
    };
    if machine.in_callback() {
        return MLU_RUNTIME;
    }
    if machine.devices().is_empty() {
        return CNRT_DEVICE;
    }
    machine.initialise();
    body(machine, fault).err().unwrap_or(0)
}

/// Writes an output.
pub(crate) fn put<T>(out: *mut T, value: T) -> Outcome {
    entry::put(out, value).map_err(|_| NULL_POINTER)
}

#[unsafe(no_mangle)]
extern "C" fn cnclGetLibVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) -> Status {
    put_version([major, minor, patch], VERSION).map_or(NULL_POINTER, |()| 0)
}

/// The texts are written here: nobody here has seen those of the real library.
#[unsafe(no_mangle)]
extern "C" fn cnclGetErrorStr(code: Status) -> *const c_char {
    let text = match code {
        0 => c"success",
        INTERNAL => c"internal error",
        UNSUPPORTED => c"unsupported operation or data type",
        NULL_POINTER => c"null pointer",
        BUILD_RING => c"the ring could not be built",
        REINIT => c"the clique was initialized before",
        SYS_SOCKET => c"socket error",
        MLU_RUNTIME => c"MLU runtime error",
        CNRT_DEVICE => c"no such MLU device",
        0x06 => c"operation in progress",
        ASYNC_ERROR => c"asynchronous error",
        ARGUMENTS => c"invalid arguments",
        _ => c"unknown error",
    };
    text.as_ptr()
}

/// `cnclCliqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CliqueId {
    pub(crate) data: [u8; 128],
    pub(crate) hash: u64,
}

impl CliqueId {
    fn hash_of(data: &[u8; 128]) -> u64 {
        data.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    pub(crate) fn new() -> Result<Self, Status> {
        let invitation = Invitation::new().map_err(|_| SYS_SOCKET)?.to_bytes();
        let mut data = [0x43; 128];
        data[..Invitation::BYTES].copy_from_slice(&invitation);
        Ok(Self { data, hash: Self::hash_of(&data) })
    }

    /// Whether all of it has come.
    pub(crate) fn is_whole(&self) -> bool {
        self.hash == Self::hash_of(&self.data)
    }

    pub(crate) fn invitation(&self) -> Invitation {
        let mut bytes = [0; Invitation::BYTES];
        bytes.copy_from_slice(&self.data[..Invitation::BYTES]);
        Invitation::from_bytes(bytes)
    }
}

#[unsafe(no_mangle)]
extern "C" fn cnclGetCliqueId(out: *mut CliqueId) -> Status {
    call("cnclGetCliqueId", |_, _| {
        if out.is_null() {
            return Err(NULL_POINTER);
        }
        put(out, CliqueId::new()?)
    })
}
