//! A seeded covering array of the matrix on real processes; `cargo xtask test --full` runs the whole of it.

use iccl_plugin_api::RedOp;
use iccl_tests::matrix::coordinator::{
    Block, Column, Device, Ranks, Summary, Transport, run_placed,
};
use iccl_tests::matrix::{Cell, covering, product};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const PROGRAM: &str = env!("CARGO_BIN_EXE_iccl-test-matrix");

fn must_be_right(summary: &Summary) {
    summary.print();
    assert!(summary.wrong.is_empty(), "wrong cells:\n{}", summary.wrong.join("\n"));
}

/// Any three of ranks, transport, device, algorithm, collective, dtype, op, place, count, alignment and root
/// come together; in builds without optimisation, any two.
///
/// B001, B002, B003, B008, B019, B020, B021, B022, B023, B029.
#[test]
fn b001_b002_any_three_factors_come_together_and_are_right() {
    let strength = if cfg!(debug_assertions) { 2 } else { 3 };
    let seed = std::env::var("MATRIX_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let rows = covering::rows(strength, seed);
    println!("{} cells, strength {strength}, MATRIX_SEED={seed}", rows.len());
    let summary = run_placed(PROGRAM, &rows);
    must_be_right(&summary);
    // Barriers come on top.
    let accounted = summary.right + summary.refusals();
    assert!(accounted >= rows.len() as u64, "{accounted} of {} cells", rows.len());
}

/// Each collective is the first call on a fresh communicator: nothing that another one set up helps it.
#[test]
fn b044_every_collective_works_as_the_first_call() {
    let mut summary = Summary::default();
    let ways = Transport::ALL.map(|transport| Device::ALL.map(|device| (transport, device)));
    for (transport, device) in ways.into_iter().flatten() {
        let columns: Vec<Column> = product::collectives()
            .flat_map(|collective| [0, 5000].map(|count| (collective, count)))
            .map(|(collective, count)| {
                let op = if collective.reduces() { RedOp::Avg } else { RedOp::Sum };
                let root = if collective.has_root() { 2 } else { 0 };
                let cell = Cell { collective, op, root, count, ..product::barrier() };
                Column { forced: None, cells: vec![cell] }
            })
            .collect();
        let of = Ranks { ranks: 3, transport, device };
        let block = Block { program: PROGRAM, of, talkative: false };
        summary.add(block.run(&columns));
    }
    must_be_right(&summary);
    assert_eq!(summary.right, 2 * 3 * 2 * product::collectives().count() as u64);
}
