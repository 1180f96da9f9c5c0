//! A simulated `libascendcl.so`. It owns the machine that HCCL works on.
//!
//! Prototypes: `acl.h` and `acl_rt.h` of CANN 9. `iccl_sim_acl_version` in its data is patched to make
//! older ones, in which newer symbols are hidden.

mod devices;
mod events;
mod memory;
mod reports;
mod streams;

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};

use iccl_sim_ascend::{
    API_NOT_SUPPORT, NO_DEVICE, Outcome, REPEAT_INITIALIZE, Status, UNINITIALIZE, VENDOR, put,
    status,
};
use iccl_sim_core::{Machine, entry, own_machine};

own_machine!(VENDOR);

/// What `aclrtGetVersion` says, as digits behind a mark by which it is found in the file: two each.
#[unsafe(no_mangle)]
static iccl_sim_acl_version: [u8; 22] = *b"iccl-sim-acl-ver:01.17";

/// Major and minor.
pub(crate) fn version() -> (i32, i32) {
    let mark = &raw const iccl_sim_acl_version;
    // SAFETY: a static of this object; read as it lies in memory, since the file may have been patched.
    let text = unsafe { mark.read_volatile() };
    let number = |at: usize| i32::from(text[at] - b'0') * 10 + i32::from(text[at + 1] - b'0');
    (number(17), number(20))
}

thread_local! {
    /// The story of the last failure, and the one that was given out last.
    static LAST_ERROR: RefCell<(Option<CString>, CString)> = RefCell::default();
}

/// Keeps the story for `aclGetRecentErrMsg`, and gives the status.
fn tell(symbol: &str, code: Status) -> Status {
    if code != 0 {
        let text = format!("EE9999: Inner Error!\n        {symbol} failed, retCode={code}.");
        LAST_ERROR.with_borrow_mut(|(last, _)| *last = CString::new(text).ok());
    }
    code
}

/// The story of this thread's last failure. Reading forgets it; the text is good until the next call.
#[unsafe(no_mangle)]
extern "C" fn aclGetRecentErrMsg() -> *const c_char {
    LAST_ERROR.with_borrow_mut(|(last, given)| match last.take() {
        Some(text) => {
            *given = text;
            given.as_ptr()
        }
        None => std::ptr::null(),
    })
}

/// A call that needs nothing but that the runtime was begun.
pub(crate) fn call(symbol: &'static str, body: impl FnOnce(&'static Machine) -> Outcome) -> Status {
    let outcome = || -> Outcome {
        let machine = machine();
        if let Err(code) = entry::enter(machine, symbol) {
            return if code == 0 { Ok(()) } else { Err(code) };
        }
        // Not to be called on such a thread; what the real one says is not known.
        if machine.in_callback() {
            return Err(API_NOT_SUPPORT);
        }
        if !machine.is_initialised() {
            return Err(UNINITIALIZE);
        }
        if machine.devices().is_empty() {
            return Err(NO_DEVICE);
        }
        if let Some(device) = machine.chosen_device() {
            machine.health(device).map_err(status)?;
        }
        body(machine)
    };
    tell(symbol, outcome().err().unwrap_or(0))
}

#[unsafe(no_mangle)]
extern "C" fn aclInit(_configuration: *const c_char) -> Status {
    let begin = || match entry::enter(machine(), "aclInit") {
        Err(code) => code,
        Ok(_) if machine().is_initialised() => REPEAT_INITIALIZE,
        Ok(_) => {
            machine().initialise();
            0
        }
    };
    tell("aclInit", begin())
}

#[unsafe(no_mangle)]
extern "C" fn aclrtGetVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) -> Status {
    call("aclrtGetVersion", |_| {
        let (first, second) = version();
        put(major, first)?;
        put(minor, second)?;
        put(patch, 0)
    })
}

/// `aclCANNPackageVersion`.
#[repr(C)]
struct PackageVersion {
    version: [u8; 128],
    parts: [[u8; 64]; 4],
    reserved: [u8; 128],
}

#[unsafe(no_mangle)]
extern "C" fn aclsysGetCANNVersion(_package: i32, out: *mut c_void) -> Status {
    call("aclsysGetCANNVersion", |_| {
        let mut found =
            PackageVersion { version: [0; 128], parts: [[0; 64]; 4], reserved: [0; 128] };
        let text: &[u8] = if version() < (1, 17) { b"8.1.RC1" } else { b"9.0.0" };
        found.version[..text.len()].copy_from_slice(text);
        for (part, word) in found.parts.iter_mut().zip(text.split(|one| *one == b'.')) {
            part[..word.len()].copy_from_slice(word);
        }
        put(out.cast(), found)
    })
}
