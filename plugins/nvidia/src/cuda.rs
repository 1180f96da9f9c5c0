//! Runtime and driver, opened, and the cards that they know.

use std::ffi::{c_char, c_int, c_uint};
use std::path::Path;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{DeviceFacts, PluginError, PluginResult};
use iccl_plugin_api::tables::{DeviceCapabilities, host_to_stream, region_form, stream_to_host};
use iccl_vendor_support::{Search, numa_node, open, pci_address, table, written_text};

use crate::{libraries, sys};

/// libcudart and libcuda.
#[derive(Debug)]
pub(crate) struct Cuda {
    pub(crate) runtime: sys::Runtime,
    pub(crate) driver: sys::Driver,
    pub(crate) cards: Vec<Card>,
}

/// What is known of a card without a context on it.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    pub(crate) facts: DeviceFacts,
    pub(crate) direct: GpuDirect,
}

/// How a NIC gets at the card's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuDirect {
    /// The driver gives dma-buf descriptors.
    pub(crate) dma_buf: bool,
    /// The kernel has the module through which NICs take plain addresses.
    pub(crate) peer_memory: bool,
    /// What a NIC wrote has to be flushed before the card sees it.
    pub(crate) needs_flush: bool,
}

impl GpuDirect {
    /// Bits of [`region_form`].
    fn forms(self) -> u32 {
        (if self.dma_buf { region_form::DMA_BUF } else { 0 })
            | (if self.peer_memory { region_form::ADDRESS } else { 0 })
    }
}

impl Cuda {
    /// Opens the libraries and looks for cards.
    ///
    /// # Errors
    /// `LibraryMissing`; `NoDevice` with NVIDIA's words; what the driver says.
    pub(crate) fn open(search: &Search) -> PluginResult<Self> {
        let ((runtime, count), _) = open(libraries::RUNTIME, search, |library| {
            // SAFETY: the signatures are those of the headers of these versions.
            let runtime = unsafe { sys::Runtime::resolve(library) };
            let runtime = table(library, runtime)?;
            let count = device_count(&runtime)?;
            Ok((runtime, count))
        })?;
        let driver_search = libraries::driver_search(search);
        let (driver, _) = open(libraries::DRIVER, &driver_search, |library| {
            // SAFETY: the signatures are those of the header.
            let driver = unsafe { sys::Driver::resolve(library) };
            let driver = table(library, driver)?;
            // SAFETY: no arguments but a zero.
            driver.check("cuInit", unsafe { (driver.cuInit)(0) })?;
            Ok(driver)
        })?;
        let cards = (0..count).map(|ordinal| card(&runtime, &driver, ordinal));
        Ok(Self { cards: cards.collect::<PluginResult<_>>()?, runtime, driver })
    }

    /// A card by its number.
    pub(crate) fn card(&self, index: u32) -> PluginResult<&Card> {
        self.cards.get(index as usize).ok_or_else(|| {
            let count = self.cards.len();
            PluginError::invalid(format!("there are {count} NVIDIA cards, and no number {index}"))
        })
    }
}

/// How many cards there are; none is an error with NVIDIA's words.
fn device_count(runtime: &sys::Runtime) -> PluginResult<c_int> {
    // An error leaves it as it is.
    let mut count = 0;
    // SAFETY: there is room for the number.
    let answer = unsafe { (runtime.cudaGetDeviceCount)(&raw mut count) };
    let versions = versions(runtime);
    runtime.check("cudaGetDeviceCount", answer).map_err(|error| PluginError {
        message: format!("{}; {versions}", error.message),
        ..error
    })?;
    if count <= 0 {
        let text = format!("cudaGetDeviceCount: {count} devices; {versions}");
        return Err(PluginError::new(Status::NoDevice, text));
    }
    tracing::info!(count, %versions, "found NVIDIA cards");
    Ok(count)
}

/// Which runtime this is, and up to which version of CUDA the driver goes.
fn versions(runtime: &sys::Runtime) -> String {
    let (mut own, mut driver) = (0, 0);
    // SAFETY: there is room for the numbers.
    unsafe {
        (runtime.cudaRuntimeGetVersion)(&raw mut own);
        (runtime.cudaDriverGetVersion)(&raw mut driver);
    }
    let driver = match driver {
        0 => "no driver".to_owned(),
        version => format!("a driver for CUDA {}", cuda_version(version)),
    };
    format!("CUDA runtime {}, {driver}", cuda_version(own))
}

