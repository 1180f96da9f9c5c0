//! What callers, streams and the engine's thread hand over to each other, in every interleaving of
//! their steps and with every value that weak memory lets them see.
//!
//! The four files below are the runtime's own. They take what threads meet by from `crate::sync`, which
//! here is made of `loom`'s counterparts. A wake-up that is lost shows as a deadlock: nothing that
//! sleeps here ever looks up by itself, as the runtime does after a while. What is used before it was
//! handed over, or by two at a time, shows as a data race.

#[path = "../src/comm/countdown.rs"]
mod countdown;
#[path = "../src/engine/inbox.rs"]
#[expect(dead_code, reason = "what needs no model: news without an owner")]
mod inbox;
#[path = "interleavings/model.rs"]
mod model;
#[path = "../src/engine/outcome.rs"]
mod outcome;
#[path = "../src/engine/seat.rs"]
#[expect(dead_code, reason = "nobody panics in a model that goes on")]
mod seat;
#[path = "interleavings/sync.rs"]
mod sync;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use countdown::Countdown;
use model::{Engine, Memory, Needs, Operation, check};

fn start_thread(engine: &Arc<Engine>) -> thread::JoinHandle<()> {
    let engine = Arc::clone(engine);
    thread::spawn(move || engine.run_thread())
}

/// The engine's thread sleeps cold; what nobody waits for is done all the same.
#[test]
fn a_cold_thread_does_what_nobody_waits_for() {
    check(4, || {
        let engine = Engine::new();
        let thread = start_thread(&engine);
        let operation = Operation::new(true, Needs::Nothing);
        engine.submit(&operation);
        operation.hold_the_stream();
        engine.shut_down();
        thread.join().unwrap();
        assert_eq!(operation.memory.touches(), 2);
    });
}

/// It was submitted before; its stream reaches it when everyone may sleep.
#[test]
fn a_cold_thread_hears_that_a_stream_has_come() {
    check(3, || {
        let engine = Engine::new();
        let operation = Operation::new(false, Needs::Nothing);
        engine.submit(&operation);
        let thread = start_thread(&engine);
        engine.set_ready(&operation);
        operation.hold_the_stream();
        engine.shut_down();
        thread.join().unwrap();
    });
}

/// The caller drives and leaves. What it leaves behind is the thread's, which may have gone to sleep
/// beside it, and which must listen to the transports again.
#[test]
fn a_driver_that_leaves_hands_over_to_the_thread() {
    check(4, || {
        let engine = Engine::new();
        let (first, second) =
            (Operation::new(true, Needs::Nothing), Operation::new(true, Needs::Message));
        engine.submit(&first);
        engine.submit(&second);
        let thread = start_thread(&engine);
        assert_eq!(engine.wait(&first), Ok(()));
        engine.deliver();
        second.hold_the_stream();
        engine.shut_down();
        thread.join().unwrap();
    });
}

/// A caller wants the seat where the thread sits, perhaps asleep, and gets it before anything else has
/// happened.
#[test]
fn the_thread_gets_up_at_once() {
    check(3, || {
        let engine = Engine::new();
        let operation = Operation::new(true, Needs::Message);
        engine.submit(&operation);
        let thread = start_thread(&engine);
        engine.sit_down_and_leave();
        engine.deliver();
        operation.hold_the_stream();
        engine.shut_down();
        thread.join().unwrap();
    });
}

/// A caller comes and goes beside the thread, which looks whether the seat is free.
#[test]
fn a_look_at_the_seat_keeps_nobody_waiting() {
    check(2, || {
        let engine = Engine::new();
        let thread = start_thread(&engine);
        for _ in 0..2 {
            let operation = Operation::new(true, Needs::Nothing);
            engine.submit(&operation);
            assert_eq!(engine.wait(&operation), Ok(()));
        }
        engine.shut_down();
        thread.join().unwrap();
    });
}

/// A caller drives what the thread could, and a peer's message comes meanwhile.
#[test]
fn the_thread_leaves_for_a_caller() {
    check(3, || {
        let engine = Engine::new();
        let operation = Operation::new(true, Needs::Message);
        engine.submit(&operation);
        let thread = start_thread(&engine);
        engine.deliver();
        assert_eq!(engine.wait(&operation), Ok(()));
        engine.shut_down();
        thread.join().unwrap();
        assert_eq!(operation.memory.touches(), 2);
    });
}

