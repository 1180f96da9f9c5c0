//! A card as a device: memory, copies, queues as streams, notifiers as events, host functions.
//!
//! Streams and events are Cambricon's own handles, so that an application's `cnrtQueue_t` is a stream
//! here. Every call chooses the card and leaves the thread as it was. Nothing touches the default queue.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{
    Device, DeviceBackend, DeviceFacts, HostCallback, PluginResult, Progress,
};
use iccl_plugin_api::tables::MemoryRegion;
use iccl_vendor_support::{
    Allocation, Allocations, Regions, allocation_bytes, enqueue_callback, handle, synchronize,
};

use crate::context::Current;
use crate::memory::{direction, kind};
use crate::neuware::Neuware;
use crate::open_cards::OpenCard;
use crate::{CambriconPlugin, sys};

impl DeviceBackend for CambriconPlugin {
    type Device = Card;

    fn count(&self) -> PluginResult<u32> {
        Ok(self.neuware.cards.len() as u32)
    }

    fn facts(&self, index: u32) -> PluginResult<DeviceFacts> {
        Ok(self.neuware.card(index)?.facts.clone())
    }

    fn open(&self, index: u32) -> PluginResult<Card> {
        let region_form = self.neuware.card(index)?.region_form;
        let current = Current { neuware: Arc::clone(&self.neuware), ordinal: index as i32 };
        Card::open(current, region_form, self.open_cards.open(index as i32))
    }
}

/// An opened card.
#[derive(Debug)]
pub struct Card {
    pub(crate) current: Arc<Current>,
    pub(crate) region_form: u32,
    /// For copies that are over when they return, and to ask how the card is.
    own_queue: QueueHandle,
    pub(crate) allocations: Allocations,
    pub(crate) regions: Regions,
    /// Whoever joins a communicator in this process has to know which cards may join too.
    _open: OpenCard,
}

/// A queue of Cambricon's.
#[derive(Clone, Copy, Debug)]
struct QueueHandle(sys::Queue);

// SAFETY: Cambricon's handles may be used by any thread whose card is theirs.
unsafe impl Send for QueueHandle {}
// SAFETY: as above.
unsafe impl Sync for QueueHandle {}

impl Card {
    fn open(current: Current, region_form: u32, open: OpenCard) -> PluginResult<Self> {
        let queue = create_queue(&current)?;
        Ok(Self {
            current: Arc::new(current),
            region_form,
            own_queue: QueueHandle(queue),
            allocations: Allocations::default(),
            regions: Regions::default(),
            _open: open,
        })
    }

    pub(crate) fn neuware(&self) -> &Neuware {
        &self.current.neuware
    }

    pub(crate) fn runtime(&self) -> &sys::Runtime {
        &self.current.neuware.runtime
    }
}

fn create_queue(current: &Current) -> PluginResult<sys::Queue> {
    let _current = current.enter()?;
    let runtime = &current.neuware.runtime;
    let mut queue = std::ptr::null_mut();
    // SAFETY: there is room for the handle.
    let answer = unsafe { (runtime.cnrtQueueCreate)(&raw mut queue) };
    runtime.check("cnrtQueueCreate", answer)?;
    Ok(queue)
}

impl Device for Card {
    fn allocate(&self, bytes: u64, kind: MemoryKind) -> PluginResult<*mut c_void> {
        let bytes = allocation_bytes(bytes, kind)?;
        let _current = self.current.enter()?;
        let runtime = self.runtime();
        let mut pointer = std::ptr::null_mut();
        match kind {
            MemoryKind::Device => {
                // SAFETY: there is room for the pointer.
                let answer = unsafe { (runtime.cnrtMalloc)(&raw mut pointer, bytes) };
                runtime.check(format_args!("cnrtMalloc({bytes})"), answer)?;
            }
            MemoryKind::PinnedHost | MemoryKind::Host => {
                // SAFETY: there is room for the pointer.
                let answer = unsafe { (runtime.cnrtHostMalloc)(&raw mut pointer, bytes) };
                runtime.check(format_args!("cnrtHostMalloc({bytes})"), answer)?;
            }
        }
        self.allocations.insert(pointer, Allocation { bytes, kind });
        Ok(pointer)
    }

    unsafe fn free(&self, pointer: *mut c_void) -> PluginResult<()> {
        let _current = self.current.enter()?;
        let runtime = self.runtime();
        let (call, answer) = match self.allocations.remove(pointer)?.kind {
            // SAFETY: it came from the function that belongs to this one, and nothing uses it.
            MemoryKind::Device => ("cnrtFree", unsafe { (runtime.cnrtFree)(pointer) }),
            MemoryKind::PinnedHost | MemoryKind::Host => {
                // SAFETY: as above.
                ("cnrtFreeHost", unsafe { (runtime.cnrtFreeHost)(pointer) })
            }
        };
        runtime.check(call, answer)
    }

    #[allow(clippy::not_unsafe_ptr_arg_deref, reason = "the library looks the address up")]
    fn memory_kind(&self, pointer: *const c_void) -> PluginResult<MemoryKind> {
        let _current = self.current.enter()?;
        let mut attributes = sys::PointerAttributes {
            memory_type: -1,
            device: -1,
            size: 0,
            device_pointer: std::ptr::null_mut(),
            host_pointer: std::ptr::null_mut(),
            newer: [0; 28],
        };
        let answer =
            // SAFETY: there is room for what any version writes.
            unsafe { (self.runtime().cnrtPointerGetAttributes)(&raw mut attributes, pointer) };
        self.runtime().check("cnrtPointerGetAttributes", answer)?;
        kind(&attributes, self.current.ordinal, pointer)
    }

