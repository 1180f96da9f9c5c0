//! Proves that the interpreter can object: right schedules are broken in every way that this file
//! knows, one at a time, and each break must be noticed.

use std::collections::HashSet;
use std::sync::Arc;

use iccl_plugin_api::tables::{CollectiveSupport, collectives_flag};
use iccl_plugin_api::types::{Collective, DataType, RedOp};

use super::super::types::{Buffer, Finish, IslandCall, Schedule, Slice, Step, StepKind};
use super::super::{Algorithm, Block, Counts, Island, Islands, NativeRules, Request, compile};
use super::{Buffering, Fault, Options, interpret};
use crate::topology::NativeAbilities;

/// Small operations that use every algorithm, with several chunks, in and out of place. The number of
/// ranks is a power of two where the gate has no message to spare.
fn operations() -> Vec<Vec<Schedule>> {
    let mut operations = Vec::new();
    for algorithm in Algorithm::ALL {
        for collective in algorithm.facts().collectives {
            if matches!(collective, Collective::Send | Collective::Recv) {
                continue;
            }
            // The first collective of each algorithm more thoroughly than those that are alike.
            let thorough = collective == &algorithm.facts().collectives[0];
            for ranks in if thorough { 2..5 } else { 3..4 } {
                for in_place in [false, true] {
                    let in_place = in_place && *collective != Collective::AllToAllV;
                    let whole = matches!(
                        collective,
                        Collective::AllReduce | Collective::Reduce | Collective::Broadcast
                    );
                    let request = Request {
                        collective: *collective,
                        dtype: DataType::I32,
                        op: RedOp::Sum,
                        count: if whole { 19 } else { 5 },
                        root: 1,
                        rank: 0,
                        ranks,
                        in_place,
                        algorithm: *algorithm,
                        chunk_bytes: 4,
                        counts: None,
                        islands: match algorithm {
                            Algorithm::Native => Some(one_island(ranks)),
                            Algorithm::Islands => Some(two_islands(ranks)),
                            _ => None,
                        },
                    };
                    if algorithm.refusal(&request).is_some() {
                        continue;
                    }
                    operations.push(compile_all(&request));
                    if collective.reduces() && ranks == 3 {
                        let op = RedOp::PreMulSum;
                        operations.push(compile_all(&Request { op, ..request }));
                    }
                }
            }
        }
    }
    assert_eq!(operations.len(), 11 * 3 * 2 + 30 * 2 + 18 * 2);
    operations
}

/// All ranks on the island of a library that can do everything.
fn one_island(ranks: u32) -> Arc<Islands> {
    islands_of(ranks, |_| true)
}

/// The ranks with even and those with odd numbers on an island each; two ranks on one.
fn two_islands(ranks: u32) -> Arc<Islands> {
    islands_of(ranks, |rank| ranks == 2 || rank % 2 == 0)
}

fn islands_of(ranks: u32, is_on_first: impl Fn(u32) -> bool) -> Arc<Islands> {
    let support: Vec<CollectiveSupport> = Collective::ALL
        .iter()
        .map(|one| CollectiveSupport::new(*one, DataType::ALL, RedOp::ALL))
        .collect();
    let abilities = NativeAbilities::new(collectives_flag::IN_PLACE, &support);
    let island = |first| Island {
        library: "every 1.0".into(),
        ranks: (0..ranks).filter(|rank| is_on_first(*rank) == first).collect(),
        abilities: abilities.clone(),
    };
    Arc::new(Islands::new(ranks, [island(true), island(false)], NativeRules::default()))
}

/// The counts of a vector form, as `rank` knows them: blocks of different lengths, one of them empty,
/// with gaps, not in the order of the ranks.
fn counts(collective: Collective, rank: u32, ranks: u32, root: u32) -> Option<Arc<Counts>> {
    let blocks = || -> Vec<Block> {
        let first = |rank| u64::from(ranks - rank) * 9;
        (0..ranks).map(|rank| Block { first: first(rank), count: length(rank) }).collect()
    };
    let on_root = || if rank == root { blocks() } else { Vec::new() };
    Some(Arc::new(match collective {
        Collective::AllGatherV => Counts::all_gather_v(blocks()),
        Collective::ReduceScatterV => Counts::reduce_scatter_v(blocks()),
        Collective::GatherV => Counts::gather_v(length(rank), on_root()),
        Collective::ScatterV => Counts::scatter_v(on_root(), length(rank)),
        Collective::AllToAllV => {
            let sent = vec![length(rank); ranks as usize];
            Counts::all_to_all_v(Counts::packed(&sent), blocks())
        }
        _ => return None,
    }))
}

