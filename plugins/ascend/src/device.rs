//! A card as a device: memory, copies, streams, events, host functions.
//!
//! Streams and events are Ascend's own handles, so that an application's `aclrtStream` is a stream here.
//! Every call enters the card's context and leaves the thread as it was, if it had one. Nothing is put
//! on the default stream, on which the application may have work that waits for iccl.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{
    Device, DeviceBackend, DeviceFacts, HostCallback, PluginResult, Progress,
};
use iccl_vendor_support::{
    Allocation, Allocations, Direction, allocation_bytes, handle, synchronize,
};

use crate::context::CardContext;
use crate::memory::{direction_number, kind};
use crate::report::Reports;
use crate::{AscendPlugin, sys};

impl DeviceBackend for AscendPlugin {
    type Device = Card;

    fn count(&self) -> PluginResult<u32> {
        Ok(self.acl.cards.len() as u32)
    }

    fn facts(&self, index: u32) -> PluginResult<DeviceFacts> {
        Ok(self.acl.card(index)?.clone())
    }

    fn open(&self, index: u32) -> PluginResult<Card> {
        self.acl.card(index)?;
        Card::open(self.context(index)?)
    }
}

/// An opened card.
#[derive(Debug)]
pub struct Card {
    pub(crate) context: Arc<CardContext>,
    /// To ask how the card is.
    own_stream: StreamHandle,
    allocations: Allocations,
    reports: Reports,
}

/// A stream of Ascend's.
#[derive(Clone, Copy, Debug)]
struct StreamHandle(sys::Stream);

// SAFETY: Ascend's handles may be used by any thread that has their context.
unsafe impl Send for StreamHandle {}
// SAFETY: as above.
unsafe impl Sync for StreamHandle {}

impl Card {
    fn open(context: Arc<CardContext>) -> PluginResult<Self> {
        let own_stream = {
            let _current = context.enter()?;
            StreamHandle(create_stream(&context.acl.table)?)
        };
        Ok(Self {
            context,
            own_stream,
            allocations: Allocations::default(),
            reports: Reports::default(),
        })
    }

    fn table(&self) -> &sys::Acl {
        &self.context.acl.table
    }
}

fn create_stream(table: &sys::Acl) -> PluginResult<sys::Stream> {
    let mut stream = std::ptr::null_mut();
    // SAFETY: there is room for the handle.
    let answer = unsafe { (table.aclrtCreateStream)(&raw mut stream) };
    table.check("aclrtCreateStream", answer)?;
    Ok(stream)
}

/// A new event that may be recorded again and again, and was never recorded: it is over.
pub(crate) fn create_event(table: &sys::Acl) -> PluginResult<sys::Event> {
    let mut event = std::ptr::null_mut();
    // SAFETY: there is room for the handle.
    let answer = unsafe { (table.aclrtCreateEventExWithFlag)(&raw mut event, sys::EVENT_SYNC) };
    table.check("aclrtCreateEventExWithFlag", answer)?;
    Ok(event)
}

/// Whether an event's last record was passed. Its context is current.
pub(crate) fn query_event(table: &sys::Acl, event: sys::Event) -> PluginResult<Progress> {
    let mut status = -1;
    // SAFETY: the event lives; there is room for the number.
    let answer = unsafe { (table.aclrtQueryEventStatus)(event, &raw mut status) };
    table.check("aclrtQueryEventStatus", answer)?;
    let is_over = status == sys::EVENT_RECORDED_STATUS_COMPLETE;
    Ok(if is_over { Progress::Done } else { Progress::Pending })
}

/// Two places of the host's memory, for a thread of a stream's.
struct HostCopy {
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
}

// SAFETY: whoever asks for the copy keeps both sides until the stream is past it.
unsafe impl Send for HostCopy {}

impl HostCopy {
    fn run(&self) {
        let (to, from) = (self.destination.cast::<u8>(), self.source.cast::<u8>());
        // SAFETY: as above; both sides have this many bytes and do not overlap.
        unsafe { to.copy_from_nonoverlapping(from, self.bytes) };
    }
}

impl Device for Card {
    fn allocate(&self, bytes: u64, kind: MemoryKind) -> PluginResult<*mut c_void> {
        let bytes = allocation_bytes(bytes, kind)?;
        let _current = self.context.enter()?;
        let table = self.table();
        let mut pointer = std::ptr::null_mut();
        match kind {
            MemoryKind::Device => {
                let policy = sys::MALLOC_HUGE_FIRST;
                // SAFETY: there is room for the pointer.
                let answer = unsafe { (table.aclrtMalloc)(&raw mut pointer, bytes, policy) };
                table.check(format_args!("aclrtMalloc({bytes})"), answer)?;
            }
            MemoryKind::PinnedHost | MemoryKind::Host => {
                // SAFETY: there is room for the pointer.
                let answer = unsafe { (table.aclrtMallocHost)(&raw mut pointer, bytes) };
                table.check(format_args!("aclrtMallocHost({bytes})"), answer)?;
            }
        }
        self.allocations.insert(pointer, Allocation { bytes, kind });
        Ok(pointer)
    }

    unsafe fn free(&self, pointer: *mut c_void) -> PluginResult<()> {
        let _current = self.context.enter()?;
        let table = self.table();
        let (call, answer) = match self.allocations.remove(pointer)?.kind {
            // SAFETY: it came from the function that belongs to this one, and nothing uses it.
            MemoryKind::Device => ("aclrtFree", unsafe { (table.aclrtFree)(pointer) }),
            MemoryKind::PinnedHost | MemoryKind::Host => {
                // SAFETY: as above.
                ("aclrtFreeHost", unsafe { (table.aclrtFreeHost)(pointer) })
            }
        };
        table.check(call, answer)
    }

