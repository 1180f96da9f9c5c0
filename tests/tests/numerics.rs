//! The rules of docs/numerics.md that need several ranks to be shown, and the page itself. Ranks are
//! threads of this process.

use std::path::Path;
use std::time::Duration;

use iccl_plugin_api::{Collective, DataType, RedOp};
use iccl_runtime::ErrorKind;
use iccl_runtime::comm::{Communicator, Handle};
use iccl_runtime::schedule::{Algorithm, Choice};
use iccl_tests::oracle::{reduction, scramble};
use iccl_tests::ranks::Job;

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const FLOATS: [DataType; 6] = [
    DataType::F8E4M3,
    DataType::F8E5M2,
    DataType::F16,
    DataType::Bf16,
    DataType::F32,
    DataType::F64,
];
const ALGORITHMS: [&str; 5] = ["auto", "direct", "owner", "recursive_doubling", "ring"];

fn job(ranks: u32, layout: &str, algorithm: &str) -> Job {
    let job = Job::new(ranks).with("transport.enabled", layout);
    if algorithm == "auto" { job } else { job.with("algorithm.all_reduce", algorithm) }
}

/// Elements by their bits, as they lie in memory.
fn bytes(dtype: DataType, elements: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let size = dtype.size_bytes();
    elements.into_iter().flat_map(|bits| bits.to_le_bytes().into_iter().take(size)).collect()
}

/// The result of an all-reduce; nothing if the algorithm that is forced cannot carry it.
fn all_reduce(
    communicator: &Communicator,
    dtype: DataType,
    op: RedOp,
    own: &[u8],
) -> Option<Vec<u8>> {
    let device = communicator.device();
    let send = device.buffer_from(own).expect("memory");
    let receive = device.allocate::<u8>(own.len()).expect("memory");
    let count = (own.len() / dtype.size_bytes()) as u64;
    let op = reduction(dtype, op, communicator.rank());
    let called = communicator.all_reduce(&send, &receive, count, dtype, op, communicator.stream());
    match called.and_then(|handle| handle.wait()) {
        Err(error) if error.kind() == ErrorKind::NotSupported => None,
        outcome => {
            outcome.unwrap_or_else(|error| panic!("{error}"));
            Some(receive.read().expect("the result"))
        }
    }
}

/// All orders of four values.
fn placements() -> Vec<[usize; 4]> {
    let mut all = Vec::new();
    for number in 0..256 {
        let order = [number & 3, number >> 2 & 3, number >> 4 & 3, number >> 6];
        if (0..4).all(|value| order.contains(&value)) {
            all.push(order);
        }
    }
    assert_eq!(all.len(), 24);
    all
}

/// By their bits: 1, 3 and 4; some NaNs, the first of which is the one that results have; -0.
fn specials(dtype: DataType) -> ([u64; 3], &'static [u64], u64) {
    match dtype {
        DataType::F8E4M3 => ([0x38, 0x44, 0x48], &[0x7f, 0xff], 0x80),
        DataType::F8E5M2 => ([0x3c, 0x42, 0x44], &[0x7e, 0x7d, 0xff], 0x80),
        DataType::F16 => ([0x3c00, 0x4200, 0x4400], &[0x7e00, 0x7c01, 0xffff], 0x8000),
        DataType::Bf16 => ([0x3f80, 0x4040, 0x4080], &[0x7fc0, 0x7f81, 0xffff], 0x8000),
        DataType::F32 => (
            [1.0_f32, 3.0, 4.0].map(|value| u64::from(value.to_bits())),
            &[0x7fc0_0000, 0x7f80_0001, 0xffff_ffff],
            0x8000_0000,
        ),
        _ => (
            [1.0_f64, 3.0, 4.0].map(f64::to_bits),
            &[0x7ff8 << 48, 0x7ff0 << 48 | 1, u64::MAX],
            1 << 63,
        ),
    }
}

#[test]
fn b009_nan_and_signed_zeros_on_any_rank_by_every_algorithm() {
    for algorithm in ALGORITHMS {
        job(4, "shm", algorithm).run(|communicator| {
            let rank = communicator.rank() as usize;
            for dtype in FLOATS {
                let ([one, three, four], nans, negative_zero) = specials(dtype);
                let mine = |values: [u64; 4]| {
                    bytes(dtype, placements().into_iter().map(|order| values[order[rank]]))
                };
                let all = |bits: u64| bytes(dtype, [bits; 24]);
                for op in [RedOp::Min, RedOp::Max] {
                    let what = format!("{dtype} {op} by {algorithm}");
                    for nan in nans {
                        let result =
                            all_reduce(communicator, dtype, op, &mine([one, *nan, three, four]));
                        assert_eq!(result, Some(all(nans[0])), "{what}, {nan:#x}");
                    }
                    let result = all_reduce(communicator, dtype, op, &all(nans[1]));
                    assert_eq!(result, Some(all(nans[0])), "{what}: all NaN");
                    let result = all_reduce(
                        communicator,
                        dtype,
                        op,
                        &mine([0, negative_zero, 0, negative_zero]),
                    );
                    let zero = if op == RedOp::Min { negative_zero } else { 0 };
                    assert_eq!(result, Some(all(zero)), "{what}: zeros");
                    let result = all_reduce(communicator, dtype, op, &mine([one, three, 0, four]));
                    let expected = if op == RedOp::Min { 0 } else { four };
                    assert_eq!(result, Some(all(expected)), "{what}");
                }
            }
        });
    }
}