/// How many elements the block of a rank has.
fn length(rank: u32) -> u64 {
    [7, 0, 3, 8][rank as usize % 4]
}

fn compile_all(request: &Request) -> Vec<Schedule> {
    let Request { collective, ranks, root, .. } = *request;
    let of_rank = |rank| {
        let counts = counts(collective, rank, ranks, root);
        let knows_all = matches!(collective, Collective::AllGatherV | Collective::ReduceScatterV);
        let count = match &counts {
            None => request.count,
            Some(counts) if knows_all => counts.total().unwrap_or(0),
            Some(_) => 0,
        };
        compile(&Request { count, rank, counts, ..request.clone() }).unwrap()
    };
    (0..ranks).map(of_rank).collect()
}

fn fault(schedules: &[Schedule], buffering: Buffering) -> Option<Fault> {
    (0..3).find_map(|seed| {
        interpret(schedules, Options { buffering, seed })
            .and_then(|mut outcome| outcome.verify())
            .err()
    })
}

/// Requires that `schedules`, broken as `how` says, are objected to.
fn require_objection(schedules: &[Schedule], how: &str) -> Fault {
    fault(schedules, Buffering::Rendezvous).unwrap_or_else(|| {
        let Schedule { algorithm, ranks, in_place, .. } = schedules[0];
        panic!("{algorithm} on {ranks} ranks, in place {in_place}: nobody noticed {how}")
    })
}

/// The dependencies of each step, to be changed.
fn dependencies(schedule: &Schedule) -> Vec<Vec<u32>> {
    schedule.steps.iter().map(|step| schedule.dependencies(step).to_vec()).collect()
}

fn with_dependencies(schedule: &Schedule, dependencies: &[Vec<u32>]) -> Schedule {
    let mut changed = schedule.clone();
    changed.dependency_list.clear();
    for (step, list) in changed.steps.iter_mut().zip(dependencies) {
        let start = changed.dependency_list.len() as u32;
        changed.dependency_list.extend(list);
        step.dependencies = start..changed.dependency_list.len() as u32;
    }
    changed
}

/// Without step `removed`; what depended on it depends on what it depended on.
fn without_step(schedule: &Schedule, removed: usize) -> Schedule {
    let mut lists = dependencies(schedule);
    let inherited = lists.remove(removed);
    for list in &mut lists {
        if list.contains(&(removed as u32)) {
            list.extend(&inherited);
        }
        list.retain(|other| *other != removed as u32);
        for other in list.iter_mut() {
            *other -= u32::from(*other > removed as u32);
        }
    }
    let mut changed = schedule.clone();
    changed.steps.remove(removed);
    // Messages stay numbered without gaps, as if the step had never been there.
    let removed = &schedule.steps[removed].kind;
    for step in &mut changed.steps {
        match (&mut step.kind, removed) {
            (
                StepKind::Send { peer, index, .. },
                StepKind::Send { peer: other, index: gone, .. },
            )
            | (
                StepKind::Recv { peer, index, .. },
                StepKind::Recv { peer: other, index: gone, .. },
            ) if peer == other && *index > *gone => *index -= 1,
            _ => {}
        }
    }
    with_dependencies(&changed, &lists)
}

/// Whether the step is reached from another dependency of the same list.
fn implied(lists: &[Vec<u32>], list: &[u32], dropped: u32) -> bool {
    let mut open: Vec<u32> = list.iter().copied().filter(|other| *other != dropped).collect();
    let mut seen = HashSet::new();
    while let Some(step) = open.pop() {
        if step == dropped {
            return true;
        }
        if seen.insert(step) {
            open.extend(&lists[step as usize]);
        }
    }
    false
}

#[test]
fn unbroken_operations_pass() {
    for schedules in operations() {
        for buffering in [Buffering::Rendezvous, Buffering::Unbounded] {
            assert_eq!(fault(&schedules, buffering), None);
        }
    }
}

