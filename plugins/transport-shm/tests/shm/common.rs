//! Domains and messages for tests.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{
    ChannelRequest, CompletionSink, DomainRequest, Envelope, Plugin, PluginResult, PostedMessage,
    Progress, Settings, Transport, TransportDomain,
};
use iccl_plugin_api::tables::{Completion, Segment};
use iccl_plugin_transport_shm::{ShmDomain, ShmTransport};

/// Far beyond what anything here takes, so that a loaded machine fails no test.
pub(crate) const LONG: Duration = Duration::from_secs(90);
pub(crate) const DONE: Progress = Progress::Done;
pub(crate) const KEY: [u8; 32] = [7; 32];

pub(crate) fn request(rank: u32) -> DomainRequest<'static> {
    DomainRequest {
        communicator: 5,
        rank,
        ranks: 16,
        local_ranks: 16,
        job_key: &KEY,
        interface: "",
        handshake_timeout: LONG,
        connect_timeout: LONG,
    }
}

pub(crate) fn transport(ring_bytes: usize) -> ShmTransport {
    let text = ring_bytes.to_string();
    ShmTransport::probe(&Settings::new(vec![("ring_bytes", &text)])).unwrap()
}

pub(crate) fn envelope(tag: u64) -> Envelope {
    let mut envelope = [0; 64];
    envelope[..8].copy_from_slice(&tag.to_le_bytes());
    envelope[56..].copy_from_slice(&(!tag).to_le_bytes());
    envelope
}

/// Bytes that differ between messages and between positions.
pub(crate) fn pattern(tag: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).wrapping_add(tag * 13 + at) as u8)
        .collect()
}

/// One side of a test.
pub(crate) struct Side {
    pub(crate) domain: ShmDomain,
    pub(crate) done: Vec<Completion>,
}

impl Side {
    pub(crate) fn new(domain: ShmDomain) -> Self {
        Self { domain, done: Vec::new() }
    }

    pub(crate) fn rank(rank: u32, ring_bytes: usize) -> Self {
        Self::new(transport(ring_bytes).open(&request(rank)).unwrap())
    }

    pub(crate) fn open(
        &mut self,
        peer: u32,
        channel: u64,
        address: Option<&[u8]>,
    ) -> PluginResult<u64> {
        self.domain.channel_open(&ChannelRequest {
            peer,
            dial: address.is_some(),
            channel,
            link_digest: 99,
            address: address.unwrap_or_default(),
        })
    }

    pub(crate) fn send(&mut self, channel: u64, tag: u64, bytes: &[u8]) -> PluginResult<()> {
        let whole = segment(bytes.as_ptr().cast_mut(), bytes.len());
        self.post(true, channel, tag, &[whole])
    }

    pub(crate) fn receive(&mut self, channel: u64, tag: u64, bytes: &mut [u8]) -> PluginResult<()> {
        let whole = segment(bytes.as_mut_ptr(), bytes.len());
        self.post(false, channel, tag, &[whole])
    }

    pub(crate) fn post(
        &mut self,
        send: bool,
        channel: u64,
        tag: u64,
        segments: &[Segment],
    ) -> PluginResult<()> {
        let message = PostedMessage { token: tag, segments, envelope: &envelope(tag) };
        // SAFETY: the tests keep their buffers until the completion or the domain's end, and look
        // at them only after.
        unsafe {
            if send {
                self.domain.post_send(channel, message)
            } else {
                self.domain.post_receive(channel, message)
            }
        }
    }

    /// One call of `progress`.
    pub(crate) fn step(&mut self) {
        let mut room = [const { MaybeUninit::uninit() }; 32];
        let mut sink = CompletionSink::new(&mut room);
        self.domain.progress(&mut sink).unwrap();
        let used = sink.used();
        for completion in &room[..used] {
            // SAFETY: the sink says that it has written that many.
            self.done.push(unsafe { completion.assume_init() });
        }
    }

    pub(crate) fn state(&self, channel: u64) -> PluginResult<Progress> {
        self.domain.channel_state(channel)
    }

    /// Steps and waits until `over`.
    pub(crate) fn until(&mut self, what: &str, mut over: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + LONG;
        loop {
            self.step();
            if over(self) {
                return;
            }
            assert!(Instant::now() < end, "{what}: not reached; completions: {:?}", self.done);
            self.domain.wait(Duration::from_millis(200)).unwrap();
        }
    }

    /// Waits until so many messages are over.
    pub(crate) fn complete(&mut self, count: usize) {
        self.until(&format!("{count} completions"), |side| side.done.len() >= count);
    }

    /// Fails unless so many messages have ended, all of them well.
    pub(crate) fn assert_all_done(&self, count: usize) {
        assert_eq!(self.done.len(), count, "{:?}", self.done);
        for done in &self.done {
            assert_eq!(done.status, Status::Ok.code(), "{done:?}");
        }
    }
}

pub(crate) fn segment(address: *mut u8, bytes: usize) -> Segment {
    Segment { address: address.cast(), length: bytes as u64, key: 0 }
}

/// Steps both sides by turns until `over`.
pub(crate) fn both(left: &mut Side, right: &mut Side, mut over: impl FnMut(&Side, &Side) -> bool) {
    let end = Instant::now() + LONG;
    loop {
        left.step();
        right.step();
        if over(left, right) {
            return;
        }
        assert!(Instant::now() < end, "not over: {:?}, {:?}", left.done, right.done);
        std::thread::yield_now();
    }
}

/// Two domains in this process, ranks 0 and 1, with a channel that 0 has dialed; their handles.
pub(crate) fn pair(ring_bytes: usize) -> (Side, Side, u64, u64) {
    let (mut left, mut right) = (Side::rank(0, ring_bytes), Side::rank(1, ring_bytes));
    let (dialer, acceptor) = connect(&mut left, &mut right, 3);
    (left, right, dialer, acceptor)
}

pub(crate) fn connect(left: &mut Side, right: &mut Side, channel: u64) -> (u64, u64) {
    let address = right.domain.address().unwrap();
    let dialer = left.open(1, channel, Some(&address)).unwrap();
    let acceptor = right.open(0, channel, None).unwrap();
    both(left, right, |left, right| {
        left.state(dialer).unwrap() == Progress::Done
            && right.state(acceptor).unwrap() == Progress::Done
    });
    (dialer, acceptor)
}
