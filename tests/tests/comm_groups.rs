//! Grouped calls: enqueued together or not at all, begun together, in any order. Ranks are threads of this
//! process.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::comm::{
    Buffer, Communicator, Group, Handle, Stream, group_depth, group_end, group_start,
};
use iccl_runtime::{Error, ErrorKind, Result};
use iccl_tests::ranks::{Job, Meeting, layouts, must_be_right, wait_until};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const I32: DataType = DataType::I32;

fn ok<T>(layout: &str, result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{layout}: {error}"))
}

fn all_over(layout: &str, handles: &[Handle]) {
    for handle in handles {
        ok(layout, handle.wait());
    }
}

fn refused(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}

/// Communicators of the same ranks, on threads.
fn several<const N: usize>(job: &Job, body: impl Fn([Communicator; N]) + Sync) {
    let ids: [_; N] = std::array::from_fn(|_| job.unique_id());
    job.each(|rank| {
        let runtime = job.runtime(rank).expect("a runtime");
        let make = |id| runtime.communicator(id, rank, job.ranks());
        body(std::array::from_fn(|which| ok("init", make(&ids[which]))));
    });
}

/// What `from` sends to `to` in a round.
fn value(from: u32, to: u32, round: u32) -> i32 {
    (from * 10_000 + to * 100 + round) as i32
}

fn filled(communicator: &Communicator, value: i32, count: usize) -> Buffer {
    communicator.device().buffer_from(&vec![value; count]).expect("memory")
}

fn must_hold(what: &str, buffer: &Buffer, value: i32) {
    let elements = buffer.read::<i32>().expect("memory");
    assert!(
        elements.iter().all(|one| *one == value),
        "{what}: {value}, not {:?}",
        elements.first()
    );
}

// --- What completes only in a group --------------------------------------------------------------

#[test]
fn b046_a_send_and_a_receive_in_one_group_complete_at_any_size_and_in_any_order() {
    for (layout, job) in layouts(2) {
        job.run(|communicator| {
            let (rank, peer) = (communicator.rank(), 1 - communicator.rank());
            for (round, count) in [1_usize, 2 << 20].into_iter().enumerate() {
                for order in 0..4 {
                    let round = round as u32 * 4 + order;
                    let send = filled(communicator, value(rank, peer, round), count);
                    let receive = filled(communicator, -1, count);
                    let stream = communicator.stream();
                    let group = Group::start();
                    let send_it = || communicator.send(&send, count as u64, I32, peer, stream);
                    let receive_it =
                        || communicator.recv(&receive, count as u64, I32, peer, stream);
                    // Both send first, both receive first, or each as it likes.
                    let sends_first = [true, false, rank == 0, rank == 1][order as usize];
                    let handles = if sends_first {
                        [send_it(), receive_it()]
                    } else {
                        [receive_it(), send_it()]
                    };
                    ok(layout, group.end());
                    all_over(layout, &handles.map(|handle| ok(layout, handle)));
                    must_hold(layout, &receive, value(peer, rank, round));
                }
            }
        });
    }
}

/// Every rank sends to every rank, itself included, on one stream.
fn exchange(communicator: &Communicator, round: u32, count: usize, stream: &Stream) -> Vec<Buffer> {
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let sent: Vec<_> =
        (0..ranks).map(|peer| filled(communicator, value(rank, peer, round), count)).collect();
    let received: Vec<_> = (0..ranks).map(|_| filled(communicator, -1, count)).collect();
    let group = Group::start();
    for distance in 0..ranks {
        // Some begin with those before them, some with those behind.
        let turn = if rank % 2 == 0 { distance } else { ranks - distance };
        let peer = (rank + turn) % ranks;
        let (send, receive) = (&sent[peer as usize], &received[peer as usize]);
        drop(ok("send", communicator.send(send, count as u64, I32, peer, stream)));
        drop(ok("recv", communicator.recv(receive, count as u64, I32, peer, stream)));
    }
    ok("group", group.end());
    received
}

