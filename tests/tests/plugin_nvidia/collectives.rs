//! NCCL, through the plugin: every combination that it offers, on four ranks, against the oracle.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use iccl_plugin_api::sdk::{NativeCall, Progress};
use iccl_plugin_api::tables::collectives_flag;
use iccl_plugin_api::{Collective, DataType, RedOp, Status};
use iccl_tests::maker::{
    RANKS, Rank, SOON, blocks_are_moved_and_reduced, every_type_is_moved, on_all_ranks,
    reductions_are_right, rings_meet_in_groups,
};

use crate::simulator::machine;

#[test]
fn what_nccl_offers_is_told() {
    let machine = machine();
    let nccl = machine.set.collectives_of("nvidia").expect("NCCL");
    assert!(nccl.library().starts_with("NCCL 2."), "{}", nccl.library());
    assert_eq!(nccl.flags(), collectives_flag::GROUPS | collectives_flag::IN_PLACE);
    assert!(!nccl.support().is_empty());
    assert_eq!(nccl.view().unique_id().expect("an id").len(), 128);
}

#[test]
fn every_reduction_that_is_offered_is_right() {
    // 6 integers by 4 operations and 4 floats by 3, each in 3 collectives.
    reductions_are_right(&machine(), 3 * (6 * 4 + 4 * 3));
}

#[test]
fn every_type_is_moved_as_it_is() {
    every_type_is_moved(&machine());
}

#[test]
fn blocks_of_different_length_are_moved_and_reduced() {
    blocks_are_moved_and_reduced(&machine());
}

#[test]
fn sends_and_receives_meet_and_groups_are_issued_together() {
    rings_meet_in_groups(&machine());
}

#[test]
fn what_is_refused_is_refused_before_nccl_hears_of_it() {
    let machine = machine();
    on_all_ranks(&machine, |rank| {
        let refused = |call: &NativeCall<'_>, status| {
            // SAFETY: it is refused before a buffer is touched.
            let error = unsafe { rank.communicator.call(call, rank.stream) }.unwrap_err();
            assert_eq!(error.status, status, "{error}");
        };
        let max = rank.call(Collective::AllReduce, DataType::F32, Some(RedOp::Max));
        refused(&max, Status::NotSupported);
        let average = rank.call(Collective::AllReduce, DataType::I32, Some(RedOp::Avg));
        refused(&average, Status::NotSupported);
        let bits = rank.call(Collective::AllReduce, DataType::I32, Some(RedOp::BitXor));
        refused(&bits, Status::NotSupported);
        refused(&rank.call(Collective::Barrier, DataType::U8, None), Status::NotSupported);
        let nobody = NativeCall { root: 4, ..rank.call(Collective::Broadcast, DataType::U8, None) };
        refused(&nobody, Status::InvalidArgument);
        let in_place = rank.call(Collective::AllToAll, DataType::U8, None);
        refused(&NativeCall { receive: rank.send, ..in_place }, Status::NotSupported);
        // It goes on after that.
        assert_eq!(rank.communicator.async_error(), Ok(Progress::Done));
    });
}

#[test]
fn an_abort_ends_a_call_that_waits_for_a_peer() {
    let machine = machine();
    let view = machine.set.collectives_of("nvidia").expect("NCCL").view();
    let id = view.unique_id().expect("an id");
    let all_joined = Barrier::new(RANKS);
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let (id, machine, all_joined) = (&id, &machine, &all_joined);
            scope.spawn(move || {
                let rank = Rank::join(machine, view, id, rank);
                all_joined.wait();
                if rank.number == 0 {
                    let is_over = AtomicBool::new(false);
                    std::thread::scope(|inner| {
                        inner.spawn(|| {
                            std::thread::sleep(Duration::from_millis(100));
                            assert!(!is_over.load(Ordering::Acquire), "nobody came");
                            rank.communicator.abort().expect("aborted");
                        });
                        let call =
                            rank.call(Collective::AllReduce, DataType::F32, Some(RedOp::Sum));
                        // SAFETY: the buffers stay for the life of the process.
                        let called = unsafe { rank.communicator.call(&call, rank.stream) };
                        let done = rank.card.stream_synchronize(rank.stream, SOON);
                        is_over.store(true, Ordering::Release);
                        if let Err(error) = called {
                            assert_eq!(error.status, Status::Aborted, "{error}");
                        }
                        // The kernel is gone: the stream is not stuck.
                        done.expect("the stream goes on");
                    });
                    let error = rank.communicator.async_error().unwrap_err();
                    assert_eq!(error.status, Status::Aborted);
                } else {
                    rank.communicator.abort().expect("aborted");
                }
                // Twice is once, and leaving has nothing left to do.
                rank.communicator.abort().expect("aborted before");
                rank.communicator.leave().expect("nothing to leave");
            });
        }
    });
}

#[test]
fn a_join_that_nobody_else_comes_to_ends() {
    let machine = machine();
    let view = machine.set.collectives_of("nvidia").expect("NCCL").view();
    let id = view.unique_id().expect("an id");
    let error = view.join(&machine.card(0), &id, 2, 0).unwrap_err();
    assert_eq!(error.status, Status::Timeout, "{error}");
    assert!(error.message.contains("on rank 0 of 2"), "{error}");
    let error = view.join(&machine.card(0), &id[..64], 2, 0).unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument, "{error}");
}
