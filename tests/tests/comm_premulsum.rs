//! Pre-multiplied sums: each rank's scalar, where it lies, when it is read. Ranks are threads of this
//! process. That every algorithm carries them for every type is shown by `comm_collectives`, the
//! matrix, and `iccl perf`.

use half::f16;
use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::comm::{Block, Buffer, Communicator, Element, Group, Reduction, Scalar};
use iccl_runtime::{ErrorKind, Result};
use iccl_tests::ranks::{Job, layouts, must_be_right};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

/// The result of an all-reduce; the send buffer must be as it was.
fn all_reduce<T: Element + PartialEq + std::fmt::Debug>(
    communicator: &Communicator,
    own: &[T],
    scalar: impl Into<Scalar>,
) -> Vec<T> {
    let device = communicator.device();
    let send = device.buffer_from(own).expect("memory");
    let receive = device.allocate::<T>(own.len()).expect("memory");
    let (count, stream) = (own.len() as u64, communicator.stream());
    let op = Reduction::pre_mul_sum(scalar);
    let called = communicator.all_reduce(&send, &receive, count, T::DTYPE, op, stream);
    called.expect("a call").wait().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(send.read::<T>().expect("what was sent"), own);
    receive.read().expect("the result")
}

#[test]
fn b034_two_ranks_with_half_and_scalars_of_their_own() {
    for layout in ["shm", "tcp"] {
        Job::new(2).with("transport.enabled", layout).run(|communicator| {
            let rank = communicator.rank();
            let own = f16::from_f32([2.0, 4.0][rank as usize]);
            let half = f16::from_f32(0.5);
            assert_eq!(all_reduce(communicator, &[own], half), [f16::from_f32(3.0)]);
            let scalar = [1.0_f32, 10.0][rank as usize];
            assert_eq!(all_reduce(communicator, &[1.0_f32; 5], scalar), [11.0; 5]);
            // Of every type, integers included: 3 · 2 + 5 · 2; and they wrap.
            assert_eq!(all_reduce(communicator, &[[3_i8, 5][rank as usize]], 2_i8), [16]);
            assert_eq!(all_reduce(communicator, &[i8::MAX], 2_i8), [-4]);
            assert_eq!(all_reduce(communicator, &[u64::MAX], 3_u64), [u64::MAX - 5]);
        });
    }
}

#[test]
fn b034_one_rank_multiplies_too() {
    Job::new(1).run(|communicator| {
        assert_eq!(
            all_reduce(communicator, &[f16::from_f32(2.0)], f16::from_f32(0.5)),
            [f16::from_f32(1.0)]
        );
        let (device, stream) = (communicator.device(), communicator.stream());
        let joint = device.buffer_from(&[3_i32, -4]).expect("memory");
        let op = Reduction::pre_mul_sum(7_i32);
        let called = communicator.all_reduce(&joint, &joint, 2, DataType::I32, op, stream);
        called.expect("a call").wait().expect("the result");
        assert_eq!(joint.read::<i32>().expect("the result"), [21, -28]);
    });
}

/// The product is rounded to the type before it is summed: 683 · 3 = 2049 is 2048 in f16; with the
/// other rank's 1 that is 2049, which is 2048 again. The exact sum, 2050, could be had in f16.
#[test]
fn b034_products_are_rounded_before_they_are_summed() {
    Job::new(2).run(|communicator| {
        let (own, scalar) = [(683.0, 3.0), (1.0, 1.0)][communicator.rank() as usize];
        let sum = all_reduce(communicator, &[f16::from_f32(own)], f16::from_f32(scalar));
        assert_eq!(sum, [f16::from_f32(2048.0)]);
    });
}

#[test]
fn b034_a_scalar_in_device_memory_counts_as_it_is_when_the_stream_comes() {
    for (_, layout) in layouts(2) {
        layout.run(|communicator| {
            let device = communicator.device();
            let rank = communicator.rank();
            let by_value = all_reduce(communicator, &[5.5_f32, -1.25], rank as f32 + 0.25);
            let scalar = device.buffer_from(&[rank as f32 + 0.25]).expect("memory");
            assert_eq!(all_reduce(communicator, &[5.5_f32, -1.25], &scalar), by_value);
            // SAFETY: the scalar is not written or freed before the operation is over.
            let raw = unsafe { Scalar::in_memory(scalar.address().cast_const()) };
            assert_eq!(all_reduce(communicator, &[5.5_f32, -1.25], raw), by_value);

            let stream = device.stream().expect("a stream");
            let send = device.buffer_from(&[1.0_f32; 3]).expect("memory");
            let receive = device.allocate::<f32>(3).expect("memory");
            let hold = stream.hold().expect("held");
            let op = Reduction::pre_mul_sum(&scalar);
            let called = communicator.all_reduce(&send, &receive, 3, DataType::F32, op, &stream);
            let handle = called.expect("a call");
            // The call has returned, and the stream has not come: this is what counts.
            scalar.write(0, &[100.0_f32]).expect("written");
            drop(scalar);
            drop(hold);
            handle.wait().expect("the result");
            let ranks = communicator.ranks() as f32;
            assert_eq!(receive.read::<f32>().expect("the result"), [100.0 * ranks; 3]);
        });
    }
}

