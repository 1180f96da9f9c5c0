//! A card of either generation: memory, copies, streams, events, failures.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use iccl_plugin_api::host::OpenDevice;
use iccl_plugin_api::sdk::Progress;
use iccl_plugin_api::tables::stream_to_host;
use iccl_plugin_api::{MemoryKind, Status};
use iccl_tests::maker::{Machine, SOON};

use crate::simulator::{CARDS, EXPECTED, machine};

/// What differs between the generations.
pub(crate) struct Expected {
    pub(crate) card: &'static str,
    pub(crate) has_host_functions: bool,
    pub(crate) has_asynchronous_copies: bool,
    pub(crate) unique_id_bytes: usize,
    pub(crate) reductions: usize,
    /// A function, a number by which it fails, and the words.
    pub(crate) allocate: (&'static str, i64, &'static str),
    pub(crate) pin: (&'static str, i64, &'static str),
    pub(crate) record: (&'static str, i64, &'static str),
    /// By which function and number it is seen that a card is in error.
    pub(crate) health: (&'static str, i64),
}

/// How late the simulated card does things, where a test looks while it is not done.
const LATE_US: &str = "200000";

const BYTES: usize = 1000;

fn pattern(seed: u8) -> Vec<u8> {
    (0..BYTES).map(|index| (index as u8).wrapping_mul(31) ^ seed).collect()
}

fn on_card(pointer: *mut c_void) -> (*mut c_void, MemoryKind) {
    (pointer, MemoryKind::Device)
}

fn from_card(pointer: *mut c_void) -> (*const c_void, MemoryKind) {
    (pointer.cast_const(), MemoryKind::Device)
}

/// What the card has there now.
fn read(card: &OpenDevice, pointer: *mut c_void) -> Vec<u8> {
    let mut back = vec![0; BYTES];
    let host = (back.as_mut_ptr().cast(), MemoryKind::Host);
    // SAFETY: both sides have this many bytes; stream 0 copies before it returns.
    unsafe { card.copy(0, host, from_card(pointer), BYTES as u64) }.expect("a copy");
    back
}

/// Puts bytes onto the card now.
fn write(card: &OpenDevice, pointer: *mut c_void, bytes: &[u8]) {
    let host = (bytes.as_ptr().cast(), MemoryKind::Host);
    // SAFETY: both sides have this many bytes; stream 0 copies before it returns.
    unsafe { card.copy(0, on_card(pointer), host, bytes.len() as u64) }.expect("a copy");
}

fn allocate(card: &OpenDevice, kind: MemoryKind) -> *mut c_void {
    card.allocate(BYTES as u64, kind).expect("memory")
}

/// Frees memory that nothing uses.
fn free(card: &OpenDevice, pointers: &[*mut c_void]) {
    for pointer in pointers {
        // SAFETY: the tests free what they allocated, after its streams are done.
        unsafe { card.free(*pointer) }.expect("freed");
    }
}

/// The card that libxpurt takes this thread to have chosen.
fn current_card(machine: &Machine) -> i32 {
    let mut device = -1;
    // SAFETY: this is the function's signature, and there is room for the number.
    let status = unsafe {
        let runtime = machine.library(machine.maker.owner);
        let get: libloading::Symbol<'_, unsafe extern "C" fn(*mut c_int) -> c_int> =
            runtime.get(b"xpu_current_device").expect("a function");
        get(&raw mut device)
    };
    assert_eq!(status, 0);
    device
}

/// Chooses a card for this thread, as an application does.
fn choose_card(machine: &Machine, device: i32) {
    // SAFETY: this is the function's signature.
    let status = unsafe {
        let runtime = machine.library(machine.maker.owner);
        let set: libloading::Symbol<'_, unsafe extern "C" fn(c_int) -> c_int> =
            runtime.get(b"xpu_set_device").expect("a function");
        set(device)
    };
    assert_eq!(status, 0);
}

#[test]
fn cards_say_what_they_are_and_what_they_can() {
    let machine = machine();
    let facts = machine.set.devices()[1].facts();
    assert_eq!(facts.name, EXPECTED.card);
    assert_eq!(facts.pci_address, "0000:52:00.0");
    assert_eq!(facts.memory_bytes, 16 << 30);
    let can = facts.capabilities;
    assert_eq!((can.host_accessible, can.has_reduce), (0, 0));
    let function = if EXPECTED.has_host_functions { stream_to_host::HOST_FUNCTION } else { 0 };
    assert_eq!(can.stream_to_host, stream_to_host::EVENT | function);
    assert_eq!(can.host_to_stream, 0, "enqueueing blocks");
}

#[test]
fn copies_go_in_every_direction_and_in_the_order_of_their_stream() {
    let machine = machine();
    let card = machine.card(0);
    let (first, second) =
        (allocate(&card, MemoryKind::Device), allocate(&card, MemoryKind::Device));
    let pinned = allocate(&card, MemoryKind::PinnedHost);
    let back = allocate(&card, MemoryKind::PinnedHost);
    let data = pattern(1);
    write(&card, first, &data);
    let stream = card.stream_create().expect("a stream");
    machine.simulate("delay_us", LATE_US);
    // SAFETY: all have this many bytes, and the stream is waited for before any is read.
    unsafe {
        let (bytes, pinned_kind) = (BYTES as u64, MemoryKind::PinnedHost);
        card.copy(stream, on_card(second), from_card(first), bytes).expect("a copy");
        card.copy(stream, (pinned, pinned_kind), from_card(second), bytes).expect("a copy");
        // Within the host libxpurt has no number for it.
        card.copy(stream, (back, pinned_kind), (pinned.cast_const(), pinned_kind), bytes)
            .expect("a copy");
    }
    if EXPECTED.has_asynchronous_copies {
        card.stream_synchronize(stream, SOON).expect("it comes to an end");
    }
    // Else each copy was over when it returned.
    assert_eq!(card.stream_query(stream), Ok(Progress::Done));
    // SAFETY: pinned memory is the host's, and the stream is past it.
    let arrived = unsafe { std::slice::from_raw_parts(back.cast::<u8>(), BYTES) };
    assert_eq!(arrived, data);
    machine.simulate("delay_us", "0");
    assert_eq!(read(&card, second), data);
    card.stream_destroy(stream).expect("destroyed");
    free(&card, &[first, second, pinned, back]);
}

#[test]
fn events_are_over_when_their_stream_has_passed_them() {
    let machine = machine();
    let card = machine.card(1);
    let stream = card.stream_create().expect("a stream");
    let event = card.event_create().expect("an event");
    machine.simulate("delay_us", LATE_US);
    // Something late comes before the event.
    let memory = allocate(&card, MemoryKind::Device);
    let data = pattern(3);
    let source = (data.as_ptr().cast(), MemoryKind::Host);
    // SAFETY: both sides have this many bytes and are kept until the stream is past the copy.
    unsafe { card.copy(stream, on_card(memory), source, BYTES as u64) }.expect("enqueued");
    card.event_record(event, stream).expect("recorded");
    let begin = std::time::Instant::now();
    while card.event_query(event).expect("an answer") == Progress::Pending {
        assert!(begin.elapsed() < SOON, "the event is never over");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    machine.simulate("delay_us", "0");
    assert_eq!(read(&card, memory), data);
    // It can be recorded again; once its stream is done it is over at once.
    card.event_record(event, stream).expect("recorded");
    card.stream_synchronize(stream, SOON).expect("done");
    assert_eq!(card.event_query(event), Ok(Progress::Done));
    // 0 is neither.
    assert_eq!(card.event_record(event, 0).unwrap_err().status, Status::InvalidArgument);
    assert_eq!(card.event_query(0).unwrap_err().status, Status::InvalidArgument);
    card.event_destroy(event).expect("destroyed");
    card.stream_destroy(stream).expect("destroyed");
    free(&card, &[memory]);
}

#[test]
fn pointers_are_known_for_what_they_are() {
    let machine = machine();
    let (card, other) = (machine.card(0), machine.card(1));
    let memory = allocate(&card, MemoryKind::Device);
    let pinned = allocate(&card, MemoryKind::PinnedHost);
    let host = [0_u8; 8];
    assert_eq!(card.memory_kind(memory), Ok(MemoryKind::Device));
    assert_eq!(card.memory_kind(memory.wrapping_byte_add(BYTES - 1)), Ok(MemoryKind::Device));
    assert_eq!(card.memory_kind(pinned), Ok(MemoryKind::PinnedHost));
    assert_eq!(card.memory_kind(host.as_ptr().cast()), Ok(MemoryKind::Host));
    let error = card.allocate(8, MemoryKind::Host).unwrap_err();
    assert_eq!(error.status, Status::NotSupported);
    // Freed twice, or by another card than it came from, is refused.
    // SAFETY: the plugin looks the pointer up first.
    assert_eq!(unsafe { other.free(memory) }.unwrap_err().status, Status::InvalidArgument);
    free(&card, &[memory, pinned]);
    // SAFETY: as above.
    assert_eq!(unsafe { card.free(memory) }.unwrap_err().status, Status::InvalidArgument);
}

#[test]
fn a_host_function_is_called_when_the_stream_gets_there() {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn look(user: *mut c_void) {
        // SAFETY: the test passes pinned memory that it keeps.
        let first = unsafe { user.cast::<u8>().read() };
        SEEN.store(u64::from(first) + 1, Ordering::Release);
    }
    let machine = machine();
    let card = machine.card(0);
    let memory = allocate(&card, MemoryKind::Device);
    let pinned = allocate(&card, MemoryKind::PinnedHost);
    write(&card, memory, &pattern(77));
    // SAFETY: nobody else knows it yet.
    unsafe { pinned.cast::<u8>().write_bytes(0, BYTES) };
    let stream = card.stream_create().expect("a stream");
    machine.simulate("delay_us", LATE_US);
    let to = (pinned, MemoryKind::PinnedHost);
    // SAFETY: both sides and the function's argument are kept until the stream is past them.
    let enqueued = unsafe {
        card.copy(stream, to, from_card(memory), BYTES as u64).expect("a copy");
        card.host_function(stream, look, pinned)
    };
    if EXPECTED.has_host_functions {
        enqueued.expect("enqueued");
        assert_eq!(SEEN.load(Ordering::Acquire), 0, "it is not there yet");
        card.stream_synchronize(stream, SOON).expect("it comes to an end");
        assert_eq!(SEEN.load(Ordering::Acquire), u64::from(pattern(77)[0]) + 1);
    } else {
        assert_eq!(enqueued.unwrap_err().status, Status::NotSupported);
    }
    machine.simulate("delay_us", "0");
    card.stream_destroy(stream).expect("destroyed");
    free(&card, &[memory, pinned]);
}

/// Everything that a card of any generation offers, once.
fn use_everything(card: &OpenDevice) {
    let memory = allocate(card, MemoryKind::Device);
    let pinned = allocate(card, MemoryKind::PinnedHost);
    let stream = card.stream_create().expect("a stream");
    let event = card.event_create().expect("an event");
    // SAFETY: all is kept until the stream is past it.
    unsafe {
        card.copy(stream, on_card(memory), (pinned, MemoryKind::PinnedHost), BYTES as u64)
            .expect("enqueued");
    }
    card.event_record(event, stream).expect("enqueued");
    card.stream_synchronize(stream, SOON).expect("done");
    card.event_query(event).expect("an answer");
    card.memory_kind(memory).expect("an answer");
    card.async_error().expect("no error");
    card.flush(memory, 8).expect("flushed");
    card.event_destroy(event).expect("destroyed");
    card.stream_destroy(stream).expect("destroyed");
    free(card, &[memory, pinned]);
}

#[test]
fn a_thread_keeps_the_card_that_it_chose() {
    let machine = machine();
    let (one, two) = (machine.card(1), machine.card(2));
    std::thread::scope(|scope| {
        // A thread that never chose one.
        scope.spawn(|| {
            use_everything(&two);
            assert_eq!(current_card(&machine), 0);
        });
        scope.spawn(|| {
            choose_card(&machine, 1);
            use_everything(&two);
            use_everything(&one);
            assert_eq!(current_card(&machine), 1);
        });
    });
    // Also when a call fails.
    choose_card(&machine, 3);
    machine.simulate("faults", &format!("{}@*={}", EXPECTED.allocate.0, EXPECTED.allocate.1));
    two.allocate(64, MemoryKind::Device).unwrap_err();
    machine.simulate("faults", "");
    assert_eq!(current_card(&machine), 3);
}

#[test]
fn failures_have_the_makers_number_and_words() {
    let machine = machine();
    let card = machine.card(0);
    let faults: Vec<String> = [EXPECTED.allocate, EXPECTED.pin, EXPECTED.record]
        .iter()
        .map(|(symbol, number, _)| format!("{symbol}@1={number}"))
        .collect();
    let stream = card.stream_create().expect("a stream");
    let event = card.event_create().expect("an event");
    machine.simulate("faults", &faults.join(","));
    for (kind, (_, number, words)) in
        [(MemoryKind::Device, EXPECTED.allocate), (MemoryKind::PinnedHost, EXPECTED.pin)]
    {
        let error = card.allocate(4096, kind).unwrap_err();
        assert_eq!((error.status, error.vendor_code), (Status::OutOfResources, number), "{error}");
        assert!(error.message.contains(words), "{error}");
    }
    let (_, number, words) = EXPECTED.record;
    let error = card.event_record(event, stream).unwrap_err();
    assert_eq!((error.status, error.vendor_code), (Status::DeviceError, number), "{error}");
    assert!(error.message.contains(words), "{error}");
    card.event_destroy(event).expect("destroyed");
    card.stream_destroy(stream).expect("destroyed");
}

#[test]
fn what_a_kernel_met_is_told_without_being_waited_for() {
    let machine = machine();
    // The last card: it is of no use after this.
    let card = machine.card(CARDS - 1);
    card.async_error().expect("no error yet");
    let (symbol, number) = EXPECTED.health;
    machine.simulate("faults", &format!("{symbol}@1=sticky:{number}"));
    let error = card.async_error().unwrap_err();
    assert_eq!((error.status, error.vendor_code), (Status::DeviceError, number), "{error}");
    machine.simulate("faults", "");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| machine.card(0).async_error());
        other.join().expect("no panic").expect("the other cards are well");
    });
    // It can't be closed in peace.
    std::mem::forget(card);
}
