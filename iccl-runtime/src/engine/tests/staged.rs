//! The engine on cards that are late: everything comes out as on host memory, in whatever order copies
//! land, with as little pinned memory as there can be, and nothing is used while a card may touch it.

use super::late_card::LateCard;
use super::reached;
use super::*;
use iccl_plugin_api::MemoryKind;

use crate::engine::device::Card;

const SOON: Duration = Duration::from_secs(60);
/// Untouched elements before and after what an operation may write.
const GUARD: usize = 3;
const UNTOUCHED: i64 = -77;

pub(super) struct Rank {
    pub(super) engine: Engine,
    pub(super) card: Arc<LateCard>,
    pub(super) pool: Arc<CardPool>,
}

/// Ranks on cards of their own.
pub(super) struct Ranks {
    pub(super) ranks: Vec<Rank>,
}

pub(super) fn ranks_on(cards: Vec<LateCard>, staging_bytes: u64) -> Ranks {
    ranks_with(cards, EngineOptions { staging_bytes, ..EngineOptions::default() })
}

fn ranks_with(cards: Vec<LateCard>, options: EngineOptions) -> Ranks {
    ranks_with_native(cards, options, |_, _| None)
}

/// Ranks on cards of their own, some of which a library serves.
pub(super) fn ranks_with_native(
    cards: Vec<LateCard>,
    options: EngineOptions,
    mut native: impl FnMut(u32, &Arc<LateCard>) -> Option<Arc<dyn NativeIsland>>,
) -> Ranks {
    let hub = Arc::new(Mutex::new(Hub::default()));
    let count = cards.len() as u32;
    let ranks = cards.into_iter().zip(0..).map(|(card, rank)| {
        let card = Arc::new(card);
        let pool = CardPool::new(Arc::clone(&card) as _, MemoryKind::PinnedHost);
        let mut parts = parts(rank, count, &hub);
        if card.is_reached() {
            reached::by_nics(&mut parts);
        }
        let pinned = Some(Arc::clone(&pool));
        let native = native(rank, &card);
        let engine = Engine::start(EngineParts { options, pinned, native, ..parts });
        Rank { engine: engine.expect("an engine"), card, pool }
    });
    Ranks { ranks: ranks.collect() }
}

pub(super) fn late_cards(count: u64) -> Vec<LateCard> {
    (0..count).map(|seed| LateCard::new(seed + 1, Duration::from_micros(10))).collect()
}

/// A call of a rank, its two buffers as images of host memory, and where they start in them.
struct Prepared {
    request: OperationRequest,
    send: Vec<i64>,
    receive: Vec<i64>,
    /// Where the send buffer starts in the receive buffer's image, in place.
    in_place: Option<(usize, usize)>,
}

fn prepare(rank: u32, ranks: u32, call: &Call) -> Prepared {
    let request = request((rank, ranks), call);
    let schedule = request.program.schedule();
    let elements = |bytes: u64| bytes as usize / 8;
    let (send, receive) = (elements(schedule.send_bytes), elements(schedule.recv_bytes));
    let contribution = |at: usize| at as i64 * 3 + 1000 * i64::from(rank);
    let guarded = |length: usize| vec![UNTOUCHED; length + 2 * GUARD];
    let (mut sent, mut received) = (guarded(send), guarded(receive));
    let mut in_place = None;
    if schedule.in_place {
        let starts = (elements(schedule.origins.send), elements(schedule.origins.recv));
        received = guarded((starts.0 + send).max(starts.1 + receive));
        for at in 0..send {
            received[GUARD + starts.0 + at] = contribution(at);
        }
        in_place = Some(starts);
    } else {
        for at in 0..send {
            sent[GUARD + at] = contribution(at);
        }
    }
    Prepared { request, send: sent, receive: received, in_place }
}

