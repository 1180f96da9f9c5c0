//! Domains in one process, driven by hand. Deadlines are bounds for a loaded machine, not
//! expectations.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{
    ChannelRequest, CompletionSink, DomainRequest, Envelope, Plugin, PluginError, PostedMessage,
    Progress, Settings, Transport, TransportDomain,
};
use iccl_plugin_api::tables::{Completion, ENVELOPE_BYTES, Segment};
use iccl_plugin_transport_tcp::{TcpDomain, TcpTransport};

pub const LONG: Duration = Duration::from_secs(90);
pub const KEY: [u8; 32] = [9; 32];

/// One rank: its domain and what has ended.
pub struct Rank {
    pub domain: TcpDomain,
    pub ended: Vec<Completion>,
}

/// What a rank is opened with, to be changed by tests.
#[derive(Clone)]
pub struct Options {
    pub settings: Vec<(&'static str, &'static str)>,
    pub key: [u8; 32],
    pub ranks: u32,
    pub interface: &'static str,
    pub handshake_timeout: Duration,
    pub connect_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            settings: Vec::new(),
            key: KEY,
            ranks: 2,
            interface: "",
            handshake_timeout: LONG,
            connect_timeout: LONG,
        }
    }
}

impl Options {
    pub fn open(&self, rank: u32) -> Rank {
        let transport = TcpTransport::probe(&Settings::new(self.settings.clone())).unwrap();
        let domain = transport
            .open(&DomainRequest {
                communicator: 77,
                rank,
                ranks: self.ranks,
                local_ranks: self.ranks,
                job_key: &self.key,
                interface: self.interface,
                handshake_timeout: self.handshake_timeout,
                connect_timeout: self.connect_timeout,
            })
            .unwrap();
        Rank { domain, ended: Vec::new() }
    }
}

pub fn with_settings(settings: &[(&'static str, &'static str)]) -> Options {
    Options { settings: settings.to_vec(), ..Options::default() }
}

impl Rank {
    pub fn dial(&mut self, peer: u32, number: u64, link_digest: u64, address: &[u8]) -> u64 {
        let channel = ChannelRequest { peer, dial: true, channel: number, link_digest, address };
        self.domain.channel_open(&channel).unwrap()
    }

    pub fn await_peer(&mut self, peer: u32, number: u64, link_digest: u64) -> u64 {
        let address = &[];
        let channel = ChannelRequest { peer, dial: false, channel: number, link_digest, address };
        self.domain.channel_open(&channel).unwrap()
    }

    /// Posts a send of `memory`, which the caller keeps until the completion.
    pub fn send(&mut self, channel: u64, token: u64, envelope: u8, memory: &[u8]) {
        let segments = [segment(memory.as_ptr().cast_mut(), memory.len())];
        self.try_send(channel, token, envelope, &segments).unwrap();
    }

    pub fn try_send(
        &mut self,
        channel: u64,
        token: u64,
        envelope: u8,
        segments: &[Segment],
    ) -> Result<(), PluginError> {
        let envelope: Envelope = [envelope; ENVELOPE_BYTES];
        let message = PostedMessage { token, segments, envelope: &envelope };
        // SAFETY: the tests keep the memory until the completion or the domain's end.
        unsafe { self.domain.post_send(channel, message) }
    }

    /// Posts a receive into `memory`, which the caller leaves alone until the completion.
    pub fn receive(&mut self, channel: u64, token: u64, envelope: u8, memory: &mut [u8]) {
        let segments = [segment(memory.as_mut_ptr(), memory.len())];
        self.try_receive(channel, token, envelope, &segments).unwrap();
    }

    pub fn try_receive(
        &mut self,
        channel: u64,
        token: u64,
        envelope: u8,
        segments: &[Segment],
    ) -> Result<(), PluginError> {
        let envelope: Envelope = [envelope; ENVELOPE_BYTES];
        let message = PostedMessage { token, segments, envelope: &envelope };
        // SAFETY: the tests leave the memory alone until the completion or the domain's end.
        unsafe { self.domain.post_receive(channel, message) }
    }

    /// One turn with room for few completions, so that keeping the rest is tested as well.
    pub fn progress(&mut self) {
        let mut room = [MaybeUninit::uninit(); 3];
        let mut sink = CompletionSink::new(&mut room);
        self.domain.progress(&mut sink).unwrap();
        let used = sink.used();
        for completion in &room[..used] {
            // SAFETY: the sink has written the first `used` ones.
            self.ended.push(unsafe { completion.assume_init() });
        }
    }

    /// Forgets and returns what has ended, once there is this much of it.
    pub fn take(&mut self, count: usize) -> Option<Vec<Completion>> {
        (self.ended.len() >= count).then(|| std::mem::take(&mut self.ended))
    }

    pub fn is_open(&self, channel: u64) -> bool {
        matches!(self.domain.channel_state(channel), Ok(Progress::Done))
    }

    pub fn failure(&self, channel: u64) -> Option<PluginError> {
        self.domain.channel_state(channel).err()
    }
}

pub fn segment(address: *mut u8, length: usize) -> Segment {
    Segment { address: address.cast(), length: length as u64, key: 0 }
}

/// Drives the ranks until `done`.
pub fn drive(ranks: &mut [&mut Rank], mut done: impl FnMut(&mut [&mut Rank]) -> bool) {
    let deadline = Instant::now() + LONG;
    while !done(ranks) {
        assert!(Instant::now() < deadline, "nothing more happens");
        for rank in ranks.iter_mut() {
            rank.progress();
        }
    }
}

/// Drives the ranks for a while.
pub fn drive_for(ranks: &mut [&mut Rank], time: Duration) {
    let end = Instant::now() + time;
    drive(ranks, |_| Instant::now() >= end);
}

/// Two ranks with an open channel; rank 1 dials.
pub struct Pair {
    pub a: Rank,
    pub b: Rank,
    pub on_a: u64,
    pub on_b: u64,
}

impl Pair {
    pub fn new(options: &Options) -> Self {
        let (mut a, mut b) = (options.open(0), options.open(1));
        let address = a.domain.address().unwrap();
        let on_a = a.await_peer(1, 5, 0xd1);
        let on_b = b.dial(0, 5, 0xd1, &address);
        drive(&mut [&mut a, &mut b], |ranks| ranks[0].is_open(on_a) && ranks[1].is_open(on_b));
        Self { a, b, on_a, on_b }
    }

    pub fn drive(&mut self, mut done: impl FnMut(&mut Rank, &mut Rank) -> bool) {
        drive(&mut [&mut self.a, &mut self.b], |ranks| {
            let [a, b] = ranks else { return true };
            done(a, b)
        });
    }
}

pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length).map(|index| (seed as usize * 31 + index * 7 + index / 253) as u8).collect()
}

pub fn status(completion: &Completion) -> Status {
    Status::from_code(completion.status).unwrap()
}
