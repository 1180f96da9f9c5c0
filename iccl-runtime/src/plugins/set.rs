//! The plugins that are used, as the other rooms see them.

use std::path::PathBuf;
use std::sync::Arc;

use iccl_plugin_api::host::{
    CollectivesView, OpenDevice, OpenDomain, PluginView, SettingDescription, TransportView,
};
use iccl_plugin_api::sdk::{CollectivesFacts, DeviceFacts, DomainRequest, TransportFacts};
use iccl_plugin_api::tables::{ABI_MAJOR, CollectiveSupport};

use super::discovery::Discovery;
use super::error::call_error;
use super::names::means;
use super::reason::Reason;
use super::record::{Door, Record};
use crate::config::Config;
use crate::{Error, Result};

/// A plugin that is used.
#[derive(Clone, Debug)]
pub struct Plugin {
    pub(super) name: &'static str,
    pub(super) version: semver::Version,
    pub(super) vendor: &'static str,
    pub(super) description: &'static str,
    pub(super) settings: Vec<SettingDescription>,
    pub(super) view: PluginView,
    pub(super) door: Door,
}

impl Plugin {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its version.
    pub fn version(&self) -> &semver::Version {
        &self.version
    }

    /// Who makes it.
    pub fn vendor(&self) -> &'static str {
        self.vendor
    }

    /// One line that says what it is.
    pub fn description(&self) -> &'static str {
        self.description
    }

    /// The settings that it understands.
    pub fn settings(&self) -> &[SettingDescription] {
        &self.settings
    }

    /// The ABI that it was built with, as major and minor.
    pub fn abi(&self) -> (u32, u32) {
        (ABI_MAJOR, self.view.abi_minor())
    }

    /// The door through which it was loaded.
    pub fn door(&self) -> Door {
        self.door
    }

    /// Its tables.
    pub fn view(&self) -> PluginView {
        self.view
    }
}

/// A device of a plugin. Nothing is opened yet.
#[derive(Clone, Debug)]
pub struct DevicePlugin {
    pub(super) plugin: Arc<Plugin>,
    pub(super) index: u32,
    pub(super) facts: DeviceFacts,
}

impl DevicePlugin {
    /// The plugin that drives it.
    pub fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    /// Which of the plugin's devices it is.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What the plugin says of it.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// Opens it. The caller shares what it opened; a device that is opened twice is two to the
    /// plugin.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn open(&self) -> Result<OpenDevice> {
        let name = self.plugin.name;
        let view = self.plugin.view.device().ok_or_else(|| no_family(name, "device"))?;
        view.open(self.index).map_err(|error| call_error(name, error))
    }
}

/// A transport of a plugin. Nothing is opened yet.
#[derive(Clone, Debug)]
pub struct TransportPlugin {
    pub(super) plugin: Arc<Plugin>,
    pub(super) view: TransportView,
    pub(super) facts: TransportFacts,
}

impl TransportPlugin {
    /// The plugin that offers it.
    pub fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    /// The tier's name: `shm`, `tcp`, …
    pub fn tier(&self) -> &'static str {
        self.facts.name
    }

    /// What the plugin says of it.
    pub fn facts(&self) -> &TransportFacts {
        &self.facts
    }

    /// Its functions.
    pub fn view(&self) -> TransportView {
        self.view
    }

    /// Opens a domain.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn open(&self, request: &DomainRequest<'_>) -> Result<OpenDomain> {
        self.view.open(request).map_err(|error| call_error(self.plugin.name, error))
    }
}

/// A native collectives library of a plugin.
#[derive(Clone, Debug)]
pub struct CollectivesPlugin {
    pub(super) plugin: Arc<Plugin>,
    pub(super) view: CollectivesView,
    pub(super) facts: CollectivesFacts,
    pub(super) support: Vec<CollectiveSupport>,
}

impl CollectivesPlugin {
    /// The plugin that offers it.
    pub fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    /// Its functions.
    pub fn view(&self) -> CollectivesView {
        self.view
    }

    /// The library's name and version; ranks share a communicator only if this text is equal.
    pub fn library(&self) -> &'static str {
        self.facts.library
    }

    /// Bits of [`collectives_flag`](iccl_plugin_api::tables::collectives_flag).
    pub fn flags(&self) -> u64 {
        self.facts.flags
    }

    /// The combinations that the library offers and the self-test did not find wrong.
    pub fn support(&self) -> &[CollectiveSupport] {
        &self.support
    }
}

