//! A Kunlun card as iccl's device.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{
    Device, DeviceBackend, DeviceFacts, HostCallback, PluginResult, Progress,
};
use iccl_plugin_api::tables::MemoryRegion;
use iccl_vendor_support::{Allocation, Allocations, Direction, allocation_bytes, synchronize};

use crate::KunlunPlugin;
use crate::face::{Chip, Copy, Handle};
use crate::region::{Alias, Mapping};

impl DeviceBackend for KunlunPlugin {
    type Device = Card;

    fn count(&self) -> PluginResult<u32> {
        Ok(self.cards.facts.len() as u32)
    }

    fn facts(&self, index: u32) -> PluginResult<DeviceFacts> {
        let mut facts = self.cards.facts(index)?.clone();
        if self.mapping.is_some() {
            Mapping::add_to(&mut facts.capabilities);
        }
        Ok(facts)
    }

    fn open(&self, index: u32) -> PluginResult<Card> {
        self.cards.facts(index)?;
        let chip = Chip { face: Arc::clone(&self.cards.face), ordinal: index as i32 };
        Card::open(chip, self.mapping)
    }
}

/// An opened card.
#[derive(Debug)]
pub struct Card {
    pub(crate) chip: Chip,
    /// For copies that are over when they return, and to ask how the card is. Nothing stays on it.
    own_stream: Handle,
    pub(crate) allocations: Allocations,
    /// How memory gets an address of the host's, if it does.
    pub(crate) mapping: Option<Mapping>,
    /// What was given out, by the mark of its region.
    pub(crate) aliases: Mutex<HashMap<u64, Alias>>,
    pub(crate) last_region: AtomicU64,
}

impl Card {
    fn open(chip: Chip, mapping: Option<Mapping>) -> PluginResult<Self> {
        let own_stream = {
            let _current = chip.enter()?;
            Handle(chip.face.stream_create()?)
        };
        Ok(Self {
            chip,
            own_stream,
            allocations: Allocations::default(),
            mapping,
            aliases: Mutex::default(),
            last_region: AtomicU64::new(0),
        })
    }
}

impl Device for Card {
    fn allocate(&self, bytes: u64, kind: MemoryKind) -> PluginResult<*mut c_void> {
        let bytes = allocation_bytes(bytes, kind)?;
        let _current = self.chip.enter()?;
        let pointer = self.chip.face.allocate(bytes, kind)?;
        self.allocations.insert(pointer, Allocation { bytes, kind });
        Ok(pointer)
    }

    unsafe fn free(&self, pointer: *mut c_void) -> PluginResult<()> {
        self.is_not_exported(pointer)?;
        let _current = self.chip.enter()?;
        let kind = self.allocations.remove(pointer)?.kind;
        // SAFETY: it came from `allocate` with this kind; the caller promises that nothing uses it.
        unsafe { self.chip.face.free(pointer, kind) }
    }

    #[allow(clippy::not_unsafe_ptr_arg_deref, reason = "the address is only looked up")]
    fn memory_kind(&self, pointer: *const c_void) -> PluginResult<MemoryKind> {
        if let Some(kind) = self.allocations.holds(pointer.addr(), 1) {
            return Ok(kind);
        }
        let _current = self.chip.enter()?;
        self.chip.face.foreign_kind(self.chip.ordinal, pointer)
    }

    unsafe fn copy(
        &self,
        stream: u64,
        (to, to_kind): (*mut c_void, MemoryKind),
        (from, from_kind): (*const c_void, MemoryKind),
        bytes: u64,
    ) -> PluginResult<()> {
        let direction = Direction::new(to_kind, from_kind);
        let copy = Copy { to, from, bytes: bytes as usize, direction };
        let _current = self.chip.enter()?;
        if stream == 0 {
            // SAFETY: the caller promises both sides.
            return unsafe { self.chip.copy_now(self.own_stream, copy) };
        }
        // SAFETY: the caller promises both sides until the stream is past the copy.
        unsafe { self.chip.face.copy(Handle::of(stream)?.0, copy) }
    }

    fn stream_create(&self) -> PluginResult<u64> {
        let _current = self.chip.enter()?;
        Ok(Handle(self.chip.face.stream_create()?).number())
    }

    fn stream_destroy(&self, stream: u64) -> PluginResult<()> {
        let _current = self.chip.enter()?;
        self.chip.face.stream_destroy(Handle::of(stream)?.0)
    }

    fn stream_query(&self, stream: u64) -> PluginResult<Progress> {
        let _current = self.chip.enter()?;
        self.chip.face.stream_query(self.chip.ordinal, Handle::of(stream)?.0)
    }

    fn stream_synchronize(&self, stream: u64, timeout: Duration) -> PluginResult<()> {
        // The libraries' own waits know no deadline.
        synchronize(timeout, || self.stream_query(stream))
    }

    fn host_function(&self, stream: u64, callback: HostCallback) -> PluginResult<()> {
        let _current = self.chip.enter()?;
        self.chip.face.host_function(Handle::of(stream)?.0, callback)
    }

    fn event_create(&self) -> PluginResult<u64> {
        let _current = self.chip.enter()?;
        Ok(Handle(self.chip.face.event_create()?).number())
    }

    fn event_destroy(&self, event: u64) -> PluginResult<()> {
        let _current = self.chip.enter()?;
        self.chip.face.event_destroy(Handle::of(event)?.0)
    }

    fn event_record(&self, event: u64, stream: u64) -> PluginResult<()> {
        let _current = self.chip.enter()?;
        self.chip.face.event_record(Handle::of(event)?.0, Handle::of(stream)?.0)
    }

    fn event_query(&self, event: u64) -> PluginResult<Progress> {
        let _current = self.chip.enter()?;
        self.chip.face.event_query(self.chip.ordinal, Handle::of(event)?.0)
    }

    fn export_region(&self, pointer: *mut c_void, bytes: u64) -> PluginResult<MemoryRegion> {
        self.export(pointer, bytes)
    }

    fn release_region(&self, region: &MemoryRegion) -> PluginResult<()> {
        self.release(region)
    }

    fn async_error(&self) -> PluginResult<()> {
        let _current = self.chip.enter()?;
        self.chip.face.health(self.own_stream.0)
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        if let Err(error) = self.stream_destroy(self.own_stream.number()) {
            tracing::warn!(%error, "a card's own stream could not be destroyed");
        }
    }
}
