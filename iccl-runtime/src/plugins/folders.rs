//! Where plugins are looked for, in which order, and which files there are candidates.

use std::ffi::{CStr, OsStr};
use std::io::ErrorKind;
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

/// Where the folder is in a folder of libraries, which other libraries share.
const LIBRARY_FOLDER: &str = "iccl/plugins";

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
    let executable = std::env::current_exe().ok();
    let beside = beside(executable.as_deref(), own_object().as_deref());
    let mut order: Vec<Folder> = Vec::new();
    let all = configured
        .map(|path| Folder { path: path.clone(), configured: true })
        .chain(beside.into_iter().map(|path| Folder { path, configured: false }))
        .chain([Folder { path: SYSTEM_FOLDER.into(), configured: false }]);
    for folder in all {
        if order.iter().all(|known| known.path != folder.path) {
            order.push(folder);
        }
    }
    order
}

/// The folders that belong to the executable, and to the shared object that this code is in, if that
/// is another file: beside them, and where an installation has them (`bin/iccl` and `lib/libiccl.so`
/// share `lib/iccl/plugins`).
fn beside(executable: Option<&Path>, object: Option<&Path>) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    if let Some(place) = executable.and_then(Path::parent) {
        folders.push(place.join(FOLDER_NAME));
        if let Some(prefix) = place.parent().filter(|_| place.ends_with("bin")) {
            folders.push(prefix.join("lib").join(LIBRARY_FOLDER));
        }
    }
    let library = object.filter(|object| Some(*object) != executable);
    if let Some(place) = library.and_then(Path::parent) {
        folders.push(place.join(FOLDER_NAME));
        folders.push(place.join(LIBRARY_FOLDER));
    }
    folders
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
        // Beside a library, `iccl` may be a file.
        Err(error)
            if error.kind() == ErrorKind::NotFound
                || error.kind() == ErrorKind::NotADirectory && !folder.configured =>
        {
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
    fn an_installed_command_and_library_share_a_folder() {
        let path = Path::new;
        let command = path("/opt/iccl/bin/iccl");
        assert_eq!(
            beside(Some(command), Some(command)),
            [path("/opt/iccl/bin/plugins"), path("/opt/iccl/lib/iccl/plugins")]
        );
        let library = path("/opt/iccl/lib/libiccl.so.1.0.0");
        assert_eq!(
            beside(Some(path("/home/a/program")), Some(library)),
            [
                path("/home/a/plugins"),
                path("/opt/iccl/lib/plugins"),
                path("/opt/iccl/lib/iccl/plugins")
            ]
        );
    }

    #[test]
    fn a_file_where_a_folder_may_be_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("iccl"), "the command").unwrap();
        let path = folder.path().join("iccl/plugins");
        let found = |configured| list(&Folder { path: path.clone(), configured }, false).1.len();
        assert_eq!((found(false), found(true)), (0, 1));
    }

    #[test]
    fn b067_a_setuid_process_ignores_the_variable() {
        let config = Config::load(&Sources { raised_privileges: true, ..sources() }).unwrap();
        assert!(search_order(&config).iter().all(|folder| !folder.configured));
    }
}
