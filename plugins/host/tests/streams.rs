//! Streams do their items in order, later than they were enqueued where that matters, and on the
//! caller's thread where it does not.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use iccl_plugin_api::sdk::{Device, HostCallback, Progress};
use iccl_plugin_api::tables::HostFunction;
use iccl_plugin_api::{MemoryKind, Status};
use iccl_plugin_host::HostDevice;

const LONG: Duration = Duration::from_secs(30);

/// Appends its low digit to a number: 0, 1, 12, 123, …
struct Append {
    log: *const AtomicU64,
    digit: u64,
}

unsafe extern "C" fn append(user: *mut c_void) {
    // SAFETY: `callback` leaked it for this one call.
    let append = unsafe { Box::from_raw(user.cast::<Append>()) };
    // SAFETY: the test keeps the log until its stream is destroyed.
    let log = unsafe { &*append.log };
    log.store(log.load(Ordering::SeqCst) * 10 + append.digit, Ordering::SeqCst);
}

fn callback(log: &AtomicU64, digit: u64) -> HostCallback {
    let user = Box::into_raw(Box::new(Append { log, digit }));
    // SAFETY: `append` may be called once, anywhere.
    unsafe { HostCallback::new(HostFunction(append), user.cast()) }
}

/// A word in the device's memory.
fn word(device: &HostDevice) -> *mut u64 {
    let word = device.allocate(8, MemoryKind::PinnedHost).expect("8 bytes").cast::<u64>();
    // SAFETY: 8 bytes, aligned, just allocated.
    unsafe { word.write(0) };
    word
}

fn wait_for(device: &HostDevice, stream: u64, word: *mut u64, value: u64) {
    // SAFETY: the tests free their words after their streams.
    unsafe { device.stream_wait_value(stream, word, value) }.expect("a wait");
}

fn write(device: &HostDevice, word: *mut u64, value: u64) {
    // SAFETY: as above.
    unsafe { device.write_value(word, value) }.expect("a write");
}

#[test]
fn a_callback_on_an_idle_stream_runs_before_the_call_returns() {
    let device = HostDevice::new();
    let stream = device.stream_create().expect("a stream");
    let log = AtomicU64::new(0);
    device.host_function(stream, callback(&log, 1)).expect("a callback");
    assert_eq!(log.load(Ordering::SeqCst), 1);
    device.stream_destroy(stream).expect("destroyed");
}

#[test]
fn items_behind_a_wait_run_in_order_and_only_after_it() {
    let device = HostDevice::new();
    let stream = device.stream_create().expect("a stream");
    let log = AtomicU64::new(0);
    let gate = word(&device);
    wait_for(&device, stream, gate, 5);
    for digit in 1..=4 {
        device.host_function(stream, callback(&log, digit)).expect("a callback");
    }
    let event = device.event_create().expect("an event");
    device.event_record(event, stream).expect("recorded");
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(log.load(Ordering::SeqCst), 0);
    assert_eq!(device.event_query(event).expect("query"), Progress::Pending);
    assert_eq!(device.stream_query(stream).expect("query"), Progress::Pending);
    write(&device, gate, 4);
    let error =
        device.stream_synchronize(stream, Duration::from_millis(20)).expect_err("too small");
    assert_eq!(error.status, Status::Timeout);
    write(&device, gate, 7);
    device.stream_synchronize(stream, LONG).expect("done");
    assert_eq!(log.load(Ordering::SeqCst), 1234);
    assert_eq!(device.event_query(event).expect("query"), Progress::Done);
    device.event_destroy(event).expect("destroyed");
    device.stream_destroy(stream).expect("destroyed");
    // SAFETY: the stream is gone.
    unsafe { device.free(gate.cast()) }.expect("freed");
}

#[test]
fn the_worker_goes_on_when_nobody_synchronises() {
    let device = HostDevice::new();
    let stream = device.stream_create().expect("a stream");
    let log = AtomicU64::new(0);
    let gate = word(&device);
    for round in 1..=50 {
        wait_for(&device, stream, gate, round);
        log.store(0, Ordering::SeqCst);
        device.host_function(stream, callback(&log, 7)).expect("a callback");
        write(&device, gate, round);
        let started = std::time::Instant::now();
        while log.load(Ordering::SeqCst) != 7 {
            assert!(started.elapsed() < LONG, "the worker sleeps in round {round}");
            std::thread::yield_now();
        }
    }
    device.stream_destroy(stream).expect("destroyed");
}

#[test]
fn a_large_copy_is_done_in_order_with_what_follows() {
    let device = HostDevice::new();
    let stream = device.stream_create().expect("a stream");
    let source: Vec<u8> = (0..1_u32 << 20).map(|at| at as u8).collect();
    let mut destination = vec![0_u8; source.len()];
    let mut second = vec![0_u8; source.len()];
    let bytes = source.len() as u64;
    // SAFETY: the vectors outlive the synchronisation below and are not touched before it.
    unsafe {
        let first = (destination.as_mut_ptr().cast(), MemoryKind::Host);
        device
            .copy(stream, first, (source.as_ptr().cast(), MemoryKind::Host), bytes)
            .expect("copy");
        let from = (destination.as_ptr().cast(), MemoryKind::Host);
        device
            .copy(stream, (second.as_mut_ptr().cast(), MemoryKind::Host), from, bytes)
            .expect("copy");
    }
    device.stream_synchronize(stream, LONG).expect("done");
    assert_eq!(second, source);
    device.stream_destroy(stream).expect("destroyed");
}

#[test]
fn handles_that_are_none_and_double_frees_are_refused() {
    let device = HostDevice::new();
    assert_eq!(device.stream_query(9).expect_err("none").status, Status::InvalidArgument);
    assert_eq!(device.event_query(9).expect_err("none").status, Status::InvalidArgument);
    let pointer = device.allocate(100, MemoryKind::Device).expect("100 bytes");
    assert_eq!(pointer as usize % 64, 0);
    // SAFETY: freed once; the second call is refused.
    unsafe {
        device.free(pointer).expect("freed");
        assert_eq!(device.free(pointer).expect_err("twice").status, Status::InvalidArgument);
    }
    let error = device.allocate(u64::MAX, MemoryKind::Device).expect_err("too much");
    assert_eq!(error.status, Status::OutOfResources);
}
