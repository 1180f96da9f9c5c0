//! Every algorithm on 1 to 17 ranks, odd counts, in and out of place, all kinds of roots: compiled
//! for all ranks, run by the interpreter in a random order, and proven.

use iccl_plugin_api::types::{Collective, DataType, RedOp};
use iccl_runtime::schedule::interpret::{Buffering, Options, interpret};
use iccl_runtime::schedule::{Algorithm, Request, Schedule, compile};

/// Types of every size, narrow floats included.
const DTYPES: [DataType; 5] =
    [DataType::U8, DataType::Bf16, DataType::F16, DataType::I32, DataType::F64];

/// The schedules of all ranks.
fn compile_all(request: &Request) -> Vec<Schedule> {
    (0..request.ranks)
        .map(|rank| compile(&Request { rank, ..request.clone() }).expect("the request is legal"))
        .collect()
}

/// As above, but every second rank does it the other way as to being in place.
fn compile_mixed(request: &Request) -> Vec<Schedule> {
    (0..request.ranks)
        .map(|rank| {
            let in_place = request.in_place != rank.is_multiple_of(2);
            compile(&Request { rank, in_place, ..request.clone() }).expect("the request is legal")
        })
        .collect()
}

/// Runs under the strictest buffering, every third time under the laxest as well, and verifies.
fn prove(schedules: &[Schedule], seed: u64) {
    let lax = seed.is_multiple_of(3).then_some(Buffering::Unbounded);
    for buffering in lax.into_iter().chain([Buffering::Rendezvous]) {
        let result = interpret(schedules, Options { buffering, seed })
            .and_then(|mut outcome| outcome.verify());
        if let Err(fault) = result {
            let Schedule { algorithm, ranks, count, dtype, op, root, in_place, .. } = schedules[0];
            panic!(
                "{algorithm}, {ranks} ranks, {count} {dtype}, op {op}, root {root}, \
                 in place {in_place}, {buffering:?}, seed {seed}: {fault}"
            );
        }
    }
}

