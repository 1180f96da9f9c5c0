//! Which algorithm is chosen, why, and what it is said to cost.

use std::sync::Arc;

use iccl_plugin_api::tables::CollectiveSupport;
use iccl_plugin_api::types::{Collective, DataType, RedOp};
use iccl_runtime::ErrorKind;
use iccl_runtime::schedule::{
    Algorithm, CostModel, Island, Islands, NativeRules, Request, Schedule, Slice, StepKind,
    Verdict, candidates, compile, cost, select,
};
use iccl_runtime::topology::NativeAbilities;

fn request(collective: Collective, op: RedOp, dtype: DataType, count: u64, ranks: u32) -> Request {
    Request {
        collective,
        dtype,
        op,
        count,
        root: 0,
        rank: 0,
        ranks,
        in_place: false,
        algorithm: Algorithm::Local,
        chunk_bytes: 1 << 18,
        counts: None,
        islands: None,
    }
}

/// All ranks on the island of a library that can do everything.
fn one_island(ranks: u32) -> Arc<Islands> {
    let support: Vec<CollectiveSupport> = Collective::ALL
        .iter()
        .map(|one| CollectiveSupport::new(*one, DataType::ALL, RedOp::ALL))
        .collect();
    let abilities = NativeAbilities::new(0, &support);
    let island = Island { library: "every 1.0".into(), ranks: (0..ranks).collect(), abilities };
    let rules = NativeRules { library_rounds: true, deterministic: false };
    Arc::new(Islands::new(ranks, [island], rules))
}

/// All whose request is a count.
const COLLECTIVES: [Collective; 8] = [
    Collective::AllReduce,
    Collective::Reduce,
    Collective::Broadcast,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
];

fn chosen(request: &Request) -> Algorithm {
    select(request, None, true, &CostModel::default()).expect("there is one").algorithm
}

#[test]
fn b002_avg_picks_only_algorithms_that_declare_it() {
    for ranks in [1, 2, 3, 8, 64] {
        for count in [0, 1, 1000, 1 << 24] {
            for dtype in [DataType::F32, DataType::I64, DataType::Bf16] {
                let request = request(Collective::AllReduce, RedOp::Avg, dtype, count, ranks);
                let choice = select(&request, None, false, &CostModel::default()).expect("one");
                assert!(choice.algorithm.facts().carries_avg, "{choice:?}");
                for (algorithm, verdict) in choice.considered {
                    let refused = matches!(verdict, Verdict::Refused(_));
                    assert!(refused || algorithm.facts().carries_avg, "{algorithm} {request}");
                }
            }
        }
    }
}

/// Forcing an algorithm either gives exactly that one or an error that names both sides and why.
#[test]
fn b002_a_forced_algorithm_is_kept_or_refused_with_the_reason() {
    for algorithm in candidates(Collective::AllReduce).skip(1) {
        for op in [RedOp::Sum, RedOp::Avg] {
            let request = Request {
                islands: Some(one_island(3)),
                ..request(Collective::AllReduce, op, DataType::F32, 10, 3)
            };
            let result = select(&request, Some(algorithm), false, &CostModel::default());
            if op == RedOp::Avg && !algorithm.facts().carries_avg {
                let error = result.expect_err("it cannot carry avg");
                assert_eq!(error.kind(), ErrorKind::NotSupported);
                let text = error.to_string();
                assert!(text.contains(algorithm.name()), "{text}");
                assert!(text.contains("all_reduce avg of 10 f32 on 3 ranks"), "{text}");
                assert!(text.contains("does not declare avg"), "{text}");
                // The compiler keeps the rule, too.
                assert!(compile(&Request { algorithm, ..request.clone() }).is_err());
            } else {
                assert_eq!(result.expect("it can").algorithm, algorithm);
                assert!(compile(&Request { algorithm, ..request.clone() }).is_ok());
            }
        }
    }
    let barrier = request(Collective::Barrier, RedOp::Sum, DataType::U8, 0, 3);
    let error = select(&barrier, Some(Algorithm::Ring), false, &CostModel::default());
    assert!(error.unwrap_err().to_string().contains("it is an algorithm for all_reduce"));
}

/// On one rank every algorithm of the collective can be forced, avg included, and local is chosen.
#[test]
fn one_rank_takes_any_algorithm() {
    let request = request(Collective::AllReduce, RedOp::Avg, DataType::F16, 10, 1);
    assert_eq!(chosen(&request), Algorithm::Local);
    for algorithm in candidates(Collective::AllReduce) {
        let choice = select(&request, Some(algorithm), false, &CostModel::default());
        assert_eq!(choice.expect("any").algorithm, algorithm);
        let schedule = compile(&Request { algorithm, ..request.clone() }).expect("any");
        assert!(
            matches!(schedule.steps[..], [ref step] if matches!(step.kind, StepKind::Copy { .. }))
        );
        let in_place = Request { algorithm, in_place: true, ..request.clone() };
        assert!(compile(&in_place).expect("any").steps.is_empty());
    }
}