#[test]
fn b034_a_sum_and_a_pre_multiplied_sum_are_different_operations() {
    for (_, layout) in layouts(2) {
        layout.run(|communicator| {
            let (device, stream) = (communicator.device(), communicator.stream());
            let send = device.buffer_from(&[1.0_f32; 4]).expect("memory");
            let receive = device.buffer_from(&[-7.0_f32; 4]).expect("memory");
            let op = match communicator.rank() {
                0 => Reduction::pre_mul_sum(1.0_f32),
                _ => RedOp::Sum.into(),
            };
            let called = communicator.all_reduce(&send, &receive, 4, DataType::F32, op, stream);
            let error = called.and_then(|handle| handle.wait()).expect_err("they differ");
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            let text = error.to_string();
            assert!(text.contains("f32 × 4, premulsum") && text.contains("f32 × 4, sum"), "{text}");
            assert_eq!(receive.read::<f32>().expect("memory"), [-7.0; 4]);
        });
    }
}

#[test]
fn scalars_that_make_no_sense_are_refused_and_change_nothing() {
    let foreign = Job::new(1).with("engine.spin", "51us").runtime(0).expect("another runtime");
    let elsewhere = foreign.device().expect("its device").buffer_from(&[1.0_f32]).expect("memory");
    Job::new(2).run(|communicator| {
        let (device, stream) = (communicator.device(), communicator.stream());
        let buffer = device.buffer_from(&[1.0_f32; 4]).expect("memory");
        let short = buffer.slice(0, 3).expect("inside");
        // SAFETY: null is refused before anything is read.
        let null = unsafe { Scalar::in_memory(std::ptr::null()) };
        for (op, what) in [
            (RedOp::PreMulSum.into(), "needs a scalar"),
            (Reduction::pre_mul_sum(1.0_f64), "the scalar is f64, the elements are f32"),
            (Reduction::pre_mul_sum(1_i32), "the scalar is i32, the elements are f32"),
            (Reduction::pre_mul_sum(&short), "the scalar's buffer has 3 bytes"),
            (Reduction::pre_mul_sum(&elsewhere), "the buffer is memory of"),
            (Reduction::pre_mul_sum(null), "the scalar is null"),
        ] {
            for count in [0, 4] {
                let (op, dtype) = (op.clone(), DataType::F32);
                let called = communicator.all_reduce(&buffer, &buffer, count, dtype, op, stream);
                let error = called.expect_err(what);
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                assert!(error.to_string().contains(what), "{error}");
            }
        }
        // What is written while it is still needed: in the receive buffer, at its ends too.
        for at in [0, 4, 12] {
            let op = Reduction::pre_mul_sum(&buffer.slice(at, 4).expect("inside"));
            let called = communicator.all_reduce(&buffer, &buffer, 4, DataType::F32, op, stream);
            let error = called.expect_err("overwritten");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains("lies in the receive buffer"), "{error}");
        }
        let (three, fourth) = (buffer.slice(0, 12).expect("inside"), buffer.slice(12, 4));
        let op = Reduction::pre_mul_sum(&fourth.expect("inside"));
        let called = communicator.all_reduce(&three, &three, 3, DataType::F32, op, stream);
        called.expect("beside it").wait().expect("the result");
        assert_eq!(buffer.read::<f32>().expect("memory"), [2.0, 2.0, 2.0, 1.0]);
        must_be_right(communicator);
    });
}

const RANKS: u32 = 3;
/// More than one piece that is multiplied at once, and no multiple of one.
const LONG: usize = 700_001;

fn element(rank: u32, at: usize) -> i32 {
    (at as i32).wrapping_mul(77_777).wrapping_add(rank as i32)
}

fn own(rank: u32, count: usize) -> Vec<i32> {
    (0..count).map(|at| element(rank, at)).collect()
}

fn factor(rank: u32) -> i32 {
    3 + 4 * rank as i32
}

/// The elements of the result from `first` on.
fn sum(first: usize, count: usize) -> Vec<i32> {
    let product = |rank, at| element(rank, at).wrapping_mul(factor(rank));
    let sum = |at| (0..RANKS).map(|rank| product(rank, at)).fold(0, i32::wrapping_add);
    (first..first + count).map(sum).collect()
}

/// Runs one call on memory of `send`, in place where `receive` is a part of it.
fn reduce_scatter_v(
    communicator: &Communicator,
    send: &Buffer,
    receive: &Buffer,
    blocks: &[Block],
) -> Result<()> {
    let op = Reduction::pre_mul_sum(factor(communicator.rank()));
    let stream = communicator.stream();
    communicator.reduce_scatter_v(send, receive, blocks, DataType::I32, op, stream)?.wait()
}

