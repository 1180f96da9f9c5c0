//! What went wrong, as text.

use std::ffi::{CStr, c_char};
use std::panic::catch_unwind;

use crate::entry;
use crate::failure::{give_out, last_of_thread};
use crate::numbers::results;
use crate::types::{CommHandle, ResultNumber};

/// Gives a short text for a result. It lasts for ever; a number that is no result has one too.
#[unsafe(no_mangle)]
pub extern "C" fn icclGetErrorString(result: ResultNumber) -> *const c_char {
    let known = results().into_iter().find(|(_, number, ..)| *number == result);
    let text: &'static CStr = known.map_or(c"no icclResult_t", |(.., text)| text);
    text.as_ptr()
}

/// Gives the whole text of the last error: what failed, on which rank, why, and what to do. With a
/// communicator it is the last error of calls on it, by any thread, or what ended it; with NULL, or a
/// handle that is not valid, the last error of calls of this thread. Never NULL; empty if there was no
/// error. The text lasts until this thread calls icclGetLastError again.
#[unsafe(no_mangle)]
pub extern "C" fn icclGetLastError(comm: CommHandle) -> *const c_char {
    let text = catch_unwind(|| match entry::find(comm) {
        Ok(entry) => entry.last_error().unwrap_or_default(),
        Err(_) => last_of_thread(),
    });
    give_out(&text.unwrap_or_default())
}
