//! What the plugin says of itself, and its settings.

use std::time::Duration;

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{
    DomainRequest, Plugin, PluginError, PluginResult, Settings, Transport, TransportFacts,
};
use iccl_plugin_api::tables::{SettingSpec, reach};

use crate::domain::ShmDomain;
use crate::segment::RING_BYTES;

const DEFAULT_RING_BYTES: u64 = 1 << 20;

/// The transport.
#[derive(Debug)]
pub struct ShmTransport {
    ring_bytes: u64,
}

impl Plugin for ShmTransport {
    const NAME: &'static str = "transport-shm";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "iccl";
    const DESCRIPTION: &'static str = "shared memory between processes of one host";
    const SETTINGS: &'static [SettingSpec] = &[];

    fn probe(settings: &Settings<'_>) -> PluginResult<Self> {
        let ring_bytes = settings.number("ring_bytes")?.unwrap_or(DEFAULT_RING_BYTES);
        if !RING_BYTES.contains(&ring_bytes) {
            return Err(PluginError::invalid(format!(
                "setting ring_bytes: {ring_bytes} is not between {} and {}",
                RING_BYTES.start(),
                RING_BYTES.end()
            )));
        }
        Ok(Self { ring_bytes: ring_bytes.next_power_of_two() })
    }
}

impl Transport for ShmTransport {
    type Domain = ShmDomain;

    fn facts(&self) -> TransportFacts {
        TransportFacts {
            name: "shm",
            reach: reach::SAME_HOST,
            memory_kinds: MemoryKind::Host.mask() | MemoryKind::PinnedHost.mask(),
            latency: Duration::from_micros(1),
            bytes_per_us: 5_000,
            largest_message: None,
        }
    }

    fn open(&self, request: &DomainRequest<'_>) -> PluginResult<ShmDomain> {
        ShmDomain::open(request, self.ring_bytes)
    }
}
