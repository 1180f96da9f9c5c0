//! What every C call of a simulated library begins and ends with: faults at its door, outputs.

use std::ffi::{CStr, c_char, c_void};
use std::time::Duration;

use crate::{Fault, Machine, Refusal};

/// What happens at the door of every call: it is counted, and may go wrong by setting. Gives the status
/// to return at once (0 for a call that does nothing), or the fault that the body must take care of.
pub fn enter(machine: &'static Machine, symbol: &'static str) -> Result<Option<Fault>, i32> {
    match machine.faults().at(symbol) {
        Some(Fault::Fail(code)) => Err(code),
        Some(Fault::Nothing) => Err(0),
        Some(Fault::Hang) => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        Some(Fault::Sticky(code)) => {
            if let Ok(device) = machine.device(machine.current_device()) {
                device.break_with(code);
            }
            Err(code)
        }
        other => Ok(other),
    }
}

/// Writes an output.
#[allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "an address from C, whose header says what it is"
)]
pub fn put<T>(out: *mut T, value: T) -> Result<(), Refusal> {
    if out.is_null() {
        return Err(Refusal::InvalidValue);
    }
    // SAFETY: C passes the address of a variable of this type.
    unsafe { out.write_unaligned(value) };
    Ok(())
}

/// Writes bytes to a buffer of the caller's.
#[allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "an address from C, whose header says what it is"
)]
pub fn put_bytes(out: *mut c_void, bytes: &[u8]) -> Result<(), Refusal> {
    if out.is_null() {
        return Err(Refusal::InvalidValue);
    }
    // SAFETY: C passes a buffer of at least this length.
    unsafe { out.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(())
}

/// Writes a text that ends with a zero byte; refused if it does not fit.
pub fn put_text(out: *mut c_void, length: i32, text: &str) -> Result<(), Refusal> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    if bytes.len() > usize::try_from(length).unwrap_or(0) {
        return Err(Refusal::InvalidValue);
    }
    put_bytes(out, &bytes)
}

/// An address of the caller's, for another thread.
pub struct User(*mut c_void);

// SAFETY: whoever passes a function and its argument promises that another thread may call it.
unsafe impl Send for User {}

impl User {
    /// Of this address.
    pub fn new(pointer: *mut c_void) -> Self {
        Self(pointer)
    }

    /// The address.
    pub fn pointer(&self) -> *mut c_void {
        self.0
    }
}

/// Sets something of a machine in this process: `faults`, or a setting. False if a text is not one.
///
/// # Safety
/// Both texts end with a zero byte.
pub unsafe fn set(machine: &Machine, key: *const c_char, value: *const c_char) -> bool {
    // SAFETY: by this function's contract.
    let (key, value) = unsafe { (CStr::from_ptr(key), CStr::from_ptr(value)) };
    let (Ok(key), Ok(value)) = (key.to_str(), value.to_str()) else { return false };
    match key {
        "faults" => machine.faults().replace(value),
        _ => machine.settings().set(key, value),
    }
    true
}
