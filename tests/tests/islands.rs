//! Collectives through the makers' own libraries: simulated NVIDIA cards and NCCL, alone and together with ranks
//! on host memory. Ranks are threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use iccl_plugin_api::{Collective, DataType, RedOp};
use iccl_runtime::comm::{Buffer, Communicator, Element};
use iccl_runtime::schedule::{Algorithm, Block};
use iccl_tests::ranks::{Job, must_be_right};
use iccl_tests::sim_cards;

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

/// Held by the job that is on the cards. Freeing a card's memory waits for all its work, as on real ones, so
/// jobs that share cards and free memory could wait for each other in a circle.
fn cards() -> MutexGuard<'static, ()> {
    static CARDS: Mutex<()> = Mutex::new(());
    CARDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A job whose rank r is on an NVIDIA card where `layout[r]` is `n`, and on host memory where it is `h`.
fn job(layout: &str) -> Job {
    let mut job = sim_cards::nvidia_with_nccl(Job::new(layout.len() as u32));
    let mut card = 0;
    for (rank, on) in (0..).zip(layout.chars()) {
        if on == 'n' {
            job = job.with_on(rank, "bootstrap.local_rank", &card.to_string());
            card += 1;
        } else {
            job = job.with_on(rank, "device.backend", "host");
        }
    }
    job
}

/// One all-reduce; every element is compared with what `expected` makes of its place.
fn all_reduce<T: Element + PartialEq + std::fmt::Debug>(
    communicator: &Communicator,
    op: RedOp,
    count: usize,
    in_place: bool,
    value: impl Fn(u32, usize) -> T,
    expected: impl Fn(usize) -> T,
) {
    let device = communicator.device();
    let mine: Vec<T> = (0..count).map(|at| value(communicator.rank(), at)).collect();
    let send = device.buffer_from(&mine).expect("a buffer");
    let receive = if in_place { send.clone() } else { device.allocate::<T>(count).expect("one") };
    let stream = communicator.stream();
    communicator
        .all_reduce(&send, &receive, count as u64, T::DTYPE, op, stream)
        .and_then(|handle| handle.wait())
        .unwrap_or_else(|error| panic!("{op} of {count} {}: {error}", T::DTYPE));
    let found = receive.read::<T>().expect("a result");
    for (at, found) in found.iter().enumerate() {
        assert_eq!(*found, expected(at), "{op} of {count} {}, element {at}", T::DTYPE);
    }
}

/// Sums, minima and means of several lengths, in place and not.
fn every_all_reduce(communicator: &Communicator) {
    let ranks = communicator.ranks();
    let warnings = communicator.plan().warnings();
    assert!(warnings.is_empty(), "{warnings:?}");
    for count in [0, 1, ranks as usize - 1, ranks as usize + 1, 1000, 100_003] {
        for in_place in [false, true] {
            let number = |rank: u32, at: usize| i64::from(rank + 1) * (at as i64 % 1001 - 500);
            let of = |rank: u32, at: usize| number(rank, at) as f32;
            let sum = i64::from(ranks * (ranks + 1) / 2);
            let total = |at: usize| (sum * (at as i64 % 1001 - 500)) as f32;
            all_reduce(communicator, RedOp::Sum, count, in_place, of, total);
            let of = |rank: u32, at: usize| number(rank, at);
            let total = |at: usize| sum * (at as i64 % 1001 - 500);
            all_reduce(communicator, RedOp::Sum, count, in_place, of, total);
            let smallest = |at: usize| (0..ranks).map(|rank| number(rank, at)).min().expect("one");
            all_reduce(communicator, RedOp::Min, count, in_place, of, smallest);
            // 2, 4, 6, … have the mean n + 1.
            let of = |rank: u32, _| 2.0 * (rank + 1) as f32;
            let mean = |_| (ranks + 1) as f32;
            all_reduce(communicator, RedOp::Avg, count, in_place, of, mean);
        }
    }
}

fn carried_by(communicator: &Communicator, algorithm: Algorithm) -> u64 {
    communicator.counters().operations_by(algorithm)
}

