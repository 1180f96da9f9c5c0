//! The plugin on the simulated libraries in this process, and what the runtime says of a thread.

use std::ffi::c_int;

use iccl_tests::maker::Machine;

use crate::application::ASCEND;

/// A thread that never chose a card has none.
const CONTEXT_NULL: c_int = 107_002;

pub(crate) fn machine() -> Machine {
    // SAFETY: the simulator reads it when a communicator is made, and nothing in this process writes
    // another value.
    unsafe { std::env::set_var("HCCL_CONNECT_TIMEOUT", "20") };
    Machine::new(&ASCEND)
}

/// The card that the runtime takes this thread to have chosen, if it has.
pub(crate) fn current_card(machine: &Machine) -> Option<i32> {
    let mut device = -1;
    // SAFETY: this is the function's signature, and there is room for the number.
    let status = unsafe {
        let runtime = machine.library("libascendcl.so");
        let get: libloading::Symbol<'_, unsafe extern "C" fn(*mut c_int) -> c_int> =
            runtime.get(b"aclrtGetDevice").expect("a function");
        get(&raw mut device)
    };
    if status == CONTEXT_NULL {
        return None;
    }
    assert_eq!(status, 0);
    Some(device)
}
