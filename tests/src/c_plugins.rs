//! Builds the example plugins in C and C++.

use std::path::PathBuf;
use std::process::Command;

use crate::{run, target_folder, workspace};

/// Builds `tests/plugins/NAME.c` (C11) or `NAME.cpp` (C++17) as a plugin and gives its path. Strict
/// about warnings, and with hidden symbols as a vendor should have them.
///
/// # Panics
/// If the compiler `cc` or `c++` is missing or the source does not compile.
pub fn build_c_plugin(name: &str) -> PathBuf {
    let sources = workspace().join("tests/plugins");
    let (compiler, standard, source) = match sources.join(format!("{name}.c")) {
        source if source.is_file() => ("cc", "-std=c11", source),
        _ => ("c++", "-std=c++17", sources.join(format!("{name}.cpp"))),
    };
    assert!(source.is_file(), "there is no tests/plugins/{name}.c or .cpp");
    let found = Command::new(compiler).arg("--version").output();
    assert!(
        found.is_ok_and(|output| output.status.success()),
        "the tests need the compiler `{compiler}` (Debian: apt-get install gcc g++)"
    );
    let folder = target_folder().join("c-plugins");
    std::fs::create_dir_all(&folder).expect("the folder of C plugins can be made");
    // Test processes run at the same time: each builds beside and moves into place in one step.
    let beside = folder.join(format!("{name}.{}.new", std::process::id()));
    run(Command::new(compiler)
        .args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .args(["-shared", "-fPIC", "-fvisibility=hidden", "-I"])
        .arg(workspace().join("iccl-plugin-api/include"))
        .arg(&source)
        .arg("-o")
        .arg(&beside));
    let library = folder.join(format!("libiccl_{name}.so"));
    std::fs::rename(&beside, &library).expect("the plugin can be put in its place");
    library
}