#[test]
fn b046_eight_ranks_exchange_with_sends_and_receives() {
    for (layout, job) in layouts(8) {
        job.run(|communicator| {
            let rank = communicator.rank();
            for (round, count) in [1, 40_000, 0, 1000].into_iter().enumerate() {
                let round = round as u32;
                let received = exchange(communicator, round, count, communicator.stream());
                ok(layout, communicator.stream().synchronize());
                for (peer, buffer) in (0..).zip(&received) {
                    must_hold(layout, buffer, value(peer, rank, round));
                }
            }
        });
    }
}

#[test]
fn several_messages_to_one_peer_keep_their_order() {
    for (layout, job) in layouts(2) {
        job.run(|communicator| {
            let (rank, peer, stream) =
                (communicator.rank(), 1 - communicator.rank(), communicator.stream());
            let sent: Vec<_> =
                (0..10).map(|at| filled(communicator, value(rank, peer, at), 5000)).collect();
            let received: Vec<_> = (0..10).map(|_| filled(communicator, -1, 5000)).collect();
            let handles = Group::run(|| {
                let mut handles = Vec::new();
                for buffer in &sent {
                    handles.push(communicator.send(buffer, 5000, I32, peer, stream)?);
                }
                for buffer in &received {
                    handles.push(communicator.recv(buffer, 5000, I32, peer, stream)?);
                }
                Ok(handles)
            });
            all_over(layout, &ok(layout, handles));
            for (at, buffer) in (0..).zip(&received) {
                must_hold(layout, buffer, value(peer, rank, at));
            }
        });
    }
}

// --- Messages to oneself -------------------------------------------------------------------------

#[test]
fn a_rank_sends_to_itself_in_a_group() {
    for ranks in [1, 2] {
        Job::new(ranks).run(|communicator| {
            let (rank, device) = (communicator.rank(), communicator.device());
            let (first, second) = (device.stream().expect("one"), device.stream().expect("one"));
            let send: Vec<_> = (0..2).map(|at| filled(communicator, 7 + at, 1000)).collect();
            for (one, other) in [(&first, &first), (&first, &second)] {
                let receive: Vec<_> = (0..2).map(|_| filled(communicator, -1, 1000)).collect();
                let handles = ok(
                    "own",
                    Group::run(|| {
                        // The second receive comes before its send.
                        Ok([
                            communicator.send(&send[0], 1000, I32, rank, one)?,
                            communicator.recv(&receive[0], 1000, I32, rank, other)?,
                            communicator.recv(&receive[1], 1000, I32, rank, other)?,
                            communicator.send(&send[1], 1000, I32, rank, one)?,
                        ])
                    }),
                );
                all_over("own", &handles);
                for (at, buffer) in (0..).zip(&receive) {
                    must_hold("own", buffer, 7 + at);
                }
            }
            // The receive waits for the sender's stream, and the sender's for the receive.
            let receive = filled(communicator, -1, 1000);
            let held = first.hold().expect("a hold");
            let handles = ok(
                "own",
                Group::run(|| {
                    let sent = communicator.send(&send[0], 1000, I32, rank, &first)?;
                    Ok([sent, communicator.recv(&receive, 1000, I32, rank, &second)?])
                }),
            );
            let late = handles[1].wait_for(Duration::from_millis(50)).expect_err("it is held");
            assert_eq!(late.kind(), ErrorKind::Timeout, "{late}");
            assert!(!second.is_done().expect("a stream"));
            must_hold("held", &receive, -1);
            held.release();
            all_over("own", &handles);
            wait_until("both streams", || {
                first.is_done().expect("a stream") && second.is_done().expect("a stream")
            });
            must_hold("own", &receive, 7);
            // In place nothing has to move.
            let handles = ok(
                "own",
                Group::run(|| {
                    let sent = communicator.send(&receive, 1000, I32, rank, &first)?;
                    Ok([sent, communicator.recv(&receive, 1000, I32, rank, &first)?])
                }),
            );
            all_over("in place", &handles);
            must_hold("in place", &receive, 7);
            must_be_right(communicator);
        });
    }
}

