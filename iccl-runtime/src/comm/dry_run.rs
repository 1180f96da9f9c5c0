//! The plan of ranks that are not there: what every rank would tell is taken from this process.

use iccl_plugin_api::MemoryKind;

use super::algorithms::Algorithms;
use super::choices::Choices;
use super::describe::describe;
use super::native;
use super::runtime::Runtime;
use crate::Result;
use crate::plan::{Evidence, Plan, plan};
use crate::topology::{DeviceFacts, HostIdentity, NativeLibrary, RankDescriptor, reach};

/// The plugin of devices that are the host's own memory.
const HOST: &str = "host";

/// A rank that is not there. What it does not say is as in this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DryRank {
    /// The id of its host.
    pub host: Option<String>,
    /// Its card.
    pub card: Option<DryCard>,
    /// What its host's network carries, in bytes per microsecond.
    pub network_bytes_per_us: Option<u32>,
}

/// A card that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DryCard {
    /// Its maker, by the plugin's name.
    pub vendor: String,
    /// Its index on its host.
    pub index: u32,
    /// Its maker's library of collectives.
    pub library: DryLibrary,
}

/// The native library of a card that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DryLibrary {
    /// The one that the maker's plugin has found in this process; if it has found none, this.
    Found {
        /// What is taken for it then.
        or_else: Option<NativeLibrary>,
    },
    /// This one or none, whatever is in this process.
    Given(Option<NativeLibrary>),
}

impl Runtime {
    /// The plan of as many ranks as there are `hosts`, all like this process; each on the host of that
    /// id, or on this one where there is none. Nothing is opened or tried. The same pure function makes
    /// it that makes the real one.
    ///
    /// # Errors
    /// `PluginMissing` for a device that is not there; `PlanUnsatisfiable` naming what is missing.
    pub fn dry_plan(&self, hosts: &[Option<String>]) -> Result<Plan> {
        let rank = |host: &Option<String>| DryRank { host: host.clone(), ..DryRank::default() };
        self.dry_plan_of(&hosts.iter().map(rank).collect::<Vec<_>>())
    }

    /// As [`Runtime::dry_plan`], for ranks with cards and networks that this process need not have.
    /// Transports and settings are those of this process.
    ///
    /// # Errors
    /// As [`Runtime::dry_plan`].
    pub fn dry_plan_of(&self, ranks: &[DryRank]) -> Result<Plan> {
        let inner = &self.inner;
        let settings = inner.plan_config()?;
        let own = inner.config.bootstrap.host_id.as_deref();
        let uses_native = inner.config.device.native;
        let descriptors: Vec<RankDescriptor> = (0_u32..)
            .zip(ranks)
            .map(|(number, rank)| {
                let host = HostIdentity::detect(rank.host.as_deref().or(own))?;
                let device = inner.device()?;
                let mut descriptor = describe(
                    number,
                    &host,
                    device,
                    &inner.plugins,
                    None,
                    &settings.agreed,
                    uses_native,
                )?;
                self.adapt(&mut descriptor, rank);
                Ok(descriptor)
            })
            .collect::<Result<_>>()?;
        Ok(plan(&descriptors, &settings, &Evidence::default())?)
    }

    /// Which algorithms would carry which calls among the ranks of a plan, by this process's settings.
    ///
    /// # Errors
    /// `InvalidConfig` for an algorithm that there is not.
    pub fn choices(&self, plan: &Plan) -> Result<Choices> {
        let config = &self.inner.config;
        let algorithms = Algorithms::new(config, plan)?;
        Ok(Choices::new(algorithms, plan, config.engine.chunk_bytes))
    }

    /// Puts what the rank says of itself in the place of what this process is.
    fn adapt(&self, descriptor: &mut RankDescriptor, rank: &DryRank) {
        if let Some(card) = &rank.card {
            let loaded = self.inner.plugins.plugin(&card.vendor);
            let mut memory_kinds = MemoryKind::Host.mask() | MemoryKind::PinnedHost.mask();
            if card.vendor != HOST {
                memory_kinds |= MemoryKind::Device.mask();
            }
            descriptor.device = DeviceFacts {
                vendor: card.vendor.clone(),
                plugin: card.vendor.clone(),
                plugin_version: loaded
                    .map_or_else(|| descriptor.iccl_version.clone(), |one| one.version().clone()),
                index: card.index,
                pci: None,
                memory_kinds,
                later_fields: Vec::new(),
            };
            descriptor.host.numa_node = None;
            // Not that of this process's device, but of the card's maker.
            let may = self.inner.config.device.native && card.vendor != HOST;
            let found = || native::library_of(&self.inner.plugins, &card.vendor);
            let library = match &card.library {
                DryLibrary::Found { or_else } => found().or_else(|| or_else.clone()),
                DryLibrary::Given(library) => library.clone(),
            };
            descriptor.native_library = library.filter(|_| may);
        }
        if let Some(network) = rank.network_bytes_per_us {
            let over_network =
                |reaches: u32| reaches & reach::OTHER_HOSTS != 0 && reaches & reach::FABRIC == 0;
            for transport in &mut descriptor.transports {
                // A channel is no faster than the network below it.
                let own = transport.bytes_per_us;
                if over_network(transport.reach) && (own == 0 || own > network) {
                    transport.bytes_per_us = network;
                }
            }
        }
    }
}
