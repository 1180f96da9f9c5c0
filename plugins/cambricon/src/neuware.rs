//! Runtime and driver, opened, and the cards that they know.

use std::ffi::{c_char, c_int, c_uint};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{DeviceFacts, PluginError, PluginResult};
use iccl_plugin_api::tables::{DeviceCapabilities, region_form, stream_to_host};
use iccl_vendor_support::{
    MissingSymbols, OwnProcess, Search, numa_node, open, pci_address, table, written_text,
};

use crate::{libraries, sys};

/// CNRT and `CNDrv`.
#[derive(Debug)]
pub(crate) struct Neuware {
    pub(crate) runtime: sys::Runtime,
    pub(crate) driver: sys::Driver,
    /// The newest of the three that the runtime has.
    pub(crate) copy_async: (&'static str, sys::CopyAsync),
    pub(crate) cards: Vec<Card>,
    process: OwnProcess,
}

/// What is known of a card before it is opened.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    pub(crate) facts: DeviceFacts,
    /// How a NIC gets at its memory: a bit of [`region_form`], or 0.
    pub(crate) region_form: u32,
}

impl Neuware {
    /// Opens the libraries, initialises the driver, and looks for cards. `peer_memory` says that the
    /// kernel has Cambricon's module by which NICs take plain addresses.
    ///
    /// # Errors
    /// `LibraryMissing`; `NoDevice` with Cambricon's words; what the driver says.
    pub(crate) fn open(search: &Search, peer_memory: bool) -> PluginResult<Self> {
        // From here on `fork` is forbidden.
        let process = OwnProcess::this();
        let ((runtime, copy_async, count), _) = open(libraries::RUNTIME, search, |library| {
            // SAFETY: the signatures are those of the header.
            let resolved = unsafe { sys::Runtime::resolve(library) };
            let resolved = resolved.and_then(|runtime| Ok((runtime, copy_async(&runtime)?)));
            let (runtime, copy_async) = table(library, resolved)?;
            let count = device_count(&runtime)?;
            Ok((runtime, copy_async, count))
        })?;
        let (driver, _) = open(libraries::DRIVER, &libraries::driver_search(search), |library| {
            // SAFETY: the signatures are those of the header.
            let driver = table(library, unsafe { sys::Driver::resolve(library) })?;
            // SAFETY: no arguments but a zero.
            runtime.check("cnInit", unsafe { (driver.cnInit)(0) })?;
            Ok(driver)
        })?;
        let cards = (0..count).map(|ordinal| card(&runtime, &driver, ordinal, peer_memory));
        let cards = cards.collect::<PluginResult<_>>()?;
        Ok(Self { runtime, driver, copy_async, cards, process })
    }

    /// A card by its number.
    pub(crate) fn card(&self, index: u32) -> PluginResult<&Card> {
        self.cards.get(index as usize).ok_or_else(|| {
            let count = self.cards.len();
            PluginError::invalid(format!(
                "there are {count} Cambricon cards, and no number {index}"
            ))
        })
    }

    /// Cambricon's libraries may be called in this process.
    pub(crate) fn check_process(&self) -> PluginResult<()> {
        self.process.check("Cambricon's driver")
    }
}

/// The function that copies on a queue: of three that mean the same, the newest that is there.
fn copy_async(runtime: &sys::Runtime) -> Result<(&'static str, sys::CopyAsync), MissingSymbols> {
    let known = [
        ("cnrtMemcpyAsync_V3", runtime.cnrtMemcpyAsync_V3),
        ("cnrtMemcpyAsync_V2", runtime.cnrtMemcpyAsync_V2),
        ("cnrtMemcpyAsync", runtime.cnrtMemcpyAsync),
    ];
    let found = known.iter().find_map(|(name, function)| Some((*name, (*function)?)));
    found.ok_or_else(|| MissingSymbols(known.iter().map(|(name, _)| *name).collect()))
}

/// How many cards there are; none is an error with Cambricon's words.
fn device_count(runtime: &sys::Runtime) -> PluginResult<c_int> {
    // An error leaves it as it is.
    let mut count: c_uint = 0;
    // SAFETY: there is room for the number.
    let answer = unsafe { (runtime.cnrtGetDeviceCount)(&raw mut count) };
    let versions = versions(runtime);
    runtime.check("cnrtGetDeviceCount", answer).map_err(|error| PluginError {
        message: format!("{}; {versions}", error.message),
        ..error
    })?;
    if count == 0 {
        let text = format!("cnrtGetDeviceCount: 0 devices; {versions}");
        return Err(PluginError::new(Status::NoDevice, text));
    }
    tracing::info!(count, %versions, "found Cambricon cards");
    Ok(count as c_int)
}

