//! Builds the example plugins in C and C++.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{run, target_folder, workspace};

/// Builds `tests/plugins/NAME.c` or `NAME.cpp` as a plugin and gives its path.
///
/// # Panics
/// As [`compile_plugin`].
pub fn build_c_plugin(name: &str) -> PathBuf {
    let sources = workspace().join("tests/plugins");
    let c = sources.join(format!("{name}.c"));
    let source = if c.is_file() { c } else { sources.join(format!("{name}.cpp")) };
    let folder = target_folder().join("c-plugins");
    std::fs::create_dir_all(&folder).expect("the folder of C plugins can be made");
    // Test processes run at the same time: each builds beside and moves into place in one step.
    let beside = folder.join(format!("{name}.{}.new", std::process::id()));
    compile_plugin(&source, &beside);
    let library = folder.join(format!("libiccl_{name}.so"));
    std::fs::rename(&beside, &library).expect("the plugin can be put in its place");
    library
}

/// Compiles one source file (C11 as `.c`, C++17 as `.cpp`) as a plugin. Strict about warnings, and
/// with hidden symbols as a vendor should have them.
///
/// # Panics
/// If the compiler `cc` or `c++` is missing or the source does not compile.
pub fn compile_plugin(source: &Path, library: &Path) {
    let c = source.extension().is_some_and(|extension| extension == "c");
    let (compiler, standard) = if c { ("cc", "-std=c11") } else { ("c++", "-std=c++17") };
    let found = Command::new(compiler).arg("--version").output();
    assert!(
        found.is_ok_and(|output| output.status.success()),
        "the tests need the compiler `{compiler}` (Debian: apt-get install gcc g++)"
    );
    run(Command::new(compiler)
        .args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .args(["-shared", "-fPIC", "-fvisibility=hidden", "-I"])
        .arg(workspace().join("iccl-plugin-api/include"))
        .arg(source)
        .arg("-o")
        .arg(library));
}
