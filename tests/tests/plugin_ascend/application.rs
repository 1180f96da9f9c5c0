//! Ascend's simulated libraries, and what an application does with them.

use std::ffi::{c_int, c_void};

use iccl_tests::maker::{Machine, Maker};

/// The cards of the simulated machine: one more than the ranks of a test, as one is spoilt for good.
pub(crate) const CARDS: usize = 5;

pub(crate) const ASCEND: Maker = Maker {
    name: "ascend",
    owner: "libascendcl.so",
    cards: CARDS,
    variant: None,
    settings: &[],
    simulated: &[("reduce_writes_everywhere", "1")],
};

/// Chooses a card for this thread, as an application does.
pub(crate) fn choose_card(machine: &Machine, device: i32) {
    // SAFETY: this is the function's signature.
    let status = unsafe {
        let runtime = machine.library("libascendcl.so");
        let set: libloading::Symbol<'_, unsafe extern "C" fn(c_int) -> c_int> =
            runtime.get(b"aclrtSetDevice").expect("a function");
        set(device)
    };
    assert_eq!(status, 0);
}

/// A stream of an application's, on the card that this thread has chosen.
pub(crate) fn stream_of_an_application(machine: &Machine) -> u64 {
    let mut stream: *mut c_void = std::ptr::null_mut();
    // SAFETY: this is the function's signature, and there is room for the handle.
    let status = unsafe {
        let runtime = machine.library("libascendcl.so");
        let create: libloading::Symbol<'_, unsafe extern "C" fn(*mut *mut c_void) -> c_int> =
            runtime.get(b"aclrtCreateStream").expect("a function");
        create(&raw mut stream)
    };
    assert_eq!(status, 0);
    stream as u64
}
