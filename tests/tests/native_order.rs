//! Several communicators with native collectives on the same cards. The simulated cards work on one call of a
//! library at a time and keep it until all its ranks have come, as a kernel that fills its card does: calls
//! that reach two cards in different order wait for each other for ever.

use std::sync::Barrier;

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::Result;
use iccl_runtime::comm::{Buffer, Communicator, Handle, Stream};
use iccl_runtime::schedule::Algorithm;
use iccl_tests::maker::{Machine, Maker};
use iccl_tests::ranks::Job;

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const COUNT: usize = 1000;
/// So often that calls which nobody orders meet in different order on two cards.
const TIMES: usize = 60;

fn machine() -> Machine {
    Machine::new(&Maker {
        name: "nvidia",
        owner: "libcuda.so.1",
        cards: 4,
        variant: None,
        settings: &[],
        simulated: &[("exclusive", "1")],
    })
}

fn job(machine: &Machine, ranks: u32) -> Job {
    machine
        .job(Job::new(ranks))
        .with("algorithm.all_reduce", "native")
        .with("engine.op_timeout", "20s")
}

/// A communicator with what its calls need, made beforehand: to free a card's memory waits for its work.
struct Caller<'a> {
    communicator: &'a Communicator,
    stream: Stream,
    send: Buffer,
    receive: Buffer,
}

impl<'a> Caller<'a> {
    fn new(communicator: &'a Communicator) -> Self {
        let device = communicator.device();
        let value = communicator.rank() as i32 + 1;
        Self {
            communicator,
            stream: device.stream().expect("a stream"),
            send: device.buffer_from(&[value; COUNT]).expect("a buffer"),
            receive: device.allocate::<i32>(COUNT).expect("a buffer"),
        }
    }

    fn begin(&self) -> Result<Handle> {
        let (count, dtype) = (COUNT as u64, DataType::I32);
        let Self { communicator, stream, send, receive } = self;
        communicator.all_reduce(send, receive, count, dtype, RedOp::Sum, stream)
    }

    fn must_have_summed(&self) {
        let sum: i32 = (1..=self.communicator.ranks() as i32).sum();
        assert_eq!(self.receive.read::<i32>().expect("a result"), [sum; COUNT]);
    }
}

fn must_end(begun: Result<Handle>) {
    begun.and_then(|handle| handle.wait()).unwrap_or_else(|error| panic!("{error}"));
}

/// Two communicators on the same cards.
fn two(job: &Job, body: impl Fn(u32, [&Communicator; 2]) + Sync) {
    let ids = [job.unique_id(), job.unique_id()];
    job.each(|rank| {
        let runtime = job.runtime(rank).expect("a runtime");
        let communicators = [0, 1].map(|which: usize| {
            runtime.communicator(&ids[which], rank, job.ranks()).expect("a communicator")
        });
        body(rank, [&communicators[0], &communicators[1]]);
        for communicator in communicators {
            communicator.finalize().expect("a good end");
        }
    });
}

/// One thread for each rank, half of which call the two in one order and half in the other.
#[test]
fn calls_in_opposite_order_on_two_cards_do_not_wait_for_each_other() {
    let machine = machine();
    let (job, meeting) = (job(&machine, 2), Barrier::new(2));
    two(&job, |rank, communicators| {
        let callers = communicators.map(Caller::new);
        for time in 0..TIMES {
            meeting.wait();
            let first = (rank as usize + time) % 2;
            let begun = [first, 1 - first].map(|which| callers[which].begin());
            begun.into_iter().for_each(must_end);
        }
        callers.iter().for_each(Caller::must_have_summed);
        let calls = communicators.map(|one| one.counters().native_calls());
        assert_eq!(calls, [TIMES as u64; 2]);
    });
}

/// A thread for each communicator and rank.
#[test]
fn threads_that_call_at_once_do_not_wait_for_each_other() {
    let machine = machine();
    two(&job(&machine, 4), |_, communicators| {
        std::thread::scope(|scope| {
            for communicator in communicators {
                scope.spawn(move || {
                    let caller = Caller::new(communicator);
                    (0..TIMES).for_each(|_| must_end(caller.begin()));
                    caller.must_have_summed();
                });
            }
        });
    });
}

/// Three communicators of two cards each, in a circle, and one of all.
#[test]
fn overlapping_parts_do_not_wait_for_each_other_in_a_circle() {
    let machine = machine();
    let (job, meeting) = (job(&machine, 3), Barrier::new(3));
    job.run(|whole| {
        let rank = whole.rank();
        let parts: Vec<Communicator> = (0..3)
            .filter_map(|left| {
                let is_member = rank == left || rank == (left + 1) % 3;
                whole.split(is_member.then_some(0), 0).expect("a split")
            })
            .collect();
        let callers: Vec<Caller> = parts.iter().chain([whole]).map(Caller::new).collect();
        for time in 0..TIMES {
            meeting.wait();
            let begun: Vec<_> = (0..callers.len())
                .map(|at| (at + time + rank as usize) % callers.len())
                .map(|which| callers[which].begin())
                .collect();
            begun.into_iter().for_each(must_end);
        }
        callers.iter().for_each(Caller::must_have_summed);
        for communicator in &parts {
            assert_eq!(communicator.counters().native_calls(), TIMES as u64);
        }
    });
}

/// What one rank has begun and the other has not holds up nobody else on the card: an operation gets its
/// place when all ranks have begun it.
#[test]
fn what_another_rank_has_not_begun_holds_up_nobody() {
    let machine = machine();
    two(&job(&machine, 2), |rank, communicators| {
        let callers = communicators.map(Caller::new);
        for time in 0..10 {
            let [early, late] = [&callers[time % 2], &callers[1 - time % 2]];
            if rank == 0 {
                let begun = early.begin();
                must_end(late.begin());
                must_end(begun);
            } else {
                // Not before the other communicator's is over here.
                must_end(late.begin());
                must_end(early.begin());
            }
        }
        callers.iter().for_each(Caller::must_have_summed);
    });
}

/// Two communicators whose ranks are on cards and on host memory: native calls before and after what crosses.
#[test]
fn islands_of_several_communicators_take_turns() {
    let machine = machine();
    let job = job(&machine, 3)
        .with("algorithm.all_reduce", "islands")
        .with("engine.chunk_bytes", "4KiB")
        .with_on(1, "device.backend", "host");
    let meeting = Barrier::new(3);
    two(&job, |rank, communicators| {
        let callers = communicators.map(Caller::new);
        for time in 0..TIMES / 4 {
            meeting.wait();
            let first = (rank as usize / 2 + time) % 2;
            let begun = [first, 1 - first].map(|which| callers[which].begin());
            begun.into_iter().for_each(must_end);
        }
        callers.iter().for_each(Caller::must_have_summed);
        let by_islands = communicators[0].counters().operations_by(Algorithm::Islands);
        assert_eq!(by_islands, TIMES as u64 / 4);
    });
}