/// B028: one maker's cards only. The library does it all, and it shows.
#[test]
fn b028_one_island_is_one_native_call() {
    let _cards = cards();
    for cards in ["nn", "nnnn"] {
        let job = job(cards).with("algorithm.all_reduce", "native");
        job.run(|communicator| {
            every_all_reduce(communicator);
            assert_eq!(carried_by(communicator, Algorithm::Native), 6 * 2 * 4);
            // All but those of no elements.
            assert_eq!(communicator.counters().native_calls(), 5 * 2 * 4);
            let islands = communicator.plan().islands();
            assert_eq!(islands.len(), 1);
            assert!(islands[0].is_used() && islands[0].library.starts_with("NCCL"), "{islands:?}");
        });
    }
}

/// B004, B028: cards and host memory together, in any order of the ranks, which the library numbers by
/// their places on the island; the mean is that over ranks.
#[test]
fn b004_b028_islands_and_lone_ranks_reduce_together() {
    let _cards = cards();
    for layout in ["nnh", "hnnn", "nhnhn", "hnhnnh"] {
        let job = job(layout)
            .with("algorithm.all_reduce", "islands")
            .with("numerics.accumulate", "library");
        job.run(|communicator| {
            every_all_reduce(communicator);
            assert_eq!(carried_by(communicator, Algorithm::Islands), 6 * 2 * 4);
            let on_card = communicator.device().plugin() == "nvidia";
            assert_eq!(communicator.counters().native_calls() > 0, on_card);
        });
    }
}

/// By default a mean does not go through sums that could overflow where the mean does not.
#[test]
fn a_mean_of_large_values_on_islands_is_finite() {
    let _cards = cards();
    job("nnh").run(|communicator| {
        let (large, count) = (f32::MAX, 1 << 20);
        all_reduce(communicator, RedOp::Avg, count, false, |_, _| large, |_| large);
        let device = communicator.device();
        let explained =
            communicator.explain(Collective::AllReduce, DataType::F32, RedOp::Avg, count as u64);
        let considered = explained.expect("an algorithm").considered;
        let refused = format!("{considered:?}");
        assert!(refused.contains("may overflow where the mean does not"), "{device}: {refused}");
    });
}

/// Small chunks: native calls, messages and reductions of several chunks are under way at once.
#[test]
fn many_chunks_of_islands_overlap() {
    let _cards = cards();
    let job =
        job("nhnnh").with("algorithm.all_reduce", "islands").with("engine.chunk_bytes", "4KiB");
    job.run(|communicator| {
        let of = |rank: u32, at: usize| rank as i32 * 1000 + at as i32 % 977;
        let total = |at: usize| 10_000 + 5 * (at as i32 % 977);
        for in_place in [false, true] {
            all_reduce(communicator, RedOp::Sum, 200_001, in_place, of, total);
        }
    });
}

/// Every collective that the library offers whole.
#[test]
fn whole_collectives_go_through_the_library() {
    let _cards = cards();
    let job =
        ["all_gather", "broadcast", "reduce", "reduce_scatter", "gather", "scatter", "all_to_all"]
            .iter()
            .fold(job("nnn"), |job, name| job.with(&format!("algorithm.{name}"), "native"));
    job.run(|communicator| {
        let (device, stream) = (communicator.device(), communicator.stream());
        let (rank, ranks) = (communicator.rank() as i32, communicator.ranks() as usize);
        let block = 1001;
        let mine: Vec<i32> = (0..block * ranks).map(|at| rank * 100_000 + at as i32).collect();
        let send = device.buffer_from(&mine).expect("a buffer");
        let long = device.allocate::<i32>(block * ranks).expect("a buffer");
        let count = block as u64;
        let dtype = DataType::I32;
        let wait = |handle: iccl_runtime::Result<iccl_runtime::comm::Handle>| {
            handle.and_then(|handle| handle.wait()).expect("it goes well");
        };
        wait(communicator.all_gather(&send, &long, count, dtype, stream));
        let gathered: Vec<i32> =
            (0..3).flat_map(|from| (0..block as i32).map(move |at| from * 100_000 + at)).collect();
        assert_eq!(long.read::<i32>().expect("read"), gathered);
        wait(communicator.all_to_all(&send, &long, count, dtype, stream));
        let own = rank * block as i32;
        let exchanged: Vec<i32> = (0..3)
            .flat_map(|from| (0..block as i32).map(move |at| from * 100_000 + own + at))
            .collect();
        assert_eq!(long.read::<i32>().expect("read"), exchanged);
        for root in 0..3 {
            let is_root = communicator.rank() == root;
            let receive = device.allocate::<i32>(block * ranks).expect("a buffer");
            wait(communicator.broadcast(Some(&send), &receive, count, dtype, root, stream));
            let first: Vec<i32> = (0..block as i32).map(|at| root as i32 * 100_000 + at).collect();
            assert_eq!(receive.read::<i32>().expect("read")[..block], first);
            wait(communicator.gather(&send, Some(&receive), count, dtype, root, stream));
            if is_root {
                assert_eq!(receive.read::<i32>().expect("read"), gathered);
            }
            wait(communicator.scatter(Some(&send), &receive, count, dtype, root, stream));
            let scattered: Vec<i32> =
                (0..block as i32).map(|at| root as i32 * 100_000 + own + at).collect();
            assert_eq!(receive.read::<i32>().expect("read")[..block], scattered);
            let sum = RedOp::Sum;
            wait(communicator.reduce(&send, Some(&receive), count, dtype, sum, root, stream));
            if is_root {
                let sums: Vec<i32> = (0..block as i32).map(|at| 300_000 + 3 * at).collect();
                assert_eq!(receive.read::<i32>().expect("read")[..block], sums);
            }
        }
        wait(communicator.reduce_scatter(&send, &long, count, dtype, RedOp::Sum, stream));
        let sums: Vec<i32> = (0..block as i32).map(|at| 300_000 + 3 * (own + at)).collect();
        assert_eq!(long.read::<i32>().expect("read")[..block], sums);
        assert_eq!(carried_by(communicator, Algorithm::Native), 3 + 4 * 3);
    });
}

