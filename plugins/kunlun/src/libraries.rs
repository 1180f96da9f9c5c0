//! Kunlun's libraries: which files they are, and where they are looked for.

use std::path::{Path, PathBuf};

use iccl_plugin_api::sdk::{PluginResult, Settings};
use iccl_vendor_support::{Search, named_folders, python_folders, variable_folders};

/// The native runtime, the newest first.
pub(crate) const XPURT: &[&str] = &["libxpurt.so.2", "libxpurt.so.1", "libxpurt.so"];
/// P800's runtime with CUDA's names. Never opened by name: NVIDIA's has the same ones.
pub(crate) const CUDART: &[&str] =
    &["libcudart.so", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so.13"];
/// BKCL.
pub(crate) const BKCL: &[&str] = &["libbkcl.so", "libbkcl.so.1"];
/// What a libbkcl for P800 needs, from the folder of the runtime, where the loader may not look.
pub(crate) const NEEDED_BY_BKCL: &[&str] = &["libxpuml.so.1", "libxpucuda.so.1"];

/// The setting that names folders.
pub(crate) const LIBRARY_DIR: &str = "library_dir";

/// Where Python's packages have them: `torch_xmlir`, and Paddle.
const PYTHON_RUNTIMES: &[&str] = &["torch_xmlir/xre/so", "paddle/libs"];
const PYTHON_BKCL: &[&str] = &["torch_xmlir", "torch_xmlir/xccl/so", "paddle/libs"];

/// Where the runtime is looked for.
///
/// # Errors
/// `InvalidArgument` for a folder in the settings that is not absolute or not there.
pub(crate) fn search(settings: &Settings<'_>) -> PluginResult<Search> {
    let named = named_folders(LIBRARY_DIR, settings.text(LIBRARY_DIR).unwrap_or_default())?;
    let variable = |name: &str| std::env::var_os(name);
    let mut usual = variable_folders(&["XRE_PATH"], &["so", "lib64", ""], variable);
    usual.extend(["/usr/local/xpu/so", "/opt/xre/so"].map(PathBuf::from));
    for root in python_roots() {
        usual.extend(python_folders(&root, PYTHON_RUNTIMES));
        usual.push(root.join("xcudart/lib"));
    }
    Ok(Search { named, usual })
}

/// Where BKCL is looked for: last beside the runtime.
pub(crate) fn bkcl_search(search: &Search, runtime: &Path) -> Search {
    let variable = |name: &str| std::env::var_os(name);
    let mut usual = variable_folders(&["BKCL_PATH", "XCCL_PATH"], &["so", "lib64", ""], variable);
    usual.extend(["/usr/local/xccl/so", "/opt/xccl/so"].map(PathBuf::from));
    for root in python_roots() {
        usual.extend(python_folders(&root, PYTHON_BKCL));
    }
    usual.extend(runtime.parent().map(Path::to_owned));
    Search { named: search.named.clone(), usual }
}

/// Where BKCL's header lies if it is not beside the library.
pub(crate) fn usual_headers() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name);
    let mut folders = variable_folders(&["BKCL_PATH", "XCCL_PATH"], &["include"], variable);
    folders.extend(["/usr/local/xccl/include", "/opt/xccl/include"].map(PathBuf::from));
    folders
}

fn python_roots() -> Vec<PathBuf> {
    variable_folders(&["VIRTUAL_ENV", "CONDA_PREFIX"], &[""], |name| std::env::var_os(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bkcl_is_looked_for_where_the_operator_says_or_last_beside_the_runtime() {
        let named = Search { named: vec!["/usr".into()], usual: vec![] };
        let runtime = Path::new("/opt/xre/so/libxpurt.so.2");
        assert_eq!(bkcl_search(&named, runtime).named, named.named);
        let search = bkcl_search(&Search::default(), runtime);
        assert_eq!(search.usual.last().unwrap(), Path::new("/opt/xre/so"));
        assert!(search.usual.contains(&"/usr/local/xccl/so".into()));
    }
}
