//! What callers may do, and what is refused: arguments, order, streams, several communicators, the
//! beginning and the end. Ranks are threads of this process.

use std::ffi::c_void;

use std::time::{Duration, Instant};

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::comm::{Communicator, Handle};
use iccl_runtime::{ErrorKind, Result};
use iccl_tests::guarded::Guarded;
use iccl_tests::ranks::{Job, Meeting, SOON, layouts, must_be_right, sum, wait_until};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const NULL: *mut c_void = std::ptr::null_mut();

// --- Arguments ---------------------------------------------------------------------------------

fn refused(result: Result<Handle>, words: &str) {
    let error = result.expect_err("must be refused");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn b019_zero_counts_and_null() {
    for (_, job) in layouts(2) {
        job.run(|communicator| {
            let (peer, stream) = (1 - communicator.rank(), communicator.stream());
            for dtype in [DataType::F32, DataType::F64] {
                // SAFETY: no element of null is asked for, or the call is refused.
                unsafe {
                    let (call, op) = (communicator, RedOp::Sum);
                    for handle in [
                        call.all_reduce_raw(NULL, NULL, 0, dtype, op, stream),
                        call.broadcast_raw(NULL, NULL, 0, dtype, 1, stream),
                        call.send_raw(NULL, 0, dtype, peer, &call.device().stream().expect("one")),
                        call.recv_raw(NULL, 0, dtype, peer, &call.device().stream().expect("one")),
                    ] {
                        handle.expect("a call").wait().unwrap_or_else(|error| panic!("{error}"));
                    }
                    let memory = Guarded::new(1 << 10, 0);
                    let some = memory.address();
                    refused(call.all_reduce_raw(NULL, some, 1, dtype, op, stream), "null");
                    refused(call.all_reduce_raw(some, NULL, 1, dtype, op, stream), "null");
                    refused(call.broadcast_raw(some, NULL, 1, dtype, peer, stream), "null");
                    let rank = call.rank();
                    refused(call.broadcast_raw(NULL, some, 1, dtype, rank, stream), "null");
                    refused(call.send_raw(NULL, 1, dtype, peer, stream), "null");
                    refused(call.recv_raw(NULL, 1, dtype, peer, stream), "null");
                }
            }
            // Refused calls have no number.
            must_be_right(communicator);
        });
    }
}

#[test]
fn b021_buffers_that_overlap_in_part_are_refused() {
    Job::new(2).run(|communicator| {
        let device = communicator.device();
        let memory = device.buffer_from(&[1_i32; 100]).expect("memory");
        let (low, high) = (memory.slice(0, 40), memory.slice(4, 40));
        let (low, high) = (low.expect("a slice"), high.expect("a slice"));
        let stream = communicator.stream();
        for (send, receive) in [(&low, &high), (&high, &low)] {
            let call =
                communicator.all_reduce(send, receive, 10, DataType::I32, RedOp::Sum, stream);
            refused(call, "overlap");
        }
        assert_eq!(memory.read::<i32>().expect("memory"), [1; 100]);
        // Side by side is no overlap, and the same memory is in place.
        let beside = memory.slice(40, 40).expect("a slice");
        for receive in [&beside, &low] {
            let call =
                communicator.all_reduce(&low, receive, 10, DataType::I32, RedOp::Sum, stream);
            call.expect("a call").wait().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(receive.read::<i32>().expect("memory"), [2; 10]);
        }
    });
}

#[test]
fn impossible_arguments_are_refused_and_change_nothing() {
    let job = Job::new(2);
    let foreign = Job::new(1).with("log.level", "warn").runtime(0).expect("another runtime");
    job.run(|communicator| {
        let (device, stream) = (communicator.device(), communicator.stream());
        let short = device.allocate::<i32>(9).expect("memory");
        let long = device.allocate::<i32>(10).expect("memory");
        let all_reduce = |send, receive, count, dtype, stream| {
            communicator.all_reduce(send, receive, count, dtype, RedOp::Sum, stream)
        };
        refused(all_reduce(&short, &long, 10, DataType::I32, stream), "36 bytes");
        refused(all_reduce(&long, &short, 10, DataType::I32, stream), "receive buffer");
        let elsewhere = foreign.device().expect("its device");
        let strange = elsewhere.allocate::<i32>(10).expect("memory");
        let other_stream = elsewhere.stream().expect("a stream");
        refused(all_reduce(&strange, &long, 10, DataType::I32, stream), "the buffer is memory of");
        refused(all_reduce(&long, &long, 10, DataType::I32, &other_stream), "the stream is of");
        for op in [RedOp::BitAnd, RedOp::BitOr, RedOp::BitXor] {
            let bits_of_floats =
                communicator.all_reduce(&long, &long, 10, DataType::F32, op, stream);
            let error = bits_of_floats.expect_err("bits of floats");
            assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
        }
        let rank = communicator.rank();
        refused(communicator.send(&long, 10, DataType::I32, rank, stream), "");
        refused(communicator.send(&long, 10, DataType::I32, 2, stream), "");
        refused(communicator.recv(&long, 10, DataType::I32, 7, stream), "");
        refused(communicator.broadcast(Some(&long), &long, 10, DataType::I32, 2, stream), "");
        for count in [u64::MAX, u64::MAX / 4, 1 << 61, (1 << 61) - 1, 1 << 60, 1 << 40] {
            refused(all_reduce(&long, &long, count, DataType::I32, stream), "");
        }
        must_be_right(communicator);
    });
}

// --- Order, streams, several at once -----------------------------------------------------------

#[test]
fn b031_sizes_that_change_from_call_to_call() {
    let rounds = if cfg!(debug_assertions) { 200 } else { 2000 };
    for ranks in [2, 4] {
        Job::new(ranks).run(|communicator| {
            let device = communicator.device();
            let (rank, ranks) = (communicator.rank() as i32, ranks as i32);
            let send = device.allocate::<i32>(1 << 18).expect("memory");
            let receive = device.allocate::<i32>(1 << 18).expect("memory");
            for round in 0..rounds {
                let count = [1, 65_536, 3, 1 << 18][round as usize % 4];
                send.write(0, &vec![rank + round; count]).expect("memory");
                let (sum, stream) = (RedOp::Sum, communicator.stream());
                let call = communicator.all_reduce(
                    &send,
                    &receive,
                    count as u64,
                    DataType::I32,
                    sum,
                    stream,
                );
                call.expect("a call").wait().unwrap_or_else(|error| panic!("{error}"));
                let mut got = vec![0_i32; count];
                receive.read_into(0, &mut got).expect("memory");
                let expected = ranks * (ranks - 1) / 2 + ranks * round;
                assert!(got.iter().all(|one| *one == expected), "round {round}, {count}");
            }
        });
    }
}

#[test]
fn b031_sixteen_outstanding_operations_awaited_in_reverse() {
    for (layout, job) in layouts(4) {
        for own_streams in [false, true] {
            job.run(|communicator| {
                let device = communicator.device();
                let operations: Vec<_> = (0..16_i32)
                    .map(|number| {
                        let value = communicator.rank() as i32 * 100 + number;
                        let count = 1000 + 5000 * (number as usize % 3);
                        let send = device.buffer_from(&vec![value; count]).expect("memory");
                        let receive = device.allocate::<i32>(count).expect("memory");
                        let stream = if own_streams {
                            device.stream().expect("a stream")
                        } else {
                            communicator.stream().clone()
                        };
                        let (count, op) = (count as u64, RedOp::Sum);
                        let call = communicator.all_reduce(
                            &send,
                            &receive,
                            count,
                            DataType::I32,
                            op,
                            &stream,
                        );
                        (number, receive, call.expect("a call"), stream)
                    })
                    .collect();
                for (number, receive, handle, _) in operations.iter().rev() {
                    handle.wait().unwrap_or_else(|error| panic!("{layout}: {error}"));
                    let got: Vec<i32> = receive.read().expect("memory");
                    assert!(got.iter().all(|one| *one == 600 + 4 * number), "{layout}, {number}");
                }
            });
        }
    }
}

/// Two communicators of the same two ranks, on threads.
fn two_communicators(job: &Job, body: impl Fn(Communicator, Communicator) + Sync) {
    let (first, second) = (job.unique_id(), job.unique_id());
    job.each(|rank| {
        let runtime = job.runtime(rank).expect("a runtime");
        let make = |id| runtime.communicator(id, rank, job.ranks());
        let communicators = (make(&first), make(&second));
        body(communicators.0.expect("the first"), communicators.1.expect("the second"));
    });
}

#[test]
fn b048_two_communicators_used_in_different_order() {
    for (_, job) in layouts(2) {
        two_communicators(&job, |a, b| {
            let rounds = || 0..if cfg!(debug_assertions) { 100 } else { 500 };
            if a.rank() == 0 {
                std::thread::scope(|scope| {
                    scope.spawn(|| rounds().for_each(|_| must_be_right(&a)));
                    scope.spawn(|| rounds().for_each(|_| must_be_right(&b)));
                });
            } else {
                rounds().for_each(|_| {
                    must_be_right(&b);
                    must_be_right(&a);
                });
            }
        });
    }
}

#[test]
fn b049_one_communicator_from_two_threads() {
    for (_, job) in layouts(2) {
        job.run(|communicator| {
            let rounds = if cfg!(debug_assertions) { 100 } else { 500 };
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| (0..rounds).for_each(|_| must_be_right(communicator)));
                }
            });
        });
    }
}

