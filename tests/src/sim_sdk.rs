//! The simulated vendor SDKs under their real names, in folders that nothing finds by itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::{cargo_build, place, workspace};

/// The simulated libraries of a maker. Built once for a test process.
///
/// # Panics
/// If they can't be built.
pub fn folder(maker: &str) -> PathBuf {
    static FOLDERS: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    folders.entry(maker.to_owned()).or_insert_with(|| lay_out(maker)).clone()
}

/// The simulated libraries of NVIDIA. Built once for a test process.
///
/// # Panics
/// If they can't be built.
pub fn nvidia() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| folder("nvidia"));
    &FOLDER
}

/// The libraries of a vendor are the folders of `tests/sim-sdk/VENDOR` that are named by a soname; cargo
/// names what it builds by the package. Headers in these folders go with the libraries.
fn lay_out(vendor: &str) -> PathBuf {
    let source = workspace().join("tests/sim-sdk").join(vendor);
    let libraries = names_in(&source, |name| name.contains(".so"));
    let packages: Vec<String> =
        libraries.iter().map(|library| package_in(&source.join(library))).collect();
    let what: Vec<&str> = packages.iter().flat_map(|package| ["-p", package]).collect();
    let built = cargo_build(&what);
    let folder = built.join("test-sim-sdk").join(vendor);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    for (library, package) in libraries.iter().zip(&packages) {
        place(&built.join(format!("lib{}.so", package.replace('-', "_"))), &folder.join(library));
        let source = source.join(library);
        let is_header = |name: &str| Path::new(name).extension().is_some_and(|is| is == "h");
        for header in names_in(&source, is_header) {
            place(&source.join(&header), &folder.join(&header));
        }
    }
    folder
}

fn names_in(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder of a simulated SDK");
    entries
        .filter_map(|entry| entry.expect("an entry").file_name().into_string().ok())
        .filter(|name| is_wanted(name))
        .collect()
}

/// The name of the package in a folder.
fn package_in(folder: &Path) -> String {
    let text = std::fs::read_to_string(folder.join("Cargo.toml")).expect("a package");
    let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    name.expect("a package has a name").to_owned()
}

/// The simulated libraries of NVIDIA without NCCL: cards, and nothing native to do collectives.
///
/// # Panics
/// If they can't be built.
pub fn nvidia_without_nccl() -> PathBuf {
    let folder = nvidia().parent().expect("a folder of all").join("nvidia-without-nccl");
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    for library in ["libcuda.so.1", "libcudart.so.12", "libcudart.so.13"] {
        place(&nvidia().join(library), &folder.join(library));
    }
    folder
}

/// What NCCL has beyond 2.18, by the version that brought it.
const NEWER_IN_NCCL: &[(u32, &str)] = &[
    (21900, "ncclCommRegister"),
    (21900, "ncclCommDeregister"),
    (21900, "ncclMemAlloc"),
    (21900, "ncclMemFree"),
    (22300, "ncclCommInitRankScalable"),
    (22700, "ncclCommShrink"),
    (22700, "ncclCommWindowRegister"),
    (22700, "ncclCommWindowDeregister"),
    (22800, "ncclAlltoAll"),
    (22800, "ncclGather"),
    (22800, "ncclScatter"),
    (22800, "ncclCommRevoke"),
];
/// How the library's data marks its version; six digits follow.
const VERSION_MARK: &[u8] = b"iccl-sim-nccl-ver:";

/// The simulated libraries of NVIDIA with an older NCCL, of 2.18 at least: it says so, and has none of the
/// symbols that came later.
///
/// # Panics
/// If they can't be built.
pub fn nvidia_with_nccl(version: u32) -> PathBuf {
    let name = format!("nvidia-nccl-{version}");
    let folder = nvidia().parent().expect("a folder of all").join(name);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    for library in ["libcuda.so.1", "libcudart.so.12", "libcudart.so.13"] {
        place(&nvidia().join(library), &folder.join(library));
    }
    let mut bytes = std::fs::read(nvidia().join("libnccl.so.2")).expect("the library");
    let marks: Vec<usize> = positions(&bytes, VERSION_MARK).collect();
    assert!(!marks.is_empty(), "the library marks its version");
    for at in marks {
        let digits = at + VERSION_MARK.len();
        bytes[digits..digits + 6].copy_from_slice(format!("{version:06}").as_bytes());
    }
    for (_, symbol) in NEWER_IN_NCCL.iter().filter(|(since, _)| *since > version) {
        // Under another name in the table of symbols, which is not found by the hash of the real one.
        let entry = [b"\0", symbol.as_bytes(), b"\0"].concat();
        let places: Vec<usize> = positions(&bytes, &entry).collect();
        assert!(!places.is_empty(), "the library has {symbol}");
        places.into_iter().for_each(|at| bytes[at + 1] = b'-');
    }
    let beside = folder.join(format!("libnccl.{}.new", std::process::id()));
    std::fs::write(&beside, bytes).expect("a library can be written");
    std::fs::rename(&beside, folder.join("libnccl.so.2")).expect("and put in its place");
    folder
}

/// Where some bytes occur.
fn positions<'a>(bytes: &'a [u8], wanted: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    bytes
        .windows(wanted.len())
        .enumerate()
        .filter(move |(_, found)| *found == wanted)
        .map(|(at, _)| at)
}
