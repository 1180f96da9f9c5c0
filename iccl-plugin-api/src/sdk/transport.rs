//! Traits for transports. What the words mean is said in [`tables`](crate::tables) beside
//! [`TransportTable`](crate::tables::TransportTable).

use std::os::fd::RawFd;
use std::time::Duration;

use super::{PluginError, PluginResult, Progress};
use crate::Status;
use crate::tables::{self, Completion, ENVELOPE_BYTES, Segment, completion_kind};

/// The 64 bytes that travel before a payload. Only the runtime understands them.
pub type Envelope = [u8; ENVELOPE_BYTES];

/// A kind of transport.
pub trait Transport: Send + Sync + 'static {
    /// One communicator's use of it in this process.
    type Domain: TransportDomain;

    /// What the transport can do on this machine.
    fn facts(&self) -> TransportFacts;

    /// Opens a domain and begins to listen.
    ///
    /// # Errors
    /// What the operating system says.
    fn open(&self, request: &DomainRequest<'_>) -> PluginResult<Self::Domain>;
}

/// What a transport can do.
#[derive(Debug, Clone)]
pub struct TransportFacts {
    /// The tier's name in plans and rules.
    pub name: &'static str,
    /// Bits of [`tables::reach`].
    pub reach: u32,
    /// Mask of [`MemoryKind::mask`](crate::MemoryKind::mask).
    pub memory_kinds: u32,
    /// Typical time of a small message one way.
    pub latency: Duration,
    /// Typical bandwidth of one channel in bytes per microsecond.
    pub bytes_per_us: u64,
    /// Largest payload in bytes, if there is a limit.
    pub largest_message: Option<u64>,
}

/// How a domain is opened.
#[derive(Debug, Clone, Copy)]
pub struct DomainRequest<'a> {
    /// The communicator.
    pub communicator: u64,
    /// This rank.
    pub rank: u32,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Ranks of the communicator on this host, this one included.
    pub local_ranks: u32,
    /// What only this job's processes know.
    pub job_key: &'a [u8; 32],
    /// The interface to use, empty to choose.
    pub interface: &'a str,
    /// How long an accepted connection may take to prove who it is.
    pub handshake_timeout: Duration,
    /// How long a dialer tries.
    pub connect_timeout: Duration,
}

/// How a channel is opened.
#[derive(Debug, Clone, Copy)]
pub struct ChannelRequest<'a> {
    /// The rank of the peer.
    pub peer: u32,
    /// Whether this side dials; else it waits for the peer to.
    pub dial: bool,
    /// The channel's number, the same on both sides.
    pub channel: u64,
    /// What both sides must agree on about this link.
    pub link_digest: u64,
    /// The peer's address.
    pub address: &'a [u8],
}

/// A message that the runtime posts.
#[derive(Clone, Copy)]
pub struct PostedMessage<'a> {
    /// Comes back in the completion.
    pub token: u64,
    /// The payload, or where it goes. What the segments point to is valid until the completion; the
    /// slice itself only during the call.
    pub segments: &'a [Segment],
    /// The envelope to send, or the one expected.
    pub envelope: &'a Envelope,
}

impl PostedMessage<'_> {
    /// Bytes of the payload.
    pub fn length(&self) -> u64 {
        self.segments.iter().map(|segment| segment.length).sum()
    }

    /// Bytes of the payload, if the message is one by the contract.
    ///
    /// # Errors
    /// `InvalidArgument` if there are too many segments, more bytes than memory has, or bytes nowhere.
    pub fn checked_length(&self) -> PluginResult<u64> {
        let segments = self.segments;
        if segments.len() as u64 > tables::MAX_SEGMENTS {
            let (count, most) = (segments.len(), tables::MAX_SEGMENTS);
            return Err(PluginError::invalid(format!(
                "{count} segments, at most {most} are allowed"
            )));
        }
        if segments.iter().any(|segment| segment.address.is_null() && segment.length > 0) {
            return Err(PluginError::invalid("a segment with bytes has a null address"));
        }
        segments
            .iter()
            .try_fold(0_u64, |sum, segment| sum.checked_add(segment.length))
            .filter(|&sum| isize::try_from(sum).is_ok())
            .ok_or_else(|| PluginError::invalid("the segments are longer than memory is"))
    }
}