#[test]
fn half_a_message_to_oneself_is_refused() {
    Job::new(2).run(|communicator| {
        let (rank, stream) = (communicator.rank(), communicator.stream());
        let (send, receive) = (filled(communicator, 1, 100), filled(communicator, -1, 100));
        let outside = communicator.send(&send, 100, I32, rank, stream).expect_err("no group");
        refused(&outside, ErrorKind::InvalidArgument, &["its own peer", "group"]);
        let sends = |count| communicator.send(&send, count, I32, rank, stream);
        let receives = |count, dtype| communicator.recv(&receive, count, dtype, rank, stream);
        let end = |body: &dyn Fn() -> Result<()>| Group::run(body).expect_err("must be refused");
        let alone = end(&|| sends(10).map(drop));
        refused(&alone, ErrorKind::InvalidArgument, &["call 1", "no receive from rank"]);
        let alone = end(&|| {
            communicator.barrier(stream).map(drop)?;
            receives(10, I32).map(drop)
        });
        refused(&alone, ErrorKind::InvalidArgument, &["call 2", "no send to rank"]);
        for (count, dtype) in [(9, I32), (10, DataType::F32)] {
            let differ = end(&|| {
                receives(count, dtype).map(drop)?;
                sends(10).map(drop)
            });
            refused(&differ, ErrorKind::Mismatch, &["sends itself 10 elements of i32", "receives"]);
        }
        let (low, high) = (send.slice(0, 40).expect("inside"), send.slice(4, 40).expect("inside"));
        let overlap = end(&|| {
            communicator.send(&low, 10, I32, rank, stream).map(drop)?;
            communicator.recv(&high, 10, I32, rank, stream).map(drop)
        });
        refused(&overlap, ErrorKind::InvalidArgument, &["overlap"]);
        let short = end(&|| sends(101).map(drop));
        refused(&short, ErrorKind::InvalidArgument, &["400 bytes"]);
        must_hold("refused", &receive, -1);
        must_be_right(communicator);
    });
}

// --- All or nothing ------------------------------------------------------------------------------

#[test]
fn every_collective_in_one_group() {
    for (layout, job) in layouts(3) {
        job.run(|communicator| {
            let (rank, ranks) = (communicator.rank() as i32, communicator.ranks() as i32);
            let stream = communicator.stream();
            for count in [1_usize, 30_000] {
                let vector = |value| filled(communicator, value, count);
                let all = |value| filled(communicator, value, count * ranks as usize);
                let (one, many) = (vector(rank + 1), all(rank + 1));
                let sum = ranks * (ranks + 1) / 2;
                let outputs: Vec<_> = (0..9).map(|_| vector(-1)).collect();
                let gathered = [all(-1), all(-1), all(-1)];
                let number = count as u64;
                let (call, op) = (communicator, RedOp::Sum);
                let handles = Group::run(|| {
                    Ok([
                        call.all_reduce(&one, &outputs[0], number, I32, op, stream)?,
                        call.reduce(&one, Some(&outputs[1]), number, I32, op, 1, stream)?,
                        call.broadcast(Some(&one), &outputs[2], number, I32, 2, stream)?,
                        call.all_gather(&one, &gathered[0], number, I32, stream)?,
                        call.reduce_scatter(&many, &outputs[3], number, I32, op, stream)?,
                        call.gather(&one, Some(&gathered[1]), number, I32, 0, stream)?,
                        call.scatter(Some(&many), &outputs[4], number, I32, 1, stream)?,
                        call.all_to_all(&many, &gathered[2], number, I32, stream)?,
                        call.barrier(stream)?,
                    ])
                });
                all_over(layout, &ok(layout, handles));
                must_hold(layout, &outputs[0], sum);
                must_hold(layout, &outputs[1], if rank == 1 { sum } else { -1 });
                must_hold(layout, &outputs[2], 3);
                must_hold(layout, &outputs[3], sum);
                must_hold(layout, &outputs[4], 2);
                for (whose, buffer) in (0..).zip(&gathered) {
                    for from in 0..ranks as u64 {
                        let block = buffer.slice(from * number * 4, number * 4).expect("a block");
                        let there = whose != 1 || rank == 0;
                        must_hold(layout, &block, if there { from as i32 + 1 } else { -1 });
                    }
                }
            }
        });
    }
}

