//! A card as a device: memory, copies, streams, events, host functions.
//!
//! Streams and events are NVIDIA's own handles, so that an application's `cudaStream_t` is a stream
//! here. Every call enters the card's context and leaves the thread as it was. Nothing touches the
//! legacy default stream: it waits for streams of the application, on which there may be work that
//! waits for iccl.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{
    Device, DeviceBackend, DeviceFacts, HostCallback, PluginError, PluginResult, Progress,
};
use iccl_plugin_api::tables::MemoryRegion;
use iccl_vendor_support::{
    Allocation, Allocations, Regions, allocation_bytes, enqueue_callback, handle, synchronize,
};

use crate::context::PrimaryContext;
use crate::cuda::{GpuDirect, STREAM_FLAGS};
use crate::memory::{direction, kind};
use crate::{NvidiaPlugin, sys};

impl DeviceBackend for NvidiaPlugin {
    type Device = Card;

    fn count(&self) -> PluginResult<u32> {
        Ok(self.cuda.cards.len() as u32)
    }

    fn facts(&self, index: u32) -> PluginResult<DeviceFacts> {
        Ok(self.cuda.card(index)?.facts.clone())
    }

    fn open(&self, index: u32) -> PluginResult<Card> {
        let direct = self.cuda.card(index)?.direct;
        Card::open(Arc::new(PrimaryContext::retain(&self.cuda, index as i32)?), direct)
    }
}

/// An opened card.
#[derive(Debug)]
pub struct Card {
    pub(crate) context: Arc<PrimaryContext>,
    pub(crate) direct: GpuDirect,
    /// For copies that are over when they return, and to ask how the card is.
    own_stream: StreamHandle,
    pub(crate) allocations: Allocations,
    pub(crate) regions: Regions,
}

/// A stream of NVIDIA's.
#[derive(Clone, Copy, Debug)]
struct StreamHandle(sys::Stream);

// SAFETY: NVIDIA's handles may be used by any thread.
unsafe impl Send for StreamHandle {}
// SAFETY: as above.
unsafe impl Sync for StreamHandle {}

impl Card {
    fn open(context: Arc<PrimaryContext>, direct: GpuDirect) -> PluginResult<Self> {
        let mut stream = std::ptr::null_mut();
        {
            let _current = context.enter()?;
            // SAFETY: there is room for the handle.
            let answer = unsafe {
                (context.cuda.runtime.cudaStreamCreateWithFlags)(&raw mut stream, STREAM_FLAGS)
            };
            context.cuda.runtime.check("cudaStreamCreateWithFlags", answer)?;
        }
        Ok(Self {
            context,
            direct,
            own_stream: StreamHandle(stream),
            allocations: Allocations::default(),
            regions: Regions::default(),
        })
    }

    pub(crate) fn runtime(&self) -> &sys::Runtime {
        &self.context.cuda.runtime
    }

    pub(crate) fn driver(&self) -> &sys::Driver {
        &self.context.cuda.driver
    }

    /// A stream on which something may be enqueued now. The card's context is current.
    pub(crate) fn open_stream(&self, stream: u64) -> PluginResult<sys::Stream> {
        open_stream(self.runtime(), stream)
    }
}

/// A stream on which something may be enqueued now. Its card's context is current.
pub(crate) fn open_stream(runtime: &sys::Runtime, stream: u64) -> PluginResult<sys::Stream> {
    let handle = handle(stream)?;
    let mut status = sys::CAPTURE_STATUS_NONE;
    // SAFETY: the caller of the table passes a stream; there is room for the number.
    let answer = unsafe { (runtime.cudaStreamIsCapturing)(handle, &raw mut status) };
    runtime.check("cudaStreamIsCapturing", answer)?;
    if status == sys::CAPTURE_STATUS_NONE {
        Ok(handle)
    } else {
        Err(PluginError::not_supported("the stream is being captured into a graph"))
    }
}

/// `Pending` for an answer that says so.
fn progress(
    runtime: &sys::Runtime,
    call: &'static str,
    answer: sys::CudaError,
) -> PluginResult<Progress> {
    if answer == sys::CUDA_ERROR_NOT_READY {
        // It is remembered as a failure of the thread, which it is not.
        // SAFETY: no arguments.
        unsafe { (runtime.cudaGetLastError)() };
        return Ok(Progress::Pending);
    }
    runtime.check(call, answer).map(|()| Progress::Done)
}

