//! One communicator and several threads, and the end in every order. Ranks are threads of this process,
//! each with more threads of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::ErrorKind;
use iccl_runtime::comm::{Buffer, Communicator, Group, Stream};
use iccl_tests::ranks::{Job, Meeting, SOON, layouts, must_be_right, sum, wait_until};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const I32: DataType = DataType::I32;
const COUNT: usize = 2000;

fn rounds() -> i32 {
    if cfg!(debug_assertions) { 60 } else { 600 }
}

fn filled(communicator: &Communicator, value: i32) -> Buffer {
    communicator.device().buffer_from(&vec![value; COUNT]).expect("memory")
}

/// The one value that all elements have.
fn value_of(buffer: &Buffer) -> i32 {
    let elements = buffer.read::<i32>().expect("memory");
    assert!(elements.iter().all(|one| *one == elements[0]), "mixed");
    elements[0]
}

fn own_stream(communicator: &Communicator) -> Stream {
    communicator.device().stream().expect("a stream")
}

/// What rank `from` sends to rank `to` in a round.
fn message(from: u32, to: u32, round: i32) -> i32 {
    (from * 100 + to * 10) as i32 + round * 1000
}

#[test]
fn b049_a_thread_for_each_peer_and_one_for_collectives() {
    for (layout, job) in layouts(3) {
        job.run(|communicator| {
            let (rank, ranks) = (communicator.rank(), communicator.ranks());
            std::thread::scope(|scope| {
                for peer in (0..ranks).filter(|peer| *peer != rank) {
                    scope.spawn(move || {
                        let stream = own_stream(communicator);
                        for round in 0..rounds() {
                            let send = filled(communicator, message(rank, peer, round));
                            let receive = filled(communicator, -1);
                            let handles = Group::run(|| {
                                let count = COUNT as u64;
                                let sent = communicator.send(&send, count, I32, peer, &stream)?;
                                let received =
                                    communicator.recv(&receive, count, I32, peer, &stream)?;
                                Ok([sent, received])
                            });
                            for handle in handles.expect("a group") {
                                handle.wait().unwrap_or_else(|error| panic!("{layout}: {error}"));
                            }
                            let expected = message(peer, rank, round);
                            assert_eq!(value_of(&receive), expected, "{layout}");
                        }
                    });
                }
                scope.spawn(|| {
                    let stream = own_stream(communicator);
                    for round in 0..rounds() {
                        let data = filled(communicator, message(rank, 0, round));
                        let call = communicator.all_reduce(
                            &data,
                            &data,
                            COUNT as u64,
                            I32,
                            RedOp::Sum,
                            &stream,
                        );
                        let ended = call.and_then(|handle| handle.wait());
                        ended.unwrap_or_else(|error| panic!("{layout}: {error}"));
                        let all: i32 = (0..ranks).map(|from| message(from, 0, round)).sum();
                        assert_eq!(value_of(&data), all, "{layout}");
                    }
                });
            });
        });
    }
}

#[test]
fn b049_calls_that_are_alike_in_any_order() {
    const THREADS: i32 = 4;
    for (layout, job) in layouts(2) {
        job.run(|communicator| {
            let sums: Vec<i32> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS)
                    .map(|thread| {
                        scope.spawn(move || {
                            let stream = own_stream(communicator);
                            let mut total = 0;
                            for round in 0..rounds() {
                                let data = filled(communicator, thread * 1000 + round);
                                let (count, op) = (COUNT as u64, RedOp::Sum);
                                let call =
                                    communicator.all_reduce(&data, &data, count, I32, op, &stream);
                                let ended = call.and_then(|handle| handle.wait());
                                ended.unwrap_or_else(|error| panic!("{layout}: {error}"));
                                // Whatever met here, it was one call of each rank.
                                total += value_of(&data);
                            }
                            total
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
            });
            // Each contribution went into exactly one sum.
            let contributed: i32 =
                (0..THREADS).flat_map(|t| (0..rounds()).map(move |r| t * 1000 + r)).sum();
            assert_eq!(sums.iter().sum::<i32>(), 2 * contributed, "{layout}");
        });
    }
}

#[test]
fn many_threads_wait_for_one_operation() {
    for (layout, job) in layouts(2) {
        let turn = Meeting::new(2);
        job.run(|communicator| {
            let stream = own_stream(communicator);
            let data = filled(communicator, 1);
            if communicator.rank() == 1 {
                turn.wait();
            }
            let (count, op) = (COUNT as u64, RedOp::Sum);
            let handle = communicator.all_reduce(&data, &data, count, I32, op, &stream);
            let handle = handle.unwrap_or_else(|error| panic!("{layout}: {error}"));
            std::thread::scope(|scope| {
                for waiter in 0..8 {
                    let (handle, stream) = (handle.clone(), &stream);
                    scope.spawn(move || {
                        let ended = match waiter % 4 {
                            0 => handle.wait(),
                            1 => handle.wait_for(SOON),
                            2 => stream.synchronize(),
                            _ => {
                                wait_until("the operation", || handle.is_over());
                                handle.outcome().expect("it is over")
                            }
                        };
                        ended.unwrap_or_else(|error| panic!("{layout}: {error}"));
                    });
                }
                if communicator.rank() == 0 {
                    turn.wait();
                }
            });
            assert_eq!(value_of(&data), 2, "{layout}");
        });
    }
}

#[test]
fn b050_an_abort_from_another_thread_wakes_all_who_call_and_wait() {
    for (layout, job) in layouts(2) {
        job.run(|communicator| {
            let is_first = communicator.rank() == 0;
            std::thread::scope(|scope| {
                let callers: Vec<_> = (0..3)
                    .map(|_| {
                        scope.spawn(|| {
                            loop {
                                if let Err(error) = sum(communicator, 1, 1000) {
                                    return error;
                                }
                            }
                        })
                    })
                    .collect();
                if is_first {
                    std::thread::sleep(Duration::from_millis(200));
                    let started = Instant::now();
                    communicator.abort();
                    assert!(started.elapsed() < SOON, "{layout}");
                }
                for caller in callers {
                    let error = caller.join().expect("a thread");
                    assert_eq!(error.kind(), ErrorKind::Aborted, "{layout}: {error}");
                    assert_eq!(error.rank(), Some(0), "{layout}: {error}");
                }
            });
        });
    }
}

// --- The end --------------------------------------------------------------------------------------

#[test]
fn b051_the_end_twice_and_calls_after_it() {
    for (layout, job) in layouts(2) {
        job.run(|communicator| {
            must_be_right(communicator);
            let stream = own_stream(communicator);
            let early = communicator.barrier(&stream).expect("a call");
            let ended: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..4).map(|_| scope.spawn(|| communicator.finalize())).collect();
                threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
            });
            for outcome in ended {
                outcome.unwrap_or_else(|error| panic!("{layout}: {error}"));
            }
            communicator.finalize().unwrap_or_else(|error| panic!("{layout}: {error}"));
            early.wait().unwrap_or_else(|error| panic!("{layout}: {error}"));
            let error = communicator.barrier(&stream).expect_err("it has ended");
            assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
            let error = Group::run(|| communicator.barrier(&stream)).expect_err("it has ended");
            assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
            // Neither harms anyone.
            communicator.abort();
            communicator.finalize().unwrap_or_else(|error| panic!("{layout}: {error}"));
            early.wait().unwrap_or_else(|error| panic!("{layout}: {error}"));
            assert!(early.is_over() && stream.is_done().expect("a stream"));
        });
    }
}

