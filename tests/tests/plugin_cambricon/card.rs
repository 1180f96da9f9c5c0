//! A card: memory, copies, queues, notifiers, regions for NICs, failures, and a process that forked.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;

use iccl_plugin_api::host::OpenDevice;
use iccl_plugin_api::sdk::Progress;
use iccl_plugin_api::tables::{region_form, stream_to_host};
use iccl_plugin_api::{MemoryKind, Status};
use iccl_tests::maker::{
    BYTES, LATE_US, SOON, allocate, free, from_card, host_functions_are_called, on_card, pattern,
    read, write,
};

use crate::simulator::{CARDS, choose_card, current_card, machine, reset_card};

#[test]
fn cards_say_what_they_are_and_what_they_can() {
    let machine = machine();
    let facts = machine.set.devices()[1].facts();
    assert_eq!(facts.name, "MLU Simulated");
    assert_eq!(facts.pci_address, "0000:62:00.0");
    assert_eq!(facts.memory_bytes, 16 << 30);
    let can = facts.capabilities;
    assert_eq!(can.host_accessible, 0);
    assert_eq!(can.stream_to_host, stream_to_host::EVENT | stream_to_host::HOST_FUNCTION);
    assert_eq!(can.host_to_stream, 0, "enqueueing blocks, and says so");
    assert_eq!(can.region_forms, region_form::DMA_BUF);
    assert_eq!(can.has_reduce, 0);
}

#[test]
fn copies_go_in_every_direction_and_in_the_order_of_their_queue() {
    let machine = machine();
    let card = machine.card(0);
    let (first, second) =
        (allocate(&card, MemoryKind::Device), allocate(&card, MemoryKind::Device));
    let (pinned, other) =
        (allocate(&card, MemoryKind::PinnedHost), allocate(&card, MemoryKind::PinnedHost));
    let data = pattern(1);
    write(&card, first, &data);
    let stream = card.stream_create().expect("a stream");
    // The header and the guide differ in the code for what is not done yet.
    for pending in ["1", "632014"] {
        machine.simulate("pending", pending);
        machine.simulate("delay_us", LATE_US);
        // SAFETY: all have this many bytes, and the stream is waited for before any is read.
        unsafe {
            let bytes = BYTES as u64;
            pinned.cast::<u8>().write_bytes(0, BYTES);
            card.copy(stream, on_card(second), from_card(first), bytes).expect("a copy");
            card.copy(stream, (pinned, MemoryKind::PinnedHost), from_card(second), bytes)
                .expect("a copy");
            let source = (pinned.cast_const(), MemoryKind::PinnedHost);
            card.copy(stream, (other, MemoryKind::PinnedHost), source, bytes).expect("a copy");
        }
        machine.simulate("delay_us", "0");
        card.stream_synchronize(stream, SOON).expect("it comes to an end");
        assert_eq!(card.stream_query(stream), Ok(Progress::Done));
        for arrived in [pinned, other] {
            // SAFETY: pinned memory is the host's, and the stream is past it.
            let arrived = unsafe { std::slice::from_raw_parts(arrived.cast::<u8>(), BYTES) };
            assert_eq!(arrived, data);
        }
    }
    assert_eq!(read(&card, second), data);
    card.stream_destroy(stream).expect("destroyed");
    free(&card, &[first, second, pinned, other]);
}

#[test]
fn notifiers_tell_when_their_queue_got_there_by_either_code() {
    let machine = machine();
    let card = machine.card(0);
    let memory = allocate(&card, MemoryKind::Device);
    let pinned = allocate(&card, MemoryKind::PinnedHost);
    let (stream, event) =
        (card.stream_create().expect("a stream"), card.event_create().expect("an event"));
    for pending in ["632014", "1"] {
        machine.simulate("pending", pending);
        machine.simulate("delay_us", LATE_US);
        let to = (pinned, MemoryKind::PinnedHost);
        // SAFETY: both sides are kept until the stream is past them.
        unsafe { card.copy(stream, to, from_card(memory), BYTES as u64) }.expect("a copy");
        card.event_record(event, stream).expect("placed");
        assert_eq!(card.event_query(event), Ok(Progress::Pending), "{pending}");
        assert_eq!(card.stream_query(stream), Ok(Progress::Pending), "{pending}");
        // It is no failure of the thread that the application could find.
        assert_eq!(last_error(&machine), 0, "{pending}");
        card.stream_synchronize(stream, SOON).expect("done");
        assert_eq!(card.event_query(event), Ok(Progress::Done), "{pending}");
    }
    card.event_destroy(event).expect("destroyed");
    card.stream_destroy(stream).expect("destroyed");
    free(&card, &[memory, pinned]);
}