#[test]
fn nothing_is_enqueued_if_one_call_is_refused() {
    for (layout, job) in layouts(2) {
        several(&job, |[a, b]| {
            let (rank, peer, stream) = (a.rank(), 1 - a.rank(), a.stream());
            let (send, receive) = (filled(&a, 1, 100), filled(&a, -1, 100));
            let group = Group::start();
            let before = ok(layout, a.all_reduce(&send, &receive, 100, I32, RedOp::Sum, stream));
            let sent = ok(layout, b.send(&send, 100, I32, peer, stream));
            let refusal = b.recv(&receive, 101, I32, peer, stream).expect_err("too long");
            refused(&refusal, ErrorKind::InvalidArgument, &["400 bytes"]);
            let after = ok(layout, b.barrier(stream));
            // A second one is not what is told.
            let strange = Job::new(1).with("log.level", "warn").runtime(0).expect("a runtime");
            let strange = strange.device().expect("a device").allocate::<i32>(1).expect("memory");
            drop(a.send(&strange, 1, I32, peer, stream).expect_err("memory of another device"));
            let error = group.end().expect_err("a call was refused");
            refused(
                &error,
                ErrorKind::InvalidArgument,
                &["call 3 of the group (recv)", "400 bytes"],
            );
            for handle in [before, sent, after] {
                assert!(handle.is_over(), "nothing comes of it");
                let told = handle.wait().expect_err("nothing was enqueued");
                assert_eq!(told.to_string(), error.to_string());
            }
            ok(layout, stream.synchronize_for(Duration::from_secs(10)));
            must_hold(layout, &receive, -1);
            if rank == 0 {
                // Only here, so the numbers would differ now.
                let error = Group::run(|| {
                    drop(a.barrier(stream)?);
                    drop(a.send(&send, 100, I32, peer, stream)?);
                    a.send(&send, 100, I32, 9, stream)
                });
                let error = error.expect_err("no such rank");
                refused(&error, ErrorKind::InvalidArgument, &["peer 9 is not one of 2 ranks"]);
            }
            must_be_right(&a);
            must_be_right(&b);
            let _ = exchange(&a, 1, 10, stream);
            ok(layout, stream.synchronize());
        });
    }
}

#[test]
fn a_wrong_buffer_is_a_refused_call_too() {
    Job::new(1).run(|communicator| {
        let strange = Job::new(1).with("log.level", "warn").runtime(0).expect("a runtime");
        let strange = strange.device().expect("a device").allocate::<i32>(1).expect("memory");
        let group = Group::start();
        let stream = communicator.stream();
        let call = communicator.all_reduce(&strange, &strange, 1, I32, RedOp::Sum, stream);
        drop(call.expect_err("memory of another device"));
        let error = group.end().expect_err("a call was refused");
        refused(&error, ErrorKind::InvalidArgument, &["call 1 of the group (all_reduce)"]);
    });
}

