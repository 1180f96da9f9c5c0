//! The transport family: ordered messages between two processes.
//!
//! A *domain* is one communicator's use of the transport in one process: it listens, holds channels
//! and is driven by [`TransportTable::progress`]. A *channel* joins this process with one peer. Both
//! processes open it with the same `channel` number, one as dialer and one as acceptor.
//!
//! A *message* is an envelope of [`ENVELOPE_BYTES`] bytes, which only the runtime understands, and a
//! payload. Messages of a channel and direction arrive in the order in which they were posted: the
//! n-th posted receive gets the n-th posted send. The receiver says which envelope it expects;
//! the transport compares **before it writes a byte of the payload** and, if they differ (or the
//! lengths do), completes the receive with `Mismatch` and the envelope that came, after which the
//! channel is unusable. How a payload travels (eager, rendezvous, put, credits) is the transport's
//! own affair, but a peer that has not posted a receive must not make other channels wait.

use core::ffi::c_void;

use abi_stable::StableAbi;

use super::{Bytes, ErrorInfo};

/// Bytes of an envelope.
pub const ENVELOPE_BYTES: usize = 64;

/// Most bytes of a domain's address.
pub const LONGEST_ADDRESS: usize = 256;

/// Most segments of a [`Message`].
pub const MAX_SEGMENTS: u64 = 16;

