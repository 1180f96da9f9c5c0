//! A card: memory, copies, streams, events, waits, regions for NICs, failures.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use iccl_plugin_api::host::OpenDevice;
use iccl_plugin_api::sdk::Progress;
use iccl_plugin_api::tables::{host_to_stream, region_form, stream_to_host};
use iccl_plugin_api::{MemoryKind, Status};
use iccl_tests::maker::{
    BYTES, LATE_US, SOON, allocate, free, from_card, on_card, pattern, read, write,
};

use crate::simulator::{CARDS, choose_card, current_card, current_context, machine};

#[test]
fn cards_say_what_they_are_and_what_they_can() {
    let machine = machine();
    let facts = machine.set.devices()[1].facts();
    assert_eq!(facts.name, "NVIDIA Simulated");
    assert_eq!(facts.pci_address, "0000:22:00.0");
    assert_eq!(facts.memory_bytes, 16 << 30);
    let can = facts.capabilities;
    assert_eq!(can.host_accessible, 0);
    assert_eq!(can.stream_to_host, stream_to_host::EVENT | stream_to_host::HOST_FUNCTION);
    assert_eq!(can.host_to_stream, host_to_stream::WAIT_VALUE);
    assert_eq!(can.region_forms & region_form::DMA_BUF, region_form::DMA_BUF);
    assert_eq!(can.has_reduce, 0);
}

#[test]
fn copies_go_in_every_direction_and_in_the_order_of_their_stream() {
    let machine = machine();
    let card = machine.card(0);
    let (first, second) =
        (allocate(&card, MemoryKind::Device), allocate(&card, MemoryKind::Device));
    let pinned = allocate(&card, MemoryKind::PinnedHost);
    let data = pattern(1);
    write(&card, first, &data);
    let stream = card.stream_create().expect("a stream");
    machine.simulate("delay_us", LATE_US);
    // SAFETY: all have this many bytes, and the stream is waited for before any is read.
    unsafe {
        let bytes = BYTES as u64;
        card.copy(stream, on_card(second), from_card(first), bytes).expect("a copy");
        card.copy(stream, (pinned, MemoryKind::PinnedHost), from_card(second), bytes)
            .expect("a copy");
    }
    assert_eq!(card.stream_query(stream), Ok(Progress::Pending));
    card.stream_synchronize(stream, SOON).expect("it comes to an end");
    assert_eq!(card.stream_query(stream), Ok(Progress::Done));
    // SAFETY: pinned memory is the host's, and the stream is past it.
    let arrived = unsafe { std::slice::from_raw_parts(pinned.cast::<u8>(), BYTES) };
    assert_eq!(arrived, data);
    machine.simulate("delay_us", "0");
    assert_eq!(read(&card, second), data);
    card.stream_destroy(stream).expect("destroyed");
    free(&card, &[first, second, pinned]);
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
    unsafe {
        card.copy(stream, to, from_card(memory), BYTES as u64).expect("a copy");
        card.host_function(stream, look, pinned).expect("enqueued");
    }
    assert_eq!(SEEN.load(Ordering::Acquire), 0, "it is not there yet");
    card.stream_synchronize(stream, SOON).expect("it comes to an end");
    assert_eq!(SEEN.load(Ordering::Acquire), u64::from(pattern(77)[0]) + 1);
    card.stream_destroy(stream).expect("destroyed");
    free(&card, &[memory, pinned]);
}

