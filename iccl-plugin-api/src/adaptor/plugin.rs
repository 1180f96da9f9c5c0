//! The root table of a plugin that implements [`Plugin`].

use std::sync::{Mutex, OnceLock, PoisonError};

use super::{answer_growing, array, guard};
use crate::Status;
use crate::log;
use crate::sdk::{Plugin, PluginError, PluginResult, Settings};
use crate::tables::{
    ABI_MAJOR, ABI_MINOR, Bytes, ErrorInfo, Growing, HostTable, PluginInfo, PluginTable,
    SettingValue,
};

/// Where the plugin object lives after `probe`. [`export_plugin!`](crate::export_plugin) implements
/// this with one static for each exported plugin.
pub trait Exported: Plugin + Sized {
    /// The place.
    fn slot() -> &'static PluginSlot<Self>;
}

/// The place of one plugin object: empty until `probe` succeeds, then full for ever.
#[derive(Debug)]
pub struct PluginSlot<P> {
    object: OnceLock<P>,
    probing: Mutex<()>,
}

impl<P: Plugin> PluginSlot<P> {
    /// An empty place.
    #[allow(clippy::new_without_default, reason = "made in one const context only")]
    pub const fn new() -> Self {
        Self { object: OnceLock::new(), probing: Mutex::new(()) }
    }

    /// Fills the place. If it is full already, the first object stays.
    fn probe(&self, settings: &Settings<'_>) -> PluginResult<()> {
        // A probe that panicked left the slot empty, so the lock's poison says nothing.
        let _alone = self.probing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.object.get().is_none() {
            let object = P::probe(settings)?;
            let _ = self.object.set(object);
        }
        Ok(())
    }
}

/// The plugin object, which is there once `probe` succeeded.
pub(super) fn object<P: Exported>() -> PluginResult<&'static P> {
    P::slot().object.get().ok_or_else(|| {
        PluginError::invalid(format!("plugin {} was not probed successfully", P::NAME))
    })
}

/// The root table, still without families.
pub const fn plugin_table<P: Exported>() -> PluginTable {
    PluginTable {
        struct_size: size_of::<PluginTable>() as u32,
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        reserved: 0,
        describe: Some(describe::<P>),
        probe: Some(probe::<P>),
        self_test: Some(self_test::<P>),
        device: std::ptr::null(),
        collectives: std::ptr::null(),
        transport: std::ptr::null(),
    }
}

unsafe extern "C" fn describe<P: Plugin>(
    info: *mut PluginInfo,
    size: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("describe", error, || {
        let settings = P::SETTINGS;
        let value = PluginInfo {
            name: Bytes::from_static(P::NAME),
            version: Bytes::from_static(P::VERSION),
            vendor: Bytes::from_static(P::VENDOR),
            description: Bytes::from_static(P::DESCRIPTION),
            settings: settings.as_ptr(),
            setting_count: settings.len() as u64,
        };
        // SAFETY: the caller passes room for `size` bytes.
        unsafe { answer_growing(info, size, "the plugin's information", value) }
    })
}

unsafe extern "C" fn probe<P: Exported>(
    host: *const HostTable,
    settings: *const SettingValue,
    setting_count: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("probe", error, || {
        if !host.is_null() {
            // SAFETY: a host table lives as long as the process and begins with its size.
            let table = unsafe {
                let size = (&raw const (*host).struct_size).read_unaligned();
                HostTable::read_prefix(host, u64::from(size))
            };
            log::attach(table);
        }
        // SAFETY: the caller passes `setting_count` settings that live during the call.
        let given = unsafe { array(settings, setting_count, "the settings") }?;
        let mut values = Vec::with_capacity(given.len());
        for setting in given {
            // SAFETY: the caller passes bytes that live during the call.
            match unsafe { (setting.key.as_text(), setting.value.as_text()) } {
                (Some(key), Some(value)) => values.push((key, value)),
                _ => return Err(PluginError::invalid("a setting is not UTF-8")),
            }
        }
        P::slot().probe(&Settings::new(values))?;
        tracing::debug!(sdk = env!("CARGO_PKG_VERSION"), "{} {} is probed", P::NAME, P::VERSION);
        Ok(Status::Ok)
    })
}

unsafe extern "C" fn self_test<P: Exported>(error: *mut ErrorInfo) -> i32 {
    guard("self_test", error, || {
        log::refresh();
        object::<P>()?.self_test().map(|()| Status::Ok)
    })
}
