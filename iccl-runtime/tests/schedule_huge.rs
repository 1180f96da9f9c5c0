//! B025: vectors beyond 2^31 elements and 4 GiB, without their data; and requests that make no sense.

use iccl_plugin_api::types::{Collective, DataType, RedOp};
use iccl_runtime::ErrorKind;
use iccl_runtime::schedule::interpret::{Buffering, Options, interpret};
use iccl_runtime::schedule::{
    Algorithm, Buffer, Request, Schedule, Slice, StepKind, candidates, compile,
};

/// All whose request is a count, which is that of one rank's block for the last five.
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

const HUGE: [u64; 2] = [(1 << 31) + 17, 1 << 33];

fn request(collective: Collective, algorithm: Algorithm, count: u64, ranks: u32) -> Request {
    Request {
        collective,
        dtype: DataType::I64,
        op: RedOp::Sum,
        count,
        root: 1 % ranks,
        rank: 0,
        ranks,
        in_place: false,
        algorithm,
        chunk_bytes: 1 << 25,
        counts: None,
        islands: None,
    }
}

fn compile_all(request: &Request) -> Vec<Schedule> {
    (0..request.ranks)
        .map(|rank| compile(&Request { rank, ..request.clone() }).expect("the request is legal"))
        .collect()
}

/// Whether an algorithm is for several ranks that have no native library.
fn is_by_itself(algorithm: Algorithm) -> bool {
    !matches!(algorithm, Algorithm::Local | Algorithm::Native | Algorithm::Islands)
}

fn huge_requests() -> Vec<Request> {
    let mut requests = Vec::new();
    for collective in COLLECTIVES {
        for algorithm in candidates(collective).filter(|one| is_by_itself(*one)) {
            for ranks in [2, 3, 7] {
                requests.extend(HUGE.map(|count| request(collective, algorithm, count, ranks)));
            }
        }
    }
    requests
}

/// Messages grow where short ones would be too many.
#[test]
fn b025_schedules_stay_short() {
    for request in huge_requests().into_iter().filter(|request| [2, 7].contains(&request.ranks)) {
        let request = Request { chunk_bytes: 1 << 12, ..request.clone() };
        let steps = compile(&request).expect("legal").steps.len();
        let what = format!("{request} by {}: {steps} steps", request.algorithm);
        assert!(steps <= 101_000, "{what}");
        // They do not grow for nothing, either.
        assert!(steps >= 10_000 || request.algorithm == Algorithm::Direct, "{what}");
    }
}

/// How long the buffers of a rank are, in bytes.
fn buffers(request: &Request, rank: u32) -> (u64, u64) {
    let block = request.count * 8;
    let all = block * u64::from(request.ranks);
    let root = |bytes| if rank == request.root { bytes } else { 0 };
    match request.collective {
        Collective::AllReduce => (block, block),
        Collective::Reduce => (block, root(block)),
        Collective::Broadcast => (root(block), block),
        Collective::AllGather => (block, all),
        Collective::ReduceScatter => (all, block),
        Collective::Gather => (block, root(all)),
        Collective::Scatter => (root(all), block),
        Collective::AllToAll => (all, all),
        other => unreachable!("{other} is not among the huge requests"),
    }
}

/// Every byte of the receive buffer is written by exactly one step.
#[test]
fn b025_huge_vectors_are_covered_exactly_once() {
    for request in huge_requests() {
        for schedule in compile_all(&request) {
            let what = format!("{request} by {}, rank {}", request.algorithm, schedule.rank);
            let keeps_all = request.collective == Collective::AllReduce;
            if !keeps_all || request.algorithm != Algorithm::Direct {
                let bound = 1 << 30;
                assert!(schedule.scratch_bytes <= bound, "{what}: {}", schedule.scratch_bytes);
            }
            let (sent, received) = buffers(&request, schedule.rank);
            assert_eq!(schedule.send_bytes, sent, "{what}");
            assert_eq!(schedule.recv_bytes, received, "{what}");
            let mut written: Vec<Slice> = schedule
                .steps
                .iter()
                .flat_map(|step| schedule.writes(&step.kind))
                .copied()
                .collect();
            written.retain(|slice| slice.buffer == Buffer::Recv);
            written.sort_by_key(|slice| slice.offset);
            let mut next = 0;
            for slice in written {
                assert_eq!(slice.offset, next, "{what}");
                next = slice.end();
            }
            assert_eq!(next, received, "{what}");
        }
    }
}

