//! The simulated libraries of Kunlun, used by processes as a program would use the real ones: those of
//! the older cards, and those of P800.

use iccl_tests::maker::Process;
use iccl_tests::sim_sdk;

const BOTH: [&str; 2] = ["kunlun", "kunlun-p800"];

/// Late enough to be looked at before it is over.
const LATE: (&str, &str) = ("ICCL_SIM_KUNLUN_DELAY_US", "200000");

fn start(sdk: &str, words: &[&str], variables: &[(&str, &str)]) -> Process {
    let program = env!("CARGO_BIN_EXE_iccl-test-sim-kunlun");
    Process::start(program, &sim_sdk::folder(sdk), words, variables)
}

/// Runs one scenario.
fn passes(sdk: &str, scenario: &str, variables: &[(&str, &str)]) -> String {
    start(sdk, &[scenario], variables).must_succeed()
}

#[test]
fn a_host_dereference_of_device_memory_dies() {
    for sdk in BOTH {
        let (_, signal, said) = start(sdk, &["dereference"], &[]).end();
        assert_eq!(signal, Some(libc::SIGSEGV), "{said}");
        assert!(said.contains("about to read") && !said.contains("read 7"), "{said}");
    }
}

#[test]
fn failures_are_negative_and_leave_outputs_as_they_were() {
    for sdk in BOTH {
        let said = passes(sdk, "devices", &[("ICCL_SIM_KUNLUN_DEVICES", "3")]);
        assert!(said.contains("count 0 3"), "{said}");
        let said = passes(sdk, "devices", &[("ICCL_SIM_DEVICES", "0")]);
        assert!(said.contains("count -703 -7"), "{said}");
    }
}

#[test]
fn directions_are_the_reverse_of_cudas_and_copies_synchronous() {
    for sdk in BOTH {
        passes(sdk, "copies", &[LATE]);
    }
}

#[test]
fn streams_are_of_their_card_and_cards_reach_each_other() {
    for sdk in BOTH {
        passes(sdk, "streams", &[]);
    }
    passes("kunlun", "k200", &[("ICCL_SIM_KUNLUN_MODEL", "0")]);
}

#[test]
fn p800_has_cudas_numbers_and_waits_where_cuda_does_not() {
    passes("kunlun-p800", "cuda", &[LATE]);
}

#[test]
fn registration_of_host_memory_ends_the_process_where_the_real_one_does() {
    for what in ["mapped", "long"] {
        let (_, signal, said) = start("kunlun-p800", &["register", what], &[]).end();
        assert_eq!(signal, Some(libc::SIGABRT), "{said}");
        assert!(said.contains("assertion failed"), "{said}");
    }
}

#[test]
fn processes_form_a_communicator_with_the_rank_first() {
    for sdk in BOTH {
        let mut first = start(sdk, &["rank", "0", "3", "-"], &[]);
        let id = first.line("id");
        let join = |rank: &str| start(sdk, &["rank", rank, "3", &id], &[]);
        for mut process in [join("1"), join("2"), first] {
            process.must_succeed();
        }
    }
}

#[test]
fn what_bkcl_refuses_is_refused_by_number() {
    for sdk in BOTH {
        passes(sdk, "refusals", &[]);
    }
}

#[test]
fn counts_of_an_all_to_all_lie_on_the_card() {
    for sdk in BOTH {
        passes(sdk, "counts-in-host-memory", &[]);
    }
}

#[test]
fn a_debug_level_that_is_no_number_ends_the_process() {
    for sdk in BOTH {
        let (_, signal, said) =
            start(sdk, &["rank", "0", "1", "-"], &[("BKCL_DEBUG", "INFO")]).end();
        assert_eq!(signal, Some(libc::SIGABRT), "{said}");
        assert!(said.contains("std::invalid_argument"), "{said}");
    }
}

#[test]
fn faults_are_those_that_were_set() {
    for sdk in BOTH {
        let faults = [("ICCL_SIM_FAULTS", "xpu_stream_create@1=-720")];
        let (code, _, said) = start(sdk, &["streams"], &faults).end();
        assert!(code != Some(0) && said.contains("-720"), "{said}");
    }
}
