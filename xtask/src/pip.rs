//! Packages of `PyPI`, by pip, in a cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{Failure, run};

/// The folder of a package's files, from the cache or by the pip of this Python.
pub(crate) fn fetch(python: &str, cache: &Path, package: &str) -> Result<PathBuf, Failure> {
    let folder = cache.join(package.replace("==", "-"));
    if folder.is_dir() {
        return Ok(folder);
    }
    let wheels = cache.join("wheels").join(package);
    let pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d"];
    run(Command::new(python).args(pip).arg(&wheels).arg(package)).map_err(|Failure(text)| {
        Failure(format!("nothing was done, since {package} could not be fetched from PyPI: {text}"))
    })?;
    let wheel = fs::read_dir(&wheels)
        .ok()
        .and_then(|entries| entries.filter_map(Result::ok).map(|entry| entry.path()).next())
        .ok_or_else(|| Failure(format!("pip left no wheel of {package}")))?;
    let beside = cache.join("unpacking");
    // What is left of a run that was broken off.
    let _ = fs::remove_dir_all(&beside);
    run(Command::new(python).args(["-m", "zipfile", "-e"]).args([&wheel, &beside]))?;
    fs::rename(&beside, &folder)
        .map_err(|error| Failure(format!("{} cannot be made: {error}", folder.display())))?;
    // The wheel has said all.
    let _ = fs::remove_dir_all(&wheels);
    Ok(folder)
}
