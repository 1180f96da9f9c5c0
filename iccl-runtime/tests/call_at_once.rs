//! Calls on a communicator of one rank that only copy a little: done by the caller at once, without memory
//! being allocated, in the order of everything else.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::ErrorKind;
use iccl_runtime::comm::{Communicator, Runtime};
use iccl_runtime::config::{Config, Sources};
use iccl_runtime::schedule::Algorithm;

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts what each thread allocates.
struct Counting;

// SAFETY: everything is the system's; what is counted is a number of this thread's that needs no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|all| all.set(all.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn alone() -> Communicator {
    let runtime = Runtime::with_config(Config::load(&Sources::default()).expect("settings"));
    let runtime = runtime.expect("a runtime");
    let id = runtime.local_unique_id().expect("a unique id");
    runtime.communicator(&id, 0, 1).expect("a rank")
}

#[test]
fn a_repeated_short_call_allocates_nothing_and_is_counted() {
    let communicator = alone();
    let device = communicator.device();
    let send = device.buffer_from(&[2.5_f32, -1.0]).expect("a buffer");
    let receive = device.buffer_from(&[0.0_f32; 2]).expect("a buffer");
    let call = |op| {
        let stream = communicator.stream();
        let handle = communicator.all_reduce(&send, &receive, 2, DataType::F32, op, stream);
        let handle = handle.expect("a call");
        assert!(handle.is_over());
        handle.wait().expect("a result");
    };
    for op in [RedOp::Sum, RedOp::Avg] {
        call(op);
        let before = ALLOCATIONS.get();
        (0..100).for_each(|_| call(op));
        assert_eq!(ALLOCATIONS.get() - before, 0, "{op}");
        assert_eq!(receive.read::<f32>().expect("read"), [2.5, -1.0]);
    }
    assert_eq!(communicator.counters().operations_by(Algorithm::Local), 2 * 101);
    communicator.drain().expect("nothing is left");
}

#[test]
fn a_short_call_waits_for_its_stream_and_for_the_calls_before_it() {
    let communicator = alone();
    let device = communicator.device();
    let (first, second) = (device.stream().expect("one"), device.stream().expect("another"));
    let send = device.buffer_from(&[7_i64]).expect("a buffer");
    let receive = device.buffer_from(&[0_i64]).expect("a buffer");
    let other = device.buffer_from(&[0_i64]).expect("a buffer");
    let sum = |receive, stream| {
        communicator.all_reduce(&send, receive, 1, DataType::I64, RedOp::Sum, stream).expect("one")
    };
    let hold = first.hold().expect("a hold");
    let held = sum(&receive, &first);
    // Collectives of a communicator take place in the order of the calls.
    let behind = sum(&other, &second);
    assert!(!held.is_over() && !behind.is_over());
    let late = held.wait_for(Duration::from_millis(20)).expect_err("it is held");
    assert_eq!(late.kind(), ErrorKind::Timeout);
    assert_eq!(receive.read::<i64>().expect("read"), [0]);
    hold.release();
    behind.wait().expect("a result");
    held.wait().expect("a result");
    assert_eq!((receive.read::<i64>().unwrap(), other.read::<i64>().unwrap()), (vec![7], vec![7]));
    assert!(sum(&receive, &first).is_over(), "nothing is before it now");
    communicator.abort();
    let refused =
        communicator.all_reduce(&send, &receive, 1, DataType::I64, RedOp::Sum, &first).map(drop);
    assert_eq!(refused.expect_err("it has ended").kind(), ErrorKind::Aborted);
}

#[test]
fn what_is_longer_or_multiplied_goes_through_the_engine_with_the_same_result() {
    let communicator = alone();
    let device = communicator.device();
    let stream = communicator.stream();
    for count in [0, 1, 512, 513, 100_000] {
        let numbers: Vec<i64> = (0..count as i64).collect();
        let send = device.buffer_from(&numbers).expect("a buffer");
        let receive = device.allocate::<i64>(count).expect("a buffer");
        for receive in [&receive, &send] {
            communicator
                .all_gather(&send, receive, count as u64, DataType::I64, stream)
                .and_then(|handle| handle.wait())
                .expect("a result");
            assert_eq!(receive.read::<i64>().expect("read"), numbers, "{count}");
        }
    }
    assert_eq!(communicator.counters().operations(), 10);
}
