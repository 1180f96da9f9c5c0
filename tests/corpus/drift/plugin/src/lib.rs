//! A small device plugin, built against the SDK as it is, was or may become.

use std::alloc::Layout;
use std::ffi::c_void;
use std::time::Duration;

use iccl_plugin_api::sdk::*;
use iccl_plugin_api::{MemoryKind, tables::DeviceCapabilities};

struct Drift;

impl Plugin for Drift {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "the corpus";
    const DESCRIPTION: &'static str = "a device for tests";

    fn probe(_: &Settings<'_>) -> PluginResult<Self> {
        Ok(Self)
    }
}

impl DeviceBackend for Drift {
    type Device = Card;

    fn count(&self) -> PluginResult<u32> {
        Ok(1)
    }

    fn facts(&self, _: u32) -> PluginResult<DeviceFacts> {
        // SAFETY: the struct is made of integers, of which zeroes are valid values.
        let capabilities: DeviceCapabilities = unsafe { std::mem::zeroed() };
        Ok(DeviceFacts {
            name: "drifted card",
            pci_address: "",
            numa_node: None,
            memory_bytes: 0,
            capabilities,
        })
    }

    fn open(&self, _: u32) -> PluginResult<Card> {
        Ok(Card)
    }
}

struct Card;

const BLOCK: Layout = match Layout::from_size_align(4096, 64) {
    Ok(layout) => layout,
    Err(_) => panic!("this is a layout"),
};

impl Device for Card {
    fn allocate(&self, bytes: u64, _: MemoryKind) -> PluginResult<*mut c_void> {
        if bytes > BLOCK.size() as u64 {
            return Err(PluginError::invalid("too much"));
        }
        // SAFETY: the layout has a size.
        Ok(unsafe { std::alloc::alloc_zeroed(BLOCK) }.cast())
    }

    unsafe fn free(&self, pointer: *mut c_void) -> PluginResult<()> {
        // SAFETY: the caller promises that it came from `allocate`, which knows one layout.
        unsafe { std::alloc::dealloc(pointer.cast(), BLOCK) };
        Ok(())
    }

    fn memory_kind(&self, _: *const c_void) -> PluginResult<MemoryKind> {
        Ok(MemoryKind::Host)
    }

    unsafe fn copy(
        &self,
        _: u64,
        destination: (*mut c_void, MemoryKind),
        source: (*const c_void, MemoryKind),
        bytes: u64,
    ) -> PluginResult<()> {
        // SAFETY: the caller promises that both sides are valid and do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(
                source.0.cast::<u8>(),
                destination.0.cast::<u8>(),
                bytes as usize,
            );
        }
        Ok(())
    }

    fn stream_create(&self) -> PluginResult<u64> {
        Ok(1)
    }

    fn stream_destroy(&self, _: u64) -> PluginResult<()> {
        Ok(())
    }

    fn stream_query(&self, _: u64) -> PluginResult<Progress> {
        Ok(Progress::Done)
    }

    fn stream_synchronize(&self, _: u64, _: Duration) -> PluginResult<()> {
        Ok(())
    }
}

iccl_plugin_api::export_plugin! {
    plugin: Drift,
    device: Drift,
}