    unsafe fn copy(
        &self,
        stream: u64,
        (destination, to): (*mut c_void, MemoryKind),
        (source, from): (*const c_void, MemoryKind),
        bytes: u64,
    ) -> PluginResult<()> {
        let _current = self.current.enter()?;
        let runtime = self.runtime();
        let is_waited_for = stream == 0;
        let queue = if is_waited_for { self.own_queue.0 } else { handle(stream)? };
        let (name, copy) = self.neuware().copy_async;
        let direction = direction(to, from);
        let answer =
            // SAFETY: the caller promises both sides of these kinds, until the queue is past the copy. The
            // source is only read, though the header does not say so.
            unsafe { copy(destination, source.cast_mut(), bytes as usize, queue, direction) };
        runtime.check(format_args!("{name}({bytes} bytes, {from} to {to})"), answer)?;
        if is_waited_for {
            // SAFETY: the queue is this device's own.
            let answer = unsafe { (runtime.cnrtQueueSync)(queue) };
            runtime.check("cnrtQueueSync", answer)?;
        }
        Ok(())
    }

    fn stream_create(&self) -> PluginResult<u64> {
        Ok(create_queue(&self.current)?.expose_provenance() as u64)
    }

    fn stream_destroy(&self, stream: u64) -> PluginResult<()> {
        let _current = self.current.enter()?;
        let queue = handle(stream)?;
        // `cnrtQueueDestroy` returns at once and lets the work go on.
        // SAFETY: the caller passes a stream of `stream_create`, once.
        let (done, destroyed) = unsafe {
            ((self.runtime().cnrtQueueSync)(queue), (self.runtime().cnrtQueueDestroy)(queue))
        };
        self.runtime().check("cnrtQueueSync", done)?;
        self.runtime().check("cnrtQueueDestroy", destroyed)
    }

    fn stream_query(&self, stream: u64) -> PluginResult<Progress> {
        let _current = self.current.enter()?;
        // SAFETY: the caller passes a stream.
        let answer = unsafe { (self.runtime().cnrtQueueQuery)(handle(stream)?) };
        self.runtime().progress("cnrtQueueQuery", answer)
    }

    fn stream_synchronize(&self, stream: u64, timeout: Duration) -> PluginResult<()> {
        // `cnrtQueueSync` knows no deadline.
        synchronize(timeout, || self.stream_query(stream))
    }

    fn host_function(&self, stream: u64, callback: HostCallback) -> PluginResult<()> {
        let _current = self.current.enter()?;
        let queue = handle(stream)?;
        enqueue_callback(callback, |function, user| {
            // SAFETY: the queue calls the function with its argument, once.
            let answer = unsafe { (self.runtime().cnrtInvokeHostFunc)(queue, function, user) };
            self.runtime().check("cnrtInvokeHostFunc", answer)
        })
    }

    fn event_create(&self) -> PluginResult<u64> {
        let _current = self.current.enter()?;
        let mut notifier = std::ptr::null_mut();
        let flags = sys::NOTIFIER_DISABLE_TIMING_ALL;
        let answer =
            // SAFETY: there is room for the handle.
            unsafe { (self.runtime().cnrtNotifierCreateWithFlags)(&raw mut notifier, flags) };
        self.runtime().check("cnrtNotifierCreateWithFlags", answer)?;
        Ok(notifier.expose_provenance() as u64)
    }

    fn event_destroy(&self, event: u64) -> PluginResult<()> {
        let _current = self.current.enter()?;
        // SAFETY: the caller passes an event of `event_create`, once.
        let answer = unsafe { (self.runtime().cnrtNotifierDestroy)(handle(event)?) };
        self.runtime().check("cnrtNotifierDestroy", answer)
    }

    fn event_record(&self, event: u64, stream: u64) -> PluginResult<()> {
        let _current = self.current.enter()?;
        let (notifier, queue) = (handle(event)?, handle(stream)?);
        // SAFETY: the caller passes an event and a stream of this card.
        let answer = unsafe { (self.runtime().cnrtPlaceNotifier)(notifier, queue) };
        self.runtime().check("cnrtPlaceNotifier", answer)
    }

    fn event_query(&self, event: u64) -> PluginResult<Progress> {
        let _current = self.current.enter()?;
        // SAFETY: the caller passes an event.
        let answer = unsafe { (self.runtime().cnrtQueryNotifier)(handle(event)?) };
        self.runtime().progress("cnrtQueryNotifier", answer)
    }

    fn export_region(&self, pointer: *mut c_void, bytes: u64) -> PluginResult<MemoryRegion> {
        self.export(pointer, bytes)
    }

    fn release_region(&self, region: &MemoryRegion) -> PluginResult<()> {
        self.regions.release(region)
    }

    fn async_error(&self) -> PluginResult<()> {
        // What a kernel met is the answer to later calls.
        self.stream_query(self.own_queue.0.expose_provenance() as u64).map(drop)
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        let queue = self.own_queue.0.expose_provenance() as u64;
        if let Err(error) = self.stream_destroy(queue) {
            tracing::warn!(%error, "a card's own queue could not be destroyed");
        }
    }
}
