//! `libiccl.so` as a program in C has it, and programs built with it.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::{cargo_build, place, run, workspace};

/// How a program is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sanitizer {
    /// As it is.
    Off,
    /// With `AddressSanitizer` and `UndefinedBehaviorSanitizer` in the program; the library has none.
    AddressAndUndefined,
}

/// The folder of the library, with the names that programs look for.
///
/// # Panics
/// If it can't be built.
pub fn library_folder() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let built = cargo_build(&["-p", "iccl-capi", "--lib"]);
        let folder = built.join("test-c-library");
        std::fs::create_dir_all(&folder).expect("the library's folder can be made");
        place(&built.join("libiccl.so"), &folder.join("libiccl.so.1"));
        let link = folder.join("libiccl.so");
        if std::fs::read_link(&link).is_err() {
            // Another test process may have been faster.
            let _ = symlink("libiccl.so.1", &link);
        }
        folder
    });
    &FOLDER
}

/// Builds a program of one source file (C11 as `.c`, C++17 as `.cpp`) with the library, strict about
/// warnings. Gives its path.
///
/// # Panics
/// If a compiler is missing or the source does not compile.
pub fn build_c_program(source: &Path, sanitizer: Sanitizer) -> PathBuf {
    let c = source.extension().is_some_and(|extension| extension == "c");
    let (compiler, standard) = if c { ("cc", "-std=c11") } else { ("c++", "-std=c++17") };
    let stem = source.file_stem().expect("a file name").to_string_lossy();
    let suffix = if sanitizer == Sanitizer::Off { "" } else { ".sanitized" };
    let library = library_folder();
    let program = library.join(format!("{stem}{suffix}"));
    // Test processes run at the same time: each builds beside and moves into place in one step.
    let beside = library.join(format!("{stem}{suffix}.{}.new", std::process::id()));
    let mut command = Command::new(compiler);
    command
        .args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"])
        .arg("-I")
        .arg(workspace().join("iccl-capi/include"));
    if sanitizer == Sanitizer::AddressAndUndefined {
        command.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    }
    command.arg(source).arg("-o").arg(&beside).arg("-L").arg(library);
    command.arg("-liccl").arg(format!("-Wl,-rpath,{}", library.display()));
    // So that cargo's LD_LIBRARY_PATH does not come before it.
    command.arg("-Wl,--disable-new-dtags");
    run(&mut command);
    std::fs::rename(&beside, &program).expect("the program can be put in its place");
    program
}