#[test]
fn nothing_waits_inside_a_group() {
    for (layout, job) in layouts(2) {
        job.run(|communicator| {
            let group = Group::start();
            let handle = ok(layout, communicator.barrier(communicator.stream()));
            for early in [handle.wait(), handle.wait_for(Duration::from_secs(60))] {
                let error = early.expect_err("the group has not ended");
                refused(&error, ErrorKind::InvalidUsage, &["barrier", "has not ended"]);
            }
            // Here a loop over it would never end.
            assert!(handle.is_over() && handle.outcome().expect("an answer").is_err());
            std::thread::scope(|scope| {
                // For others it is not over yet.
                let other = scope.spawn(|| (handle.is_over(), handle.wait().is_err()));
                assert_eq!(other.join().expect("a thread"), (false, true));
            });
            assert!(format!("{handle:?}").contains("barrier"), "{handle:?}");
            // What was enqueued before the group may be waited for.
            ok(layout, communicator.stream().synchronize());
            ok(layout, group.end());
            ok(layout, handle.wait());
            assert!(handle.is_over() && handle.outcome().expect("an answer").is_ok());
        });
    }
}

#[test]
fn groups_may_be_nested_and_empty_and_dropped() {
    Job::new(2).run(|communicator| {
        let stream = communicator.stream();
        ok("empty", Group::start().end());
        ok("empty", Group::run(|| Group::run(|| Ok(()))));
        let outer = Group::start();
        let first = ok("nested", communicator.barrier(stream));
        let inner = Group::start();
        let second = ok("nested", communicator.barrier(stream));
        assert_eq!(group_depth(), 2);
        ok("nested", inner.end());
        assert!(second.wait().is_err() && first.wait().is_err(), "only the outer end enqueues");
        ok("nested", outer.end());
        all_over("nested", &[first, second]);

        // Only one rank makes these calls, so they must leave no trace.
        if communicator.rank() == 0 {
            let group = Group::start();
            let handle = ok("dropped", communicator.barrier(stream));
            drop(group);
            let error = handle.wait().expect_err("it was dropped");
            refused(&error, ErrorKind::InvalidUsage, &["without its end"]);

            let outer = Group::start();
            let outside = ok("dropped", communicator.barrier(stream));
            drop(Group::start());
            let error = outer.end().expect_err("the inner one was dropped");
            refused(&error, ErrorKind::InvalidUsage, &["without its end"]);
            assert!(outside.wait().is_err());

            let panicked = std::panic::catch_unwind(AssertUnwindSafe(|| {
                let _group = Group::start();
                drop(communicator.barrier(stream));
                panic!("inside a group (this is part of the test)");
            }));
            assert!(panicked.is_err());
            let failed = Group::run(|| {
                drop(communicator.barrier(stream)?);
                Err::<(), _>(Error::new(ErrorKind::Internal, "the application's own"))
            });
            assert_eq!(failed.expect_err("its own").message(), "the application's own");
        }
        assert_eq!(group_depth(), 0);
        let error = group_end().expect_err("none was started");
        refused(&error, ErrorKind::InvalidUsage, &["not started"]);
        // As bindings of other languages do it.
        group_start();
        let handle = ok("bare", communicator.barrier(stream));
        ok("bare", group_end());
        ok("bare", handle.wait());
        must_be_right(communicator);
    });
}

#[test]
fn what_ends_before_the_group_does() {
    several(&Job::new(2), |[a, b]| {
        let stream = b.device().stream().expect("a stream");
        let group = Group::start();
        let first = ok("a call", b.barrier(&stream));
        let second = ok("a call", a.barrier(&stream));
        ok("finalize", a.finalize());
        drop(a);
        let error = group.end().expect_err("a communicator has gone");
        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
        assert!(first.wait().is_err() && second.wait().is_err());
        must_be_right(&b);
    });
    // A thread that ends in its group.
    Job::new(1).run(|communicator| {
        let handle = std::thread::scope(|scope| {
            let left = scope.spawn(|| {
                group_start();
                communicator.barrier(communicator.stream()).expect("a call")
            });
            left.join().expect("a thread")
        });
        let error = handle.wait().expect_err("its group never ended");
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        must_be_right(communicator);
    });
}