impl Device for Card {
    fn allocate(&self, bytes: u64, kind: MemoryKind) -> PluginResult<*mut c_void> {
        let bytes = allocation_bytes(bytes, kind)?;
        let _current = self.context.enter()?;
        let runtime = self.runtime();
        let mut pointer = std::ptr::null_mut();
        match kind {
            MemoryKind::Device => {
                // SAFETY: there is room for the pointer.
                let answer = unsafe { (runtime.cudaMalloc)(&raw mut pointer, bytes) };
                runtime.check(format_args!("cudaMalloc({bytes})"), answer)?;
            }
            MemoryKind::PinnedHost | MemoryKind::Host => {
                let flags = sys::HOST_ALLOC_PORTABLE;
                // SAFETY: there is room for the pointer.
                let answer = unsafe { (runtime.cudaHostAlloc)(&raw mut pointer, bytes, flags) };
                runtime.check(format_args!("cudaHostAlloc({bytes})"), answer)?;
            }
        }
        self.allocations.insert(pointer, Allocation { bytes, kind });
        Ok(pointer)
    }

    unsafe fn free(&self, pointer: *mut c_void) -> PluginResult<()> {
        let _current = self.context.enter()?;
        let runtime = self.runtime();
        let (call, answer) = match self.allocations.remove(pointer)?.kind {
            // SAFETY: it came from the function that belongs to this one, and nothing uses it.
            MemoryKind::Device => ("cudaFree", unsafe { (runtime.cudaFree)(pointer) }),
            MemoryKind::PinnedHost | MemoryKind::Host => {
                // SAFETY: as above.
                ("cudaFreeHost", unsafe { (runtime.cudaFreeHost)(pointer) })
            }
        };
        runtime.check(call, answer)
    }

    #[allow(clippy::not_unsafe_ptr_arg_deref, reason = "the library looks the address up")]
    fn memory_kind(&self, pointer: *const c_void) -> PluginResult<MemoryKind> {
        let _current = self.context.enter()?;
        let mut attributes = sys::PointerAttributes {
            memory_type: -1,
            device: -1,
            device_pointer: std::ptr::null_mut(),
            host_pointer: std::ptr::null_mut(),
            reserved: [0; 13],
        };
        let answer =
            // SAFETY: there is room for what any version writes.
            unsafe { (self.runtime().cudaPointerGetAttributes)(&raw mut attributes, pointer) };
        self.runtime().check("cudaPointerGetAttributes", answer)?;
        kind(&attributes, self.context.ordinal, pointer)
    }

    unsafe fn copy(
        &self,
        stream: u64,
        (destination, to): (*mut c_void, MemoryKind),
        (source, from): (*const c_void, MemoryKind),
        bytes: u64,
    ) -> PluginResult<()> {
        let _current = self.context.enter()?;
        let runtime = self.runtime();
        let stream = match stream {
            0 => None,
            stream => Some(self.open_stream(stream)?),
        };
        let queue = stream.unwrap_or(self.own_stream.0);
        let kind = direction(to, from);
        let answer =
            // SAFETY: the caller promises both sides of these kinds, until the stream is past the copy.
            unsafe { (runtime.cudaMemcpyAsync)(destination, source, bytes as usize, kind, queue) };
        runtime.check(format_args!("cudaMemcpyAsync({bytes} bytes, {from} to {to})"), answer)?;
        if stream.is_none() {
            // `cudaMemcpy` would use the legacy default stream, and does not wait for a copy from
            // device to device.
            // SAFETY: the stream is this device's own.
            let answer = unsafe { (runtime.cudaStreamSynchronize)(queue) };
            runtime.check("cudaStreamSynchronize", answer)?;
        }
        Ok(())
    }

    fn stream_create(&self) -> PluginResult<u64> {
        let _current = self.context.enter()?;
        let mut stream = std::ptr::null_mut();
        let answer =
            // SAFETY: there is room for the handle.
            unsafe { (self.runtime().cudaStreamCreateWithFlags)(&raw mut stream, STREAM_FLAGS) };
        self.runtime().check("cudaStreamCreateWithFlags", answer)?;
        Ok(stream.expose_provenance() as u64)
    }

    fn stream_destroy(&self, stream: u64) -> PluginResult<()> {
        let _current = self.context.enter()?;
        let stream = handle(stream)?;
        // `cudaStreamDestroy` returns at once and lets the work go on.
        // SAFETY: the caller passes a stream of `stream_create`, once.
        let (done, destroyed) = unsafe {
            (
                (self.runtime().cudaStreamSynchronize)(stream),
                (self.runtime().cudaStreamDestroy)(stream),
            )
        };
        self.runtime().check("cudaStreamSynchronize", done)?;
        self.runtime().check("cudaStreamDestroy", destroyed)
    }

