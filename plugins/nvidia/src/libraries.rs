//! NVIDIA's libraries: which files they are, and where they are looked for.

use iccl_plugin_api::sdk::{PluginResult, Settings};
use iccl_vendor_support::{Search, named_folders, python_folders, variable_folders};

/// The runtime, the newest first: a driver that is too old for it may do for the one before.
pub(crate) const RUNTIME: &[&str] = &["libcudart.so.13", "libcudart.so.12"];
/// The driver.
pub(crate) const DRIVER: &[&str] = &["libcuda.so.1"];
/// NCCL, of which CUDA 12's and 13's builds have the same name.
pub(crate) const NCCL: &[&str] = &["libnccl.so.2"];

/// The setting that names folders.
pub(crate) const LIBRARY_DIR: &str = "library_dir";

/// Where pip's packages have them.
const PYTHON_PACKAGES: &[&str] = &["nvidia/cu13/lib", "nvidia/cuda_runtime/lib", "nvidia/nccl/lib"];

/// Where runtime and NCCL are looked for.
///
/// # Errors
/// `InvalidArgument` for a folder in the settings that is not absolute or not there.
pub(crate) fn search(settings: &Settings<'_>) -> PluginResult<Search> {
    let named = named_folders(LIBRARY_DIR, settings.text(LIBRARY_DIR).unwrap_or_default())?;
    let variable = |name: &str| std::env::var_os(name);
    let mut usual = variable_folders(&["CUDA_HOME", "CUDA_PATH"], &["lib64", "lib"], variable);
    usual.push("/usr/local/cuda/lib64".into());
    for root in variable_folders(&["VIRTUAL_ENV", "CONDA_PREFIX"], &[""], variable) {
        usual.extend(python_folders(&root, PYTHON_PACKAGES));
    }
    Ok(Search { named, usual })
}

/// Where the driver is looked for.
pub(crate) fn driver_search(search: &Search) -> Search {
    search.for_driver(DRIVER, vec!["/usr/lib/wsl/lib".into()])
}
