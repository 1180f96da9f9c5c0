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
    for file in simulated_files()? {
        let place = folder.join("sim-sdk").join(&file.vendor);
        fs::create_dir_all(&place).map_err(|error| failed(&place, &error))?;
        let (beside, place) = (place.join(format!(".{}.new", file.name)), place.join(&file.name));
        fs::copy(folder.join(&file.from), &beside)
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

/// A file of a simulated SDK.
struct Simulated {
    vendor: String,
    /// Its name in the SDK.
    name: String,
    /// A path, or a name in the folder that cargo builds into.
    from: PathBuf,
}

/// The libraries of all simulated SDKs, by the folders `tests/sim-sdk/VENDOR/SONAME/`, and the headers in
/// these folders.
fn simulated_files() -> Result<Vec<Simulated>, Failure> {
    let mut found = Vec::new();
    for vendor in folders(&workspace().join("tests/sim-sdk"))? {
        let of_vendor = workspace().join("tests/sim-sdk").join(&vendor);
        for library in folders(&of_vendor)?.into_iter().filter(|name| name.contains(".so")) {
            let source = of_vendor.join(&library);
            let from = format!("lib{}.so", package_in(&source)?.replace('-', "_")).into();
            found.push(Simulated { vendor: vendor.clone(), name: library, from });
            let is_header = |name: &String| Path::new(name).extension().is_some_and(|is| is == "h");
            for header in files(&source)?.into_iter().filter(is_header) {
                let from = source.join(&header);
                found.push(Simulated { vendor: vendor.clone(), name: header, from });
            }
        }
    }
    Ok(found)
}

/// The name of the package in a folder: two SDKs may have a library of the same name, and packages may not.
fn package_in(folder: &Path) -> Result<String, Failure> {
    let manifest = folder.join("Cargo.toml");
    let text = fs::read_to_string(&manifest)
        .map_err(|error| Failure(format!("{} cannot be read: {error}", manifest.display())))?;
    let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    name.map(str::to_owned).ok_or_else(|| Failure(format!("{} has no name", manifest.display())))
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
    names(folder, Path::is_dir)
}

/// The names of the files in a folder, sorted.
fn files(folder: &Path) -> Result<Vec<String>, Failure> {
    names(folder, Path::is_file)
}

fn names(folder: &Path, is_wanted: impl Fn(&Path) -> bool) -> Result<Vec<String>, Failure> {
    let entries = fs::read_dir(folder)
        .map_err(|error| Failure(format!("{} cannot be read: {error}", folder.display())))?;
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|entry| is_wanted(&entry.path()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}