/// B011: sums of narrow floats are never left to partial sums.
#[test]
fn b011_narrow_floats_are_rounded_once() {
    for dtype in [DataType::F16, DataType::Bf16] {
        for (count, ranks) in [(1, 64), (1 << 26, 8)] {
            for op in [RedOp::Sum, RedOp::Prod, RedOp::Avg] {
                let request = request(Collective::AllReduce, op, dtype, count, ranks);
                assert!(chosen(&request).facts().keeps_narrow_exact);
                for algorithm in [Algorithm::Ring, Algorithm::RecursiveDoubling] {
                    let error = select(&request, Some(algorithm), false, &CostModel::default());
                    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotSupported);
                }
            }
            // A maximum is never rounded.
            let max = request(Collective::AllReduce, RedOp::Max, dtype, count, ranks);
            assert_eq!(Algorithm::Ring.refusal(&max), None);
        }
    }
}

#[test]
fn short_vectors_take_few_rounds_and_long_ones_few_bytes() {
    let sum =
        |count, ranks| request(Collective::AllReduce, RedOp::Sum, DataType::F32, count, ranks);
    assert_eq!(chosen(&sum(2, 4)), Algorithm::Direct);
    assert_eq!(chosen(&sum(2, 256)), Algorithm::RecursiveDoubling);
    assert_eq!(chosen(&sum(1 << 24, 4)), Algorithm::Owner);
    let copy =
        |count, ranks| request(Collective::Broadcast, RedOp::Sum, DataType::F32, count, ranks);
    assert_eq!(chosen(&copy(2, 4)), Algorithm::Flat);
    assert_eq!(chosen(&copy(2, 256)), Algorithm::Binomial);
    assert_eq!(chosen(&copy(1 << 24, 8)), Algorithm::ScatterAllGather);
    assert_eq!(
        chosen(&request(Collective::Barrier, RedOp::Sum, DataType::U8, 0, 5)),
        Algorithm::Dissemination
    );
}

#[test]
fn the_reason_names_every_candidate() {
    let request = request(Collective::AllReduce, RedOp::Avg, DataType::F32, 1000, 4);
    let choice = select(&request, None, false, &CostModel::default()).expect("one");
    for algorithm in candidates(Collective::AllReduce).filter(|one| *one != choice.algorithm) {
        assert!(choice.reason.contains(algorithm.name()), "{}", choice.reason);
    }
    assert!(choice.reason.starts_with("cheapest at "), "{}", choice.reason);
    assert!(choice.reason.contains("ring not, as it does not declare avg"), "{}", choice.reason);
}

/// Nothing that is moved or reduced is left without an algorithm, on any number of ranks.
#[test]
fn every_collective_has_an_algorithm() {
    for collective in COLLECTIVES {
        for ranks in [1, 2, 3, 100] {
            let op = if collective.reduces() { RedOp::Avg } else { RedOp::Sum };
            for dtype in [DataType::Bf16, DataType::I64] {
                let request = request(collective, op, dtype, 1000, ranks);
                let choice = select(&request, None, true, &CostModel::default()).expect("one");
                assert_eq!(choice.algorithm == Algorithm::Local, ranks == 1, "{request}");
            }
        }
    }
}

#[test]
fn short_blocks_take_few_rounds_and_long_ones_few_peers() {
    let of = |collective, count, ranks| {
        chosen(&request(collective, RedOp::Sum, DataType::F32, count, ranks))
    };
    assert_eq!(of(Collective::AllGather, 2, 4), Algorithm::Direct);
    assert_eq!(of(Collective::AllGather, 2, 256), Algorithm::Bruck);
    assert_eq!(of(Collective::ReduceScatter, 2, 4), Algorithm::Direct);
    assert_eq!(of(Collective::Reduce, 2, 256), Algorithm::Binomial);
    assert_eq!(of(Collective::Reduce, 1 << 24, 8), Algorithm::Owner);
}

