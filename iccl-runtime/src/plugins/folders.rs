//! Where plugins are looked for, in which order, and which files there are candidates.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::file;
use super::reason::{Reason, Refusal};
use super::record::Record;
use crate::config::Config;

/// The folder that packages of the operating system use.
const SYSTEM_FOLDER: &str = "/usr/lib/iccl/plugins";

/// The folder's name beside the executable or the library.
const FOLDER_NAME: &str = "plugins";

/// A folder to search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    /// Whether the configuration names it; then it has to be there.
    pub(super) configured: bool,
}

/// The search order, without repetitions of the same text.
pub(super) fn search_order(config: &Config) -> Vec<Folder> {
    let configured = config.plugins.path.iter().chain(&config.plugins.environment_path);
    let beside = own_places().into_iter().map(|place| place.join(FOLDER_NAME));
    let mut order: Vec<Folder> = Vec::new();
    let all = configured
        .map(|path| Folder { path: path.clone(), configured: true })
        .chain(beside.map(|path| Folder { path, configured: false }))
        .chain([Folder { path: SYSTEM_FOLDER.into(), configured: false }]);
    for folder in all {
        if order.iter().all(|known| known.path != folder.path) {
            order.push(folder);
        }
    }
    order
}

/// The folder of the executable, and that of the shared object that this code is in, if another.
pub(super) fn own_places() -> Vec<PathBuf> {
    let executable = std::env::current_exe().ok();
    let places = executable.into_iter().chain(own_object());
    let mut folders: Vec<PathBuf> = Vec::new();
    for folder in places.filter_map(|file| Some(file.parent()?.to_owned())) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

/// The file that this code was loaded from.
fn own_object() -> Option<PathBuf> {
    let address = own_object as fn() -> Option<PathBuf> as *const libc::c_void;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `dladdr` looks the address up and writes `info`, of which zeroes are a valid value.
    let info = unsafe {
        if libc::dladdr(address, info.as_mut_ptr()) == 0 {
            return None;
        }
        info.assume_init()
    };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a name that `dladdr` gives is a C string that lives as long as the object is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    std::fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()
}

/// What a folder holds: the paths of candidates in the order of their names, and the records of
/// what is not even one. A folder that can't be used has one record, about itself.
pub(super) fn list(folder: &Folder, allow_insecure: bool) -> (Vec<PathBuf>, Vec<Record>) {
    let refuse = |refusal| (Vec::new(), vec![Record::refused(&folder.path, refusal)]);
    let names = match read_names(&folder.path) {
        Ok(names) => names,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return if folder.configured {
                refuse(Refusal::new(Reason::FolderMissing, "there is no such folder"))
            } else {
                tracing::debug!(folder = %folder.path.display(), "no plugin folder here");
                (Vec::new(), Vec::new())
            };
        }
        Err(error) => return refuse(Refusal::new(Reason::FolderUnreadable, error.to_string())),
    };
    if names.iter().all(|name| kind_of(name) == Kind::Ignored) {
        return (Vec::new(), Vec::new());
    }
    if let Err(refusal) = file::check_folder(&folder.path, allow_insecure) {
        return refuse(refusal);
    }
    let mut candidates = Vec::new();
    let mut records = Vec::new();
    for name in names {
        let path = folder.path.join(OsStr::from_bytes(&name));
        match kind_of(&name) {
            Kind::Candidate => candidates.push(path),
            Kind::OtherLibrary => records.push(Record::refused(
                path,
                Refusal::new(Reason::OtherName, "not named libiccl_NAME.so"),
            )),
            Kind::Ignored => {}
        }
    }
    (candidates, records)
}

/// The names in a folder, in byte order.
fn read_names(folder: &Path) -> std::io::Result<Vec<Vec<u8>>> {
    let mut names = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name().as_bytes().to_vec()))
        .collect::<std::io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Candidate,
    OtherLibrary,
    Ignored,
}

/// What a file is by its name.
fn kind_of(name: &[u8]) -> Kind {
    let Some(stem) = name.strip_suffix(b".so") else { return Kind::Ignored };
    match stem.strip_prefix(b"libiccl_") {
        Some(plugin) if !plugin.is_empty() => Kind::Candidate,
        _ => Kind::OtherLibrary,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;

    #[test]
    fn b070_names_are_judged_whatever_their_length() {
        for (name, kind) in [
            ("libiccl_a.so", Kind::Candidate),
            ("libiccl_transport-tcp.so", Kind::Candidate),
            ("libiccl_.so", Kind::OtherLibrary),
            ("libiccl.so", Kind::OtherLibrary),
            ("x.so", Kind::OtherLibrary),
            (".so", Kind::OtherLibrary),
            ("a", Kind::Ignored),
            ("lib", Kind::Ignored),
            ("", Kind::Ignored),
            ("libiccl_a.so.bak", Kind::Ignored),
            ("libiccl_a.so.1", Kind::Ignored),
        ] {
            assert_eq!(kind_of(name.as_bytes()), kind, "{name}");
        }
    }

    fn sources() -> Sources {
        Sources {
            environment: [("ICCL_PLUGIN_PATH", "/second:/third")].into_iter().collect(),
            ..Sources::default()
        }
    }

    #[test]
    fn the_search_order_is_file_environment_executable_system() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("iccl.toml");
        std::fs::write(&file, "[plugins]\npath = [\"/first\", \"/third\"]\n").unwrap();
        let config = Config::load(&sources().with_file(file)).unwrap();
        let order = search_order(&config);
        let paths: Vec<&Path> = order.iter().map(|folder| folder.path.as_path()).collect();
        let beside = std::env::current_exe().unwrap().parent().unwrap().join("plugins");
        assert_eq!(
            paths,
            [
                Path::new("/first"),
                Path::new("/third"),
                Path::new("/second"),
                &beside,
                Path::new("/usr/lib/iccl/plugins")
            ]
        );
        assert!(order[2].configured && !order[3].configured);
    }

    #[test]
    fn b067_a_setuid_process_ignores_the_variable() {
        let config = Config::load(&Sources { raised_privileges: true, ..sources() }).unwrap();
        assert!(search_order(&config).iter().all(|folder| !folder.configured));
    }
}