/// One communicator's use of a transport. All functions are called by one thread at a time.
///
/// Dropping it closes everything.
pub trait TransportDomain: Send + 'static {
    /// Wakes a [`TransportDomain::wait`].
    type Waker: Waker;

    /// The bytes by which peers reach this domain, at most 256.
    ///
    /// # Errors
    /// What the operating system says.
    fn address(&self) -> PluginResult<Vec<u8>>;

    /// Begins to open a channel and gives its handle. Does not wait for the peer.
    ///
    /// # Errors
    /// `InvalidArgument` for an address that makes no sense; what the operating system says.
    fn channel_open(&mut self, request: &ChannelRequest<'_>) -> PluginResult<u64>;

    /// Whether the channel is connected and the peer authenticated.
    ///
    /// # Errors
    /// Why it failed.
    fn channel_state(&self, channel: u64) -> PluginResult<Progress>;

    /// Posts a send.
    ///
    /// # Safety
    /// What the segments point to is readable and unchanged until the completion.
    ///
    /// # Errors
    /// Why the channel failed; no completion follows then.
    unsafe fn post_send(&mut self, channel: u64, message: PostedMessage<'_>) -> PluginResult<()>;

    /// Posts a receive.
    ///
    /// # Safety
    /// What the segments point to is writable, and read or written by nobody else until the
    /// completion.
    ///
    /// # Errors
    /// Why the channel failed; no completion follows then.
    unsafe fn post_receive(&mut self, channel: u64, message: PostedMessage<'_>)
    -> PluginResult<()>;

    /// Moves what can be moved without waiting, until `completions` is full.
    ///
    /// # Errors
    /// What ends the whole domain.
    fn progress(&mut self, completions: &mut CompletionSink<'_>) -> PluginResult<()>;

    /// Prepares to sleep: `Done` if `progress` has something to do now, else `Pending`, after which
    /// the descriptor becomes readable when it has.
    ///
    /// # Errors
    /// What ends the whole domain.
    fn arm(&mut self) -> PluginResult<Progress>;

    /// A descriptor for `poll`, valid as long as the domain.
    fn event_descriptor(&self) -> RawFd;

    /// Waits until `progress` has something to do, the waker is used, or `timeout` has passed.
    ///
    /// # Errors
    /// What ends the whole domain.
    fn wait(&mut self, timeout: Duration) -> PluginResult<()>;

    /// A waker for this domain.
    fn waker(&self) -> Self::Waker;

    /// Registers memory for the NIC.
    ///
    /// # Errors
    /// `NotSupported`; what the driver says.
    fn register(&mut self, region: &tables::MemoryRegion) -> PluginResult<u64> {
        let _ = region;
        Err(PluginError::not_supported("this transport registers no memory"))
    }

    /// Takes back what `register` gave.
    ///
    /// # Errors
    /// `NotSupported`.
    fn deregister(&mut self, key: u64) -> PluginResult<()> {
        let _ = key;
        Err(PluginError::not_supported("this transport registers no memory"))
    }

    /// Stops a channel: after `Ok` no posted memory is touched any more, and the completions of all
    /// posted messages (`Aborted`) are queued for `progress`.
    ///
    /// # Errors
    /// `Timeout` if that cannot be proven in time.
    fn quiesce(&mut self, channel: u64, timeout: Duration) -> PluginResult<()>;

    /// Frees a channel; the peer sees an orderly end after all completed sends.
    ///
    /// # Errors
    /// `InvalidArgument` for a handle that is none.
    fn channel_close(&mut self, channel: u64) -> PluginResult<()>;
}

/// Wakes a [`TransportDomain::wait`] from another thread.
pub trait Waker: Send + Sync + 'static {
    /// Makes a wait that runs now, or the next one, return.
    fn wake(&self);
}

/// Where [`TransportDomain::progress`] puts completions.
#[derive(Debug)]
pub struct CompletionSink<'a> {
    room: &'a mut [std::mem::MaybeUninit<Completion>],
    used: usize,
}

impl<'a> CompletionSink<'a> {
    /// A sink that fills `room` from the front.
    pub fn new(room: &'a mut [std::mem::MaybeUninit<Completion>]) -> Self {
        Self { room, used: 0 }
    }

    /// Whether there is room for another one. A transport keeps the rest for the next call.
    pub fn is_full(&self) -> bool {
        self.used == self.room.len()
    }

    /// How many were put.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Puts one.
    ///
    /// # Panics
    /// If the sink is full: ask `is_full` before.
    pub fn put(&mut self, completion: Completion) {
        assert!(!self.is_full(), "completion sink is full");
        self.room[self.used].write(completion);
        self.used += 1;
    }
}

impl Completion {
    /// Nothing yet; to make room with.
    pub const EMPTY: Self = Self {
        channel: 0,
        token: 0,
        kind: 0,
        status: 0,
        length: 0,
        envelope: [0; ENVELOPE_BYTES],
        vendor_code: 0,
    };

    /// How it ended. A number that this version does not know is a failure.
    pub fn outcome(&self) -> Status {
        match Status::from_code(self.status) {
            Some(Status::Pending) | None => Status::Internal,
            Some(status) => status,
        }
    }

    /// A message that ended well.
    pub fn done(channel: u64, token: u64, kind: u32, length: u64) -> Self {
        Self { channel, token, kind, length, ..Self::EMPTY }
    }

    /// A message that failed.
    pub fn failed(channel: u64, token: u64, kind: u32, error: &PluginError) -> Self {
        Self {
            status: error.status.code(),
            vendor_code: error.vendor_code,
            ..Self::done(channel, token, kind, 0)
        }
    }

    /// A receive whose envelope or length was another than expected.
    pub fn mismatch(channel: u64, token: u64, envelope: &Envelope, length: u64) -> Self {
        Self {
            status: Status::Mismatch.code(),
            envelope: *envelope,
            ..Self::done(channel, token, completion_kind::RECEIVE, length)
        }
    }
}