// --- Several communicators, several threads --------------------------------------------------------

#[test]
fn b048_several_communicators_of_one_group_in_different_order() {
    for (layout, job) in layouts(2) {
        several(&job, |communicators: [Communicator; 3]| {
            let rank = communicators[0].rank();
            let device = communicators[0].device();
            let stream = device.stream().expect("a stream");
            for round in 0..if cfg!(debug_assertions) { 30 } else { 300 } {
                let count = [1, 20_000][round % 2];
                let buffers: Vec<_> = communicators
                    .iter()
                    .zip(0_i32..)
                    .map(|(one, which)| filled(one, which * 100 + rank as i32, count))
                    .collect();
                Group::run(|| {
                    for turn in 0..communicators.len() {
                        // Each rank in its own order, on one stream: without a group they would
                        // wait for each other.
                        let which = if rank == 0 { turn } else { communicators.len() - 1 - turn };
                        let buffer = &buffers[which];
                        let sum = RedOp::Sum;
                        let count = count as u64;
                        let one = &communicators[which];
                        drop(one.all_reduce(buffer, buffer, count, I32, sum, &stream)?);
                    }
                    Ok(())
                })
                .unwrap_or_else(|error| panic!("{layout}: {error}"));
                ok(layout, stream.synchronize());
                for (buffer, which) in buffers.iter().zip(0_i32..) {
                    must_hold(layout, buffer, which * 200 + 1);
                }
            }
        });
    }
}

#[test]
fn b049_groups_of_several_threads_are_never_mixed() {
    for (layout, job) in layouts(2) {
        several(&job, |[a, b]| {
            let rounds = if cfg!(debug_assertions) { 60 } else { 500 };
            let run = |a: &Communicator, b: &Communicator| {
                let stream = a.device().stream().expect("a stream");
                for round in 0..rounds {
                    // Were two groups mixed, lengths and kinds would not meet.
                    let (long, short) = (filled(a, round, 3000), filled(a, round + 1, 7));
                    let handles = Group::run(|| {
                        let sum = RedOp::Sum;
                        Ok([
                            a.all_reduce(&long, &long, 3000, I32, sum, &stream)?,
                            a.barrier(&stream)?,
                            b.all_reduce(&short, &short, 7, I32, sum, &stream)?,
                            a.broadcast(Some(&short), &short, 0, I32, 1, &stream)?,
                        ])
                    });
                    all_over(layout, &ok(layout, handles));
                    // The other rank's thread may be in another round, but in one only.
                    let [long, short] =
                        [long, short].map(|buffer| buffer.read::<i32>().expect("memory"));
                    assert!(long.iter().all(|one| *one == long[0]), "{layout}: mixed");
                    assert!(short.iter().all(|one| *one == long[0] + 2), "{layout}: mixed");
                }
            };
            // Both threads do the same, and both communicators are locked in either order.
            std::thread::scope(|scope| {
                scope.spawn(|| run(&a, &b));
                run(&a, &b);
            });
        });
    }
}

#[test]
fn groups_and_single_calls_of_several_threads_do_not_lock_each_other_out() {
    several(&Job::new(2), |[a, b]| {
        let device = a.device();
        let [of_a, of_b] = [0, 1].map(|_| device.stream().expect("a stream"));
        std::thread::scope(|scope| {
            let (a, b, of_a, of_b) = (&a, &b, &of_a, &of_b);
            for a_first in [true, false] {
                scope.spawn(move || {
                    let own = device.stream().expect("a stream");
                    let mut handles = Vec::new();
                    for _ in 0..200 {
                        let group = Group::run(|| {
                            Ok(if a_first {
                                [a.barrier(of_a)?, b.barrier(of_b)?]
                            } else {
                                [b.barrier(of_b)?, a.barrier(of_a)?]
                            })
                        });
                        handles.extend(ok("barriers", group));
                        let alone = if a_first { a.barrier(&own) } else { b.barrier(&own) };
                        handles.push(ok("alone", alone));
                    }
                    // Not before: ranks whose threads take turns in different ways would wait for barriers
                    // of each other that nobody has called yet.
                    all_over("barriers", &handles);
                });
            }
        });
    });
}

