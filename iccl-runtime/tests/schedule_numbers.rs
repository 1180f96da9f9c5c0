//! The proven expressions, computed with numbers: the cases that went wrong elsewhere.

use half::bf16;
use iccl_plugin_api::types::{Collective, DataType, RedOp};
use iccl_runtime::schedule::interpret::{Buffering, Options, interpret};
use iccl_runtime::schedule::{Algorithm, Finish, Request, Schedule, candidates, compile};

/// What each rank gets for `element`, for every algorithm that carries the request.
fn results<T>(
    request: &Request,
    element: u64,
    own: impl Fn(u32) -> T,
    combine: impl Fn(Vec<T>, Finish) -> T,
) -> Vec<(Algorithm, T)> {
    let mut results = Vec::new();
    for algorithm in candidates(Collective::AllReduce) {
        if algorithm.refusal(request).is_some() {
            continue;
        }
        let schedules: Vec<Schedule> = (0..request.ranks)
            .map(|rank| compile(&Request { rank, algorithm, ..request.clone() }).expect("legal"))
            .collect();
        let options = Options { buffering: Buffering::Rendezvous, seed: element };
        let mut outcome = interpret(&schedules, options).expect("sound");
        for rank in 0..request.ranks {
            let result = outcome.evaluate(rank, element, &own, &combine).expect("an element");
            results.push((algorithm, result));
        }
        assert!(outcome.evaluate(0, request.count, &own, &combine).is_none());
    }
    assert!(!results.is_empty());
    results
}

fn request(dtype: DataType, op: RedOp, count: u64, ranks: u32) -> Request {
    Request {
        collective: Collective::AllReduce,
        dtype,
        op,
        count,
        root: 0,
        rank: 0,
        ranks,
        in_place: false,
        algorithm: Algorithm::Direct,
        chunk_bytes: 256,
        counts: None,
        islands: None,
    }
}

/// A sum, divided where the step says so.
fn sum(operands: Vec<f64>, finish: Finish) -> f64 {
    let sum: f64 = operands.into_iter().sum();
    match finish {
        Finish::None => sum,
        Finish::DivideByRanks(ranks) => sum / f64::from(ranks),
    }
}

#[test]
fn b003_avg_is_divided_once_whatever_the_length() {
    for count in [1, 2, 3, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097] {
        let request = request(DataType::F32, RedOp::Avg, count, 4);
        for element in [0, count / 2, count - 1] {
            for (algorithm, mean) in results(&request, element, |rank| f64::from(rank + 1), sum) {
                assert!((mean - 2.5).abs() < f64::EPSILON, "{algorithm}, {count}: {mean}");
            }
        }
    }
}

#[test]
fn b004_avg_is_the_mean_over_ranks() {
    let own = |rank: u32| [1.0, 2.0, 9.0][rank as usize];
    for (algorithm, mean) in results(&request(DataType::F32, RedOp::Avg, 5, 3), 4, own, sum) {
        assert!((mean - 4.0).abs() < f64::EPSILON, "{algorithm}: {mean}");
    }
}

#[test]
fn b006_avg_divides_by_ranks_not_by_elements() {
    for (_, mean) in results(&request(DataType::I64, RedOp::Avg, 5, 2), 0, |_| 4.0, sum) {
        assert!((mean - 4.0).abs() < f64::EPSILON, "{mean}");
    }
}

#[test]
fn b011_small_terms_are_not_lost_on_the_way() {
    let own = |rank: u32| if rank == 0 { 256.0 } else { 1.0 };
    // As the kernels do: in a wider form, and rounded when the step stores its result.
    let round = |operands: Vec<f64>, finish| bf16::from_f64(sum(operands, finish)).to_f64();
    for (algorithm, result) in results(&request(DataType::Bf16, RedOp::Sum, 9, 3), 8, own, round) {
        assert!((result - 258.0).abs() < f64::EPSILON, "{algorithm}: {result}");
    }
}
