//! The rules of CNCL's cliques: one init for each id and process, all communicators released at once.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use iccl_plugin_api::host::{CollectivesView, OpenCommunicator};
use iccl_plugin_api::sdk::Progress;
use iccl_plugin_api::{Collective, DataType, RedOp, Status};
use iccl_tests::maker::{BLOCK, Machine, Maker, RANKS, Rank, SOON, on_all_ranks};

use crate::simulator::{CAMBRICON, cards_of_ranks, machine};

fn view(machine: &Machine) -> CollectivesView {
    machine.set.collectives_of("cambricon").expect("CNCL").view()
}

/// Joins as ranks 0 and 1 of two.
fn pair(machine: &Machine, view: CollectivesView) -> Vec<OpenCommunicator> {
    let id = view.unique_id().expect("an id");
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|rank| {
                let (id, card) = (&id, machine.card(rank));
                scope.spawn(move || view.join(&card, id, 2, rank as u32).expect("joined"))
            })
            .collect();
        threads.into_iter().map(|one| one.join().expect("a communicator")).collect()
    })
}

#[test]
fn ranks_do_not_wait_for_ever_for_cards_that_are_open_and_do_not_join() {
    let machine = machine();
    let view = view(&machine);
    let _third = machine.card(2);
    for communicator in pair(&machine, view) {
        assert_eq!(communicator.async_error(), Ok(Progress::Done));
        communicator.leave().expect("left");
    }
}

#[test]
fn ranks_of_which_one_does_not_come_are_all_told_so() {
    // They still wait for each other when their time is over.
    let settings = &[("join_timeout", "1s"), ("gather_time", "60s")];
    let machine = Machine::new(&Maker { settings, ..CAMBRICON });
    let view = view(&machine);
    let id = view.unique_id().expect("an id");
    let _third = machine.card(2);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (id, card) = (&id, machine.card(rank));
            scope.spawn(move || {
                let error = view.join(&card, id, 3, rank as u32).map(drop).unwrap_err();
                assert_eq!(error.status, Status::Timeout, "{error}");
                assert!(error.message.contains("in this process there are ranks ["), "{error}");
            });
        }
    });
}

#[test]
fn a_rank_that_comes_after_the_others_of_its_process_is_refused() {
    let machine = machine();
    let view = view(&machine);
    let id = view.unique_id().expect("an id");
    let first = machine.card(0);
    std::thread::scope(|scope| {
        let (first, id) = (&first, &id);
        let waiting = scope.spawn(move || view.join(first, id, 2, 0).map(drop));
        // Its card is the only open one, so it goes at once, and waits for another process.
        std::thread::sleep(Duration::from_secs(1));
        let late = view.join(&machine.card(1), id, 2, 1).map(drop).unwrap_err();
        assert_eq!(late.status, Status::InvalidArgument, "{late}");
        let rule = "CNCL takes a clique id once in each process";
        assert!(late.message.contains(rule), "{late}");
        // Nobody else comes.
        let error = waiting.join().expect("no panic").unwrap_err();
        assert_eq!(error.status, Status::Timeout, "{error}");
        let words = "on rank 0 of 2; in this process there are ranks [0]";
        assert!(error.message.contains(words), "{error}");
    });
    let short = view.join(&first, &id[..128], 2, 0).map(drop).unwrap_err();
    assert!(short.message.contains("clique ids have 136 bytes, not 128"), "{short}");
    // An id of which a part is missing.
    let torn = [&id[..128], &[0; 8]].concat();
    let torn = view.join(&first, &torn, 1, 0).map(drop).unwrap_err();
    assert_eq!(torn.status, Status::InvalidArgument, "{torn}");
}

#[test]
fn one_thread_calls_for_two_ranks_in_a_group_and_leaves_one_after_the_other() {
    let machine = machine();
    let view = view(&machine);
    let cards = [machine.card(0), machine.card(1)];
    let communicators = pair(&machine, view);
    let mut ranks = Vec::new();
    for (number, communicator) in communicators.into_iter().enumerate() {
        ranks.push(Rank::of(cards[number].clone(), communicator, number));
    }
    let dtype = DataType::I32;
    for rank in &ranks {
        let value = 10_i32.pow(rank.number as u32);
        rank.fill(rank.send, &value.to_le_bytes().repeat(5));
        rank.fill(rank.receive, &[]);
    }
    // Without the group, the first call would not come back before the second is made.
    view.group_start().expect("a group");
    for rank in &ranks {
        let call = rank.call(Collective::AllReduce, dtype, Some(RedOp::Sum));
        // SAFETY: the buffers have room, and the streams are waited for below.
        unsafe { rank.communicator.call(&call, rank.stream) }.expect("taken");
    }
    view.group_end().expect("issued");
    for rank in &ranks {
        rank.card.stream_synchronize(rank.stream, SOON).expect("done");
        assert_eq!(rank.read(rank.receive)[..20], 11_i32.to_le_bytes().repeat(5));
    }
    ranks.into_iter().for_each(Rank::leave);
}

