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

/// The simulated libraries of NVIDIA with an older NCCL, of 2.18 at least: it says so, and has none of the
/// symbols that came later.
///
/// # Panics
/// If they can't be built.
pub fn nvidia_with_nccl(version: u32) -> PathBuf {
    let folder = beside(nvidia(), &format!("nvidia-nccl-{version}"));
    for library in ["libcuda.so.1", "libcudart.so.12", "libcudart.so.13"] {
        place(&nvidia().join(library), &folder.join(library));
    }
    let mut library = Patched::new(&nvidia().join("libnccl.so.2"));
    library.set(b"iccl-sim-nccl-ver:", format!("{version:06}").as_bytes());
    let newer = NEWER_IN_NCCL.iter().filter(|(since, _)| *since > version);
    newer.for_each(|(_, symbol)| library.hide(symbol));
    library.write(&folder.join("libnccl.so.2"));
    folder
}

/// What CANN has beyond 8.1.
const NEWER_THAN_CANN_8: &[&str] =
    &["aclrtLaunchHostFunc", "aclrtGetDeviceInfo", "aclrtDeviceGetPCIBusId"];
/// What is in `libhcomm.so` from CANN 9 on.
const OF_COMMUNICATORS: &[&str] = &[
    "HcclGetErrorString",
    "HcclGetRootInfo",
    "HcclCommInitRootInfo",
    "HcclCommInitAll",
    "HcclCommDestroy",
    "HcclGetRankSize",
    "HcclGetRankId",
    "HcclGetCommName",
    "HcclGetCommAsyncError",
    "HcclGetCommConfigCapability",
];

/// The simulated libraries of Ascend as in CANN 8.1: without newer functions, and with threads for
/// reports.
///
/// # Panics
/// If they can't be built.
pub fn ascend_8() -> PathBuf {
    let whole = folder("ascend");
    let folder = beside(&whole, "ascend-8");
    place(&whole.join("libhccl.so"), &folder.join("libhccl.so"));
    let mut library = Patched::new(&whole.join("libascendcl.so"));
    library.set(b"iccl-sim-acl-ver:", b"01.13");
    NEWER_THAN_CANN_8.iter().for_each(|symbol| library.hide(symbol));
    library.write(&folder.join("libascendcl.so"));
    folder
}

/// The simulated libraries of Ascend with communicators in a library of their own.
///
/// # Panics
/// If they can't be built.
pub fn ascend_with_hcomm() -> PathBuf {
    let whole = folder("ascend");
    let folder = beside(&whole, "ascend-hcomm");
    place(&whole.join("libascendcl.so"), &folder.join("libascendcl.so"));
    place(&whole.join("libhccl.so"), &folder.join("libhcomm.so"));
    let mut library = Patched::new(&whole.join("libhccl.so"));
    OF_COMMUNICATORS.iter().for_each(|symbol| library.hide(symbol));
    library.write(&folder.join("libhccl.so"));
    folder
}

/// Functions of Cambricon's that older releases may lack, by their library.
const NEWER_IN_NEUWARE: &[(&str, &[&str])] = &[
    ("libcndrv.so", &["cnMemGetHandleForAddressRange"]),
    ("libcnrt.so", &["cnrtMemcpyAsync_V3", "cnrtMemcpyAsync_V2"]),
    ("libcncl.so.1", &["cnclBroadcast", "cnclAlltoAll", "cnclAlltoAllv"]),
];

/// The simulated libraries of Cambricon without what the plugin can do without.
///
/// # Panics
/// If they can't be built.
pub fn cambricon_older() -> PathBuf {
    let whole = folder("cambricon");
    let folder = beside(&whole, "cambricon-older");
    for (name, newer) in NEWER_IN_NEUWARE {
        let mut library = Patched::new(&whole.join(name));
        newer.iter().for_each(|symbol| library.hide(symbol));
        library.write(&folder.join(name));
    }
    folder
}

/// A folder beside that of a maker.
fn beside(folder: &Path, name: &str) -> PathBuf {
    let folder = folder.parent().expect("a folder of all").join(name);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

/// A library that is changed in its file.
struct Patched(Vec<u8>);

impl Patched {
    fn new(library: &Path) -> Self {
        Self(std::fs::read(library).expect("the library"))
    }

    /// Writes something behind a mark.
    fn set(&mut self, mark: &[u8], value: &[u8]) {
        let marks: Vec<usize> = self.positions(mark);
        assert!(!marks.is_empty(), "the library has its mark");
        for at in marks {
            let begin = at + mark.len();
            self.0[begin..begin + value.len()].copy_from_slice(value);
        }
    }

    /// Gives a symbol another name in the table of symbols, which is not found by the hash of the real
    /// one.
    fn hide(&mut self, symbol: &str) {
        let entry = [b"\0", symbol.as_bytes(), b"\0"].concat();
        let places = self.positions(&entry);
        assert!(!places.is_empty(), "the library has {symbol}");
        places.into_iter().for_each(|at| self.0[at + 1] = b'-');
    }

    /// Where some bytes occur.
    fn positions(&self, wanted: &[u8]) -> Vec<usize> {
        let windows = self.0.windows(wanted.len()).enumerate();
        windows.filter(|(_, found)| *found == wanted).map(|(at, _)| at).collect()
    }

    fn write(&self, library: &Path) {
        let beside = library.with_extension(format!("{}.new", std::process::id()));
        std::fs::write(&beside, &self.0).expect("a library can be written");
        std::fs::rename(&beside, library).expect("and put in its place");
    }
}
