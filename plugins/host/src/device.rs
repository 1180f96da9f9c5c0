//! The device: one per process, whose memory is the process's own.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use iccl_plugin_api::sdk::{
    Device, DeviceBackend, DeviceFacts, HostCallback, PluginError, PluginResult, Progress,
};
use iccl_plugin_api::{MemoryKind, tables};

use crate::HostPlugin;
use crate::memory::Allocations;
use crate::stream::{Copy, Event, Item, Stream, Word, Words};

impl DeviceBackend for HostPlugin {
    type Device = HostDevice;

    fn count(&self) -> PluginResult<u32> {
        Ok(1)
    }

    fn facts(&self, index: u32) -> PluginResult<DeviceFacts> {
        if index != 0 {
            return Err(PluginError::invalid(format!("there is no host device {index}, only 0")));
        }
        Ok(DeviceFacts {
            name: "host memory",
            pci_address: "",
            numa_node: None,
            memory_bytes: memory_bytes(),
            capabilities: tables::DeviceCapabilities {
                stream_to_host: tables::stream_to_host::EVENT
                    | tables::stream_to_host::HOST_FUNCTION,
                host_to_stream: tables::host_to_stream::WAIT_VALUE,
                host_accessible: 1,
                has_reduce: 0,
                reduce_dtypes: 0,
                reduce_ops: 0,
                region_forms: tables::region_form::ADDRESS,
                region_alignment: 1,
            },
        })
    }

    fn open(&self, index: u32) -> PluginResult<HostDevice> {
        self.facts(index)?;
        Ok(HostDevice::new())
    }
}

/// Memory of this machine in bytes, 0 if the kernel does not tell.
fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes =
        total.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

/// Host memory, opened as a device.
#[derive(Debug, Default)]
pub struct HostDevice {
    allocations: Allocations,
    words: Arc<Words>,
    streams: RwLock<HashMap<u64, Arc<Stream>>>,
    events: RwLock<HashMap<u64, Arc<Event>>>,
    /// Handles of streams and events; 0 is never one.
    last_handle: AtomicU64,
}

impl HostDevice {
    /// A device without streams and memory.
    pub fn new() -> Self {
        Self::default()
    }

    fn next_handle(&self) -> u64 {
        self.last_handle.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn stream(&self, stream: u64) -> PluginResult<Arc<Stream>> {
        find(&self.streams, stream, "stream")
    }

    fn event(&self, event: u64) -> PluginResult<Arc<Event>> {
        find(&self.events, event, "event")
    }
}

fn find<T>(table: &RwLock<HashMap<u64, Arc<T>>>, handle: u64, what: &str) -> PluginResult<Arc<T>> {
    let table = table.read().unwrap_or_else(PoisonError::into_inner);
    table
        .get(&handle)
        .cloned()
        .ok_or_else(|| PluginError::invalid(format!("there is no {what} {handle}")))
}

fn remove<T>(
    table: &RwLock<HashMap<u64, Arc<T>>>,
    handle: u64,
    what: &str,
) -> PluginResult<Arc<T>> {
    let mut table = table.write().unwrap_or_else(PoisonError::into_inner);
    table
        .remove(&handle)
        .ok_or_else(|| PluginError::invalid(format!("there is no {what} {handle}")))
}

fn insert<T>(table: &RwLock<HashMap<u64, Arc<T>>>, handle: u64, value: T) -> u64 {
    let mut table = table.write().unwrap_or_else(PoisonError::into_inner);
    table.insert(handle, Arc::new(value));
    handle
}

impl Device for HostDevice {
    fn allocate(&self, bytes: u64, _kind: MemoryKind) -> PluginResult<*mut c_void> {
        self.allocations.allocate(bytes)
    }

    unsafe fn free(&self, pointer: *mut c_void) -> PluginResult<()> {
        // SAFETY: the caller promises that nothing uses the memory.
        unsafe { self.allocations.free(pointer) }
    }

    fn memory_kind(&self, _pointer: *const c_void) -> PluginResult<MemoryKind> {
        Ok(MemoryKind::Host)
    }

    unsafe fn copy(
        &self,
        stream: u64,
        (destination, _): (*mut c_void, MemoryKind),
        (source, _): (*const c_void, MemoryKind),
        bytes: u64,
    ) -> PluginResult<()> {
        let copy = Copy { destination: destination.cast(), source: source.cast(), bytes };
        if stream == 0 {
            // SAFETY: the caller promises that both sides are valid and do not overlap.
            unsafe { copy.run() };
            return Ok(());
        }
        self.stream(stream)?.enqueue(Item::Copy(copy))
    }

    fn stream_create(&self) -> PluginResult<u64> {
        let stream = Stream::new(Arc::clone(&self.words));
        Ok(insert(&self.streams, self.next_handle(), stream))
    }

    fn stream_destroy(&self, stream: u64) -> PluginResult<()> {
        remove(&self.streams, stream, "stream")?.destroy()
    }

    fn stream_query(&self, stream: u64) -> PluginResult<Progress> {
        Ok(self.stream(stream)?.query())
    }

    fn stream_synchronize(&self, stream: u64, timeout: Duration) -> PluginResult<()> {
        self.stream(stream)?.synchronize(timeout)
    }

    fn host_function(&self, stream: u64, callback: HostCallback) -> PluginResult<()> {
        self.stream(stream)?.enqueue(Item::Callback(callback))
    }

    unsafe fn stream_wait_value(
        &self,
        stream: u64,
        word: *const u64,
        value: u64,
    ) -> PluginResult<()> {
        // SAFETY: the caller promises that the word is aligned and lives until the wait is over.
        let word = unsafe { Word::new(word) };
        self.stream(stream)?.enqueue(Item::Wait(word, value))
    }

    unsafe fn write_value(&self, word: *mut u64, value: u64) -> PluginResult<()> {
        // SAFETY: the caller promises that the word is aligned and lives.
        self.words.write(unsafe { AtomicU64::from_ptr(word) }, value);
        Ok(())
    }

    fn event_create(&self) -> PluginResult<u64> {
        Ok(insert(&self.events, self.next_handle(), Event::default()))
    }

    fn event_destroy(&self, event: u64) -> PluginResult<()> {
        remove(&self.events, event, "event").map(drop)
    }

    fn event_record(&self, event: u64, stream: u64) -> PluginResult<()> {
        let event = self.event(event)?;
        self.stream(stream)?.record(event)
    }

    fn event_query(&self, event: u64) -> PluginResult<Progress> {
        Ok(self.event(event)?.query())
    }
}
