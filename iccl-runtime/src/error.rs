//! The one error type of the runtime.
//!
//! `Display` is one line: what failed, why, and what to do, in the order
//! `operation: message (key=value, …); hint: …`. `Debug` prints everything, sources included.

use std::fmt;
use std::sync::Arc;

/// Who or what is to blame; callers branch on this, never on the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller broke the contract of a call. Permanent.
    InvalidArgument,
    /// A call that may not be made at this point, such as waiting inside an open group.
    InvalidUsage,
    /// A setting is unknown, has a bad value, or contradicts another. Permanent.
    InvalidConfig,
    /// A plugin that the configuration requires is not active. Permanent.
    PluginMissing,
    /// A plugin panicked or threw. The plugin is not used again.
    PluginPanic,
    /// No active plugin can do what was asked. Permanent.
    NotSupported,
    /// The device or its driver failed.
    DeviceError,
    /// The network or the operating system failed.
    TransportError,
    /// A deadline passed; the culprit is named where it is known.
    Timeout,
    /// Another rank is gone.
    PeerLost,
    /// Ranks called different operations, or the same one with different arguments.
    Mismatch,
    /// The operation or the communicator was aborted on this rank.
    Aborted,
    /// The other side did not prove that it knows the job secret.
    Authentication,
    /// Ranks run versions of iccl that cannot work together.
    VersionMismatch,
    /// Ranks disagree on who they are: missing, twice, out of range, or a different world size.
    Rendezvous,
    /// No candidate is left for a link, or a rule of the plan cannot be met.
    PlanUnsatisfiable,
    /// Ranks computed different plans.
    PlanDiverged,
    /// A communicator was used from two threads at once where that is not allowed.
    ConcurrentUse,
    /// The process was forked after initialisation.
    Forked,
    /// Memory, descriptors or another resource ran out.
    OutOfResources,
    /// A fault of iccl itself; please report it.
    Internal,
}

impl ErrorKind {
    /// A stable name in kebab case, as it appears in JSON and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid-argument",
            Self::InvalidUsage => "invalid-usage",
            Self::InvalidConfig => "invalid-config",
            Self::PluginMissing => "plugin-missing",
            Self::PluginPanic => "plugin-panic",
            Self::NotSupported => "not-supported",
            Self::DeviceError => "device-error",
            Self::TransportError => "transport-error",
            Self::Timeout => "timeout",
            Self::PeerLost => "peer-lost",
            Self::Mismatch => "mismatch",
            Self::Aborted => "aborted",
            Self::Authentication => "authentication",
            Self::VersionMismatch => "version-mismatch",
            Self::Rendezvous => "rendezvous",
            Self::PlanUnsatisfiable => "plan-unsatisfiable",
            Self::PlanDiverged => "plan-diverged",
            Self::ConcurrentUse => "concurrent-use",
            Self::Forked => "forked",
            Self::OutOfResources => "out-of-resources",
            Self::Internal => "internal",
        }
    }
}

/// An error of the runtime. Cheap to clone: every waiter of a failed communicator gets the same.
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    context: Vec<(&'static str, String)>,
    rank: Option<u32>,
    hint: Option<String>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// The runtime's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`; `message` is one line that says what failed and where.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            inner: Arc::new(Inner {
                kind,
                message: message.into(),
                context: Vec::new(),
                rank: None,
                hint: None,
                source: None,
            }),
        }
    }

    fn change(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.inner));
        self
    }

    /// Adds a fact, shown as `key=value`.
    #[must_use]
    pub fn with(self, key: &'static str, value: impl fmt::Display) -> Self {
        self.change(|inner| inner.context.push((key, value.to_string())))
    }

    /// Names the rank that is to blame.
    #[must_use]
    pub fn with_rank(self, rank: u32) -> Self {
        self.change(|inner| inner.rank = Some(rank))
    }

    /// Says what to do about it.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        self.change(|inner| inner.hint = Some(hint.into()))
    }

    /// Keeps the error that caused this one.
    #[must_use]
    pub fn with_source(self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.change(|inner| inner.source = Some(Arc::new(source)))
    }

    /// Says where it happened, before the message.
    #[must_use]
    pub(crate) fn within(self, place: &str) -> Self {
        self.change(|inner| inner.message = format!("{place}: {}", inner.message))
    }

    /// Who or what is to blame.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The message alone, without context and hint.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// The rank that is to blame, where it is known.
    pub fn rank(&self) -> Option<u32> {
        self.inner.rank
    }

    /// What to do about it, where that is known.
    pub fn hint(&self) -> Option<&str> {
        self.inner.hint.as_deref()
    }

    /// The facts added with [`Error::with`], in order.
    pub fn context(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.inner.context.iter().map(|(key, value)| (*key, value.as_str()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.message)?;
        if !self.inner.context.is_empty() {
            f.write_str(" (")?;
            for (index, (key, value)) in self.inner.context.iter().enumerate() {
                let separator = if index == 0 { "" } else { ", " };
                write!(f, "{separator}{key}={value}")?;
            }
            f.write_str(")")?;
        }
        if let Some(source) = &self.inner.source {
            write!(f, ": {source}")?;
        }
        if let Some(hint) = &self.inner.hint {
            write!(f, "; hint: {hint}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.inner.kind)
            .field("message", &self.inner.message)
            .field("context", &self.inner.context)
            .field("rank", &self.inner.rank)
            .field("hint", &self.inner.hint)
            .field("source", &self.inner.source)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_ref().map(|source| {
            let source: &(dyn std::error::Error + 'static) = source.as_ref();
            source
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_line_with_context_and_hint() {
        let error = Error::new(ErrorKind::PeerLost, "all_reduce seq 5: rank 1 is gone")
            .with("link", "0-1")
            .with("tier", "tcp")
            .with_rank(1)
            .with_hint("look at the log of rank 1");
        assert_eq!(
            error.to_string(),
            "all_reduce seq 5: rank 1 is gone (link=0-1, tier=tcp); hint: look at the log of rank 1"
        );
        assert_eq!(error.rank(), Some(1));
        assert_eq!(error.kind().name(), "peer-lost");
    }
}
