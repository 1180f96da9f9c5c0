//! Late cards whose memory NICs reach: what is sent lies on the card when it is read, what is received is made
//! visible, nothing is staged, and no NIC knows memory that is freed.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use iccl_plugin_api::tables::{MemoryRegion, region_form};

use super::late_card::LateCard;
use super::staged::{all_calls, late_cards, ranks_on};
use super::*;

/// The transport in memory, with NICs: every byte has to have been registered.
struct NicDomain {
    inner: Box<dyn Domain>,
    regions: HashMap<u64, Range<u64>>,
    last_key: u64,
}

/// Links whose NICs reach the card on this side.
pub(super) fn by_nics(parts: &mut EngineParts) {
    for link in parts.links.iter_mut().flatten() {
        link.access = Access::Direct;
    }
    let with_nic = |inner| Box::new(NicDomain { inner, regions: HashMap::new(), last_key: 0 }) as _;
    parts.domains = parts.domains.drain(..).map(with_nic).collect();
}

/// Memory of a card, as the engine is told of it.
pub(super) fn allocation(memory: *mut u8, bytes: usize) -> Allocation {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    Allocation { number, begin: memory.expose_provenance(), bytes: bytes as u64 }
}

impl NicDomain {
    fn must_know(&self, segments: &[Segment]) {
        for Segment { address, length, key } in segments.iter().filter(|one| one.length > 0) {
            let region = self.regions.get(key).unwrap_or_else(|| panic!("no region {key}"));
            let begin = address.addr() as u64;
            assert!(region.start <= begin && begin + length <= region.end, "outside of its region");
        }
    }
}

impl Domain for NicDomain {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn address(&mut self) -> Result<Vec<u8>> {
        self.inner.address()
    }
    fn channel_open(&mut self, request: &ChannelRequest<'_>) -> Result<u64> {
        self.inner.channel_open(request)
    }
    fn channel_state(&mut self, channel: u64) -> Result<Progress> {
        self.inner.channel_state(channel)
    }
    unsafe fn post_send(
        &mut self,
        channel: u64,
        token: u64,
        segments: &[Segment],
        envelope: &EnvelopeBytes,
    ) -> Result<()> {
        self.must_know(segments);
        // SAFETY: the caller promises it.
        unsafe { self.inner.post_send(channel, token, segments, envelope) }
    }
    unsafe fn post_receive(
        &mut self,
        channel: u64,
        token: u64,
        segments: &[Segment],
        envelope: &EnvelopeBytes,
    ) -> Result<()> {
        self.must_know(segments);
        // SAFETY: the caller promises it.
        unsafe { self.inner.post_receive(channel, token, segments, envelope) }
    }
    fn progress(&mut self, completions: &mut Vec<Completion>) -> Result<()> {
        self.inner.progress(completions)
    }
    fn arm(&mut self) -> Result<Progress> {
        self.inner.arm()
    }
    fn event_descriptor(&self) -> RawFd {
        self.inner.event_descriptor()
    }
    fn has_wait(&self) -> bool {
        self.inner.has_wait()
    }
    fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.inner.wait(timeout)
    }
    fn waker(&self) -> Option<Wake> {
        self.inner.waker()
    }
    fn quiesce(&mut self, channel: u64, timeout: Duration) -> Result<()> {
        self.inner.quiesce(channel, timeout)
    }
    fn channel_close(&mut self, channel: u64) -> Result<()> {
        self.inner.channel_close(channel)
    }
    fn registers(&self) -> bool {
        true
    }
    unsafe fn register(&mut self, region: &MemoryRegion) -> Result<u64> {
        assert_eq!(region.form, region_form::HOST_ALIAS);
        self.last_key += 1;
        self.regions.insert(self.last_key, region.address..region.address + region.length);
        Ok(self.last_key)
    }
    fn deregister(&mut self, key: u64) -> Result<()> {
        assert!(self.regions.remove(&key).is_some(), "it was registered");
        Ok(())
    }
}

impl Drop for NicDomain {
    fn drop(&mut self) {
        assert!(self.regions.is_empty() || std::thread::panicking(), "regions are left");
    }
}

/// Every collective comes out right, whatever lands first, where NICs reach all cards, or some.
#[test]
fn b044_every_collective_comes_out_as_on_host_memory() {
    for (ranks, reached) in [(2, 2), (3, 2), (4, 1)] {
        let cards = late_cards(ranks).into_iter().zip(0..);
        let cards = cards.map(|(card, rank)| if rank < reached { card.reached() } else { card });
        let cards = ranks_on(cards.collect::<Vec<LateCard>>(), 12 << 10);
        for (sequence, call) in all_calls().into_iter().enumerate() {
            cards.must_be_right(&Call { sequence: sequence as u64, ..call });
        }
        for (rank, at) in cards.ranks.iter().zip(0..) {
            let counts = (0..ranks as u32).filter_map(|peer| rank.engine.counters().peer(peer));
            let sum = counts.fold((0, 0), |(direct, staged), one| {
                let direct = direct + one.bytes_sent_direct + one.bytes_received_direct;
                (direct, staged + one.bytes_sent_staged + one.bytes_received_staged)
            });
            let is_reached = at < reached;
            assert_eq!((sum.0 > 0, sum.1 > 0), (is_reached, !is_reached), "rank {at}: {sum:?}");
            assert_eq!(rank.card.flushes() > 0, is_reached);
        }
    }
}

/// Memory that nobody says the end of is not given to a NIC.
#[test]
fn memory_of_unknown_end_is_staged() {
    let cards = ranks_on(late_cards(2).into_iter().map(LateCard::reached).collect(), 1 << 20);
    std::thread::scope(|scope| {
        for (rank, at) in cards.ranks.iter().zip(0..) {
            scope.spawn(move || {
                let memory = [3_i64; 100].map(|value| value + i64::from(at));
                let (from, to) = (rank.card.memory(&memory), rank.card.memory(&[0; 100]));
                let call = Call { count: 100, ..ALL_REDUCE };
                let request =
                    OperationRequest { send: from, receive: to, ..request((at, 2), &call) };
                let operation = submit_request(&rank.engine, request).expect("accepted");
                rank.engine.wait(&operation, None).expect("done");
                assert_eq!(rank.card.read(to, 100), [7; 100]);
                let counts = rank.engine.counters().peer(1 - at).expect("a peer");
                assert!(
                    counts.bytes_sent_direct == 0 && counts.bytes_sent_staged > 0,
                    "{counts:?}"
                );
            });
        }
    });
}
