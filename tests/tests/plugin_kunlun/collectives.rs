//! BKCL, through the plugin: every combination that it offers, on four ranks, against the oracle.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use iccl_plugin_api::sdk::{NativeCall, Progress};
use iccl_plugin_api::tables::collectives_flag;
use iccl_plugin_api::{Collective, DataType, MemoryKind, RedOp, Status};
use iccl_tests::maker::{
    BLOCK, RANKS, Rank, SOON, blocks_are_moved_and_reduced, contributions, every_type_is_moved,
    on_all_ranks, reductions_are_right, rings_meet_in_groups,
};
use iccl_tests::oracle;

use crate::simulator::{EXPECTED, machine};

#[test]
fn what_bkcl_offers_is_told() {
    let machine = machine();
    let bkcl = machine.set.collectives_of("kunlun").expect("BKCL");
    assert!(bkcl.library().starts_with("BKCL "), "{}", bkcl.library());
    let flags = collectives_flag::GROUPS | collectives_flag::ONE_SEND_PER_PEER_AND_GROUP;
    assert_eq!(bkcl.flags(), flags);
    assert_eq!(bkcl.view().unique_id().expect("an id").len(), EXPECTED.unique_id_bytes);
}

#[test]
fn every_reduction_that_is_offered_is_right() {
    reductions_are_right(&machine(), EXPECTED.reductions);
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
fn counts_on_the_card_stay_until_the_call_has_read_them() {
    let machine = machine();
    on_all_ranks(&machine, |rank| {
        let dtype = DataType::I32;
        let inputs = contributions(dtype, RedOp::Sum, BLOCK * RANKS);
        rank.fill(rank.send, &inputs[rank.number]);
        rank.fill(rank.receive, &[]);
        // The last rank comes late, so that two more calls wait on the others' streams: each needs
        // arrays of its own.
        if rank.number == RANKS - 1 {
            std::thread::sleep(Duration::from_millis(300));
        }
        let gather = NativeCall { count: 1, ..rank.call(Collective::AllGather, dtype, None) };
        let to_all = |counts: &'static [u64; RANKS], places: &'static [u64; RANKS]| NativeCall {
            send_counts: counts,
            send_displacements: places,
            receive_counts: counts,
            receive_displacements: places,
            ..rank.call(Collective::AllToAllV, dtype, None)
        };
        // The second call writes the second element of each block, the first one the first.
        let first = to_all(&[1; RANKS], &[0, 2, 4, 6]);
        let second = to_all(&[1; RANKS], &[1, 3, 5, 7]);
        // SAFETY: the buffers have room, and the stream is waited for before they are read.
        unsafe {
            rank.communicator.call(&gather, rank.stream).expect("taken");
            rank.communicator.call(&first, rank.stream).expect("taken");
            rank.communicator.call(&second, rank.stream).expect("taken");
        }
        rank.card.stream_synchronize(rank.stream, SOON).expect("done");
        let place = 8 * rank.number;
        let expected: Vec<u8> =
            inputs.iter().flat_map(|input| input[place..place + 8].to_vec()).collect();
        assert_eq!(rank.read(rank.receive)[..expected.len()], expected);
    });
}

#[test]
fn a_copy_behind_a_collective_sees_its_result() {
    let machine = machine();
    machine.simulate("delay_us", "50000");
    on_all_ranks(&machine, |rank| {
        let dtype = DataType::F32;
        let inputs = contributions(dtype, RedOp::Sum, BLOCK);
        rank.fill(rank.send, &inputs[rank.number]);
        rank.fill(rank.receive, &[]);
        let bytes = (BLOCK * dtype.size_bytes()) as u64;
        let pinned = rank.card.allocate(bytes, MemoryKind::PinnedHost).expect("memory");
        let to = (pinned, MemoryKind::PinnedHost);
        let from = (rank.receive.cast_const(), MemoryKind::Device);
        let sum = rank.call(Collective::AllReduce, dtype, Some(RedOp::Sum));
        // SAFETY: both sides are this long, and the stream is waited for before they are read.
        let copied = unsafe {
            rank.communicator.call(&sum, rank.stream).expect("taken");
            rank.card.copy(rank.stream, to, from, bytes).expect("enqueued");
            rank.card.stream_synchronize(rank.stream, SOON).expect("done");
            std::slice::from_raw_parts(pinned.cast::<u8>(), bytes as usize).to_vec()
        };
        assert_eq!(copied, oracle::reduced(dtype, RedOp::Sum, &inputs));
        // SAFETY: nothing uses it any more.
        unsafe { rank.card.free(pinned) }.expect("freed");
    });
}

#[test]
fn two_sends_to_a_peer_in_a_group_are_refused_before_bkcl_hears_of_it() {
    let machine = machine();
    let view = machine.set.collectives_of("kunlun").expect("BKCL").view();
    on_all_ranks(&machine, |rank| {
        let next = ((rank.number + 1) % RANKS) as u32;
        let before = ((rank.number + RANKS - 1) % RANKS) as u32;
        let dtype = DataType::F32;
        let send = NativeCall { root: next, ..rank.call(Collective::Send, dtype, None) };
        let recv = NativeCall { root: before, ..rank.call(Collective::Recv, dtype, None) };
        view.group_start().expect("a group");
        // SAFETY: the buffers have room, and the stream is waited for below.
        let again = unsafe {
            rank.communicator.call(&send, rank.stream).expect("taken");
            rank.communicator.call(&recv, rank.stream).expect("taken");
            rank.communicator.call(&send, rank.stream).unwrap_err()
        };
        assert_eq!(again.status, Status::InvalidArgument);
        assert!(again.message.contains("one send to each peer in a group"), "{again}");
        // The rest of the group is as good as before.
        view.group_end().expect("issued");
        rank.card.stream_synchronize(rank.stream, SOON).expect("done");
    });
}

#[test]
fn messages_of_a_call_in_a_group_are_part_of_that() {
    let machine = machine();
    let view = machine.set.collectives_of("kunlun").expect("BKCL").view();
    on_all_ranks(&machine, |rank| {
        let dtype = DataType::F32;
        let inputs = contributions(dtype, RedOp::Sum, BLOCK);
        rank.fill(rank.send, &inputs[rank.number]);
        view.group_start().expect("a group");
        // The root receives from all others at once, which is a group when it is alone.
        let gather = rank.call(Collective::Gather, dtype, None);
        // SAFETY: the buffers have room, and the stream is waited for below.
        unsafe { rank.communicator.call(&gather, rank.stream) }.expect("taken");
        view.group_end().expect("issued");
        rank.card.stream_synchronize(rank.stream, SOON).expect("done");
        if rank.number == 0 {
            let expected = inputs.concat();
            assert_eq!(rank.read(rank.receive)[..expected.len()], expected);
        }
    });
}

#[test]
fn what_is_refused_is_refused_before_bkcl_hears_of_it() {
    let machine = machine();
    on_all_ranks(&machine, |rank| {
        let refused = |call: &NativeCall<'_>, status| {
            // SAFETY: it is refused before a buffer is touched.
            let error = unsafe { rank.communicator.call(call, rank.stream) }.unwrap_err();
            assert_eq!(error.status, status, "{error}");
        };
        let max = rank.call(Collective::AllReduce, DataType::F32, Some(RedOp::Max));
        refused(&max, Status::NotSupported);
        let unsigned = rank.call(Collective::AllReduce, DataType::U32, Some(RedOp::Max));
        refused(&unsigned, Status::NotSupported);
        let average = rank.call(Collective::AllReduce, DataType::I32, Some(RedOp::Avg));
        refused(&average, Status::NotSupported);
        refused(&rank.call(Collective::Barrier, DataType::U8, None), Status::NotSupported);
        let nobody = NativeCall { root: 4, ..rank.call(Collective::Broadcast, DataType::U8, None) };
        refused(&nobody, Status::InvalidArgument);
        // It goes on after that.
        assert_eq!(rank.communicator.async_error(), Ok(Progress::Done));
    });
}