/// What CNRT remembers as this thread's last failure.
fn last_error(machine: &iccl_tests::maker::Machine) -> c_int {
    let runtime = machine.library("libcnrt.so");
    // SAFETY: this is the function's signature.
    unsafe {
        let get: libloading::Symbol<'_, unsafe extern "C" fn() -> c_int> =
            runtime.get(b"cnrtPeekAtLastError").expect("a function");
        get()
    }
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
    let error = card.allocate(8, MemoryKind::Host).unwrap_err();
    assert_eq!(error.status, Status::NotSupported);
    // Freed twice, or by another card than it came from, is refused.
    // SAFETY: the plugin looks the pointer up first.
    assert_eq!(unsafe { other.free(memory) }.unwrap_err().status, Status::InvalidArgument);
    free(&card, &[memory, pinned]);
    // SAFETY: as above.
    assert_eq!(unsafe { card.free(memory) }.unwrap_err().status, Status::InvalidArgument);
    free(&other, &[elsewhere]);
}

#[test]
fn a_host_function_is_called_when_the_queue_gets_there() {
    let machine = machine();
    choose_card(&machine, 0);
    let mut queue = 0_u64;
    // SAFETY: this is the function's signature, and there is room for the handle.
    let status = unsafe {
        let runtime = machine.library("libcnrt.so");
        let create: libloading::Symbol<'_, unsafe extern "C" fn(*mut u64) -> c_int> =
            runtime.get(b"cnrtQueueCreate").expect("a function");
        create(&raw mut queue)
    };
    assert_eq!(status, 0);
    host_functions_are_called(&machine, queue);
}

/// Everything that a card offers, once.
fn use_everything(card: &OpenDevice) {
    unsafe extern "C" fn nothing(_: *mut c_void) {}
    let memory = allocate(card, MemoryKind::Device);
    let pinned = allocate(card, MemoryKind::PinnedHost);
    let stream = card.stream_create().expect("a stream");
    let event = card.event_create().expect("an event");
    // SAFETY: all is kept until the stream is past it.
    unsafe {
        card.copy(stream, on_card(memory), (pinned, MemoryKind::PinnedHost), BYTES as u64)
            .expect("enqueued");
        card.event_record(event, stream).expect("enqueued");
        card.host_function(stream, nothing, std::ptr::null_mut()).expect("enqueued");
    }
    card.stream_synchronize(stream, SOON).expect("done");
    card.event_query(event).expect("an answer");
    card.memory_kind(memory).expect("an answer");
    card.async_error().expect("no error");
    let region = card.export_region(memory, 8).expect("a region");
    card.flush(memory, 8).expect("flushed");
    card.release_region(&region).expect("released");
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
    machine.simulate("faults", "cnrtMalloc@*=100100");
    two.allocate(64, MemoryKind::Device).unwrap_err();
    machine.simulate("faults", "");
    assert_eq!(current_card(&machine), 3);
    choose_card(&machine, 0);
}

