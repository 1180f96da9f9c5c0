//! The simulated libraries of NVIDIA, used by processes as a program would use the real ones.

use std::path::Path;

use iccl_tests::maker::Process;
use iccl_tests::sim_sdk;

/// Starts one scenario.
fn start(folder: &Path, words: &[&str], variables: &[(&str, &str)]) -> Process {
    Process::start(env!("CARGO_BIN_EXE_iccl-test-sim-nvidia"), folder, words, variables)
}

/// Runs one scenario.
fn passes(scenario: &str, variables: &[(&str, &str)]) -> String {
    start(sim_sdk::nvidia(), &[scenario], variables).must_succeed()
}

#[test]
fn a_host_dereference_of_device_memory_dies() {
    let mut process = start(sim_sdk::nvidia(), &["dereference"], &[]);
    let (_, signal, said) = process.end();
    assert_eq!(signal, Some(libc::SIGSEGV), "{said}");
    assert!(said.contains("about to read") && !said.contains("read 7"), "{said}");
}

#[test]
fn devices_are_as_they_are_set() {
    let said = passes("devices", &[("ICCL_SIM_DEVICES", "3")]);
    assert!(said.contains("runtime 12090"), "{said}");
    assert!(said.contains("driver 13000 status 0 count 3 no error"), "{said}");
    assert!(said.contains("card 0000:21:00.0\ncard 0000:22:00.0\ncard 0000:23:00.0"), "{said}");
    let visible =
        passes("devices", &[("ICCL_SIM_NVIDIA_DEVICES", "8"), ("CUDA_VISIBLE_DEVICES", "5,2")]);
    assert!(visible.contains("card 0000:26:00.0\ncard 0000:23:00.0"), "{visible}");
    let none = passes("devices", &[("ICCL_SIM_DEVICES", "0"), ("CUDART", "13")]);
    assert!(none.contains("runtime 13050"), "{none}");
    assert!(none.contains("status 100 count -7 no CUDA-capable device is detected"), "{none}");
}

#[test]
fn a_driver_that_is_too_old_is_told_and_the_count_left_as_it_was() {
    let old = [("ICCL_SIM_DRIVER_VERSION", "12040"), ("CUDART", "13")];
    let said = passes("devices", &old);
    assert!(said.contains("driver 12040 status 35 count -7"), "{said}");
    assert!(passes("devices", &old[..1]).contains("status 0 count 4"));
}

#[test]
fn copies_land_late_and_only_pinned_memory_is_not_staged() {
    passes("copies", &[("ICCL_SIM_MEMORY", "1048576")]);
}

#[test]
fn streams_and_events_keep_their_order() {
    passes("streams", &[]);
}

#[test]
fn the_default_stream_waits_for_blocking_streams() {
    passes("default-stream", &[]);
}

#[test]
fn host_functions_hold_their_stream_and_may_not_call() {
    passes("host-functions", &[]);
}

#[test]
fn streams_wait_for_values_and_write_them() {
    passes("values", &[]);
}

#[test]
fn pointers_say_what_they_are() {
    passes("pointers", &[]);
    passes("pointers", &[("CUDART", "13")]);
}

#[test]
fn faults_are_those_that_were_set() {
    passes("faults", &[("ICCL_SIM_FAULTS", "cudaMalloc@2=46,cudaMemGetInfo@1=nothing")]);
}

#[test]
fn memory_and_events_are_shared_between_processes_of_a_host() {
    let folder = sim_sdk::nvidia();
    let mut exporter = start(folder, &["export"], &[]);
    let handles = exporter.line("handles");
    let mut importer = start(folder, &["import"], &[]);
    importer.tell(&handles);
    importer.must_succeed();
    let mut stranger = start(folder, &["import"], &[("ICCL_SIM_HOST", "elsewhere")]);
    stranger.tell(&handles);
    stranger.must_succeed();
    exporter.tell("written");
    exporter.must_succeed();
}

// NCCL.

/// Starts all ranks of a communicator; `variables` are those of a rank.
fn ranks(
    ranks: u32,
    what: &str,
    variables: impl Fn(u32) -> Vec<(&'static str, &'static str)>,
) -> Vec<Process> {
    let number = ranks.to_string();
    let rank_of = |rank: u32, id: &str| {
        let words = ["nccl", &rank.to_string(), &number, id, what];
        start(sim_sdk::nvidia(), &words, &variables(rank))
    };
    let mut first = rank_of(0, "-");
    let id = first.line("id");
    let others: Vec<_> = (1..ranks).map(|rank| rank_of(rank, &id)).collect();
    std::iter::once(first).chain(others).collect()
}

fn all_pass(number: u32, what: &str) {
    for process in &mut ranks(number, what, |_| Vec::new()) {
        process.must_succeed();
    }
}

#[test]
fn two_three_and_four_processes_do_every_collective() {
    for number in 2..=4 {
        all_pass(number, "collectives");
    }
}

#[test]
fn messages_travel_in_groups() {
    all_pass(3, "messages");
    all_pass(2, "messages");
}

#[test]
fn communicators_are_split_and_shrunk() {
    all_pass(4, "split");
}

#[test]
fn sums_of_multiples_have_their_factor_now_or_later() {
    all_pass(2, "multiples");
}

#[test]
fn calls_of_a_communicator_keep_their_order_over_streams() {
    all_pass(2, "order");
}

#[test]
fn a_flawed_collective_reports_success() {
    all_pass(2, "flaws");
}

#[test]
fn a_card_can_be_there_only_once() {
    all_pass(2, "same-card");
    // The same number on two hosts is two cards.
    let hosts = |rank| vec![("ICCL_SIM_HOST", if rank == 0 { "one" } else { "two" })];
    for process in &mut ranks(2, "order", hosts) {
        process.must_succeed();
    }
}

#[test]
fn an_abort_ends_what_nobody_else_comes_to() {
    let mut all = ranks(2, "abort", |_| Vec::new());
    all[0].must_succeed();
    all[1].tell("over");
    all[1].must_succeed();
}

#[test]
fn the_death_of_a_rank_is_told_across_hosts_and_not_within_one() {
    for (state, where_, hosts) in [(6, "remote", ["one", "two"]), (0, "here", ["one", "one"])] {
        let mut all = ranks(2, "death", |rank| vec![("ICCL_SIM_HOST", hosts[rank as usize])]);
        all[1].line("joined");
        all[0].line("waits");
        all[1].kill();
        all[0].tell(where_);
        assert_eq!(all[0].line("state"), state.to_string());
        all[0].must_succeed();
    }
}

#[test]
fn one_thread_has_several_ranks() {
    passes("nccl-one-process", &[]);
}

#[test]
fn what_nccl_refuses_is_refused() {
    passes("nccl-refusals", &[]);
}

#[test]
fn an_older_nccl_lacks_what_it_lacked() {
    let folder = sim_sdk::nvidia_with_nccl(21805);
    start(&folder, &["nccl-old"], &[]).must_succeed();
}

#[test]
fn a_folder_without_a_driver_is_a_host_without_one() {
    let folder = tempfile::tempdir().expect("a folder");
    for library in ["libcudart.so.12", "libnccl.so.2"] {
        std::fs::copy(sim_sdk::nvidia().join(library), folder.path().join(library))
            .expect("a library can be copied");
    }
    start(folder.path(), &["no-driver"], &[]).must_succeed();
}
