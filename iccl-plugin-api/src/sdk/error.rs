//! How a plugin says that something went wrong.

use crate::Status;

/// What a plugin answers instead of a result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {message}")]
pub struct PluginError {
    /// What kind of failure it is; never `Ok` or `Pending`.
    pub status: Status,
    /// The vendor's or the operating system's number, 0 if there is none.
    pub vendor_code: i64,
    /// One line: what failed, where, and the vendor's own words.
    pub message: String,
}

/// A plugin's result.
pub type PluginResult<T> = Result<T, PluginError>;

/// Whether something is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is.
    Done,
    /// Not yet.
    Pending,
}

impl PluginError {
    /// A failure with a message.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        debug_assert!(!status.is_success());
        Self { status, vendor_code: 0, message: message.into() }
    }

    /// The caller broke the contract.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Status::InvalidArgument, message)
    }

    /// This plugin does not offer it.
    pub fn not_supported(message: impl Into<String>) -> Self {
        Self::new(Status::NotSupported, message)
    }

    /// The operating system refused; `what` says what was tried.
    pub fn system(status: Status, what: impl std::fmt::Display, error: &std::io::Error) -> Self {
        Self {
            status,
            vendor_code: i64::from(error.raw_os_error().unwrap_or(0)),
            message: format!("{what}: {error}"),
        }
    }

    /// Adds the vendor's number.
    #[must_use]
    pub fn with_vendor_code(mut self, vendor_code: i64) -> Self {
        self.vendor_code = vendor_code;
        self
    }
}
