//! The TCP transport of iccl. See the README beside the manifest for what travels and why.
//!
//! What it does lies in the crate `iccl-tcp`, since the RDMA transport needs it as well; here is what makes
//! a plugin of it.

use std::time::Duration;

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{
    DomainRequest, Plugin, PluginResult, Settings, Transport, TransportFacts,
};
use iccl_plugin_api::tables::{SettingSpec, reach};

pub use iccl_tcp::{TcpDomain, TcpWaker};

/// The TCP transport.
#[derive(Debug)]
pub struct TcpTransport {
    settings: iccl_tcp::TcpSettings,
}

impl Plugin for TcpTransport {
    const NAME: &'static str = "transport-tcp";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "iccl";
    const DESCRIPTION: &'static str = "TCP between any two hosts, or processes of one host";
    const SETTINGS: &'static [SettingSpec] = iccl_tcp::SPECS;

    fn probe(settings: &Settings<'_>) -> PluginResult<Self> {
        Ok(Self { settings: iccl_tcp::TcpSettings::from(settings)? })
    }
}

impl Transport for TcpTransport {
    type Domain = TcpDomain;

    fn facts(&self) -> TransportFacts {
        TransportFacts {
            name: "tcp",
            reach: reach::SAME_HOST | reach::OTHER_HOSTS,
            memory_kinds: MemoryKind::Host.mask() | MemoryKind::PinnedHost.mask(),
            latency: Duration::from_micros(20),
            bytes_per_us: 2000,
            largest_message: None,
        }
    }

    fn open(&self, request: &DomainRequest<'_>) -> PluginResult<TcpDomain> {
        TcpDomain::open(request, &self.settings)
    }
}

iccl_plugin_api::export_plugin! {
    plugin: TcpTransport,
    transport: TcpTransport,
}
