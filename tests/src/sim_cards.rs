//! Jobs whose ranks compute on simulated cards. What a card's maker offers for collectives is left out, so
//! that iccl does them by itself.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::ranks::Job;
use crate::{maker_plugin_folder, sim_sdk};

/// Cards of a simulated host.
const CARDS: &str = "8";
/// Where a process that was started by a test finds the plugin and the libraries.
const PLUGINS: &str = "ICCL_TEST_NVIDIA_PLUGINS";
const LIBRARIES: &str = "ICCL_TEST_NVIDIA_LIBRARIES";

/// The folder with the plugin alone, and that with the simulated libraries.
struct Folders {
    plugins: PathBuf,
    libraries: PathBuf,
}

fn folders() -> &'static Folders {
    static FOLDERS: LazyLock<Folders> = LazyLock::new(|| {
        let told = |name| std::env::var_os(name).map(PathBuf::from);
        if let (Some(plugins), Some(libraries)) = (told(PLUGINS), told(LIBRARIES)) {
            return Folders { plugins, libraries };
        }
        let libraries = sim_sdk::nvidia_without_nccl();
        // SAFETY: before the first use of the simulator, which reads it once; everything else in this
        // process reads the environment by the standard library.
        unsafe { std::env::set_var("ICCL_SIM_NVIDIA_DEVICES", CARDS) };
        Folders { plugins: maker_plugin_folder("nvidia"), libraries }
    });
    &FOLDERS
}

fn text(path: &Path) -> String {
    path.to_str().expect("text").to_owned()
}

/// The job on simulated cards of NVIDIA, each rank on one of its own, as far as there are enough.
///
/// # Panics
/// If they cannot be built.
pub fn nvidia(job: Job) -> Job {
    let Folders { plugins, libraries } = folders();
    let job = job
        .with("plugins.path", &text(plugins))
        .with("plugins.probe", "inline")
        .with("plugin.nvidia.library_dir", &text(libraries))
        .with("device.backend", "nvidia");
    (0..job.ranks())
        .fold(job, |job, rank| job.with_on(rank, "bootstrap.local_rank", &rank.to_string()))
}

/// As [`nvidia`], with simulated NCCL too. A process has one or the other.
///
/// # Panics
/// If they cannot be built.
pub fn nvidia_with_nccl(job: Job) -> Job {
    nvidia(job).with("plugin.nvidia.library_dir", &text(sim_sdk::nvidia()))
}

/// The folder of the simulated libraries of these cards.
pub fn libraries() -> &'static Path {
    &folders().libraries
}

/// What the processes of such a job are told besides, where each makes its own [`nvidia`].
///
/// # Panics
/// If they cannot be built.
pub fn variables() -> [(&'static str, String); 3] {
    let Folders { plugins, libraries } = folders();
    [
        (PLUGINS, text(plugins)),
        (LIBRARIES, text(libraries)),
        ("ICCL_SIM_NVIDIA_DEVICES", CARDS.to_owned()),
    ]
}

/// What processes are told that take all settings from their environment; each needs `ICCL_LOCAL_RANK`
/// besides.
///
/// # Panics
/// If they cannot be built.
pub fn settings() -> [(&'static str, String); 5] {
    let Folders { plugins, libraries } = folders();
    let tables = format!("{{ nvidia = {{ library_dir = \"{}\" }} }}", libraries.display());
    [
        ("ICCL_PLUGIN_PATH", text(plugins)),
        ("ICCL_PLUGINS_PROBE", "inline".to_owned()),
        ("ICCL_PLUGIN_SETTINGS", tables),
        ("ICCL_DEVICE", "nvidia".to_owned()),
        ("ICCL_SIM_NVIDIA_DEVICES", CARDS.to_owned()),
    ]
}
