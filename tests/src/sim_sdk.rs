//! The simulated vendor SDKs under their real names, in folders that nothing finds by itself.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::{cargo_build, place, workspace};

/// The simulated libraries of NVIDIA. Built once for a test process.
///
/// # Panics
/// If they can't be built.
pub fn nvidia() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| lay_out("nvidia"));
    &FOLDER
}

/// The libraries of a vendor are the folders of `tests/sim-sdk/VENDOR` that are named by a soname; cargo
/// names what it builds by the package.
fn lay_out(vendor: &str) -> PathBuf {
    let source = workspace().join("tests/sim-sdk").join(vendor);
    let entries = std::fs::read_dir(&source).expect("a folder of the vendor");
    let libraries: Vec<String> = entries
        .filter_map(|entry| entry.expect("an entry").file_name().into_string().ok())
        .filter(|name| name.contains(".so"))
        .collect();
    let packages: Vec<String> =
        libraries.iter().map(|name| format!("iccl-sim-{}", name.replace('.', "-"))).collect();
    let what: Vec<&str> = packages.iter().flat_map(|package| ["-p", package]).collect();
    let built = cargo_build(&what);
    let folder = built.join("test-sim-sdk").join(vendor);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    for (library, package) in libraries.iter().zip(&packages) {
        place(&built.join(format!("lib{}.so", package.replace('-', "_"))), &folder.join(library));
    }
    folder
}