#[test]
fn an_operation_is_done_in_the_order_of_its_stream_and_the_call_does_not_wait() {
    for (layout, job) in layouts(2) {
        let enqueued = Meeting::new(2);
        job.run(|communicator| {
            let (device, stream) = (communicator.device(), communicator.stream());
            let data = device.buffer_from(&[5_i32; 1000]).expect("memory");
            let result = device.allocate::<i32>(1000).expect("memory");
            if communicator.rank() == 0 {
                // The all-reduce is behind the receive, whose sender waits for this barrier.
                let received = communicator.recv(&data, 1000, DataType::I32, 1, stream);
                let call = communicator.all_reduce(
                    &data,
                    &result,
                    1000,
                    DataType::I32,
                    RedOp::Sum,
                    stream,
                );
                let handle = call.expect("a call");
                assert!(!handle.is_over() && !stream.is_done().expect("a stream"));
                let error = handle.wait_for(Duration::from_millis(50)).expect_err("it is held");
                assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
                enqueued.wait();
                handle.wait().unwrap_or_else(|error| panic!("{layout}: {error}"));
                assert!(received.expect("a call").is_over(), "{layout}");
            } else {
                enqueued.wait();
                let sent = communicator.send(&data, 1000, DataType::I32, 0, stream);
                sent.expect("a call").wait().unwrap_or_else(|error| panic!("{layout}: {error}"));
                data.write(0, &[7_i32; 1000]).expect("memory");
                let call = communicator.all_reduce(
                    &data,
                    &result,
                    1000,
                    DataType::I32,
                    RedOp::Sum,
                    stream,
                );
                // Nobody waits for it: it must go on by itself.
                let handle = call.expect("a call");
                wait_until(layout, || handle.is_over());
            }
            stream.synchronize().unwrap_or_else(|error| panic!("{layout}: {error}"));
            // What the receive brought, and what the sender had by then.
            assert_eq!(result.read::<i32>().expect("memory"), [12; 1000], "{layout}");
        });
    }
}

