//! The command with clusters that it plays itself: plugins and simulated SDKs of every maker that there is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::command::iccl_with;
use crate::{PLUGIN_PACKAGES, lay_out_in, sim_sdk, workspace};

/// All makers, in the order of the documentation.
const MAKERS: [&str; 4] = ["nvidia", "ascend", "cambricon", "kunlun"];

/// The makers that have both a plugin and a simulated SDK.
pub fn makers() -> Vec<&'static str> {
    let is_there = |maker: &&str| {
        let manifest = workspace().join("plugins").join(maker).join("Cargo.toml");
        manifest.is_file() && workspace().join("tests/sim-sdk").join(maker).is_dir()
    };
    MAKERS.into_iter().filter(is_there).collect()
}

/// A cluster file of this workspace.
pub fn file(name: &str) -> PathBuf {
    workspace().join("tests/clusters").join(name)
}

/// A call of `iccl` that finds the plugins of all makers, but no simulated SDK.
pub fn iccl(arguments: &[&str]) -> Command {
    static PLUGINS: LazyLock<PathBuf> = LazyLock::new(|| {
        let makers: Vec<String> =
            makers().iter().map(|maker| format!("iccl-plugin-{maker}")).collect();
        let packages: Vec<&str> =
            PLUGIN_PACKAGES.iter().copied().chain(makers.iter().map(String::as_str)).collect();
        lay_out_in("test-plugins-cluster", &packages)
    });
    iccl_with(&PLUGINS, arguments)
}

/// The folder of the simulated SDKs of `makers`.
///
/// # Panics
/// If they can't be built.
pub fn sdks(makers: &[&str]) -> PathBuf {
    makers.iter().for_each(|maker| drop(sim_sdk::folder(maker)));
    sim_sdk::folder("nvidia").parent().map(Path::to_owned).expect("a folder of all")
}