#[test]
fn every_dropped_dependency_is_noticed() {
    let mut dropped = 0;
    for mut schedules in operations() {
        for place in 0..schedules.len() {
            let whole = schedules[place].clone();
            let lists = dependencies(&whole);
            for (step, list) in lists.iter().enumerate() {
                for dependency in list {
                    // On 3 ranks the gate tells some fingerprints twice.
                    let gate = matches!(
                        whole.steps[step].kind,
                        StepKind::GateSend { .. } | StepKind::GateRecv { .. }
                    );
                    if implied(&lists, list, *dependency) || (gate && whole.ranks == 3) {
                        continue;
                    }
                    let mut fewer = lists.clone();
                    fewer[step].retain(|other| other != dependency);
                    schedules[place] = with_dependencies(&whole, &fewer);
                    let how = format!("that step {step} no longer waits for step {dependency}");
                    require_objection(&schedules, &how);
                    dropped += 1;
                }
            }
            schedules[place] = whole;
        }
    }
    assert!(dropped > 2000, "only {dropped} dependencies were dropped");
}

#[test]
fn every_dropped_step_is_noticed() {
    for mut schedules in operations() {
        for place in 0..schedules.len() {
            let whole = schedules[place].clone();
            for step in 0..whole.steps.len() {
                schedules[place] = without_step(&whole, step);
                schedules[place].gated = has_gate(&schedules[place]);
                require_objection(&schedules, &format!("that step {step} is gone"));
            }
            schedules[place] = whole;
        }
    }
}

fn has_gate(schedule: &Schedule) -> bool {
    schedule.steps.iter().any(|step| matches!(step.kind, StepKind::GateRecv { .. }))
}

/// Sender and receiver agree on leaving a message out, so no count and no number tells.
#[test]
fn every_message_dropped_on_both_sides_is_noticed() {
    let mut dropped = 0;
    for schedules in operations() {
        for place in 0..schedules.len() {
            for (step, Step { kind, .. }) in schedules[place].steps.iter().enumerate() {
                let StepKind::Send { peer, index, .. } = kind else { continue };
                let mut fewer = schedules.clone();
                fewer[place] = without_step(&schedules[place], step);
                let from = place as u32;
                let receive = schedules[*peer as usize].steps.iter().position(|step| {
                    matches!(&step.kind, StepKind::Recv { peer, index: other, .. }
                        if *peer == from && other == index)
                });
                fewer[*peer as usize] =
                    without_step(&schedules[*peer as usize], receive.expect("a receive"));
                require_objection(&fewer, &format!("that message {index} to {peer} is gone"));
                dropped += 1;
            }
        }
    }
    assert!(dropped > 1000, "only {dropped} messages were dropped");
}

/// How many slices are operands of reductions.
fn operands(schedule: &Schedule) -> usize {
    let reduces = |step: &&Step| matches!(step.kind, StepKind::Reduce { .. });
    schedule.steps.iter().filter(reduces).map(|step| schedule.reads(&step.kind).len()).sum()
}

/// The slices of a schedule, operands of reductions first.
fn slices(schedule: &mut Schedule) -> Vec<&mut Slice> {
    let mut of_reductions = vec![false; schedule.slices.len()];
    for step in &schedule.steps {
        if let StepKind::Reduce { sources, .. } = &step.kind {
            of_reductions[sources.start as usize..sources.end as usize].fill(true);
        }
    }
    let numbered = schedule.slices.iter_mut().enumerate();
    let (first, others): (Vec<_>, Vec<_>) =
        numbered.partition(|(number, _)| of_reductions[*number]);
    let mut slices: Vec<&mut Slice> =
        first.into_iter().chain(others).map(|(_, slice)| slice).collect();
    for step in &mut schedule.steps {
        match &mut step.kind {
            StepKind::Send { source, .. } => slices.push(source),
            StepKind::Recv { destination, .. } | StepKind::Reduce { destination, .. } => {
                slices.push(destination);
            }
            StepKind::Copy { source, destination } | StepKind::Scale { source, destination } => {
                slices.extend([source, destination]);
            }
            StepKind::Native { .. } | StepKind::GateSend { .. } | StepKind::GateRecv { .. } => {}
        }
    }
    slices
}

#[test]
fn every_swap_of_neighbouring_slices_is_noticed() {
    for mut schedules in operations() {
        // Around a ring it does not matter which of the two operands comes first.
        let any_order = !schedules[0].algorithm.facts().rank_order;
        for place in [0, schedules.len() - 1] {
            let whole = schedules[place].clone();
            let count = slices(&mut whole.clone()).len();
            let operands = operands(&whole);
            let from = if any_order { operands } else { 0 };
            for first in from..count.saturating_sub(1) {
                let mut changed = whole.clone();
                let mut all = slices(&mut changed);
                let (left, right) = all.split_at_mut(first + 1);
                // In place, two names of the same bytes are no difference.
                let same = |left: Slice, right: Slice| {
                    let named = |slice: Slice| match slice.buffer {
                        Buffer::Send if whole.in_place => Slice { buffer: Buffer::Recv, ..slice },
                        _ => slice,
                    };
                    named(left) == named(right)
                };
                if same(*left[first], *right[0]) {
                    continue;
                }
                std::mem::swap(left[first], right[0]);
                schedules[place] = changed;
                require_objection(&schedules, &format!("that slices {first} and next are swapped"));
            }
            schedules[place] = whole;
        }
    }
}

