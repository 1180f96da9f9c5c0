//! Traits for devices.

use core::ffi::c_void;
use std::time::Duration;

use super::{PluginError, PluginResult, Progress};
use crate::{DataType, MemoryKind, RedOp, tables};

/// A kind of device: finds cards and opens them.
pub trait DeviceBackend: Send + Sync + 'static {
    /// An opened card.
    type Device: Device;

    /// How many cards there are.
    ///
    /// # Errors
    /// What the driver says.
    fn count(&self) -> PluginResult<u32>;

    /// Facts about card `index`.
    ///
    /// # Errors
    /// What the driver says; `InvalidArgument` for an index out of range.
    fn facts(&self, index: u32) -> PluginResult<DeviceFacts>;

    /// Opens card `index`.
    ///
    /// # Errors
    /// What the driver says.
    fn open(&self, index: u32) -> PluginResult<Self::Device>;
}

/// Facts about a card, and what it can do.
#[derive(Debug, Clone)]
pub struct DeviceFacts {
    /// The maker's name for it.
    pub name: &'static str,
    /// PCI address, empty if there is none.
    pub pci_address: &'static str,
    /// NUMA node if known.
    pub numa_node: Option<u32>,
    /// Memory in bytes, 0 if unknown.
    pub memory_bytes: u64,
    /// What it can do.
    pub capabilities: tables::DeviceCapabilities,
}

/// A callback that a stream makes; see [`Device::host_function`].
#[derive(Clone, Copy)]
pub struct HostCallback {
    function: tables::HostFunction,
    user: *mut c_void,
}

// SAFETY: the runtime promises that the callback may run on any thread.
unsafe impl Send for HostCallback {}

impl std::fmt::Debug for HostCallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostCallback").finish_non_exhaustive()
    }
}

impl HostCallback {
    /// A callback from its two parts.
    ///
    /// # Safety
    /// `function(user)` may be called once, on any thread.
    pub unsafe fn new(function: tables::HostFunction, user: *mut c_void) -> Self {
        Self { function, user }
    }

    /// Calls it. It is short and does not block.
    pub fn call(self) {
        // SAFETY: `new` promises that one call is allowed, and `self` is consumed by it.
        unsafe { (self.function.0)(self.user) }
    }
}

