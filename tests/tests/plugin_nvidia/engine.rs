//! Communicators of iccl on simulated NVIDIA cards whose NCCL goes wrong while native communicators are made.

use std::time::{Duration, Instant};

use iccl_tests::maker::Machine;
use iccl_tests::ranks::{Job, must_be_right};

use crate::simulator::machine;

// Linked in, so that no folder is needed.
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

/// Three ranks do without NCCL, all for the same reason, and are right.
fn all_do_without(machine: &Machine, timeout: &str, reason: &str) {
    let job = machine.job(Job::new(3)).with("device.native_timeout", timeout);
    let begun = Instant::now();
    job.run(|communicator| {
        must_be_right(communicator);
        assert_eq!(communicator.counters().native_calls(), 0);
        let islands = communicator.plan().islands();
        assert_eq!(islands.len(), 1, "{islands:?}");
        let why = islands[0].why_unused().expect("a reason");
        assert!(why.contains(reason), "{why}");
        let told = communicator.plan().report().to_string();
        assert!(told.contains(reason), "{told}");
    });
    assert!(begun.elapsed() < Duration::from_secs(60), "it took {:?}", begun.elapsed());
}

#[test]
fn without_faults_nccl_is_used() {
    let machine = machine();
    machine.job(Job::new(3)).with("algorithm.all_reduce", "native").run(|communicator| {
        must_be_right(communicator);
        assert_eq!(communicator.counters().native_calls(), 1);
    });
}

#[test]
fn where_one_rank_cannot_join_all_do_without_and_say_why() {
    let machine = machine();
    machine.simulate("faults", "ncclCommInitRankConfig@2=2");
    all_do_without(&machine, "3s", "ncclCommInitRankConfig");
}

#[test]
fn where_one_rank_never_returns_from_joining_all_do_without_and_say_why() {
    let machine = machine();
    machine.simulate("faults", "ncclCommInitRankConfig@2=hang");
    all_do_without(&machine, "3s", "in time");
}

#[test]
fn where_there_is_no_id_all_do_without_and_say_why() {
    let machine = machine();
    machine.simulate("faults", "ncclGetUniqueId@*=2");
    all_do_without(&machine, "3s", "ncclGetUniqueId");
}
