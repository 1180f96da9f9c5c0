//! How a command ends.

use std::error::Error as _;
use std::fmt::Write as _;
use std::process::ExitCode;

use iccl_runtime::{Error, ErrorKind};

/// The status for a command line or a configuration that is wrong; clap uses it as well.
const USAGE: u8 = 2;

/// How a command that did its work ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All is right.
    Right,
    /// It did its work and found something wrong, which it has said.
    CheckFailed,
    /// The status of another command.
    Status(u8),
}

/// Why a command could not do its work.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    status: u8,
    kind: Option<ErrorKind>,
}

pub(crate) type Result<T = Outcome, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// The operation failed.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, status: 1, kind: None }
    }

    /// The command was called in a way that makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { status: USAGE, ..Self::new(message) }
    }

    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub(crate) fn with_status(mut self, status: u8) -> Self {
        self.status = status;
        self
    }

    /// What the runtime says it is.
    pub(crate) fn kind(&self) -> Option<ErrorKind> {
        self.kind
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Says it on standard error and gives the exit status.
    pub(crate) fn report(&self) -> ExitCode {
        let mut text = format!("error: {}\n", self.message);
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "hint: {hint}");
        }
        // In one piece: ranks of one job write to the same place.
        eprint!("{text}");
        ExitCode::from(self.status)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let mut message = error.message().to_owned();
        let context: Vec<String> =
            error.context().map(|(key, value)| format!("{key}={value}")).collect();
        if !context.is_empty() {
            let _ = write!(message, " ({})", context.join(", "));
        }
        let mut source = error.source();
        while let Some(cause) = source {
            let _ = write!(message, ": {cause}");
            source = cause.source();
        }
        let is_usage = error.kind() == ErrorKind::InvalidConfig;
        Self {
            message,
            hint: error.hint().map(ToOwned::to_owned),
            status: if is_usage { USAGE } else { 1 },
            kind: Some(error.kind()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_runtime_keeps_its_parts() {
        let error = Error::new(ErrorKind::InvalidConfig, "bad")
            .with("key", "x")
            .with_source(std::io::Error::other("cause"))
            .with_hint("do this");
        let failure = Failure::from(error);
        assert_eq!(failure.message, "bad (key=x): cause");
        assert_eq!(failure.hint.as_deref(), Some("do this"));
        assert_eq!(failure.status, USAGE);
        assert_eq!(Failure::from(Error::new(ErrorKind::Timeout, "late")).status, 1);
    }
}