impl Prepared {
    /// The request with its buffers at these addresses of the two images.
    fn at(
        request: OperationRequest,
        send: *mut u8,
        receive: *mut u8,
        in_place: Option<(usize, usize)>,
    ) -> OperationRequest {
        let element = |base: *mut u8, at: usize| base.wrapping_add(8 * (GUARD + at));
        let (send, receive) = match in_place {
            Some(starts) => (element(receive, starts.0), element(receive, starts.1)),
            None => (element(send, 0), element(receive, 0)),
        };
        OperationRequest { send, receive, ..request }
    }
}

/// What each rank finds in its receive buffer's image afterwards, by the engine on host memory.
fn on_host(ranks: u32, call: &Call) -> Vec<Vec<i64>> {
    let (engines, _hub) = engines(ranks, Duration::from_secs(10));
    let scalars: Vec<i64> = (0..i64::from(ranks)).map(|rank| rank + 2).collect();
    std::thread::scope(|scope| {
        let threads = engines.iter().zip(0..).map(|(engine, rank)| {
            let scalar = &scalars[rank as usize];
            scope.spawn(move || {
                let Prepared { request, mut send, mut receive, in_place } =
                    prepare(rank, ranks, call);
                let (from, to) = (send.as_mut_ptr().cast(), receive.as_mut_ptr().cast());
                let scalar = std::ptr::from_ref(scalar).cast();
                let request =
                    OperationRequest { scalar, ..Prepared::at(request, from, to, in_place) };
                let operation = submit_request(engine, request).expect("accepted");
                engine.wait(&operation, None).unwrap_or_else(|error| panic!("{error}"));
                receive
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

impl Ranks {
    /// The same on cards. The scalar lies on the card on every second rank.
    pub(super) fn run(&self, call: &Call) -> Vec<(Result<()>, Vec<i64>)> {
        let count = self.ranks.len() as u32;
        std::thread::scope(|scope| {
            let threads = self.ranks.iter().zip(0..).map(|(Rank { engine, card, .. }, rank)| {
                scope.spawn(move || {
                    let Prepared { request, send, receive, in_place } = prepare(rank, count, call);
                    let (from, to) = (card.memory(&send), card.memory(&receive));
                    let scalar = [i64::from(rank) + 2];
                    let on_card = card.memory(&scalar);
                    let scalar_is_on_device = rank % 2 == 0;
                    let allocations = [(from, &send), (to, &receive)].map(|(memory, elements)| {
                        reached::allocation(memory, size_of_val(elements.as_slice()))
                    });
                    let request = OperationRequest {
                        scalar: if scalar_is_on_device { on_card } else { scalar.as_ptr().cast() },
                        scalar_is_on_device,
                        allocations: [
                            Some(allocations[usize::from(in_place.is_some())]),
                            Some(allocations[1]),
                        ],
                        ..Prepared::at(request, from, to, in_place)
                    };
                    let outcome = submit_request(engine, request)
                        .and_then(|operation| engine.wait(&operation, Some(Instant::now() + SOON)));
                    let received = card.read(to, receive.len());
                    if outcome.is_ok() {
                        assert_eq!(card.read(from, send.len()), send, "the send buffer changed");
                        for allocation in allocations {
                            assert!(engine.forget(allocation.number));
                        }
                        for memory in [from, to, on_card] {
                            // SAFETY: allocated above, and the operation is over.
                            unsafe { card.free(memory) }.expect("freed");
                        }
                    }
                    (outcome, received)
                })
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
        })
    }

    pub(super) fn must_be_right(&self, call: &Call) {
        let what = format!(
            "{} {} by {} of {} in place {} on {}",
            call.collective,
            call.op,
            call.algorithm,
            call.count,
            call.in_place,
            self.ranks.len()
        );
        // Native libraries serve cards only.
        let needs_library = call.algorithm.facts().needs_islands;
        let by = if needs_library { Algorithm::Owner } else { call.algorithm };
        let expected = on_host(self.ranks.len() as u32, &Call { algorithm: by, ..*call });
        for (rank, (outcome, received)) in self.run(call).into_iter().enumerate() {
            outcome.unwrap_or_else(|error| panic!("{what}: rank {rank}: {error}"));
            assert_eq!(received, expected[rank], "{what}: rank {rank}");
        }
        for rank in &self.ranks {
            assert_eq!(rank.card.violations(), Vec::<String>::new(), "{what}");
        }
    }
}

/// Every collective by every algorithm that carries it, in place and not.
pub(super) fn all_calls() -> Vec<Call> {
    let mut calls = Vec::new();
    for algorithm in Algorithm::ALL {
        for collective in algorithm.facts().collectives {
            // One rank, two ranks, or a native library, have tests of their own.
            let alone = matches!(
                algorithm,
                Algorithm::Local | Algorithm::PointToPoint | Algorithm::Native | Algorithm::Islands
            );
            if is_vector(*collective) || alone {
                continue;
            }
            let mut ops = vec![RedOp::Sum];
            if collective.reduces() {
                ops.push(RedOp::PreMulSum);
                ops.extend(algorithm.facts().carries_avg.then_some(RedOp::Avg));
            }
            for op in ops {
                for in_place in [false, true] {
                    calls.push(Call {
                        collective: *collective,
                        algorithm: *algorithm,
                        op,
                        in_place,
                        root: 1,
                        count: 133,
                        ..ALL_REDUCE
                    });
                }
            }
        }
    }
    calls
}

/// B033: nothing is used before its copy has landed, whatever lands first; with pinned memory for one
/// message of each queue, and with more.
#[test]
fn b033_every_collective_comes_out_as_on_host_memory() {
    for (ranks, staging_bytes) in [(2, 0), (3, 12 << 10), (4, 1 << 20)] {
        let cards = ranks_on(late_cards(ranks), staging_bytes);
        for (sequence, call) in all_calls().into_iter().enumerate() {
            cards.must_be_right(&Call { sequence: sequence as u64, ..call });
        }
    }
}

/// Reductions of several pieces, with pinned memory for one piece and for more.
#[test]
fn b033_reductions_in_pieces_come_out_as_on_host_memory() {
    for staging_bytes in [0, 1 << 20] {
        let options = EngineOptions { staging_bytes, piece_bytes: 96, ..EngineOptions::default() };
        let cards = ranks_with(late_cards(3), options);
        let reduce = all_calls().into_iter().filter(|call| call.collective.reduces());
        for (sequence, call) in reduce.enumerate() {
            cards.must_be_right(&Call { sequence: sequence as u64, ..call });
        }
    }
}

#[test]
fn b033_one_rank_copies_on_its_card() {
    let cards = ranks_on(late_cards(1), 0);
    let mut sequence = 0;
    for collective in Algorithm::Local.facts().collectives {
        for op in [RedOp::Sum, RedOp::Avg, RedOp::PreMulSum] {
            if (op != RedOp::Sum && !collective.reduces()) || is_vector(*collective) {
                continue;
            }
            let algorithm = Algorithm::Local;
            let call = Call { collective: *collective, algorithm, op, sequence, ..ALL_REDUCE };
            cards.must_be_right(&call);
            sequence += 1;
        }
    }
    let counts = cards.ranks[0].engine.counters().staging();
    assert!(counts.copies_on_card > 0, "{counts:?}");
}

fn is_vector(collective: Collective) -> bool {
    use Collective::{AllGatherV, AllToAllV, GatherV, ReduceScatterV, ScatterV};
    matches!(collective, AllGatherV | AllToAllV | GatherV | ReduceScatterV | ScatterV)
}

#[test]
fn a_card_without_events_is_asked_as_a_whole() {
    let cards = late_cards(2).into_iter().map(LateCard::without_events).collect();
    let cards = ranks_on(cards, 1 << 20);
    for (sequence, algorithm) in [Algorithm::Ring, Algorithm::Owner].into_iter().enumerate() {
        cards.must_be_right(&Call { algorithm, sequence: sequence as u64, ..ALL_REDUCE });
    }
}

/// Messages from the middle of a broken sequence: the peer receives what was sent in the order of the
/// schedule, though copies of later messages land first.
#[test]
fn messages_of_one_queue_keep_their_order() {
    let cards = ranks_on(late_cards(2), 1 << 20);
    for sequence in 0..8 {
        let call = Call {
            collective: Collective::Broadcast,
            algorithm: Algorithm::Flat,
            count: 2000,
            sequence,
            ..ALL_REDUCE
        };
        cards.must_be_right(&call);
    }
}

/// What was received or made a moment ago is sent from the pinned memory in which it was.
#[test]
fn what_is_passed_on_is_not_copied_from_the_card_again() {
    let chunks = 1000_u64.div_ceil(32);
    // Each rank sends the slice of the other from its send buffer, and its own result from where it was
    // made; it loads its own contribution, and stores its result and the other's.
    let cards = ranks_on(late_cards(2), 1 << 20);
    cards.must_be_right(&Call { algorithm: Algorithm::Owner, count: 1024, ..ALL_REDUCE });
    let counts = cards.ranks[0].engine.counters().staging();
    let of_a_slice = 1024 * 8 / 2;
    assert_eq!(counts.bytes_to_host, 2 * of_a_slice, "{counts:?}");
    assert_eq!(counts.bytes_kept, of_a_slice, "{counts:?}");
    assert_eq!(counts.bytes_to_card, 2 * of_a_slice, "{counts:?}");

    // The middle of a chain passes on all that it receives.
    let cards = ranks_on(late_cards(4), 1 << 20);
    let call = Call {
        collective: Collective::Broadcast,
        algorithm: Algorithm::Binomial,
        root: 0,
        ..ALL_REDUCE
    };
    cards.must_be_right(&call);
    let passing = cards.ranks[2].engine.counters().staging();
    assert_eq!(passing.messages_kept, chunks, "{passing:?}");
    assert_eq!(passing.copies_to_host, 0, "{passing:?}");
    assert_eq!(passing.bytes_to_card, 8000, "{passing:?}");

    // Without room to keep it, it is copied.
    let cards = ranks_on(late_cards(4), 0);
    cards.must_be_right(&call);
    let passing = cards.ranks[2].engine.counters().staging();
    assert_eq!((passing.messages_kept, passing.copies_to_host), (0, chunks), "{passing:?}");
}

/// Two communicators of one card: neither can take from the other what it needs to go on.
#[test]
fn communicators_share_pinned_memory_and_never_wait_for_each_other() {
    let first = ranks_on(late_cards(2), 16 << 10);
    let hub = Arc::new(Mutex::new(Hub::default()));
    let second: Vec<Engine> = (0..2)
        .map(|rank| {
            Engine::start(EngineParts {
                options: EngineOptions { staging_bytes: 16 << 10, ..EngineOptions::default() },
                pinned: Some(Arc::clone(&first.ranks[rank as usize].pool)),
                ..parts(rank, 2, &hub)
            })
            .expect("an engine")
        })
        .collect();
    // A message that waits for its receiver keeps what it has.
    let call = Call {
        collective: Collective::Send,
        algorithm: Algorithm::PointToPoint,
        root: 1,
        ..ALL_REDUCE
    };
    let card = &first.ranks[0].card;
    let sent: Vec<i64> = (0..1000).collect();
    let memory = card.memory(&sent);
    let request = OperationRequest { send: memory, ..request((0, 2), &call) };
    let waiting = submit_request(&second[0], request).expect("accepted");
    for sequence in 0..3 {
        first.must_be_right(&Call { algorithm: Algorithm::Ring, sequence, ..ALL_REDUCE });
    }
    assert!(!waiting.is_over());
    let other = &first.ranks[1].card;
    let place = other.memory(&vec![0; 1000]);
    let call = Call { collective: Collective::Recv, root: 0, ..call };
    let request = OperationRequest { receive: place, ..super::request((1, 2), &call) };
    let receiving = submit_request(&second[1], request).expect("accepted");
    second[1].wait(&receiving, Some(Instant::now() + SOON)).expect("received");
    second[0].wait(&waiting, Some(Instant::now() + SOON)).expect("sent");
    assert_eq!(other.read(place, 1000), sent);
}

/// A card's allocations may wait for its streams, and these for whoever drives.
#[test]
fn whoever_drives_allocates_nothing() {
    for staging_bytes in [0, 12 << 10, 1 << 20] {
        for piece_bytes in [96, 1 << 20] {
            let options = EngineOptions { staging_bytes, piece_bytes, ..EngineOptions::default() };
            for (sequence, call) in all_calls().into_iter().enumerate() {
                // Each on cards that have nothing yet; a chunk of a slice that is longer than a block.
                if sequence % 3 == 0 {
                    let cards = ranks_with(late_cards(3), options);
                    cards.must_be_right(&call);
                    for rank in &cards.ranks {
                        assert_eq!(rank.card.allocated_by_drivers(), 0, "{}", call.algorithm);
                    }
                }
            }
        }
    }
}

/// Scratch on the card is made by the caller too, and does not pile up.
#[test]
fn scratch_on_a_card_is_prepared_and_bounded() {
    let cards = ranks_on(late_cards(1), 0);
    let Rank { engine, card, .. } = &cards.ranks[0];
    let (from, to) = (card.memory(&[7; 1000]), card.memory(&[0; 1000]));
    for (sequence, mebibytes) in [100, 120, 140, 160].into_iter().enumerate() {
        let sequence = sequence as u64;
        let call = Call { algorithm: Algorithm::Local, sequence, ..ALL_REDUCE };
        let request = request((0, 1), &call);
        let mut schedule = request.program.schedule().clone();
        schedule.device_scratch_bytes = mebibytes << 20;
        let program = Arc::new(Program::new(schedule));
        let request = OperationRequest { program, send: from, receive: to, ..request };
        let operation = submit_request(engine, request).expect("accepted");
        engine.wait(&operation, Some(Instant::now() + SOON)).expect("done");
    }
    assert_eq!(card.allocated_by_drivers(), 0);
    let mebibytes = card.allocated_bytes() >> 20;
    assert!(mebibytes < 400, "{mebibytes} MiB");
}

#[test]
fn nothing_is_made_for_a_call_once_it_is_warm() {
    let cards = ranks_on(late_cards(2), 64 << 10);
    let call = |sequence| Call { algorithm: Algorithm::Owner, sequence, ..ALL_REDUCE };
    (0..10).for_each(|sequence| cards.must_be_right(&call(sequence)));
    let made = |cards: &Ranks| -> Vec<_> {
        let made = |rank: &Rank| (rank.pool.allocations(), rank.card.handles_made());
        cards.ranks.iter().map(made).collect()
    };
    let before = made(&cards);
    (10..40).for_each(|sequence| cards.must_be_right(&call(sequence)));
    for ((blocks, handles), (blocks_then, handles_then)) in made(&cards).into_iter().zip(before) {
        // How many are in use at once depends on what lands first, but is bounded.
        assert!(blocks <= blocks_then + 4 && blocks < 40, "{blocks_then}, then {blocks} blocks");
        assert!(handles <= handles_then + 4, "{handles_then}, then {handles} handles");
    }
}

#[test]
fn a_copy_that_is_refused_ends_the_communicator_with_device_plugin_and_call() {
    for after in [0, 1, 7, 20] {
        let cards = ranks_on(late_cards(2), 1 << 20);
        cards.ranks[0].card.refuse_copies_after(after);
        let short = Call { timeout: Duration::from_secs(2), ..ALL_REDUCE };
        let outcomes = cards.run(&short);
        let error = outcomes[0].0.as_ref().expect_err("a copy is refused");
        assert_eq!(error.kind(), ErrorKind::DeviceError, "{error}");
        let text = error.to_string();
        assert!(text.contains("plugin late: device.copy"), "{text}");
        assert!(text.contains("device=late:0 (a late card)"), "{text}");
        assert_eq!(cards.ranks[0].card.violations(), Vec::<String>::new());
    }
}

#[test]
fn an_error_of_the_card_is_noticed_while_ranks_wait_for_each_other() {
    let cards = ranks_on(late_cards(2), 1 << 20);
    let Rank { engine, card, .. } = &cards.ranks[0];
    let (from, to) = (card.memory(&[1; 1000]), card.memory(&[0; 1000]));
    let request = OperationRequest { send: from, receive: to, ..request((0, 2), &ALL_REDUCE) };
    let operation = submit_request(engine, request).expect("accepted");
    let soon = Instant::now() + Duration::from_millis(50);
    engine.wait(&operation, Some(soon)).expect_err("rank 1 did not call");
    card.break_down();
    let error = engine.wait(&operation, Some(Instant::now() + SOON)).expect_err("it broke");
    assert_eq!(error.kind(), ErrorKind::DeviceError, "{error}");
    assert!(error.message().contains("the card fell off the bus"), "{error}");
}

#[test]
fn memory_that_a_card_may_still_touch_is_never_used_again() {
    for sticks in [false, true] {
        let cards = ranks_on(late_cards(2), 1 << 20);
        let Rank { engine, card, pool } = &cards.ranks[0];
        if sticks {
            card.stick();
        }
        let memory: Arc<dyn Any + Send + Sync> = Arc::new(());
        let (from, to) = (card.memory(&[1; 1000]), card.memory(&[0; 1000]));
        let request = OperationRequest {
            send: from,
            receive: to,
            keep: smallvec![Arc::clone(&memory)],
            ..request((0, 2), &Call { algorithm: Algorithm::Direct, ..ALL_REDUCE })
        };
        let operation = submit_request(engine, request).expect("accepted");
        while engine.counters().staging().copies_to_host == 0 {
            engine.wait(&operation, Some(Instant::now())).expect_err("rank 1 did not call");
        }
        let begun = Instant::now();
        engine.fail(Error::new(ErrorKind::Aborted, "aborted"));
        assert!(begun.elapsed() < SOON, "a card that does not come to rest is left");
        engine.wait(&operation, None).expect_err("aborted");
        assert_eq!(Arc::strong_count(&memory), if sticks { 2 } else { 1 });
        // The pool outlives its engine where a block may still be written.
        let users = Arc::strong_count(pool);
        assert_eq!(users > 3, sticks, "{users} users of the pool");
        assert_eq!(card.violations(), Vec::<String>::new());
        drop(cards);
    }
}

#[test]
fn pinned_memory_is_bounded_shared_and_kept() {
    let card = Arc::new(LateCard::new(1, Duration::from_millis(1)));
    let pool = CardPool::new(Arc::clone(&card) as _, MemoryKind::PinnedHost);
    // A right is never refused; the shared part is, beyond its bound.
    let mut by_right = pool.take(5000).expect("a right");
    let shared = pool.take_shared(8000, 16 << 10).expect("memory").expect("there is room");
    assert!(!by_right.share(12 << 10), "8 KiB and 8 KiB are more than 12 KiB");
    assert!(by_right.share(16 << 10));
    assert!(by_right.share(0), "it is counted once");
    assert!(pool.take_shared(1, 16 << 10).expect("no call").is_none());
    let second = pool.take(5000).expect("a right, although the shared part is used up");
    let pointers = [by_right.pointer(), shared.pointer(), second.pointer()];
    drop((by_right, shared, second));
    let again = [0; 3].map(|_| pool.take_shared(8192, 32 << 10).expect("memory").expect("room"));
    let mut used_again = again.each_ref().map(|block| block.pointer().addr());
    used_again.sort_unstable();
    let mut before = pointers.map(<*mut u8>::addr);
    before.sort_unstable();
    assert_eq!(used_again, before);
    assert_eq!(pool.allocations(), 3);
    drop(again);
    // What is idle beyond what is kept is freed by whoever prepares a call.
    let long = pool.take(200 << 20).expect("memory");
    let longer = pool.take(150 << 20).expect("memory");
    drop((long, longer));
    let allocated = card.allocated_bytes();
    pool.prepare([(100, 1)]).expect("prepared");
    assert!(card.allocated_bytes() < allocated && card.allocated_bytes() < 300 << 20);
    pool.prepare([(100_000, 5)]).expect("prepared");
    let (allocations, bytes) = (pool.allocations(), card.allocated_bytes());
    let blocks: Vec<_> = (0..5).map(|_| pool.take(100_000).expect("prepared")).collect();
    assert_eq!((pool.allocations(), card.allocated_bytes()), (allocations, bytes));
    drop(blocks);
    // But never what was prepared.
    pool.prepare([(300 << 20, 1), (1, 1)]).expect("prepared");
    let allocations = pool.allocations();
    drop(pool.take(300 << 20).expect("prepared"));
    assert_eq!(pool.allocations(), allocations);
    drop(pool);
    assert_eq!(card.allocated_bytes(), 0);
    assert_eq!(card.violations(), Vec::<String>::new());
}

/// A library that only says that it was given up.
struct IdleLibrary {
    device: Arc<NativeDevice>,
}

impl NativeIsland for IdleLibrary {
    fn name(&self) -> &'static str {
        "idle 1.0 on rank 0"
    }
    unsafe fn call(
        &self,
        _: &crate::schedule::IslandCall,
        _: &crate::engine::Operands,
        _: u64,
    ) -> Result<()> {
        Ok(())
    }
    fn async_error(&self) -> Result<()> {
        Ok(())
    }
    fn abort(&self) -> Result<()> {
        Ok(())
    }
    fn device(&self) -> &Arc<NativeDevice> {
        &self.device
    }
}

/// Whoever ends a communicator waits for its library once, and not again when it is given up.
#[test]
fn a_native_library_that_does_not_come_to_rest_is_not_waited_for_when_it_is_left() {
    for breaks in [true, false] {
        let late = Arc::new(LateCard::new(1, Duration::from_millis(1)));
        let card: Arc<dyn Card> = Arc::clone(&late) as _;
        let library = Arc::new(IdleLibrary { device: NativeDevice::new("late:0") });
        let island = Arc::clone(&library) as _;
        let mut native = Native::start(0, island, &card, Box::new(|| ())).expect("a thread");
        if breaks {
            late.break_down();
        }
        let timeout = if breaks { Duration::from_millis(100) } else { SOON };
        assert_eq!(native.rest(timeout), !breaks);
        let why = library.device.why_given_up();
        let expected = breaks.then(|| "idle 1.0 on rank 0 did not come to rest".to_owned());
        assert_eq!(why, expected);
        let before = Instant::now();
        native.leave();
        assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    }
}

/// A card that takes its time wakes the driver, who does not look all the while.
#[test]
fn b095_a_driver_that_waits_for_a_card_sleeps() {
    const RANK: u32 = 92;
    let card = Arc::new(LateCard::new(1, Duration::from_millis(250)));
    let hub = Arc::new(Mutex::new(Hub::default()));
    let engine = Engine::start(EngineParts {
        pinned: Some(CardPool::new(Arc::clone(&card) as _, MemoryKind::PinnedHost)),
        ..parts(RANK, RANK + 1, &hub)
    })
    .expect("an engine");
    let (from, to) = (card.memory(&[7; 1000]), card.memory(&[0; 1000]));
    let request = request((0, 1), &Call { algorithm: Algorithm::Local, ..ALL_REDUCE });
    let before = thread_time(RANK);
    let request = OperationRequest { send: from, receive: to, ..request };
    let operation = submit_request(&engine, request).expect("accepted");
    let until = Instant::now() + SOON;
    while !operation.is_over() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    operation.outcome().expect("over").expect("done");
    assert_eq!(card.read(to, 1000), [7; 1000]);
    // It was called when the copy had landed, or a moment later.
    while card.calls() == 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(card.calls() > 0, "the card wakes the driver");
    let used = thread_time(RANK) - before;
    assert!(used < 100_000_000, "{used} ns of processor time for one copy");
    drop((engine, hub));
}
