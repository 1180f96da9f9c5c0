//! Choosing a device and a port, and what connections over it are made of.

use std::sync::Arc;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};

use crate::gid;
use crate::regions::advice;
use crate::settings::{Ports, RdmaSettings};
use crate::verbs::{Device, Fabric, Library, Limits, Memory, Port, Route, VerbsError};
use crate::wire::Offer;

/// A device that a domain uses, by one port.
#[derive(Debug)]
pub(crate) struct Rail {
    pub(crate) device: Box<dyn Device>,
    pub(crate) limits: Limits,
    pub(crate) port: u8,
    pub(crate) settings: RdmaSettings,
}

/// Registered once to learn whether it can be.
const TRIAL_BYTES: usize = 64 * 1024;

/// Opens the first device of which a port can be used.
///
/// # Errors
/// `NoDevice` with what is wrong with each one, and what to do.
pub(crate) fn open(library: &Arc<dyn Library>, settings: &RdmaSettings) -> PluginResult<Rail> {
    let names = library.device_names().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSYS) => PluginError::new(
            Status::NoDevice,
            "the kernel of this machine has no RDMA: load the modules ib_uverbs and the device's own \
             (in a container: give it /dev/infiniband)",
        ),
        _ => PluginError::system(Status::NoDevice, "ibv_get_device_list", &error),
    })?;
    if names.is_empty() {
        let text = "no RDMA device: none is there, its module is not loaded (`rdma link`), or the \
                    provider's library (package ibverbs-providers or rdma-core) is not installed";
        return Err(PluginError::new(Status::NoDevice, text));
    }
    let mut reasons = Vec::new();
    for name in &names {
        let Some(ports) = settings.allows(name) else {
            reasons.push(format!("{name}: not in the setting devices"));
            continue;
        };
        match open_one(&**library, name, ports, settings) {
            Ok(rail) => {
                if !reasons.is_empty() {
                    tracing::info!(device = %name, left_out = %reasons.join("; "), "uses a device");
                }
                return Ok(rail);
            }
            Err(reason) => reasons.push(format!("{name}: {reason}")),
        }
    }
    let text = format!("no RDMA device can be used: {}", reasons.join("; "));
    Err(PluginError::new(Status::NoDevice, text))
}

fn open_one(
    library: &dyn Library,
    name: &str,
    allowed: Ports,
    settings: &RdmaSettings,
) -> Result<Rail, String> {
    let words = |error: VerbsError| match error.number() {
        libc::EACCES | libc::EPERM => {
            format!("{error}: this user may not open /dev/infiniband/uverbs*")
        }
        _ => error.to_string(),
    };
    let mut device = library.open(name).map_err(words)?;
    let limits = device.limits().map_err(words)?;
    let ports = match allowed {
        Ports::All => 1..=limits.ports,
        Ports::One(port) => port..=port,
    };
    let mut reason = "it has no port".to_owned();
    let mut chosen = None;
    for number in ports {
        let port = device.port(number).map_err(words)?;
        if !port.is_active {
            reason = format!("port {number} is not active (cable, switch, `rdma link`)");
        } else if port.fabric == Fabric::Iwarp {
            reason = format!("{} devices are not supported: they need rdma_cm", port.fabric);
        } else if port.fabric == Fabric::Other {
            reason = format!("its transport is {}", port.fabric);
        } else {
            let table = device.gids(number).map_err(words)?;
            match gid::choose(port.fabric, &table, settings.gid_index) {
                Ok(_) => {
                    chosen = Some(number);
                    break;
                }
                Err(words) => reason = format!("port {number}: {words}"),
            }
        }
    }
    let port = chosen.ok_or(reason)?;
    device
        .pkey(port, settings.pkey_index)
        .map_err(|error| format!("pkey_index {}: {error}", settings.pkey_index))?;
    let trial = vec![0_u8; TRIAL_BYTES];
    let memory = Memory { address: trial.as_ptr() as u64, length: TRIAL_BYTES as u64 };
    // SAFETY: the memory outlives its registration, which ends right here.
    let registered = unsafe { device.register(memory) }
        .map_err(|error| format!("{error}{}", advice(error.number(), TRIAL_BYTES as u64)))?;
    device.deregister(registered.handle).map_err(words)?;
    Ok(Rail { device, limits, port, settings: settings.clone() })
}

impl Rail {
    fn refused(&self, error: &VerbsError) -> PluginError {
        let text = format!("{}: {error}", self.device.name());
        PluginError::new(Status::TransportError, text).with_vendor_code(error.number().into())
    }

    /// The port and its address as they are now: addresses move when a link was down.
    fn address(&self) -> PluginResult<(Port, crate::verbs::GidEntry)> {
        let port = self.device.port(self.port).map_err(|error| self.refused(&error))?;
        let table = self.device.gids(self.port).map_err(|error| self.refused(&error))?;
        let entry = gid::choose(port.fabric, &table, self.settings.gid_index).map_err(|words| {
            let name = self.device.name();
            PluginError::new(Status::TransportError, format!("{name} port {}: {words}", self.port))
        })?;
        Ok((port, entry))
    }

    /// What the peer needs to know of a queue pair.
    ///
    /// # Errors
    /// What the device says; that it has no address any more.
    pub(crate) fn offer(&self, number: u32, psn: u32) -> PluginResult<Offer> {
        let (port, entry) = self.address()?;
        Ok(Offer {
            number,
            psn,
            lid: port.lid,
            mtu: port.mtu.min(self.settings.mtu),
            is_infiniband: port.fabric == Fabric::InfiniBand,
            gid: entry.gid,
        })
    }

    /// Connects a queue pair with the one that the peer offers.
    ///
    /// # Errors
    /// That the two are of different fabrics; what the device says.
    pub(crate) fn connect(
        &mut self,
        who: &str,
        number: u32,
        psn: u32,
        offer: &Offer,
    ) -> PluginResult<()> {
        let (port, entry) = self.address()?;
        let is_infiniband = port.fabric == Fabric::InfiniBand;
        if offer.is_infiniband != is_infiniband {
            let text = format!(
                "{who}: no common fabric: {} is on {}, the peer's device is not",
                self.device.name(),
                port.fabric
            );
            return Err(PluginError::new(Status::TransportError, text));
        }
        let settings = &self.settings;
        let route = Route {
            port: self.port,
            number: offer.number,
            lid: offer.lid,
            gid: offer.gid,
            gid_index: (!is_infiniband).then_some(entry.index as u8),
            mtu: port.mtu.min(settings.mtu).min(offer.mtu),
            traffic_class: settings.traffic_class,
            service_level: settings.service_level,
            timeout: settings.timeout,
            retries: settings.retries,
            receive_psn: offer.psn,
            send_psn: psn,
        };
        self.device.connect(number, &route).map_err(|error| {
            let text = format!("{who}, {}: {error}", self.device.name());
            PluginError::new(Status::TransportError, text).with_vendor_code(error.number().into())
        })
    }
}