#[test]
fn a_stream_waits_for_another() {
    for (layout, job) in layouts(2) {
        let turn = Meeting::new(2);
        job.run(|communicator| {
            let device = communicator.device();
            let data = device.buffer_from(&[5_i32; 1000]).expect("memory");
            let (first, second) = (device.stream().expect("one"), device.stream().expect("one"));
            let finish = |handle: &Handle| {
                handle.wait().unwrap_or_else(|error| panic!("{layout}: {error}"));
            };
            if communicator.rank() == 0 {
                let receive = |count| communicator.recv(&data, count, DataType::I32, 1, &first);
                let received = receive(1000).expect("a call");
                second.wait_for(&first).expect("two streams of a device");
                // Later work of the first is not waited for, nor does a stream wait for itself.
                let later = receive(0).expect("a call");
                second.wait_for(&second).expect("itself");
                let summed = communicator
                    .all_reduce(&data, &data, 1000, DataType::I32, RedOp::Sum, &second)
                    .expect("a call");
                assert!(!second.is_done().expect("a stream") && !summed.is_over());
                turn.wait();
                finish(&summed);
                assert!(received.is_over() && !later.is_over(), "{layout}");
                assert_eq!(data.read::<i32>().expect("memory"), [12; 1000], "{layout}");
                turn.wait();
                finish(&later);
            } else {
                let send = |count| {
                    communicator.send(&data, count, DataType::I32, 0, communicator.stream())
                };
                turn.wait();
                data.write(0, &[6_i32; 1000]).expect("memory");
                finish(&send(1000).expect("a call"));
                let stream = communicator.stream();
                let summed =
                    communicator.all_reduce(&data, &data, 1000, DataType::I32, RedOp::Sum, stream);
                finish(&summed.expect("a call"));
                turn.wait();
                finish(&send(0).expect("a call"));
            }
        });
    }
}

