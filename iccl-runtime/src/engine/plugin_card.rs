//! A plugin's device as the engine sees it.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::host::{CallError, OpenDevice};
use iccl_plugin_api::sdk::{DeviceFacts, Progress};
use iccl_plugin_api::tables::{MemoryRegion, stream_to_host};

use super::device::Card;
use crate::plugins::call_error;
use crate::{Error, Result};

/// An opened device of a plugin.
#[derive(Debug)]
pub struct PluginCard {
    open: Arc<OpenDevice>,
    plugin: &'static str,
    name: String,
    stream_to_host: u32,
    region_alignment: Option<u64>,
}

impl PluginCard {
    /// The engine's view of `open`, a device of `plugin`.
    pub fn new(open: &Arc<OpenDevice>, plugin: &'static str, facts: &DeviceFacts) -> Self {
        let name = format!("{plugin}:{} ({})", open.index(), facts.name);
        let stream_to_host = facts.capabilities.stream_to_host;
        let can = &facts.capabilities;
        let region_alignment = (can.region_forms != 0).then(|| u64::from(can.region_alignment));
        Self { open: Arc::clone(open), plugin, name, stream_to_host, region_alignment }
    }

    #[cold]
    fn error(&self, error: CallError) -> Error {
        call_error(self.plugin, error).with("device", &self.name)
    }

    fn named<T>(&self, answer: Result<T, CallError>) -> Result<T> {
        answer.map_err(|error| self.error(error))
    }
}

impl Card for PluginCard {
    fn name(&self) -> &str {
        &self.name
    }

    fn allocate(&self, bytes: u64, kind: MemoryKind) -> Result<*mut u8> {
        self.named(self.open.allocate(bytes, kind)).map(<*mut c_void>::cast)
    }

    unsafe fn free(&self, pointer: *mut u8) -> Result<()> {
        // SAFETY: the caller promises what the plugin asks for.
        self.named(unsafe { self.open.free(pointer.cast()) })
    }

    fn stream_create(&self) -> Result<u64> {
        self.named(self.open.stream_create())
    }

    fn stream_destroy(&self, stream: u64) -> Result<()> {
        self.named(self.open.stream_destroy(stream))
    }

    fn stream_query(&self, stream: u64) -> Result<Progress> {
        self.named(self.open.stream_query(stream))
    }

    fn stream_synchronize(&self, stream: u64, timeout: Duration) -> Result<()> {
        self.named(self.open.stream_synchronize(stream, timeout))
    }

    unsafe fn copy(
        &self,
        stream: u64,
        (destination, to): (*mut u8, MemoryKind),
        (source, from): (*const u8, MemoryKind),
        bytes: u64,
    ) -> Result<()> {
        let (destination, source) = ((destination.cast(), to), (source.cast(), from));
        // SAFETY: the caller promises what the plugin asks for.
        self.named(unsafe { self.open.copy(stream, destination, source, bytes) })
    }

    fn has_events(&self) -> bool {
        self.stream_to_host & stream_to_host::EVENT != 0
    }

    fn event_create(&self) -> Result<u64> {
        self.named(self.open.event_create())
    }

    fn event_destroy(&self, event: u64) -> Result<()> {
        self.named(self.open.event_destroy(event))
    }

    fn event_record(&self, event: u64, stream: u64) -> Result<()> {
        self.named(self.open.event_record(event, stream))
    }

    fn event_query(&self, event: u64) -> Result<Progress> {
        self.named(self.open.event_query(event))
    }

    fn region_alignment(&self) -> Option<u64> {
        self.region_alignment
    }

    fn export_region(&self, pointer: *mut u8, bytes: u64) -> Result<MemoryRegion> {
        self.named(self.open.export_region(pointer.cast(), bytes))
    }

    fn release_region(&self, region: &MemoryRegion) -> Result<()> {
        self.named(self.open.release_region(region))
    }

    fn flush(&self, pointer: *mut u8, bytes: u64) -> Result<()> {
        self.named(self.open.flush(pointer.cast(), bytes))
    }

    fn calls_host(&self) -> bool {
        self.stream_to_host & stream_to_host::HOST_FUNCTION != 0
    }

    unsafe fn host_function(
        &self,
        stream: u64,
        function: unsafe extern "C" fn(user: *mut c_void),
        user: *mut c_void,
    ) -> Result<()> {
        // SAFETY: the caller promises what the plugin asks for.
        self.named(unsafe { self.open.host_function(stream, function, user) })
    }

    fn async_error(&self) -> Result<()> {
        self.named(self.open.async_error())
    }
}
