//! What the whole-system tests share.

// A test that cannot go on panics.
#![allow(clippy::missing_panics_doc)]

pub mod c_library;
mod c_plugins;
pub mod children;
pub mod cluster;
pub mod command;
pub mod guarded;
pub mod maker;
pub mod matrix;
pub mod oracle;
pub mod processes;
pub mod rail;
pub mod ranks;
pub mod sim_cards;
pub mod sim_sdk;

/// The guide's examples in Rust are compiled as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/abi.md")]
struct Guide;

pub use c_plugins::{build_c_plugin, compile_plugin};

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The plugins of this workspace, by package.
pub const PLUGIN_PACKAGES: &[&str] =
    &["iccl-plugin-host", "iccl-plugin-transport-tcp", "iccl-plugin-transport-shm"];

/// The workspace.
///
/// # Panics
/// Never: this package lies in it.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace")
}

/// The folder into which cargo builds.
///
/// # Panics
/// If this is no test that cargo built.
pub fn target_folder() -> PathBuf {
    // target/PROFILE/deps/TEST, or a program in target/PROFILE
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().expect("a test lies in a folder");
    let up = if folder.ends_with("deps") { 2 } else { 1 };
    folder.ancestors().nth(up).expect("a test lies in target/PROFILE/deps").to_owned()
}

/// Runs a command and gives what it prints.
///
/// # Panics
/// If it can't be run or fails, with all that it printed.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A folder with every plugin of this workspace as `libiccl_NAME.so`, and the program in which
/// plugins are run first. Built once for a test process, in the test's own profile.
///
/// # Panics
/// If they can't be built.
pub fn plugin_folder() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(lay_out);
    &FOLDER
}

/// Builds with cargo in the test's own profile. Gives the folder of what was built.
fn cargo_build(what: &[&str]) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(workspace()).args(["build", "--offline", "--locked"]).args(what);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    run(&mut command);
    target_folder().join(if cfg!(debug_assertions) { "debug" } else { "release" })
}

/// A folder with the plugin of one maker of cards and nothing else but the program in which plugins are
/// run first. Built anew by each call.
///
/// # Panics
/// If it can't be built.
pub fn maker_plugin_folder(maker: &str) -> PathBuf {
    let package = format!("iccl-plugin-{maker}");
    lay_out_in(&format!("test-plugins-{maker}"), &[&package])
}

fn lay_out() -> PathBuf {
    lay_out_in("test-plugins", PLUGIN_PACKAGES)
}

fn lay_out_in(folder: &str, packages: &[&str]) -> PathBuf {
    let mut what = vec!["-p", "iccl-runtime", "--bin", "iccl-plugin-probe"];
    for package in packages {
        what.extend(["-p", package]);
    }
    what.push("--lib");
    let built = cargo_build(&what);
    let folder = built.join(folder);
    std::fs::create_dir_all(&folder).expect("the plugins' folder can be made");
    for package in packages {
        let name = package.strip_prefix("iccl-plugin-").expect("packages of plugins are named so");
        let library = format!("lib{}.so", package.replace('-', "_"));
        place(&built.join(library), &folder.join(format!("libiccl_{name}.so")));
    }
    place(&built.join("iccl-plugin-probe"), &folder.join("iccl-plugin-probe"));
    folder
}

/// Puts a copy where other test processes may be using the one before: in one step, and only if it
/// is another.
fn place(built: &Path, placed: &Path) {
    let fresh = std::fs::read(built).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
    if std::fs::read(placed).is_ok_and(|old| old == fresh) {
        return;
    }
    let beside = placed.with_extension(format!("{}.new", std::process::id()));
    std::fs::copy(built, &beside).expect("a plugin can be copied");
    std::fs::rename(&beside, placed).expect("a plugin can be put in its place");
}

/// The user whose rights this process has.
///
/// # Panics
/// If there is no `/proc`.
pub fn effective_user() -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").expect("/proc is mounted").uid()
}

/// The processes that have a word ending in `word` on their command line.
pub fn running_with(word: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|&byte| byte == 0).any(|part| part.ends_with(word.as_bytes()))
        })
        .collect()
}
