//! The simulated libraries in this process, and the plugin on top of them.

use std::ffi::{CString, c_char, c_int};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iccl_plugin_api::host::OpenDevice;
use iccl_runtime::config::{Config, Sources};
use iccl_runtime::plugins::PluginSet;
use libloading::Library;

use super::Maker;
use crate::ranks::Job;

/// The plugin, with the machine to itself as long as this is held: settings and faults of the
/// simulator are the process's.
pub struct Machine {
    /// The plugin alone.
    pub set: PluginSet,
    /// Whose it is.
    pub maker: Maker,
    owner: Library,
    _alone: MutexGuard<'static, ()>,
}

impl Machine {
    /// Loads the plugin on the simulated machine, whose settings begin anew.
    ///
    /// # Panics
    /// If the plugin does not find its cards.
    pub fn new(maker: &Maker) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        // A test that failed leaves nothing half-made: settings are set anew by each.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let count = format!("ICCL_SIM_{}_DEVICES", maker.plugin().to_uppercase());
        // SAFETY: everything in this process reads the environment by the standard library, or, as the
        // simulator, not before this and under this lock.
        unsafe { std::env::set_var(count, maker.cards.to_string()) };
        let folder = maker.folder();
        let mut machine = Self {
            set: no_plugins(),
            maker: *maker,
            owner: library(maker, maker.owner),
            _alone: alone,
        };
        for (key, value) in [("faults", ""), ("delay_us", "0")].iter().chain(maker.simulated) {
            machine.simulate(key, value);
        }
        let setting = |key: &str| format!("plugin.{}.{key}", maker.plugin());
        let mut sources = Sources::default()
            .with("plugins.path", maker.plugin_folder().to_str().expect("text"))
            .with("plugins.probe", "inline")
            .with(setting("library_dir"), folder.to_str().expect("text"));
        for (key, value) in maker.settings {
            sources = sources.with(setting(key), *value);
        }
        machine.set = PluginSet::load(&Config::load(&sources).expect("settings")).expect("plugins");
        let records = machine.set.records();
        assert_eq!(machine.set.devices_of(maker.plugin()).count(), maker.cards, "{records:?}");
        machine
    }

    /// Sets something of the simulator.
    ///
    /// # Panics
    /// If the simulator does not understand it.
    pub fn simulate(&self, key: &str, value: &str) {
        let (key, value) = (CString::new(key).expect("text"), CString::new(value).expect("text"));
        // SAFETY: this is the function's signature, and both texts end with a zero.
        let status = unsafe {
            let set: libloading::Symbol<
                '_,
                unsafe extern "C" fn(*const c_char, *const c_char) -> c_int,
            > = self.owner.get(b"iccl_sim_set").expect("the simulator's own function");
            set(key.as_ptr(), value.as_ptr())
        };
        assert_eq!(status, 0, "{key:?}");
    }

    /// A job of ranks that are threads of this process, each on one of the cards, as far as there are
    /// enough.
    pub fn job(&self, job: Job) -> Job {
        let libraries = self.maker.folder();
        let setting = |key: &str| format!("plugin.{}.{key}", self.maker.plugin());
        let job = job
            .with("plugins.path", self.maker.plugin_folder().to_str().expect("text"))
            .with("plugins.probe", "inline")
            .with(&setting("library_dir"), libraries.to_str().expect("text"))
            .with("device.backend", self.maker.plugin());
        (0..job.ranks())
            .fold(job, |job, rank| job.with_on(rank, "bootstrap.local_rank", &rank.to_string()))
    }

    /// Opens a card.
    pub fn card(&self, index: usize) -> Arc<OpenDevice> {
        let mut cards = self.set.devices_of(self.maker.plugin());
        Arc::new(cards.nth(index).expect("so many").open().expect("a card"))
    }

    /// One of the simulated libraries: the same object as the plugin has.
    pub fn library(&self, name: &str) -> Library {
        library(&self.maker, name)
    }
}

fn library(maker: &Maker, name: &str) -> Library {
    // SAFETY: the simulator's libraries do nothing when they are opened.
    unsafe { Library::new(maker.folder().join(name)) }.expect("a simulated library")
}

fn no_plugins() -> PluginSet {
    let folder = tempfile::tempdir().expect("a folder");
    let sources = Sources::default().with("plugins.path", folder.path().to_str().expect("text"));
    PluginSet::load(&Config::load(&sources).expect("settings")).expect("no plugins")
}
