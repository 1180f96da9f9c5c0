//! The device that a rank computes on: opened once, shared by buffers, streams and communicators.

use std::any::Any;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::host::{CallError, OpenDevice};
use iccl_plugin_api::sdk::DeviceFacts;
use iccl_plugin_api::tables::{host_to_stream, stream_to_host};
use semver::Version;

use super::buffer::{Buffer, bytes_of_count};
use super::element::Element;
use super::stream::Stream;
use crate::engine::domain::Domain;
use crate::engine::{
    CardPool, CardRegion, Engine, ForkGuard, NativeDevice, PluginCard, is_driving,
};
use crate::lock::lock;
use crate::plugins::{Plugin, call_error};
use crate::{Error, ErrorKind, Result};

/// An opened device. Cheap to clone.
#[derive(Clone)]
pub struct Device {
    pub(super) inner: Arc<DeviceInner>,
}

pub(super) struct DeviceInner {
    pub(super) open: Arc<OpenDevice>,
    /// Pinned host memory for what communicators move; none where the host reads the device's own.
    pub(super) pinned: Option<Arc<CardPool>>,
    /// What all communicators of this process share of its native library.
    pub(super) native: Arc<NativeDevice>,
    plugin: &'static str,
    version: Version,
    facts: DeviceFacts,
    /// Memory that nobody uses and that could not be freed when that became known.
    leftovers: Mutex<Vec<(u64, End)>>,
    /// The engines that may have registered memory of it with a NIC.
    engines: Mutex<Vec<Weak<Engine>>>,
    fork: ForkGuard,
    /// Words that streams waited for and that nobody uses.
    idle_words: Mutex<Vec<Leftover>>,
}

/// What is to be done when nobody uses some memory any more.
pub(super) enum End {
    /// It is given back to the device.
    Free(*mut c_void),
    /// Whoever owns it hears of it.
    LetGo(Box<dyn Any + Send + Sync>),
}

// SAFETY: only an address here; whoever frees it is the last to use it.
unsafe impl Send for End {}

/// The least memory that is given to a NIC to try: a page, as most machines have them.
const LEAST_REGION: u64 = 4096;

struct Leftover(*mut c_void);

// SAFETY: only an address here; whoever frees it is the last to use it.
unsafe impl Send for Leftover {}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({self})")
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{} ({})", self.inner.plugin, self.index(), self.inner.facts.name)
    }
}

impl Device {
    pub(super) fn new(open: OpenDevice, plugin: &Plugin, facts: DeviceFacts) -> Self {
        let (plugin, version) = (plugin.name(), plugin.version().clone());
        let open = Arc::new(open);
        let pinned = (facts.capabilities.host_accessible == 0)
            .then(|| PluginCard::new(&open, plugin, &facts))
            .map(|card| CardPool::new(Arc::new(card), MemoryKind::PinnedHost));
        let native = NativeDevice::of(plugin, open.index());
        Self {
            inner: Arc::new(DeviceInner {
                open,
                pinned,
                native,
                plugin,
                version,
                facts,
                leftovers: Mutex::default(),
                engines: Mutex::default(),
                fork: ForkGuard::new(),
                idle_words: Mutex::default(),
            }),
        }
    }

    /// Refuses a device whose memory nobody can reach.
    pub(super) fn must_be_of_use(&self) -> Result<()> {
        let Some(pinned) = &self.inner.pinned else { return Ok(()) };
        pinned.prepare([(1, 1)]).map_err(|error| {
            let text = format!(
                "{self}: the host cannot read its memory, and it gives no pinned host memory to stage it \
                 through"
            );
            Error::new(error.kind(), text)
                .with_hint("set device.backend = \"host\"")
                .with_source(error)
        })
    }

