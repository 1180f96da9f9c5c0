//! Result codes: one table, from which the enum, the header and the texts are made.

use std::ffi::{CStr, c_int};

use iccl_runtime::ErrorKind;

/// Defines the result codes: number, doc comment, and the text of `icclGetErrorString`.
macro_rules! outcomes {
    ($( $(#[doc = $doc:literal])+ $name:ident = $number:literal, $text:literal; )+) => {
        /// What a function answers; `iccl` and the name is C's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Outcome { $( $(#[doc = $doc])+ $name = $number, )+ }

        /// Name, number, documentation and text of every result.
        pub fn results() -> Vec<(&'static str, c_int, &'static str, &'static CStr)> {
            vec![ $( (stringify!($name), $number, concat!($($doc, "\n"),+), $text), )+ ]
        }
    };
}

outcomes! {
    /// The call did what it says. (An operation that it enqueued may still fail: its stream and
    /// icclCommGetAsyncError tell.)
    Success = 0, c"no error";
    /// The device or its driver failed.
    UnhandledDeviceError = 1, c"the device or its driver failed";
    /// The network or the operating system failed.
    SystemError = 2, c"the network or the operating system failed";
    /// A fault of iccl itself; please report it.
    InternalError = 3, c"a fault of iccl itself";
    /// An argument is not what the function takes; icclGetLastError names it.
    InvalidArgument = 4, c"invalid argument";
    /// The call is not allowed at this moment.
    InvalidUsage = 5, c"the call is not allowed at this moment";
    /// Another rank is gone; icclGetLastError names it.
    RemoteError = 6, c"another rank is gone";
    /// Not done yet; no error.
    InProgress = 7, c"in progress";
    /// A handle that was destroyed, is NULL, is of another kind, or never was one.
    InvalidHandle = 16, c"not a valid handle: it was destroyed, is NULL, or never was one";
    /// A setting is unknown, has a bad value, or contradicts another.
    InvalidConfig = 17, c"a setting is unknown or has a bad value";
    /// A plugin that the configuration requires is not active.
    PluginMissing = 18, c"a required plugin is not active";
    /// A plugin panicked or threw. It is not used again.
    PluginPanic = 19, c"a plugin panicked";
    /// No active plugin can do what was asked.
    NotSupported = 20, c"not supported";
    /// A deadline passed; icclGetLastError names the rank, where it is known.
    Timeout = 21, c"a deadline passed";
    /// Ranks called different operations, or the same one with different arguments.
    Mismatch = 22, c"ranks called different operations, or with different arguments";
    /// The operation or the communicator was aborted.
    Aborted = 23, c"aborted";
    /// The other side did not prove that it knows the job's secret.
    Authentication = 24, c"the other side did not prove that it belongs to the job";
    /// Ranks, or the program and the library, have versions that do not work together.
    VersionMismatch = 25, c"versions that do not work together";
    /// Ranks disagree on who they are: missing, twice, out of range, or a different number of ranks.
    RendezvousError = 26, c"ranks disagree on who they are";
    /// No way is left for a link, or a rule of the plan cannot be met.
    PlanUnsatisfiable = 27, c"the plan cannot be met";
    /// Ranks computed different plans.
    PlanDiverged = 28, c"ranks computed different plans";
    /// Used from two threads at once where that is not allowed.
    ConcurrentUse = 29, c"used from two threads at once";
    /// The process was forked after initialisation.
    Forked = 30, c"the process was forked after initialisation";
    /// Memory, descriptors or another resource ran out.
    OutOfResources = 31, c"a resource ran out";
}

impl Outcome {
    /// The number that C sees.
    pub const fn number(self) -> c_int {
        self as c_int
    }

    /// What an error of the runtime is in C.
    pub(crate) fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::InvalidArgument => Self::InvalidArgument,
            ErrorKind::InvalidUsage => Self::InvalidUsage,
            ErrorKind::InvalidConfig => Self::InvalidConfig,
            ErrorKind::PluginMissing => Self::PluginMissing,
            ErrorKind::PluginPanic => Self::PluginPanic,
            ErrorKind::NotSupported => Self::NotSupported,
            ErrorKind::DeviceError => Self::UnhandledDeviceError,
            ErrorKind::TransportError => Self::SystemError,
            ErrorKind::Timeout => Self::Timeout,
            ErrorKind::PeerLost => Self::RemoteError,
            ErrorKind::Mismatch => Self::Mismatch,
            ErrorKind::Aborted => Self::Aborted,
            ErrorKind::Authentication => Self::Authentication,
            ErrorKind::VersionMismatch => Self::VersionMismatch,
            ErrorKind::Rendezvous => Self::RendezvousError,
            ErrorKind::PlanUnsatisfiable => Self::PlanUnsatisfiable,
            ErrorKind::PlanDiverged => Self::PlanDiverged,
            ErrorKind::ConcurrentUse => Self::ConcurrentUse,
            ErrorKind::Forked => Self::Forked,
            ErrorKind::OutOfResources => Self::OutOfResources,
            // The runtime's kinds may grow; what is not named here is its own affair.
            _ => Self::InternalError,
        }
    }
}
