//! Builds the workspace and puts what is shipped where it is found: the command beside `plugins/`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::run::{Failure, cargo, run, workspace};

/// What a plugin's package is named before the plugin's own name.
const PLUGIN_PREFIX: &str = "iccl-plugin-";

/// The program in which plugins are run first.
pub(crate) const PROBE: &str = "iccl-plugin-probe";

/// Where a profile's files lie.
pub(crate) fn folder(profile: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace().join("target"), PathBuf::from);
    target.join(if profile == "dev" { "debug" } else { profile })
}

/// Builds everything with a profile of cargo (`dev` or `release`) and lays it out.
pub(crate) fn build(profile: &str) -> Result<(), Failure> {
    run(&mut cargo(&["build", "--workspace", "--profile", profile]))?;
    let folder = folder(profile);
    let plugins = folder.join("plugins");
    let failed = |what: &Path, error: &std::io::Error| {
        Failure(format!("{} cannot be laid out: {error}", what.display()))
    };
    fs::create_dir_all(&plugins).map_err(|error| failed(&plugins, &error))?;
    let private = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&plugins, private.clone()).map_err(|error| failed(&plugins, &error))?;
    // The program in which plugins are run first lies beside `iccl` already; programs that embed the
    // runtime find it here.
    let mut shipped = vec![(PROBE.to_owned(), PROBE.to_owned())];
    for name in plugin_names()? {
        let library = format!("lib{}.so", plugin_package(&name).replace('-', "_"));
        shipped.push((library, format!("libiccl_{name}.so")));
    }
    for (built, name) in shipped {
        let place = plugins.join(&name);
        // Put there in one move: a process that looks meanwhile sees the old file or the new one.
        let beside = plugins.join(format!(".{name}.new"));
        fs::copy(folder.join(&built), &beside)
            .and_then(|_| fs::set_permissions(&beside, private.clone()))
            .and_then(|()| fs::rename(&beside, &place))
            .map_err(|error| failed(&place, &error))?;
    }
    let simulated = simulated_libraries()?;
    for (vendor, library) in &simulated {
        let place = folder.join("sim-sdk").join(vendor);
        fs::create_dir_all(&place).map_err(|error| failed(&place, &error))?;
        let built = format!("libiccl_sim_{}.so", library.replace(['.', '-'], "_"));
        let (beside, place) = (place.join(format!(".{library}.new")), place.join(library));
        fs::copy(folder.join(&built), &beside)
            .and_then(|_| fs::rename(&beside, &place))
            .map_err(|error| failed(&place, &error))?;
    }
    println!("laid out: {} and {}", folder.join("iccl").display(), plugins.display());
    println!("simulated SDKs: {}", folder.join("sim-sdk").display());
    Ok(())
}

/// The package of a plugin.
pub(crate) fn plugin_package(name: &str) -> String {
    format!("{PLUGIN_PREFIX}{name}")
}

/// Vendor and soname of each simulated library, by the folders of `tests/sim-sdk/VENDOR/`.
fn simulated_libraries() -> Result<Vec<(String, String)>, Failure> {
    let mut found = Vec::new();
    for vendor in folders(&workspace().join("tests/sim-sdk"))? {
        for library in folders(&workspace().join("tests/sim-sdk").join(&vendor))? {
            if library.contains(".so") {
                found.push((vendor.clone(), library));
            }
        }
    }
    Ok(found)
}

/// The plugins of this workspace, by the folders of `plugins/`.
pub(crate) fn plugin_names() -> Result<Vec<String>, Failure> {
    let plugins = workspace().join("plugins");
    let mut names = folders(&plugins)?;
    names.retain(|name| plugins.join(name).join("Cargo.toml").is_file());
    Ok(names)
}

/// The names of the folders in a folder, sorted.
fn folders(folder: &Path) -> Result<Vec<String>, Failure> {
    let entries = fs::read_dir(folder)
        .map_err(|error| Failure(format!("{} cannot be read: {error}", folder.display())))?;
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}
