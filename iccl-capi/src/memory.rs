//! Memory of the device.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use iccl_runtime::comm::Buffer;

use crate::failure::{Failure, guard_alone};
use crate::numbers::Outcome;
use crate::process;
use crate::types::{ResultNumber, answer, not_null};

/// What was allocated and not freed yet, by address.
static ALLOCATED: Mutex<BTreeMap<usize, Buffer>> = Mutex::new(BTreeMap::new());

/// Allocates size bytes of the process's device, set to zero. Operations take any memory of the device,
/// not only such.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ResultNumber {
    guard_alone("icclMemAlloc", || {
        not_null("ptr", ptr)?;
        let buffer = process::device()?.allocate::<u8>(size)?;
        let address = buffer.address();
        lock().insert(address.addr(), buffer);
        // SAFETY: the caller promises it.
        unsafe { answer("ptr", ptr, address)? };
        Ok(Outcome::Success)
    })
}

/// Frees memory of icclMemAlloc. No operation may be using it any more. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn icclMemFree(ptr: *mut c_void) -> ResultNumber {
    guard_alone("icclMemFree", || {
        if ptr.is_null() {
            return Ok(Outcome::Success);
        }
        let freed = lock().remove(&ptr.addr());
        match freed {
            Some(_) => Ok(Outcome::Success),
            None => Err(Failure::argument(format!(
                "ptr: {ptr:p} was not allocated by icclMemAlloc, or was freed already"
            ))),
        }
    })
}

fn lock() -> MutexGuard<'static, BTreeMap<usize, Buffer>> {
    ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner)
}