/// `1000 * major + 10 * minor` as people write it.
fn cuda_version(number: c_int) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// Asks for all that is known of a card, without making a context on it.
fn card(runtime: &sys::Runtime, driver: &sys::Driver, ordinal: c_int) -> PluginResult<Card> {
    let mut device = 0;
    let mut name = [0_u8; 256];
    let mut address = [0_u8; 64];
    let mut bytes = 0_usize;
    // SAFETY: there is room for each answer, and texts are cut at the length that is passed.
    unsafe {
        let answer = (driver.cuDeviceGet)(&raw mut device, ordinal);
        driver.check(format_args!("cuDeviceGet({ordinal})"), answer)?;
        let place = name.as_mut_ptr().cast::<c_char>();
        let answer = (driver.cuDeviceGetName)(place, name.len() as c_int, device);
        driver.check(format_args!("cuDeviceGetName({ordinal})"), answer)?;
        let place = address.as_mut_ptr().cast::<c_char>();
        let answer = (runtime.cudaDeviceGetPCIBusId)(place, address.len() as c_int, ordinal);
        runtime.check(format_args!("cudaDeviceGetPCIBusId({ordinal})"), answer)?;
        if let Some(total) = driver.cuDeviceTotalMem_v2 {
            let answer = total(&raw mut bytes, device);
            driver.check(format_args!("cuDeviceTotalMem({ordinal})"), answer)?;
        }
    }
    let address = pci_address(&written_text(&address)).unwrap_or_default();
    let attribute = |number| device_attribute(runtime, number, ordinal);
    let driver_attribute = |number| driver_attribute(driver, number, device);
    let waits = driver.cuStreamWaitValue64_v2.is_some()
        && driver_attribute(sys::DRIVER_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) == 1;
    let direct = gpu_direct(&Reported {
        supported: attribute(sys::ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) == 1,
        ordering: attribute(sys::ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING),
        flush_options: attribute(sys::ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_OPTIONS),
        can_flush: runtime.cudaDeviceFlushGPUDirectRDMAWrites.is_some(),
        dma_buf: driver.cuMemGetHandleForAddressRange.is_some()
            && driver_attribute(sys::DRIVER_ATTRIBUTE_DMA_BUF_SUPPORTED) == 1,
        peer_memory: Path::new("/sys/module/nvidia_peermem").exists(),
    });
    let numa_node = numa_node(&address);
    let facts = DeviceFacts {
        name: written_text(&name).leak(),
        pci_address: address.leak(),
        numa_node,
        memory_bytes: bytes as u64,
        capabilities: DeviceCapabilities {
            stream_to_host: stream_to_host::EVENT | stream_to_host::HOST_FUNCTION,
            // NVIDIA does not promise a callback thread of its own to each stream, so a host
            // function never blocks: without a wait for a value, enqueueing does.
            host_to_stream: if waits { host_to_stream::WAIT_VALUE } else { 0 },
            host_accessible: 0,
            has_reduce: 0,
            reduce_dtypes: 0,
            reduce_ops: 0,
            region_forms: direct.forms(),
            region_alignment: 1,
        },
    };
    Ok(Card { facts, direct })
}

/// What libraries and kernel say of NICs and a card.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Reported {
    supported: bool,
    ordering: c_int,
    flush_options: c_int,
    can_flush: bool,
    dma_buf: bool,
    peer_memory: bool,
}

/// A card's memory is offered to NICs only if what they write becomes visible: by itself, or by a
/// flush that the host can ask for.
fn gpu_direct(reported: &Reported) -> GpuDirect {
    let is_ordered = reported.ordering >= sys::WRITES_ORDERING_OWNER;
    let can_flush = reported.can_flush && reported.flush_options & sys::FLUSH_OPTION_HOST != 0;
    if !reported.supported || !(is_ordered || can_flush) {
        return GpuDirect::default();
    }
    GpuDirect {
        dma_buf: reported.dma_buf,
        peer_memory: reported.peer_memory,
        needs_flush: !is_ordered,
    }
}

/// An attribute of the runtime; 0 if this version does not know it.
fn device_attribute(runtime: &sys::Runtime, number: c_int, ordinal: c_int) -> c_int {
    let mut value = 0;
    // SAFETY: there is room for the number.
    let answer = unsafe { (runtime.cudaDeviceGetAttribute)(&raw mut value, number, ordinal) };
    match runtime.check(format_args!("cudaDeviceGetAttribute({number}, {ordinal})"), answer) {
        Ok(()) => value,
        Err(error) => {
            tracing::debug!(%error, "an attribute is not known");
            0
        }
    }
}

/// An attribute of the driver; 0 if this version does not know it.
fn driver_attribute(driver: &sys::Driver, number: c_int, device: sys::DriverDevice) -> c_int {
    let mut value = 0;
    // SAFETY: there is room for the number.
    let answer = unsafe { (driver.cuDeviceGetAttribute)(&raw mut value, number, device) };
    match driver.check(format_args!("cuDeviceGetAttribute({number}, {device})"), answer) {
        Ok(()) => value,
        Err(error) => {
            tracing::debug!(%error, "an attribute is not known");
            0
        }
    }
}

/// The flags that streams are made with: they don't wait for the legacy default stream, on which
/// the application may have work that waits for iccl.
pub(crate) const STREAM_FLAGS: c_uint = sys::STREAM_NON_BLOCKING;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_nvidia_writes_them() {
        assert_eq!(cuda_version(12090), "12.9");
        assert_eq!(cuda_version(13000), "13.0");
        assert_eq!(cuda_version(12010), "12.1");
    }

    #[test]
    fn memory_is_offered_to_nics_only_if_what_they_write_is_seen() {
        let reported = |ordering, flush_options, can_flush| Reported {
            supported: true,
            ordering,
            flush_options,
            can_flush,
            dma_buf: true,
            peer_memory: false,
        };
        let ordered = gpu_direct(&reported(100, 0, false));
        assert_eq!(ordered, GpuDirect { dma_buf: true, peer_memory: false, needs_flush: false });
        assert_eq!(ordered.forms(), region_form::DMA_BUF);
        assert!(gpu_direct(&reported(0, 1, true)).needs_flush);
        // Flushing by memory operations of a stream is not what the host asks for.
        for hidden in [reported(0, 2, true), reported(0, 1, false), reported(0, 0, true)] {
            assert_eq!(gpu_direct(&hidden).forms(), 0);
        }
        let unsupported = Reported { supported: false, ..reported(200, 1, true) };
        assert_eq!(gpu_direct(&unsupported), GpuDirect::default());
    }
}