    fn stream_query(&self, stream: u64) -> PluginResult<Progress> {
        let _current = self.context.enter()?;
        // SAFETY: the caller passes a stream.
        let answer = unsafe { (self.runtime().cudaStreamQuery)(handle(stream)?) };
        progress(self.runtime(), "cudaStreamQuery", answer)
    }

    fn stream_synchronize(&self, stream: u64, timeout: Duration) -> PluginResult<()> {
        // `cudaStreamSynchronize` knows no deadline.
        synchronize(timeout, || self.stream_query(stream))
    }

    fn host_function(&self, stream: u64, callback: HostCallback) -> PluginResult<()> {
        let _current = self.context.enter()?;
        let stream = self.open_stream(stream)?;
        enqueue_callback(callback, |function, user| {
            // SAFETY: the stream calls the function with its argument, once.
            let answer = unsafe { (self.runtime().cudaLaunchHostFunc)(stream, function, user) };
            self.runtime().check("cudaLaunchHostFunc", answer)
        })
    }

    unsafe fn stream_wait_value(
        &self,
        stream: u64,
        word: *const u64,
        value: u64,
    ) -> PluginResult<()> {
        let Some(wait) = self.driver().cuStreamWaitValue64_v2 else {
            return Err(PluginError::not_supported("the driver has no cuStreamWaitValue64"));
        };
        // The card compares the signed distance, which is the same as long as it is no overflow.
        if value > i64::MAX as u64 {
            return Err(PluginError::invalid(format!("{value} is too far from a fresh word")));
        }
        self.is_word(word)?;
        let _current = self.context.enter()?;
        let stream = self.open_stream(stream)?;
        let address = word.expose_provenance() as u64;
        // SAFETY: pinned memory has the same address for the card; the caller keeps it.
        let answer = unsafe { wait(stream, address, value, sys::STREAM_WAIT_VALUE_GEQ) };
        self.driver().check("cuStreamWaitValue64", answer)
    }

    unsafe fn write_value(&self, word: *mut u64, value: u64) -> PluginResult<()> {
        self.is_word(word)?;
        // The card looks at the word by itself.
        // SAFETY: the word is 8 aligned bytes of pinned memory, and the caller keeps it.
        unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
        Ok(())
    }

    fn event_create(&self) -> PluginResult<u64> {
        let _current = self.context.enter()?;
        let mut event = std::ptr::null_mut();
        let flags = sys::EVENT_DISABLE_TIMING;
        // SAFETY: there is room for the handle.
        let answer = unsafe { (self.runtime().cudaEventCreateWithFlags)(&raw mut event, flags) };
        self.runtime().check("cudaEventCreateWithFlags", answer)?;
        Ok(event.expose_provenance() as u64)
    }

    fn event_destroy(&self, event: u64) -> PluginResult<()> {
        let _current = self.context.enter()?;
        // SAFETY: the caller passes an event of `event_create`, once.
        let answer = unsafe { (self.runtime().cudaEventDestroy)(handle(event)?) };
        self.runtime().check("cudaEventDestroy", answer)
    }

    fn event_record(&self, event: u64, stream: u64) -> PluginResult<()> {
        let _current = self.context.enter()?;
        let stream = self.open_stream(stream)?;
        // SAFETY: the caller passes an event and a stream of this card.
        let answer = unsafe { (self.runtime().cudaEventRecord)(handle(event)?, stream) };
        self.runtime().check("cudaEventRecord", answer)
    }

    fn event_query(&self, event: u64) -> PluginResult<Progress> {
        let _current = self.context.enter()?;
        // SAFETY: the caller passes an event.
        let answer = unsafe { (self.runtime().cudaEventQuery)(handle(event)?) };
        progress(self.runtime(), "cudaEventQuery", answer)
    }

    fn flush(&self, _pointer: *mut c_void, _bytes: u64) -> PluginResult<()> {
        self.flush_writes()
    }

    fn export_region(&self, pointer: *mut c_void, bytes: u64) -> PluginResult<MemoryRegion> {
        self.export(pointer, bytes)
    }

    fn release_region(&self, region: &MemoryRegion) -> PluginResult<()> {
        self.regions.release(region)
    }

    fn async_error(&self) -> PluginResult<()> {
        // What a kernel met is the answer to every later call.
        self.stream_query(self.own_stream.0.expose_provenance() as u64).map(drop)
    }
}

impl Card {
    /// A word that streams wait for and the host writes.
    fn is_word(&self, word: *const u64) -> PluginResult<()> {
        let pinned = self.allocations.holds(word.addr(), size_of::<u64>());
        if word.is_aligned() && pinned == Some(MemoryKind::PinnedHost) {
            return Ok(());
        }
        Err(PluginError::invalid(format!(
            "{word:p} is no aligned word of this card's pinned memory"
        )))
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
