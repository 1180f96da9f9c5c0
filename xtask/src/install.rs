//! Installs what is built into a folder, as packages of the operating system do: `bin`, `lib`,
//! `include`, `share`.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::layout;
use crate::run::{Failure, cargo, output, workspace};

/// The package whose version the library has.
const LIBRARY_PACKAGE: &str = "iccl-capi";

/// The packages that an installation is made of, besides the plugins.
const PACKAGES: &[&str] = &["iccl-cli", LIBRARY_PACKAGE, "iccl-runtime"];

/// Builds with a profile of cargo (`dev` or `release`), and installs into `prefix`.
pub(crate) fn install(prefix: &Path, profile: &str) -> Result<(), Failure> {
    layout::build(profile)?;
    let metadata = metadata()?;
    let version = version_of(&metadata, LIBRARY_PACKAGE)?;
    let built = layout::folder(profile);
    let tree = Tree { prefix };

    tree.copy(&built.join("iccl"), "bin/iccl", 0o755)?;
    library(&tree, &built, &version)?;
    for entry in read(&built.join("plugins"))? {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Beside what is laid out may lie what somebody else put there, or what is just being written.
        if name.starts_with("libiccl_") || name == layout::PROBE {
            tree.copy(&entry, &format!("lib/iccl/plugins/{name}"), 0o755)?;
        }
    }
    for header in ["iccl-capi/include/iccl.h", "iccl-plugin-api/include/iccl_plugin.h"] {
        let name = header.rsplit('/').next().unwrap_or(header);
        tree.copy(&workspace().join(header), &format!("include/{name}"), 0o644)?;
    }
    tree.write("lib/pkgconfig/iccl.pc", &package_config(&version), 0o644)?;
    documents(&tree)?;
    tree.write("share/doc/iccl/THIRD-PARTY.txt", &third_parties(&metadata)?, 0o644)?;
    println!("installed: {}", prefix.display());
    Ok(())
}

/// The library under its full name, and the names by which it is found: at run time by the major
/// version, at link time by none.
fn library(tree: &Tree<'_>, built: &Path, version: &str) -> Result<(), Failure> {
    let full = format!("libiccl.so.{version}");
    tree.copy(&built.join("libiccl.so"), &format!("lib/{full}"), 0o755)?;
    let major = version.split('.').next().unwrap_or(version);
    let by_major = format!("libiccl.so.{major}");
    tree.link(&full, &format!("lib/{by_major}"))?;
    tree.link(&by_major, "lib/libiccl.so")
}

/// What `pkg-config` reads. It finds the prefix from where it lies, so the tree can be moved.
fn package_config(version: &str) -> String {
    format!(
        "prefix=${{pcfiledir}}/../..
libdir=${{prefix}}/lib
includedir=${{prefix}}/include
plugindir=${{libdir}}/iccl/plugins

Name: iccl
Description: Collectives across accelerator cards of different makers
Version: {version}
Libs: -L${{libdir}} -liccl
Cflags: -I${{includedir}}
"
    )
}

/// Licences and what there is to read.
fn documents(tree: &Tree<'_>) -> Result<(), Failure> {
    for name in ["LICENSE-MIT", "LICENSE-APACHE", "CHANGELOG.md"] {
        tree.copy(&workspace().join(name), &format!("share/doc/iccl/{name}"), 0o644)?;
    }
    for page in read(&workspace().join("docs"))? {
        if page.extension().is_some_and(|extension| extension == "md") {
            let name = page.file_name().unwrap_or_default().to_string_lossy();
            tree.copy(&page, &format!("share/doc/iccl/{name}"), 0o644)?;
        }
    }
    Ok(())
}

