//! The runtime: configuration, plugins and a device, from which communicators are made.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::background::Background;
use super::communicator::Communicator;
use super::device::Device;
use super::initialise::{Joining, initialise};
use crate::bootstrap::{
    Identity, IdentitySettings, InterfaceChoice, Rendezvous, UniqueId, UniqueIdOptions,
};
use crate::config::{Config, Sources};
use crate::lock::lock;
use crate::plan::{PlanConfig, read_calibration};
use crate::plugins::{DevicePlugin, PluginSet, Record};
use crate::{Error, ErrorKind, Result};

/// The value of `device.backend` that leaves the choice to iccl.
const AUTO: &str = "auto";

/// Everything that a process needs to make communicators. Cheap to clone.
#[derive(Clone)]
pub struct Runtime {
    pub(super) inner: Arc<RuntimeInner>,
}

pub(super) struct RuntimeInner {
    pub(super) config: Config,
    pub(super) plugins: PluginSet,
    opened: Arc<Opened>,
    device: OnceLock<Device>,
}

/// The devices that were opened, by plugin and index: each is opened once, also where runtimes with
/// other settings share the plugins.
type Opened = Mutex<Vec<((&'static str, u32), Device)>>;

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Runtime({} plugins)", self.inner.plugins.records().len())
    }
}

impl Runtime {
    /// A runtime with the configuration of this process: `iccl.toml` (or the file that `ICCL_CONFIG`
    /// names) and `ICCL_*` variables.
    ///
    /// # Errors
    /// As [`Runtime::with_config`], and `InvalidConfig` with everything that is wrong in file and
    /// variables.
    pub fn new() -> Result<Self> {
        Self::with_config(Config::load(&Sources::of_process())?)
    }

    /// A runtime with this configuration. Discovers and probes the plugins.
    ///
    /// # Errors
    /// `PluginMissing` if a plugin that the configuration requires is not active; `InvalidConfig` for
    /// settings that plugins do not have or algorithms that there are not.
    pub fn with_config(config: Config) -> Result<Self> {
        for warning in config.warnings() {
            tracing::warn!("{warning}");
        }
        super::algorithms::check_names(&config)?;
        let plugins = PluginSet::load(&config)?;
        Ok(Self::of(config, plugins, Arc::default()))
    }

    fn of(config: Config, plugins: PluginSet, opened: Arc<Opened>) -> Self {
        Self { inner: Arc::new(RuntimeInner { config, plugins, opened, device: OnceLock::new() }) }
    }

    /// A runtime with another configuration. It shares the plugins and the opened devices of this one,
    /// so that streams and buffers of one device serve communicators of both, unless `config` says
    /// something else of plugins: then it is as [`Runtime::with_config`].
    ///
    /// # Errors
    /// As [`Runtime::with_config`].
    pub fn reconfigured(&self, config: Config) -> Result<Self> {
        if !self.has_the_plugins_of(&config) {
            return Self::with_config(config);
        }
        super::algorithms::check_names(&config)?;
        Ok(Self::of(config, self.inner.plugins.clone(), Arc::clone(&self.inner.opened)))
    }