// --- Streams, and how a group ends ------------------------------------------------------------------

#[test]
fn a_group_begins_when_its_stream_comes_and_the_stream_goes_on_when_all_are_over() {
    for (layout, job) in layouts(2) {
        let turn = Meeting::new(2);
        several(&job, |[a, b]| {
            let (rank, peer) = (a.rank(), 1 - a.rank());
            let (stream, after) = (a.device().stream().expect("one"), filled(&a, 5, 10));
            let (data, more) = (filled(&a, rank as i32, 1000), filled(&b, -1, 10));
            if rank == 0 {
                let held = stream.hold().expect("a hold");
                let handles = ok(
                    layout,
                    Group::run(|| {
                        Ok([
                            a.all_reduce(&data, &data, 1000, I32, RedOp::Sum, &stream)?,
                            b.recv(&more, 10, I32, peer, &stream)?,
                        ])
                    }),
                );
                let behind = a.broadcast(Some(&after), &after, 10, I32, 0, &stream);
                let behind = ok(layout, behind);
                let late = handles[0].wait_for(Duration::from_millis(50)).expect_err("held");
                assert_eq!(late.kind(), ErrorKind::Timeout, "{late}");
                held.release();
                ok(layout, handles[0].wait());
                must_hold(layout, &data, 1);
                // The other half of the group has not come, so the stream has not gone on.
                assert!(!handles[1].is_over() && !stream.is_done().expect("a stream"));
                let late = behind.wait_for(Duration::from_millis(50)).expect_err("it is behind");
                assert_eq!(late.kind(), ErrorKind::Timeout, "{late}");
                turn.wait();
                all_over(layout, &handles);
                ok(layout, behind.wait());
                wait_until(layout, || stream.is_done().expect("a stream"));
                must_hold(layout, &more, 9);
            } else {
                let summed = a.all_reduce(&data, &data, 1000, I32, RedOp::Sum, a.stream());
                ok(layout, ok(layout, summed).wait());
                turn.wait();
                let nine = filled(&b, 9, 10);
                ok(layout, ok(layout, b.send(&nine, 10, I32, peer, b.stream())).wait());
                let behind = a.broadcast(None, &after, 10, I32, 0, a.stream());
                ok(layout, ok(layout, behind).wait());
            }
        });
    }
}

#[test]
fn calls_of_one_group_on_several_streams() {
    for (layout, job) in layouts(2) {
        job.run(|communicator| {
            let (rank, peer) = (communicator.rank(), 1 - communicator.rank());
            let streams: Vec<_> =
                (0..4).map(|_| communicator.device().stream().expect("a stream")).collect();
            for round in 0..20 {
                let send = filled(communicator, value(rank, peer, round), 5000);
                let receive = filled(communicator, -1, 5000);
                let sum = filled(communicator, rank as i32, 5000);
                ok(
                    layout,
                    Group::run(|| {
                        let turn = |at: u32| &streams[((round + at) % 4) as usize];
                        drop(communicator.send(&send, 5000, I32, peer, turn(0))?);
                        drop(communicator.recv(&receive, 5000, I32, peer, turn(1))?);
                        drop(communicator.barrier(turn(2))?);
                        drop(communicator.all_reduce(
                            &sum,
                            &sum,
                            5000,
                            I32,
                            RedOp::Sum,
                            turn(3),
                        )?);
                        communicator.barrier(turn(0)).map(drop)
                    }),
                );
                for stream in &streams {
                    ok(layout, stream.synchronize());
                }
                must_hold(layout, &receive, value(peer, rank, round));
                must_hold(layout, &sum, 1);
            }
        });
    }
}

