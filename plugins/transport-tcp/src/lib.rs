//! The TCP transport of iccl. See the README beside the manifest for what travels and why.
//!
//! * `domain`, `channel`: what the runtime sees.
//! * `framing`, `greeting`: what the bytes mean, without sockets. `greet` drives the latter.
//! * `opening`, `dialer`, `newcomers`, `parting`: how connections come and go.
//! * `socket`, `poller`, `address`: the operating system.

mod address;
mod channel;
mod core;
mod dialer;
mod domain;
mod framing;
mod greet;
mod greeting;
mod newcomers;
mod opening;
mod parting;
mod poller;
mod settings;
mod socket;

use std::time::Duration;

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{
    DomainRequest, Plugin, PluginResult, Settings, Transport, TransportFacts,
};
use iccl_plugin_api::tables::{SettingSpec, reach};

pub use domain::{TcpDomain, TcpWaker};

/// The TCP transport.
#[derive(Debug)]
pub struct TcpTransport {
    settings: settings::TcpSettings,
}

impl Plugin for TcpTransport {
    const NAME: &'static str = "transport-tcp";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "iccl";
    const DESCRIPTION: &'static str = "TCP between any two hosts, or processes of one host";
    const SETTINGS: &'static [SettingSpec] = settings::SPECS;

    fn probe(settings: &Settings<'_>) -> PluginResult<Self> {
        Ok(Self { settings: settings::TcpSettings::from(settings)? })
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
