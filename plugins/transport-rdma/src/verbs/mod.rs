//! RDMA devices, behind traits: what a domain needs of libibverbs and no more. `real` is libibverbs,
//! `mock` devices in memory on which faults can be had.
//!
//! Here live words and numbers of verbs; not what messages are, nor when something is registered.

mod real;
mod sys;

#[cfg(test)]
mod layout;
#[cfg(test)]
pub(crate) mod mock;

use std::fmt;
use std::io;
use std::os::fd::RawFd;

pub(crate) use real::Ibverbs;

/// The library: which devices there are.
pub(crate) trait Library: Send + Sync + fmt::Debug {
    /// The devices' names, in the library's order.
    ///
    /// # Errors
    /// `ENOSYS` where the kernel knows nothing of RDMA.
    fn device_names(&self) -> io::Result<Vec<String>>;

    /// Opens a device for one user, with what it needs to make queue pairs.
    ///
    /// # Errors
    /// What failed, and why.
    fn open(&self, name: &str) -> Result<Box<dyn Device>, VerbsError>;
}

/// A step that failed, in verbs' words.
#[derive(Debug)]
pub(crate) struct VerbsError {
    pub(crate) step: &'static str,
    pub(crate) error: io::Error,
}

impl VerbsError {
    pub(crate) fn new(step: &'static str, error: io::Error) -> Self {
        Self { step, error }
    }

    pub(crate) fn last(step: &'static str) -> Self {
        Self::new(step, io::Error::last_os_error())
    }

    /// From the number that verbs calls answer.
    pub(crate) fn check(step: &'static str, answer: i32) -> Result<(), Self> {
        match answer {
            0 => Ok(()),
            // Some providers answer -1 and set errno, most answer the number.
            number if number < 0 => Err(Self::last(step)),
            number => Err(Self::new(step, io::Error::from_raw_os_error(number))),
        }
    }

    pub(crate) fn number(&self) -> i32 {
        self.error.raw_os_error().unwrap_or(0)
    }
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.error)
    }
}

/// What bounds a device's use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Longest region in bytes.
    pub(crate) max_mr_bytes: u64,
    pub(crate) ports: u8,
}

/// A port as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) is_active: bool,
    pub(crate) fabric: Fabric,
    /// Number of the MTU: 1 to 5 for 256 to 4096 bytes.
    pub(crate) mtu: u8,
    pub(crate) lid: u16,
    pub(crate) megabits_per_second: u32,
}

/// What a port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fabric {
    InfiniBand,
    /// RoCE.
    Ethernet,
    /// Its queue pairs are connected by `rdma_cm` only.
    Iwarp,
    /// What has no reliable connections, or of its own kind: EFA, usNIC.
    Other,
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
            Self::Iwarp => "iWARP",
            Self::Other => "neither InfiniBand's nor RoCE",
        })
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GidEntry {
    pub(crate) index: u32,
    pub(crate) gid: [u8; 16],
    pub(crate) kind: GidKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GidKind {
    InfiniBand,
    RoceV1,
    RoceV2,
}

/// Memory to register: bytes that this process can address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) address: u64,
    pub(crate) length: u64,
}

/// Registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registered {
    /// The device's own name for it.
    pub(crate) handle: u64,
    pub(crate) local_key: u32,
    pub(crate) remote_key: u32,
}

/// The shape of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    /// What is asked for; the answer tells what there is.
    pub(crate) inline_bytes: u32,
}

/// A queue pair that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) number: u32,
    pub(crate) inline_bytes: u32,
}

/// What a queue pair is connected with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) port: u8,
    /// The peer's queue pair.
    pub(crate) number: u32,
    pub(crate) lid: u16,
    pub(crate) gid: [u8; 16],
    /// Of ours; `None` for InfiniBand inside one subnet.
    pub(crate) gid_index: Option<u8>,
    pub(crate) mtu: u8,
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
    /// Exponent of the time to the first repetition: 4.096 µs × 2^this.
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) receive_psn: u32,
    pub(crate) send_psn: u32,
}