    /// Whether `config` says the same of plugins as this runtime's configuration.
    pub fn has_the_plugins_of(&self, config: &Config) -> bool {
        let own = &self.inner.config;
        own.plugins == config.plugins
            && own.plugin == config.plugin
            && own.transport.enabled == config.transport.enabled
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// One record for every plugin that was found, active or not.
    pub fn plugins(&self) -> &[Record] {
        self.inner.plugins.records()
    }

    /// The loaded plugins.
    pub fn plugin_set(&self) -> &PluginSet {
        &self.inner.plugins
    }

    /// The device of this process: the one that `device.backend` names, else the first accelerator,
    /// else host memory. Opened by the first call.
    ///
    /// # Errors
    /// `PluginMissing` if the named plugin is not active; what the driver says.
    pub fn device(&self) -> Result<&Device> {
        self.inner.device()
    }

    /// Who this process is, by its launcher: rank, size, where to meet. `None` if nothing says that
    /// it is one of several.
    ///
    /// # Errors
    /// `InvalidConfig` naming the variables that make no sense.
    pub fn identity(&self) -> Result<Option<Identity>> {
        let settings = IdentitySettings::from_config(&self.inner.config)?;
        Identity::discover(self.inner.config.environment(), &settings)
    }

    /// A unique id for a new communicator; a service in this process answers the ranks that join with
    /// it, until all have or `bootstrap.init_timeout` is over. Give its bytes or text to all ranks over
    /// a channel that strangers cannot read: it holds the job's secret.
    ///
    /// # Errors
    /// `InvalidConfig` for an interface that there is not; what the operating system says.
    pub fn unique_id(&self) -> Result<UniqueId> {
        self.unique_id_for(false)
    }

    /// As [`Runtime::unique_id`], where all ranks are known to run on this host: then the service
    /// listens on loopback only.
    ///
    /// # Errors
    /// As [`Runtime::unique_id`].
    pub fn local_unique_id(&self) -> Result<UniqueId> {
        self.unique_id_for(true)
    }

    fn unique_id_for(&self, is_one_host: bool) -> Result<UniqueId> {
        let config = &self.inner.config;
        let interface = config.bootstrap.interface.as_ref().or(config.transport.interface.as_ref());
        let mut options = UniqueIdOptions {
            is_one_host,
            lifetime: config.bootstrap.init_timeout,
            handshake_timeout: config.bootstrap.handshake_timeout,
            ..UniqueIdOptions::default()
        };
        if let Some(interface) = interface {
            options.interface = InterfaceChoice::parse(interface)?;
        }
        UniqueId::generate(&options)
    }

    /// Joins a communicator of `ranks` as `rank`. Blocks until all ranks have come and agreed.
    ///
    /// # Errors
    /// On every rank that came, naming the culprit: `Rendezvous`, `VersionMismatch`, `PlanDiverged`,
    /// `PlanUnsatisfiable`, `PeerLost`, `Timeout`; and what is wrong on this rank alone.
    pub fn communicator(&self, id: &UniqueId, rank: u32, ranks: u32) -> Result<Communicator> {
        initialise(&self.inner, &joining(id, rank, ranks))
    }

    /// As [`Runtime::communicator`], without blocking.
    ///
    /// # Errors
    /// `OutOfResources` if no thread can be started.
    pub fn begin_communicator(&self, id: &UniqueId, rank: u32, ranks: u32) -> Result<Pending> {
        self.begin(joining(id, rank, ranks))
    }

    fn begin(&self, joining: Joining) -> Result<Pending> {
        let rank = joining.rank;
        let cancel = Arc::clone(&joining.cancel);
        let runtime = Arc::clone(&self.inner);
        let body = move || initialise(&runtime, &joining);
        let making = Background::start(&format!("iccl-init-{rank}"), body)?;
        Ok(Pending { making: Some(making), cancel })
    }

    /// Joins the communicator of all ranks that the launcher started (`iccl run`, torchrun, mpirun,
    /// srun, …). A process that nothing says is one of several gets a communicator of one rank.
    ///
    /// # Errors
    /// As [`Runtime::communicator`] and [`Runtime::identity`].
    pub fn world(&self) -> Result<Communicator> {
        initialise(&self.inner, &self.joining_world()?)
    }

    /// As [`Runtime::world`], without blocking.
    ///
    /// # Errors
    /// As [`Runtime::begin_communicator`] and [`Runtime::identity`].
    pub fn begin_world(&self) -> Result<Pending> {
        self.begin(self.joining_world()?)
    }

    fn joining_world(&self) -> Result<Joining> {
        Ok(match &self.identity()? {
            None => Joining {
                rendezvous: Rendezvous::Alone,
                rank: 0,
                ranks: 1,
                is_one_host: true,
                cancel: Arc::default(),
                parent_ranks: Vec::new(),
            },
            Some(identity) => Joining {
                rendezvous: identity.rendezvous()?,
                rank: identity.rank,
                ranks: identity.world_size,
                is_one_host: identity.is_one_host(),
                cancel: Arc::default(),
                parent_ranks: Vec::new(),
            },
        })
    }
}

fn joining(id: &UniqueId, rank: u32, ranks: u32) -> Joining {
    Joining {
        rendezvous: Rendezvous::UniqueId(id.clone()),
        rank,
        ranks,
        is_one_host: id.address().ip().is_loopback(),
        cancel: Arc::default(),
        parent_ranks: Vec::new(),
    }
}

impl RuntimeInner {
    pub(super) fn device(&self) -> Result<&Device> {
        if let Some(device) = self.device.get() {
            return Ok(device);
        }
        let device = self.open_once(self.find_device()?)?;
        device.must_be_of_use()?;
        Ok(self.device.get_or_init(|| device))
    }