#[test]
fn calls_in_another_order_within_a_group_are_a_mismatch() {
    for (layout, job) in layouts(2) {
        job.run(|communicator| {
            let stream = communicator.stream();
            let buffer = filled(communicator, 1, 10);
            let reduce = || communicator.all_reduce(&buffer, &buffer, 10, I32, RedOp::Sum, stream);
            let gather = || communicator.broadcast(Some(&buffer), &buffer, 10, I32, 0, stream);
            let handles = Group::run(|| {
                Ok(if communicator.rank() == 0 {
                    [reduce()?, gather()?]
                } else {
                    [gather()?, reduce()?]
                })
            });
            for handle in ok(layout, handles) {
                let error = handle.wait().expect_err("they differ");
                assert_eq!(error.kind(), ErrorKind::Mismatch, "{layout}: {error}");
            }
            must_hold(layout, &buffer, 1);
        });
    }
}

#[test]
fn a_failure_in_a_group_is_its_communicators_alone() {
    for (layout, job) in layouts(2) {
        let turn = Meeting::new(2);
        several(&job, |[a, b]| {
            let peer = 1 - a.rank();
            let stream = a.device().stream().expect("a stream");
            let (lost, kept) = (filled(&a, -1, 10), filled(&b, 1, 10));
            if a.rank() == 0 {
                let handles = ok(
                    layout,
                    Group::run(|| {
                        Ok([
                            a.recv(&lost, 10, I32, peer, &stream)?,
                            b.all_reduce(&kept, &kept, 10, I32, RedOp::Sum, &stream)?,
                        ])
                    }),
                );
                a.abort();
                let error = handles[0].wait().expect_err("aborted");
                assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
                assert!(!stream.is_done().expect("a stream"), "{layout}: the other is not over");
                turn.wait();
                ok(layout, handles[1].wait());
                wait_until(layout, || stream.is_done().expect("a stream"));
                let told = stream.synchronize().expect_err("one of them failed");
                assert_eq!(told.kind(), ErrorKind::Aborted, "{told}");
                // Refused as a whole from now on.
                let error = Group::run(|| {
                    drop(b.barrier(&stream)?);
                    drop(a.barrier(&stream));
                    Ok(())
                });
                refused(&error.expect_err("aborted"), ErrorKind::Aborted, &["call 2"]);
            } else {
                turn.wait();
                let summed = b.all_reduce(&kept, &kept, 10, I32, RedOp::Sum, b.stream());
                ok(layout, ok(layout, summed).wait());
                wait_until(layout, || a.async_error().is_some());
            }
            must_hold(layout, &kept, 2);
            must_be_right(&b);
        });
    }
}

#[test]
fn b050_an_abort_wakes_who_waits_for_a_group() {
    for (layout, job) in layouts(2) {
        several(&job, |[a, b]| {
            if a.rank() == 1 {
                wait_until(layout, || a.async_error().is_some());
                must_be_right(&b);
                return;
            }
            let stream = a.device().stream().expect("a stream");
            let buffer = filled(&a, 1, 100);
            let handles = ok(
                layout,
                Group::run(|| {
                    Ok([
                        a.recv(&buffer, 100, I32, 1, &stream)?,
                        a.all_reduce(&buffer, &buffer, 100, I32, RedOp::Sum, &stream)?,
                        a.barrier(&stream)?,
                    ])
                }),
            );
            std::thread::scope(|scope| {
                let waiters: Vec<_> =
                    handles.iter().map(|handle| scope.spawn(|| handle.wait())).collect();
                let stream = scope.spawn(|| stream.synchronize());
                std::thread::sleep(Duration::from_millis(100));
                a.abort();
                for waiter in waiters.into_iter().chain([stream]) {
                    let error = waiter.join().expect("a thread").expect_err("aborted");
                    assert_eq!(error.kind(), ErrorKind::Aborted, "{layout}: {error}");
                }
            });
            must_be_right(&b);
        });
    }
}
