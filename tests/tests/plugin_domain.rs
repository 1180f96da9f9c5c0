//! The engine's view of transport plugins: messages between two domains, over each transport of the
//! folder, and no allocation of the runtime's on their way.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use iccl_plugin_api::sdk::{ChannelRequest, DomainRequest, Progress};
use iccl_plugin_api::tables::{Completion, ENVELOPE_BYTES, Segment, completion_kind};
use iccl_plugin_api::{MemoryKind, Status};
use iccl_runtime::config::{Config, Sources};
use iccl_runtime::engine::PluginDomain;
use iccl_runtime::engine::domain::Domain;
use iccl_runtime::plugins::PluginSet;

/// Counts the allocations of each thread. A plugin has an allocator of its own.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is the system's; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract is the system's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DEADLINE: Duration = Duration::from_secs(60);

/// Two domains of one transport, with a channel between them.
struct Pair {
    domains: [PluginDomain; 2],
    channels: [u64; 2],
    completions: Vec<Completion>,
}

impl Pair {
    fn open(tier: &str) -> Self {
        let folder = iccl_tests::plugin_folder();
        let sources = Sources::default().with("plugins.path", folder.to_str().unwrap());
        let set = PluginSet::load(&Config::load(&sources).unwrap()).unwrap();
        let transport = set.transport(tier).unwrap_or_else(|| panic!("no transport {tier}"));
        let mut domains = [0, 1].map(|rank| {
            let request = DomainRequest {
                communicator: 7,
                rank,
                ranks: 2,
                local_ranks: 2,
                job_key: &[9; 32],
                interface: "127.0.0.1",
                handshake_timeout: DEADLINE,
                connect_timeout: DEADLINE,
            };
            PluginDomain::open(transport, &request).unwrap()
        });
        let addresses = [domains[0].address().unwrap(), domains[1].address().unwrap()];
        let channels = [0, 1].map(|rank: usize| {
            let request = ChannelRequest {
                peer: 1 - rank as u32,
                dial: rank == 0,
                channel: 1,
                link_digest: 5,
                address: &addresses[1 - rank],
            };
            domains[rank].channel_open(&request).unwrap()
        });
        let mut pair = Self { domains, channels, completions: Vec::with_capacity(256) };
        pair.until("the channel is open", |pair| {
            (0..2).all(|rank| {
                pair.domains[rank].channel_state(pair.channels[rank]).unwrap() == Progress::Done
            })
        });
        pair
    }

    /// Drives both sides until something holds.
    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !holds(self) {
            assert!(begin.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
            for domain in &mut self.domains {
                domain.progress(&mut self.completions).unwrap();
            }
            std::thread::yield_now();
        }
    }

    /// Sends `bytes` from rank 0 to rank 1, in segments of unequal length.
    fn send(&mut self, token: u64, bytes: &[u8], received: &mut [u8], expected: u8) {
        let half = bytes.len() / 3;
        let piece = |from: usize, to: usize| Segment {
            address: bytes[from..to].as_ptr().cast_mut().cast(),
            length: (to - from) as u64,
            key: 0,
        };
        let out = [piece(0, half), piece(half, bytes.len())];
        let length = received.len() as u64;
        let into = [Segment { address: received.as_mut_ptr().cast(), length, key: 0 }];
        let envelope = |mark| [mark; ENVELOPE_BYTES];
        // SAFETY: the callers keep the buffers until both completions came.
        unsafe {
            self.domains[1]
                .post_receive(self.channels[1], token, &into, &envelope(expected))
                .unwrap();
            self.domains[0].post_send(self.channels[0], token, &out, &envelope(3)).unwrap();
        }
    }
}

/// Messages arrive as they were sent, and nothing of the runtime allocates meanwhile.
fn messages_arrive(tier: &str) {
    let mut pair = Pair::open(tier);
    assert_eq!(pair.domains[0].name(), tier);
    let sent: Vec<u8> = (0..100_000_u32).map(|index| (index * 31 % 251) as u8).collect();
    for length in [0, 1, 4096, sent.len()] {
        let mut received = vec![0; length];
        pair.completions.clear();
        let before = ALLOCATIONS.get();
        for token in 0..100 {
            pair.send(token, &sent[..length], &mut received, 3);
            pair.until("a message", |pair| pair.completions.len() >= 2 * (token as usize + 1));
        }
        assert_eq!(ALLOCATIONS.get(), before, "the runtime allocates for a message");
        assert_eq!(received, sent[..length]);
        for kind in [completion_kind::SEND, completion_kind::RECEIVE] {
            let ended: Vec<&Completion> =
                pair.completions.iter().filter(|each| each.kind == kind).collect();
            assert!(ended.iter().all(|each| each.outcome() == Status::Ok));
            let tokens: Vec<u64> = ended.iter().map(|each| each.token).collect();
            assert_eq!(tokens, (0..100).collect::<Vec<u64>>());
        }
    }

    // More completions than fit into one call of the plugin.
    let mut received = vec![0; 200];
    pair.completions.clear();
    for (token, byte) in (0_u64..).zip(&mut received) {
        pair.send(token, &[17], std::slice::from_mut(byte), 3);
    }
    pair.until("200 messages", |pair| pair.completions.len() >= 400);
    assert_eq!(received, [17; 200]);

    // A message that is not the one expected: nothing is written, and the error tells it.
    pair.completions.clear();
    let mut untouched = [1; 4];
    pair.send(9, &[2; 4], &mut untouched, 4);
    pair.until("the mismatch", |pair| {
        pair.completions.iter().any(|each| each.outcome() == Status::Mismatch)
    });
    assert_eq!(untouched, [1; 4]);
}

#[test]
fn messages_over_tcp() {
    messages_arrive("tcp");
}

#[test]
fn messages_over_shm() {
    messages_arrive("shm");
}

#[test]
fn a_sleeping_domain_is_woken() {
    for tier in ["tcp", "shm"] {
        let mut pair = Pair::open(tier);
        let domain = &mut pair.domains[0];
        assert!(domain.event_descriptor() >= 0);
        if !domain.has_wait() {
            assert!(domain.waker().is_none());
            continue;
        }
        let wake = domain.waker().expect("a domain that waits can be woken");
        let begin = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                wake();
            });
            // May end early, for what is left to do after connecting.
            while begin.elapsed() < Duration::from_millis(20) {
                domain.wait(DEADLINE).unwrap();
                domain.progress(&mut pair.completions).unwrap();
            }
        });
        assert!(begin.elapsed() < DEADLINE, "{tier}: nobody woke it");
        drop(pair);
        // After the domain is gone, waking does nothing.
        wake();
    }
}

#[test]
fn memory_kinds_and_reach_are_told() {
    let folder = iccl_tests::plugin_folder();
    let sources = Sources::default().with("plugins.path", folder.to_str().unwrap());
    let set = PluginSet::load(&Config::load(&sources).unwrap()).unwrap();
    for transport in set.transports() {
        let facts = transport.facts();
        assert!(facts.memory_kinds & MemoryKind::Host.mask() != 0, "{}", transport.tier());
        assert!(facts.reach != 0 && facts.bytes_per_us > 0, "{}", transport.tier());
        assert!(!facts.latency.is_zero());
    }
}