/// The driver sleeps; a stream wakes it, and a peer's message does.
#[test]
fn a_sleeping_driver_hears_streams_and_peers() {
    check(3, || {
        let engine = Engine::new();
        let operation = Operation::new(false, Needs::Message);
        engine.submit(&operation);
        let stream = {
            let (engine, operation) = (Arc::clone(&engine), Arc::clone(&operation));
            thread::spawn(move || engine.set_ready(&operation))
        };
        let peer = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || engine.deliver())
        };
        assert_eq!(engine.wait(&operation), Ok(()));
        stream.join().unwrap();
        peer.join().unwrap();
    });
}

/// Two callers, each with an operation of its own, and no thread: whoever drives ends the other's too,
/// who must hear of it; and whoever leaves must let the other drive.
#[test]
fn a_bystander_hears_of_its_end_and_of_a_free_seat() {
    check(2, || {
        let engine = Engine::new();
        let operations = [(); 2].map(|()| Operation::new(false, Needs::Nothing));
        for operation in &operations {
            engine.submit(operation);
        }
        let [first, second] = operations;
        let other = {
            let (engine, second) = (Arc::clone(&engine), Arc::clone(&second));
            thread::spawn(move || engine.wait(&second))
        };
        let stream = {
            let (engine, first) = (Arc::clone(&engine), Arc::clone(&first));
            thread::spawn(move || {
                engine.set_ready(&second);
                engine.set_ready(&first);
            })
        };
        assert_eq!(engine.wait(&first), Ok(()));
        assert_eq!(other.join().unwrap(), Ok(()));
        stream.join().unwrap();
    });
}

/// The driver leaves while the other is about to stand by; only then comes what the other waits for.
#[test]
fn a_bystander_hears_of_a_seat_that_is_just_left() {
    check(4, || {
        let engine = Engine::new();
        let short = Operation::new(true, Needs::Nothing);
        let long = Operation::new(false, Needs::Nothing);
        engine.submit(&short);
        engine.submit(&long);
        let other = {
            let (engine, long) = (Arc::clone(&engine), Arc::clone(&long));
            thread::spawn(move || {
                assert_eq!(engine.wait(&short), Ok(()));
                engine.set_ready(&long);
            })
        };
        assert_eq!(engine.wait(&long), Ok(()));
        other.join().unwrap();
    });
}

/// The driver never leaves, since its own operation waits for a message that comes only after the
/// bystander has heard of its end.
#[test]
fn a_bystander_hears_of_its_end_from_a_driver_that_stays() {
    check(4, || {
        let engine = Engine::new();
        let long = Operation::new(true, Needs::Message);
        let short = Operation::new(true, Needs::Nothing);
        engine.submit(&long);
        engine.submit(&short);
        let other = {
            let (engine, short) = (Arc::clone(&engine), Arc::clone(&short));
            thread::spawn(move || {
                assert_eq!(engine.wait(&short), Ok(()));
                engine.deliver();
            })
        };
        assert_eq!(engine.wait(&long), Ok(()));
        other.join().unwrap();
    });
}

/// A failure ends what a driver waits for, what a bystander waits for, and what nobody waits for.
#[test]
fn a_failure_ends_everything() {
    check(2, || {
        let engine = Engine::new();
        let operations = [(); 2].map(|()| Operation::new(false, Needs::Message));
        for operation in &operations {
            engine.submit(operation);
        }
        let [first, second] = operations;
        let other = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || engine.wait(&second))
        };
        let control = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || engine.fail_soon())
        };
        assert_eq!(engine.wait(&first), Err("failed"));
        assert_eq!(other.join().unwrap(), Err("failed"));
        control.join().unwrap();
    });
}

/// As above, by the thread alone.
#[test]
fn a_cold_thread_hears_of_a_failure() {
    check(3, || {
        let engine = Engine::new();
        let operation = Operation::new(false, Needs::Message);
        engine.submit(&operation);
        let thread = start_thread(&engine);
        engine.fail_soon();
        operation.hold_the_stream();
        engine.shut_down();
        thread.join().unwrap();
    });
}