#[test]
fn an_operation_that_fails_early_does_not_let_its_stream_past_those_before_it() {
    let failed = Meeting::new(2);
    two_communicators(&Job::new(2), |a, b| {
        let device = a.device();
        let stream = device.stream().expect("a stream");
        let buffer = device.buffer_from(&[1_i32; 10]).expect("memory");
        if a.rank() == 0 {
            let first = a.recv(&buffer, 10, DataType::I32, 1, &stream).expect("a call");
            let second = b.barrier(&stream).expect("a call");
            b.abort();
            assert_eq!(second.wait().expect_err("aborted").kind(), ErrorKind::Aborted);
            assert!(!first.is_over());
            assert!(!stream.is_done().expect("a stream"), "the receive is not over");
            failed.wait();
            first.wait().unwrap_or_else(|error| panic!("{error}"));
            wait_until("the stream", || stream.is_done().expect("a stream"));
        } else {
            failed.wait();
            let sent = a.send(&buffer, 10, DataType::I32, 0, &stream).expect("a call");
            sent.wait().unwrap_or_else(|error| panic!("{error}"));
        }
    });
}

#[test]
fn what_waits_behind_a_stream_that_does_not_come_has_a_deadline() {
    two_communicators(&Job::new(2).with("engine.op_timeout", "2s"), |a, b| {
        let (device, data) = (a.device(), DataType::I32);
        let buffer = device.buffer_from(&[1_i32; 10]).expect("memory");
        if a.rank() == 1 {
            std::thread::sleep(Duration::from_secs(1));
            let sent = b.send(&buffer, 10, data, 0, b.stream()).expect("a call");
            sent.wait().unwrap_or_else(|error| panic!("{error}"));
            wait_until("the other rank's failure", || a.async_error().is_some());
            return;
        }
        // Held for longer than the first of these receives may take.
        let held = device.stream().expect("a stream");
        let holds = [0, 1].map(|_| b.recv(&buffer, 10, data, 1, &held).expect("a call"));
        let front = a.barrier(&held).expect("a call");
        let behind = a.barrier(a.stream()).expect("a call");
        let error = behind.wait().expect_err("the one before it cannot start");
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let told = error.to_string();
        assert!(told.contains("barrier seq 1") && told.contains("behind barrier seq 0"), "{told}");
        assert!(front.is_over() && holds[0].is_over());
        b.abort();
    });
}

#[test]
fn b046_both_send_first() {
    for (layout, job) in layouts(2) {
        // Few bytes are buffered on the way; many wait for the receiver, and it is told whose.
        for (count, fits) in [(1_u64, true), (8 << 20, false)] {
            let job = job.clone().with("engine.op_timeout", if fits { "60s" } else { "2s" });
            job.run(|communicator| {
                let peer = 1 - communicator.rank();
                let (device, stream) = (communicator.device(), communicator.stream());
                let send = device.buffer_from(&vec![3_u8; count as usize]).expect("memory");
                let receive = device.allocate::<u8>(count as usize).expect("memory");
                let sent = communicator.send(&send, count, DataType::U8, peer, stream);
                let sent = sent.expect("a call").wait();
                if fits {
                    sent.unwrap_or_else(|error| panic!("{layout}: {error}"));
                    let received = communicator.recv(&receive, count, DataType::U8, peer, stream);
                    received.expect("a call").wait().unwrap_or_else(|error| panic!("{error}"));
                    assert_eq!(receive.read::<u8>().expect("memory"), [3]);
                } else {
                    let error = sent.expect_err("nobody receives");
                    assert_eq!(error.kind(), ErrorKind::Timeout, "{layout}: {error}");
                    assert!(error.to_string().contains("unmatched send to rank"), "{error}");
                }
            });
        }
    }
}

// --- The end -----------------------------------------------------------------------------------

