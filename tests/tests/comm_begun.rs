//! Communicators out of communicators without blocking: which meets which is told by the order of the
//! calls. Ranks are threads.

use std::sync::Arc;
use std::time::Duration;

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::comm::{Communicator, Group, PendingChild};
use iccl_runtime::{ErrorKind, Result};
use iccl_tests::ranks::{Job, layouts, must_be_right};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const ROUNDS: u32 = 8;

fn ok<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn each(job: &Job, body: impl Fn(Arc<Communicator>) + Sync) {
    let id = job.unique_id();
    job.each(|rank| {
        let runtime = job.runtime(rank).expect("a runtime");
        body(Arc::new(ok(runtime.communicator(&id, rank, job.ranks()))));
    });
}

fn made(pending: Result<PendingChild>) -> Communicator {
    ok(ok(pending).finish()).expect("a communicator")
}

/// Whether all ranks of a communicator know it by the same mark.
fn must_be_known_as(communicator: &Communicator, mark: u32) {
    let buffer = ok(communicator.device().buffer_from(&[mark]));
    let stream = communicator.stream();
    for op in [RedOp::Min, RedOp::Max] {
        let one = communicator.all_reduce(&buffer, &buffer, 1, DataType::U32, op, stream);
        ok(one.and_then(|handle| handle.wait()));
    }
    assert_eq!(ok(buffer.read::<u32>()), [mark], "ranks took it for different ones");
}

#[test]
fn b048_several_that_are_begun_meet_in_the_order_of_the_calls() {
    for (_, job) in layouts(3) {
        each(&job, |world| {
            let own = world.rank();
            for round in 0..ROUNDS {
                // Ranks come at different moments.
                std::thread::sleep(Duration::from_millis(u64::from((own + round) % 3)));
                let first = world.begin_duplicate();
                let second = world.begin_split(Some(own % 2), 0);
                let third = world.begin_duplicate();
                // Calls after it have their place after it.
                must_be_right(&world);
                let [third, second, first] = [third, second, first].map(made);
                must_be_known_as(&first, 10);
                must_be_known_as(&third, 30);
                must_be_known_as(&second, 20 + own % 2);
            }
        });
    }
}

#[test]
fn b048_several_that_are_begun_in_a_group_meet_in_its_order() {
    for (_, job) in layouts(2) {
        each(&job, |world| {
            let own = world.rank();
            for round in 0..ROUNDS {
                std::thread::sleep(Duration::from_millis(u64::from((own + round) % 2)));
                let sum = ok(world.device().buffer_from(&[own + 1]));
                let group = Group::start();
                let first = world.begin_duplicate();
                let added =
                    world.all_reduce(&sum, &sum, 1, DataType::U32, RedOp::Sum, world.stream());
                let none = ok(world.begin_split(None, 0));
                let second = world.begin_duplicate();
                ok(group.end());
                assert!(ok(none.finish()).is_none());
                let [second, first] = [second, first].map(made);
                ok(ok(added).wait());
                assert_eq!(ok(sum.read::<u32>()), [3]);
                must_be_known_as(&first, 1);
                must_be_known_as(&second, 2);
            }
        });
    }
}

#[test]
fn of_a_group_that_is_refused_nothing_is_made_and_the_next_is() {
    let (_, job) = layouts(2).into_iter().next().expect("a layout");
    each(&job, |world| {
        let group = Group::start();
        let begun = ok(world.begin_duplicate());
        assert!(!begun.is_over());
        // Only this rank is wrong, and only it has a group.
        drop(group);
        let error = begun.finish().expect_err("nothing was enqueued");
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        must_be_known_as(&made(world.begin_duplicate()), 7);
        must_be_right(&world);
    });
}

#[test]
fn an_abort_ends_all_that_are_begun() {
    let (_, job) = layouts(2).into_iter().next().expect("a layout");
    each(&job, |world| {
        if world.rank() == 1 {
            // It waits for what the other does not.
            while world.async_error().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            return;
        }
        let begun: Vec<_> = (0..3).map(|_| ok(world.begin_duplicate())).collect();
        let beside = ok(world.begin_shrink(&[]));
        world.abort();
        for pending in begun {
            let error = pending.finish().expect_err("aborted");
            assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
        }
        // It may have found that the other has left.
        let error = beside.finish().expect_err("aborted");
        assert!(matches!(error.kind(), ErrorKind::Aborted | ErrorKind::PeerLost), "{error}");
    });
}

#[test]
fn an_impossible_shrink_is_refused_at_the_call() {
    let (_, job) = layouts(2).into_iter().next().expect("a layout");
    each(&job, |world| {
        for exclude in [world.rank(), 2] {
            let error = world.begin_shrink(&[exclude]).expect_err("impossible");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        must_be_known_as(&made(world.begin_shrink(&[])), 3);
    });
}
