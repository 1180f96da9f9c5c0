//! The device family: memory, copies, streams and events of one kind of card.

use core::ffi::c_void;

use abi_stable::StableAbi;

use super::{Bytes, ErrorInfo};

/// A short function that a stream calls when all work before it is done. It never blocks and never
/// calls back into the plugin. In C, a plain function pointer.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct HostFunction(pub unsafe extern "C" fn(user: *mut c_void));

/// Bits of [`DeviceCapabilities::stream_to_host`]: how a stream tells the host that it got there.
pub mod stream_to_host {
    /// `event_record` and `event_query`.
    pub const EVENT: u32 = 1;
    /// `host_function`.
    pub const HOST_FUNCTION: u32 = 2;
}

/// Bits of [`DeviceCapabilities::host_to_stream`]: how the host lets a stream go on.
pub mod host_to_stream {
    /// `stream_wait_value` on a word that the host writes with `write_value`.
    pub const WAIT_VALUE: u32 = 1;
    /// A host function may block, because each stream has a callback thread of its own.
    pub const BLOCKING_HOST_FUNCTION: u32 = 2;
}

/// Functions of a device. Mandatory ones are marked; all others may be null.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
#[sabi(kind(Prefix(prefix_ref = DeviceTableRef, prefix_fields = DeviceTablePrefix)))]
#[sabi(missing_field(option))]
pub struct DeviceTable {
    /// Bytes of this table as the plugin was built.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Mandatory. How many devices `probe` found.
    pub count: Option<unsafe extern "C" fn(count: *mut u32, error: *mut ErrorInfo) -> i32>,
    /// Mandatory. Facts about device `index`. `size` is that of `info`.
    pub info: Option<
        unsafe extern "C" fn(
            index: u32,
            info: *mut DeviceInfo,
            size: u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Mandatory. What device `index` can do.
    pub capabilities: Option<
        unsafe extern "C" fn(
            index: u32,
            capabilities: *mut DeviceCapabilities,
            size: u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Mandatory. Opens device `index` for this process; gives a handle for all functions below.
    pub open:
        Option<unsafe extern "C" fn(index: u32, device: *mut u64, error: *mut ErrorInfo) -> i32>,
    /// Mandatory. Closes what `open` gave. All streams, events and memory are gone before.
    pub close: Option<unsafe extern "C" fn(device: u64, error: *mut ErrorInfo) -> i32>,
    /// Mandatory. Allocates `bytes` of memory of `kind` (a [`MemoryKind`](crate::MemoryKind)
    /// number), aligned to at least 64 bytes. Any thread.
    pub allocate: Option<
        unsafe extern "C" fn(
            device: u64,
            bytes: u64,
            kind: u32,
            pointer: *mut *mut c_void,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Mandatory. Frees what `allocate` gave. Any thread.
    pub free: Option<
        unsafe extern "C" fn(device: u64, pointer: *mut c_void, error: *mut ErrorInfo) -> i32,
    >,
    /// Optional. What kind of memory `pointer` is (a [`MemoryKind`](crate::MemoryKind) number).
    /// Absent: every pointer that the caller passes is memory of this device. Any thread.
    pub memory_kind: Option<
        unsafe extern "C" fn(
            device: u64,
            pointer: *const c_void,
            kind: *mut u32,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Mandatory. Enqueues a copy of `bytes` on `stream` (0: done before this returns). The kinds
    /// of both sides are given, so that a vendor's direction argument can be formed.
    pub copy: Option<
        unsafe extern "C" fn(
            device: u64,
            stream: u64,
            destination: *mut c_void,
            destination_kind: u32,
            source: *const c_void,
            source_kind: u32,
            bytes: u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Mandatory. Makes a stream: a queue whose work is done in order, each after the one before.
    pub stream_create:
        Option<unsafe extern "C" fn(device: u64, stream: *mut u64, error: *mut ErrorInfo) -> i32>,
    /// Mandatory. Destroys an own stream after its work is done. May block for that.
    pub stream_destroy:
        Option<unsafe extern "C" fn(device: u64, stream: u64, error: *mut ErrorInfo) -> i32>,
    /// Mandatory. `Ok` if all work of the stream is done, else `Pending`. Any thread.
    pub stream_query:
        Option<unsafe extern "C" fn(device: u64, stream: u64, error: *mut ErrorInfo) -> i32>,
    /// Mandatory. Waits until all work of the stream is done, at most `timeout_us` microseconds
    /// (then `Timeout`). Blocks. Any thread.
    pub stream_synchronize: Option<
        unsafe extern "C" fn(
            device: u64,
            stream: u64,
            timeout_us: u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// See [`stream_to_host::HOST_FUNCTION`]. Enqueues a call of `function(user)`. An idle stream may
    /// call it on the calling thread before this returns.
    pub host_function: Option<
        unsafe extern "C" fn(
            device: u64,
            stream: u64,
            function: Option<HostFunction>,
            user: *mut c_void,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// See [`host_to_stream::WAIT_VALUE`]. Enqueues a wait until `*word >= value`. `word` lies in
    /// memory of kind pinned-host from `allocate` and is 8-byte aligned.
    pub stream_wait_value: Option<
        unsafe extern "C" fn(
            device: u64,
            stream: u64,
            word: *const u64,
            value: u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// See [`host_to_stream::WAIT_VALUE`]. Stores `value` into `word` with release order and wakes
    /// the streams that wait for it. Any thread.
    pub write_value: Option<
        unsafe extern "C" fn(device: u64, word: *mut u64, value: u64, error: *mut ErrorInfo) -> i32,
    >,
    /// Makes an event.
    pub event_create:
        Option<unsafe extern "C" fn(device: u64, event: *mut u64, error: *mut ErrorInfo) -> i32>,
    /// Destroys an event.
    pub event_destroy:
        Option<unsafe extern "C" fn(device: u64, event: u64, error: *mut ErrorInfo) -> i32>,
    /// Enqueues the event on a stream.
    pub event_record: Option<
        unsafe extern "C" fn(device: u64, event: u64, stream: u64, error: *mut ErrorInfo) -> i32,
    >,
    /// `Ok` if the stream has passed the event's last record, else `Pending`. Any thread.
    pub event_query:
        Option<unsafe extern "C" fn(device: u64, event: u64, error: *mut ErrorInfo) -> i32>,
    /// Makes bytes that a NIC wrote into `[pointer, pointer + bytes)` visible to the device.
    /// Absent: they are visible as soon as the NIC's completion is seen.
    pub flush: Option<
        unsafe extern "C" fn(
            device: u64,
            pointer: *mut c_void,
            bytes: u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Gives a form of device memory that a NIC may register. Absent: there is none.
    pub export_region: Option<
        unsafe extern "C" fn(
            device: u64,
            pointer: *mut c_void,
            bytes: u64,
            region: *mut MemoryRegion,
            size: u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Takes back what `export_region` gave.
    pub release_region: Option<
        unsafe extern "C" fn(
            device: u64,
            region: *const MemoryRegion,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Optional kernel: enqueues `destination[i] = op(sources[0][i], sources[1][i], …)` on device
    /// memory, in the order of `sources`, narrow floats accumulated in f32 and rounded once, divided
    /// by `divisor` before rounding if that is not 0.
    pub reduce: Option<
        unsafe extern "C" fn(
            device: u64,
            stream: u64,
            destination: *mut c_void,
            sources: *const *const c_void,
            source_count: u64,
            element_count: u64,
            dtype: u32,
            op: u32,
            divisor: u32,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// `Ok`, or the error that the device met asynchronously. Any thread.
    #[sabi(last_prefix_field)]
    pub async_error: Option<unsafe extern "C" fn(device: u64, error: *mut ErrorInfo) -> i32>,
}

/// Facts about a device. May grow.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
#[sabi(kind(Prefix(prefix_ref = DeviceInfoRef, prefix_fields = DeviceInfoPrefix)))]
#[sabi(missing_field(option))]
pub struct DeviceInfo {
    /// The maker's name for it, such as `NVIDIA H200`. A static of the plugin.
    pub name: Bytes,
    /// PCI address `domain:bus:device.function`, empty if there is none. A static of the plugin.
    pub pci_address: Bytes,
    /// NUMA node, or -1 if unknown.
    pub numa_node: i32,
    /// Zero.
    pub reserved: u32,
    /// Memory of the device in bytes, 0 if unknown.
    #[sabi(last_prefix_field)]
    pub memory_bytes: u64,
}

/// What a device can do. May grow.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
#[sabi(kind(Prefix(prefix_ref = DeviceCapabilitiesRef, prefix_fields = DeviceCapabilitiesPrefix)))]
#[sabi(missing_field(option))]
pub struct DeviceCapabilities {
    /// Bits of [`stream_to_host`].
    pub stream_to_host: u32,
    /// Bits of [`host_to_stream`]; 0: enqueueing blocks until the operation is done.
    pub host_to_stream: u32,
    /// 1 if the host reads and writes the device's memory with ordinary loads and stores.
    pub host_accessible: u32,
    /// 1 if `reduce` is offered; then `reduce_dtypes` and `reduce_ops` say for what.
    pub has_reduce: u32,
    /// Mask of [`DataType::mask`](crate::DataType::mask) for `reduce`.
    pub reduce_dtypes: u32,
    /// Mask of [`RedOp::mask`](crate::RedOp::mask) for `reduce`.
    pub reduce_ops: u32,
    /// Bits of [`region_form`] that `export_region` can give.
    pub region_forms: u32,
    /// Alignment in bytes that a region needs, 0 or 1 for none.
    #[sabi(last_prefix_field)]
    pub region_alignment: u32,
}

/// Forms in which device memory can be given to a NIC.
pub mod region_form {
    /// A plain address that the NIC's driver understands (peer memory).
    pub const ADDRESS: u32 = 1;
    /// A dma-buf file descriptor and an offset.
    pub const DMA_BUF: u32 = 2;
    /// A host address, which the processor reads and writes too: an alias of the device's memory, or
    /// memory of the host itself.
    pub const HOST_ALIAS: u32 = 4;
}

/// Device memory as a NIC can register it. May grow.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
#[sabi(kind(Prefix(prefix_ref = MemoryRegionRef, prefix_fields = MemoryRegionPrefix)))]
#[sabi(missing_field(option))]
pub struct MemoryRegion {
    /// One bit of [`region_form`].
    pub form: u32,
    /// The dma-buf descriptor, owned by the plugin until `release_region`; -1 if none.
    pub descriptor: i32,
    /// Address (or host alias) of the first byte; 0 for a dma-buf.
    pub address: u64,
    /// Offset in the dma-buf.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// The plugin's own mark, for `release_region`.
    #[sabi(last_prefix_field)]
    pub cookie: u64,
}