/// The data of each pair come in rising order, and the offset in the envelope is that of the bytes: in
/// the vector, or in a block of it.
#[test]
fn b025_offsets_are_monotone() {
    for request in huge_requests() {
        if [Algorithm::Ring, Algorithm::Bruck].contains(&request.algorithm) || request.ranks > 4 {
            continue;
        }
        for schedule in compile_all(&request) {
            let mut last = std::collections::HashMap::new();
            for step in &schedule.steps {
                let StepKind::Send { peer, source, offset, .. } = step.kind else { continue };
                if source.buffer != Buffer::Scratch {
                    let block = source.offset - offset;
                    assert!(block.is_multiple_of(request.count * 8), "{request}");
                    assert!(block == 0 || schedule.send_bytes > request.count * 8, "{request}");
                }
                // Contributions and results of one pair are two rising sequences.
                let before = last.insert((peer, source.buffer), offset);
                assert!(before.is_none_or(|before| before < offset), "{request}");
            }
        }
    }
}

/// The whole proof, on longer messages so that it takes no time.
#[test]
fn b025_huge_vectors_are_reduced_right() {
    for request in huge_requests().into_iter().filter(|request| request.ranks % 3 == 0) {
        for in_place in [false, true] {
            let schedules =
                compile_all(&Request { in_place, chunk_bytes: 1 << 28, ..request.clone() });
            let options = Options { buffering: Buffering::Rendezvous, seed: request.count };
            let result = interpret(&schedules, options).and_then(|mut outcome| outcome.verify());
            assert_eq!(result, Ok(()), "{request} by {}", request.algorithm);
        }
    }
}

#[test]
fn send_and_recv_of_a_huge_vector() {
    for count in HUGE {
        let send = request(Collective::Send, Algorithm::PointToPoint, count, 2);
        let recv = Request { collective: Collective::Recv, root: 0, rank: 1, ..send.clone() };
        let schedules = [send, recv].map(|request| compile(&request).expect("legal"));
        assert!(schedules[0].steps.len() <= 100_000);
        let options = Options { buffering: Buffering::Unbounded, seed: 1 };
        interpret(&schedules, options).and_then(|mut outcome| outcome.verify()).expect("right");
    }
}

#[test]
fn b025_lengths_that_no_buffer_can_have_are_refused() {
    for (count, dtype) in [
        (u64::MAX, DataType::U8),
        (u64::MAX / 8 + 1, DataType::I64),
        (1 << 62, DataType::F32),
        (1 << 63, DataType::U8),
    ] {
        for collective in COLLECTIVES.into_iter().chain([Collective::Send]) {
            let algorithm =
                candidates(collective).filter(|one| is_by_itself(*one)).last().expect("one");
            let request = Request { dtype, ..request(collective, algorithm, count, 3) };
            let error = compile(&request).expect_err("too long");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(&count.to_string()), "{error}");
            assert!(error.to_string().contains(dtype.name()), "{error}");
        }
    }
    // One block is possible, seven of them are not.
    for collective in COLLECTIVES {
        let vector = [Collective::AllReduce, Collective::Reduce, Collective::Broadcast]
            .contains(&collective);
        let algorithm =
            candidates(collective).filter(|one| is_by_itself(*one)).last().expect("one");
        let result = compile(&request(collective, algorithm, 1 << 58, 7));
        assert_eq!(
            result.map_err(|error| error.kind()).err(),
            (!vector).then_some(ErrorKind::InvalidArgument)
        );
    }
    // The vector itself is possible, seven of them are not.
    let direct = request(Collective::AllReduce, Algorithm::Direct, 1 << 58, 7);
    let error = compile(&direct).expect_err("too much scratch");
    assert_eq!(error.kind(), ErrorKind::OutOfResources);
}

#[test]
fn ranks_and_roots_that_do_not_exist_are_refused() {
    let legal = request(Collective::Broadcast, Algorithm::Flat, 10, 3);
    let send = request(Collective::Send, Algorithm::PointToPoint, 10, 3);
    for (request, words) in [
        (Request { rank: 3, ..legal.clone() }, "rank 3 is not one of 3 ranks"),
        (Request { root: 3, ..legal.clone() }, "root 3 is not one of 3 ranks"),
        (Request { ranks: 0, ..legal.clone() }, "rank 0 is not one of 0 ranks"),
        (Request { ranks: u32::MAX, ..legal.clone() }, "more than i32::MAX"),
        (Request { op: RedOp::Max, ..legal.clone() }, "takes no op max"),
        (Request { root: 7, ..send.clone() }, "peer 7 is not one of 3 ranks"),
        (Request { root: 0, ..send.clone() }, "cannot be its own peer"),
    ] {
        let error = compile(&request).expect_err("it makes no sense");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// Many ranks: what one rank has to do stays small, and is compiled without the others.
#[test]
fn one_rank_of_a_hundred_thousand() {
    let ranks = 100_000;
    for (algorithm, most) in [(Algorithm::RecursiveDoubling, 100), (Algorithm::Ring, 1_000_000)] {
        let request =
            Request { rank: ranks - 1, ..request(Collective::AllReduce, algorithm, 1000, ranks) };
        let schedule = compile(&request).expect("legal");
        assert!(schedule.steps.len() < most, "{algorithm}: {} steps", schedule.steps.len());
    }
}