/// A run of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) key: u32,
}

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Send,
    Write { address: u64, key: u32 },
    WriteWithNote { address: u64, key: u32, note: u32 },
}

/// A work request of a send queue, of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWork {
    pub(crate) id: u64,
    pub(crate) work: Work,
    pub(crate) run: Run,
    /// The bytes are taken during the call; the key means nothing.
    pub(crate) is_inline: bool,
    pub(crate) is_signalled: bool,
}

/// Something that ended on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) id: u64,
    /// 0 for success; else a number of `ibv_wc_status`.
    pub(crate) status: i32,
    pub(crate) vendor: u32,
    pub(crate) bytes: u32,
    /// What came with a write.
    pub(crate) note: Option<u32>,
}

/// Status numbers of work that ended badly.
pub(crate) mod status {
    /// The queue pair was in error before.
    pub(crate) const FLUSHED: i32 = 5;
    /// The peer's device did not answer.
    pub(crate) const RETRY_EXCEEDED: i32 = 12;
    /// The peer had no receive.
    pub(crate) const RNR_EXCEEDED: i32 = 13;
}

/// News of a device that no work request asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// A port is up or down; look again.
    Port(u8),
    /// Addresses have changed; look again at the next connect.
    Addresses,
    /// The device is gone: no queue pair of it works any more. In the library's words.
    Fatal(String),
    /// Of no consequence here, in the library's words.
    Other(String),
}

/// A device, opened for one domain: one protection domain, its queues, one channel of completions.
/// Used by one thread at a time. Dropping it closes it; what is left is taken back before.
pub(crate) trait Device: Send + fmt::Debug {
    fn name(&self) -> &str;

    /// # Errors
    /// What the driver says; so in all that follow.
    fn limits(&self) -> Result<Limits, VerbsError>;
    fn port(&self, port: u8) -> Result<Port, VerbsError>;
    fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError>;
    fn pkey(&self, port: u8, index: u16) -> Result<u16, VerbsError>;

    /// # Safety
    /// The memory stays what it is until `deregister`.
    unsafe fn register(&mut self, memory: Memory) -> Result<Registered, VerbsError>;
    fn deregister(&mut self, handle: u64) -> Result<(), VerbsError>;

    /// Makes a reliable connection's end, in its first state.
    fn create(&mut self, shape: Shape) -> Result<Made, VerbsError>;
    /// From its first state to one in which receives can be posted.
    fn initialise(&mut self, number: u32, port: u8, pkey_index: u16) -> Result<(), VerbsError>;
    /// Then to one in which both directions work.
    fn connect(&mut self, number: u32, route: &Route) -> Result<(), VerbsError>;
    /// To one in which nothing works and all that was posted is flushed.
    fn stop(&mut self, number: u32) -> Result<(), VerbsError>;
    /// After it no memory is touched for the queue pair any more.
    fn destroy(&mut self, number: u32) -> Result<(), VerbsError>;

    /// # Safety
    /// The runs stay readable and unchanged until the work has ended.
    unsafe fn post_sends(&mut self, number: u32, sends: &[SendWork]) -> Result<(), VerbsError>;

    /// # Safety
    /// The runs are writable and left alone until the work has ended.
    unsafe fn post_receives(
        &mut self,
        number: u32,
        receives: &[(u64, Run)],
    ) -> Result<(), VerbsError>;

    /// Takes what has ended, some at a time; whether there may be more.
    fn poll(&mut self, ended: &mut Vec<Ended>) -> Result<bool, VerbsError>;

    /// Makes `completion_descriptor` readable at the next completion. What has ended before is to be
    /// polled after this call.
    fn arm(&mut self) -> Result<(), VerbsError>;
    fn completion_descriptor(&self) -> RawFd;
    /// Takes the readiness of `completion_descriptor` back.
    fn quiet(&mut self);

    fn news_descriptor(&self) -> RawFd;
    fn next_news(&mut self) -> Option<News>;

    /// The library's words for a status.
    fn words(&self, status: i32) -> String;

    /// In a forked child: lets go of everything without telling the driver.
    fn forget(self: Box<Self>);
}
