//! Collectives on ranks that are threads of this process: every element against an oracle.

use std::sync::Mutex;

use iccl_plugin_api::{Collective, DataType, RedOp};
use iccl_runtime::ErrorKind;
use iccl_runtime::comm::Communicator;
use iccl_runtime::plan::Tier;
use iccl_tests::guarded::Guarded;
use iccl_tests::oracle::{REDUCIBLE, contribution, ops, reduced, reduction, scramble};
use iccl_tests::ranks::Job;

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

/// One all-reduce.
#[derive(Clone, Debug)]
struct Case {
    dtype: DataType,
    op: RedOp,
    count: usize,
    in_place: bool,
    /// Bytes by which the buffers are off.
    shift: usize,
    seed: u64,
}

impl Case {
    fn contributions(&self, ranks: u32) -> Vec<Vec<u8>> {
        let one = |rank| contribution(self.dtype, self.op, rank, self.count, self.seed);
        (0..ranks).map(one).collect()
    }
}

/// Runs a case twice on this rank and compares everything; `None` if the algorithm cannot carry it.
fn check(communicator: &Communicator, case: &Case, own: &[u8], expected: &[u8]) -> Option<()> {
    for round in 0..2 {
        let send = Guarded::holding(own, case.shift);
        let receive = Guarded::shifted(own.len(), 0xee, case.shift / 2);
        let target = if case.in_place { send.address() } else { receive.address() };
        // SAFETY: both are memory of `count` elements that lives until the wait below is over.
        let called = unsafe {
            communicator.all_reduce_raw(
                send.address(),
                target,
                case.count as u64,
                case.dtype,
                reduction(case.dtype, case.op, communicator.rank()),
                communicator.stream(),
            )
        };
        let handle = match called {
            Err(error) if error.kind() == ErrorKind::NotSupported => return None,
            called => called.unwrap_or_else(|error| panic!("{case:?}: {error}")),
        };
        handle.wait().unwrap_or_else(|error| panic!("{case:?}: {error}"));
        let rank = communicator.rank();
        let result = if case.in_place { send.bytes() } else { receive.bytes() };
        assert!(result == expected, "rank {rank}, round {round}: {case:?}");
        if !case.in_place {
            assert!(send.bytes() == own, "B022: rank {rank}: the send buffer changed: {case:?}");
        }
        send.check();
        receive.check();
    }
    Some(())
}

const LAYOUTS: [&str; 4] = ["shm", "tcp", "two hosts in turn", "all but one"];
const ALGORITHMS: [&str; 5] = ["auto", "direct", "owner", "recursive_doubling", "ring"];

fn job(ranks: u32, layout: &str, algorithm: &str) -> Job {
    let mut job = Job::new(ranks);
    match layout {
        "shm" | "tcp" => job = job.with("transport.enabled", layout),
        "two hosts in turn" => {
            let hosts: Vec<_> =
                (0..ranks).map(|rank| ["left", "right"][rank as usize % 2]).collect();
            job = job.on_hosts(&hosts);
        }
        _ => {
            let hosts: Vec<_> =
                (0..ranks).map(|rank| if rank + 1 == ranks { "far" } else { "near" }).collect();
            job = job.on_hosts(&hosts);
        }
    }
    if algorithm == "auto" { job } else { job.with("algorithm.all_reduce", algorithm) }
}

/// What the plan must say of a link.
fn tier(layout: &str, ranks: u32, a: u32, b: u32) -> Tier {
    let same_host = match layout {
        "shm" => true,
        "tcp" => false,
        "two hosts in turn" => a % 2 == b % 2,
        _ => a + 1 != ranks && b + 1 != ranks,
    };
    if same_host { Tier::Shm } else { Tier::Tcp }
}

fn cannot_carry(algorithm: &str, case: &Case) -> bool {
    let narrow = case.dtype.is_narrow_float();
    let rounds = !matches!(case.op, RedOp::Min | RedOp::Max);
    matches!(algorithm, "recursive_doubling" | "ring")
        && (case.op == RedOp::Avg || (narrow && rounds))
}

