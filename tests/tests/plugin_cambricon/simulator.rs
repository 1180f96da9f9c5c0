//! Cambricon's simulated libraries in this process, and what CNRT says of a thread.

use std::ffi::c_int;
use std::sync::Arc;

use iccl_plugin_api::host::OpenDevice;
use iccl_tests::maker::{Machine, Maker, RANKS};

/// The cards of the simulated machine: one more than the ranks of a test, which one test spoils.
pub(crate) const CARDS: usize = 5;

pub(crate) const CAMBRICON: Maker = Maker {
    name: "cambricon",
    owner: "libcndrv.so",
    cards: CARDS,
    variant: None,
    settings: &[("join_timeout", "15s"), ("gather_time", "1s")],
    simulated: &[("dma_buf", "1"), ("unsupported", ""), ("pending", "1")],
};

pub(crate) fn machine() -> Machine {
    Machine::new(&CAMBRICON)
}

/// All cards of the ranks, open: so the plugin knows that it has to wait for all of them.
pub(crate) fn cards_of_ranks(machine: &Machine) -> Vec<Arc<OpenDevice>> {
    (0..RANKS).map(|rank| machine.card(rank)).collect()
}

/// The card that CNRT takes this thread to have chosen.
pub(crate) fn current_card(machine: &Machine) -> i32 {
    let mut device = -1;
    // SAFETY: this is the function's signature, and there is room for the number.
    let status = unsafe {
        let runtime = machine.library("libcnrt.so");
        let get: libloading::Symbol<'_, unsafe extern "C" fn(*mut c_int) -> c_int> =
            runtime.get(b"cnrtGetDevice").expect("a function");
        get(&raw mut device)
    };
    assert_eq!(status, 0);
    device
}

/// Makes a card that is in error well again, as an application can.
pub(crate) fn reset_card(machine: &Machine, card: usize) {
    // On a thread whose own card is well: it can choose the other one.
    let status = std::thread::scope(|scope| {
        let reset = scope.spawn(|| {
            // SAFETY: these are the functions' signatures.
            unsafe {
                let runtime = machine.library("libcnrt.so");
                let set: libloading::Symbol<'_, unsafe extern "C" fn(c_int) -> c_int> =
                    runtime.get(b"cnrtSetDevice").expect("a function");
                assert_eq!(set(card as c_int), 0);
                let reset: libloading::Symbol<'_, unsafe extern "C" fn() -> c_int> =
                    runtime.get(b"cnrtDeviceReset").expect("a function");
                reset()
            }
        });
        reset.join().expect("no panic")
    });
    assert_eq!(status, 0);
}

/// Chooses a card for this thread, as an application does.
pub(crate) fn choose_card(machine: &Machine, device: i32) {
    // SAFETY: this is the function's signature.
    let status = unsafe {
        let runtime = machine.library("libcnrt.so");
        let set: libloading::Symbol<'_, unsafe extern "C" fn(c_int) -> c_int> =
            runtime.get(b"cnrtSetDevice").expect("a function");
        set(device)
    };
    assert_eq!(status, 0);
}
