//! Communicators of iccl on simulated Ascend cards, whose memory the host cannot read.

use iccl_plugin_api::{DataType, RedOp};
use iccl_tests::ranks::{Job, must_be_right, sum};

use crate::simulator::machine;

// Linked in, so that no folder is needed.
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

/// B030: each rank has all 4108 bytes of the root info, or HCCL would not let it join.
#[test]
fn b030_an_all_reduce_on_three_cards() {
    let machine = machine();
    machine.job(Job::new(3)).with("algorithm.all_reduce", "native").run(|communicator| {
        assert_eq!(communicator.device().plugin(), "ascend");
        must_be_right(communicator);
        let sums = sum(communicator, communicator.rank() as i32 + 1, 100_000);
        assert_eq!(sums.expect("sums"), vec![6; 100_000]);
        assert_eq!(communicator.counters().native_calls(), 2);
    });
}

/// HCCL refuses to reduce memory at no multiple of an element; iccl gives it a copy.
#[test]
fn a_buffer_anywhere_is_reduced_by_the_library() {
    const COUNT: u64 = 5000;
    let machine = machine();
    machine.job(Job::new(2)).with("algorithm.all_reduce", "native").run(|communicator| {
        let (device, stream) = (communicator.device(), communicator.stream());
        let bytes = |numbers: Vec<i32>| numbers.into_iter().flat_map(i32::to_ne_bytes);
        let mine = bytes((0..COUNT as i32).map(|at| at + communicator.rank() as i32).collect());
        let whole: Vec<u8> = [9; 3].into_iter().chain(mine).chain([9]).collect();
        let (send, receive) =
            (device.buffer_from(&whole).expect("one"), device.buffer_from(&whole).expect("one"));
        let slice = |from: &iccl_runtime::comm::Buffer| from.slice(3, 4 * COUNT).expect("inside");
        // From one buffer to another, then in place; shorter ones in between use the same copy.
        for (to, count) in [(&receive, COUNT), (&receive, 77), (&send, COUNT)] {
            let (from, to) = (slice(&send), slice(to));
            let (dtype, op) = (DataType::I32, RedOp::Sum);
            let handle = communicator.all_reduce(&from, &to, count, dtype, op, stream);
            handle.and_then(|handle| handle.wait()).expect("a sum");
        }
        let sums = bytes((0..COUNT as i32).map(|at| 2 * at + 1).collect());
        let expected: Vec<u8> = [9; 3].into_iter().chain(sums).chain([9]).collect();
        assert_eq!(receive.read::<u8>().expect("bytes"), expected);
        assert_eq!(send.read::<u8>().expect("bytes"), expected);
        assert_eq!(communicator.counters().native_calls(), 3);
    });
}
