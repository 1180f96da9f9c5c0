//! HCCL, through the plugin: every combination that it offers, on four ranks, against the oracle.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use iccl_plugin_api::sdk::{NativeCall, Progress};
use iccl_plugin_api::tables::collectives_flag;
use iccl_plugin_api::{Collective, DataType, MemoryKind, RedOp, Status};
use iccl_tests::maker::{
    BLOCK, Machine, RANKS, Rank, SOON, blocks_are_moved_and_reduced, contributions,
    every_type_is_moved, on_all_ranks, reductions_are_right, rings_meet_in_groups,
};
use iccl_tests::oracle;

use crate::simulator::machine;

#[test]
fn what_hccl_offers_is_told() {
    let machine = machine();
    let hccl = machine.set.collectives_of("ascend").expect("HCCL");
    assert_eq!(hccl.library(), "HCCL of CANN 9.0.0 on A2");
    assert_eq!(hccl.flags(), collectives_flag::GROUPS | collectives_flag::IN_PLACE);
    assert_eq!(hccl.view().unique_id().expect("a root info").len(), 4108);
}

#[test]
fn every_reduction_that_is_offered_is_right() {
    // i8, i32, i64 by 4 operations, i16 by 3, f16, f32 by 2, bf16 by 1, each in 3 collectives.
    reductions_are_right(&machine(), 3 * (3 * 4 + 3 + 2 * 2 + 1));
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
fn two_sends_to_one_rank_are_two_batches_and_one_to_itself_is_a_copy() {
    let machine = machine();
    let view = machine.set.collectives_of("ascend").expect("HCCL").view();
    on_all_ranks(&machine, |rank| {
        let dtype = DataType::I32;
        let inputs = contributions(dtype, RedOp::Sum, 3 * BLOCK);
        let (next, before) = ((rank.number + 1) % RANKS, (rank.number + RANKS - 1) % RANKS);
        rank.fill(rank.send, &inputs[rank.number]);
        rank.fill(rank.receive, &[]);
        let block = BLOCK * dtype.size_bytes();
        let part = |collective, peer: usize, block_number: usize| NativeCall {
            root: peer as u32,
            send: rank.send.wrapping_byte_add(block_number * block),
            receive: rank.receive.wrapping_byte_add(block_number * block),
            ..rank.call(collective, dtype, None)
        };
        view.group_start().expect("a group");
        let calls = [
            part(Collective::Send, next, 0),
            part(Collective::Recv, before, 0),
            part(Collective::Send, rank.number, 1),
            part(Collective::Send, next, 2),
            part(Collective::Recv, rank.number, 1),
            part(Collective::Recv, before, 2),
        ];
        for call in calls {
            // SAFETY: the buffers have room, and the stream is waited for below.
            unsafe { rank.communicator.call(&call, rank.stream) }.expect("taken");
        }
        view.group_end().expect("issued");
        rank.card.stream_synchronize(rank.stream, SOON).expect("done");
        let result = rank.read(rank.receive);
        let (own, theirs) = (&inputs[rank.number], &inputs[before]);
        assert_eq!(result[..block], theirs[..block]);
        assert_eq!(result[block..2 * block], own[block..2 * block]);
        assert_eq!(result[2 * block..3 * block], theirs[2 * block..3 * block]);
        // Alone it would wait for itself.
        let alone = part(Collective::Send, rank.number, 0);
        // SAFETY: it is refused before a buffer is touched.
        let error = unsafe { rank.communicator.call(&alone, rank.stream) }.unwrap_err();
        assert_eq!(error.status, Status::InvalidArgument, "{error}");
    });
}

#[test]
fn blocks_that_lie_in_place_are_right_too() {
    let machine = machine();
    on_all_ranks(&machine, |rank| {
        let (dtype, mine) = (DataType::F32, rank.number);
        let block = BLOCK * dtype.size_bytes();
        let inputs = contributions(dtype, RedOp::Sum, BLOCK * RANKS);
        let own = |pointer: *mut std::ffi::c_void| pointer.wrapping_byte_add(mine * block);
        // All-gather from its own place in the result.
        let mut filled = vec![0; block * RANKS];
        filled[mine * block..][..block].copy_from_slice(&inputs[mine][..block]);
        rank.fill(rank.receive, &filled);
        let gather = rank.call(Collective::AllGather, dtype, None);
        rank.run(&NativeCall { send: own(rank.receive), ..gather });
        let expected: Vec<u8> = inputs.iter().flat_map(|input| input[..block].to_vec()).collect();
        assert_eq!(rank.read(rank.receive)[..block * RANKS], expected);
        // Reduce-scatter into its own place in the input, of which the rest is left alone.
        rank.fill(rank.send, &inputs[mine]);
        let scatter = rank.call(Collective::ReduceScatter, dtype, Some(RedOp::Sum));
        rank.run(&NativeCall { receive: own(rank.send), ..scatter });
        let mut expected = inputs[mine].clone();
        let reduced = oracle::reduced(dtype, RedOp::Sum, &inputs);
        expected[mine * block..][..block].copy_from_slice(&reduced[mine * block..][..block]);
        assert_eq!(rank.read(rank.send)[..block * RANKS], expected);
        // Scatter and gather, of which the root's own block is there.
        rank.fill(rank.send, &inputs[mine]);
        rank.fill(rank.receive, &[]);
        let receive = if mine == 2 { own(rank.send) } else { rank.receive };
        let scatter = rank.call(Collective::Scatter, dtype, None);
        rank.run(&NativeCall { root: 2, receive, ..scatter });
        if mine == 2 {
            assert_eq!(rank.read(rank.send)[..block * RANKS], inputs[2]);
        } else {
            assert_eq!(rank.read(rank.receive)[..block], inputs[2][mine * block..][..block]);
        }
        // A broadcast of the root's only buffer.
        rank.fill(rank.receive, &inputs[mine]);
        let broadcast = rank.call(Collective::Broadcast, dtype, None);
        rank.run(&NativeCall { send: rank.receive, root: 1, ..broadcast });
        assert_eq!(rank.read(rank.receive)[..block], inputs[1][..block]);
    });
}

#[test]
fn a_barrier_waits_for_all() {
    let machine = machine();
    on_all_ranks(&machine, |rank| {
        let barrier = rank.call(Collective::Barrier, DataType::U8, None);
        if rank.number == 0 {
            // SAFETY: nothing is read or written.
            unsafe { rank.communicator.call(&barrier, rank.stream) }.expect("enqueued");
            rank.card.stream_synchronize(rank.stream, SOON).expect("all came");
        } else {
            rank.run(&barrier);
        }
    });
}

#[test]
fn what_is_refused_is_refused_before_hccl_hears_of_it() {
    let machine = machine();
    on_all_ranks(&machine, |rank| {
        let refused = |call: &NativeCall<'_>, status| {
            // SAFETY: it is refused before a buffer is touched.
            let error = unsafe { rank.communicator.call(call, rank.stream) }.unwrap_err();
            assert_eq!(error.status, status, "{error}");
        };
        let reduce = |dtype, op| rank.call(Collective::AllReduce, dtype, Some(op));
        refused(&reduce(DataType::F32, RedOp::Max), Status::NotSupported);
        refused(&reduce(DataType::F32, RedOp::Avg), Status::NotSupported);
        refused(&reduce(DataType::U8, RedOp::Sum), Status::NotSupported);
        refused(&reduce(DataType::F64, RedOp::Sum), Status::NotSupported);
        refused(&reduce(DataType::Bf16, RedOp::Prod), Status::NotSupported);
        refused(&reduce(DataType::I32, RedOp::BitXor), Status::NotSupported);
        let nobody = NativeCall { root: 4, ..rank.call(Collective::Broadcast, DataType::U8, None) };
        refused(&nobody, Status::InvalidArgument);
        let in_place = rank.call(Collective::AllToAll, DataType::U8, None);
        refused(&NativeCall { receive: rank.send, ..in_place }, Status::NotSupported);
        let odd = NativeCall {
            send: rank.send.wrapping_byte_add(2),
            ..reduce(DataType::F32, RedOp::Sum)
        };
        refused(&odd, Status::InvalidArgument);
        // It goes on after that.
        assert_eq!(rank.communicator.async_error(), Ok(Progress::Done));
    });
}

