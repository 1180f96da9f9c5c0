//! Communicators on cards whose memory the host cannot read: simulated NVIDIA cards, ranks that are threads.

use iccl_plugin_api::{DataType, RedOp};
use iccl_tests::ranks::{Job, must_be_right, sum};
use iccl_tests::sim_cards;

// Linked in, so that no folder is needed.
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

#[test]
fn an_all_reduce_on_two_cards() {
    for transport in ["shm", "tcp"] {
        let job = sim_cards::nvidia(Job::new(2).with("transport.enabled", transport));
        job.run(|communicator| {
            assert_eq!(communicator.device().plugin(), "nvidia");
            must_be_right(communicator);
            let sums = sum(communicator, communicator.rank() as i32 + 1, 1_000_000);
            assert_eq!(sums.expect("sums"), vec![3; 1_000_000]);
            let counts = communicator.counters().staging();
            assert!(counts.copies_to_host > 0 && counts.copies_to_card > 0, "{counts:?}");
            let means = communicator.explain(
                iccl_plugin_api::Collective::AllReduce,
                DataType::F16,
                RedOp::Avg,
                10,
            );
            means.expect("an algorithm");
        });
    }
}
