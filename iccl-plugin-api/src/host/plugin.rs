//! The view of a plugin as a whole.

use std::sync::{Mutex, PoisonError};

use super::error::must_be_done;
use super::{CallError, CollectivesView, DeviceView, TableError, TransportView, call, missing};
use crate::sdk::Progress;
use crate::tables::{
    ABI_MAJOR, Bytes, CollectivesTable, DeviceTable, ErrorInfo, Growing, HostTable, PluginInfo,
    PluginTable, SettingSpec, SettingValue, TransportTable,
};

/// A plugin's tables, in this version's form. Free to copy.
#[derive(Clone, Copy, Debug)]
pub struct PluginView(&'static Tables);

/// What is kept of a plugin's tables: copies in which all that the plugin lacks is absent.
#[derive(Debug)]
struct Tables {
    plugin: PluginTable,
    device: Option<DeviceTable>,
    collectives: Option<CollectivesTable>,
    transport: Option<TransportTable>,
}

/// What a plugin says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginDescription {
    /// The name in kebab case.
    pub name: &'static str,
    /// The plugin's own version.
    pub version: &'static str,
    /// Who makes it.
    pub vendor: &'static str,
    /// One line that says what it is.
    pub description: &'static str,
    /// The settings that it understands.
    pub settings: Vec<SettingDescription>,
}

/// One setting that a plugin understands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingDescription {
    /// The key.
    pub key: &'static str,
    /// What is accepted: `bool`, `integer`, `bytes`, `duration`, `string`, `list`.
    pub kind: &'static str,
    /// The default, as text.
    pub default: &'static str,
    /// One line that says what it does.
    pub description: &'static str,
}

/// More bytes than any table has in any version of this major.
const LARGEST_TABLE_BYTES: u32 = 64 * 1024;

/// Most settings that a plugin may have.
const MOST_SETTINGS: u64 = 4096;

impl PluginView {
    /// The view of a plugin's root table. Cheap when the same table was viewed before.
    ///
    /// # Safety
    /// `table` is null, or the root table of a plugin whose code stays loaded for the life of the
    /// process and keeps the ABI's rules.
    ///
    /// # Errors
    /// [`TableError`]: which rule the tables break, as far as can be seen without calling anything.
    pub unsafe fn new(table: *const PluginTable) -> Result<Self, TableError> {
        static SEEN: Mutex<Vec<(usize, PluginView)>> = Mutex::new(Vec::new());

        // The list is pushed to in one step, so a panic elsewhere can't have left it half-made.
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, view)) = seen.iter().find(|(address, _)| *address == table.addr()) {
            return Ok(*view);
        }
        // SAFETY: the caller promises it.
        let view = Self(Box::leak(Box::new(unsafe { Tables::read(table) }?)));
        seen.push((table.addr(), view));
        Ok(view)
    }

    /// The ABI's minor version that the plugin was built with.
    pub fn abi_minor(self) -> u32 {
        self.0.plugin.abi_minor
    }

    /// The device family, if the plugin offers it.
    pub fn device(self) -> Option<DeviceView> {
        self.0.device.as_ref().map(DeviceView)
    }

    /// The native collectives family, if the plugin offers it.
    pub fn collectives(self) -> Option<CollectivesView> {
        self.0.collectives.as_ref().map(CollectivesView)
    }

    /// The transport family, if the plugin offers it.
    pub fn transport(self) -> Option<TransportView> {
        self.0.transport.as_ref().map(TransportView)
    }

    /// Bits of [`family`](crate::tables::family) that are offered.
    pub fn families(self) -> u32 {
        use crate::tables::family;
        let offered = |offered: bool, bit| if offered { bit } else { 0 };
        offered(self.0.device.is_some(), family::DEVICE)
            | offered(self.0.collectives.is_some(), family::COLLECTIVES)
            | offered(self.0.transport.is_some(), family::TRANSPORT)
    }

    /// Asks the plugin what it is. Opens nothing.
    ///
    /// # Errors
    /// What the plugin says; `Internal` if the answer is no sensible description.
    pub fn describe(self) -> Result<PluginDescription, CallError> {
        const CALL: &str = "describe";
        let mut info = PluginInfo::absent();
        let answer = call!(
            self.0.plugin,
            &mut ErrorInfo::new(),
            "",
            describe(&raw mut info, size_of::<PluginInfo>() as u64)
        );
        must_be_done(CALL, answer)?;
        if info.setting_count > MOST_SETTINGS
            || (info.setting_count > 0 && (info.settings.is_null() || !info.settings.is_aligned()))
        {
            return Err(CallError::rules(CALL, "the list of settings makes no sense"));
        }
        let specs: &[SettingSpec] = if info.setting_count == 0 {
            &[]
        } else {
            // SAFETY: checked for null, alignment and size; the list is a static of the plugin.
            unsafe { std::slice::from_raw_parts(info.settings, info.setting_count as usize) }
        };
        let settings = specs
            .iter()
            .map(|spec| {
                Ok(SettingDescription {
                    key: static_text(CALL, spec.key)?,
                    kind: static_text(CALL, spec.kind)?,
                    default: static_text(CALL, spec.default_text)?,
                    description: static_text(CALL, spec.description)?,
                })
            })
            .collect::<Result<_, CallError>>()?;
        let name = static_text(CALL, info.name)?;
        if name.is_empty()
            || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        {
            return Err(CallError::rules(CALL, format!("the name {name:?} is not in kebab case")));
        }
        Ok(PluginDescription {
            name,
            version: static_text(CALL, info.version)?,
            vendor: static_text(CALL, info.vendor)?,
            description: static_text(CALL, info.description)?,
            settings,
        })
    }

    /// Lets the plugin look for its devices. A plugin that was probed successfully answers later
    /// probes at once and keeps the settings of the first.
    ///
    /// # Errors
    /// What the plugin says. `NoDevice` and `LibraryMissing` are normal answers.
    pub fn probe(
        self,
        host: Option<&'static HostTable>,
        settings: &[(&str, &str)],
    ) -> Result<(), CallError> {
        let values: Vec<SettingValue> = settings
            .iter()
            .map(|(key, value)| SettingValue {
                key: Bytes::borrow(key.as_bytes()),
                value: Bytes::borrow(value.as_bytes()),
            })
            .collect();
        let host = host.map_or(std::ptr::null(), std::ptr::from_ref);
        let answer = call!(
            self.0.plugin,
            &mut ErrorInfo::new(),
            "",
            probe(host, values.as_ptr(), values.len() as u64)
        );
        must_be_done("probe", answer)
    }

    /// Lets the plugin check its own promises; right if it has no such function.
    ///
    /// # Errors
    /// What was promised and is not so.
    pub fn self_test(self) -> Result<(), CallError> {
        if self.0.plugin.self_test.is_none() {
            return Ok(());
        }
        let answer: Result<Progress, CallError> =
            call!(self.0.plugin, &mut ErrorInfo::new(), "", self_test());
        must_be_done("self_test", answer)
    }
}