/// An operation is submitted while the communicator fails: it ends once, by whoever has it in hand. In
/// particular, its memory is not given back while a driver works on it.
#[test]
fn an_operation_that_meets_a_failure_ends_once() {
    check(2, || {
        let engine = Engine::new();
        let first = Operation::new(true, Needs::Message);
        engine.submit(&first);
        let driver = {
            let (engine, first) = (Arc::clone(&engine), Arc::clone(&first));
            thread::spawn(move || engine.wait(&first))
        };
        let other = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || engine.fail())
        };
        let operation = Operation::new(true, Needs::Message);
        engine.submit(&operation);
        assert_eq!(engine.wait(&operation), Err("failed"));
        operation.memory.touch();
        assert_eq!(driver.join().unwrap(), Err("failed"));
        other.join().unwrap();
    });
}

/// An operation is submitted while the engine is closed; nobody waits for it, and no thread is there.
#[test]
fn an_operation_that_meets_the_end_is_not_forgotten() {
    check(4, || {
        let engine = Engine::new();
        let other = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || engine.close())
        };
        let operation = Operation::new(true, Needs::Message);
        engine.submit(&operation);
        operation.hold_the_stream();
        other.join().unwrap();
        assert_eq!(operation.outcome.get(), Some(Err("failed")));
    });
}

/// An operation on two streams begins when both have come, and sees what both did before.
#[test]
fn the_last_of_two_streams_begins_the_operation() {
    check(3, || {
        let engine = Engine::new();
        let operation = Operation::new(false, Needs::Nothing);
        engine.submit(&operation);
        let to_come = Arc::new(Countdown::new(2));
        let work = Arc::new([Memory::new(), Memory::new()]);
        let streams = [0, 1].map(|index| {
            let (engine, operation) = (Arc::clone(&engine), Arc::clone(&operation));
            let (to_come, work) = (Arc::clone(&to_come), Arc::clone(&work));
            thread::spawn(move || {
                work[index].touch();
                if to_come.one_has_come() {
                    engine.set_ready(&operation);
                }
            })
        });
        assert_eq!(engine.wait(&operation), Ok(()));
        assert_eq!(work.each_ref().map(Memory::touches), [1, 1]);
        for stream in streams {
            stream.join().unwrap();
        }
    });
}

/// A stream goes on once, when all operations of its place are over, and sees what they did. They may be
/// of different communicators, which end them on different threads.
#[test]
fn the_last_of_a_group_lets_the_stream_go_on() {
    check(3, || {
        let left = Arc::new(Countdown::new(0));
        let operations = [(); 3].map(|()| {
            left.add_one();
            Operation::new(true, Needs::Nothing)
        });
        let operations = Arc::new(operations);
        let goes_on = Arc::new(AtomicBool::new(false));
        let end = |index: usize| {
            let (left, operations) = (Arc::clone(&left), Arc::clone(&operations));
            let goes_on = Arc::clone(&goes_on);
            move || {
                operations[index].memory.touch();
                if left.one_has_come() {
                    assert!(!goes_on.swap(true, Ordering::Relaxed), "let go on twice");
                    for operation in operations.iter() {
                        operation.memory.touch();
                    }
                }
            }
        };
        let others = [thread::spawn(end(0)), thread::spawn(end(1))];
        end(2)();
        for other in others {
            other.join().unwrap();
        }
        assert!(goes_on.load(Ordering::Relaxed), "never let go on");
    });
}

/// Whoever finds an operation over finds how it ended, and what it left.
#[test]
fn an_outcome_is_whole() {
    check(3, || {
        for result in [Ok(()), Err("failed")] {
            let operation = Operation::new(false, Needs::Nothing);
            let driver = {
                let operation = Arc::clone(&operation);
                thread::spawn(move || {
                    if operation.outcome.is_ready() {
                        // What the stream did before it came here.
                        operation.memory.touch();
                        operation.finish(result);
                    }
                })
            };
            operation.memory.touch();
            operation.outcome.set_ready();
            if operation.outcome.is_over() {
                operation.memory.touch();
            } else if let Some(outcome) = operation.outcome.get() {
                assert_eq!(outcome, result);
                operation.memory.touch();
            }
            driver.join().unwrap();
        }
    });
}