/// An opened card. Streams and events are handles of the device's own choosing.
///
/// Functions of one stream are called by one thread at a time; those of different streams at the
/// same time.
pub trait Device: Send + Sync + 'static {
    /// Allocates memory, aligned to at least 64 bytes.
    ///
    /// # Errors
    /// `OutOfResources`, `NotSupported`.
    fn allocate(&self, bytes: u64, kind: MemoryKind) -> PluginResult<*mut c_void>;

    /// Frees memory.
    ///
    /// # Safety
    /// `pointer` came from `allocate` of this device, is not freed yet, and nothing uses it.
    ///
    /// # Errors
    /// What the driver says.
    unsafe fn free(&self, pointer: *mut c_void) -> PluginResult<()>;

    /// What kind of memory `pointer` is.
    ///
    /// # Errors
    /// `InvalidArgument` if it is none that this device can reach.
    fn memory_kind(&self, pointer: *const c_void) -> PluginResult<MemoryKind>;

    /// Enqueues a copy; on stream 0 it is done before this returns.
    ///
    /// # Safety
    /// Both sides are memory of the given kinds, `bytes` long, and stay so until the stream is past
    /// the copy; they do not overlap.
    ///
    /// # Errors
    /// What the driver says.
    unsafe fn copy(
        &self,
        stream: u64,
        destination: (*mut c_void, MemoryKind),
        source: (*const c_void, MemoryKind),
        bytes: u64,
    ) -> PluginResult<()>;

    /// Makes a stream.
    ///
    /// # Errors
    /// What the driver says.
    fn stream_create(&self) -> PluginResult<u64>;

    /// Destroys a stream after its work is done.
    ///
    /// # Errors
    /// `InvalidArgument` for a handle that is none.
    fn stream_destroy(&self, stream: u64) -> PluginResult<()>;

    /// Whether all work of the stream is done.
    ///
    /// # Errors
    /// What the driver says.
    fn stream_query(&self, stream: u64) -> PluginResult<Progress>;

    /// Waits until all work of the stream is done, at most `timeout`.
    ///
    /// # Errors
    /// `Timeout`; what the driver says.
    fn stream_synchronize(&self, stream: u64, timeout: Duration) -> PluginResult<()>;

    /// Enqueues a callback. An idle stream may call it before this returns.
    ///
    /// # Errors
    /// `NotSupported`.
    fn host_function(&self, stream: u64, callback: HostCallback) -> PluginResult<()> {
        let _ = (stream, callback);
        Err(PluginError::not_supported("this device has no host functions"))
    }

    /// Enqueues a wait until `*word >= value`.
    ///
    /// # Safety
    /// `word` is 8-byte aligned, of memory from `allocate`, and lives until the stream is past the
    /// wait.
    ///
    /// # Errors
    /// `NotSupported`.
    unsafe fn stream_wait_value(
        &self,
        stream: u64,
        word: *const u64,
        value: u64,
    ) -> PluginResult<()> {
        let _ = (stream, word, value);
        Err(PluginError::not_supported("this device cannot wait for a value"))
    }

    /// Stores `value` into `word` with release order and wakes the streams that wait for it.
    ///
    /// # Safety
    /// `word` is as for [`Device::stream_wait_value`].
    ///
    /// # Errors
    /// `NotSupported`.
    unsafe fn write_value(&self, word: *mut u64, value: u64) -> PluginResult<()> {
        let _ = (word, value);
        Err(PluginError::not_supported("this device cannot wait for a value"))
    }

    /// Makes an event.
    ///
    /// # Errors
    /// `NotSupported`.
    fn event_create(&self) -> PluginResult<u64> {
        Err(PluginError::not_supported("this device has no events"))
    }

    /// Destroys an event.
    ///
    /// # Errors
    /// `InvalidArgument` for a handle that is none.
    fn event_destroy(&self, event: u64) -> PluginResult<()> {
        let _ = event;
        Err(PluginError::not_supported("this device has no events"))
    }

    /// Enqueues an event on a stream.
    ///
    /// # Errors
    /// `NotSupported`.
    fn event_record(&self, event: u64, stream: u64) -> PluginResult<()> {
        let _ = (event, stream);
        Err(PluginError::not_supported("this device has no events"))
    }

    /// Whether the stream has passed the event's last record.
    ///
    /// # Errors
    /// `NotSupported`.
    fn event_query(&self, event: u64) -> PluginResult<Progress> {
        let _ = event;
        Err(PluginError::not_supported("this device has no events"))
    }

    /// Enqueues `destination[i] = op(sources[0][i], sources[1][i], …)`, divided by `divisor` if that
    /// is not 0; see [`tables::DeviceTable::reduce`].
    ///
    /// # Safety
    /// All are device memory of `elements` elements of `dtype` that stays so until the stream is
    /// past the reduction; the destination equals a source or overlaps none.
    ///
    /// # Errors
    /// `NotSupported`.
    #[allow(
        clippy::too_many_arguments,
        reason = "one parameter for each part of the kernel's call"
    )]
    unsafe fn reduce(
        &self,
        stream: u64,
        destination: *mut c_void,
        sources: &[*const c_void],
        elements: u64,
        dtype: DataType,
        op: RedOp,
        divisor: u32,
    ) -> PluginResult<()> {
        let _ = (stream, destination, sources, elements, dtype, op, divisor);
        Err(PluginError::not_supported("this device has no reduction kernel"))
    }

    /// Makes bytes that a NIC wrote visible to the device.
    ///
    /// # Errors
    /// What the driver says.
    fn flush(&self, pointer: *mut c_void, bytes: u64) -> PluginResult<()> {
        let _ = (pointer, bytes);
        Ok(())
    }

    /// Gives a form of device memory that a NIC may register.
    ///
    /// # Errors
    /// `NotSupported`.
    fn export_region(
        &self,
        pointer: *mut c_void,
        bytes: u64,
    ) -> PluginResult<tables::MemoryRegion> {
        let _ = (pointer, bytes);
        Err(PluginError::not_supported("this device cannot export its memory to a NIC"))
    }

    /// Takes back what `export_region` gave.
    ///
    /// # Errors
    /// `NotSupported`.
    fn release_region(&self, region: &tables::MemoryRegion) -> PluginResult<()> {
        let _ = region;
        Err(PluginError::not_supported("this device cannot export its memory to a NIC"))
    }

    /// The error that the device met asynchronously, if any.
    ///
    /// # Errors
    /// That error.
    fn async_error(&self) -> PluginResult<()> {
        Ok(())
    }
}