/// What is done to a native call.
type ChangeOfCall = fn(&mut IslandCall);

/// What is done to a slice.
type Change = fn(&mut Slice);

#[test]
fn every_moved_or_shortened_slice_is_noticed() {
    for mut schedules in operations().into_iter().filter(|schedules| schedules.len() == 3) {
        for place in [0, 2] {
            let whole = schedules[place].clone();
            for index in 0..slices(&mut whole.clone()).len() {
                // An empty slice is nowhere.
                if slices(&mut whole.clone())[index].bytes == 0 {
                    continue;
                }
                let changes: [(&str, Change); 4] = [
                    ("moved up by an element", |slice| slice.offset += 4),
                    ("moved up by a byte", |slice| slice.offset += 1),
                    ("shortened by an element", |slice| slice.bytes -= 4),
                    ("moved far beyond", |slice| slice.offset = u64::MAX - 3),
                ];
                for (how, change) in changes {
                    let mut changed = whole.clone();
                    change(slices(&mut changed)[index]);
                    schedules[place] = changed;
                    require_objection(&schedules, &format!("that slice {index} is {how}"));
                }
            }
            schedules[place] = whole;
        }
    }
}

/// B001, B003: AVG that comes back as SUM, or is divided by the wrong number, or twice.
#[test]
fn b001_avg_that_is_no_avg_is_noticed() {
    for algorithm in [Algorithm::Direct, Algorithm::Owner] {
        let schedules = compile_all(&Request {
            collective: Collective::AllReduce,
            dtype: DataType::F32,
            op: RedOp::Avg,
            count: 7,
            root: 0,
            rank: 0,
            ranks: 3,
            in_place: false,
            algorithm,
            chunk_bytes: 8,
            counts: None,
            islands: None,
        });
        assert_eq!(fault(&schedules, Buffering::Rendezvous), None);
        for wrong in [Finish::None, Finish::DivideByRanks(2)] {
            let mut changed = schedules.clone();
            for schedule in &mut changed {
                for step in &mut schedule.steps {
                    if let StepKind::Reduce { finish, .. } = &mut step.kind {
                        *finish = wrong;
                    }
                }
            }
            let fault = require_objection(&changed, "that the mean is no mean");
            assert!(matches!(fault, Fault::WrongResult { .. }), "{fault}");
        }
        let mut changed = schedules.clone();
        for schedule in &mut changed {
            schedule.op = RedOp::Sum;
        }
        require_objection(&changed, "that a sum is divided");
    }
}

/// B034: contributions that are not multiplied, are multiplied though nobody asked, or twice.
#[test]
fn b034_products_that_are_none_are_noticed() {
    for algorithm in [Algorithm::Direct, Algorithm::Owner, Algorithm::Ring] {
        let schedules = compile_all(&Request {
            collective: Collective::AllReduce,
            dtype: DataType::F32,
            op: RedOp::PreMulSum,
            count: 7,
            root: 0,
            rank: 0,
            ranks: 3,
            in_place: true,
            algorithm,
            chunk_bytes: 8,
            counts: None,
            islands: None,
        });
        assert_eq!(fault(&schedules, Buffering::Rendezvous), None);
        let mut plain = schedules.clone();
        let mut twice = schedules.clone();
        for (plain, twice) in plain.iter_mut().zip(&mut twice) {
            for (plain, twice) in plain.steps.iter_mut().zip(&mut twice.steps) {
                match plain.kind.clone() {
                    StepKind::Scale { source, destination } => {
                        plain.kind = StepKind::Copy { source, destination };
                    }
                    StepKind::Copy { source, destination } => {
                        twice.kind = StepKind::Scale { source, destination };
                    }
                    _ => {}
                }
            }
        }
        require_objection(&plain, "that the contributions are added as they are");
        if twice != schedules {
            require_objection(&twice, "that products are multiplied again");
        }
        let mut changed = schedules;
        changed.iter_mut().for_each(|schedule| schedule.op = RedOp::Sum);
        require_objection(&changed, "that a plain sum multiplies");
    }
}

