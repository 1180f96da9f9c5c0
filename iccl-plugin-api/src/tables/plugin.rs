//! The root table, what the host offers to a plugin, and what a plugin says of itself.

use core::ffi::c_void;

use abi_stable::StableAbi;

use super::{Bytes, CollectivesTable, DeviceTable, ErrorInfo, TransportTable};

/// The root of a plugin: who it is, how it is probed, and the families that it offers.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginTableRef, prefix_fields = PluginTablePrefix)))]
#[sabi(missing_field(option))]
pub struct PluginTable {
    /// Bytes of this table as the plugin was built.
    pub struct_size: u32,
    /// [`ABI_MAJOR`](super::ABI_MAJOR) that the plugin was built with.
    pub abi_major: u32,
    /// [`ABI_MINOR`](super::ABI_MINOR) that the plugin was built with.
    pub abi_minor: u32,
    /// Zero.
    pub reserved: u32,
    /// Mandatory. Says what this plugin is. Pure: opens no vendor library, reads no file.
    pub describe: Option<
        unsafe extern "C" fn(info: *mut PluginInfo, size: u64, error: *mut ErrorInfo) -> i32,
    >,
    /// Mandatory. Opens the vendor's libraries and looks for devices. Called once, before any
    /// function of a family. `host` stays valid for the life of the process; `settings` only during
    /// the call. [`Status::NoDevice`](crate::Status) and `LibraryMissing` are normal answers. May
    /// block for a short time.
    pub probe: Option<
        unsafe extern "C" fn(
            host: *const HostTable,
            settings: *const SettingValue,
            setting_count: u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Optional. Checks the plugin's own promises where the runtime cannot (the runtime has a
    /// self-test of its own for native collectives). Called after `probe`. May block for a short
    /// time.
    pub self_test: Option<unsafe extern "C" fn(error: *mut ErrorInfo) -> i32>,
    /// The device family, or null.
    pub device: *const DeviceTable,
    /// The native collectives family, or null.
    pub collectives: *const CollectivesTable,
    /// The transport family, or null.
    #[sabi(last_prefix_field)]
    pub transport: *const TransportTable,
}

// SAFETY: the pointers point to immutable statics of the plugin, which is never unloaded.
unsafe impl Send for PluginTable {}
// SAFETY: as above.
unsafe impl Sync for PluginTable {}

/// What a plugin says of itself. May grow. Strings are statics of the plugin, UTF-8.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginInfoRef, prefix_fields = PluginInfoPrefix)))]
#[sabi(missing_field(option))]
pub struct PluginInfo {
    /// The name, in kebab case, as used in configuration: `nvidia`, `transport-tcp`.
    pub name: Bytes,
    /// The plugin's own version, semver.
    pub version: Bytes,
    /// Who makes it.
    pub vendor: Bytes,
    /// One line that says what it is.
    pub description: Bytes,
    /// The settings that it understands, in `[plugin.<name>]` of `iccl.toml`.
    pub settings: *const SettingSpec,
    /// Number of settings.
    #[sabi(last_prefix_field)]
    pub setting_count: u64,
}

/// One setting that a plugin understands. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct SettingSpec {
    /// The key, in snake case.
    pub key: Bytes,
    /// What is accepted, as one of `bool`, `integer`, `bytes`, `duration`, `string`, `list`.
    pub kind: Bytes,
    /// The default, as text.
    pub default_text: Bytes,
    /// One line that says what it does, with units.
    pub description: Bytes,
}

// SAFETY: the bytes are statics of the plugin.
unsafe impl Send for SettingSpec {}
// SAFETY: as above.
unsafe impl Sync for SettingSpec {}

impl SettingSpec {
    /// A setting, in the order of the fields.
    pub const fn new(
        key: &'static str,
        kind: &'static str,
        default_text: &'static str,
        description: &'static str,
    ) -> Self {
        Self {
            key: Bytes::from_static(key),
            kind: Bytes::from_static(kind),
            default_text: Bytes::from_static(default_text),
            description: Bytes::from_static(description),
        }
    }
}

/// One setting that the operator gave. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct SettingValue {
    /// The key, one of those in [`PluginInfo::settings`].
    pub key: Bytes,
    /// The value as text: integers in decimal, bytes as a plain number, durations in microseconds,
    /// `true` or `false`, lists joined by commas.
    pub value: Bytes,
}

/// What the host offers to a plugin.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
#[sabi(kind(Prefix(prefix_ref = HostTableRef, prefix_fields = HostTablePrefix)))]
#[sabi(missing_field(option))]
pub struct HostTable {
    /// Bytes of this table as the host was built.
    pub struct_size: u32,
    /// The host's [`ABI_MINOR`](super::ABI_MINOR).
    pub abi_minor: u32,
    /// Passed back to every function below.
    pub context: *mut c_void,
    /// Writes a log line. `level` is a [`LogLevel`](crate::LogLevel) number; `target` names the part
    /// of the plugin that speaks. Any thread; does not block.
    pub log: Option<
        unsafe extern "C" fn(context: *mut c_void, level: u32, target: Bytes, message: Bytes),
    >,
    /// The loudest level number that is wanted now (0: none). Cheap. Any thread.
    #[sabi(last_prefix_field)]
    pub log_level: Option<unsafe extern "C" fn(context: *mut c_void) -> u32>,
}

// SAFETY: the context is the host's own and its functions may be called from any thread.
unsafe impl Send for HostTable {}
// SAFETY: as above.
unsafe impl Sync for HostTable {}

/// The C door: what [`ENTRY_SYMBOL`](super::ENTRY_SYMBOL) is.
pub type EntryFunction = unsafe extern "C" fn() -> *const PluginTable;
