//! Native steps of the engine on two islands of late cards: whatever order calls, copies and messages land in,
//! the result is right, and nothing of a library touches memory that somebody else uses.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use iccl_plugin_api::tables::{CollectiveSupport, collectives_flag};

use super::late_card::{FAR_AWAY, LateCard};
use super::staged::{Ranks, ranks_with_native};
use super::*;
use crate::schedule::{Island, IslandCall, Islands, NativeRules};
use crate::topology::NativeAbilities;

/// The ranks of the islands of a job: all on one, or every second on each of two, but the last of an odd
/// number on none.
fn members(algorithm: Algorithm, ranks: u32) -> Vec<Vec<u32>> {
    match algorithm {
        Algorithm::Native => vec![(0..ranks).collect()],
        Algorithm::Islands => {
            let side = |first: u32| (0..ranks & !1).filter(|rank| rank % 2 == first).collect();
            vec![side(0), side(1)]
        }
        _ => Vec::new(),
    }
}

/// What a schedule knows of them.
pub(super) fn islands(algorithm: Algorithm, ranks: u32) -> Option<Arc<Islands>> {
    let support: Vec<CollectiveSupport> = Collective::ALL
        .iter()
        .map(|one| CollectiveSupport::new(*one, DataType::ALL, RedOp::ALL))
        .collect();
    let abilities = NativeAbilities::new(collectives_flag::IN_PLACE, &support);
    let members = members(algorithm, ranks);
    let islands = members.into_iter().map(|ranks| Island {
        library: "late 1.0".into(),
        ranks: ranks.into(),
        abilities: abilities.clone(),
    });
    let islands: Vec<Island> = islands.collect();
    let has_some = !islands.is_empty();
    has_some.then(|| Arc::new(Islands::new(ranks, islands, NativeRules::default())))
}

/// One member's part in a call, as addresses of memory that the host reads.
type Part = (IslandCall, usize, usize);

/// What the members of an island share.
struct Group {
    ranks: usize,
    /// The k-th call of each member, as far as its stream has come to it; the flag says that it is done.
    calls: Mutex<Vec<(Vec<Option<Part>>, bool)>>,
    is_aborted: AtomicBool,
    /// A library that does not react to an abort, and does the calls from this one on never.
    ends_at: Option<usize>,
}

impl Group {
    /// A member's stream is at its k-th call. Says whether all have come, and it is done.
    fn arrive(&self, number: usize, place: usize, part: Part) -> bool {
        if self.ends_at.is_some_and(|end| number >= end) {
            return false;
        }
        if self.is_aborted.load(Ordering::SeqCst) {
            return true;
        }
        let mut calls = self.calls.lock().expect("calls");
        while calls.len() <= number {
            calls.push((vec![None; self.ranks], false));
        }
        let (parts, is_done) = &mut calls[number];
        parts[place] = Some(part);
        let parts: Vec<Part> = parts.iter().copied().flatten().collect();
        if parts.len() == self.ranks && !*is_done {
            perform(&parts);
            *is_done = true;
        }
        *is_done
    }
}

fn load(address: usize, count: usize) -> Vec<i64> {
    let from = std::ptr::with_exposed_provenance::<i64>(address);
    // SAFETY: the engine promised the memory to the call, and all members' streams are at it.
    (0..count).map(|at| unsafe { from.add(at).read_unaligned() }).collect()
}

fn store(address: usize, elements: &[i64]) {
    let to = std::ptr::with_exposed_provenance_mut::<i64>(address);
    for (at, element) in elements.iter().enumerate() {
        // SAFETY: as in `load`.
        unsafe { to.add(at).write_unaligned(*element) };
    }
}

fn perform(parts: &[Part]) {
    let (call, ..) = parts[0];
    assert!(parts.iter().all(|(other, ..)| *other == call), "members ask for different calls");
    assert_eq!(call.dtype, DataType::I64);
    let (count, root) = (call.count as usize, call.root as usize);
    let sum = |length: usize| {
        let mut sums = vec![0; length];
        for (_, from, _) in parts {
            sums.iter_mut().zip(load(*from, length)).for_each(|(sum, one)| *sum += one);
        }
        sums
    };
    let everywhere = |all: &[i64]| parts.iter().for_each(|(_, _, to)| store(*to, all));
    match call.collective {
        Collective::AllReduce => everywhere(&sum(count)),
        Collective::Reduce => store(parts[root].2, &sum(count)),
        Collective::Broadcast => everywhere(&load(parts[root].1, count)),
        Collective::AllGather => {
            let all: Vec<i64> = parts.iter().flat_map(|(_, from, _)| load(*from, count)).collect();
            everywhere(&all);
        }
        Collective::ReduceScatter => {
            let sums = sum(count * parts.len());
            for ((_, _, to), own) in parts.iter().zip(sums.chunks(count)) {
                store(*to, own);
            }
        }
        other => panic!("{other} is no part of an all-reduce"),
    }
}