#[test]
fn hccls_refusal_has_its_words_and_number() {
    let machine = machine();
    on_all_ranks(&machine, |rank| {
        let barrier = rank.call(Collective::Barrier, DataType::U8, None);
        if rank.number == 0 {
            machine.simulate("faults", "HcclAllReduce@*=5");
        }
        rank.run(&barrier);
        let call = rank.call(Collective::AllReduce, DataType::F32, Some(RedOp::Sum));
        // SAFETY: it is refused before a buffer is touched.
        let error = unsafe { rank.communicator.call(&call, rank.stream) }.unwrap_err();
        assert_eq!((error.status, error.vendor_code), (Status::NotSupported, 5), "{error}");
        assert!(error.message.contains("HcclAllReduce: not support feature (5)"), "{error}");
        rank.run(&barrier);
        if rank.number == 0 {
            machine.simulate("faults", "");
        }
    });
}

#[test]
fn an_abort_tears_down_the_stream_that_waits_for_a_peer() {
    let machine = machine();
    let view = machine.set.collectives_of("ascend").expect("HCCL").view();
    let id = view.unique_id().expect("a root info");
    let all_joined = Barrier::new(RANKS);
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let (id, machine, all_joined) = (&id, &machine, &all_joined);
            scope.spawn(move || {
                let rank = Rank::join(machine, view, id, rank);
                all_joined.wait();
                if rank.number == 0 {
                    let call = rank.call(Collective::AllReduce, DataType::F32, Some(RedOp::Sum));
                    // SAFETY: the buffers stay for the life of the process.
                    unsafe { rank.communicator.call(&call, rank.stream) }.expect("enqueued");
                    let is_over = AtomicBool::new(false);
                    std::thread::scope(|inner| {
                        inner.spawn(|| {
                            std::thread::sleep(Duration::from_millis(100));
                            assert!(!is_over.load(Ordering::Acquire), "nobody came");
                            rank.communicator.abort().expect("aborted");
                        });
                        let error = rank.card.stream_synchronize(rank.stream, SOON).unwrap_err();
                        is_over.store(true, Ordering::Release);
                        assert_eq!(error.status, Status::Aborted, "{error}");
                        assert_eq!(error.vendor_code, 107_023);
                    });
                    let error = rank.communicator.async_error().unwrap_err();
                    assert_eq!(error.status, Status::Aborted);
                    // The card is well: another stream goes on.
                    let other = rank.card.stream_create().expect("a stream");
                    rank.card.stream_synchronize(other, SOON).expect("idle");
                    rank.card.stream_destroy(other).expect("destroyed");
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
fn an_abort_tears_down_what_a_call_enqueued_before_it_failed() {
    let machine = machine();
    let view = machine.set.collectives_of("ascend").expect("HCCL").view();
    let id = view.unique_id().expect("a root info");
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let (id, machine) = (&id, &machine);
            scope.spawn(move || {
                let rank = Rank::join(machine, view, id, rank);
                if rank.number == 1 {
                    // The reduce to rank 0 waits for the others; the one to this rank is refused.
                    let call = NativeCall {
                        receive: rank.receive.wrapping_byte_add(2),
                        send_counts: &[BLOCK as u64; RANKS],
                        ..rank.call(Collective::ReduceScatterV, DataType::F32, Some(RedOp::Sum))
                    };
                    // SAFETY: the buffers stay for the life of the process.
                    let error = unsafe { rank.communicator.call(&call, rank.stream) }.unwrap_err();
                    assert_eq!(error.status, Status::InvalidArgument, "{error}");
                    rank.communicator.abort().expect("aborted");
                    let error = rank.card.stream_synchronize(rank.stream, SOON).unwrap_err();
                    assert_eq!(error.status, Status::Aborted, "{error}");
                } else {
                    rank.communicator.abort().expect("aborted");
                }
                rank.communicator.leave().expect("nothing to leave");
            });
        }
    });
}

#[test]
fn leaving_waits_for_what_is_under_way() {
    let machine = machine();
    on_all_ranks(&machine, |rank| {
        machine.simulate("delay_us", "100000");
        let call = rank.call(Collective::AllReduce, DataType::F32, Some(RedOp::Sum));
        // SAFETY: the buffers are freed after the communicator was left, which waits.
        unsafe { rank.communicator.call(&call, rank.stream) }.expect("enqueued");
        // `on_all_ranks` leaves at once.
    });
    machine.simulate("delay_us", "0");
}

#[test]
fn a_join_that_nobody_else_comes_to_ends_when_hccl_says_so() {
    let machine: Machine = machine();
    let view = machine.set.collectives_of("ascend").expect("HCCL").view();
    let id = view.unique_id().expect("a root info");
    let error = view.join(&machine.card(0), &id, 2, 0).unwrap_err();
    assert_eq!((error.status, error.vendor_code), (Status::Timeout, 9), "{error}");
    assert!(error.message.contains("on rank 0 of 2: timeout"), "{error}");
    let error = view.join(&machine.card(0), &id[..128], 2, 0).unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument, "{error}");
    assert!(machine.card(0).allocate(8, MemoryKind::Device).is_ok());
}