impl Tables {
    /// Reads all tables of a plugin and checks what can be checked without calling anything.
    ///
    /// # Safety
    /// As for [`PluginView::new`].
    unsafe fn read(root: *const PluginTable) -> Result<Self, TableError> {
        if root.is_null() {
            return Err(TableError::Null);
        }
        if !root.is_aligned() {
            return Err(TableError::Misaligned("root"));
        }
        // SAFETY: a root table of any version begins with its size and its major version; the
        // caller promises that this is one. Of another major, nothing else may be read.
        let (bytes, found) = unsafe { ((*root).struct_size, (*root).abi_major) };
        if found != ABI_MAJOR {
            return Err(TableError::AbiMajor { found });
        }
        if bytes < 16 {
            return Err(TableError::BadSize { table: "root", bytes });
        }
        // SAFETY: the caller promises it.
        let plugin = unsafe { read_table(root, "root") }?;
        // SAFETY: each is null or a table of the plugin.
        let (device, collectives, transport) = unsafe {
            (
                read_family(plugin.device, "device")?,
                read_family(plugin.collectives, "collectives")?,
                read_family(plugin.transport, "transport")?,
            )
        };
        let tables = Self { plugin, device, collectives, transport };
        tables.validate()?;
        Ok(tables)
    }

    /// Names the mandatory functions that are not there.
    fn validate(&self) -> Result<(), TableError> {
        let mut absent = missing!(self.plugin, "", [describe, probe]);
        if let Some(table) = &self.device {
            absent.extend(DeviceView::missing(table));
        }
        if let Some(table) = &self.collectives {
            absent.extend(CollectivesView::missing(table));
            if self.device.is_none() {
                absent.push("device.open");
            }
        }
        if let Some(table) = &self.transport {
            absent.extend(TransportView::missing(table));
        }
        if !absent.is_empty() {
            return Err(TableError::MissingFunctions(absent));
        }
        Ok(())
    }
}

/// Reads one table, as far as its stated size and this version's reach.
///
/// # Safety
/// `table` points to a table of the plugin.
unsafe fn read_table<T: Growing>(table: *const T, name: &'static str) -> Result<T, TableError> {
    if !table.is_aligned() {
        return Err(TableError::Misaligned(name));
    }
    // SAFETY: every table begins with its size; the caller promises that this is one.
    let bytes = unsafe { table.cast::<u32>().read() };
    if !(8..=LARGEST_TABLE_BYTES).contains(&bytes) {
        return Err(TableError::BadSize { table: name, bytes });
    }
    // SAFETY: the table says that it has `bytes`.
    Ok(unsafe { T::read_prefix(table, bytes.into()) })
}

/// Reads the table of a family that may not be there.
///
/// # Safety
/// `table` is null or points to a table of the plugin.
unsafe fn read_family<T: Growing>(
    table: *const T,
    name: &'static str,
) -> Result<Option<T>, TableError> {
    if table.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller promises it.
    unsafe { read_table(table, name) }.map(Some)
}

/// A static text of the plugin.
pub(super) fn static_text(call: &'static str, bytes: Bytes) -> Result<&'static str, CallError> {
    if bytes.length > LARGEST_TABLE_BYTES.into() || (bytes.data.is_null() && bytes.length > 0) {
        return Err(CallError::rules(call, "a text of the answer makes no sense"));
    }
    // SAFETY: the ABI says that these bytes are statics of the plugin, which is never unloaded.
    unsafe { bytes.as_text() }
        .ok_or_else(|| CallError::rules(call, "a text of the answer is not UTF-8"))
}