/// All that is made of blocks with an owner each: every element, by every root, short and in many chunks.
fn everything_of_blocks(communicator: &Communicator) {
    let (device, stream) = (communicator.device(), communicator.stream());
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let dtype = DataType::I32;
    let value = |of: u32, at: usize| of as i32 * 1_000_003 + at as i32;
    let sum = |at: usize| (0..ranks).map(|of| value(of, at)).fold(0, i32::wrapping_add);
    let wait = |what: &str, handle: iccl_runtime::Result<iccl_runtime::comm::Handle>| {
        let done = handle.and_then(|handle| handle.wait());
        done.unwrap_or_else(|error| panic!("{what}: {error}"));
    };
    for block in [1_usize, 1001, 20_011] {
        let all = block * ranks as usize;
        let count = block as u64;
        let mine: Vec<i32> = (0..all).map(|at| value(rank, at)).collect();
        let send = device.buffer_from(&mine).expect("a buffer");
        // Each rank's blocks lie apart, farther on each rank than on the one before; one is empty.
        let gap = rank as usize;
        let length = |of: u32| if of == 1 { 0 } else { block - (of as usize).min(block) / 2 };
        let mut first = gap;
        let blocks: Vec<Block> = (0..ranks)
            .map(|of| {
                let placed = Block { first: first as u64, count: length(of) as u64 };
                first += length(of) + gap;
                placed
            })
            .collect();
        let apart = first.max(1);
        let read = |buffer: &Buffer| buffer.read::<i32>().expect("read");
        let fresh = |elements: usize| device.buffer_from(&vec![-7; elements]).expect("a buffer");

        let gathered = fresh(all);
        wait("all_gather", communicator.all_gather(&send, &gathered, count, dtype, stream));
        let expected: Vec<i32> =
            (0..ranks).flat_map(|of| (0..block).map(move |at| value(of, at))).collect();
        assert_eq!(read(&gathered), expected, "all_gather of {block}");

        let gathered = fresh(apart);
        let handle = communicator.all_gather_v(&send, &gathered, &blocks, dtype, stream);
        wait("all_gather_v", handle);
        let mut expected = vec![-7; apart];
        for (of, place) in (0..).zip(&blocks) {
            (0..place.count as usize)
                .for_each(|at| expected[place.first as usize + at] = value(of, at));
        }
        assert_eq!(read(&gathered), expected, "all_gather_v of {block}");

        let reduced = fresh(block);
        let handle = communicator.reduce_scatter(&send, &reduced, count, dtype, RedOp::Sum, stream);
        wait("reduce_scatter", handle);
        let own = rank as usize * block;
        let expected: Vec<i32> = (0..block).map(|at| sum(own + at)).collect();
        assert_eq!(read(&reduced), expected, "reduce_scatter of {block}");

        // What a rank has for another is that rank's contribution at its packed place.
        let packed: Vec<usize> = (0..ranks).map(|of| (0..of).map(length).sum::<usize>()).collect();
        let mut scattered = vec![0; apart];
        for (place, packed) in blocks.iter().zip(&packed) {
            (0..place.count as usize)
                .for_each(|at| scattered[place.first as usize + at] = value(rank, packed + at));
        }
        let scattered = device.buffer_from(&scattered).expect("a buffer");
        let reduced = fresh(block);
        let op = RedOp::Sum;
        let handle =
            communicator.reduce_scatter_v(&scattered, &reduced, &blocks, dtype, op, stream);
        wait("reduce_scatter_v", handle);
        let mut expected = vec![-7; block];
        (0..length(rank)).for_each(|at| expected[at] = sum(packed[rank as usize] + at));
        assert_eq!(read(&reduced), expected, "reduce_scatter_v of {block}");

        for root in 0..ranks {
            let whole = fresh(all);
            let handle =
                communicator.broadcast(Some(&send), &whole, all as u64, dtype, root, stream);
            wait("broadcast", handle);
            let expected: Vec<i32> = (0..all).map(|at| value(root, at)).collect();
            assert_eq!(read(&whole), expected, "broadcast of {all} from {root}");
            let whole = fresh(all);
            let (all, into) = (all as u64, Some(&whole));
            let handle = communicator.reduce(&send, into, all, dtype, RedOp::Sum, root, stream);
            wait("reduce", handle);
            if rank == root {
                let expected: Vec<i32> = (0..mine.len()).map(sum).collect();
                assert_eq!(read(&whole), expected, "reduce of {all} to {root}");
            }
        }
    }
}

