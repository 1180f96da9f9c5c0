//! How a call into a plugin, or a look at its tables, can fail.

use crate::Status;
use crate::sdk::Progress;
use crate::tables::{ABI_MAJOR, ErrorInfo};

/// A call into a plugin that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {status}: {message}{}", vendor_suffix(*vendor_code))]
pub struct CallError {
    /// The function, with its family: `device.copy`.
    pub call: &'static str,
    /// What kind of failure it is. [`Status::Internal`] for numbers that this version does not know.
    pub status: Status,
    /// The vendor's or the operating system's number, 0 if there is none.
    pub vendor_code: i64,
    /// The plugin's own words, one line.
    pub message: String,
}

/// The vendor's number as the tail of a message.
fn vendor_suffix(code: i64) -> String {
    if code == 0 { String::new() } else { format!(" (code {code})") }
}

impl CallError {
    /// The plugin does not have this function.
    pub(super) fn absent(call: &'static str) -> Self {
        Self::local(call, Status::NotSupported, format!("the plugin has no {call}"))
    }

    /// The plugin broke the ABI's rules.
    pub(super) fn rules(call: &'static str, message: impl Into<String>) -> Self {
        Self::local(call, Status::Internal, message.into())
    }

    /// A failure that the view found itself.
    pub(super) fn local(call: &'static str, status: Status, message: String) -> Self {
        Self { call, status, vendor_code: 0, message }
    }

    /// Whether the plugin's code panicked or threw.
    pub fn is_panic(&self) -> bool {
        self.status == Status::Panic
    }
}

/// Turns an answer into a result.
#[inline]
pub(super) fn outcome(
    call: &'static str,
    code: i32,
    error: &mut ErrorInfo,
) -> Result<Progress, CallError> {
    match code {
        0 => Ok(Progress::Done),
        1 => Ok(Progress::Pending),
        _ => Err(failure(call, code, error)),
    }
}

/// Reads why a call failed, and empties the place for the next one.
#[cold]
fn failure(call: &'static str, code: i32, error: &mut ErrorInfo) -> CallError {
    let text = error.message().replace(['\n', '\r'], " ");
    let (status, message) = match Status::from_code(code) {
        Some(status) if text.is_empty() => (status, "no further words".to_owned()),
        Some(status) => (status, text),
        None => (Status::Internal, format!("unknown status number {code}: {text}")),
    };
    let vendor_code = error.vendor_code;
    *error = ErrorInfo::new();
    CallError { call, status, vendor_code, message }
}

/// Refuses `Pending` where a call has to be done.
#[inline]
pub(super) fn must_be_done(
    call: &'static str,
    answer: Result<Progress, CallError>,
) -> Result<(), CallError> {
    match answer? {
        Progress::Done => Ok(()),
        Progress::Pending => Err(CallError::rules(call, "answered `pending`, which it must not")),
    }
}

/// Why a plugin's tables can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The door gave nothing.
    #[error("the door gave a null table: the file holds no plugin, or more than one")]
    Null,
    /// A table is not where one can be.
    #[error("the {0} table is misaligned")]
    Misaligned(&'static str),
    /// The stated size makes no sense.
    #[error("the {table} table says that it has {bytes} bytes")]
    BadSize {
        /// Which table.
        table: &'static str,
        /// What it says.
        bytes: u32,
    },
    /// Another major version of the ABI.
    #[error("ABI {found}, and this host accepts {ABI_MAJOR}")]
    AbiMajor {
        /// The plugin's.
        found: u32,
    },
    /// Mandatory functions are null, or lie beyond the end of their table.
    #[error("null mandatory function {}", .0.join(", "))]
    MissingFunctions(Vec<&'static str>),
}
