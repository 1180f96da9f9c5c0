//! The simulated libraries of Ascend, used by processes as a program would use the real ones.

use iccl_tests::maker::Process;
use iccl_tests::sim_sdk;

/// Starts one scenario.
fn start(words: &[&str], variables: &[(&str, &str)]) -> Process {
    let program = env!("CARGO_BIN_EXE_iccl-test-sim-ascend");
    Process::start(program, &sim_sdk::folder("ascend"), words, variables)
}

/// Runs one scenario.
fn passes(scenario: &str, variables: &[(&str, &str)]) -> String {
    start(&[scenario], variables).must_succeed()
}

/// Late enough to be looked at before it is over.
const LATE: (&str, &str) = ("ICCL_SIM_ASCEND_DELAY_US", "1000000");

#[test]
fn a_host_dereference_of_device_memory_dies() {
    let (_, signal, said) = start(&["dereference"], &[]).end();
    assert_eq!(signal, Some(libc::SIGSEGV), "{said}");
    assert!(said.contains("about to read") && !said.contains("read 7"), "{said}");
}

#[test]
fn the_runtime_is_begun_once_and_outputs_stay_as_they_were_on_errors() {
    assert!(passes("begin", &[]).contains("count 0 4"));
    let visible = [("ASCEND_RT_VISIBLE_DEVICES", "3,1")];
    assert!(passes("begin", &visible).contains("count 0 2"));
    let none = [("ICCL_SIM_ASCEND_DEVICES", "0")];
    assert!(passes("begin", &none).contains("count 207004 77"));
}

#[test]
fn memory_is_refused_as_by_the_real_one() {
    passes("memory", &[("ICCL_SIM_MEMORY", "1048576")]);
}

#[test]
fn copies_land_late_and_check_room_and_direction() {
    passes("copies", &[LATE]);
}

#[test]
fn streams_and_events_say_the_opposite() {
    passes("streams", &[LATE]);
}

#[test]
fn each_thread_has_the_card_that_it_chose() {
    passes("threads", &[]);
}

#[test]
fn host_functions_need_a_thread_or_are_the_runtimes() {
    passes("reports", &[]);
}

#[test]
fn a_stream_that_is_torn_down_is_over() {
    passes("abort", &[]);
}

#[test]
fn one_process_has_several_ranks_and_hccl_refuses_by_its_numbers() {
    passes("hccl-one-process", &[]);
}

/// Starts all ranks of a communicator; `variables` are those of a rank.
fn ranks(
    ranks: u32,
    what: &str,
    variables: impl Fn(u32) -> Vec<(&'static str, &'static str)>,
) -> Vec<Process> {
    let number = ranks.to_string();
    let rank_of = |rank: u32, id: &str| {
        start(&["rank", &rank.to_string(), &number, id, what], &variables(rank))
    };
    let mut first = rank_of(0, "-");
    let id = first.line("id");
    let others: Vec<_> = (1..ranks).map(|rank| rank_of(rank, &id)).collect();
    std::iter::once(first).chain(others).collect()
}

#[test]
fn processes_form_a_communicator_also_across_hosts() {
    for process in &mut ranks(3, "sum", |_| vec![LATE]) {
        process.must_succeed();
    }
    let hosts = ["one", "two", "one"];
    for process in &mut ranks(3, "sum", |rank| vec![LATE, ("ICCL_SIM_HOST", hosts[rank as usize])])
    {
        process.must_succeed();
    }
}

#[test]
fn the_death_of_a_rank_on_another_host_is_a_remote_error() {
    let hosts = ["one", "two"];
    let mut all = ranks(2, "death", |rank| vec![("ICCL_SIM_HOST", hosts[rank as usize])]);
    all[1].line("joined");
    all[0].line("waits");
    all[1].kill();
    all[0].must_succeed();
}
