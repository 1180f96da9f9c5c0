//! What the plugin says of itself, and its settings.

use std::time::Duration;

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{
    DomainRequest, Plugin, PluginError, PluginResult, Settings, Transport, TransportFacts,
};
use iccl_plugin_api::tables::{SettingSpec, reach};

use crate::domain::ShmDomain;
use crate::segment::RING_BYTES;

/// Both directions of it fit the second-level cache of a server's core. Also in `SETTINGS`.
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
    const SETTINGS: &'static [SettingSpec] = &[SettingSpec::new(
        "ring_bytes",
        "bytes",
        "1048576",
        "size of one direction's ring, a power of two (else rounded up); a channel takes two",
    )];

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

iccl_plugin_api::export_plugin! {
    plugin: ShmTransport,
    transport: ShmTransport,
}

#[cfg(test)]
mod tests {
    use iccl_plugin_api::Status;

    use super::*;

    fn probe(value: &str) -> PluginResult<u64> {
        ShmTransport::probe(&Settings::new(vec![("ring_bytes", value)])).map(|it| it.ring_bytes)
    }

    #[test]
    fn ring_bytes_is_checked_and_rounded() {
        assert_eq!(probe("4096").unwrap(), 4096);
        assert_eq!(probe("5000").unwrap(), 8192);
        for wrong in ["0", "4095", "1073741825", "1MiB"] {
            let error = probe(wrong).unwrap_err();
            assert_eq!(error.status, Status::InvalidArgument);
            assert!(error.message.contains("ring_bytes") && error.message.contains(wrong));
        }
    }

    #[test]
    fn the_documented_default_is_the_default() {
        let default = ShmTransport::probe(&Settings::default()).unwrap();
        assert_eq!(default.ring_bytes, DEFAULT_RING_BYTES);
        let spec = &ShmTransport::SETTINGS[0];
        // SAFETY: a setting's default is a static text.
        let text = unsafe {
            std::slice::from_raw_parts(spec.default_text.data, spec.default_text.length as usize)
        };
        assert_eq!(text, DEFAULT_RING_BYTES.to_string().as_bytes());
    }
}
