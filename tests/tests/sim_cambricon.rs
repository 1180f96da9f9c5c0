//! The simulated libraries of Cambricon, used by processes as a program would use the real ones.

use iccl_tests::maker::Process;
use iccl_tests::sim_sdk;

/// Starts one scenario.
fn start(words: &[&str], variables: &[(&str, &str)]) -> Process {
    let folder = sim_sdk::folder("cambricon");
    Process::start(env!("CARGO_BIN_EXE_iccl-test-sim-cambricon"), &folder, words, variables)
}

/// Runs one scenario.
fn passes(scenario: &str, variables: &[(&str, &str)]) -> String {
    start(&[scenario], variables).must_succeed()
}

#[test]
fn a_host_dereference_of_device_memory_dies() {
    let mut process = start(&["dereference"], &[]);
    let (_, signal, said) = process.end();
    assert_eq!(signal, Some(libc::SIGSEGV), "{said}");
    assert!(said.contains("about to read") && !said.contains("read 7"), "{said}");
}

#[test]
fn devices_are_as_they_are_set() {
    let said = passes("devices", &[("ICCL_SIM_DEVICES", "3")]);
    assert!(said.contains("status 0 count 3 cnrtSuccess"), "{said}");
    assert!(said.contains("card 0000:61:00.0\ncard 0000:62:00.0\ncard 0000:63:00.0"), "{said}");
    let some = [("ICCL_SIM_CAMBRICON_DEVICES", "8"), ("MLU_VISIBLE_DEVICES", "5,2")];
    let visible = passes("devices", &some);
    assert!(visible.contains("card 0000:66:00.0\ncard 0000:63:00.0"), "{visible}");
    let none = passes("devices", &[("ICCL_SIM_DEVICES", "0")]);
    assert!(none.contains("status 100004 count 77 cnrtErrorNoDevice"), "{none}");
}

#[test]
fn copies_have_their_directions_and_land_late() {
    passes("copies", &[("ICCL_SIM_MEMORY", "1048576")]);
}

#[test]
fn notifiers_come_before_queues_and_keep_their_order() {
    passes("queues", &[]);
}

#[test]
fn host_functions_may_not_call() {
    passes("host-functions", &[]);
}

#[test]
fn pointers_say_what_they_are() {
    passes("pointers", &[]);
}

#[test]
fn a_process_that_forked_is_refused() {
    passes("forked", &[]);
}

#[test]
fn memory_and_notifiers_are_shared_between_processes_of_a_host() {
    let mut exporter = start(&["export"], &[]);
    let handles = exporter.line("handles");
    let mut importer = start(&["import"], &[]);
    importer.tell(&handles);
    importer.must_succeed();
    let mut stranger = start(&["import"], &[("ICCL_SIM_HOST", "elsewhere")]);
    stranger.tell(&handles);
    stranger.must_succeed();
    exporter.tell("written");
    exporter.must_succeed();
}

// CNCL.

/// Starts all ranks of a clique; `variables` are those of a rank.
fn ranks(
    ranks: u32,
    what: &str,
    variables: impl Fn(u32) -> Vec<(&'static str, &'static str)>,
) -> Vec<Process> {
    let number = ranks.to_string();
    let start = |rank: u32, id: &str| {
        start(&["cncl", &rank.to_string(), &number, id, what], &variables(rank))
    };
    let mut first = start(0, "-");
    let id = first.line("id");
    let others: Vec<_> = (1..ranks).map(|rank| start(rank, &id)).collect();
    std::iter::once(first).chain(others).collect()
}

#[test]
fn two_and_three_processes_do_every_collective() {
    for number in 2..=3 {
        for process in &mut ranks(number, "collectives", |_| Vec::new()) {
            process.must_succeed();
        }
    }
}

#[test]
fn communicators_of_a_clique_are_released_together() {
    for (what, word) in [("release", "free"), ("abort", "abort")] {
        let mut all = ranks(2, what, |_| Vec::new());
        all[0].line("waits");
        all[1].tell(word);
        all.iter_mut().for_each(|process| drop(process.must_succeed()));
    }
}

#[test]
fn the_death_of_a_rank_on_another_host_is_told() {
    let host = |rank| vec![("ICCL_SIM_HOST", if rank == 0 { "one" } else { "two" })];
    let mut all = ranks(2, "death", host);
    all[1].line("joined");
    all[0].line("waits");
    all[1].kill();
    all[0].tell("look");
    all[0].must_succeed();
}

#[test]
fn one_process_has_several_ranks() {
    passes("cncl-one-process", &[]);
}

#[test]
fn what_cncl_refuses_is_refused() {
    passes("cncl-refusals", &[]);
}
