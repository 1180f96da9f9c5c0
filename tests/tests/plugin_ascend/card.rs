//! A card: memory, copies, streams, events, host functions, failures.

use std::time::Duration;

use iccl_plugin_api::host::OpenDevice;
use iccl_plugin_api::sdk::Progress;
use iccl_plugin_api::tables::stream_to_host;
use iccl_plugin_api::{MemoryKind, Status};
use iccl_tests::maker::{
    BYTES, LATE_US, SOON, allocate, free, from_card, host_functions_are_called, on_card, pattern,
    read, write,
};

use crate::application::{CARDS, choose_card, stream_of_an_application};
use crate::simulator::{current_card, machine};

#[test]
fn cards_say_what_they_are_and_what_they_can() {
    let machine = machine();
    let facts = machine.set.devices()[1].facts();
    assert_eq!(facts.name, "Ascend910B3");
    assert_eq!(facts.pci_address, "0000:c2:00.0");
    assert_eq!(facts.memory_bytes, 16 << 30);
    let can = facts.capabilities;
    assert_eq!((can.host_accessible, can.has_reduce, can.region_forms), (0, 0, 0));
    assert_eq!(can.stream_to_host, stream_to_host::EVENT | stream_to_host::HOST_FUNCTION);
    assert_eq!(can.host_to_stream, 0, "nobody promises a thread to each stream");
}

#[test]
fn copies_go_in_every_direction_and_in_the_order_of_their_stream() {
    let machine = machine();
    let card = machine.card(0);
    let (first, second) =
        (allocate(&card, MemoryKind::Device), allocate(&card, MemoryKind::Device));
    let (pinned, other) =
        (allocate(&card, MemoryKind::PinnedHost), allocate(&card, MemoryKind::PinnedHost));
    let data = pattern(1);
    write(&card, first, &data);
    let stream = card.stream_create().expect("a stream");
    machine.simulate("delay_us", LATE_US);
    let bytes = BYTES as u64;
    // SAFETY: all have this many bytes, and the stream is waited for before any is read.
    unsafe {
        let pinned = (pinned, MemoryKind::PinnedHost);
        card.copy(stream, on_card(second), from_card(first), bytes).expect("a copy");
        card.copy(stream, pinned, from_card(second), bytes).expect("a copy");
        // From the host to the host, which the runtime refuses on a stream.
        let source = (pinned.0.cast_const(), MemoryKind::PinnedHost);
        card.copy(stream, (other, MemoryKind::PinnedHost), source, bytes).expect("a copy");
    }
    assert_eq!(card.stream_query(stream), Ok(Progress::Pending));
    card.stream_synchronize(stream, SOON).expect("it comes to an end");
    assert_eq!(card.stream_query(stream), Ok(Progress::Done));
    for place in [pinned, other] {
        // SAFETY: pinned memory is the host's, and the stream is past it.
        let arrived = unsafe { std::slice::from_raw_parts(place.cast::<u8>(), BYTES) };
        assert_eq!(arrived, data);
    }
    machine.simulate("delay_us", "0");
    assert_eq!(read(&card, second), data);
    // Nothing is nothing to do, though the runtime refuses it.
    // SAFETY: no byte is touched.
    unsafe { card.copy(stream, on_card(second), from_card(first), 0) }.expect("nothing");
    card.stream_destroy(stream).expect("destroyed");
    free(&card, &[first, second, pinned, other]);
}

#[test]
fn pointers_are_known_for_what_they_are() {
    let machine = machine();
    let (card, other) = (machine.card(0), machine.card(1));
    let memory = allocate(&card, MemoryKind::Device);
    let pinned = allocate(&card, MemoryKind::PinnedHost);
    let elsewhere = allocate(&other, MemoryKind::Device);
    let host = [0_u8; 8];
    assert_eq!(card.memory_kind(memory), Ok(MemoryKind::Device));
    assert_eq!(card.memory_kind(pinned), Ok(MemoryKind::PinnedHost));
    assert_eq!(card.memory_kind(host.as_ptr().cast()), Ok(MemoryKind::Host));
    let error = card.memory_kind(elsewhere).unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument);
    assert!(error.message.contains("is memory of card 1, not of card 0"), "{error}");
    assert_eq!(card.allocate(8, MemoryKind::Host).unwrap_err().status, Status::NotSupported);
    // No bytes are allowed, though the runtime refuses that.
    let nothing = card.allocate(0, MemoryKind::Device).expect("something");
    // Freed twice, or by another card than it came from, is refused.
    // SAFETY: the plugin looks the pointer up first.
    assert_eq!(unsafe { other.free(memory) }.unwrap_err().status, Status::InvalidArgument);
    free(&card, &[memory, pinned, nothing]);
    // SAFETY: as above.
    assert_eq!(unsafe { card.free(memory) }.unwrap_err().status, Status::InvalidArgument);
    free(&other, &[elsewhere]);
}