/// A sample that covers every dtype × op, both places, every count, and alignments: by layout,
/// algorithm and number of ranks.
///
/// B001, B002, B010, B020, B022, B029, B041.
fn sample(ranks: u32) {
    let counts = |ranks: usize| [0, 1, ranks - 1, ranks, ranks + 1, 31, 33, 1000, 65537];
    let combinations: Vec<_> = REDUCIBLE
        .iter()
        .flat_map(|dtype| ops(*dtype).iter().map(move |op| (*dtype, *op)))
        .collect();
    let mut number = u64::from(ranks) * 1_000_000;
    for layout in LAYOUTS {
        if ranks == 1 && layout != "shm" {
            continue;
        }
        for algorithm in ALGORITHMS {
            // Per communicator a part of all combinations, another part each time.
            let cases: Vec<(Case, Vec<Vec<u8>>, Vec<u8>)> = (0..20)
                .map(|_| {
                    number += 1;
                    let (dtype, op) = combinations[number as usize * 7 % combinations.len()];
                    let random = scramble(number);
                    let case = Case {
                        dtype,
                        op,
                        count: counts(ranks as usize)[(random % 9) as usize],
                        in_place: (random >> 8).is_multiple_of(2),
                        shift: if (random >> 16).is_multiple_of(4) { 3 } else { 0 },
                        seed: number,
                    };
                    let contributions = case.contributions(ranks);
                    let expected = reduced(case.dtype, case.op, &contributions);
                    (case, contributions, expected)
                })
                .collect();
            job(ranks, layout, algorithm).run(|communicator| {
                let rank = communicator.rank();
                for peer in (0..ranks).filter(|peer| *peer != rank) {
                    let link = communicator.plan().link(rank, peer).expect("a link");
                    assert_eq!(link.chosen.tier, tier(layout, ranks, rank, peer), "{layout}");
                }
                for (case, contributions, expected) in &cases {
                    let own = &contributions[rank as usize];
                    let carried = check(communicator, case, own, expected).is_some();
                    let refused = ranks > 1 && cannot_carry(algorithm, case);
                    assert_eq!(carried, !refused, "{layout}, {algorithm}: {case:?}");
                }
                communicator.finalize().expect("a good end");
            });
        }
    }
}

#[test]
fn b001_all_reduce_on_1_rank() {
    sample(1);
}

#[test]
fn b001_all_reduce_on_2_ranks() {
    sample(2);
}

#[test]
fn b020_all_reduce_on_3_ranks() {
    sample(3);
}

#[test]
fn b029_all_reduce_on_4_ranks() {
    sample(4);
}

#[test]
fn b041_all_reduce_on_5_ranks() {
    sample(5);
}

#[test]
fn b029_all_reduce_on_8_ranks() {
    sample(8);
}

fn all_reduce<T: iccl_runtime::comm::Element>(
    communicator: &Communicator,
    elements: &[T],
    op: RedOp,
) -> Vec<T> {
    let send = communicator.device().buffer_from(elements).expect("memory");
    let receive = communicator.device().allocate::<T>(elements.len()).expect("memory");
    let (count, stream) = (elements.len() as u64, communicator.stream());
    let called = communicator.all_reduce(&send, &receive, count, T::DTYPE, op, stream);
    called.expect("a call").wait().unwrap_or_else(|error| panic!("{error}"));
    receive.read().expect("the result")
}

#[test]
fn b003_avg_is_divided_once_at_every_size() {
    for layout in ["shm", "tcp"] {
        for algorithm in ["auto", "direct", "owner"] {
            job(4, layout, algorithm).run(|communicator| {
                let value = communicator.rank() as f32 + 1.0;
                let mut counts: Vec<usize> = (1..=64).collect();
                counts.extend([127, 128, 129, 4095, 4096, 4097]);
                // Around the length of a chunk, and where the choice of the algorithm changes.
                counts.extend([131_071, 131_072, 131_073, 262_145]);
                counts.extend(thresholds(communicator));
                for count in counts {
                    let averages = all_reduce(communicator, &vec![value; count], RedOp::Avg);
                    assert!(
                        averages.iter().all(|average| average.to_bits() == 2.5_f32.to_bits()),
                        "{layout}, {algorithm}, {count}"
                    );
                }
            });
        }
    }
}

/// The counts at which another algorithm is chosen, and their neighbours.
fn thresholds(communicator: &Communicator) -> Vec<usize> {
    let chosen = |count: u64| {
        let choice = communicator.explain(Collective::AllReduce, DataType::F32, RedOp::Avg, count);
        choice.expect("a choice").algorithm
    };
    let mut found = Vec::new();
    let (mut low, last) = (1_u64, 1 << 18);
    while low < last {
        let mut high = low * 2;
        if chosen(low) == chosen(high) {
            low = high;
            continue;
        }
        let next = high;
        while low + 1 < high {
            let middle = low.midpoint(high);
            if chosen(middle) == chosen(low) { low = middle } else { high = middle }
        }
        found.extend([high as usize - 1, high as usize, high as usize + 1]);
        low = next;
    }
    found
}