#[test]
fn b051_the_end_while_other_threads_call() {
    for (layout, job) in layouts(2) {
        let turn = Meeting::new(2);
        job.run(|communicator| {
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                // Both ranks' threads call until one of the ends comes.
                let caller = scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        let ended = communicator.barrier(communicator.stream());
                        if let Err(error) = ended.and_then(|handle| handle.wait()) {
                            return Some(error);
                        }
                    }
                    None
                });
                std::thread::sleep(Duration::from_millis(100));
                turn.wait();
                let started = Instant::now();
                if communicator.rank() == 0 {
                    communicator.abort();
                }
                let _ = communicator.finalize();
                assert!(started.elapsed() < SOON, "{layout}: {:?}", started.elapsed());
                stop.store(true, Ordering::SeqCst);
                if let Some(error) = caller.join().expect("a thread") {
                    let kinds = [ErrorKind::Aborted, ErrorKind::PeerLost];
                    assert!(kinds.contains(&error.kind()), "{layout}: {error}");
                }
            });
        });
    }
}

#[test]
fn b051_an_initialisation_is_given_up_by_another_thread() {
    let job = Job::new(2);
    let runtime = job.runtime(0).expect("a runtime");
    for moment in [0, 1, 5, 20, 100] {
        let id = job.unique_id();
        let started = Instant::now();
        let pending = runtime.begin_communicator(&id, 0, 2).expect("begun");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(moment));
                pending.abort();
            });
            assert!(pending.wait_for(SOON), "the other thread has given it up");
        });
        let error = pending.finish().expect_err("given up");
        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
        assert!(started.elapsed() < SOON);
    }
    // Given up at any moment on the way: a communicator or an error on each, and nobody waits longer than
    // for a rank that does not come at all.
    let job = job.with("bootstrap.init_timeout", "2s");
    let runtime = job.runtime(0).expect("a runtime");
    for moment in 0..10 {
        let id = job.unique_id();
        let pending = [0, 1].map(|rank| runtime.begin_communicator(&id, rank, 2).expect("begun"));
        std::thread::sleep(Duration::from_millis(moment));
        let started = Instant::now();
        pending[1].abort();
        let made = pending.map(|one| one.finish().ok());
        let _ = Communicator::finalize_all(made.into_iter().flatten());
        assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    }
}

#[test]
fn b052_streams_handles_and_buffers_may_outlive_their_communicator() {
    for (layout, job) in layouts(2) {
        let kept = job.run(|communicator| {
            let stream = own_stream(communicator);
            let data = filled(communicator, 1);
            let (count, op) = (COUNT as u64, RedOp::Sum);
            let handle = communicator.all_reduce(&data, &data, count, I32, op, &stream);
            (stream, handle.expect("a call"), data)
        });
        // The communicators are gone, and what was under way is done.
        for (stream, handle, data) in kept {
            assert!(handle.is_over(), "{layout}");
            handle.wait().unwrap_or_else(|error| panic!("{layout}: {error}"));
            stream.synchronize().unwrap_or_else(|error| panic!("{layout}: {error}"));
            drop(stream);
            assert_eq!(value_of(&data), 2, "{layout}");
        }
    }
}
