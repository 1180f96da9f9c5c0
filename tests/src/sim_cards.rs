//! Jobs whose ranks compute on simulated cards.

use std::path::PathBuf;
use std::sync::LazyLock;

use crate::ranks::Job;
use crate::{maker_plugin_folder, sim_sdk};

/// The job on simulated cards of NVIDIA, each rank on one of its own, as far as there are enough.
///
/// # Panics
/// If they cannot be built.
pub fn nvidia(job: Job) -> Job {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| maker_plugin_folder("nvidia"));
    let text = |path: &std::path::Path| path.to_str().expect("text").to_owned();
    let job = job
        .with("plugins.path", &text(&FOLDER))
        .with("plugins.probe", "inline")
        .with("plugin.nvidia.library_dir", &text(sim_sdk::nvidia()))
        .with("device.backend", "nvidia");
    (0..job.ranks())
        .fold(job, |job, rank| job.with_on(rank, "bootstrap.local_rank", &rank.to_string()))
}