#[test]
fn events_are_over_when_their_last_record_is() {
    let machine = machine();
    let card = machine.card(0);
    let stream = card.stream_create().expect("a stream");
    let event = card.event_create().expect("an event");
    assert_eq!(card.event_query(event), Ok(Progress::Done), "it was never recorded");
    let memory = allocate(&card, MemoryKind::Device);
    let pinned = allocate(&card, MemoryKind::PinnedHost);
    machine.simulate("delay_us", LATE_US);
    for _ in 0..2 {
        let source = (pinned.cast_const(), MemoryKind::PinnedHost);
        // SAFETY: both sides have this many bytes and are kept until the stream is past them.
        unsafe { card.copy(stream, on_card(memory), source, BYTES as u64) }.expect("enqueued");
        card.event_record(event, stream).expect("recorded");
        assert_eq!(card.event_query(event), Ok(Progress::Pending));
        let error = card.stream_synchronize(stream, Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.status, Status::Timeout, "{error}");
        card.stream_synchronize(stream, SOON).expect("it comes to an end");
        assert_eq!(card.event_query(event), Ok(Progress::Done));
    }
    machine.simulate("delay_us", "0");
    card.event_destroy(event).expect("destroyed");
    card.stream_destroy(stream).expect("destroyed");
    free(&card, &[memory, pinned]);
}

#[test]
fn a_host_function_is_called_by_the_runtime() {
    let machine = machine();
    choose_card(&machine, 0);
    host_functions_are_called(&machine, stream_of_an_application(&machine));
}

#[test]
fn a_thread_keeps_the_card_that_it_chose() {
    let machine = machine();
    let (one, two) = (machine.card(1), machine.card(2));
    let use_it = |card: &OpenDevice| {
        let memory = allocate(card, MemoryKind::Device);
        write(card, memory, &pattern(3));
        assert_eq!(read(card, memory), pattern(3));
        card.async_error().expect("no error");
        free(card, &[memory]);
    };
    std::thread::scope(|scope| {
        // A thread that never chose one keeps that of the first call: nothing takes it away.
        scope.spawn(|| {
            assert_eq!(current_card(&machine), None);
            use_it(&two);
            use_it(&one);
            assert_eq!(current_card(&machine), Some(2));
        });
        scope.spawn(|| {
            choose_card(&machine, 3);
            use_it(&two);
            use_it(&one);
            assert_eq!(current_card(&machine), Some(3));
        });
    });
    // Also when a call fails.
    choose_card(&machine, 3);
    machine.simulate("faults", "aclrtMalloc@*=207001");
    two.allocate(64, MemoryKind::Device).unwrap_err();
    machine.simulate("faults", "");
    assert_eq!(current_card(&machine), Some(3));
}

#[test]
fn failures_have_ascends_words_and_number() {
    let machine = machine();
    let card = machine.card(0);
    let faults = "aclrtMalloc@1=207001,aclrtMallocHost@1=207001,aclrtRecordEvent@1=107003";
    machine.simulate("faults", faults);
    for (kind, call) in
        [(MemoryKind::Device, "aclrtMalloc"), (MemoryKind::PinnedHost, "aclrtMallocHost")]
    {
        let error = card.allocate(4096, kind).unwrap_err();
        assert_eq!((error.status, error.vendor_code), (Status::OutOfResources, 207_001));
        let expected = format!(
            "{call}(4096): error 207001: EE9999: Inner Error!; {call} failed, retCode=207001."
        );
        assert!(error.message.contains(&expected), "{error}");
    }
    let stream = card.stream_create().expect("a stream");
    let event = card.event_create().expect("an event");
    let error = card.event_record(event, stream).unwrap_err();
    assert_eq!((error.status, error.vendor_code), (Status::DeviceError, 107_003), "{error}");
    // 0 is no stream to enqueue on, and no event.
    assert_eq!(card.event_record(event, 0).unwrap_err().status, Status::InvalidArgument);
    assert_eq!(card.event_query(0).unwrap_err().status, Status::InvalidArgument);
    // What is gone is told from what never was by the runtime.
    card.event_destroy(event).expect("destroyed");
    assert_eq!(card.event_query(event).unwrap_err().vendor_code, 107_017);
    card.stream_destroy(stream).expect("destroyed");
}

#[test]
fn what_the_card_met_is_told_without_being_waited_for() {
    let machine = machine();
    // The last card: it is of no use after this.
    let card = machine.card(CARDS - 1);
    card.async_error().expect("no error yet");
    machine.simulate("faults", "aclrtStreamQuery@1=sticky:507054");
    let error = card.async_error().unwrap_err();
    assert_eq!((error.status, error.vendor_code), (Status::DeviceError, 507_054), "{error}");
    machine.simulate("faults", "");
    assert_eq!(card.async_error().unwrap_err().vendor_code, 507_054);
    let error = card.allocate(64, MemoryKind::Device).unwrap_err();
    assert_eq!((error.status, error.vendor_code), (Status::DeviceError, 507_054), "{error}");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| machine.card(0).async_error());
        other.join().expect("no panic").expect("the other cards are well");
    });
    // It can't be closed in peace.
    std::mem::forget(card);
}

#[test]
fn there_is_no_memory_for_nics() {
    let machine = machine();
    let card = machine.card(0);
    let memory = allocate(&card, MemoryKind::Device);
    let error = card.export_region(memory, 8).unwrap_err();
    assert_eq!(error.status, Status::NotSupported, "{error}");
    free(&card, &[memory]);
}