#[test]
fn a_stream_waits_for_a_word_that_the_host_writes() {
    let machine = machine();
    let card = machine.card(1);
    let memory = allocate(&card, MemoryKind::Device);
    let pinned = allocate(&card, MemoryKind::PinnedHost);
    let word = pinned.cast::<u64>();
    let (old, new) = (pattern(1), pattern(2));
    write(&card, memory, &old);
    let stream = card.stream_create().expect("a stream");
    let event = card.event_create().expect("an event");
    // SAFETY: the word is pinned and kept; the source of the copy is kept until the stream is past.
    unsafe {
        word.write(0);
        card.stream_wait_value(stream, word, 5).expect("enqueued");
        let host = (new.as_ptr().cast(), MemoryKind::Host);
        card.copy(stream, on_card(memory), host, BYTES as u64).expect("enqueued");
        card.event_record(event, stream).expect("enqueued");
        card.write_value(word, 4).expect("written");
    }
    let error = card.stream_synchronize(stream, Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.status, Status::Timeout, "{error}");
    assert_eq!(card.event_query(event), Ok(Progress::Pending));
    assert_eq!(read(&card, memory), old);
    // SAFETY: as above.
    unsafe { card.write_value(word, 9) }.expect("written");
    card.stream_synchronize(stream, SOON).expect("it goes on");
    assert_eq!(card.event_query(event), Ok(Progress::Done));
    assert_eq!(read(&card, memory), new);
    // A word of the card, or none of this card's, is refused: the host or the card can't reach it.
    let mut foreign = 0_u64;
    for wrong in [memory.cast::<u64>(), &raw mut foreign, word.wrapping_byte_add(4)] {
        // SAFETY: the plugin looks where the word is before it uses it.
        unsafe {
            let wait = card.stream_wait_value(stream, wrong, 1).unwrap_err();
            assert_eq!(wait.status, Status::InvalidArgument, "{wait}");
            let write = card.write_value(wrong, 1).unwrap_err();
            assert_eq!(write.status, Status::InvalidArgument, "{write}");
        }
    }
    // SAFETY: refused before the word is looked at.
    let far = unsafe { card.stream_wait_value(stream, word, u64::MAX) }.unwrap_err();
    assert_eq!(far.status, Status::InvalidArgument, "{far}");
    card.event_destroy(event).expect("destroyed");
    card.stream_destroy(stream).expect("destroyed");
    free(&card, &[memory, pinned]);
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
        pinned.cast::<u64>().write(1);
        card.stream_wait_value(stream, pinned.cast(), 1).expect("enqueued");
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
            let context = current_context(&machine);
            use_everything(&two);
            assert_eq!(current_context(&machine), context);
            assert_eq!(current_card(&machine), 0);
        });
        scope.spawn(|| {
            choose_card(&machine, 1);
            let context = current_context(&machine);
            use_everything(&two);
            use_everything(&one);
            assert_eq!(current_context(&machine), context);
            assert_eq!(current_card(&machine), 1);
        });
    });
    // Also when a call fails.
    choose_card(&machine, 3);
    machine.simulate("faults", "cudaMalloc@*=2");
    two.allocate(64, MemoryKind::Device).unwrap_err();
    machine.simulate("faults", "");
    assert_eq!(current_card(&machine), 3);
}

#[test]
fn failures_have_nvidias_words_and_number() {
    let machine = machine();
    let card = machine.card(0);
    machine.simulate("faults", "cudaMalloc@1=2,cudaHostAlloc@1=2,cudaEventRecord@1=400");
    for (kind, call) in
        [(MemoryKind::Device, "cudaMalloc"), (MemoryKind::PinnedHost, "cudaHostAlloc")]
    {
        let error = card.allocate(4096, kind).unwrap_err();
        assert_eq!((error.status, error.vendor_code), (Status::OutOfResources, 2), "{error}");
        let expected = format!("{call}(4096): out of memory (cudaErrorMemoryAllocation, 2)");
        assert!(error.message.contains(&expected), "{error}");
    }
    let stream = card.stream_create().expect("a stream");
    let event = card.event_create().expect("an event");
    let error = card.event_record(event, stream).unwrap_err();
    assert_eq!((error.status, error.vendor_code), (Status::DeviceError, 400), "{error}");
    assert!(error.message.contains("cudaEventRecord: "), "{error}");
    // 0 is no stream to enqueue on, and no event.
    assert_eq!(card.event_record(event, 0).unwrap_err().status, Status::InvalidArgument);
    assert_eq!(card.event_query(0).unwrap_err().status, Status::InvalidArgument);
    card.event_destroy(event).expect("destroyed");
    card.stream_destroy(stream).expect("destroyed");
}

#[test]
fn what_a_kernel_met_is_told_without_being_waited_for() {
    let machine = machine();
    // The last card: it is of no use after this.
    let card = machine.card(CARDS - 1);
    card.async_error().expect("no error yet");
    machine.simulate("faults", "cudaStreamQuery@1=sticky:700");
    let error = card.async_error().unwrap_err();
    assert_eq!((error.status, error.vendor_code), (Status::DeviceError, 700), "{error}");
    machine.simulate("faults", "");
    assert_eq!(card.async_error().unwrap_err().vendor_code, 700);
    let error = card.allocate(64, MemoryKind::Device).unwrap_err();
    assert_eq!((error.status, error.vendor_code), (Status::DeviceError, 700), "{error}");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| machine.card(0).async_error());
        other.join().expect("no panic").expect("the other cards are well");
    });
    // It can't be closed in peace.
    std::mem::forget(card);
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
    card.release_region(&region).expect("released");
    assert!(std::fs::read_link(&link).is_err(), "the descriptor is closed");
    let error = card.release_region(&region).unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument, "{error}");
    // Neither memory of the host nor more than was allocated.
    let pinned = allocate(&card, MemoryKind::PinnedHost);
    for (pointer, bytes) in [(pinned, 64), (memory, BYTES as u64 + 1)] {
        let error = card.export_region(pointer, bytes).unwrap_err();
        assert_eq!(error.status, Status::InvalidArgument, "{error}");
    }
    card.flush(memory, 64).expect("what NICs write is seen");
    free(&card, &[memory, pinned]);
}