/// Which runtime and which driver these are.
fn versions(runtime: &sys::Runtime) -> String {
    let own = version(runtime.cnrtGetLibVersion).map_or("unknown".to_owned(), text_of);
    let driver = version(runtime.cnrtDriverGetVersion).map(text_of);
    let driver = driver.map_or("no driver".to_owned(), |version| format!("driver {version}"));
    format!("CNRT {own}, {driver}")
}

/// What a function that tells a version tells.
pub(crate) fn version(
    tell: unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int) -> c_int,
) -> Option<[c_int; 3]> {
    let [mut major, mut minor, mut patch] = [0; 3];
    // SAFETY: there is room for the numbers.
    let answer = unsafe { tell(&raw mut major, &raw mut minor, &raw mut patch) };
    (answer == 0 && [major, minor, patch] != [0; 3]).then_some([major, minor, patch])
}

/// A version as people write it.
pub(crate) fn text_of([major, minor, patch]: [c_int; 3]) -> String {
    format!("{major}.{minor}.{patch}")
}

/// Asks for all that is known of a card, without choosing it for the thread.
fn card(
    runtime: &sys::Runtime,
    driver: &sys::Driver,
    ordinal: c_int,
    peer_memory: bool,
) -> PluginResult<Card> {
    let mut device = 0;
    let mut name = [0_u8; 256];
    let mut address = [0_u8; 64];
    let mut megabytes = 0;
    let mut dma_buf = 0;
    // SAFETY: there is room for each answer, and texts are cut at the length that is passed.
    let (attributes, dma_buf_answer) = unsafe {
        let answer = (driver.cnDeviceGet)(&raw mut device, ordinal);
        runtime.check(format_args!("cnDeviceGet({ordinal})"), answer)?;
        let place = name.as_mut_ptr().cast::<c_char>();
        let answer = (driver.cnDeviceGetName)(place, name.len() as c_uint, device);
        runtime.check(format_args!("cnDeviceGetName({ordinal})"), answer)?;
        let place = address.as_mut_ptr().cast::<c_char>();
        let answer = (runtime.cnrtDeviceGetPCIBusId)(place, address.len() as c_int, ordinal);
        runtime.check(format_args!("cnrtDeviceGetPCIBusId({ordinal})"), answer)?;
        let number = sys::ATTRIBUTE_TOTAL_MEMORY_MEGABYTES;
        let answer = (runtime.cnrtDeviceGetAttribute)(&raw mut megabytes, number, ordinal);
        let call = format!("cnrtDeviceGetAttribute({number:#x}, {ordinal})");
        let number = sys::DRIVER_ATTRIBUTE_DMA_BUF_SUPPORTED;
        let dma_buf_answer = (driver.cnDeviceGetAttribute)(&raw mut dma_buf, number, device);
        let dma_buf_call = format!("cnDeviceGetAttribute({number:#x}, {ordinal})");
        ((call, answer), (dma_buf_call, dma_buf_answer))
    };
    let known = |(call, answer): (String, c_int), value| match runtime.check(call, answer) {
        Ok(()) => value,
        Err(error) => {
            tracing::debug!(%error, "an attribute is not known");
            0
        }
    };
    let megabytes = known(attributes, megabytes);
    let dma_buf = known(dma_buf_answer, dma_buf) == 1;
    let region_form = match (driver.cnMemGetHandleForAddressRange, peer_memory) {
        // The kernel keeps the memory of a descriptor alive; that of an address it does not.
        (Some(_), _) if dma_buf => region_form::DMA_BUF,
        (_, true) => region_form::ADDRESS,
        _ => 0,
    };
    let address = pci_address(&written_text(&address)).unwrap_or_default();
    let numa_node = numa_node(&address);
    let facts = DeviceFacts {
        name: written_text(&name).leak(),
        pci_address: address.leak(),
        numa_node,
        memory_bytes: (megabytes.max(0) as u64) << 20,
        capabilities: DeviceCapabilities {
            stream_to_host: stream_to_host::EVENT | stream_to_host::HOST_FUNCTION,
            // CNRT has no wait for a value, and nobody says that each queue has a thread of its own
            // for host functions: they never block, and enqueueing does.
            host_to_stream: 0,
            host_accessible: 0,
            has_reduce: 0,
            reduce_dtypes: 0,
            reduce_ops: 0,
            region_forms: region_form,
            region_alignment: 1,
        },
    };
    Ok(Card { facts, region_form })
}
