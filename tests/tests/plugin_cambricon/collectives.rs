//! CNCL, through the plugin: every combination that it offers, on four ranks, against the oracle.

use iccl_plugin_api::sdk::{NativeCall, Progress};
use iccl_plugin_api::tables::collectives_flag;
use iccl_plugin_api::{Collective, DataType, RedOp, Status};
use iccl_tests::maker::{
    RANKS, blocks_are_moved_and_reduced, every_type_is_moved, on_all_ranks, reductions_are_right,
    rings_meet_in_groups,
};
use iccl_tests::sim_sdk;

use crate::simulator::{CAMBRICON, cards_of_ranks, machine};

#[test]
fn what_cncl_offers_is_told() {
    let machine = machine();
    let cncl = machine.set.collectives_of("cambricon").expect("CNCL");
    assert_eq!(cncl.library(), "CNCL 1.25.0");
    assert_eq!(cncl.flags(), collectives_flag::GROUPS | collectives_flag::IN_PLACE);
    assert!(!cncl.support().is_empty());
    assert_eq!(cncl.view().unique_id().expect("an id").len(), 136);
}

#[test]
fn every_reduction_that_is_offered_is_right() {
    let machine = machine();
    let _cards = cards_of_ranks(&machine);
    // 8 integers by 4 operations and 3 floats by 2, each in 3 collectives.
    reductions_are_right(&machine, 3 * (8 * 4 + 3 * 2));
}

#[test]
fn every_type_is_moved_as_it_is() {
    let machine = machine();
    let _cards = cards_of_ranks(&machine);
    every_type_is_moved(&machine);
}

#[test]
fn blocks_of_different_length_are_moved_and_reduced() {
    let machine = machine();
    let _cards = cards_of_ranks(&machine);
    blocks_are_moved_and_reduced(&machine);
}

#[test]
fn sends_and_receives_meet_and_groups_are_issued_together() {
    let machine = machine();
    let _cards = cards_of_ranks(&machine);
    rings_meet_in_groups(&machine);
}

#[test]
fn what_is_refused_is_refused_before_cncl_hears_of_it() {
    let machine = machine();
    let _cards = cards_of_ranks(&machine);
    on_all_ranks(&machine, |rank| {
        let refused = |call: &NativeCall<'_>, status| {
            // SAFETY: it is refused before a buffer is touched.
            let error = unsafe { rank.communicator.call(call, rank.stream) }.unwrap_err();
            assert_eq!(error.status, status, "{error}");
            error.message
        };
        for (dtype, op) in [
            (DataType::F32, RedOp::Max),
            (DataType::F32, RedOp::Avg),
            (DataType::I32, RedOp::Avg),
            (DataType::I32, RedOp::BitXor),
            (DataType::F64, RedOp::Sum),
            (DataType::F8E4M3, RedOp::Sum),
        ] {
            let call = rank.call(Collective::AllReduce, dtype, Some(op));
            refused(&call, Status::NotSupported);
        }
        refused(&rank.call(Collective::Barrier, DataType::U8, None), Status::NotSupported);
        let nobody = NativeCall { root: 4, ..rank.call(Collective::Broadcast, DataType::U8, None) };
        refused(&nobody, Status::InvalidArgument);
        let in_place = rank.call(Collective::AllToAll, DataType::U8, None);
        refused(&NativeCall { receive: rank.send, ..in_place }, Status::NotSupported);
        // CNCL's counts have 32 bits.
        let large = [1, 1, 1 << 32, 1];
        let words = refused(
            &NativeCall {
                send_counts: &large,
                receive_counts: &[1; RANKS],
                ..rank.call(Collective::AllToAllV, DataType::F64, None)
            },
            Status::NotSupported,
        );
        assert!(words.contains("4294967296 elements are for or from rank 2"), "{words}");
        // It goes on after that.
        assert_eq!(rank.communicator.async_error(), Ok(Progress::Done));
    });
}

/// The combinations that iccl's own test struck off, in a process of its own.
fn struck(variables: &[(&str, &str)]) -> Vec<String> {
    let record = CAMBRICON.record(&sim_sdk::folder("cambricon"), variables);
    assert_eq!(record["state"], "active", "{record}");
    let lines = record["self_test"]["detail"].as_array().unwrap_or_else(|| panic!("{record}"));
    lines.iter().map(|line| line.as_str().expect("text").to_owned()).collect()
}

#[test]
fn b079_pairs_that_the_card_refuses_are_not_offered() {
    let refused = [("ICCL_SIM_CAMBRICON_UNSUPPORTED", "bfloat16,int16:prod")];
    let struck = struck(&refused);
    // Each in four collectives: two operations of one type, and one of another.
    assert_eq!(struck.len(), 4 * (2 + 1), "{struck:?}");
    for collective in ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_v"] {
        for pair in ["bf16 sum", "bf16 prod", "i16 prod"] {
            let case = format!("{collective} {pair} (");
            let line = struck.iter().find(|line| line.starts_with(&case));
            let line = line.unwrap_or_else(|| panic!("{case} is offered: {struck:?}"));
            assert!(line.contains("unsupported operation or data type (0x11)"), "{line}");
        }
    }
}

#[test]
fn a_result_that_is_wrong_is_not_used_though_cncl_reports_success() {
    let struck = struck(&[("ICCL_SIM_CAMBRICON_FAULTS", "cnclReduceScatter@*=drop-slice")]);
    assert_eq!(struck.len(), 8 * 4 + 3 * 2, "{struck:?}");
    let expected = "(its result differs from the host's)";
    let is_it = |line: &String| line.starts_with("reduce_scatter ") && line.ends_with(expected);
    assert!(struck.iter().all(is_it), "{struck:?}");
}
