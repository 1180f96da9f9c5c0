//! Communicators of iccl on simulated Cambricon cards, whose memory the host cannot read, and whose
//! queues cannot wait for a value.

use iccl_tests::ranks::{Job, must_be_right, sum};

use crate::simulator::machine;

// Linked in, so that no folder is needed.
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

#[test]
fn an_all_reduce_on_three_cards() {
    let machine = machine();
    machine.job(Job::new(3)).with("algorithm.all_reduce", "native").run(|communicator| {
        assert_eq!(communicator.device().plugin(), "cambricon");
        must_be_right(communicator);
        let sums = sum(communicator, communicator.rank() as i32 + 1, 100_000);
        assert_eq!(sums.expect("sums"), vec![6; 100_000]);
        assert_eq!(communicator.counters().native_calls(), 2);
    });
}