/// A library on a late card.
struct LateLibrary {
    name: String,
    group: Arc<Group>,
    place: usize,
    card: Arc<LateCard>,
    device: Arc<NativeDevice>,
    issued: Mutex<usize>,
}

impl NativeIsland for LateLibrary {
    fn name(&self) -> &str {
        &self.name
    }
    unsafe fn call(&self, call: &IslandCall, operands: &Operands, stream: u64) -> Result<()> {
        let mut issued = self.issued.lock().expect("the count");
        let (number, place, group, call) = (*issued, self.place, Arc::clone(&self.group), *call);
        *issued += 1;
        let near = |far: usize| far & (FAR_AWAY - 1);
        let (source, destination) = (operands.sent.address, operands.received.address);
        // As makers' libraries want it.
        assert!(source.addr().is_multiple_of(8) && destination.addr().is_multiple_of(8));
        let part = (call, near(source.addr()), near(destination.addr()));
        let (reads, writes) = lengths(&call, place, group.ranks);
        let range = |start: usize, count: usize| -> Range<usize> {
            if count == 0 { 0..0 } else { start..start + 8 * count }
        };
        let (from, to) = (range(part.1, reads), range(part.2, writes));
        self.card.native(stream, to, from, move || group.arrive(number, place, part));
        Ok(())
    }
    fn async_error(&self) -> Result<()> {
        Ok(())
    }
    fn abort(&self) -> Result<()> {
        self.group.is_aborted.store(true, Ordering::SeqCst);
        Ok(())
    }
    fn device(&self) -> &Arc<NativeDevice> {
        &self.device
    }
}

/// How many elements a member reads and writes.
fn lengths(call: &IslandCall, place: usize, ranks: usize) -> (usize, usize) {
    let count = call.count as usize;
    let at_root = if call.root as usize == place { count } else { 0 };
    match call.collective {
        Collective::Reduce => (count, at_root),
        Collective::Broadcast => (at_root, count),
        Collective::AllGather => (count, count * ranks),
        Collective::ReduceScatter => (count * ranks, count),
        _ => (count, count),
    }
}

/// Ranks on late cards; the devices of the libraries, by rank. `ends_at` as in [`Group`].
fn ranks(
    algorithm: Algorithm,
    count: u32,
    seed: u64,
    ends_at: Option<usize>,
) -> (Ranks, Vec<Arc<NativeDevice>>) {
    let card = |rank: u64| LateCard::new(seed + rank, Duration::from_micros(10));
    let cards = (0..u64::from(count)).map(card).collect();
    let groups: Vec<(Vec<u32>, Arc<Group>)> = members(algorithm, count)
        .into_iter()
        .map(|ranks| {
            let (calls, is_aborted) = (Mutex::default(), AtomicBool::new(false));
            let group = Group { ranks: ranks.len(), calls, is_aborted, ends_at };
            (ranks, Arc::new(group))
        })
        .collect();
    let mut devices = Vec::new();
    let ranks = ranks_with_native(cards, EngineOptions::default(), |rank, card| {
        let device = NativeDevice::new(&format!("late:{rank}"));
        devices.push(Arc::clone(&device));
        let (ranks, group) = groups.iter().find(|(ranks, _)| ranks.contains(&rank))?;
        Some(Arc::new(LateLibrary {
            name: format!("late 1.0 on ranks {ranks:?}"),
            group: Arc::clone(group),
            place: ranks.iter().position(|one| *one == rank)?,
            card: Arc::clone(card),
            device,
            issued: Mutex::new(0),
        }))
    });
    (ranks, devices)
}

