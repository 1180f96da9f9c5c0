//! The simulated libraries of the older cards in this process.

use iccl_tests::maker::{Machine, Maker};

use crate::card::Expected;

/// The cards of the simulated machine: one more than the ranks of a test, as one is spoilt for good.
pub(crate) const CARDS: usize = 5;

pub(crate) const KUNLUN: Maker = Maker {
    name: "kunlun",
    owner: "libxpurt.so.1",
    cards: CARDS,
    variant: None,
    settings: &[("join_timeout", "20s")],
    simulated: &[],
};

pub(crate) fn machine() -> Machine {
    Machine::new(&KUNLUN)
}

/// What the tests expect of this generation.
pub(crate) const EXPECTED: Expected = Expected {
    card: "Kunlun R300",
    has_host_functions: false,
    has_asynchronous_copies: false,
    unique_id_bytes: 192,
    // i32 and i64 by 4 operations, f16, bf16 and f32 by 2, each in 3 collectives: the self-test has struck
    // off u8 and f64, which this library refuses.
    reductions: 3 * (2 * 4 + 3 * 2),
    allocate: ("xpu_malloc", -705, "xpu_malloc(4096): XPUERR_NOMEM (-705)"),
    pin: ("xpu_host_alloc", -706, "xpu_host_alloc(4096): XPUERR_NOCPUMEM (-706)"),
    record: ("xpu_event_record", -713, "xpu_event_record: XPUERR_ABNORMAL (-713)"),
    health: ("xpu_wait", -713),
};