#[test]
fn bkcls_own_refusal_has_its_name_and_number() {
    let machine = machine();
    on_all_ranks(&machine, |rank| {
        machine.simulate("faults", "bkcl_all_reduce@*=2");
        let call = rank.call(Collective::AllReduce, DataType::F32, Some(RedOp::Sum));
        // SAFETY: it is refused.
        let error = unsafe { rank.communicator.call(&call, rank.stream) }.unwrap_err();
        assert_eq!((error.status, error.vendor_code), (Status::DeviceError, 2), "{error}");
        assert!(error.message.contains("bkcl_all_reduce: BKCL_RUNTIME_ERROR"), "{error}");
    });
}

#[test]
fn an_abort_ends_a_call_that_waits_for_a_peer() {
    let machine = machine();
    let view = machine.set.collectives_of("kunlun").expect("BKCL").view();
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
                        unsafe { rank.communicator.call(&call, rank.stream) }.expect("enqueued");
                        let done = rank.card.stream_synchronize(rank.stream, SOON);
                        is_over.store(true, Ordering::Release);
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
    let view = machine.set.collectives_of("kunlun").expect("BKCL").view();
    let id = view.unique_id().expect("an id");
    let error = view.join(&machine.card(0), &id, 2, 0).unwrap_err();
    assert_eq!(error.status, Status::Timeout, "{error}");
    assert!(error.message.contains("on rank 0 of 2"), "{error}");
    let error = view.join(&machine.card(0), &id[..64], 2, 0).unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument, "{error}");
}