/// Lengths with and without a rest, shorter than the islands, and of many chunks; in place and not.
#[test]
fn native_steps_on_two_islands_of_late_cards_are_right() {
    for (algorithm, count, seed) in [
        (Algorithm::Native, 3, 1),
        (Algorithm::Islands, 4, 2),
        (Algorithm::Islands, 5, 3),
        (Algorithm::Islands, 7, 4),
    ] {
        let (ranks, devices) = ranks(algorithm, count, 100 * seed, None);
        let mut sequence = 0;
        for elements in [1, 3, 64, 133, 1001] {
            for in_place in [false, true] {
                let call = Call { algorithm, count: elements, in_place, sequence, ..ALL_REDUCE };
                ranks.must_be_right(&call);
                sequence += 1;
            }
        }
        let native: Vec<u64> =
            ranks.ranks.iter().map(|rank| rank.engine.counters().native_calls()).collect();
        let members = members(algorithm, count).concat();
        for (rank, calls) in native.iter().enumerate() {
            assert_eq!(*calls > 0, members.contains(&(rank as u32)), "{native:?}");
        }
        assert!(devices.iter().all(|device| device.why_given_up().is_none()));
    }
}

/// A library that stops in the middle of an operation: every rank of its island runs out of time and names it,
/// nothing of the operation is freed as long as it may be touched, and the devices' library is given up.
#[test]
fn a_library_that_stops_in_the_middle_is_named_and_left() {
    let (ranks, devices) = ranks(Algorithm::Islands, 5, 1000, Some(3));
    let call = Call {
        algorithm: Algorithm::Islands,
        count: 1001,
        timeout: Duration::from_secs(1),
        ..ALL_REDUCE
    };
    // There is no control plane here that would tell one rank of another's failure.
    let outcomes = ranks.run(&call);
    for (rank, (outcome, _)) in outcomes.iter().enumerate() {
        let error = outcome.as_ref().expect_err("the library stops");
        assert_eq!(error.kind(), ErrorKind::Timeout, "rank {rank}: {error}");
        if rank < 4 {
            let told = error.message();
            assert!(told.contains("late 1.0 on ranks"), "{told}");
            let why = devices[rank].why_given_up().expect("it does not come to rest");
            assert!(why.contains("did not come to rest"), "{why}");
        }
    }
    for rank in &ranks.ranks {
        assert_eq!(rank.card.violations(), Vec::<String>::new());
    }
    let left: Vec<usize> = ranks.ranks.iter().map(|rank| rank.card.allocated_bytes()).collect();
    drop(ranks.ranks.into_iter().map(|rank| (rank.engine, rank.pool)).collect::<Vec<_>>());
    assert!(left.iter().all(|bytes| *bytes > 0), "{left:?}");
}

/// Elements that lie half an element further, between guards.
fn shifted(elements: &[i64]) -> Vec<i64> {
    let bytes = elements.iter().flat_map(|one| one.to_ne_bytes());
    let bytes: Vec<u8> = [7; 4].into_iter().chain(bytes).chain([7; 4]).collect();
    let whole = bytes.chunks_exact(8).map(|one| i64::from_ne_bytes(one.try_into().expect("8")));
    whole.collect()
}

/// Buffers that begin inside an element come to the library as natural ones, through memory that was there
/// before the call was under way: a card's allocation may wait for what waits for the call.
#[test]
fn buffers_anywhere_are_moved_through_memory_that_was_prepared() {
    for (algorithm, count, seed) in [(Algorithm::Native, 3, 20), (Algorithm::Islands, 4, 21)] {
        let (ranks, _) = ranks(algorithm, count, 100 * seed, None);
        for (sequence, elements) in [(0, 1001), (1, 7), (2, 2003)] {
            let call = Call { algorithm, count: elements, sequence, ..ALL_REDUCE };
            std::thread::scope(|scope| {
                for (rank, at) in ranks.ranks.iter().zip(0..) {
                    scope.spawn(move || {
                        let mine: Vec<i64> =
                            (0..elements as i64).map(|one| one + i64::from(at)).collect();
                        let image = shifted(&mine);
                        let (from, to) = (rank.card.memory(&image), rank.card.memory(&image));
                        let request = OperationRequest {
                            send: from.wrapping_add(4),
                            receive: to.wrapping_add(4),
                            ..request((at, count), &call)
                        };
                        let operation = submit_request(&rank.engine, request).expect("accepted");
                        rank.engine.wait(&operation, None).expect("done");
                        let sum = |one: i64| (0..i64::from(count)).map(|rank| one + rank).sum();
                        let sums: Vec<i64> = (0..elements as i64).map(sum).collect();
                        assert_eq!(rank.card.read(to, image.len()), shifted(&sums));
                        assert_eq!(rank.card.read(from, image.len()), image);
                        assert_eq!(rank.card.violations(), Vec::<String>::new());
                        assert_eq!(rank.card.allocated_by_drivers(), 0, "{algorithm}");
                    });
                }
            });
        }
    }
}