/// Any bits, NaNs and infinities included.
fn any_bits(dtype: DataType, rank: u32, count: usize) -> Vec<u8> {
    bytes(dtype, (0..count as u64).map(|at| scramble(at << 4 | u64::from(rank))))
}

#[test]
fn b010_all_ranks_get_the_same_bits_of_every_float() {
    const OPS: [RedOp; 4] = [RedOp::Sum, RedOp::Prod, RedOp::Avg, RedOp::PreMulSum];
    for algorithm in ALGORITHMS {
        for layout in ["shm", "tcp"] {
            let of_ranks = job(3, layout, algorithm).run(|communicator| {
                let mut results = Vec::new();
                for dtype in FLOATS {
                    for (op, count) in OPS.iter().flat_map(|op| [1, 10, 10_007].map(|n| (*op, n))) {
                        let own = any_bits(dtype, communicator.rank(), count);
                        let first = all_reduce(communicator, dtype, op, &own);
                        let second = all_reduce(communicator, dtype, op, &own);
                        assert!(first == second, "{dtype} {op} × {count}, {algorithm}: twice");
                        results.push((dtype, op, count, first));
                    }
                }
                results
            });
            for other in &of_ranks[1..] {
                for (ours, theirs) in of_ranks[0].iter().zip(other) {
                    let (dtype, op, count, _) = ours;
                    assert!(ours == theirs, "{dtype} {op} × {count}, {layout}, {algorithm}");
                }
            }
            let carried = of_ranks[0].iter().filter(|(.., result)| result.is_some()).count();
            assert!(carried >= 2 * 3 * 2, "{algorithm} carries f32 and f64");
        }
    }
}

/// 16 + 1 + 1 in E4M3, 8 + 1 + 1 in E5M2: where each step is rounded, every 1 is lost.
#[test]
fn b011_sums_of_8_bit_floats_are_rounded_once() {
    for layout in ["shm", "tcp"] {
        for algorithm in ALGORITHMS {
            job(3, layout, algorithm).run(|communicator| {
                for (dtype, large, one, sum) in
                    [(DataType::F8E4M3, 0x58, 0x38, 0x59), (DataType::F8E5M2, 0x48, 0x3c, 0x49)]
                {
                    let own = if communicator.rank() == 0 { large } else { one };
                    let result = all_reduce(communicator, dtype, RedOp::Sum, &[own; 1000]);
                    let rounds_each_step = ["recursive_doubling", "ring"].contains(&algorithm);
                    assert_eq!(result.is_none(), rounds_each_step, "{algorithm}");
                    assert!(result.is_none_or(|result| result == [sum; 1000]), "{algorithm}");
                }
            });
        }
    }
}

#[test]
fn b001_the_mean_that_a_reduce_scatter_gives_is_a_mean() {
    job(2, "shm", "auto").run(|communicator| {
        let (device, rank) = (communicator.device(), communicator.rank() as usize);
        let own = [[1.0_f32, 2.0, 3.0, 4.0], [3.0, 4.0, 5.0, 6.0]][rank];
        let send = device.buffer_from(&own).expect("memory");
        let receive = device.allocate::<f32>(2).expect("memory");
        let stream = communicator.stream();
        let called =
            communicator.reduce_scatter(&send, &receive, 2, DataType::F32, RedOp::Avg, stream);
        called.expect("a call").wait().expect("the result");
        let expected = [[2.0, 3.0], [4.0, 5.0]][rank];
        assert_eq!(receive.read::<f32>().expect("the result"), expected);
    });
}