#[test]
fn b005_b006_integer_averages() {
    job(2, "shm", "auto").run(|communicator| {
        let mine = |of: [i32; 2]| of[communicator.rank() as usize];
        let averages =
            all_reduce(communicator, &[mine([10, 20]), mine([20, 40]), mine([-3, -4])], RedOp::Avg);
        assert_eq!(averages, [15, 30, -3]);
        let big = (1_i64 << 53) + 1;
        assert_eq!(all_reduce(communicator, &[big; 5], RedOp::Avg), [big; 5]);
        assert_eq!(all_reduce(communicator, &[4.0_f32; 5], RedOp::Avg), [4.0; 5]);
        assert_eq!(all_reduce(communicator, &[4_i64; 5], RedOp::Avg), [4; 5]);
    });
}

#[test]
fn b004_avg_is_the_mean_over_ranks() {
    let job = Job::new(3).on_hosts(&["a", "a", "b"]);
    job.run(|communicator| {
        let value = [1.0_f64, 2.0, 9.0][communicator.rank() as usize];
        assert_eq!(all_reduce(communicator, &[value; 33], RedOp::Avg), [4.0; 33]);
    });
}

#[test]
fn b009_a_nan_on_any_rank_is_seen_by_all() {
    for algorithm in ALGORITHMS {
        job(4, "shm", algorithm).run(|communicator| {
            for holder in 0..4 {
                let rank = communicator.rank();
                let value = if rank == holder { f32::NAN } else { rank as f32 };
                for op in [RedOp::Min, RedOp::Max] {
                    let result = all_reduce(communicator, &[value, 1.0], op);
                    assert!(result[0].is_nan(), "{algorithm}, {op}, NaN on {holder}: {result:?}");
                    assert_eq!(result[1].to_bits(), 1.0_f32.to_bits());
                }
            }
        });
    }
}

#[test]
fn b010_all_ranks_get_the_same_bits_twice() {
    // Sums that are not exact, so that an order that differs shows.
    for algorithm in ALGORITHMS {
        let results = Mutex::new(Vec::new());
        job(3, "shm", algorithm).run(|communicator| {
            for count in [1_usize, 10, 100_003] {
                let values: Vec<f32> = (0..count as u64)
                    .map(|at| {
                        let random = scramble(at << 2 | u64::from(communicator.rank()));
                        (random % 1_000_003) as f32 * 1.0e-3 - 500.0
                    })
                    .collect();
                let first = all_reduce(communicator, &values, RedOp::Sum);
                let second = all_reduce(communicator, &values, RedOp::Sum);
                let bits = |of: &[f32]| of.iter().map(|one| one.to_bits()).collect::<Vec<_>>();
                assert!(bits(&first) == bits(&second), "{algorithm}: not the same twice");
                results.lock().expect("results").push((count, bits(&first)));
            }
        });
        let results = results.into_inner().expect("results");
        for count in [1, 10, 100_003] {
            let mut of_ranks = results.iter().filter(|(counted, _)| *counted == count);
            let (_, first) = of_ranks.next().expect("a rank's result");
            assert!(of_ranks.all(|(_, other)| other == first), "{algorithm}, {count}");
        }
    }
}

#[test]
fn b011_narrow_sums_are_rounded_once() {
    use half::{bf16, f16};
    for layout in ["shm", "two hosts in turn"] {
        for algorithm in ["auto", "direct", "owner"] {
            job(3, layout, algorithm).run(|communicator| {
                let value = bf16::from_f32([256.0, 1.0, 1.0][communicator.rank() as usize]);
                let sums = all_reduce(communicator, &[value; 1000], RedOp::Sum);
                assert!(sums.iter().all(|sum| sum.to_f32().to_bits() == 258_f32.to_bits()));
            });
            job(4, layout, algorithm).run(|communicator| {
                let value = f16::from_f32([2048.0, 1.0, 1.0, 1.0][communicator.rank() as usize]);
                // 2051 lies between 2050 and 2052, whose mantissa is even.
                let sums = all_reduce(communicator, &[value; 1000], RedOp::Sum);
                assert!(sums.iter().all(|sum| sum.to_f32().to_bits() == 2052_f32.to_bits()));
            });
        }
    }
}

/// Every dtype, those that cannot be reduced included, moves unchanged from every root.
#[test]
fn broadcast_from_every_root() {
    for ranks in [1, 2, 3, 5] {
        for layout in ["shm", "tcp", "two hosts in turn"] {
            for algorithm in ["auto", "flat", "binomial", "scatter_all_gather"] {
                let mut job = job(ranks, layout, "auto");
                if algorithm != "auto" {
                    job = job.with("algorithm.broadcast", algorithm);
                }
                job.run(|communicator| broadcasts(communicator, algorithm));
            }
        }
    }
}

