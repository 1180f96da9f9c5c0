//! Cambricon's libraries: which files they are, and where they are looked for.

use std::path::PathBuf;

use iccl_plugin_api::sdk::{PluginResult, Settings};
use iccl_vendor_support::{Search, named_folders, variable_folders};

/// The runtime. What it is linked to by the number of its version is found by the plain name too.
pub(crate) const RUNTIME: &[&str] = &["libcnrt.so"];
/// The driver's library; some installations have only the second name.
pub(crate) const DRIVER: &[&str] = &["libcndrv.so", "libcndrv.so.2"];
/// CNCL.
pub(crate) const CNCL: &[&str] = &["libcncl.so.1", "libcncl.so"];

/// The setting that names folders.
pub(crate) const LIBRARY_DIR: &str = "library_dir";

/// Where Neuware is installed if nothing says otherwise.
const DEFAULT_FOLDER: &str = "/usr/local/neuware/lib64";

/// Where runtime and CNCL are looked for.
///
/// # Errors
/// `InvalidArgument` for a folder in the settings that is not absolute or not there.
pub(crate) fn search(settings: &Settings<'_>) -> PluginResult<Search> {
    let named = named_folders(LIBRARY_DIR, settings.text(LIBRARY_DIR).unwrap_or_default())?;
    Ok(Search { named, usual: usual() })
}

/// Where the driver is looked for: Neuware's folders have it too.
pub(crate) fn driver_search(search: &Search) -> Search {
    search.for_driver(DRIVER, usual())
}

fn usual() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name);
    let mut usual = variable_folders(&["NEUWARE_HOME"], &["lib64"], variable);
    usual.push(DEFAULT_FOLDER.into());
    usual
}
