//! The simulated libraries in this process, and the plugin on top of them.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use iccl_plugin_api::host::OpenDevice;
use iccl_runtime::config::{Config, Sources};
use iccl_runtime::plugins::PluginSet;
use iccl_tests::{maker_plugin_folder, sim_sdk};
use libloading::Library;

/// The cards of the simulated machine.
pub(crate) const CARDS: usize = 5;

/// One of the simulated libraries: the same object as the plugin has.
fn library(name: &str) -> Library {
    // SAFETY: the simulator's libraries do nothing when they are opened.
    unsafe { Library::new(sim_sdk::nvidia().join(name)) }.expect("a simulated library")
}

/// The plugin, with the machine to itself as long as this is held: settings and faults of the
/// simulator are the process's.
pub(crate) struct Machine {
    pub(crate) set: PluginSet,
    driver: Library,
    runtime: Library,
    _alone: MutexGuard<'static, ()>,
}

impl Machine {
    pub(crate) fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        static FOLDER: LazyLock<std::path::PathBuf> =
            LazyLock::new(|| maker_plugin_folder("nvidia"));
        // A test that failed leaves nothing half-made: settings are set anew by each.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // One more than the ranks of a test: one card is spoilt for good.
        // SAFETY: everything in this process reads the environment by the standard library, or, as the
        // simulator, not before this and under this lock.
        unsafe { std::env::set_var("ICCL_SIM_NVIDIA_DEVICES", CARDS.to_string()) };
        let (driver, runtime) = (library("libcuda.so.1"), library("libcudart.so.13"));
        let mut machine = Self { set: no_plugins(), driver, runtime, _alone: alone };
        machine.simulate("faults", "");
        machine.simulate("delay_us", "0");
        machine.simulate("dma_buf", "1");
        let sources = Sources::default()
            .with("plugins.path", FOLDER.to_str().expect("text"))
            .with("plugins.probe", "inline")
            .with("plugin.nvidia.join_timeout", "20s")
            .with("plugin.nvidia.library_dir", sim_sdk::nvidia().to_str().expect("text"));
        machine.set = PluginSet::load(&Config::load(&sources).expect("settings")).expect("plugins");
        let records = machine.set.records();
        assert_eq!(machine.set.devices().len(), CARDS, "{records:?}");
        machine
    }

    /// Sets something of the simulator.
    pub(crate) fn simulate(&self, key: &str, value: &str) {
        let (key, value) = (CString::new(key).expect("text"), CString::new(value).expect("text"));
        // SAFETY: this is the function's signature, and both texts end with a zero.
        let status = unsafe {
            let set: libloading::Symbol<
                '_,
                unsafe extern "C" fn(*const c_char, *const c_char) -> c_int,
            > = self.driver.get(b"iccl_sim_set").expect("the simulator's own function");
            set(key.as_ptr(), value.as_ptr())
        };
        assert_eq!(status, 0, "{key:?}");
    }

    /// Opens a card.
    pub(crate) fn card(&self, index: usize) -> Arc<OpenDevice> {
        Arc::new(self.set.devices()[index].open().expect("a card"))
    }

    /// The card that libcudart takes this thread to have chosen.
    pub(crate) fn current_card(&self) -> i32 {
        let mut device = -1;
        // SAFETY: this is the function's signature, and there is room for the number.
        let status = unsafe {
            let get: libloading::Symbol<'_, unsafe extern "C" fn(*mut c_int) -> c_int> =
                self.runtime.get(b"cudaGetDevice").expect("a function");
            get(&raw mut device)
        };
        assert_eq!(status, 0);
        device
    }

    /// Chooses a card for this thread, as an application does.
    pub(crate) fn choose_card(&self, device: i32) {
        // SAFETY: this is the function's signature.
        let status = unsafe {
            let set: libloading::Symbol<'_, unsafe extern "C" fn(c_int) -> c_int> =
                self.runtime.get(b"cudaSetDevice").expect("a function");
            set(device)
        };
        assert_eq!(status, 0);
    }

    /// The context that this thread has, null if none.
    pub(crate) fn current_context(&self) -> *mut c_void {
        let mut context = std::ptr::null_mut();
        // SAFETY: this is the function's signature, and there is room for the pointer.
        let status = unsafe {
            let get: libloading::Symbol<'_, unsafe extern "C" fn(*mut *mut c_void) -> c_int> =
                self.driver.get(b"cuCtxGetCurrent").expect("a function");
            get(&raw mut context)
        };
        assert_eq!(status, 0);
        context
    }
}

fn no_plugins() -> PluginSet {
    let folder = tempfile::tempdir().expect("a folder");
    let sources = Sources::default().with("plugins.path", folder.path().to_str().expect("text"));
    PluginSet::load(&Config::load(&sources).expect("settings")).expect("no plugins")
}