/// Functions of a transport. Mandatory unless said.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
#[sabi(kind(Prefix(prefix_ref = TransportTableRef, prefix_fields = TransportTablePrefix)))]
#[sabi(missing_field(option))]
pub struct TransportTable {
    /// Bytes of this table as the plugin was built.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// What the transport can do on this machine.
    pub capabilities: Option<
        unsafe extern "C" fn(
            capabilities: *mut TransportCapabilities,
            size: u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Opens a domain and begins to listen.
    pub open: Option<
        unsafe extern "C" fn(
            options: *const DomainOptions,
            size: u64,
            domain: *mut u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Writes the bytes by which peers reach this domain (at most `capacity`, which is
    /// [`LONGEST_ADDRESS`]), and their number.
    pub address: Option<
        unsafe extern "C" fn(
            domain: u64,
            address: *mut u8,
            capacity: u64,
            length: *mut u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Begins to open a channel. Does not wait for the peer: `channel_state` tells when it is there.
    /// Sends and receives may be posted at once.
    pub channel_open: Option<
        unsafe extern "C" fn(
            domain: u64,
            options: *const ChannelOptions,
            size: u64,
            channel: *mut u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// `Ok` if the channel is connected and the peer is authenticated, `Pending` while it is not,
    /// or why it failed.
    pub channel_state:
        Option<unsafe extern "C" fn(domain: u64, channel: u64, error: *mut ErrorInfo) -> i32>,
    /// Posts a send. The segments are copied by the call; what they point to stays untouched by the
    /// runtime until the completion.
    pub post_send: Option<
        unsafe extern "C" fn(
            domain: u64,
            channel: u64,
            message: *const Message,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Posts a receive. As `post_send`; the segments are written at any time until the completion.
    pub post_receive: Option<
        unsafe extern "C" fn(
            domain: u64,
            channel: u64,
            message: *const Message,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Moves what can be moved without waiting, and writes at most `capacity` completions. An error
    /// here ends the whole domain; the failure of a channel is told by completions of its messages
    /// and by one [`completion_kind::CHANNEL_FAILED`].
    pub progress: Option<
        unsafe extern "C" fn(
            domain: u64,
            completions: *mut Completion,
            capacity: u32,
            count: *mut u32,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Prepares to sleep: `Ok` if `progress` has something to do now, else `Pending`, after which
    /// the descriptor of `event_descriptor` becomes readable when it has.
    pub arm: Option<unsafe extern "C" fn(domain: u64, error: *mut ErrorInfo) -> i32>,
    /// A descriptor for `poll`, valid until `close`; see `arm`. Level-triggered: it stays readable
    /// until `progress` has been called.
    pub event_descriptor: Option<
        unsafe extern "C" fn(domain: u64, descriptor: *mut i32, error: *mut ErrorInfo) -> i32,
    >,
    /// Optional. Waits until `progress` has something to do, `wake` is called, or `timeout_us`
    /// microseconds have passed; a cheaper way than `arm` and `poll` when this domain is the only
    /// thing to wait for. Blocks.
    pub wait:
        Option<unsafe extern "C" fn(domain: u64, timeout_us: u64, error: *mut ErrorInfo) -> i32>,
    /// Makes a `wait` that runs now, or the next one, return. Mandatory with `wait`. Any thread, also
    /// while another function of the domain runs.
    pub wake: Option<unsafe extern "C" fn(domain: u64, error: *mut ErrorInfo) -> i32>,
    /// Optional. Registers memory for the NIC and gives a key for [`Segment::key`], never 0. Where the
    /// device is the reason for a failure, the error's vendor code is its `errno` (`EFAULT`, `ENOMEM`,
    /// …). May block as long as the driver takes.
    pub register_region: Option<
        unsafe extern "C" fn(
            domain: u64,
            region: *const super::MemoryRegion,
            size: u64,
            key: *mut u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Mandatory with `register_region`. No posted message may have a segment with this key.
    pub deregister_region:
        Option<unsafe extern "C" fn(domain: u64, key: u64, error: *mut ErrorInfo) -> i32>,
    /// Stops the channel: when it answers `Ok`, nothing will be read from or written to memory of
    /// posted messages any more, and their completions (`Aborted`) have been queued. May block for
    /// at most `timeout_us` microseconds (then `Timeout`).
    pub quiesce: Option<
        unsafe extern "C" fn(
            domain: u64,
            channel: u64,
            timeout_us: u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Frees the channel. The peer sees an orderly end after all completed sends.
    pub channel_close:
        Option<unsafe extern "C" fn(domain: u64, channel: u64, error: *mut ErrorInfo) -> i32>,
    /// Closes the domain and everything in it. In a forked child: releases without telling peers.
    #[sabi(last_prefix_field)]
    pub close: Option<unsafe extern "C" fn(domain: u64, error: *mut ErrorInfo) -> i32>,
}

/// What a transport can do. May grow.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
#[sabi(kind(Prefix(prefix_ref = TransportCapabilitiesRef, prefix_fields = TransportCapabilitiesPrefix)))]
#[sabi(missing_field(option))]
pub struct TransportCapabilities {
    /// The tier's name in plans and rules: `shm`, `tcp`, `rdma`. A static of the plugin.
    pub name: Bytes,
    /// Bits of [`reach`].
    pub reach: u32,
    /// Mask of [`MemoryKind::mask`](crate::MemoryKind::mask) that segments may point to. With
    /// `register_region`, memory of a device has a key in every segment; host memory may have one.
    pub memory_kinds: u32,
    /// Typical time of a small message one way, in nanoseconds, for the plan's cost table.
    pub latency_ns: u64,
    /// Typical bandwidth of one channel in bytes per microsecond, for the plan's cost table.
    pub bytes_per_us: u64,
    /// Largest payload in bytes, 0 for no limit.
    #[sabi(last_prefix_field)]
    pub largest_message: u64,
}

/// Bits of [`TransportCapabilities::reach`].
pub mod reach {
    /// Ranks on the same host.
    pub const SAME_HOST: u32 = 1;
    /// Ranks on other hosts.
    pub const OTHER_HOSTS: u32 = 2;
    /// By network cards that read and write registered memory by themselves (RDMA): the transport
    /// serves the tiers `direct` and `staged`, and the runtime registers pinned host memory (as
    /// [`HOST_ALIAS`](crate::tables::region_form::HOST_ALIAS)) and memory of devices with it.
    pub const FABRIC: u32 = 4;
}

/// How a domain is opened. May grow.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
#[sabi(kind(Prefix(prefix_ref = DomainOptionsRef, prefix_fields = DomainOptionsPrefix)))]
#[sabi(missing_field(option))]
pub struct DomainOptions {
    /// The communicator, the same on all ranks.
    pub communicator: u64,
    /// This rank in it.
    pub rank: u32,
    /// Ranks in it.
    pub ranks: u32,
    /// Ranks of this communicator on this host, this one included.
    pub local_ranks: u32,
    /// Zero.
    pub reserved: u32,
    /// 32 bytes that only this job's processes know. Valid during the call.
    pub job_key: Bytes,
    /// The interface to use: an address (`10.0.0.1`, `fe80::1%eth0`), or empty to choose. Only
    /// valid during the call.
    pub interface: Bytes,
    /// How long an accepted connection may take to prove who it is, in microseconds.
    pub handshake_timeout_us: u64,
    /// How long a dialer tries, in microseconds.
    #[sabi(last_prefix_field)]
    pub connect_timeout_us: u64,
}

/// How a channel is opened. May grow.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
#[sabi(kind(Prefix(prefix_ref = ChannelOptionsRef, prefix_fields = ChannelOptionsPrefix)))]
#[sabi(missing_field(option))]
pub struct ChannelOptions {
    /// The rank of the peer.
    pub peer: u32,
    /// 1: dial the peer's address; 0: wait for the peer to dial.
    pub dial: u32,
    /// The channel's number, the same on both sides, different for each channel of a pair.
    pub channel: u64,
    /// What both sides must agree on about this link; compared in the handshake.
    pub link_digest: u64,
    /// The peer's address, as its `address` gave it. Valid during the call.
    #[sabi(last_prefix_field)]
    pub address: Bytes,
}

/// One run of bytes of a payload. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct Segment {
    /// First byte; written only by receives. With a key, it is counted as the region's own address is:
    /// [`MemoryRegion::address`](super::MemoryRegion::address) and the offset in the region, so in a
    /// region that is a dma-buf it is the offset alone, and may be null.
    pub address: *mut c_void,
    /// Length in bytes.
    pub length: u64,
    /// Key from `register_region`, or 0.
    pub key: u64,
}

/// A message to post. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct Message {
    /// Comes back in the completion.
    pub token: u64,
    /// The payload, or where it goes; null if there are none.
    pub segments: *const Segment,
    /// Number of segments, at most [`MAX_SEGMENTS`].
    pub segment_count: u64,
    /// The envelope to send, or the one expected.
    pub envelope: [u8; ENVELOPE_BYTES],
}

/// Numbers of [`Completion::kind`].
pub mod completion_kind {
    /// A send is over: its memory may be reused.
    pub const SEND: u32 = 1;
    /// A receive is over: its memory holds the payload.
    pub const RECEIVE: u32 = 2;
    /// A channel failed; `token` is 0. Completions of its messages come as well, before or after.
    pub const CHANNEL_FAILED: u32 = 3;
}

/// Something that ended. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct Completion {
    /// The channel handle that `channel_open` gave.
    pub channel: u64,
    /// The message's token.
    pub token: u64,
    /// One of [`completion_kind`].
    pub kind: u32,
    /// A [`Status`](crate::Status) number.
    pub status: i32,
    /// Payload bytes moved; on `Mismatch`, the length that came.
    pub length: u64,
    /// On `Mismatch`, the envelope that came; else zeroes.
    pub envelope: [u8; ENVELOPE_BYTES],
    /// On a failure, the vendor's or system's error number.
    pub vendor_code: i64,
}
