//! Host memory as a device: the plugin that is always there.
//!
//! Its memory is ordinary memory of the process, its streams are queues in software. What an
//! operation on a stream means is told in `stream.rs`.

mod device;
mod memory;
mod stream;

use iccl_plugin_api::sdk::{Plugin, PluginError, PluginResult, Settings};
use iccl_plugin_api::{DataType, MemoryKind, Status};

pub use device::HostDevice;

/// The plugin.
#[derive(Debug)]
pub struct HostPlugin;

impl Plugin for HostPlugin {
    const NAME: &'static str = "host";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "iccl";
    const DESCRIPTION: &'static str = "host memory as a device";

    fn probe(_: &Settings<'_>) -> PluginResult<Self> {
        Ok(Self)
    }

    fn self_test(&self) -> PluginResult<()> {
        use iccl_plugin_api::sdk::Device;
        let device = HostDevice::new();
        let bytes = 64 * DataType::U8.size_bytes() as u64;
        let pointer = device.allocate(bytes, MemoryKind::Device)?.cast::<u8>();
        let pattern = [0x5a_u8; 64];
        let mut back = [0_u8; 64];
        // SAFETY: both sides are 64 bytes of this process that nobody else uses; stream 0 copies
        // before it returns; the memory came from this device and is freed once.
        unsafe {
            let device_side = (pointer.cast(), MemoryKind::Device);
            device.copy(0, device_side, (pattern.as_ptr().cast(), MemoryKind::Host), bytes)?;
            let source = (pointer.cast_const().cast(), MemoryKind::Device);
            device.copy(0, (back.as_mut_ptr().cast(), MemoryKind::Host), source, bytes)?;
            device.free(pointer.cast())?;
        }
        if back == pattern {
            Ok(())
        } else {
            Err(PluginError::new(Status::Internal, "a copy of 64 bytes came back different"))
        }
    }
}

iccl_plugin_api::export_plugin! {
    plugin: HostPlugin,
    device: HostPlugin,
}
