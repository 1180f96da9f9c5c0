//! A long run of random operations on communicators that come and go.

use iccl_tests::processes::Launch;
use iccl_tests::sim_cards;

const PROGRAM: &str = env!("CARGO_BIN_EXE_iccl-test-matrix");

/// Without optimisation, a tenth of them.
const OPERATIONS: u64 = if cfg!(debug_assertions) { 2_000 } else { 20_000 };

/// B031, B048.
#[test]
fn b031_b048_a_soak_of_20000_operations() {
    let seed = std::env::var("SOAK_SEED").unwrap_or_else(|_| "1".to_owned());
    println!("SOAK_SEED={seed}");
    // Some ranks have no part in some operations.
    let draws = OPERATIONS + OPERATIONS / 2;
    let launch = Launch::new(PROGRAM, 4, &["soak", &seed, &draws.to_string()]);
    // Two hosts: shared memory inside, TCP between.
    let launch = (0..4).fold(launch, |launch, rank| {
        launch.with_on(rank, "ICCL_HOST_ID", ["left", "right"][rank as usize % 2])
    });
    let mut ranks = launch.start_all();
    for rank in &mut ranks {
        let said = rank.must_succeed();
        let done = said.iter().find_map(|line| line.strip_prefix("done ")).expect("a count");
        println!("rank {}: operations, refused as declared, communicators: {done}", rank.rank());
        let ran: u64 = done.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
        assert!(ran >= OPERATIONS, "{done}");
    }
}

/// The same on simulated cards whose memory the host cannot read: world, duplicates and splits of one card
/// share its pinned memory.
#[test]
fn b031_b048_a_soak_on_cards() {
    const OPERATIONS: u64 = if cfg!(debug_assertions) { 1_000 } else { 10_000 };
    let seed = std::env::var("SOAK_SEED").unwrap_or_else(|_| "1".to_owned());
    println!("SOAK_SEED={seed}");
    let draws = OPERATIONS + OPERATIONS / 2;
    // Before the ranks' meeting place, which is there for a minute: what is built first may take longer.
    let settings = sim_cards::settings();
    let mut launch = Launch::new(PROGRAM, 4, &["soak", &seed, &draws.to_string()])
        // So that messages come in several pieces, and pinned memory is short.
        .with("ICCL_CHUNK_BYTES", "16KiB")
        .with("ICCL_STAGING_BYTES", "256KiB");
    for (name, value) in settings {
        launch = launch.with(name, &value);
    }
    for rank in 0..4 {
        launch = launch.with_on(rank, "ICCL_LOCAL_RANK", &rank.to_string()).with_on(
            rank,
            "ICCL_HOST_ID",
            ["left", "right"][rank as usize % 2],
        );
    }
    for mut rank in launch.start_all() {
        let said = rank.must_succeed();
        let done = said.iter().find_map(|line| line.strip_prefix("done ")).expect("a count");
        println!("rank {}: operations, refused as declared, communicators: {done}", rank.rank());
        let ran: u64 = done.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
        assert!(ran >= OPERATIONS, "{done}");
    }
}
