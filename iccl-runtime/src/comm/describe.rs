//! What this rank tells the others about itself.

use iccl_plugin_api::{MemoryKind, sdk};
use semver::Version;

use super::device::Device;
use super::native;
use crate::engine::domain::Domain;
use crate::plan::agreed_digest;
use crate::plugins::PluginSet;
use crate::topology::{
    DeviceFacts, HostFacts, HostIdentity, PciAddress, RankDescriptor, TransportFacts,
    TransportState, reach,
};
use crate::{Error, ErrorKind, Result};

/// Describes a rank with its open domains, or with none in a dry run, where every transport counts as
/// usable. A transport that is loaded but could not be opened is described as such, so that the plan
/// can say so.
pub(super) fn describe(
    rank: u32,
    host: &HostIdentity,
    device: &Device,
    plugins: &PluginSet,
    mut domains: Option<&mut [Box<dyn Domain>]>,
    agreed: &[(String, String)],
    uses_native: bool,
) -> Result<RankDescriptor> {
    let (facts, is_dry) = (device.facts(), domains.is_none());
    let mut transports = plugins
        .transports()
        .iter()
        .map(|transport| {
            let address = match &mut domains {
                None => Some(Vec::new()),
                Some(domains) => domains
                    .iter_mut()
                    .find(|domain| domain.name() == transport.tier())
                    .map(|domain| domain.address())
                    .transpose()?,
            };
            let (facts, abi) = (transport.facts(), transport.plugin().abi());
            let mut text = TransportFacts {
                name: transport.tier().to_owned(),
                plugin_version: transport.plugin().version().clone(),
                abi: (abi.0 as u16, abi.1 as u16),
                state: TransportState::Active,
                reach: facts.reach,
                memory_kinds: memory_kinds(device, facts),
                latency_ns: u32::try_from(facts.latency.as_nanos()).unwrap_or(u32::MAX),
                bytes_per_us: u32::try_from(facts.bytes_per_us).unwrap_or(u32::MAX),
                fabrics: Vec::new(),
                address: address.clone().unwrap_or_default(),
                later_fields: Vec::new(),
            };
            if address.is_none() {
                text.state = TransportState::Quarantined;
            }
            Ok(text)
        })
        .collect::<Result<Vec<_>>>()?;
    for transport in plugins.switched_off_transports().map(switched_off) {
        // A plugin may be there twice: linked into the program, and in a folder.
        if transports.iter().all(|known| known.name != transport.name) {
            transports.push(transport);
        }
    }
    let mut memory_kinds = MemoryKind::Host.mask() | MemoryKind::PinnedHost.mask();
    if facts.capabilities.host_accessible == 0 {
        memory_kinds |= MemoryKind::Device.mask();
    }
    Ok(RankDescriptor {
        rank,
        wire_version: iccl_wire::WIRE_VERSION,
        iccl_version: version(env!("CARGO_PKG_VERSION"))?,
        host: HostFacts {
            key: host.key,
            name: host.name.clone(),
            numa_node: facts.numa_node.and_then(|node| u16::try_from(node).ok()),
        },
        // A plan that nothing runs on is the same on every call.
        pid: if is_dry { 0 } else { std::process::id() },
        agreed_digest: agreed_digest(agreed),
        device: DeviceFacts {
            vendor: device.plugin().to_owned(),
            plugin: device.plugin().to_owned(),
            plugin_version: device.plugin_version().clone(),
            index: device.index(),
            pci: facts.pci_address.parse::<PciAddress>().ok(),
            memory_kinds,
            later_fields: Vec::new(),
        },
        native_library: if uses_native { native::library(plugins, device) } else { None },
        transports,
        later_fields: Vec::new(),
    })
}

/// The memory that a transport works on here: a NIC does not reach that of a card which gives it to none.
fn memory_kinds(device: &Device, facts: &sdk::TransportFacts) -> u32 {
    let is_given = device.facts().capabilities.region_forms != 0;
    if facts.reach & reach::FABRIC == 0 || is_given {
        return facts.memory_kinds;
    }
    facts.memory_kinds & !MemoryKind::Device.mask()
}

/// A transport that is never opened, described so that the plan can say why it is not used. It is not
/// loaded, so how far it reaches is told by its name.
fn switched_off(plugin: &str) -> TransportFacts {
    let name = plugin.strip_prefix("transport-").unwrap_or(plugin);
    TransportFacts {
        name: name.to_owned(),
        plugin_version: Version::new(0, 0, 0),
        abi: (0, 0),
        state: TransportState::Disabled,
        reach: match name {
            "shm" => reach::SAME_HOST,
            "rdma" => reach::OTHER_HOSTS | reach::FABRIC,
            _ => reach::SAME_HOST | reach::OTHER_HOSTS,
        },
        memory_kinds: 0,
        latency_ns: 0,
        bytes_per_us: 0,
        fabrics: Vec::new(),
        address: Vec::new(),
        later_fields: Vec::new(),
    }
}

fn version(text: &str) -> Result<Version> {
    Version::parse(text).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("\"{text}\" is no version")).with_source(error)
    })
}