#[test]
fn a_group_ends_also_where_its_card_cannot_be_chosen() {
    let machine = machine();
    let view = view(&machine);
    let id = view.unique_id().expect("an id");
    // This thread has another card.
    let card = machine.card(1);
    let communicator = view.join(&card, &id, 1, 0).expect("joined");
    let rank = Rank::of(card, communicator, 0);
    let own = 7_i32.to_le_bytes().repeat(BLOCK);
    rank.fill(rank.send, &own);
    rank.fill(rank.receive, &[]);
    let call = rank.call(Collective::AllReduce, DataType::I32, Some(RedOp::Sum));
    view.group_start().expect("a group");
    // SAFETY: the buffers have room, and the stream is waited for below.
    unsafe { rank.communicator.call(&call, rank.stream) }.expect("taken");
    machine.simulate("faults", "cnrtSetDevice@1=100005");
    let error = view.group_end().unwrap_err();
    machine.simulate("faults", "");
    assert!(error.message.contains("cnrtSetDevice(1)"), "{error}");
    // What comes after the group is not part of it.
    rank.fill(rank.receive, &[]);
    rank.run(&call);
    assert_eq!(rank.read(rank.receive)[..own.len()], own);
    rank.leave();
}

#[test]
fn an_abort_ends_the_clique_of_this_process_also_beside_a_call_that_is_stuck() {
    let machine = machine();
    let view = view(&machine);
    let id = view.unique_id().expect("an id");
    let _cards = cards_of_ranks(&machine);
    let (all_joined, is_aborted) = (Barrier::new(RANKS), Barrier::new(RANKS));
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let (id, machine, all_joined, is_aborted) = (&id, &machine, &all_joined, &is_aborted);
            scope.spawn(move || {
                let rank = Rank::join(machine, view, id, rank);
                let call = rank.call(Collective::AllReduce, DataType::F32, Some(RedOp::Sum));
                all_joined.wait();
                if rank.number == 0 {
                    let is_over = AtomicBool::new(false);
                    std::thread::scope(|inner| {
                        inner.spawn(|| {
                            std::thread::sleep(Duration::from_millis(100));
                            assert!(!is_over.load(Ordering::Acquire), "nobody came");
                            rank.communicator.abort().expect("aborted");
                        });
                        // SAFETY: the buffers stay for the life of the process.
                        let called = unsafe { rank.communicator.call(&call, rank.stream) };
                        is_over.store(true, Ordering::Release);
                        let error = called.expect_err("the others did not call");
                        assert_eq!(error.status, Status::Aborted, "{error}");
                        // The kernel is gone: the stream is not stuck.
                        rank.card.stream_synchronize(rank.stream, SOON).expect("it goes on");
                    });
                }
                is_aborted.wait();
                // All ranks of the process are aborted with it.
                let error = rank.communicator.async_error().unwrap_err();
                assert_eq!(error.status, Status::Aborted);
                // SAFETY: it is refused.
                let error = unsafe { rank.communicator.call(&call, rank.stream) }.unwrap_err();
                assert_eq!(error.status, Status::Aborted, "{error}");
                // Twice is once, and leaving has nothing left to do.
                rank.communicator.abort().expect("aborted before");
                rank.communicator.leave().expect("nothing to leave");
            });
        }
    });
}

#[test]
fn the_state_of_a_communicator_is_what_the_question_returns() {
    let machine = machine();
    let _cards = cards_of_ranks(&machine);
    on_all_ranks(&machine, |rank| {
        if rank.number > 0 {
            return;
        }
        let answers =
            "cnclGetCommAsyncError@1=6,cnclGetCommAsyncError@2=22,cnclGetCommAsyncError@3=38";
        machine.simulate("faults", answers);
        assert_eq!(rank.communicator.async_error(), Ok(Progress::Pending));
        for code in [0x16, 0x26] {
            let error = rank.communicator.async_error().unwrap_err();
            assert_eq!((error.status, error.vendor_code), (Status::DeviceError, code), "{error}");
        }
        assert_eq!(rank.communicator.async_error(), Ok(Progress::Done));
    });
}