/// B018, B028: cards and host memory together, in any order of the ranks, and one island alone: the library
/// does its part, and it shows.
#[test]
fn b018_b028_islands_and_lone_ranks_exchange_blocks() {
    let _cards = cards();
    let of_blocks =
        ["broadcast", "reduce", "all_gather", "reduce_scatter", "all_gather_v", "reduce_scatter_v"];
    for (layout, algorithm) in [
        ("nnh", Algorithm::Islands),
        ("nhnhn", Algorithm::Islands),
        ("hnhnnh", Algorithm::Islands),
        ("nnn", Algorithm::Islands),
        ("nnn", Algorithm::Native),
    ] {
        let job = of_blocks.iter().fold(job(layout), |job, name| {
            job.with(&format!("algorithm.{name}"), algorithm.name())
        });
        job.with("engine.chunk_bytes", "4KiB").run(|communicator| {
            let warnings = communicator.plan().warnings();
            assert!(warnings.is_empty(), "{warnings:?}");
            everything_of_blocks(communicator);
            let of_each = 4 + 2 * u64::from(communicator.ranks());
            assert_eq!(carried_by(communicator, algorithm), 3 * of_each);
            let on_card = communicator.device().plugin() == "nvidia";
            let calls = communicator.counters().native_calls();
            if on_card {
                assert!(calls >= 3 * of_each, "{layout}: {calls} native calls");
            } else {
                assert_eq!(calls, 0);
            }
        });
    }
}