/// The licences of everything that is linked in, which ask to be passed on.
fn third_parties(metadata: &Value) -> Result<String, Failure> {
    let mut packages: Vec<String> = PACKAGES.iter().map(|&name| name.to_owned()).collect();
    packages.extend(layout::plugin_names()?.iter().map(|name| layout::plugin_package(name)));
    let mut tree = cargo(&["tree", "--edges", "normal", "--prefix", "none", "--format", "{p}"]);
    for package in &packages {
        tree.args(["-p", package]);
    }
    let listed = output(&mut tree)?;
    let listed = String::from_utf8_lossy(&listed);
    // "serde v1.0.228", "serde_derive v1.0.228 (proc-macro)", "iccl-wire v0.1.0 (/path)".
    let mut crates: Vec<(&str, &str)> = listed
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.next()?.strip_prefix('v')?))
        })
        .collect();
    crates.sort_unstable();
    crates.dedup();
    let mut text = String::from("The crates that iccl is linked with, and their licences.\n");
    for (name, version) in crates {
        let found = array(metadata, "packages").iter().find(|package| {
            package["name"] == name && package["version"] == version && !package["source"].is_null()
        });
        // What has no source is the workspace's own.
        let Some(package) = found else { continue };
        let licence = package["license"].as_str().unwrap_or("see below");
        let _ = write!(text, "\n==== {name} {version}: {licence}\n");
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        for file in read(manifest.parent().unwrap_or(manifest))? {
            let file_name = file.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
            let is_licence = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"]
                .iter()
                .any(|start| file_name.starts_with(start));
            if is_licence && file.is_file() {
                let content = fs::read(&file).map_err(|error| failed(&file, &error))?;
                let _ = write!(text, "\n{}\n", String::from_utf8_lossy(&content).trim_end());
            }
        }
    }
    Ok(text)
}

/// What cargo knows of the packages for this platform; those of others may not have been downloaded.
fn metadata() -> Result<Value, Failure> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut asked = cargo(&["metadata", "--format-version", "1", "--locked"]);
    let text = output(asked.args(["--filter-platform", &platform]))?;
    serde_json::from_slice(&text)
        .map_err(|error| Failure(format!("cargo metadata cannot be read: {error}")))
}

fn version_of(metadata: &Value, package: &str) -> Result<String, Failure> {
    let mut all = array(metadata, "packages").iter();
    let version = all.find(|one| one["name"] == package).and_then(|one| one["version"].as_str());
    version.map(str::to_owned).ok_or_else(|| Failure(format!("there is no package {package}")))
}

fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// The paths in a folder, in the order of their names.
fn read(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(folder).map_err(|error| failed(folder, &error))?;
    let mut paths: Vec<PathBuf> =
        entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn failed(what: &Path, error: &std::io::Error) -> Failure {
    Failure(format!("{}: {error}", what.display()))
}

/// Where it is installed. Each file is put there in one move: a program that runs keeps the old one.
struct Tree<'a> {
    prefix: &'a Path,
}

impl Tree<'_> {
    fn copy(&self, from: &Path, to: &str, mode: u32) -> Result<(), Failure> {
        self.place(to, |beside| {
            fs::copy(from, beside)?;
            fs::set_permissions(beside, fs::Permissions::from_mode(mode))
        })
    }

    fn write(&self, to: &str, text: &str, mode: u32) -> Result<(), Failure> {
        self.place(to, |beside| {
            fs::write(beside, text)?;
            fs::set_permissions(beside, fs::Permissions::from_mode(mode))
        })
    }

    fn link(&self, target: &str, to: &str) -> Result<(), Failure> {
        self.place(to, |beside| symlink(target, beside))
    }

    fn place(
        &self,
        to: &str,
        make: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        let place = self.prefix.join(to);
        let beside = place.with_file_name(format!(
            ".{}.new",
            place.file_name().unwrap_or_default().to_string_lossy()
        ));
        let placed = || {
            fs::create_dir_all(place.parent().unwrap_or(self.prefix))?;
            match fs::remove_file(&beside) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            make(&beside)?;
            fs::rename(&beside, &place)
        };
        placed().map_err(|error| failed(&place, &error))
    }
}