#[test]
fn b080_failures_have_cambricons_words_and_number() {
    let machine = machine();
    let card = machine.card(0);
    let faults = "cnrtMalloc@1=100100,cnrtHostMalloc@1=100100,cnrtPlaceNotifier@1=100060";
    machine.simulate("faults", faults);
    for (kind, call) in
        [(MemoryKind::Device, "cnrtMalloc"), (MemoryKind::PinnedHost, "cnrtHostMalloc")]
    {
        let error = card.allocate(4096, kind).unwrap_err();
        assert_eq!((error.status, error.vendor_code), (Status::OutOfResources, 100_100), "{error}");
        let expected = format!("{call}(4096): no device memory is left (cnrtErrorNoMem, 100100)");
        assert!(error.message.contains(&expected), "{error}");
    }
    let stream = card.stream_create().expect("a stream");
    let event = card.event_create().expect("an event");
    let error = card.event_record(event, stream).unwrap_err();
    assert_eq!((error.status, error.vendor_code), (Status::DeviceError, 100_060), "{error}");
    assert!(error.message.contains("cnrtPlaceNotifier: "), "{error}");
    // 0 is no stream to enqueue on, and no event; nor is there a wait for a value.
    assert_eq!(card.event_record(event, 0).unwrap_err().status, Status::InvalidArgument);
    assert_eq!(card.event_query(0).unwrap_err().status, Status::InvalidArgument);
    // SAFETY: it is refused before the word is looked at.
    let error = unsafe { card.stream_wait_value(stream, std::ptr::null(), 1) }.unwrap_err();
    assert_eq!(error.status, Status::NotSupported, "{error}");
    card.event_destroy(event).expect("destroyed");
    card.stream_destroy(stream).expect("destroyed");
}

#[test]
fn what_a_kernel_met_is_told_without_being_waited_for() {
    let machine = machine();
    // The last card, which no rank uses.
    let card = machine.card(CARDS - 1);
    card.async_error().expect("no error yet");
    machine.simulate("faults", "cnrtQueueQuery@1=sticky:100132");
    let error = card.async_error().unwrap_err();
    assert_eq!((error.status, error.vendor_code), (Status::DeviceError, 100_132), "{error}");
    machine.simulate("faults", "");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| machine.card(0).async_error());
        other.join().expect("no panic").expect("the other cards are well");
    });
    reset_card(&machine, CARDS - 1);
    card.async_error().expect("well again");
}

#[test]
fn memory_is_exported_as_a_dma_buf_and_taken_back_once() {
    let machine = machine();
    let card = machine.card(0);
    let memory = allocate(&card, MemoryKind::Device);
    let region = card.export_region(memory.wrapping_byte_add(16), 100).expect("a region");
    assert_eq!(region.form, region_form::DMA_BUF);
    assert_eq!((region.address, region.length, region.offset % 4096), (0, 100, 16));
    let link = format!("/proc/self/fd/{}", region.descriptor);
    let kept = File::open(&link).expect("the descriptor is open");
    assert_ne!(kept.as_raw_fd(), region.descriptor);
    let before = std::fs::read_link(&link).ok();
    card.release_region(&region).expect("released");
    assert!(before.is_some() && std::fs::read_link(&link).ok() != before, "it is closed");
    let error = card.release_region(&region).unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument, "{error}");
    // Neither memory of the host nor more than was allocated.
    let pinned = allocate(&card, MemoryKind::PinnedHost);
    for (pointer, bytes) in [(pinned, 64), (memory, BYTES as u64 + 1)] {
        let error = card.export_region(pointer, bytes).unwrap_err();
        assert_eq!(error.status, Status::InvalidArgument, "{error}");
    }
    free(&card, &[memory, pinned]);
}

#[test]
fn a_process_that_forked_is_refused_before_a_library_is_called() {
    let machine = machine();
    let card = machine.card(0);
    // What goes wrong inside CNRT would be told with its number.
    machine.simulate("faults", "cnrtGetDevice@*=100015");
    // SAFETY: the child calls one function of the plugin and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let error = card.allocate(64, MemoryKind::Device).unwrap_err();
        let is_told = error.status == Status::DeviceError
            && error.vendor_code == 0
            && error.message.contains("Cambricon's driver was initialised");
        // SAFETY: ends the process without what its parent has to do at its end.
        unsafe { libc::_exit(i32::from(!is_told)) };
    }
    assert!(child > 0);
    let mut status = -1;
    // SAFETY: waits for the child, with room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    machine.simulate("faults", "");
}