    #[allow(clippy::not_unsafe_ptr_arg_deref, reason = "the library looks the address up")]
    fn memory_kind(&self, pointer: *const c_void) -> PluginResult<MemoryKind> {
        let _current = self.context.enter()?;
        let mut attributes =
            sys::PointerAttributes { location_type: -1, ..sys::PointerAttributes::default() };
        let answer =
            // SAFETY: there is room for the structure.
            unsafe { (self.table().aclrtPointerGetAttributes)(pointer, &raw mut attributes) };
        self.table().check("aclrtPointerGetAttributes", answer)?;
        kind(&attributes, self.context.ordinal, pointer)
    }

    unsafe fn copy(
        &self,
        stream: u64,
        (destination, to): (*mut c_void, MemoryKind),
        (source, from): (*const c_void, MemoryKind),
        bytes: u64,
    ) -> PluginResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _current = self.context.enter()?;
        let table = self.table();
        let direction = Direction::new(to, from);
        let (number, length) = (direction_number(direction), bytes as usize);
        if stream == 0 {
            let answer =
                // SAFETY: the caller promises both sides of these kinds and this length.
                unsafe { (table.aclrtMemcpy)(destination, length, source, length, number) };
            return table.check(format_args!("aclrtMemcpy({bytes} bytes, {from} to {to})"), answer);
        }
        let stream = handle(stream)?;
        if direction == Direction::HostToHost {
            // The runtime refuses this one on a stream.
            let copy = HostCopy { destination, source, bytes: length };
            return self.reports.enqueue(&self.context, stream, Box::new(move || copy.run()));
        }
        // SAFETY: the caller promises both sides, until the stream is past the copy.
        let answer = unsafe {
            (table.aclrtMemcpyAsync)(destination, length, source, length, number, stream)
        };
        table.check(format_args!("aclrtMemcpyAsync({bytes} bytes, {from} to {to})"), answer)
    }

    fn stream_create(&self) -> PluginResult<u64> {
        let _current = self.context.enter()?;
        Ok(create_stream(self.table())?.expose_provenance() as u64)
    }

    fn stream_destroy(&self, stream: u64) -> PluginResult<()> {
        let _current = self.context.enter()?;
        let (table, stream) = (self.table(), handle(stream)?);
        let done = table
            // SAFETY: the caller passes a stream of `stream_create`, once.
            .check("aclrtSynchronizeStream", unsafe { (table.aclrtSynchronizeStream)(stream) });
        let ended = self.reports.end(&self.context, stream);
        let destroyed =
            // SAFETY: as above.
            table.check("aclrtDestroyStream", unsafe { (table.aclrtDestroyStream)(stream) });
        done.and(ended).and(destroyed)
    }

    fn stream_query(&self, stream: u64) -> PluginResult<Progress> {
        let _current = self.context.enter()?;
        let mut status = -1;
        // SAFETY: the caller passes a stream; there is room for the number.
        let answer = unsafe { (self.table().aclrtStreamQuery)(handle(stream)?, &raw mut status) };
        self.table().check("aclrtStreamQuery", answer)?;
        let is_done = status == sys::STREAM_STATUS_COMPLETE;
        Ok(if is_done { Progress::Done } else { Progress::Pending })
    }

    fn stream_synchronize(&self, stream: u64, timeout: Duration) -> PluginResult<()> {
        // The runtime's own wait with a deadline is not told to leave the stream as it is.
        synchronize(timeout, || self.stream_query(stream))
    }

    fn host_function(&self, stream: u64, callback: HostCallback) -> PluginResult<()> {
        let _current = self.context.enter()?;
        let function = Box::new(move || callback.call());
        self.reports.enqueue(&self.context, handle(stream)?, function)
    }

    fn event_create(&self) -> PluginResult<u64> {
        let _current = self.context.enter()?;
        Ok(create_event(self.table())?.expose_provenance() as u64)
    }

    fn event_destroy(&self, event: u64) -> PluginResult<()> {
        let _current = self.context.enter()?;
        // SAFETY: the caller passes an event of `event_create`, once.
        let answer = unsafe { (self.table().aclrtDestroyEvent)(handle(event)?) };
        self.table().check("aclrtDestroyEvent", answer)
    }

    fn event_record(&self, event: u64, stream: u64) -> PluginResult<()> {
        let _current = self.context.enter()?;
        // SAFETY: the caller passes an event and a stream of this card.
        let answer = unsafe { (self.table().aclrtRecordEvent)(handle(event)?, handle(stream)?) };
        self.table().check("aclrtRecordEvent", answer)
    }

    fn event_query(&self, event: u64) -> PluginResult<Progress> {
        let _current = self.context.enter()?;
        query_event(self.table(), handle(event)?)
    }

    fn async_error(&self) -> PluginResult<()> {
        // What the card met is the answer to every later query.
        self.stream_query(self.own_stream.0.expose_provenance() as u64).map(drop)
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        let stream = self.own_stream.0.expose_provenance() as u64;
        if let Err(error) = self.stream_destroy(stream) {
            tracing::warn!(%error, "a card's own stream could not be destroyed");
        }
    }
}