/// What one run gives on every rank: results, and which algorithms were chosen at which cost.
fn deterministic_run(layout: &str, run: u64) -> Vec<(Vec<Vec<f32>>, Vec<Choice>)> {
    let spin = format!("{}us", 1 + 13 * run);
    let job = Job::new(4).with("transport.enabled", layout).with("engine.deterministic", "true");
    job.with("engine.spin", &spin).run(|communicator| {
        let (device, stream) = (communicator.device(), communicator.stream());
        let rank = communicator.rank();
        let (mut results, mut choices) = (Vec::new(), Vec::new());
        for count in [1_u64, 999, 70_001] {
            // No two of these sums in another order are alike for long.
            let own: Vec<f32> = (0..4 * count)
                .map(|at| (scramble(at << 2 | u64::from(rank)) % 1_000_003) as f32 * 1e-3 - 500.0)
                .collect();
            let send = device.buffer_from(&own).expect("memory");
            let mut begun: Vec<(Handle, _)> = Vec::new();
            for collective in [Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter]
            {
                let receive = device.allocate::<f32>(count as usize).expect("memory");
                // Another rank comes late each time, by another while.
                let jitter = scramble(run << 20 | count << 4 | u64::from(rank)) % 3_000;
                std::thread::sleep(Duration::from_micros(jitter));
                let (dtype, op) = (DataType::F32, RedOp::Sum);
                let called = match collective {
                    Collective::AllReduce => {
                        communicator.all_reduce(&send, &receive, count, dtype, op, stream)
                    }
                    Collective::Reduce => {
                        communicator.reduce(&send, Some(&receive), count, dtype, op, 2, stream)
                    }
                    _ => communicator.reduce_scatter(&send, &receive, count, dtype, op, stream),
                };
                begun.push((called.expect("a call"), receive));
                choices.push(communicator.explain(collective, dtype, op, count).expect("a choice"));
            }
            for (handle, receive) in begun {
                handle.wait().unwrap_or_else(|error| panic!("{error}"));
                results.push(receive.read().expect("a result"));
            }
        }
        (results, choices)
    })
}

#[test]
fn deterministic_runs_give_the_same_bits_whatever_the_timing() {
    for layout in ["shm", "tcp"] {
        let first = deterministic_run(layout, 0);
        let algorithms: Vec<Algorithm> = first[0].1.iter().map(|choice| choice.algorithm).collect();
        assert!(algorithms.iter().any(|one| *one != algorithms[0]), "several: {algorithms:?}");
        for run in 1..6 {
            let again = deterministic_run(layout, run);
            for (rank, (first, again)) in first.iter().zip(&again).enumerate() {
                let bits = |of: &[Vec<f32>]| -> Vec<Vec<u32>> {
                    of.iter().map(|one| one.iter().map(|value| value.to_bits()).collect()).collect()
                };
                assert!(bits(&first.0) == bits(&again.0), "{layout}, run {run}, rank {rank}");
                assert_eq!(first.1, again.1, "{layout}, run {run}, rank {rank}: the choice");
            }
        }
    }
}

/// What was measured at another time must not lead to another order of additions.
#[test]
fn deterministic_choices_come_from_no_measurement() {
    let folder = tempfile::tempdir().expect("a folder");
    let measured = |alpha_ns: u64, bytes_per_us: u64| {
        let path = folder.path().join(format!("{alpha_ns}.json"));
        let text = format!(
            r#"[{{"tier": "shm", "alpha_ns": {alpha_ns}, "bytes_per_us": {bytes_per_us}}}]"#
        );
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("a path in UTF-8").to_owned()
    };
    let choices = |deterministic: bool| {
        [measured(10, 10_000), measured(900_000, 100_000)].map(|calibration| {
            let job = job(4, "shm", "auto").with("plan.calibration", &calibration);
            let job = job.with("engine.deterministic", &deterministic.to_string());
            let of_ranks = job.run(|communicator| {
                let explain = |count| {
                    communicator.explain(Collective::AllReduce, DataType::F32, RedOp::Sum, count)
                };
                [10, 10_000, 100_000].map(|count| explain(count).expect("a choice"))
            });
            assert!(of_ranks.iter().all(|choices| *choices == of_ranks[0]), "all ranks alike");
            of_ranks[0].clone()
        })
    };
    let [one, other] = choices(true);
    assert_eq!(one, other);
    let [one, other] = choices(false).map(|choices| choices.map(|choice| choice.algorithm));
    assert_ne!(one, other, "the calibration makes a difference where it may");
}

/// Every test that the page names is there.
#[test]
fn the_page_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/numerics.md")).expect("the page");
    let named: Vec<&str> =
        page.split('`').skip(1).step_by(2).filter_map(|text| text.strip_suffix("()")).collect();
    assert!(named.len() > 30, "{named:?}");
    let mut sources = String::new();
    let mut folders: Vec<_> = ["tests/tests", "iccl-kernels", "iccl-runtime", "iccl-cli/src"]
        .iter()
        .map(|folder| root.join(folder))
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of this repository") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources += &std::fs::read_to_string(&path).expect("a source file");
            }
        }
    }
    for name in named {
        assert!(
            sources.contains(&format!("fn {name}()")) || sources.contains(&format!("fn {name}(\n")),
            "docs/numerics.md names {name}, which is no test"
        );
    }
}