#[test]
fn b050_abort_wakes_waiters_here_and_elsewhere() {
    for (layout, job) in layouts(2) {
        two_communicators(&job, |a, b| {
            if a.rank() == 1 {
                // Never takes part in A.
                must_be_right(&b);
                wait_until(layout, || a.async_error().is_some());
                let error = a.async_error().expect("aborted");
                assert_eq!((error.kind(), error.rank()), (ErrorKind::Aborted, Some(0)), "{error}");
                must_be_right(&b);
                return;
            }
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| sum(&a, 1, 1000));
                must_be_right(&b);
                std::thread::sleep(Duration::from_millis(100));
                let started = Instant::now();
                a.abort();
                assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
                let error = waiter.join().expect("a waiter").expect_err("aborted");
                assert_eq!((error.kind(), error.rank()), (ErrorKind::Aborted, Some(0)), "{error}");
            });
            must_be_right(&b);
        });
    }
}

#[test]
fn b050_an_abort_is_heard_by_all_who_wait() {
    for (layout, job) in layouts(3) {
        job.run(|communicator| {
            if communicator.rank() == 1 {
                std::thread::sleep(Duration::from_millis(50));
                communicator.abort();
                return;
            }
            let device = communicator.device();
            let buffer = device.allocate::<i32>(10).expect("memory");
            let stream = communicator.stream();
            let error = communicator
                .recv(&buffer, 10, DataType::I32, 1, stream)
                .and_then(|handle| handle.wait())
                .expect_err("aborted");
            assert_eq!(error.kind(), ErrorKind::Aborted, "{layout}: {error}");
            assert_eq!(error.rank(), Some(1), "{layout}: {error}");
        });
    }
}

#[test]
fn b052_communicators_are_destroyed_in_any_order() {
    for (layout, job) in layouts(2) {
        let started = Instant::now();
        two_communicators(&job, |a, b| {
            must_be_right(&a);
            must_be_right(&b);
            if a.rank() == 0 {
                drop((a, b));
            } else {
                drop(b);
                drop(a);
            }
        });
        assert!(started.elapsed() < SOON, "{layout}");
    }
}

#[test]
fn b052_what_is_pending_is_done_before_the_end() {
    for (layout, job) in layouts(2) {
        let results = job.run(|communicator| {
            if communicator.rank() == 1 {
                std::thread::sleep(Duration::from_millis(200));
            }
            let device = communicator.device().clone();
            // On a stream that the communicator does not know beforehand.
            let stream = device.stream().expect("a stream");
            let buffers: Vec<_> = (0..8)
                .map(|_| {
                    let buffer = device.buffer_from(&vec![1_i32; 30_000]).expect("memory");
                    let (sum, count) = (RedOp::Sum, 30_000);
                    let call = communicator.all_reduce(
                        &buffer,
                        &buffer,
                        count,
                        DataType::I32,
                        sum,
                        &stream,
                    );
                    drop(call.expect("a call"));
                    buffer
                })
                .collect();
            communicator.finalize().unwrap_or_else(|error| panic!("{layout}: {error}"));
            let again = sum(communicator, 1, 1).expect_err("it is finalised");
            assert_eq!(again.kind(), ErrorKind::Aborted, "{again}");
            buffers
        });
        for buffer in results.into_iter().flatten() {
            assert_eq!(buffer.read::<i32>().expect("memory"), vec![2; 30_000], "{layout}");
        }
    }
}

#[test]
fn b102_everything_is_dropped_before_the_operation_is_over() {
    for (layout, job) in layouts(2) {
        let id = job.unique_id();
        job.each(|rank| {
            let runtime = job.runtime(rank).expect("a runtime");
            let communicator = runtime.communicator(&id, rank, 2).expect("a communicator");
            // The communicator outlives its runtime.
            drop(runtime);
            if rank == 1 {
                std::thread::sleep(Duration::from_millis(100));
                for _ in 0..8 {
                    assert_eq!(sum(&communicator, 1, 50_000).expect("a sum"), vec![2; 50_000]);
                }
                return;
            }
            for _ in 0..8 {
                // Handle and buffers go at once; the memory stays until the operation is over.
                let device = communicator.device();
                let stream = device.stream().expect("a stream");
                let send = device.buffer_from(&vec![1_i32; 50_000]).expect("memory");
                let receive = device.allocate::<i32>(50_000).expect("memory");
                let (count, op) = (50_000, RedOp::Sum);
                let call = communicator.all_reduce(
                    &send,
                    &receive,
                    count,
                    DataType::I32,
                    op,
                    communicator.stream(),
                );
                drop((call.unwrap_or_else(|error| panic!("{layout}: {error}")), send, receive));
                drop(stream);
            }
        });
    }
}

