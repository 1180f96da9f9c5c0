//! What is made from code and kept in the repository, each by an example of the crate that knows it.

use std::fs;

use crate::run::{Failure, cargo, output, workspace};

/// A file, and the package and example that print it.
const GENERATED: &[(&str, &str, &str)] = &[
    ("docs/configuration.md", "iccl-runtime", "configuration_reference"),
    ("iccl-plugin-api/include/iccl_plugin.h", "iccl-plugin-api", "generate_header"),
    ("iccl-capi/include/iccl.h", "iccl-capi", "generate_c_header"),
];

pub(crate) fn all(check: bool) -> Result<(), Failure> {
    let mut stale = Vec::new();
    for (path, package, example) in GENERATED {
        let fresh = output(&mut cargo(&["run", "--quiet", "-p", package, "--example", example]))?;
        let file = workspace().join(path);
        if fs::read(&file).is_ok_and(|kept| kept == fresh) {
            continue;
        }
        if check {
            stale.push(*path);
            continue;
        }
        fs::write(&file, fresh)
            .map_err(|error| Failure(format!("{path} cannot be written: {error}")))?;
        println!("written: {path}");
    }
    if stale.is_empty() {
        return Ok(());
    }
    Err(Failure(format!(
        "{} is not what the code says; run `cargo xtask generate` and commit it",
        stale.join(", ")
    )))
}