/// Ranks of an island that do not make the same native calls, or make them before all are known to agree.
#[test]
fn native_calls_that_differ_within_an_island_are_noticed() {
    let schedules = compile_all(&Request {
        collective: Collective::AllReduce,
        dtype: DataType::F32,
        op: RedOp::Sum,
        count: 7,
        root: 0,
        rank: 0,
        ranks: 4,
        in_place: false,
        algorithm: Algorithm::Native,
        chunk_bytes: 8,
        counts: None,
        islands: Some(one_island(4)),
    });
    assert_eq!(fault(&schedules, Buffering::Rendezvous), None);
    let changes: [(&str, ChangeOfCall); 3] = [
        ("another operation", |call| call.op = Some(RedOp::Max)),
        ("another type of the same length", |call| call.dtype = DataType::I32),
        ("another root", |call| call.root = 1),
    ];
    for (what, change) in changes {
        let mut changed = schedules.clone();
        for step in &mut changed[2].steps {
            if let StepKind::Native { call, .. } = &mut step.kind {
                change(call);
            }
        }
        let fault = require_objection(&changed, what);
        assert!(
            matches!(fault, Fault::NativeDisagreement { first: 0, second: 2, .. }),
            "{what}: {fault}"
        );
    }
    let mut fewer = schedules.clone();
    let last = fewer[1].steps.len() - 1;
    fewer[1] = without_step(&fewer[1], last);
    let fault = require_objection(&fewer, "a call that one rank does not make");
    assert_eq!(fault.to_string(), "rank 0 makes 1 native calls on its island, rank 1 0");
    // The library's mean is one over all ranks, or the caller asked for another.
    let mut mean = schedules.clone();
    for step in mean.iter_mut().flat_map(|schedule| &mut schedule.steps) {
        if let StepKind::Native { call, .. } = &mut step.kind {
            call.op = Some(RedOp::Avg);
        }
    }
    require_objection(&mean, "a mean that nobody asked for");
    let mut early = schedules;
    for schedule in &mut early {
        let mut lists = dependencies(schedule);
        lists.last_mut().expect("a native call").clear();
        *schedule = with_dependencies(schedule, &lists);
    }
    let fault = require_objection(&early, "a native call before the gate");
    assert!(matches!(fault, Fault::BeforeAgreement { .. }), "{fault}");
}

/// Sends that wait for their receivers, each rank's receive behind its send.
#[test]
fn a_circle_of_rendezvous_is_a_deadlock_and_says_where() {
    let mut schedules = compile_all(&Request {
        collective: Collective::AllReduce,
        dtype: DataType::I32,
        op: RedOp::Sum,
        count: 4,
        root: 0,
        rank: 0,
        ranks: 2,
        in_place: false,
        algorithm: Algorithm::Direct,
        chunk_bytes: 64,
        counts: None,
        islands: None,
    });
    for schedule in &mut schedules {
        schedule.steps.swap(0, 1);
        assert!(matches!(schedule.steps[0].kind, StepKind::Send { .. }));
        *schedule = with_dependencies(schedule, &[vec![], vec![0], vec![1]]);
    }
    assert_eq!(fault(&schedules, Buffering::Unbounded), None);
    let fault = fault(&schedules, Buffering::Rendezvous).expect("a deadlock");
    assert_eq!(
        fault.to_string(),
        "deadlock: rank 0 step 0 can never complete: rank 1 never comes to its step 1"
    );
}

#[test]
fn faults_name_both_sides() {
    let schedules = &operations()
        .into_iter()
        .find(|schedules| schedules[0].algorithm == Algorithm::Direct && schedules.len() == 3)
        .expect("direct on three ranks");

    // Two steps that race: the reduction no longer waits for the first receive.
    let mut changed = schedules.clone();
    let mut lists = dependencies(&changed[1]);
    let reduce = lists.len() - 1;
    lists[reduce].remove(0);
    changed[1] = with_dependencies(&changed[1], &lists);
    let fault = require_objection(&changed, "a race");
    assert_eq!(
        fault.to_string(),
        format!("rank 1: steps 0 and {reduce} race for byte 0 of Scratch")
    );

    // The two ends of a message disagree on where it belongs.
    let mut changed = schedules.clone();
    for step in &mut changed[2].steps {
        if let StepKind::Send { offset, .. } = &mut step.kind {
            *offset = 8;
        }
    }
    let fault = require_objection(&changed, "another offset");
    assert!(fault.to_string().contains("from rank 2"), "{fault}");
    assert!(
        fault.to_string().contains("offset is 8 at the sender and 0 at the receiver"),
        "{fault}"
    );
}
