//! How a call fails: what it answers, and the text that `icclGetLastError` gives.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use iccl_runtime::Error;

use crate::entry;
use crate::numbers::Outcome;
use crate::types::{CommHandle, ResultNumber};

/// Why a call is refused or failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) outcome: Outcome,
    pub(crate) text: String,
}

/// A result whose error C sees.
pub(crate) type Refused<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(outcome: Outcome, text: impl Into<String>) -> Self {
        Self { outcome, text: text.into() }
    }

    /// An argument is wrong.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(Outcome::InvalidArgument, text)
    }

    /// The call comes at the wrong moment.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(Outcome::InvalidUsage, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(Outcome::of(error.kind()), error.to_string())
    }
}

thread_local! {
    /// The text of this thread's last failure.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
    /// What `icclGetLastError` gave out last, which the caller may be reading.
    static GIVEN: RefCell<CString> = RefCell::default();
}

/// Runs the body of an exported function: a failure is kept for `icclGetLastError`, of this thread and
/// of `comm`; a panic becomes one.
pub(crate) fn guard(
    function: &str,
    comm: CommHandle,
    body: impl FnOnce() -> Refused<Outcome>,
) -> ResultNumber {
    let ended = catch_unwind(AssertUnwindSafe(body));
    let failure = match ended {
        Ok(Ok(outcome)) => return outcome.number(),
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(
            Outcome::InternalError,
            format!("a fault of iccl itself, please report it: {}", told(panic.as_ref())),
        ),
    };
    let entry = entry::find(comm).ok();
    let name = entry.as_ref().and_then(|entry| entry.name.as_deref());
    let text = match name {
        Some(name) => format!("{function} on \"{name}\": {}", failure.text),
        None => format!("{function}: {}", failure.text),
    };
    if let Some(entry) = entry {
        entry.keep_error(&text);
    }
    // A thread that ends may have no place for it any more.
    let _ = LAST.try_with(|last| text.clone_into(&mut last.borrow_mut()));
    failure.outcome.number()
}

/// As [`guard`], for functions without a communicator.
pub(crate) fn guard_alone(function: &str, body: impl FnOnce() -> Refused<Outcome>) -> ResultNumber {
    guard(function, std::ptr::null_mut(), body)
}

/// What a panic says.
fn told(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

/// The text of this thread's last failure; empty if there was none.
pub(crate) fn last_of_thread() -> String {
    LAST.try_with(|last| last.borrow().clone()).unwrap_or_default()
}

/// Gives out a text that lasts until this thread asks again.
pub(crate) fn give_out(text: &str) -> *const c_char {
    // A zero would end it early.
    let text = CString::new(text.replace('\0', "\\0")).unwrap_or_default();
    GIVEN
        .try_with(|given| {
            let mut given = given.borrow_mut();
            *given = text;
            given.as_ptr()
        })
        .unwrap_or(c"".as_ptr())
}

/// A text that the caller gives; `None` if null.
///
/// # Safety
/// `text` is null or ends with a zero.
pub(crate) unsafe fn text_of(name: &str, text: *const c_char) -> Refused<Option<String>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller promises it.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str().map_err(|_| Failure::argument(format!("{name} is not UTF-8")))?;
    Ok(Some(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_internal_error_with_its_text() {
        let number = guard_alone("icclThis", || panic!("number {}", 7));
        assert_eq!(number, Outcome::InternalError.number());
        let text = last_of_thread();
        assert!(text.starts_with("icclThis: ") && text.contains("number 7"), "{text}");
    }

    #[test]
    fn a_text_with_a_zero_is_given_out_whole() {
        let given = give_out("a\0b");
        // SAFETY: it was just given out.
        assert_eq!(unsafe { CStr::from_ptr(given) }, c"a\\0b");
    }
}
