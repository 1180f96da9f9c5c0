//! The runtime, opened, and the cards that it knows.

use std::ffi::c_char;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{DeviceFacts, PluginError, PluginResult};
use iccl_plugin_api::tables::{DeviceCapabilities, host_to_stream, stream_to_host};
use iccl_vendor_support::{
    Library, Search, numa_node, open, pci_address, static_text, table, written_text,
};

use crate::{libraries, sys};

/// libascendcl.
#[derive(Debug)]
pub(crate) struct Acl {
    pub(crate) table: sys::Acl,
    /// Of the interface: 1.13 in CANN 8.1, 1.17 in 9.
    pub(crate) version: (i32, i32),
    /// The chip of all cards: `Ascend910B3`.
    pub(crate) chip: &'static str,
    /// What CANN says of itself, as far as it can.
    pub(crate) cann: String,
    pub(crate) cards: Vec<DeviceFacts>,
}

impl Acl {
    /// Opens the library and looks for cards.
    ///
    /// # Errors
    /// `LibraryMissing`; `NoDevice` with the runtime's words.
    pub(crate) fn open(search: &Search) -> PluginResult<Self> {
        let (acl, _) = open(libraries::RUNTIME, search, Self::begin)?;
        Ok(acl)
    }

    fn begin(library: &Library) -> PluginResult<Self> {
        // SAFETY: the signatures are those of the headers of these versions.
        let table = table(library, unsafe { sys::Acl::resolve(library) })?;
        // SAFETY: no configuration. It is never ended: others in this process may use it.
        let answer = unsafe { (table.aclInit)(std::ptr::null()) };
        // Somebody else in this process may have begun it before.
        if answer != sys::ACL_ERROR_REPEAT_INITIALIZE {
            table.check("aclInit", answer).map_err(no_device)?;
        }
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        let answer =
            // SAFETY: there is room for the numbers.
            unsafe { (table.aclrtGetVersion)(&raw mut major, &raw mut minor, &raw mut patch) };
        table.check("aclrtGetVersion", answer)?;
        let cann = cann_version(&table).unwrap_or_else(|| format!("ACL {major}.{minor}.{patch}"));
        let count = device_count(&table, &cann)?;
        // SAFETY: the text is the library's own.
        let chip = unsafe { static_text((table.aclrtGetSocName)()) }.leak();
        tracing::info!(count, chip, %cann, "found Ascend cards");
        let cards = (0..count).map(|ordinal| card(&table, chip, ordinal)).collect();
        Ok(Self { table, version: (major, minor), chip, cann, cards })
    }

    /// A card by its number.
    pub(crate) fn card(&self, index: u32) -> PluginResult<&DeviceFacts> {
        self.cards.get(index as usize).ok_or_else(|| {
            let count = self.cards.len();
            PluginError::invalid(format!("there are {count} Ascend cards, and no number {index}"))
        })
    }
}

/// A runtime that cannot even begin has no cards for us, whatever its reason.
fn no_device(error: PluginError) -> PluginError {
    PluginError { status: Status::NoDevice, ..error }
}

/// How many cards there are; none is an error with the runtime's words.
fn device_count(table: &sys::Acl, cann: &str) -> PluginResult<u32> {
    // An error leaves it as it is.
    let mut count = 0;
    // SAFETY: there is room for the number.
    let answer = unsafe { (table.aclrtGetDeviceCount)(&raw mut count) };
    table.check("aclrtGetDeviceCount", answer).map_err(|error| PluginError {
        message: format!("{}; {cann}", error.message),
        ..no_device(error)
    })?;
    if count == 0 {
        let text = format!("aclrtGetDeviceCount: 0 devices; {cann}");
        return Err(PluginError::new(Status::NoDevice, text));
    }
    Ok(count)
}

/// The version of HCCL's package, which HCCL itself does not tell.
fn cann_version(table: &sys::Acl) -> Option<String> {
    let get = table.aclsysGetCANNVersion?;
    let mut version = sys::PackageVersion {
        version: [0; 128],
        major: [0; 64],
        minor: [0; 64],
        release: [0; 64],
        patch: [0; 64],
        reserved: [0; 128],
    };
    // SAFETY: there is room for the structure.
    let answer = unsafe { get(sys::PACKAGE_HCCL, &raw mut version) };
    let text = written_text(&version.version);
    match table.check("aclsysGetCANNVersion", answer) {
        Ok(()) if !text.is_empty() => Some(format!("CANN {text}")),
        Ok(()) => None,
        Err(error) => {
            tracing::debug!(%error, "CANN does not tell its version");
            None
        }
    }
}

/// What is known of a card without a context on it.
fn card(table: &sys::Acl, chip: &'static str, ordinal: u32) -> DeviceFacts {
    let address = pci_of(table, ordinal).unwrap_or_default().leak();
    // With `LaunchHostFunc` the thread is the runtime's, of which nobody promises that each stream has
    // its own; with report threads it is ours, one for each stream.
    let blocking = table.aclrtLaunchHostFunc.is_none();
    DeviceFacts {
        name: chip,
        pci_address: address,
        numa_node: numa_node(address),
        memory_bytes: memory_of(table, ordinal).unwrap_or(0),
        capabilities: DeviceCapabilities {
            stream_to_host: stream_to_host::EVENT | stream_to_host::HOST_FUNCTION,
            host_to_stream: if blocking { host_to_stream::BLOCKING_HOST_FUNCTION } else { 0 },
            host_accessible: 0,
            has_reduce: 0,
            reduce_dtypes: 0,
            reduce_ops: 0,
            region_forms: 0,
            region_alignment: 1,
        },
    }
}

/// The PCI address, where the runtime is new enough to tell.
fn pci_of(table: &sys::Acl, ordinal: u32) -> Option<String> {
    let get = table.aclrtDeviceGetPCIBusId?;
    let mut text = [0_u8; 64];
    let place = text.as_mut_ptr().cast::<c_char>();
    // SAFETY: the text is cut at the length that is passed.
    let answer = unsafe { get(ordinal as i32, place, text.len() as i32) };
    match table.check(format_args!("aclrtDeviceGetPCIBusId({ordinal})"), answer) {
        Ok(()) => pci_address(&written_text(&text)),
        Err(error) => {
            tracing::debug!(%error, "a card's PCI address is not known");
            None
        }
    }
}

/// The memory in bytes, where the runtime is new enough to tell without a context on the card.
fn memory_of(table: &sys::Acl, ordinal: u32) -> Option<u64> {
    let get = table.aclrtGetDeviceInfo?;
    let mut bytes = 0_i64;
    // SAFETY: there is room for the number.
    let answer = unsafe { get(ordinal, sys::ATTRIBUTE_TOTAL_GLOBAL_MEMORY, &raw mut bytes) };
    match table.check(format_args!("aclrtGetDeviceInfo({ordinal})"), answer) {
        Ok(()) => u64::try_from(bytes).ok(),
        Err(error) => {
            tracing::debug!(%error, "a card's memory is not known");
            None
        }
    }
}
