//! The simulated libraries of P800 in this process.

use std::sync::Once;

use iccl_tests::maker::{Machine, Maker};

use crate::card::Expected;

/// The cards of the simulated machine: one more than the ranks of a test, as one is spoilt for good.
pub(crate) const CARDS: usize = 5;

pub(crate) const KUNLUN: Maker = Maker {
    name: "kunlun-p800",
    owner: "libxpurt.so.2",
    cards: CARDS,
    variant: None,
    settings: &[("join_timeout", "20s")],
    simulated: &[("host_alias", "1")],
};

pub(crate) fn machine() -> Machine {
    static ENABLED: Once = Once::new();
    // SAFETY: before the first machine, and everything in this process reads the environment by the
    // standard library.
    ENABLED.call_once(|| unsafe { std::env::set_var("BKCL_USE_PEERMEM_XDR", "1") });
    Machine::new(&KUNLUN)
}

/// What the tests expect of this generation.
pub(crate) const EXPECTED: Expected = Expected {
    card: "Kunlun P800 Simulated",
    has_host_functions: true,
    has_asynchronous_copies: true,
    unique_id_bytes: 240,
    // u8, i32 and i64 by 4 operations, and 4 floats by 3, each in 3 collectives.
    reductions: 3 * (3 * 4 + 4 * 3),
    allocate: ("cudaMalloc", 2, "cudaMalloc(4096): out of memory (cudaErrorMemoryAllocation, 2)"),
    pin: ("cudaHostAlloc", 2, "cudaHostAlloc(4096): out of memory (cudaErrorMemoryAllocation, 2)"),
    record: ("cudaEventRecord", 400, "cudaEventRecord: invalid resource handle"),
    health: ("cudaStreamQuery", 700),
};
