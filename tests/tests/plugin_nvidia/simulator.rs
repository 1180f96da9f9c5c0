//! NVIDIA's simulated libraries in this process, and what CUDA says of a thread.

use std::ffi::{c_int, c_void};

use iccl_tests::maker::{Machine, Maker};

/// The cards of the simulated machine: one more than the ranks of a test, as one is spoilt for good.
pub(crate) const CARDS: usize = 5;

pub(crate) const NVIDIA: Maker = Maker {
    name: "nvidia",
    owner: "libcuda.so.1",
    cards: CARDS,
    variant: None,
    settings: &[("join_timeout", "20s")],
    simulated: &[("dma_buf", "1")],
};

pub(crate) fn machine() -> Machine {
    Machine::new(&NVIDIA)
}

/// The card that libcudart takes this thread to have chosen.
pub(crate) fn current_card(machine: &Machine) -> i32 {
    let mut device = -1;
    // SAFETY: this is the function's signature, and there is room for the number.
    let status = unsafe {
        let runtime = machine.library("libcudart.so.13");
        let get: libloading::Symbol<'_, unsafe extern "C" fn(*mut c_int) -> c_int> =
            runtime.get(b"cudaGetDevice").expect("a function");
        get(&raw mut device)
    };
    assert_eq!(status, 0);
    device
}

/// Chooses a card for this thread, as an application does.
pub(crate) fn choose_card(machine: &Machine, device: i32) {
    // SAFETY: this is the function's signature.
    let status = unsafe {
        let runtime = machine.library("libcudart.so.13");
        let set: libloading::Symbol<'_, unsafe extern "C" fn(c_int) -> c_int> =
            runtime.get(b"cudaSetDevice").expect("a function");
        set(device)
    };
    assert_eq!(status, 0);
}

/// The context that this thread has, null if none.
pub(crate) fn current_context(machine: &Machine) -> *mut c_void {
    let mut context = std::ptr::null_mut();
    // SAFETY: this is the function's signature, and there is room for the pointer.
    let status = unsafe {
        let driver = machine.library("libcuda.so.1");
        let get: libloading::Symbol<'_, unsafe extern "C" fn(*mut *mut c_void) -> c_int> =
            driver.get(b"cuCtxGetCurrent").expect("a function");
        get(&raw mut context)
    };
    assert_eq!(status, 0);
    context
}
