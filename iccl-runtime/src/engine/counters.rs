//! Counters of what a communicator moved, readable from any thread at any time.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::schedule::Algorithm;

/// Messages and bytes exchanged with one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCounts {
    /// Messages posted to the peer, gate messages included.
    pub messages_sent: u64,
    /// Payload bytes of those.
    pub bytes_sent: u64,
    /// Messages received from the peer.
    pub messages_received: u64,
    /// Payload bytes of those.
    pub bytes_received: u64,
    /// Of the bytes sent, those that a NIC read from the card's memory by itself.
    pub bytes_sent_direct: u64,
    /// Of the bytes sent, those that lie on the card and went through pinned memory.
    pub bytes_sent_staged: u64,
    /// Of the bytes received, those that a NIC wrote to the card's memory by itself.
    pub bytes_received_direct: u64,
    /// Of the bytes received, those that belong on the card and went through pinned memory.
    pub bytes_received_staged: u64,
}

/// How the bytes of a message get between their place and the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// They lie in the host's memory.
    Host,
    /// The NIC reaches the card's memory.
    Direct,
    /// From or to the card, through pinned memory.
    Staged,
}

/// What was copied between a card and pinned host memory so that transports and the host's kernels could
/// reach it. All 0 where the host reads the device's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagingCounts {
    /// Copies from the card.
    pub copies_to_host: u64,
    /// Bytes of those.
    pub bytes_to_host: u64,
    /// Copies to the card.
    pub copies_to_card: u64,
    /// Bytes of those.
    pub bytes_to_card: u64,
    /// Copies from the card to the card.
    pub copies_on_card: u64,
    /// Bytes of those.
    pub bytes_on_card: u64,
    /// Messages that were sent from pinned memory in which they were received or made, and not copied
    /// from the card again.
    pub messages_kept: u64,
    /// Bytes of those.
    pub bytes_kept: u64,
}

/// A number of things, and their bytes.
#[derive(Debug, Default)]
struct Tally {
    number: AtomicU64,
    bytes: AtomicU64,
}

impl Tally {
    fn add(&self, bytes: u64) {
        self.number.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn read(&self) -> (u64, u64) {
        (self.number.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

#[derive(Debug, Default)]
struct Staged {
    to_host: Tally,
    to_card: Tally,
    on_card: Tally,
    kept: Tally,
}

#[derive(Debug, Default)]
struct Peer {
    messages_sent: AtomicU64,
    bytes_sent: AtomicU64,
    messages_received: AtomicU64,
    bytes_received: AtomicU64,
    sent: Paths,
    received: Paths,
}

/// Bytes on the card, by their path.
#[derive(Debug, Default)]
struct Paths {
    direct: AtomicU64,
    staged: AtomicU64,
}

impl Paths {
    fn add(&self, path: Path, bytes: u64) {
        let counter = match path {
            Path::Host => return,
            Path::Direct => &self.direct,
            Path::Staged => &self.staged,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The counters of one communicator on one rank.
#[derive(Debug)]
pub struct Counters {
    peers: Vec<Peer>,
    staged: Staged,
    /// Operations that ended well, by the code of the algorithm that carried them.
    operations: [AtomicU64; Algorithm::ALL.len()],
    over: AtomicU64,
    native_calls: AtomicU64,
}

impl Counters {
    pub(super) fn new(ranks: u32) -> Self {
        let peers = (0..ranks).map(|_| Peer::default()).collect();
        Self {
            peers,
            staged: Staged::default(),
            operations: Default::default(),
            over: AtomicU64::new(0),
            native_calls: AtomicU64::new(0),
        }
    }

    pub(super) fn sent(&self, peer: u32, bytes: u64, path: Path) {
        let peer = &self.peers[peer as usize];
        peer.messages_sent.fetch_add(1, Ordering::Relaxed);
        peer.bytes_sent.fetch_add(bytes, Ordering::Relaxed);
        peer.sent.add(path, bytes);
    }

    pub(super) fn received(&self, peer: u32, bytes: u64, path: Path) {
        let peer = &self.peers[peer as usize];
        peer.messages_received.fetch_add(1, Ordering::Relaxed);
        peer.bytes_received.fetch_add(bytes, Ordering::Relaxed);
        peer.received.add(path, bytes);
    }

    pub(super) fn copied_to_host(&self, bytes: u64) {
        self.staged.to_host.add(bytes);
    }

    pub(super) fn copied_to_card(&self, bytes: u64) {
        self.staged.to_card.add(bytes);
    }

    pub(super) fn copied_on_card(&self, bytes: u64) {
        self.staged.on_card.add(bytes);
    }

    pub(super) fn sent_from_kept(&self, bytes: u64) {
        self.staged.kept.add(bytes);
    }

    pub(super) fn operation_done(&self, algorithm: Algorithm) {
        self.operations[usize::from(algorithm.code())].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn native_call(&self) {
        self.native_calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls of the native library that were issued.
    pub fn native_calls(&self) -> u64 {
        self.native_calls.load(Ordering::Relaxed)
    }

    /// One more has ended well and said so.
    pub(super) fn operation_over(&self) {
        self.over.fetch_add(1, Ordering::Release);
    }

    /// Operations that have ended well and said so; what they did is visible.
    pub(super) fn operations_over(&self) -> u64 {
        self.over.load(Ordering::Acquire)
    }

    /// What was exchanged with `peer`, or `None` if there is no such rank.
    pub fn peer(&self, peer: u32) -> Option<PeerCounts> {
        let peer = self.peers.get(peer as usize)?;
        Some(PeerCounts {
            messages_sent: peer.messages_sent.load(Ordering::Relaxed),
            bytes_sent: peer.bytes_sent.load(Ordering::Relaxed),
            messages_received: peer.messages_received.load(Ordering::Relaxed),
            bytes_received: peer.bytes_received.load(Ordering::Relaxed),
            bytes_sent_direct: peer.sent.direct.load(Ordering::Relaxed),
            bytes_sent_staged: peer.sent.staged.load(Ordering::Relaxed),
            bytes_received_direct: peer.received.direct.load(Ordering::Relaxed),
            bytes_received_staged: peer.received.staged.load(Ordering::Relaxed),
        })
    }

    /// What was copied between the rank's card and pinned host memory.
    pub fn staging(&self) -> StagingCounts {
        let Staged { to_host, to_card, on_card, kept } = &self.staged;
        let (copies_to_host, bytes_to_host) = to_host.read();
        let (copies_to_card, bytes_to_card) = to_card.read();
        let (copies_on_card, bytes_on_card) = on_card.read();
        let (messages_kept, bytes_kept) = kept.read();
        StagingCounts {
            copies_to_host,
            bytes_to_host,
            copies_to_card,
            bytes_to_card,
            copies_on_card,
            bytes_on_card,
            messages_kept,
            bytes_kept,
        }
    }

    /// Operations that ended well.
    pub fn operations(&self) -> u64 {
        self.operations.iter().map(|one| one.load(Ordering::Relaxed)).sum()
    }

    /// Operations that ended well and were carried by this algorithm.
    pub fn operations_by(&self, algorithm: Algorithm) -> u64 {
        self.operations[usize::from(algorithm.code())].load(Ordering::Relaxed)
    }
}
