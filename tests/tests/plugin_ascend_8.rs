//! The Ascend plugin on the simulated libraries of CANN 8.1, in a process of its own, since a plugin is
//! probed once.

#[path = "plugin_ascend/application.rs"]
mod application;

use std::ffi::c_void;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

use iccl_plugin_api::sdk::Progress;
use iccl_plugin_api::tables::host_to_stream;
use iccl_tests::maker::{
    Machine, Maker, SOON, host_functions_are_called, reductions_are_right, rings_meet_in_groups,
};
use iccl_tests::ranks::{Job, must_be_right, sum};
use iccl_tests::sim_sdk;

use application::{ASCEND, choose_card, stream_of_an_application};

// Linked in, so that no folder is needed.
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

fn machine() -> Machine {
    Machine::new(&Maker { variant: Some(sim_sdk::ascend_8), ..ASCEND })
}

#[test]
fn what_cann_8_does_not_tell_is_not_known() {
    let machine = machine();
    let facts = machine.set.devices()[1].facts();
    assert_eq!((facts.name, facts.pci_address, facts.memory_bytes), ("Ascend910B3", "", 0));
    assert_eq!(facts.capabilities.host_to_stream, host_to_stream::BLOCKING_HOST_FUNCTION);
    let hccl = machine.set.collectives_of("ascend").expect("HCCL");
    assert_eq!(hccl.library(), "HCCL of CANN 8.1.RC1 on A2");
}

#[test]
fn a_host_function_is_called_by_a_thread_for_reports() {
    let machine = machine();
    choose_card(&machine, 0);
    host_functions_are_called(&machine, stream_of_an_application(&machine));
}

#[test]
fn a_function_that_blocks_holds_only_its_own_stream() {
    type Gate = Mutex<std::sync::mpsc::Receiver<()>>;
    unsafe extern "C" fn wait(user: *mut c_void) {
        // SAFETY: the test keeps the gate until the stream is past it.
        let gate = unsafe { &*user.cast::<Gate>() };
        let _ = gate.lock().unwrap_or_else(PoisonError::into_inner).recv();
    }
    unsafe extern "C" fn nothing(_: *mut c_void) {}
    let machine = machine();
    let card = machine.card(0);
    let (first, second) = (card.stream_create().expect("one"), card.stream_create().expect("two"));
    let (open, closed) = channel();
    let gate: Arc<Gate> = Arc::new(Mutex::new(closed));
    // SAFETY: the gate lives until both streams are done.
    unsafe {
        card.host_function(first, wait, Arc::as_ptr(&gate).cast_mut().cast()).expect("enqueued");
        card.host_function(second, nothing, std::ptr::null_mut()).expect("enqueued");
    }
    card.stream_synchronize(second, SOON).expect("it is not held");
    assert_eq!(card.stream_query(first), Ok(Progress::Pending));
    open.send(()).expect("it waits");
    card.stream_synchronize(first, SOON).expect("it goes on");
    card.stream_destroy(first).expect("destroyed");
    card.stream_destroy(second).expect("destroyed");
}

#[test]
fn what_its_header_lists_is_reduced() {
    // i8, i32 by 4 operations, f16, f32 by 2, bf16 by 1 in 3 collectives; i16 by 3 in two of them.
    reductions_are_right(&machine(), 3 * (2 * 4 + 2 * 2 + 1) + 2 * 3);
}

#[test]
fn messages_meet_in_groups() {
    rings_meet_in_groups(&machine());
}

/// The engine lets a stream wait by a host function that blocks.
#[test]
fn an_all_reduce_on_two_cards() {
    let machine = machine();
    machine.job(Job::new(2)).run(|communicator| {
        assert_eq!(communicator.device().plugin(), "ascend");
        must_be_right(communicator);
        let sums = sum(communicator, communicator.rank() as i32 + 1, 100_000);
        assert_eq!(sums.expect("sums"), vec![3; 100_000]);
    });
}