    fn open_once(&self, found: &DevicePlugin) -> Result<Device> {
        let key = (found.plugin().name(), found.index());
        let mut opened = lock(&self.opened);
        if let Some((_, device)) = opened.iter().find(|(known, _)| *known == key) {
            return Ok(device.clone());
        }
        let device = Device::new(found.open()?, found.plugin(), found.facts().clone());
        opened.push((key, device.clone()));
        Ok(device)
    }

    /// The named device, or the first accelerator, or the host's memory. Ranks of one host share the
    /// cards in turn.
    fn find_device(&self) -> Result<&DevicePlugin> {
        let backend = self.config.device.backend.as_str();
        let candidates: Vec<&DevicePlugin> = if backend == AUTO {
            let accelerators: Vec<_> = self
                .plugins
                .devices()
                .iter()
                .filter(|one| one.facts().capabilities.host_accessible == 0)
                .collect();
            if accelerators.is_empty() {
                self.plugins.devices().iter().collect()
            } else {
                accelerators
            }
        } else {
            self.plugins.devices_of(backend).collect()
        };
        if candidates.is_empty() {
            return Err(if backend == AUTO {
                self.plugins.missing("host", "device.backend = \"auto\" where no card is found")
            } else {
                self.plugins.missing(backend, "device.backend")
            });
        }
        let local_rank = self.config.bootstrap.local_rank.unwrap_or(0) as usize;
        Ok(candidates[local_rank % candidates.len()])
    }

    /// What the configuration says to the plan, calibration file included.
    pub(super) fn plan_config(&self) -> Result<PlanConfig> {
        let mut settings = PlanConfig::from_settings(&self.config);
        if let Some(path) = &self.config.plan.calibration {
            let invalid = |text: String| {
                Error::new(
                    ErrorKind::InvalidConfig,
                    format!("plan.calibration: {}: {text}", path.display()),
                )
            };
            let text = std::fs::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
            settings.calibration = read_calibration(&text).map_err(invalid)?;
        }
        Ok(settings)
    }
}

/// A communicator that is being made. Dropping it gives up.
#[derive(Debug)]
pub struct Pending {
    making: Option<Background<Communicator>>,
    cancel: Arc<AtomicBool>,
}

impl Pending {
    /// Whether [`Pending::finish`] would return at once.
    pub fn is_over(&self) -> bool {
        self.making.as_ref().is_none_or(Background::is_over)
    }

    /// Waits until the communicator is made or has failed.
    ///
    /// # Errors
    /// As [`Runtime::communicator`].
    pub fn finish(mut self) -> Result<Communicator> {
        let given_up = || Error::new(ErrorKind::Aborted, "the initialisation was given up");
        self.making.take().ok_or_else(given_up)?.finish()
    }

    /// Waits at most `timeout`. Says whether it is over.
    pub fn wait_for(&self, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        while !self.is_over() && !is_late() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.is_over()
    }

    /// Gives up; the other ranks are told at once. Returns at once.
    pub fn abort(&self) {
        self.cancel.store(true, Ordering::Release);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.abort();
    }
}

#[cfg(test)]
mod tests {
    use iccl_plugin_host as _;

    use super::*;

    #[test]
    fn a_runtime_with_other_settings_shares_the_device() {
        let load = |sources: &Sources| Config::load(sources).expect("a configuration");
        let runtime = Runtime::with_config(load(&Sources::default())).expect("a runtime");
        let stream = runtime.device().expect("the host").stream().expect("a stream");

        let quick = load(&Sources::default().with("engine.op_timeout", "5s"));
        let quick = runtime.reconfigured(quick).expect("a runtime");
        assert_eq!(quick.config().engine.op_timeout, Duration::from_secs(5));
        let alone = quick.begin_world().expect("begun").finish().expect("a communicator");
        alone.barrier(&stream).expect("a stream of its device").wait().expect("alone");

        let others = load(&Sources::default().with("transport.enabled", "[\"tcp\"]"));
        let others = runtime.reconfigured(others).expect("a runtime");
        let alone = others.world().expect("a communicator");
        let refused = alone.barrier(&stream).expect_err("plugins of its own");
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }
}
