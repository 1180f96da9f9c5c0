//! A plugin crate outside the workspace that depends on `iccl-plugin-api` as it is published, and on
//! nothing else of iccl, builds and loads.

use std::fs;
use std::path::Path;
use std::process::Command;

use iccl_tests::{run, target_folder, workspace};

const PLUGIN: &str = r#"
use iccl_plugin_api::sdk::{Plugin, PluginError, PluginResult, Settings};
use iccl_plugin_api::sdk::{Device, DeviceBackend, DeviceFacts, Progress};
use iccl_plugin_api::{MemoryKind, Status, tables};
use std::ffi::c_void;
use std::time::Duration;

struct Outsider;
struct Card;

impl Plugin for Outsider {
    const NAME: &'static str = "outsider";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "somebody else";
    const DESCRIPTION: &'static str = "built outside the workspace";
    fn probe(_: &Settings<'_>) -> PluginResult<Self> { Ok(Self) }
}

impl DeviceBackend for Outsider {
    type Device = Card;
    fn count(&self) -> PluginResult<u32> { Ok(1) }
    fn facts(&self, _: u32) -> PluginResult<DeviceFacts> {
        Ok(DeviceFacts {
            name: "a card of somebody else",
            pci_address: "",
            numa_node: None,
            memory_bytes: 0,
            capabilities: tables::DeviceCapabilities {
                host_accessible: 1,
                ..tables::DeviceCapabilities::default()
            },
        })
    }
    fn open(&self, _: u32) -> PluginResult<Card> { Ok(Card) }
}

fn none<T>() -> PluginResult<T> { Err(PluginError::new(Status::NotSupported, "not here")) }

impl Device for Card {
    fn allocate(&self, _: u64, _: MemoryKind) -> PluginResult<*mut c_void> { none() }
    unsafe fn free(&self, _: *mut c_void) -> PluginResult<()> { none() }
    fn memory_kind(&self, _: *const c_void) -> PluginResult<MemoryKind> { none() }
    unsafe fn copy(
        &self, _: u64, _: (*mut c_void, MemoryKind), _: (*const c_void, MemoryKind), _: u64,
    ) -> PluginResult<()> { none() }
    fn stream_create(&self) -> PluginResult<u64> { none() }
    fn stream_destroy(&self, _: u64) -> PluginResult<()> { none() }
    fn stream_query(&self, _: u64) -> PluginResult<Progress> { none() }
    fn stream_synchronize(&self, _: u64, _: Duration) -> PluginResult<()> { none() }
}

iccl_plugin_api::export_plugin! { plugin: Outsider, device: Outsider }
"#;

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

#[test]
fn a_plugin_of_the_packaged_sdk_builds_and_loads() {
    let folder = target_folder().join("outsider");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("src")).expect("a folder");

    let packages = folder.join("packages");
    let mut package = Command::new(env!("CARGO"));
    package.current_dir(workspace()).args(["package", "-p", "iccl-plugin-api", "--no-verify"]);
    package.args(["--allow-dirty", "--offline", "--quiet", "--target-dir"]).arg(&packages);
    run(&mut package);
    let archive = fs::read_dir(packages.join("package"))
        .expect("packages")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| path.extension().is_some_and(|extension| extension == "crate"))
        .expect("cargo made a package");
    // With the times of now (`m`): those in a package are all the same, and cargo goes by them.
    run(Command::new("tar").arg("xzmf").arg(&archive).arg("-C").arg(&folder));
    let unpacked = archive.file_stem().expect("a name").to_string_lossy().into_owned();

    // A workspace of its own, far from this one's settings. The lock file is taken along, so that the
    // same versions are used and none is fetched.
    write(
        &folder.join("Cargo.toml"),
        &format!(
            "[package]\nname = \"outsider\"\nversion = \"2.3.4\"\nedition = \"2024\"\n\
             [lib]\ncrate-type = [\"cdylib\"]\n\
             [dependencies]\niccl-plugin-api = {{ path = \"{unpacked}\" }}\n[workspace]\n"
        ),
    );
    fs::copy(workspace().join("Cargo.lock"), folder.join("Cargo.lock")).expect("the lock file");
    write(&folder.join("src/lib.rs"), PLUGIN);
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(&folder).args(["build", "--offline", "--quiet"]);
    build.arg("--target-dir").arg(target_folder().join("outsider-target"));
    run(&mut build);

    let plugins = folder.join("plugins");
    fs::create_dir_all(&plugins).expect("a folder");
    let built = target_folder().join("outsider-target/debug/liboutsider.so");
    fs::copy(built, plugins.join("libiccl_outsider.so")).expect("the plugin");
    let sources = iccl_runtime::config::Sources::default()
        .with("plugins.path", format!("[\"{}\"]", plugins.display()))
        .with("plugins.probe", "inline");
    let config = iccl_runtime::config::Config::load(&sources).expect("a configuration");
    let set = iccl_runtime::plugins::PluginSet::load(&config).expect("plugins");
    let plugin = set.plugin("outsider").unwrap_or_else(|| panic!("{:#?}", set.records()));
    assert_eq!(plugin.version().to_string(), "2.3.4");
    assert_eq!(set.devices_of("outsider").count(), 1);
}
