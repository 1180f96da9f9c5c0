//! The RDMA transport of iccl. See the README beside the manifest for what travels and why.
//!
//! * `domain`, `channel`: what the runtime sees.
//! * `flow`: the two directions of a channel over a queue pair; `wire`: what its bytes mean.
//! * `memory`, `regions`: memory of a channel's own, and what the runtime has registered.
//! * `device`, `gid`: which device, port and address are used.
//! * `verbs`: libibverbs, behind a trait.

mod channel;
mod device;
mod domain;
mod flow;
mod gid;
mod memory;
mod regions;
mod settings;
#[cfg(test)]
mod tests;
mod verbs;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use iccl_plugin_api::sdk::{
    DomainRequest, Plugin, PluginError, PluginResult, Settings, Transport, TransportFacts,
};
use iccl_plugin_api::tables::{SettingSpec, reach};
use iccl_plugin_api::{MemoryKind, Status};

pub use domain::{RdmaDomain, RdmaWaker};
use verbs::{Ibverbs, Library};

/// The RDMA transport.
#[derive(Debug)]
pub struct RdmaTransport {
    library: Arc<dyn Library>,
    settings: settings::RdmaSettings,
    bytes_per_us: u64,
}

impl Plugin for RdmaTransport {
    const NAME: &'static str = "transport-rdma";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "iccl";
    const DESCRIPTION: &'static str = "InfiniBand and RoCE between hosts, by libibverbs";
    const SETTINGS: &'static [SettingSpec] = settings::SPECS;

    fn probe(settings: &Settings<'_>) -> PluginResult<Self> {
        let settings = settings::RdmaSettings::from(settings)?;
        let library = Ibverbs::open().map_err(|words| {
            let text = format!("{words}: install libibverbs1 and ibverbs-providers (or rdma-core)");
            PluginError::new(Status::LibraryMissing, text)
        })?;
        Self::with(library, settings)
    }
}

impl RdmaTransport {
    /// Finds out whether a device can be used.
    fn with(library: Arc<dyn Library>, settings: settings::RdmaSettings) -> PluginResult<Self> {
        let rail = device::open(&library, &settings)?;
        let port = rail.device.port(rail.port).map_err(|error| {
            PluginError::new(Status::NoDevice, format!("{}: {error}", rail.device.name()))
        })?;
        let bytes_per_us = u64::from(port.megabits_per_second / 8).max(1000);
        Ok(Self { library, settings, bytes_per_us })
    }
}

impl Transport for RdmaTransport {
    type Domain = RdmaDomain;

    fn facts(&self) -> TransportFacts {
        TransportFacts {
            name: "rdma",
            reach: reach::SAME_HOST | reach::OTHER_HOSTS | reach::FABRIC,
            memory_kinds: MemoryKind::Host.mask()
                | MemoryKind::PinnedHost.mask()
                | MemoryKind::Device.mask(),
            latency: Duration::from_micros(3),
            bytes_per_us: self.bytes_per_us,
            largest_message: None,
        }
    }

    fn open(&self, request: &DomainRequest<'_>) -> PluginResult<RdmaDomain> {
        RdmaDomain::open(request, &self.library, &self.settings)
    }
}

iccl_plugin_api::export_plugin! {
    plugin: RdmaTransport,
    transport: RdmaTransport,
}