// --- Initialisation ----------------------------------------------------------------------------

#[test]
fn b042_settings_that_differ_are_named_on_every_rank() {
    for (key, value, named) in [
        ("engine.chunk_bytes", "1M", "engine.chunk_bytes"),
        ("algorithm.all_reduce", "ring", "`{ all_reduce = \"ring\" }` on rank 1"),
    ] {
        let job = Job::new(3).with_on(1, key, value);
        for (rank, outcome) in job.try_run(|_| ()).into_iter().enumerate() {
            let error = outcome.expect_err("the plans differ");
            assert_eq!(error.kind(), ErrorKind::PlanDiverged, "rank {rank}: {error}");
            assert_eq!(error.rank(), Some(1), "rank {rank}: {error}");
            assert!(error.to_string().contains(named), "rank {rank}: {error}");
        }
    }
}

#[test]
fn b038_b037_a_rank_that_does_not_come_or_gives_up_is_named() {
    let job = Job::new(3).with("bootstrap.init_timeout", "2s");
    let id = job.unique_id();
    let outcomes = job.each(|rank| {
        let runtime = job.runtime(rank).expect("a runtime");
        (rank != 1).then(|| runtime.communicator(&id, rank, 3).map(drop))
    });
    for outcome in outcomes.into_iter().flatten() {
        let error = outcome.expect_err("rank 1 never came");
        assert!(error.to_string().contains("rank") && error.to_string().contains('1'), "{error}");
        assert!(matches!(error.kind(), ErrorKind::Rendezvous | ErrorKind::Timeout), "{error}");
    }
    // One that cannot go on (its only transport is switched off) says so to the others at once.
    let job = Job::new(3).with_on(2, "device.backend", "no-such-device");
    let started = Instant::now();
    for (rank, outcome) in job.try_run(|_| ()).into_iter().enumerate() {
        let error = outcome.expect_err("rank 2 has no device");
        assert_eq!(error.kind(), ErrorKind::PluginMissing, "rank {rank}: {error}");
        assert!(rank == 2 || error.rank() == Some(2), "rank {rank}: {error}");
    }
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
}

#[test]
fn b038_initialisation_in_the_background_can_be_given_up() {
    let job = Job::new(2);
    let id = job.unique_id();
    let runtime = job.runtime(0).expect("a runtime");
    let started = Instant::now();
    let pending = runtime.begin_communicator(&id, 0, 2).expect("begun");
    assert!(started.elapsed() < Duration::from_secs(1), "it must not block");
    assert!(!pending.wait_for(Duration::from_millis(100)), "rank 1 has not come");
    pending.abort();
    let error = pending.finish().expect_err("given up");
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    assert!(started.elapsed() < SOON);
    // And it can succeed, of course.
    let id = job.unique_id();
    let both = [0, 1].map(|rank| runtime.begin_communicator(&id, rank, 2).expect("begun"));
    let both = both.map(|pending| pending.finish().expect("both came"));
    std::thread::scope(|scope| {
        for communicator in &both {
            scope.spawn(|| must_be_right(communicator));
        }
    });
    std::thread::scope(|scope| {
        for communicator in both {
            scope.spawn(move || drop(communicator));
        }
    });
}

#[test]
fn a_first_call_may_come_later_than_connections_may_take() {
    for (layout, job) in layouts(2) {
        let job = job.with("bootstrap.connect_timeout", "200ms");
        job.run(|communicator| {
            let (rank, stream) = (communicator.rank(), communicator.stream());
            // Either end may be late: the one that dials, and the one that is dialled.
            for late in [0, 1] {
                if rank == late {
                    std::thread::sleep(Duration::from_millis(700));
                }
                must_be_right(communicator);
            }
            let buffer = communicator.device().buffer_from(&[rank; 10]).expect("memory");
            if rank == 1 {
                std::thread::sleep(Duration::from_millis(700));
                let call = communicator.send(&buffer, 10, DataType::U32, 0, stream);
                call.expect("a call").wait().unwrap_or_else(|error| panic!("{layout}: {error}"));
            } else {
                let call = communicator.recv(&buffer, 10, DataType::U32, 1, stream);
                call.expect("a call").wait().unwrap_or_else(|error| panic!("{layout}: {error}"));
            }
            assert_eq!(buffer.read::<u32>().expect("memory"), [1; 10]);
        });
    }
}
