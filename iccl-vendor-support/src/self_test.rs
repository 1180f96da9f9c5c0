//! A plugin's own test of what it promises of a card: copies in every direction, order on a stream,
//! and the ways in which stream and host wait for each other. Native collectives are tried by iccl.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use iccl_plugin_api::sdk::{Device, HostCallback, PluginError, PluginResult, Progress};
use iccl_plugin_api::tables::{DeviceCapabilities, HostFunction, host_to_stream, stream_to_host};
use iccl_plugin_api::{MemoryKind, Status};

/// How long a step may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Bytes that are moved.
const BYTES: usize = 256;

/// Tests a card that promises this.
///
/// # Errors
/// The promise that is not kept; what the driver says.
pub fn self_test(card: &impl Device, promises: &DeviceCapabilities) -> PluginResult<()> {
    let memory = Memory::new(card)?;
    let stream = card.stream_create()?;
    let tested = copies(card, &memory, stream).and_then(|()| {
        if promises.stream_to_host & stream_to_host::EVENT != 0 {
            event(card, stream)?;
        }
        if promises.stream_to_host & stream_to_host::HOST_FUNCTION != 0 {
            host_function(card, stream)?;
        }
        if promises.host_to_stream & host_to_stream::WAIT_VALUE != 0 {
            wait_for_value(card, &memory, stream)?;
        }
        Ok(())
    });
    let destroyed = card.stream_destroy(stream);
    let freed = memory.free(card);
    tested.and(destroyed).and(freed)
}

/// Two blocks on the card and one of pinned memory.
struct Memory {
    device: [*mut c_void; 2],
    pinned: *mut c_void,
}

impl Memory {
    fn new(card: &impl Device) -> PluginResult<Self> {
        let allocate = |kind| card.allocate(BYTES as u64, kind);
        Ok(Self {
            device: [allocate(MemoryKind::Device)?, allocate(MemoryKind::Device)?],
            pinned: allocate(MemoryKind::PinnedHost)?,
        })
    }

    fn free(&self, card: &impl Device) -> PluginResult<()> {
        self.device.iter().chain([&self.pinned]).try_for_each(|pointer| {
            // SAFETY: they came from this card, and the stream that used them is gone.
            unsafe { card.free(*pointer) }
        })
    }
}

fn wrong(what: &str) -> PluginError {
    PluginError::new(Status::Internal, what.to_owned())
}

/// Host to card, card to card, card to pinned memory, each in the order of the stream.
fn copies(card: &impl Device, memory: &Memory, stream: u64) -> PluginResult<()> {
    let pattern: [u8; BYTES] = std::array::from_fn(|index| index as u8 ^ 0x5a);
    let mut back = [0_u8; BYTES];
    let bytes = BYTES as u64;
    let [first, second] = memory.device;
    let on_card = |pointer| (pointer, MemoryKind::Device);
    let source = |pointer: *mut c_void| (pointer.cast_const(), MemoryKind::Device);
    // SAFETY: all sides have this many bytes and are used by nothing else; the stream is waited for
    // before pinned memory is read, and stream 0 copies before it returns.
    unsafe {
        memory.pinned.cast::<u8>().write_bytes(0, BYTES);
        card.copy(0, on_card(first), (pattern.as_ptr().cast(), MemoryKind::Host), bytes)?;
        card.copy(stream, on_card(second), source(first), bytes)?;
        card.copy(stream, (memory.pinned, MemoryKind::PinnedHost), source(second), bytes)?;
        card.stream_synchronize(stream, DEADLINE)?;
        memory.pinned.cast::<u8>().copy_to_nonoverlapping(back.as_mut_ptr(), BYTES);
        if back != pattern {
            return Err(wrong("a copy through the card came back different"));
        }
        back = [0; BYTES];
        card.copy(0, (back.as_mut_ptr().cast(), MemoryKind::Host), source(second), bytes)?;
    }
    if back != pattern {
        return Err(wrong("a copy from the card to the host came back different"));
    }
    Ok(())
}

/// An event is over when its stream is.
fn event(card: &impl Device, stream: u64) -> PluginResult<()> {
    let event = card.event_create()?;
    card.event_record(event, stream)?;
    card.stream_synchronize(stream, DEADLINE)?;
    let found = card.event_query(event)?;
    card.event_destroy(event)?;
    if found == Progress::Done {
        Ok(())
    } else {
        Err(wrong("an event is not over after its stream"))
    }
}

/// A host function is called once, when the stream gets there.
fn host_function(card: &impl Device, stream: u64) -> PluginResult<()> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn count(_: *mut c_void) {
        CALLS.fetch_add(1, Ordering::AcqRel);
    }
    let before = CALLS.load(Ordering::Acquire);
    // SAFETY: the function may be called by any thread, at any time.
    let callback = unsafe { HostCallback::new(HostFunction(count), std::ptr::null_mut()) };
    card.host_function(stream, callback)?;
    card.stream_synchronize(stream, DEADLINE)?;
    if CALLS.load(Ordering::Acquire) != before + 1 {
        return Err(wrong("a host function was not called once when its stream was done"));
    }
    Ok(())
}

/// A stream stays before a word until the host writes it.
fn wait_for_value(card: &impl Device, memory: &Memory, stream: u64) -> PluginResult<()> {
    let word = memory.pinned.cast::<u64>();
    // SAFETY: the word is 8 aligned bytes of pinned memory, kept until the stream is past it.
    unsafe {
        word.write(0);
        card.stream_wait_value(stream, word, 2)?;
        card.write_value(word, 1)?;
        if card.stream_query(stream)? != Progress::Pending {
            return Err(wrong("a stream went past a word that was too small"));
        }
        card.write_value(word, 3)?;
    }
    card.stream_synchronize(stream, DEADLINE)
}
