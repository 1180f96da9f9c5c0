//! A card, through a plugin: memory with known bytes, and checks that every maker's card passes.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::host::OpenDevice;

use super::{Machine, SOON};

/// How late the simulated card does things, where a test looks while it is not done.
pub const LATE_US: &str = "200000";

/// The length of a test's memory.
pub const BYTES: usize = 1000;

/// Bytes of which no two seeds give the same.
pub fn pattern(seed: u8) -> Vec<u8> {
    (0..BYTES).map(|index| (index as u8).wrapping_mul(31) ^ seed).collect()
}

/// As a destination.
pub fn on_card(pointer: *mut c_void) -> (*mut c_void, MemoryKind) {
    (pointer, MemoryKind::Device)
}

/// As a source.
pub fn from_card(pointer: *mut c_void) -> (*const c_void, MemoryKind) {
    (pointer.cast_const(), MemoryKind::Device)
}

/// What the card has there now.
pub fn read(card: &OpenDevice, pointer: *mut c_void) -> Vec<u8> {
    let mut back = vec![0; BYTES];
    let host = (back.as_mut_ptr().cast(), MemoryKind::Host);
    // SAFETY: both sides have this many bytes; stream 0 copies before it returns.
    unsafe { card.copy(0, host, from_card(pointer), BYTES as u64) }.expect("a copy");
    back
}

/// Puts bytes onto the card now.
pub fn write(card: &OpenDevice, pointer: *mut c_void, bytes: &[u8]) {
    let host = (bytes.as_ptr().cast(), MemoryKind::Host);
    // SAFETY: both sides have this many bytes; stream 0 copies before it returns.
    unsafe { card.copy(0, on_card(pointer), host, bytes.len() as u64) }.expect("a copy");
}

/// [`BYTES`] bytes.
pub fn allocate(card: &OpenDevice, kind: MemoryKind) -> *mut c_void {
    card.allocate(BYTES as u64, kind).expect("memory")
}

/// Frees memory that nothing uses.
pub fn free(card: &OpenDevice, pointers: &[*mut c_void]) {
    for pointer in pointers {
        // SAFETY: the tests free what they allocated, after its streams are done.
        unsafe { card.free(*pointer) }.expect("freed");
    }
}

/// A host function is called once, when the stream gets there.
/// `foreign` is a stream that the application made on card 0.
pub fn host_functions_are_called(machine: &Machine, foreign: u64) {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn look(user: *mut c_void) {
        // SAFETY: the test passes pinned memory that it keeps.
        let first = unsafe { user.cast::<u8>().read() };
        SEEN.fetch_add(u64::from(first) + 1, Ordering::AcqRel);
    }
    SEEN.store(0, Ordering::Release);
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
    machine.simulate("delay_us", "0");
    // Again on the same stream, and on one of an application's.
    for stream in [stream, foreign] {
        // SAFETY: as above.
        unsafe { card.host_function(stream, look, pinned) }.expect("enqueued");
        card.stream_synchronize(stream, SOON).expect("done");
    }
    assert_eq!(SEEN.load(Ordering::Acquire), 3 * (u64::from(pattern(77)[0]) + 1));
    card.stream_destroy(stream).expect("destroyed");
    free(&card, &[memory, pinned]);
}