    /// Registers a piece of the card's memory with a transport, and takes it back: the form that was taken, or
    /// why not. `None` where the host reads the device's memory.
    pub(super) fn try_region(&self, domain: &mut dyn Domain) -> Option<Result<u32>> {
        let card = self.inner.pinned.as_ref()?.card();
        let alignment = card.region_alignment().unwrap_or(1).max(LEAST_REGION);
        // So that there is a piece between two borders, wherever the memory begins.
        let bytes = 2 * alignment;
        let piece = match Buffer::uninitialised(self, bytes) {
            Ok(piece) => piece,
            Err(error) => return Some(Err(error)),
        };
        let begin = piece.address().expose_provenance();
        // SAFETY: the piece lives until the region has ended.
        let region = unsafe { CardRegion::new(&**card, domain, &(begin..begin + bytes as usize)) };
        Some(region.map(|region| {
            let form = region.form();
            region.end(&**card, domain);
            form
        }))
    }

    /// The name of the plugin that drives it.
    pub fn plugin(&self) -> &'static str {
        self.inner.plugin
    }

    /// The version of that plugin.
    pub fn plugin_version(&self) -> &Version {
        &self.inner.version
    }

    /// Which of the plugin's devices it is.
    pub fn index(&self) -> u32 {
        self.inner.open.index()
    }

    /// What the plugin says of it.
    pub fn facts(&self) -> &DeviceFacts {
        &self.inner.facts
    }

    /// Memory for `count` elements, set to zero.
    ///
    /// # Errors
    /// `InvalidArgument` for more than memory can have; `OutOfResources`; what the driver says.
    pub fn allocate<T: Element>(&self, count: usize) -> Result<Buffer> {
        Buffer::zeroed(self, bytes_of_count::<T>(count)?)
    }

    /// Memory that holds `elements`.
    ///
    /// # Errors
    /// `OutOfResources`; what the driver says.
    pub fn buffer_from<T: Element>(&self, elements: &[T]) -> Result<Buffer> {
        let buffer = Buffer::uninitialised(self, size_of_val(elements) as u64)?;
        buffer.write(0, elements)?;
        Ok(buffer)
    }

    /// A buffer over memory of this device that the application owns. `keep` is held as long as the
    /// buffer, a clone or slice of it, or an operation on it lives: give what owns the memory.
    ///
    /// # Safety
    /// `pointer` is memory of this device, `bytes` long, that stays valid as long as `keep` lives.
    pub unsafe fn register(
        &self,
        pointer: *mut c_void,
        bytes: u64,
        keep: impl Any + Send + Sync,
    ) -> Buffer {
        // SAFETY: the caller promises it.
        unsafe { Buffer::registered(self, pointer, bytes, Box::new(keep)) }
    }

    /// A new stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self)
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        self.free_leftovers();
    }
}

impl DeviceInner {
    pub(super) fn error(&self, error: CallError) -> Error {
        call_error(self.plugin, error)
    }

    pub(super) fn allocate(&self, bytes: u64, kind: MemoryKind) -> Result<*mut c_void> {
        self.free_leftovers();
        self.open.allocate(bytes, kind).map_err(|error| self.error(error))
    }

    /// So many bytes, and as many more as it takes for a NIC to be given all of them.
    pub(super) fn whole_regions(&self, bytes: u64) -> u64 {
        let alignment = self.pinned.as_ref().and_then(|pinned| pinned.card().region_alignment());
        bytes.checked_next_multiple_of(alignment.unwrap_or(1).max(1)).unwrap_or(bytes)
    }

    /// A word in pinned memory for a stream to wait for, with any content.
    pub(super) fn take_word(&self) -> Result<*mut u64> {
        let idle = lock(&self.idle_words).pop();
        match idle {
            Some(Leftover(pointer)) => Ok(pointer.cast()),
            None => Ok(self.allocate(size_of::<u64>() as u64, MemoryKind::PinnedHost)?.cast()),
        }
    }

    /// Keeps a word for the next stream. It is not freed, since to free pinned memory may wait for all cards
    /// of the process, and their streams for whoever ends this one.
    pub(super) fn give_word_back(&self, pointer: *mut u64) {
        lock(&self.idle_words).push(Leftover(pointer.cast()));
    }

    /// This engine may register memory of the device with a NIC, and is told before it is freed.
    pub(super) fn add_engine(&self, engine: &Arc<Engine>) {
        let mut engines = lock(&self.engines);
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(Arc::downgrade(engine));
    }

