//! Ranks that call different things: all of them learn between whom and in what, and no byte of a
//! receive buffer is written. Ranks are threads of this process.

use std::ffi::c_void;
use std::sync::Barrier;
use std::time::Instant;

use iccl_plugin_api::{Collective, DataType, RedOp};
use iccl_runtime::comm::{Communicator, Handle};
use iccl_runtime::{Error, ErrorKind, Result};
use iccl_tests::guarded::Guarded;
use iccl_tests::ranks::{Job, SOON, layouts, must_be_right, sum, wait_until};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

/// What one rank calls.
#[derive(Clone, Copy, Debug)]
struct Asked {
    collective: Collective,
    dtype: DataType,
    op: RedOp,
    count: u64,
    root: u32,
}

const ALL_REDUCE: Asked = Asked {
    collective: Collective::AllReduce,
    dtype: DataType::F32,
    op: RedOp::Sum,
    count: 4,
    root: 0,
};
const BROADCAST: Asked = Asked { collective: Collective::Broadcast, ..ALL_REDUCE };

impl Asked {
    fn call(
        &self,
        communicator: &Communicator,
        send: *mut c_void,
        receive: *mut c_void,
    ) -> Result<Handle> {
        let (stream, Self { dtype, op, count, root, .. }) = (communicator.stream(), *self);
        // SAFETY: callers give memory of `count` elements that lives until the operation is over.
        unsafe {
            match self.collective {
                Collective::AllReduce => {
                    communicator.all_reduce_raw(send, receive, count, dtype, op, stream)
                }
                Collective::Broadcast => {
                    communicator.broadcast_raw(send, receive, count, dtype, root, stream)
                }
                other => panic!("{other} is not tested here"),
            }
        }
    }
}

/// Runs a call in which `odd` asks for something else: all ranks must learn what and between whom,
/// and no byte of a receive buffer may change.
fn disagree(usual: Asked, other: Asked, odd: u32, field: &str, job: &Job, layout: &str) {
    let what = format!("{layout}, {} ranks, rank {odd} asks for {other:?}", job.ranks());
    let all_are_right = Barrier::new(job.ranks() as usize);
    let errors = job.run(|communicator| -> Error {
        let asked = if communicator.rank() == odd { other } else { usual };
        let bytes = asked.count as usize * asked.dtype.size_bytes();
        must_be_right(communicator);
        all_are_right.wait();
        let send = Guarded::new(bytes, 1);
        let receive = Guarded::new(bytes, 0xee);
        let started = Instant::now();
        // A rank that comes last may hear of it before it calls.
        let call = asked.call(communicator, send.address(), receive.address());
        let outcome = call.and_then(|handle| handle.wait());
        if outcome.is_ok() {
            // A root that sends into a tree may be done before the others compare; it learns of it
            // all the same.
            assert_eq!(asked.collective, Collective::Broadcast, "{what}");
            wait_until(&what, || communicator.async_error().is_some());
        }
        let error = communicator.async_error().expect("it has failed");
        if let Err(told) = outcome {
            assert_eq!(told.to_string(), error.to_string(), "{what}");
        }
        assert!(started.elapsed() < SOON, "{what}: {:?}", started.elapsed());
        assert!(receive.bytes().iter().all(|byte| *byte == 0xee), "{what}: it was written");
        send.check();
        receive.check();
        let later = sum(communicator, 1, 1).expect_err("the communicator has failed");
        assert_eq!(later.kind(), error.kind());
        error
    });
    let odd_name = format!("rank {odd} ");
    for (rank, error) in errors.iter().enumerate() {
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{what}: rank {rank}: {text}");
        assert!(text.contains(&odd_name), "{what}: rank {rank}: {text}");
        let sides = [other, usual].map(|asked| format!("({} × {}", asked.dtype, asked.count));
        assert!(sides.iter().all(|side| text.contains(side)), "{what}: rank {rank}: {text}");
        assert!(text.contains("seq 1"), "{what}: rank {rank}: {text}");
        let names = [usual.collective, other.collective];
        assert!(names.iter().all(|name| text.contains(name.name())), "{what}: {rank}: {text}");
    }
    // Whoever noticed it itself names the field.
    let named = |error: &Error| error.context().any(|(_, value)| value == field);
    assert!(errors.iter().any(named), "{what}: {errors:?}");
}