fn broadcasts(communicator: &Communicator, what: &str) {
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    for (turn, dtype) in (0_u64..).zip(DataType::ALL.iter().copied()) {
        for root in 0..ranks {
            let counts = [0, 1, ranks as usize + 1, 1000, 65_537];
            let count = counts[(turn + u64::from(root)) as usize % counts.len()];
            let bytes: Vec<u8> = (0..(count * dtype.size_bytes()) as u64)
                .map(|at| scramble(at ^ turn << 40 ^ u64::from(root) << 32) as u8)
                .collect();
            let in_place = turn % 2 == 0;
            let send = Guarded::holding(if rank == root { &bytes } else { &[] }, 0);
            let receive = Guarded::new(bytes.len(), 0x77);
            let is_source = in_place && rank == root;
            let target = if is_source { send.address() } else { receive.address() };
            // B023: only the root has a send buffer.
            let source = if rank == root { send.address() } else { std::ptr::null_mut() };
            // SAFETY: memory of `count` elements that lives until the wait is over.
            let called = unsafe {
                let stream = communicator.stream();
                communicator.broadcast_raw(source, target, count as u64, dtype, root, stream)
            };
            called.expect("a call").wait().unwrap_or_else(|error| panic!("{what}: {error}"));
            let got = if is_source { send.bytes() } else { receive.bytes() };
            assert!(got == bytes, "{what}: {dtype} × {count} from {root} on {rank}");
            send.check();
            receive.check();
        }
    }
}

#[test]
fn no_rank_passes_a_barrier_before_all_have_come() {
    use std::sync::atomic::{AtomicU32, Ordering};
    for layout in ["shm", "all but one"] {
        let came = AtomicU32::new(0);
        job(5, layout, "auto").run(|communicator| {
            let rank = communicator.rank();
            for round in 1..=20 {
                if round % 5 == rank {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                came.fetch_add(1, Ordering::SeqCst);
                communicator.barrier(communicator.stream()).expect("a call").wait().expect("all");
                assert!(came.load(Ordering::SeqCst) >= 5 * round, "rank {rank}, round {round}");
            }
        });
    }
}

#[test]
fn sends_and_receives_around_a_ring() {
    for layout in ["shm", "tcp", "two hosts in turn"] {
        for count in [1_usize, 1000, 2 << 20] {
            job(3, layout, "auto").run(|communicator| {
                let (rank, ranks) = (communicator.rank(), communicator.ranks());
                let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
                let device = communicator.device();
                let mine: Vec<u32> = (0..count as u32).map(|at| at * 7 + rank).collect();
                let send = device.buffer_from(&mine).expect("memory");
                let forth = device.allocate::<u32>(count).expect("memory");
                let back = device.allocate::<u32>(count).expect("memory");
                // Both directions at once; streams of their own, so that none waits for another.
                let streams: Vec<_> = (0..4).map(|_| device.stream().expect("a stream")).collect();
                let count = count as u64;
                let handles = [
                    communicator.send(&send, count, DataType::U32, next, &streams[0]),
                    communicator.send(&send, count, DataType::U32, previous, &streams[1]),
                    communicator.recv(&forth, count, DataType::U32, previous, &streams[2]),
                    communicator.recv(&back, count, DataType::U32, next, &streams[3]),
                ];
                for handle in handles {
                    handle.expect("a call").wait().unwrap_or_else(|error| panic!("{error}"));
                }
                for (from, got) in [(previous, forth), (next, back)] {
                    let got: Vec<u32> = got.read().expect("the result");
                    assert!((0_u32..).zip(&got).all(|(at, one)| *one == at * 7 + from));
                }
            });
        }
    }
}

#[test]
fn many_messages_are_outstanding_and_arrive_in_order() {
    for layout in ["shm", "tcp"] {
        job(2, layout, "auto").run(|communicator| {
            let (device, rank) = (communicator.device(), communicator.rank());
            let streams: Vec<_> = (0..64).map(|_| device.stream().expect("a stream")).collect();
            let buffers: Vec<_> = (0..64_u32)
                .map(|number| device.buffer_from(&vec![number * (1 - rank); 500]).expect("memory"))
                .collect();
            let handles: Vec<_> = buffers
                .iter()
                .zip(&streams)
                .map(|(buffer, stream)| {
                    if rank == 0 {
                        communicator.send(buffer, 500, DataType::U32, 1, stream).expect("a call")
                    } else {
                        communicator.recv(buffer, 500, DataType::U32, 0, stream).expect("a call")
                    }
                })
                .collect();
            for handle in handles.iter().rev() {
                handle.wait().unwrap_or_else(|error| panic!("{error}"));
            }
            for (number, buffer) in (0_u32..).zip(&buffers) {
                assert_eq!(buffer.read::<u32>().expect("the result"), vec![number; 500]);
            }
        });
    }
}
