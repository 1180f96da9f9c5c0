//! The view of a plugin's device family, and an opened device.

use core::ffi::c_void;
use std::time::Duration;

use super::error::must_be_done;
use super::plugin::static_text;
use super::{CallError, call, missing};
use crate::sdk::{DeviceFacts, Progress};
use crate::tables::{
    DeviceCapabilities, DeviceInfo, DeviceTable, ErrorInfo, Growing, HostFunction, MemoryRegion,
};
use crate::{DataType, MemoryKind, RedOp};

/// A plugin's device family. Free to copy.
#[derive(Clone, Copy, Debug)]
pub struct DeviceView(pub(super) &'static DeviceTable);

impl DeviceView {
    /// The mandatory functions that a table lacks.
    pub(super) fn missing(table: &DeviceTable) -> Vec<&'static str> {
        missing!(
            table,
            "device.",
            [
                count,
                info,
                capabilities,
                open,
                close,
                allocate,
                free,
                copy,
                stream_create,
                stream_destroy,
                stream_query,
                stream_synchronize,
            ]
        )
    }

    /// How many devices there are.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn count(self) -> Result<u32, CallError> {
        let mut count = 0;
        let answer = call!(self.0, &mut ErrorInfo::new(), "device.", count(&raw mut count));
        must_be_done("device.count", answer)?;
        Ok(count)
    }

    /// Facts about device `index`, and what it can do.
    ///
    /// # Errors
    /// What the plugin says; `Internal` if the answer makes no sense.
    pub fn facts(self, index: u32) -> Result<DeviceFacts, CallError> {
        const CALL: &str = "device.info";
        let mut info = DeviceInfo::absent();
        let size = size_of::<DeviceInfo>() as u64;
        let answer =
            call!(self.0, &mut ErrorInfo::new(), "device.", info(index, &raw mut info, size));
        must_be_done(CALL, answer)?;

        let mut capabilities = DeviceCapabilities::absent();
        let size = size_of::<DeviceCapabilities>() as u64;
        let answer = call!(
            self.0,
            &mut ErrorInfo::new(),
            "device.",
            capabilities(index, &raw mut capabilities, size)
        );
        must_be_done("device.capabilities", answer)?;

        Ok(DeviceFacts {
            name: static_text(CALL, info.name)?,
            pci_address: static_text(CALL, info.pci_address)?,
            numa_node: u32::try_from(info.numa_node).ok(),
            memory_bytes: info.memory_bytes,
            capabilities,
        })
    }

    /// Opens device `index`.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn open(self, index: u32) -> Result<OpenDevice, CallError> {
        let mut handle = 0;
        let answer = call!(self.0, &mut ErrorInfo::new(), "device.", open(index, &raw mut handle));
        must_be_done("device.open", answer)?;
        Ok(OpenDevice { table: self.0, handle, index, closed: false })
    }
}

/// An opened device. Dropping it closes it.
///
/// Streams and events are handles of the plugin's own, made and destroyed here; all of them and all
/// memory must be gone before the device is. Functions of one stream are called by one thread at a
/// time, those of different streams at the same time.
#[derive(Debug)]
pub struct OpenDevice {
    table: &'static DeviceTable,
    handle: u64,
    index: u32,
    closed: bool,
}

