//! Plugins and hosts built from other versions of the SDK's sources: a plugin may be newer than the
//! host or older, whose tables lack the last fields then; one with a changed type is refused.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use iccl_runtime::plugins::{Door, PluginSet};

use crate::support::Folder;

/// A change of the SDK's sources: file, what is there, what comes in its place.
type Change = (&'static str, &'static str, &'static str);

/// The SDK as it may become: one more function of devices, and one more fact about them. Appended,
/// as the ABI's rules ask, after what was last before.
const NEWER: &[Change] = &[
    (
        "src/tables/device.rs",
        "    pub async_error: Option<unsafe extern \"C\" fn(device: u64, error: *mut ErrorInfo) -> i32>,\n",
        "    pub async_error: Option<unsafe extern \"C\" fn(device: u64, error: *mut ErrorInfo) -> i32>,\n    \
         pub cool: Option<unsafe extern \"C\" fn(device: u64, error: *mut ErrorInfo) -> i32>,\n",
    ),
    (
        "src/tables/device.rs",
        "    pub memory_bytes: u64,\n",
        "    pub memory_bytes: u64,\n    pub temperature: u64,\n",
    ),
    (
        "src/adaptor/device.rs",
        "        async_error: Some(async_error::<B::Device>),\n",
        "        async_error: Some(async_error::<B::Device>),\n        cool: Some(cool::<B::Device>),\n",
    ),
    (
        "src/adaptor/device.rs",
        "unsafe extern \"C\" fn async_error<D: Device>(",
        "unsafe extern \"C\" fn cool<D: Device>(_: u64, _: *mut ErrorInfo) -> i32 { 0 }\n\n\
         unsafe extern \"C\" fn async_error<D: Device>(",
    ),
    (
        "src/adaptor/device.rs",
        "            memory_bytes: facts.memory_bytes,\n",
        "            memory_bytes: facts.memory_bytes,\n            temperature: 42,\n",
    ),
    // What the newer host does with the function.
    (
        "src/host/device.rs",
        "    /// Which device of its plugin it is.\n",
        "    pub fn cool(&self) -> Result<(), CallError> {\n        \
         let answer = call!(self.table, &mut ErrorInfo::new(), \"device.\", cool(self.handle));\n        \
         must_be_done(\"device.cool\", answer)\n    }\n\n    \
         /// Which device of its plugin it is.\n",
    ),
    ("src/tables/mod.rs", "pub const ABI_MINOR: u32 = 0;", "pub const ABI_MINOR: u32 = 1;"),
];

/// A mistake: the type of a field is another.
const CHANGED: &[Change] =
    &[("src/tables/device.rs", "    pub reduce_ops: u32,\n", "    pub reduce_ops: u64,\n")];

#[test]
fn b068_a_newer_plugin_works_here_and_a_changed_type_is_refused() {
    let folder = Folder::new();
    for (name, changes) in [("newer", NEWER), ("changed", CHANGED)] {
        let built = build(name, changes);
        std::fs::copy(built.plugin, folder.file(&format!("libiccl_{name}.so"))).unwrap();
    }
    let set = folder.discover();
    let record = folder.record(&set, "libiccl_newer.so");
    assert!(record.is_active(), "{record}");
    assert_eq!(record.door, Some(Door::Rust), "{record}");
    assert_eq!(record.abi.as_deref(), Some("1.1"), "{record}");
    use_device(&set, "newer");

    let record = folder.record(&set, "libiccl_changed.so");
    assert_eq!(record.reason.unwrap().code(), "layout-differs", "{record}");
    let line = record.to_string();
    assert!(line.contains("reduce_ops") && line.len() < 1000, "{line}");
}

#[test]
fn b068_a_plugin_of_today_works_in_a_newer_host() {
    let built = build("newer", NEWER);
    let of_today = iccl_tests::plugin_folder().join("libiccl_host.so");
    let lines = iccl_tests::run(Command::new(&built.host).args([&of_today, &built.plugin]));
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(
        lines,
        [
            "rust door: host, built with 1.0; device.cool: not-supported",
            "c door: host, built with 1.0; device.cool: not-supported",
            "rust door: newer, built with 1.1; device.cool: ok",
            "c door: newer, built with 1.1; device.cool: ok",
        ]
    );
}

/// Opens the device and makes calls of both ends of its table.
fn use_device(set: &PluginSet, name: &str) {
    let device = set.devices_of(name).next().unwrap().open().unwrap();
    let pointer = device.allocate(64, iccl_plugin_api::MemoryKind::Host).unwrap();
    // SAFETY: it was just allocated by this device.
    unsafe { device.free(pointer) }.unwrap();
    device.async_error().unwrap();
    device.close().unwrap();
}

/// What was built against changed sources of the SDK.
struct Built {
    plugin: PathBuf,
    host: PathBuf,
}

/// Builds `tests/corpus/drift` against changed sources of the SDK.
fn build(name: &str, changes: &[Change]) -> Built {
    // Two tests may want the same.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);

    let workspace = iccl_tests::workspace();
    // Kept between runs, so that only what changed is built again.
    let place = iccl_tests::target_folder().join("corpus").join(name);
    // Cargo tells packages of one target folder apart by their place in their workspace.
    let sdk = place.join(format!("sdk-{name}"));
    for file in ["Cargo.toml", "README.md"].into_iter().map(PathBuf::from).chain(sources(workspace))
    {
        let mut text =
            std::fs::read_to_string(workspace.join("iccl-plugin-api").join(&file)).unwrap();
        for (_, before, after) in changes.iter().filter(|(path, _, _)| Path::new(path) == file) {
            assert!(text.contains(before), "{name}: {} has changed", file.display());
            text = text.replacen(before, after, 1);
        }
        write(&sdk.join(file), &text);
    }
    for (package, source) in [("plugin", "src/lib.rs"), ("host", "src/main.rs")] {
        let folder = workspace.join("tests/corpus/drift").join(package);
        let member = place.join(format!("{package}-{name}"));
        let manifest = std::fs::read_to_string(folder.join("manifest.toml")).unwrap();
        write(&member.join("Cargo.toml"), &manifest.replace("NAME", name));
        let text = std::fs::read_to_string(folder.join(source)).unwrap();
        write(&member.join(source), &text);
    }
    write(&place.join("Cargo.toml"), &root_manifest(workspace, name));
    write(
        &place.join("Cargo.lock"),
        &std::fs::read_to_string(workspace.join("Cargo.lock")).unwrap(),
    );
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = iccl_tests::target_folder().join("corpus/target");
    let mut command = Command::new(cargo);
    command
        .args(["build", "--offline", "--quiet", "-p", name])
        .current_dir(&place)
        .env("CARGO_TARGET_DIR", &target)
        .env("RUSTFLAGS", "-Awarnings");
    // Only a newer SDK has what the host calls.
    if changes == NEWER {
        command.args(["-p", &format!("{name}-host")]);
    }
    iccl_tests::run(&mut command);
    let built = target.join("debug");
    Built { plugin: built.join(format!("lib{name}.so")), host: built.join(format!("{name}-host")) }
}

/// The workspace's manifest with these members: the same versions and profiles.
fn root_manifest(workspace: &Path, name: &str) -> String {
    let manifest = std::fs::read_to_string(workspace.join("Cargo.toml")).unwrap();
    let begin = manifest.find("members = [").expect("the workspace has members");
    let end = begin + manifest[begin..].find(']').expect("the list ends") + 1;
    let members = format!("members = [\"sdk-{name}\", \"plugin-{name}\", \"host-{name}\"]");
    let path = "path = \"iccl-plugin-api\"";
    format!("{}{members}{}", &manifest[..begin], &manifest[end..])
        .replace(path, &format!("path = \"sdk-{name}\""))
}

/// The source files of the SDK, relative to its folder.
fn sources(workspace: &Path) -> Vec<PathBuf> {
    let root = workspace.join("iccl-plugin-api");
    let mut folders = vec![root.join("src")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path.strip_prefix(&root).unwrap().to_owned());
            }
        }
    }
    files
}

/// Writes a file if it is not so already, since cargo goes by times.
fn write(path: &Path, text: &str) {
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return;
    }
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}
