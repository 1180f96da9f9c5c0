//! Ascend's libraries: which files they are, and where they are looked for.

use iccl_plugin_api::sdk::{PluginResult, Settings};
use iccl_vendor_support::{Search, named_folders, variable_folders};

/// The runtime.
pub(crate) const RUNTIME: &[&str] = &["libascendcl.so"];
/// HCCL's operations; up to CANN 8 also its communicators.
pub(crate) const HCCL: &[&str] = &["libhccl.so"];
/// HCCL's communicators from CANN 9 on.
pub(crate) const HCOMM: &[&str] = &["libhcomm.so"];

/// The setting that names folders.
pub(crate) const LIBRARY_DIR: &str = "library_dir";

/// What CANN's `set_env.sh` sets, the more exact first.
const VARIABLES: &[&str] = &["ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"];

/// Where CANN's installers put it.
const INSTALLED: &[&str] =
    &["/usr/local/Ascend/ascend-toolkit/latest/lib64", "/usr/local/Ascend/cann/lib64"];

/// Where the libraries are looked for.
///
/// # Errors
/// `InvalidArgument` for a folder in the settings that is not absolute or not there.
pub(crate) fn search(settings: &Settings<'_>) -> PluginResult<Search> {
    let named = named_folders(LIBRARY_DIR, settings.text(LIBRARY_DIR).unwrap_or_default())?;
    let mut usual = variable_folders(VARIABLES, &["lib64"], |name| std::env::var_os(name));
    usual.extend(INSTALLED.iter().map(Into::into));
    Ok(Search { named, usual })
}
