//! Opening a maker's library: the first candidate that is of use, or why there is none.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};

use crate::{Library, MissingSymbols, Search, loaded_libraries, other_versions};

/// The folders that a setting names, parted by colons.
///
/// # Errors
/// `InvalidArgument` for one that is not absolute or not there.
pub fn named_folders(setting: &str, folders: &str) -> PluginResult<Vec<PathBuf>> {
    let folders: Vec<PathBuf> =
        folders.split(':').filter(|part| !part.is_empty()).map(PathBuf::from).collect();
    for folder in &folders {
        if !folder.is_absolute() || !folder.is_dir() {
            return Err(PluginError::invalid(format!(
                "{setting}: {} is not the absolute path of a folder",
                folder.display()
            )));
        }
    }
    Ok(folders)
}

/// Opens the first candidate with which `try_it` is content.
///
/// # Errors
/// The weightiest of what went wrong: a library that works and finds no device says more than one
/// that is not there.
pub fn open<T>(
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
    // That there is no such file was just said; not that a file that it needs is missing.
    let is_said = |reason: &str| {
        let names_it = names.iter().any(|name| reason.starts_with(&format!("{name}:")));
        names_it && reason.contains("No such file")
    };
    for reason in reasons.iter().filter(|reason| !is_said(reason)) {
        let _ = write!(text, "; {reason}");
    }
    PluginError::new(Status::LibraryMissing, text)
}

/// A table of a library.
///
/// # Errors
/// `LibraryMissing` with what it lacks; all names are in the log at `info`.
pub fn table<T>(library: &Library, resolved: Result<T, MissingSymbols>) -> PluginResult<T> {
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
        let folders = |text| named_folders("library_dir", text);
        assert_eq!(folders("/usr:/tmp:").unwrap(), [Path::new("/usr"), Path::new("/tmp")]);
        for wrong in ["usr", "/usr:tmp", "/no/such/folder"] {
            let error = folders(wrong).unwrap_err();
            assert_eq!(error.status, Status::InvalidArgument);
            assert!(error.message.starts_with("library_dir: "), "{error}");
            assert!(error.message.contains("is not the absolute path of a folder"), "{error}");
        }
    }

    #[test]
    fn what_is_missing_is_said_with_where_it_was_looked_for() {
        let search = Search { named: vec!["/usr".into()], usual: vec![] };
        let error = open(&["libx.so.2", "libx.so.1"], &search, |_| Ok(())).unwrap_err();
        assert_eq!(error.status, Status::LibraryMissing);
        assert_eq!(error.message, "libx.so.2 or libx.so.1 not found: looked /usr");
    }

    #[test]
    fn a_library_that_a_library_needs_is_told_as_missing() {
        let search = Search { named: vec!["/usr".into()], usual: vec![] };
        let reasons = ["libx.so.2: No such file", "liby.so.1: No such file"].map(str::to_owned);
        let error = missing(&["libx.so.2"], &search, &reasons);
        let expected = "libx.so.2 not found: looked /usr; liby.so.1: No such file";
        assert_eq!(error.message, expected);
    }

    #[test]
    fn a_file_that_is_no_library_is_told_in_the_loaders_words() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("libx.so.2"), "no library").unwrap();
        let search = Search { named: vec![root.path().to_owned()], usual: vec![] };
        let error = open(&["libx.so.2"], &search, |_| Ok(())).unwrap_err();
        assert!(error.message.contains("libx.so.2: "), "{error}");
    }
}
