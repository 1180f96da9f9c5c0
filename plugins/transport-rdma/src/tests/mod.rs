//! Domains over devices in memory or, with `ICCL_TEST_RDMA=real`, over the devices of this machine: the
//! same tests. Deadlines are bounds for a loaded machine, not expectations.

mod ends;
mod messages;

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{
    ChannelRequest, CompletionSink, DomainRequest, Envelope, PluginError, PluginResult,
    PostedMessage, Progress, Settings, Transport, TransportDomain,
};
use iccl_plugin_api::tables::{Completion, ENVELOPE_BYTES, Segment};

use crate::settings::RdmaSettings;
use crate::verbs::mock::Mock;
use crate::verbs::{Ibverbs, Library};
use crate::{RdmaDomain, RdmaTransport};

const LONG: Duration = Duration::from_secs(90);

/// The devices of this machine if the environment says so, else new ones in memory.
fn devices() -> Arc<dyn Library> {
    match std::env::var("ICCL_TEST_RDMA").as_deref() {
        Ok("real") => Ibverbs::open().unwrap(),
        _ => Arc::new(Mock::new(2)),
    }
}

fn transport(library: &Arc<dyn Library>, devices: &str) -> PluginResult<RdmaTransport> {
    let settings = Settings::new(vec![("devices", devices), ("timeout", "70000")]);
    RdmaTransport::with(Arc::clone(library), RdmaSettings::from(&settings)?)
}

/// One rank: its domain and what has ended.
struct Rank {
    domain: RdmaDomain,
    ended: Vec<Completion>,
}

impl Rank {
    fn open(library: &Arc<dyn Library>, rank: u32, key: u8) -> Self {
        // Each rank has a device of its own where there are several.
        let names = library.device_names().unwrap();
        let name = &names[rank as usize % names.len()];
        let request = DomainRequest {
            communicator: 77,
            rank,
            ranks: 3,
            local_ranks: 3,
            job_key: &[key; 32],
            interface: "",
            handshake_timeout: LONG,
            connect_timeout: LONG,
        };
        let domain = transport(library, name).unwrap().open(&request).unwrap();
        Self { domain, ended: Vec::new() }
    }

    fn channel(&mut self, peer: u32, dial: bool, link_digest: u64, address: &[u8]) -> u64 {
        let channel = ChannelRequest { peer, dial, channel: 5, link_digest, address };
        self.domain.channel_open(&channel).unwrap()
    }

    fn send(&mut self, channel: u64, token: u64, envelope: u8, segments: &[Segment]) {
        self.try_send(channel, token, envelope, segments).unwrap();
    }

    fn try_send(
        &mut self,
        channel: u64,
        token: u64,
        envelope: u8,
        segments: &[Segment],
    ) -> Result<(), PluginError> {
        let envelope: Envelope = [envelope; ENVELOPE_BYTES];
        // SAFETY: the tests keep the memory until the completion or the domain's end.
        unsafe {
            self.domain.post_send(channel, PostedMessage { token, segments, envelope: &envelope })
        }
    }

    fn receive(&mut self, channel: u64, token: u64, envelope: u8, segments: &[Segment]) {
        let envelope: Envelope = [envelope; ENVELOPE_BYTES];
        let message = PostedMessage { token, segments, envelope: &envelope };
        // SAFETY: the tests leave the memory alone until the completion or the domain's end.
        unsafe { self.domain.post_receive(channel, message) }.unwrap();
    }

    /// One turn with room for few completions, so that keeping the rest is tested as well.
    fn progress(&mut self) {
        let mut room = [MaybeUninit::uninit(); 3];
        let mut sink = CompletionSink::new(&mut room);
        self.domain.progress(&mut sink).unwrap();
        let used = sink.used();
        for completion in &room[..used] {
            // SAFETY: the sink has written the first `used` ones.
            self.ended.push(unsafe { completion.assume_init() });
        }
    }

    fn is_open(&self, channel: u64) -> bool {
        matches!(self.domain.channel_state(channel), Ok(Progress::Done))
    }
}

fn from(memory: &[u8]) -> Segment {
    Segment { address: memory.as_ptr().cast_mut().cast(), length: memory.len() as u64, key: 0 }
}

fn into(memory: &mut [u8]) -> Segment {
    Segment { address: memory.as_mut_ptr().cast(), length: memory.len() as u64, key: 0 }
}

/// Drives the ranks until `done`.
fn drive(ranks: &mut [&mut Rank], mut done: impl FnMut(&mut [&mut Rank]) -> bool) {
    let deadline = Instant::now() + LONG;
    while !done(ranks) {
        assert!(Instant::now() < deadline, "nothing more happens");
        for rank in ranks.iter_mut() {
            rank.progress();
        }
    }
}

/// Two ranks with an open channel; rank 1 dials.
struct Pair {
    a: Rank,
    b: Rank,
    on_a: u64,
    on_b: u64,
}

impl Pair {
    fn new(library: &Arc<dyn Library>) -> Self {
        let (mut a, mut b) = (Rank::open(library, 0, 9), Rank::open(library, 1, 9));
        let (on_a, on_b) = join(&mut a, &mut b);
        drive(&mut [&mut a, &mut b], |ranks| ranks[0].is_open(on_a) && ranks[1].is_open(on_b));
        Self { a, b, on_a, on_b }
    }

    fn drive(&mut self, mut done: impl FnMut(&mut Rank, &mut Rank) -> bool) {
        drive(&mut [&mut self.a, &mut self.b], |ranks| {
            let [a, b] = ranks else { return true };
            done(a, b)
        });
    }

    /// Sends from `b` to `a`.
    fn send(&mut self, source: &[Segment], target: &[Segment]) {
        self.a.receive(self.on_a, 1, 3, target);
        self.b.send(self.on_b, 2, 3, source);
        self.drive(|a, b| !a.ended.is_empty() && !b.ended.is_empty());
        let length: u64 = source.iter().map(|segment| segment.length).sum();
        for (rank, token) in [(&mut self.a, 1), (&mut self.b, 2)] {
            let ended = rank.ended.remove(0);
            assert_eq!((status(&ended), ended.token, ended.length), (Status::Ok, token, length));
        }
    }
}

/// Begins to open a channel between rank 0 and rank 1.
fn join(a: &mut Rank, b: &mut Rank) -> (u64, u64) {
    let address = a.domain.address().unwrap();
    (a.channel(1, false, 1, &[]), b.channel(0, true, 1, &address))
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length).map(|index| (seed as usize * 31 + index * 7 + index / 253) as u8).collect()
}

fn status(completion: &Completion) -> Status {
    Status::from_code(completion.status).unwrap()
}
