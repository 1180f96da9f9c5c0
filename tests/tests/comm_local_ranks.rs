//! One thread that serves several ranks.

use std::time::{Duration, Instant};

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::ErrorKind;
use iccl_runtime::comm::{Communicator, Group, Handle};
use iccl_tests::ranks::{Job, SOON};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const I32: DataType = DataType::I32;

#[test]
fn one_thread_serves_all_ranks() {
    let job = Job::new(4);
    let runtime = job.runtime(0).expect("a runtime");
    let id = runtime.local_unique_id().expect("a unique id");
    let made = runtime.communicators(&id, &[2, 0, 3, 1], 4);
    let made = made.unwrap_or_else(|error| panic!("{error}"));
    let ranks: Vec<_> = made.iter().map(Communicator::rank).collect();
    assert_eq!(ranks, [2, 0, 3, 1]);
    let device = runtime.device().expect("a device");
    let stream = device.stream().expect("a stream");
    for in_a_group in [true, false] {
        let buffers: Vec<_> = made
            .iter()
            .map(|one| device.buffer_from(&vec![one.rank() as i32; 5000]).expect("memory"))
            .collect();
        let call_all = || -> iccl_runtime::Result<Vec<Handle>> {
            let each = made.iter().zip(&buffers);
            each.map(|(one, data)| {
                // All on one stream in a group, each on its own without.
                let stream = if in_a_group { &stream } else { one.stream() };
                one.all_reduce(data, data, 5000, I32, RedOp::Sum, stream)
            })
            .collect()
        };
        let handles = if in_a_group { Group::run(call_all) } else { call_all() };
        for handle in handles.expect("calls") {
            handle.wait().unwrap_or_else(|error| panic!("{error}"));
        }
        for buffer in &buffers {
            assert_eq!(buffer.read::<i32>().expect("memory"), vec![6; 5000]);
        }
    }
    let started = Instant::now();
    Communicator::finalize_all(made).unwrap_or_else(|error| panic!("{error}"));
    assert!(started.elapsed() < SOON);
}

#[test]
fn ranks_of_two_processes_of_two() {
    // Two runtimes stand for two processes, of two ranks each.
    let job = Job::new(4).with("transport.enabled", "tcp");
    let id = job.unique_id();
    std::thread::scope(|scope| {
        for local in [[0, 2], [1, 3]] {
            let (job, id) = (&job, &id);
            scope.spawn(move || {
                let runtime = job.runtime(local[0]).expect("a runtime");
                let made = runtime.communicators(id, &local, 4).expect("communicators");
                let barriers = Group::run(|| {
                    let barrier = |one: &Communicator| one.barrier(one.stream());
                    made.iter().map(barrier).collect::<iccl_runtime::Result<Vec<_>>>()
                });
                for barrier in barriers.expect("calls") {
                    barrier.wait().unwrap_or_else(|error| panic!("{error}"));
                }
                Communicator::finalize_all(made).unwrap_or_else(|error| panic!("{error}"));
            });
        }
    });
}

#[test]
fn where_one_rank_fails_none_is_left() {
    let job = Job::new(3).with("bootstrap.init_timeout", "2s");
    let runtime = job.runtime(0).expect("a runtime");
    let id = runtime.local_unique_id().expect("a unique id");
    let error = runtime.communicators(&id, &[0, 2], 3).expect_err("rank 1 does not come");
    assert!(matches!(error.kind(), ErrorKind::Rendezvous | ErrorKind::Timeout), "{error}");
    assert!(error.to_string().contains('1'), "{error}");
    // The same rank twice.
    let id = runtime.local_unique_id().expect("a unique id");
    let started = Instant::now();
    let error = runtime.communicators(&id, &[0, 0], 2).expect_err("rank 0 comes twice");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(started.elapsed() < SOON + Duration::from_secs(2));
}
