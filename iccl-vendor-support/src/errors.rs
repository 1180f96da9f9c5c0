//! A maker's words in an error.

use std::ffi::{CStr, c_char};
use std::fmt::Display;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::PluginError;

/// An error with the maker's number.
pub fn failure(status: Status, text: impl Display, number: i32) -> PluginError {
    PluginError::new(status, text.to_string()).with_vendor_code(i64::from(number))
}

/// A text of a library; empty if it is null.
///
/// # Safety
/// It is null or ends with a zero, and stays while this runs.
pub unsafe fn static_text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller promises it.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
}

/// A text that a library wrote into room that was zeroed.
pub fn written_text(room: &[u8]) -> String {
    let end = room.iter().position(|byte| *byte == 0).unwrap_or(room.len());
    String::from_utf8_lossy(&room[..end]).into_owned()
}

/// The lines of a text as one.
pub fn one_line(text: &str) -> String {
    text.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined() {
        assert_eq!(one_line("\nfirst\n  second \n"), "first; second");
    }

    #[test]
    fn texts_end_at_the_zero() {
        assert_eq!(written_text(b"H200\0\0x"), "H200");
        assert_eq!(written_text(b"full"), "full");
        // SAFETY: a text that ends with a zero, and none.
        unsafe {
            assert_eq!(static_text(c" no error \n".as_ptr()), "no error");
            assert_eq!(static_text(std::ptr::null()), "");
        }
    }

    #[test]
    fn an_error_has_the_makers_number() {
        let error = failure(Status::DeviceError, "call: words (7)", 7);
        assert_eq!((error.status, error.vendor_code), (Status::DeviceError, 7));
        assert_eq!(error.message, "call: words (7)");
    }
}