/// The counts of `cost` are those of the busiest rank's compiled schedule.
#[test]
fn costs_are_what_the_schedules_do() {
    let mut compared = 0;
    for collective in COLLECTIVES {
        for algorithm in candidates(collective).skip(1) {
            for ranks in [2, 3, 4, 5, 7, 8, 13, 16, 17] {
                for count in [0, 1, 2, 15, 16, 17, 31, 1000, 4096] {
                    for chunk_bytes in [64, 1 << 20] {
                        let request = Request {
                            algorithm,
                            chunk_bytes,
                            root: ranks / 2,
                            islands: Some(one_island(ranks)),
                            ..request(collective, RedOp::Sum, DataType::F32, count, ranks)
                        };
                        let schedules: Vec<Schedule> = (0..ranks)
                            .map(|rank| {
                                compile(&Request { rank, ..request.clone() }).expect("legal")
                            })
                            .collect();
                        let found = cost(algorithm, &request);
                        let loads = schedules.iter().map(load);
                        let busiest =
                            |pick: fn(&Load) -> u64| loads.clone().map(|l| pick(&l)).max();
                        let what = format!("{request} by {algorithm}");
                        let messages = busiest(|l| l.messages).expect("a rank");
                        if algorithm == Algorithm::Bruck {
                            // Whether wrapping around costs a message depends on the chunks.
                            let rounds = found.rounds;
                            assert!(
                                (messages..=messages + rounds).contains(&found.messages),
                                "{what}"
                            );
                        } else {
                            assert_eq!(found.messages, messages, "{what}");
                        }
                        assert_eq!(Some(found.bytes), busiest(|l| l.bytes), "{what}");
                        assert_eq!(Some(found.reduced_bytes), busiest(|l| l.reduced), "{what}");
                        assert_eq!(Some(found.native_calls), busiest(|l| l.native.0), "{what}");
                        assert_eq!(Some(found.native_bytes), busiest(|l| l.native.1), "{what}");
                        assert_eq!(Some(found.gate_rounds), busiest(|l| l.gates), "{what}");
                        // Below one element a slice, a chain can be shorter than usual.
                        if chunk_bytes == 1 << 20 && count >= u64::from(ranks) {
                            // Not every rank folds, and the longest chain may miss those that do;
                            // in its last round a rank may send no more than its own block.
                            let folds = !ranks.is_power_of_two()
                                && [Algorithm::RecursiveDoubling, Algorithm::Bruck]
                                    .contains(&algorithm);
                            let least = |rounds| rounds - u64::from(folds);
                            let chain = longest_chain(&schedules, false);
                            let all = found.latency_rounds();
                            assert!(
                                (least(found.rounds)..=found.rounds).contains(&chain),
                                "{what}"
                            );
                            let chain = longest_chain(&schedules, true);
                            assert!((least(all)..=all).contains(&chain), "{what}: {chain}, {all}");
                        }
                        compared += 1;
                    }
                }
            }
        }
    }
    assert_eq!(compared, 31 * 9 * 9 * 2);
}

struct Load {
    messages: u64,
    bytes: u64,
    reduced: u64,
    gates: u64,
    native: (u64, u64),
}

fn load(schedule: &Schedule) -> Load {
    let (mut sent, mut received) = ((0, 0), (0, 0));
    let (mut reduced, mut gates) = (0, 0);
    let mut native = (0, 0);
    for step in &schedule.steps {
        match &step.kind {
            StepKind::Send { source, .. } => sent = (sent.0 + 1, sent.1 + source.bytes),
            StepKind::Recv { destination, .. } => {
                received = (received.0 + 1, received.1 + destination.bytes);
            }
            StepKind::Reduce { .. } => {
                reduced += schedule.reads(&step.kind).iter().map(|slice| slice.bytes).sum::<u64>();
            }
            StepKind::GateSend { .. } => gates += 1,
            StepKind::Native { .. } => {
                let bytes = |slices: &[Slice]| slices.iter().map(|slice| slice.bytes).sum::<u64>();
                let longer =
                    bytes(schedule.reads(&step.kind)).max(bytes(schedule.writes(&step.kind)));
                native = (native.0 + 1, native.1 + longer);
            }
            StepKind::Copy { .. } | StepKind::Scale { .. } | StepKind::GateRecv { .. } => {}
        }
    }
    Load { messages: sent.0.max(received.0), bytes: sent.1.max(received.1), reduced, gates, native }
}

/// The longest chain of messages in which each waits for the one before, with those of the gate or
/// without: grows until nothing changes any more. The bytes of a message move once both sides are there.
fn longest_chain(schedules: &[Schedule], gates: bool) -> u64 {
    let mut ends: Vec<Vec<u64>> =
        schedules.iter().map(|schedule| vec![0; schedule.steps.len()]).collect();
    loop {
        let before = ends.clone();
        for (rank, schedule) in schedules.iter().enumerate() {
            for (index, step) in schedule.steps.iter().enumerate() {
                let start =
                    schedule.dependencies(step).iter().map(|other| ends[rank][*other as usize]);
                let start = start.max().unwrap_or(0);
                ends[rank][index] = match step.kind {
                    StepKind::Recv { peer, index: number, .. } => {
                        let sent = schedules[peer as usize].steps.iter().position(|step| {
                            matches!(step.kind, StepKind::Send { peer, index, .. }
                                if peer as usize == rank && index == number)
                        });
                        let sender = peer as usize;
                        start.max(ends[sender][sent.expect("it is sent")]) + 1
                    }
                    StepKind::GateRecv { peer, round } if gates => {
                        let sent = schedules[peer as usize].steps.iter().position(|step| {
                            matches!(step.kind, StepKind::GateSend { round: other, .. }
                                if round == other)
                        });
                        start.max(ends[peer as usize][sent.expect("it is sent")]) + 1
                    }
                    _ => start,
                };
            }
        }
        if ends == before {
            return ends.into_iter().flatten().max().unwrap_or(0);
        }
    }
}
