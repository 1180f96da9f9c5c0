//! NVIDIA's libraries: which files they are, where they are looked for, and what came of it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult, Settings};
use iccl_vendor_support::{
    Library, Search, loaded_libraries, other_versions, python_folders, variable_folders,
};

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
    let named = named_folders(settings.text(LIBRARY_DIR).unwrap_or_default())?;
    let variable = |name: &str| std::env::var_os(name);
    let mut usual = variable_folders(&["CUDA_HOME", "CUDA_PATH"], &["lib64", "lib"], variable);
    usual.push("/usr/local/cuda/lib64".into());
    for root in variable_folders(&["VIRTUAL_ENV", "CONDA_PREFIX"], &[""], variable) {
        usual.extend(python_folders(&root, PYTHON_PACKAGES));
    }
    Ok(Search { named, usual })
}

/// The folders of the setting, parted by colons.
fn named_folders(setting: &str) -> PluginResult<Vec<PathBuf>> {
    let folders: Vec<PathBuf> =
        setting.split(':').filter(|part| !part.is_empty()).map(PathBuf::from).collect();
    for folder in &folders {
        if !folder.is_absolute() || !folder.is_dir() {
            return Err(PluginError::invalid(format!(
                "{LIBRARY_DIR}: {} is not the absolute path of a folder",
                folder.display()
            )));
        }
    }
    Ok(folders)
}

/// Where the driver is looked for: it belongs to the machine, not to a toolkit, so that a named
/// folder without one does not hide it.
pub(crate) fn driver_search(search: &Search) -> Search {
    let holds_driver = |folder: &&PathBuf| DRIVER.iter().any(|name| folder.join(name).exists());
    Search {
        named: search.named.iter().filter(holds_driver).cloned().collect(),
        usual: vec!["/usr/lib/wsl/lib".into()],
    }
}

/// Opens the first candidate with which `try_it` is content.
///
/// # Errors
/// The weightiest of what went wrong: a library that works and finds no device says more than one
/// that is not there.
pub(crate) fn open<T>(
    names: &[&str],
    search: &Search,
    mut try_it: impl FnMut(&Library) -> PluginResult<T>,
) -> PluginResult<(T, PathBuf)> {
    let loaded = loaded_libraries();
    let mut reasons: Vec<String> = Vec::new();
    let mut answer: Option<PluginError> = None;
    for candidate in search.candidates(names, &loaded) {
        // SAFETY: the operator, the loader or the maker's installer put the library there to be
        // run, and this plugin is in a process that may run it.
        let library = match unsafe { candidate.open() } {
            Ok(library) => library,
            Err(words) => {
                reasons.push(words);
                continue;
            }
        };
        let path = library.path().to_owned();
        match try_it(&library) {
            Ok(value) => {
                tell_of_others(&loaded, &path);
                tracing::info!(path = %path.display(), "uses a library");
                return Ok((value, path));
            }
            Err(error) if error.status == Status::LibraryMissing => reasons.push(error.message),
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "a library is of no use");
                answer.get_or_insert(error);
            }
        }
    }
    Err(answer.unwrap_or_else(|| missing(names, search, &reasons)))
}

/// Two versions of a library in one process have two states; that can be well, and whoever looks
/// for a fault has to know.
fn tell_of_others(loaded: &[PathBuf], used: &Path) {
    for other in other_versions(loaded, used) {
        tracing::warn!(
            loaded = %other.display(),
            used = %used.display(),
            "this process had loaded another version of a library before"
        );
    }
}

fn missing(names: &[&str], search: &Search, reasons: &[String]) -> PluginError {
    let mut text = format!("{} not found: looked {}", names.join(" or "), search.places());
    // That there is no such file was just said.
    for reason in reasons.iter().filter(|reason| !reason.contains("No such file")) {
        let _ = write!(text, "; {reason}");
    }
    PluginError::new(Status::LibraryMissing, text)
}

/// A table of a library, or all that it lacks as `LibraryMissing`.
pub(crate) fn table<T>(
    library: &Library,
    resolved: Result<T, iccl_vendor_support::MissingSymbols>,
) -> PluginResult<T> {
    resolved.map_err(|missing| {
        let all = missing.0.join(", ");
        tracing::info!(path = %library.path().display(), lacks = %all, "a library is not usable");
        let text = format!("{}: {missing}", library.path().display());
        PluginError::new(Status::LibraryMissing, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_folders_are_absolute_and_there() {
        assert_eq!(named_folders("/usr:/tmp:").unwrap(), [Path::new("/usr"), Path::new("/tmp")]);
        for wrong in ["usr", "/usr:tmp", "/no/such/folder"] {
            let error = named_folders(wrong).unwrap_err();
            assert_eq!(error.status, Status::InvalidArgument);
            assert!(error.message.contains("is not the absolute path of a folder"), "{error}");
        }
    }

    #[test]
    fn a_folder_without_driver_does_not_hide_the_machines() {
        let search = Search { named: vec!["/usr".into()], usual: vec![] };
        assert!(driver_search(&search).named.is_empty());
    }

    #[test]
    fn what_is_missing_is_said_with_where_it_was_looked_for() {
        let search = Search { named: vec!["/usr".into()], usual: vec![] };
        let error = open(RUNTIME, &search, |_| Ok(())).unwrap_err();
        assert_eq!(error.status, Status::LibraryMissing);
        assert_eq!(error.message, "libcudart.so.13 or libcudart.so.12 not found: looked /usr");
    }

    #[test]
    fn a_file_that_is_no_library_is_told_in_the_loaders_words() {
        let root = std::env::temp_dir().join(format!("iccl-nvidia-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("libnccl.so.2"), "no library").unwrap();
        let search = Search { named: vec![root.clone()], usual: vec![] };
        let error = open(NCCL, &search, |_| Ok(())).unwrap_err();
        std::fs::remove_dir_all(&root).unwrap();
        assert!(error.message.contains("libnccl.so.2: "), "{error}");
    }
}