#[test]
fn b034_long_vectors_in_place_and_out_of_place_by_every_algorithm() {
    for (collective, algorithm) in [
        ("all_reduce", "direct"),
        ("all_reduce", "owner"),
        ("all_reduce", "recursive_doubling"),
        ("all_reduce", "ring"),
        ("reduce", "direct"),
        ("reduce", "owner"),
        ("reduce", "binomial"),
        ("reduce_scatter", "direct"),
        ("reduce_scatter", "ring"),
    ] {
        let job = Job::new(RANKS).with(&format!("algorithm.{collective}"), algorithm);
        let job = job.with("transport.enabled", if algorithm == "ring" { "tcp" } else { "shm" });
        job.run(|communicator| {
            let rank = communicator.rank();
            let (device, stream) = (communicator.device(), communicator.stream());
            let per_rank = LONG / RANKS as usize;
            let elements = if collective == "reduce_scatter" { per_rank * 3 } else { LONG };
            let mine = own(rank, elements);
            for in_place in [false, true] {
                let send = device.buffer_from(&mine).expect("memory");
                let block = rank as usize * per_rank * 4;
                let receive = match (in_place, collective) {
                    (false, _) => device.buffer_from(&vec![-1_i32; elements]).expect("memory"),
                    (true, "reduce_scatter") => {
                        send.slice(block as u64, per_rank as u64 * 4).unwrap()
                    }
                    (true, _) => send.clone(),
                };
                let (op, dtype) = (Reduction::pre_mul_sum(factor(rank)), DataType::I32);
                let (all, one) = (elements as u64, per_rank as u64);
                let called = match collective {
                    "all_reduce" => {
                        communicator.all_reduce(&send, &receive, all, dtype, op, stream)
                    }
                    "reduce" => {
                        communicator.reduce(&send, Some(&receive), all, dtype, op, 1, stream)
                    }
                    _ => communicator.reduce_scatter(&send, &receive, one, dtype, op, stream),
                };
                called.expect("a call").wait().unwrap_or_else(|error| panic!("{error}"));
                let mut sent = send.read::<i32>().expect("memory");
                let what = format!("{collective} by {algorithm}, in place {in_place}, rank {rank}");
                let (first, length) = match collective {
                    "reduce_scatter" => (rank as usize * per_rank, per_rank),
                    "reduce" if rank != 1 => (0, 0),
                    _ => (0, elements),
                };
                let mut received = vec![0; length];
                receive.read_into(0, &mut received).expect("the result");
                assert!(received == sum(first, length), "{what}");
                if in_place {
                    // Around the result, everything is as it was.
                    sent[first..first + length].copy_from_slice(&mine[first..first + length]);
                }
                assert!(sent == mine, "{what}: the send buffer");
            }
        });
    }
}

#[test]
fn b034_blocks_of_a_vector_form_and_what_lies_between_them() {
    let blocks = [(500, 9), (3, 0), (20, 400)].map(|(first, count)| Block { first, count });
    for (_, layout) in layouts(RANKS) {
        layout.run(|communicator| {
            let rank = communicator.rank();
            let device = communicator.device();
            let Block { first, count } = blocks[rank as usize];
            let (first, count) = (first as usize, count as usize);
            let mine = own(rank, 509);
            let send = device.buffer_from(&mine).expect("memory");
            let receive = device.allocate::<i32>(count).expect("memory");
            reduce_scatter_v(communicator, &send, &receive, &blocks).expect("the result");
            assert_eq!(receive.read::<i32>().expect("the result"), sum(first, count));
            assert_eq!(send.read::<i32>().expect("memory"), mine);
            let own_block = send.slice(first as u64 * 4, count as u64 * 4).expect("inside");
            reduce_scatter_v(communicator, &send, &own_block, &blocks).expect("the result");
            let mut after = send.read::<i32>().expect("memory");
            assert_eq!(after[first..first + count], sum(first, count));
            after[first..first + count].copy_from_slice(&mine[first..first + count]);
            assert_eq!(after, mine);
        });
    }
}

#[test]
fn several_in_a_group_have_their_own_scalars() {
    Job::new(2).run(|communicator| {
        let (device, stream) = (communicator.device(), communicator.stream());
        let send = device.buffer_from(&[1_i32, 2]).expect("memory");
        let results: Vec<Buffer> =
            (0..4).map(|_| device.allocate::<i32>(2).expect("memory")).collect();
        let group = Group::start();
        for (factor, receive) in (1..).zip(&results) {
            let op = Reduction::pre_mul_sum(factor);
            let called = communicator.all_reduce(&send, receive, 2, DataType::I32, op, stream);
            let _ = called.expect("a call");
        }
        group.end().expect("a group");
        stream.synchronize().expect("all of them");
        for (factor, receive) in (1..).zip(&results) {
            assert_eq!(receive.read::<i32>().expect("a result"), [2 * factor, 4 * factor]);
        }
    });
}