fn disagreements(usual: Asked, others: &[(Asked, &str)]) {
    for ranks in [2, 4] {
        for (layout, job) in layouts(ranks) {
            for (at, (other, field)) in (0_u32..).zip(others) {
                disagree(usual, *other, at % ranks, field, &job, layout);
            }
        }
    }
}

#[test]
fn b014_datatypes_differ() {
    let bf16 = Asked { dtype: DataType::Bf16, ..ALL_REDUCE };
    // As many bytes.
    let i32 = Asked { dtype: DataType::I32, ..ALL_REDUCE };
    disagreements(ALL_REDUCE, &[(bf16, "dtype"), (i32, "dtype")]);
}

#[test]
fn b015_counts_differ() {
    for (a, b) in [(1, 2), (100 * 2560, 200 * 2560), (1024, 1025)] {
        for (usual, other) in [(a, b), (b, a)] {
            let (usual, other) =
                (Asked { count: usual, ..ALL_REDUCE }, Asked { count: other, ..ALL_REDUCE });
            for (layout, job) in layouts(2) {
                disagree(usual, other, 0, "count", &job, layout);
                disagree(usual, other, 1, "count", &job, layout);
            }
            disagree(usual, other, 2, "count", &Job::new(3), "three");
        }
    }
}

#[test]
fn b016_ops_and_collectives_differ() {
    let maximum = Asked { op: RedOp::Max, ..ALL_REDUCE };
    disagreements(ALL_REDUCE, &[(maximum, "op"), (BROADCAST, "collective")]);
}

#[test]
fn b016_roots_differ() {
    let other = Asked { root: 1, ..BROADCAST };
    disagreements(BROADCAST, &[(other, "root"), (other, "root")]);
    let long = Asked { count: 100_000, ..BROADCAST };
    disagreements(long, &[(Asked { root: 1, ..long }, "root")]);
}

#[test]
fn b016_forced_algorithms_compare_too() {
    for algorithm in ["direct", "owner", "recursive_doubling", "ring"] {
        let job = Job::new(3).with("algorithm.all_reduce", algorithm);
        let (usual, other) =
            (Asked { count: 10, ..ALL_REDUCE }, Asked { count: 20_000, ..ALL_REDUCE });
        for odd in 0..3 {
            disagree(usual, other, odd, "count", &job, algorithm);
            disagree(other, usual, odd, "count", &job, algorithm);
        }
    }
}

#[test]
fn a_receive_of_another_length_fails_on_both_sides() {
    for (layout, job) in layouts(2) {
        job.run(|communicator| {
            let device = communicator.device();
            let stream = communicator.stream();
            let buffer = device.buffer_from(&[9_i32; 1000]).expect("memory");
            if communicator.rank() == 0 {
                // A send may be over before its receiver has looked at it.
                let sent = communicator.send(&buffer, 1000, DataType::I32, 1, stream);
                let _ = sent.expect("a call").wait();
                wait_until(layout, || communicator.async_error().is_some());
            } else {
                let received = communicator.recv(&buffer, 999, DataType::I32, 0, stream);
                let error = received.expect("a call").wait().expect_err("another length");
                assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
                assert_eq!(buffer.read::<i32>().expect("memory"), [9; 1000]);
            }
            let error = communicator.async_error().expect("it has failed");
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{layout}: {text}");
            assert!(text.contains("× 1000") && text.contains("× 999"), "{layout}: {text}");
        });
    }
}