fn counts(collective: Collective, ranks: u32) -> Vec<u64> {
    let ranks = u64::from(ranks);
    let mut counts = match collective {
        Collective::AllReduce | Collective::Reduce | Collective::Broadcast => {
            let mut counts = vec![0, 1, 2, 3, ranks - 1, ranks, ranks + 1, 31, 33, 1000];
            // Long vectors on many ranks take long.
            counts.retain(|count| ranks < 9 || ranks == 17 || *count < 1000);
            counts
        }
        // Every rank has a block of its own, so the number of ranks makes no difference.
        _ if ranks > 8 => vec![0, 1, 7, if ranks == 17 { 1000 } else { 31 }],
        _ => vec![0, 1, 2, 3, 31, 1000],
    };
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Proves the algorithm for all numbers of ranks, counts, roots, in and out of place; the types, ops
/// and lengths of messages take turns.
fn matrix(collective: Collective, algorithm: Algorithm, ops: &[RedOp], least: u64) {
    let (mut cells, mut turn) = (0, 0);
    for ranks in 1..=17 {
        let mut roots = vec![0, 1, ranks / 2, ranks - 1];
        roots.retain(|root| *root < if collective.has_root() { ranks } else { 1 });
        roots.sort_unstable();
        roots.dedup();
        for count in counts(collective, ranks) {
            // Where there are roots, the ops take turns, too.
            let each = if collective.has_root() { 1 } else { ops.len() };
            for (root, op) in roots.iter().flat_map(|root| (0..each).map(move |op| (*root, op))) {
                let op = ops[(op + turn / 3) % ops.len()];
                for in_place in [false, true] {
                    turn += 1;
                    // From one element a message to everything in one.
                    let shortest = if count > 100 { 128 } else { 1 };
                    let request = Request {
                        collective,
                        dtype: DTYPES[turn % DTYPES.len()],
                        op,
                        count,
                        root,
                        rank: 0,
                        ranks,
                        in_place,
                        algorithm,
                        chunk_bytes: [1, 16, 200, 1 << 20][turn / 5 % 4].max(shortest),
                        counts: None,
                        islands: None,
                    };
                    if algorithm.refusal(&request).is_none() {
                        cells += 1;
                        prove(&compile_all(&request), cells);
                        if cells.is_multiple_of(5) {
                            prove(&compile_mixed(&request), cells);
                        }
                    }
                }
            }
        }
    }
    assert!(cells > least, "only {cells} cells were legal");
}

const OPS: [RedOp; 4] = [RedOp::Sum, RedOp::Avg, RedOp::Max, RedOp::PreMulSum];

#[test]
fn b020_direct_all_reduce() {
    matrix(Collective::AllReduce, Algorithm::Direct, &OPS, 900);
}

#[test]
fn b020_owner_all_reduce() {
    matrix(Collective::AllReduce, Algorithm::Owner, &OPS, 900);
}

#[test]
fn b020_recursive_doubling_all_reduce() {
    matrix(Collective::AllReduce, Algorithm::RecursiveDoubling, &OPS, 500);
}

#[test]
fn b020_ring_all_reduce() {
    matrix(Collective::AllReduce, Algorithm::Ring, &OPS, 500);
}

#[test]
fn flat_broadcast() {
    matrix(Collective::Broadcast, Algorithm::Flat, &[RedOp::Sum], 900);
}

#[test]
fn binomial_broadcast() {
    matrix(Collective::Broadcast, Algorithm::Binomial, &[RedOp::Sum], 900);
}

#[test]
fn scatter_all_gather_broadcast() {
    matrix(Collective::Broadcast, Algorithm::ScatterAllGather, &[RedOp::Sum], 900);
}

const NONE: [RedOp; 1] = [RedOp::Sum];

#[test]
fn b020_direct_reduce() {
    matrix(Collective::Reduce, Algorithm::Direct, &OPS, 900);
}

#[test]
fn b020_owner_reduce() {
    matrix(Collective::Reduce, Algorithm::Owner, &OPS, 900);
}

#[test]
fn b020_binomial_reduce() {
    matrix(Collective::Reduce, Algorithm::Binomial, &OPS, 500);
}

#[test]
fn b021_direct_all_gather() {
    matrix(Collective::AllGather, Algorithm::Direct, &NONE, 150);
}

#[test]
fn b021_ring_all_gather() {
    matrix(Collective::AllGather, Algorithm::Ring, &NONE, 150);
}

#[test]
fn b021_bruck_all_gather() {
    matrix(Collective::AllGather, Algorithm::Bruck, &NONE, 150);
}

#[test]
fn b021_direct_reduce_scatter() {
    matrix(Collective::ReduceScatter, Algorithm::Direct, &OPS, 450);
}

#[test]
fn b021_ring_reduce_scatter() {
    matrix(Collective::ReduceScatter, Algorithm::Ring, &OPS, 200);
}

#[test]
fn b021_direct_gather() {
    matrix(Collective::Gather, Algorithm::Direct, &NONE, 400);
}

#[test]
fn b021_direct_scatter() {
    matrix(Collective::Scatter, Algorithm::Direct, &NONE, 400);
}

#[test]
fn direct_all_to_all() {
    matrix(Collective::AllToAll, Algorithm::Direct, &NONE, 150);
}

#[test]
fn barrier_hears_from_everyone() {
    for ranks in 1..=70 {
        let schedules = compile_all(&Request {
            collective: Collective::Barrier,
            dtype: DataType::U8,
            op: RedOp::Sum,
            count: 0,
            root: 0,
            rank: 0,
            ranks,
            in_place: false,
            algorithm: Algorithm::Dissemination,
            chunk_bytes: 1024,
            counts: None,
            islands: None,
        });
        let rounds = ranks.next_power_of_two().ilog2() as usize;
        assert!(schedules.iter().all(|schedule| schedule.steps.len() == 2 * rounds));
        prove(&schedules, u64::from(ranks));
    }
}

#[test]
fn send_meets_recv() {
    for count in [0, 1, 2, 31, 33, 1000] {
        for dtype in DTYPES {
            let send = Request {
                collective: Collective::Send,
                dtype,
                op: RedOp::Sum,
                count,
                root: 4,
                rank: 1,
                ranks: 5,
                in_place: false,
                algorithm: Algorithm::PointToPoint,
                chunk_bytes: 100,
                counts: None,
                islands: None,
            };
            let recv = Request { collective: Collective::Recv, root: 1, rank: 4, ..send.clone() };
            let schedules = [send, recv].map(|request| compile(&request).expect("legal"));
            // Even a message of no elements is heard of.
            assert!(!schedules[0].steps.is_empty());
            prove(&schedules, count);
        }
    }
}