/// What `iccl plan --collectives` tells of a call, against what the call does: the algorithm, and whether
/// this rank's library is asked.
#[test]
fn what_is_told_of_a_call_is_what_it_does() {
    use Collective::{AllGather, AllReduce, Broadcast, ReduceScatter};
    use DataType::{Bf16, F8E4M3, F32, I64};
    let _cards = cards();
    let calls = [
        (AllReduce, I64, Some(RedOp::Sum)),
        (AllReduce, F32, Some(RedOp::Avg)),
        (AllReduce, F32, Some(RedOp::Max)),
        (AllReduce, Bf16, Some(RedOp::Sum)),
        (ReduceScatter, I64, Some(RedOp::Min)),
        (AllGather, F8E4M3, None),
        (Broadcast, F32, None),
    ];
    for layout in ["nn", "nnh"] {
        let used = job(layout).run(|communicator| {
            let (choices, counters) = (communicator.choices(), communicator.counters());
            let (device, stream) = (communicator.device(), communicator.stream());
            let island = communicator
                .plan()
                .islands()
                .iter()
                .find(|island| island.is_used() && island.ranks.contains(&communicator.rank()));
            let mut used = Vec::new();
            for (collective, dtype, op) in calls {
                for bytes in [8_u64, 64 << 10, 3 << 20] {
                    let told = choices.of(collective, dtype, op, bytes).expect("a way");
                    let before = (
                        counters.operations(),
                        counters.operations_by(told.choice.algorithm),
                        counters.native_calls(),
                    );
                    let elements = bytes / dtype.size_bytes() as u64;
                    let block = (elements / u64::from(communicator.ranks())).max(1);
                    let buffer = || device.allocate::<u8>(bytes as usize + 32).expect("memory");
                    let (send, receive) = (buffer(), buffer());
                    let op = op.unwrap_or(RedOp::Sum);
                    match collective {
                        AllReduce => {
                            communicator.all_reduce(&send, &receive, elements, dtype, op, stream)
                        }
                        ReduceScatter => {
                            communicator.reduce_scatter(&send, &receive, block, dtype, op, stream)
                        }
                        AllGather => communicator.all_gather(&send, &receive, block, dtype, stream),
                        _ => {
                            let send = Some(&send);
                            communicator.broadcast(send, &receive, elements, dtype, 0, stream)
                        }
                    }
                    .and_then(|handle| handle.wait())
                    .unwrap_or_else(|error| panic!("{collective} {dtype} {op} {bytes}: {error}"));
                    let algorithm = told.choice.algorithm;
                    let what = format!("{layout}: {collective} {dtype} {op} {bytes}: {told:?}");
                    assert_eq!(counters.operations(), before.0 + 1, "{what}");
                    assert_eq!(counters.operations_by(algorithm), before.1 + 1, "{what}");
                    let asked = island.is_some_and(|island| {
                        told.native.iter().any(|(library, _)| *library == island.library)
                    });
                    assert_eq!(counters.native_calls() > before.2, asked, "{what}");
                    used.push(algorithm);
                }
            }
            used
        });
        // The sample has both: what a library does, and what iccl fills in.
        let is_native = |one: &Algorithm| one.facts().needs_islands;
        assert!(used[0].iter().any(is_native) && !used[0].iter().all(is_native), "{used:?}");
    }
}

/// B011: by default, what NCCL would round at every step goes another way, and it is told why.
#[test]
fn b011_narrow_sums_do_not_go_through_a_library_that_rounds_them() {
    let _cards = cards();
    let means = |communicator: &Communicator, dtype| {
        let choice = communicator.explain(Collective::AllReduce, dtype, RedOp::Sum, 1 << 20);
        choice.expect("an algorithm")
    };
    job("nn").run(|communicator| {
        must_be_right(communicator);
        assert_eq!(means(communicator, DataType::F32).algorithm, Algorithm::Native);
        let narrow = means(communicator, DataType::Bf16);
        assert!(!narrow.algorithm.facts().needs_islands, "{narrow:?}");
        assert!(narrow.reason.contains("does not declare that it sums bf16 so"), "{narrow:?}");
    });
    job("nn").with("numerics.accumulate", "library").run(|communicator| {
        assert_eq!(means(communicator, DataType::Bf16).algorithm, Algorithm::Native);
    });
    job("nn").with("device.native", "false").run(|communicator| {
        must_be_right(communicator);
        let choice = means(communicator, DataType::F32);
        assert!(!choice.algorithm.facts().needs_islands, "{choice:?}");
        assert_eq!(communicator.counters().native_calls(), 0);
    });
}

/// Two ranks on one card: no library serves them, and the plan says so before it is tried.
#[test]
fn ranks_that_share_a_card_do_without_the_library() {
    let _cards = cards();
    let job = job("nn").with_on(1, "bootstrap.local_rank", "0");
    job.run(|communicator| {
        must_be_right(communicator);
        let why = communicator.plan().islands()[0].why_unused().expect("a reason");
        assert_eq!(why, "ranks 0 and 1 share a device");
        let text = communicator.plan().report().to_string();
        assert!(text.contains("ranks 0-1, not used: ranks 0 and 1 share a device"), "{text}");
        assert_eq!(communicator.counters().native_calls(), 0);
    });
}

/// Communicators made out of others have native communicators of their own.
#[test]
fn parts_of_a_communicator_have_their_own_native_communicators() {
    let _cards = cards();
    let job = job("nnnn").with("algorithm.all_reduce", "native");
    job.run(|communicator| {
        let half = communicator
            .split(Some(communicator.rank() % 2), 0)
            .expect("a split")
            .expect("a part of it");
        for _ in 0..3 {
            must_be_right(&half);
            must_be_right(communicator);
        }
        assert_eq!(carried_by(&half, Algorithm::Native), 3);
        half.finalize().expect("a good end");
        must_be_right(communicator);
    });
}