/// The error for a family that a plugin turned out not to have.
fn no_family(plugin: &str, family: &str) -> Error {
    Error::new(
        crate::ErrorKind::Internal,
        format!("plugin {plugin} has no {family} family although it was active with one"),
    )
}

/// All plugins that are used, and the record of every candidate. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PluginSet {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) records: Vec<Record>,
    pub(super) searched: Vec<PathBuf>,
    pub(super) plugins: Vec<Arc<Plugin>>,
    pub(super) devices: Vec<DevicePlugin>,
    pub(super) transports: Vec<TransportPlugin>,
    pub(super) collectives: Vec<CollectivesPlugin>,
}

impl PluginSet {
    /// Finds, checks, loads and probes all plugins, and sees that those which the configuration
    /// requires are active.
    ///
    /// # Errors
    /// `PluginMissing` if a required plugin is not active; as [`PluginSet::discover`].
    pub fn load(config: &Config) -> Result<Self> {
        let set = Self::discover(config)?;
        set.check_required(config)?;
        Ok(set)
    }

    /// Sees that every plugin that the configuration requires is active.
    ///
    /// # Errors
    /// `PluginMissing`, with where it was looked for and what was seen.
    pub fn check_required(&self, config: &Config) -> Result<()> {
        super::require::check(self, config)
    }

    /// As [`PluginSet::load`], but does not mind that a required plugin is missing: for commands
    /// that show what there is.
    ///
    /// # Errors
    /// `InvalidConfig` for a setting that a plugin does not have, or a value of the wrong kind.
    pub fn discover(config: &Config) -> Result<Self> {
        Discovery::new(config).run().map(|inner| Self { inner: Arc::new(inner) })
    }

    /// One record for each candidate, in the order of the search.
    pub fn records(&self) -> &[Record] {
        &self.inner.records
    }

    /// The folders that were searched, in order, whether they exist or not.
    pub fn searched(&self) -> &[PathBuf] {
        &self.inner.searched
    }

    /// The plugins that are used.
    pub fn plugins(&self) -> impl Iterator<Item = &Plugin> {
        self.inner.plugins.iter().map(Arc::as_ref)
    }

    /// The plugin that configuration calls `name`.
    pub fn plugin(&self, name: &str) -> Option<&Plugin> {
        self.plugins().find(|plugin| means(name, plugin.name))
    }

    /// All devices, plugin by plugin.
    pub fn devices(&self) -> &[DevicePlugin] {
        &self.inner.devices
    }

    /// The devices of one plugin.
    pub fn devices_of<'a>(&'a self, plugin: &'a str) -> impl Iterator<Item = &'a DevicePlugin> {
        self.inner.devices.iter().filter(move |device| means(plugin, device.plugin.name))
    }

    /// All transports that may be used.
    pub fn transports(&self) -> &[TransportPlugin] {
        &self.inner.transports
    }

    /// The names of transports that are there and that the configuration switches off.
    pub fn switched_off_transports(&self) -> impl Iterator<Item = &str> {
        let off = |record: &&Record| {
            matches!(record.reason, Some(Reason::Disabled | Reason::TransportNotEnabled))
                && record.kinds.contains(&"transport")
        };
        self.records().iter().filter(off).filter_map(|record| record.name.as_deref())
    }

    /// The transport of a tier.
    pub fn transport(&self, tier: &str) -> Option<&TransportPlugin> {
        self.inner.transports.iter().find(|transport| transport.tier() == tier)
    }

    /// All native collectives libraries.
    pub fn collectives(&self) -> &[CollectivesPlugin] {
        &self.inner.collectives
    }

    /// The native collectives of one plugin, if it has found its library, and that can do something.
    pub fn collectives_of(&self, plugin: &str) -> Option<&CollectivesPlugin> {
        self.inner.collectives.iter().find(|each| means(plugin, each.plugin.name))
    }

    /// The error for a plugin that is needed and not active: says where it was looked for and what
    /// was seen. `why` tells who needs it, such as `device.backend`.
    pub fn missing(&self, name: &str, why: &str) -> Error {
        super::require::missing(self, name, why, None)
    }
}