/// Defines methods that make one call and answer `()`.
macro_rules! simple_calls {
    ($($(#[$meta:meta])* $name:ident($($argument:ident: $type:ty),*);)+) => {
        $(
            $(#[$meta])*
            ///
            /// # Errors
            /// What the plugin says; `NotSupported` if it has no such function.
            pub fn $name(&self $(, $argument: $type)*) -> Result<(), CallError> {
                let answer = call!(
                    self.table,
                    &mut ErrorInfo::new(),
                    "device.",
                    $name(self.handle $(, $argument)*)
                );
                must_be_done(concat!("device.", stringify!($name)), answer)
            }
        )+
    };
}

impl OpenDevice {
    /// Which device of its plugin it is.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The plugin's own handle, for the plugin's native collectives.
    pub(super) fn handle(&self) -> u64 {
        self.handle
    }

    /// Closes the device and says what went wrong, which dropping can't.
    ///
    /// # Errors
    /// What the plugin says; the device is gone all the same.
    pub fn close(mut self) -> Result<(), CallError> {
        self.close_once()
    }

    /// Closes the device unless it is closed.
    fn close_once(&mut self) -> Result<(), CallError> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        let answer = call!(self.table, &mut ErrorInfo::new(), "device.", close(self.handle));
        must_be_done("device.close", answer)
    }

    /// Allocates memory, aligned to at least 64 bytes.
    ///
    /// # Errors
    /// What the plugin says; `Internal` if it answers a pointer that is null or misaligned.
    pub fn allocate(&self, bytes: u64, kind: MemoryKind) -> Result<*mut c_void, CallError> {
        const CALL: &str = "device.allocate";
        let mut pointer: *mut c_void = std::ptr::null_mut();
        let answer = call!(
            self.table,
            &mut ErrorInfo::new(),
            "device.",
            allocate(self.handle, bytes, kind.code(), &raw mut pointer)
        );
        must_be_done(CALL, answer)?;
        if bytes > 0 && (pointer.is_null() || !pointer.addr().is_multiple_of(64)) {
            return Err(CallError::rules(CALL, format!("answered the pointer {pointer:p}")));
        }
        Ok(pointer)
    }

    /// Frees memory.
    ///
    /// # Safety
    /// `pointer` came from `allocate` of this device, is not freed yet, and nothing uses it.
    ///
    /// # Errors
    /// What the plugin says.
    pub unsafe fn free(&self, pointer: *mut c_void) -> Result<(), CallError> {
        let answer =
            call!(self.table, &mut ErrorInfo::new(), "device.", free(self.handle, pointer));
        must_be_done("device.free", answer)
    }

    /// What kind of memory `pointer` is. A plugin that can't tell has only device memory.
    ///
    /// # Errors
    /// What the plugin says; `Internal` for a kind that this version does not know.
    #[allow(clippy::not_unsafe_ptr_arg_deref, reason = "the pointer is looked up, never followed")]
    pub fn memory_kind(&self, pointer: *const c_void) -> Result<MemoryKind, CallError> {
        const CALL: &str = "device.memory_kind";
        if self.table.memory_kind.is_none() {
            return Ok(MemoryKind::Device);
        }
        let mut kind = u32::MAX;
        let answer = call!(
            self.table,
            &mut ErrorInfo::new(),
            "device.",
            memory_kind(self.handle, pointer, &raw mut kind)
        );
        must_be_done(CALL, answer)?;
        MemoryKind::from_code(kind)
            .ok_or_else(|| CallError::rules(CALL, format!("unknown memory kind number {kind}")))
    }

    /// Enqueues a copy; on stream 0 it is done before this returns.
    ///
    /// # Safety
    /// Both sides are memory of the given kinds, `bytes` long, and stay so until the stream is past
    /// the copy; they do not overlap.
    ///
    /// # Errors
    /// What the plugin says.
    pub unsafe fn copy(
        &self,
        stream: u64,
        destination: (*mut c_void, MemoryKind),
        source: (*const c_void, MemoryKind),
        bytes: u64,
    ) -> Result<(), CallError> {
        let answer = call!(
            self.table,
            &mut ErrorInfo::new(),
            "device.",
            copy(
                self.handle,
                stream,
                destination.0,
                destination.1.code(),
                source.0,
                source.1.code(),
                bytes,
            )
        );
        must_be_done("device.copy", answer)
    }

    /// Makes a stream.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn stream_create(&self) -> Result<u64, CallError> {
        let mut stream = 0;
        let answer = call!(
            self.table,
            &mut ErrorInfo::new(),
            "device.",
            stream_create(self.handle, &raw mut stream)
        );
        must_be_done("device.stream_create", answer)?;
        Ok(stream)
    }

    simple_calls! {
        /// Destroys a stream after its work is done. May block for that.
        stream_destroy(stream: u64);
        /// Destroys an event.
        event_destroy(event: u64);
        /// Enqueues an event on a stream.
        event_record(event: u64, stream: u64);
    }

    /// Whether all work of the stream is done.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn stream_query(&self, stream: u64) -> Result<Progress, CallError> {
        call!(self.table, &mut ErrorInfo::new(), "device.", stream_query(self.handle, stream))
    }

    /// Waits until all work of the stream is done, at most `timeout`. Blocks.
    ///
    /// # Errors
    /// `Timeout`; what the plugin says.
    pub fn stream_synchronize(&self, stream: u64, timeout: Duration) -> Result<(), CallError> {
        let answer = call!(
            self.table,
            &mut ErrorInfo::new(),
            "device.",
            stream_synchronize(self.handle, stream, microseconds(timeout))
        );
        must_be_done("device.stream_synchronize", answer)
    }

    /// Enqueues a call of `function(user)`. An idle stream may call it before this returns.
    ///
    /// # Safety
    /// `function(user)` may be called once, on any thread, at any time until the stream is past it.
    ///
    /// # Errors
    /// What the plugin says; `NotSupported` if it has no such function. Then no call follows.
    pub unsafe fn host_function(
        &self,
        stream: u64,
        function: unsafe extern "C" fn(user: *mut c_void),
        user: *mut c_void,
    ) -> Result<(), CallError> {
        let answer = call!(
            self.table,
            &mut ErrorInfo::new(),
            "device.",
            host_function(self.handle, stream, Some(HostFunction(function)), user)
        );
        must_be_done("device.host_function", answer)
    }

    /// Enqueues a wait until `*word >= value`.
    ///
    /// # Safety
    /// `word` is 8-byte aligned, of pinned-host memory from `allocate`, and lives until the stream
    /// is past the wait.
    ///
    /// # Errors
    /// What the plugin says; `NotSupported` if it has no such function.
    pub unsafe fn stream_wait_value(
        &self,
        stream: u64,
        word: *const u64,
        value: u64,
    ) -> Result<(), CallError> {
        let answer = call!(
            self.table,
            &mut ErrorInfo::new(),
            "device.",
            stream_wait_value(self.handle, stream, word, value)
        );
        must_be_done("device.stream_wait_value", answer)
    }

    /// Stores `value` into `word` with release order and wakes the streams that wait for it.
    ///
    /// # Safety
    /// `word` is as for [`OpenDevice::stream_wait_value`].
    ///
    /// # Errors
    /// What the plugin says; `NotSupported` if it has no such function.
    pub unsafe fn write_value(&self, word: *mut u64, value: u64) -> Result<(), CallError> {
        let answer = call!(
            self.table,
            &mut ErrorInfo::new(),
            "device.",
            write_value(self.handle, word, value)
        );
        must_be_done("device.write_value", answer)
    }

    /// Makes an event.
    ///
    /// # Errors
    /// What the plugin says; `NotSupported` if it has no such function.
    pub fn event_create(&self) -> Result<u64, CallError> {
        let mut event = 0;
        let answer = call!(
            self.table,
            &mut ErrorInfo::new(),
            "device.",
            event_create(self.handle, &raw mut event)
        );
        must_be_done("device.event_create", answer)?;
        Ok(event)
    }

    /// Whether the stream has passed the event's last record.
    ///
    /// # Errors
    /// What the plugin says; `NotSupported` if it has no such function.
    pub fn event_query(&self, event: u64) -> Result<Progress, CallError> {
        call!(self.table, &mut ErrorInfo::new(), "device.", event_query(self.handle, event))
    }

    /// Makes bytes that a NIC wrote visible to the device. A plugin without the function needs none.
    ///
    /// # Errors
    /// What the plugin says.
    #[allow(clippy::not_unsafe_ptr_arg_deref, reason = "the pointer is looked up, never followed")]
    pub fn flush(&self, pointer: *mut c_void, bytes: u64) -> Result<(), CallError> {
        if self.table.flush.is_none() {
            return Ok(());
        }
        let answer =
            call!(self.table, &mut ErrorInfo::new(), "device.", flush(self.handle, pointer, bytes));
        must_be_done("device.flush", answer)
    }

    /// Gives a form of device memory that a NIC may register.
    ///
    /// # Errors
    /// What the plugin says; `NotSupported` if it has no such function.
    #[allow(clippy::not_unsafe_ptr_arg_deref, reason = "the pointer is looked up, never followed")]
    pub fn export_region(
        &self,
        pointer: *mut c_void,
        bytes: u64,
    ) -> Result<MemoryRegion, CallError> {
        let mut region = MemoryRegion::absent();
        region.descriptor = -1;
        let size = size_of::<MemoryRegion>() as u64;
        let answer = call!(
            self.table,
            &mut ErrorInfo::new(),
            "device.",
            export_region(self.handle, pointer, bytes, &raw mut region, size)
        );
        must_be_done("device.export_region", answer)?;
        Ok(region)
    }

    /// Takes back what `export_region` gave.
    ///
    /// # Errors
    /// What the plugin says; `NotSupported` if it has no such function.
    pub fn release_region(&self, region: &MemoryRegion) -> Result<(), CallError> {
        let answer = call!(
            self.table,
            &mut ErrorInfo::new(),
            "device.",
            release_region(self.handle, region)
        );
        must_be_done("device.release_region", answer)
    }

    /// Enqueues a reduction; see [`DeviceTable::reduce`].
    ///
    /// # Safety
    /// All are device memory of `elements` elements of `dtype` that stays so until the stream is
    /// past the reduction; the destination equals a source or overlaps none.
    ///
    /// # Errors
    /// What the plugin says; `NotSupported` if it has no such function.
    #[allow(
        clippy::too_many_arguments,
        reason = "one parameter for each part of the kernel's call"
    )]
    pub unsafe fn reduce(
        &self,
        stream: u64,
        destination: *mut c_void,
        sources: &[*const c_void],
        elements: u64,
        dtype: DataType,
        op: RedOp,
        divisor: u32,
    ) -> Result<(), CallError> {
        let answer = call!(
            self.table,
            &mut ErrorInfo::new(),
            "device.",
            reduce(
                self.handle,
                stream,
                destination,
                sources.as_ptr(),
                sources.len() as u64,
                elements,
                dtype.code(),
                op.code(),
                divisor,
            )
        );
        must_be_done("device.reduce", answer)
    }

    /// The error that the device met asynchronously, if any. A plugin without the function meets
    /// none.
    ///
    /// # Errors
    /// That error.
    pub fn async_error(&self) -> Result<(), CallError> {
        if self.table.async_error.is_none() {
            return Ok(());
        }
        let answer = call!(self.table, &mut ErrorInfo::new(), "device.", async_error(self.handle));
        must_be_done("device.async_error", answer)
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        if let Err(error) = self.close_once() {
            tracing::warn!(%error, "a device could not be closed");
        }
    }
}

/// A time as the ABI counts it; the longest one stands for "for ever".
pub(super) fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