    /// Ends memory that nobody uses; later, if this thread drives an engine and the card may wait for its
    /// streams before it frees anything.
    ///
    /// # Safety
    /// What is freed came from `allocate`, is freed once, and nothing uses it.
    pub(super) unsafe fn end_memory(&self, number: u64, end: End) {
        if self.pinned.is_some() && is_driving() {
            lock(&self.leftovers).push((number, end));
            return;
        }
        self.free_leftovers();
        // SAFETY: the caller promises it.
        unsafe { self.end_now(number, end) };
    }

    fn free_leftovers(&self) {
        if self.pinned.is_none() || is_driving() || self.fork.check().is_err() {
            return;
        }
        for (number, end) in std::mem::take(&mut *lock(&self.leftovers)) {
            // SAFETY: `end_memory` was called for it, and it is forgotten now.
            unsafe { self.end_now(number, end) };
        }
    }

    /// # Safety
    /// As [`DeviceInner::end_memory`].
    unsafe fn end_now(&self, number: u64, end: End) {
        let engines: Vec<_> = lock(&self.engines).iter().filter_map(Weak::upgrade).collect();
        let is_forgotten = engines.iter().all(|engine| engine.forget(number));
        if !is_forgotten {
            let (plugin, index) = (self.plugin, self.open.index());
            tracing::error!(plugin, index, "a NIC may still know memory: it is never freed");
            return std::mem::forget(end);
        }
        match end {
            // SAFETY: the caller promises it, and no NIC knows it.
            End::Free(pointer) => unsafe { self.free_now(pointer) },
            End::LetGo(keep) => drop(keep),
        }
    }

    /// # Safety
    /// As [`DeviceInner::end_memory`].
    unsafe fn free_now(&self, pointer: *mut c_void) {
        // SAFETY: the caller promises it.
        if let Err(error) = unsafe { self.open.free(pointer) } {
            let index = self.open.index();
            tracing::warn!(%error, plugin = self.plugin, index, "memory could not be freed");
        }
    }

    /// Refuses memory that is not the device's, where the device can tell and iccl does not reach other
    /// memory.
    pub(super) fn must_hold(&self, what: &str, pointer: *const c_void) -> Result<()> {
        if self.pinned.is_none() {
            return Ok(());
        }
        let kind = self.open.memory_kind(pointer).map_err(|error| self.error(error))?;
        if kind == MemoryKind::Device {
            return Ok(());
        }
        let (plugin, index) = (self.plugin, self.open.index());
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("the {what} is {kind} memory, not memory of {plugin}:{index}"),
        ))
    }

    /// Whether a stream can call the host when it reaches an operation; else enqueueing waits for
    /// the stream.
    pub(super) fn calls_host(&self) -> bool {
        self.facts.capabilities.stream_to_host & stream_to_host::HOST_FUNCTION != 0
    }

    /// Whether a stream can wait for the host; else enqueueing waits for the operation.
    pub(super) fn waits_for_host(&self) -> bool {
        self.facts.capabilities.host_to_stream & host_to_stream::WAIT_VALUE != 0
    }

    /// Copies now.
    ///
    /// # Safety
    /// Both sides are valid for `bytes`, of the given kinds, and do not overlap.
    pub(super) unsafe fn copy_now(
        &self,
        destination: (*mut c_void, MemoryKind),
        source: (*const c_void, MemoryKind),
        bytes: u64,
    ) -> Result<()> {
        // SAFETY: the caller promises it; on stream 0 the copy is done when this returns.
        unsafe { self.open.copy(0, destination, source, bytes) }.map_err(|error| self.error(error))
    }

    pub(super) fn synchronize(&self, stream: u64, timeout: Duration) -> Result<()> {
        self.open.stream_synchronize(stream, timeout).map_err(|error| {
            if error.status == iccl_plugin_api::Status::Timeout {
                return Error::new(
                    ErrorKind::Timeout,
                    format!("the stream's work is not done after {timeout:?}"),
                );
            }
            self.error(error)
        })
    }
}
