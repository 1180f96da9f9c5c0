//! Kunlun's C interfaces as far as the plugin uses them: signatures, values and layouts, and nothing else.
//! Each group names where it was read.
//!
//! Of BKCL no header is public. The order of its arguments is that of programs that are compiled
//! against it; the numbers of its types and operations are unknown and therefore not here
//! (`constants.rs` takes them from the vendor's own header).

use std::ffi::{c_char, c_int, c_uint, c_void};

// xpu/runtime.h (XRE 4.33): handles and answers.

/// What functions of libxpurt answer: 0, or a negative number of [`XPU_ERRORS`].
pub(crate) type XpuError = c_int;
/// `XPUStream`, on P800 the same handle as `cudaStream_t`.
pub(crate) type Stream = *mut c_void;
/// `XPUEvent`; on P800 `cudaEvent_t`, which is another handle.
pub(crate) type Event = *mut c_void;

// xpu/defs.h (XRE 4.33): the direction of a copy. There is none for within the host.

pub(crate) const XPU_DEVICE_TO_HOST: c_int = 0;
pub(crate) const XPU_HOST_TO_DEVICE: c_int = 1;
pub(crate) const XPU_DEVICE_TO_DEVICE: c_int = 2;

// xpu/defs.h (XRE 4.33): the kind of memory.

pub(crate) const XPU_MEM_MAIN: c_int = 0;

// xpu/defs.h (XRE 4.33): attributes of a card.

/// From the top: 16 bits of domain, 8 of bus, 5 of device, 3 of function.
pub(crate) const XPUATTR_PCI_ADDRESS: c_int = 0;
pub(crate) const XPUATTR_MODEL: c_int = 4;
/// Its unit is not said.
pub(crate) const XPUATTR_MEM_MAIN_CAPACITY: c_int = 5;

// xpu/defs.h (XRE 4.33): the values of XPUATTR_MODEL.

pub(crate) const MODELS: &[(u64, &str)] = &[
    (0, "Kunlun K200"),
    (1, "Kunlun K100"),
    (2, "Kunlun R200"),
    (3, "Kunlun R300"),
    (4, "Kunlun R200-8F"),
    (9, "Kunlun RG800"),
    (10, "Kunlun RG800 Pro"),
    (11, "Kunlun RM80"),
    (300, "Kunlun P800"),
];

// xpu/defs.h (XRE 4.33): errors. The text of an error is an inline function of the header, so names are
// all there is. Numbers below 700 are those of errno.

pub(crate) const XPUERR_INVALID_DEVICE: c_int = 701;
pub(crate) const XPUERR_UNINIT: c_int = 702;
pub(crate) const XPUERR_NODEV: c_int = 703;
pub(crate) const XPUERR_NOMEM: c_int = 705;
pub(crate) const XPUERR_NOCPUMEM: c_int = 706;
pub(crate) const XPUERR_INVALID_PARAM: c_int = 707;
pub(crate) const XPUERR_NOSUPPORT: c_int = 712;
/// The first number that is no errno.
pub(crate) const XPUERR_FIRST: c_int = 700;

pub(crate) const XPU_ERRORS: &[(c_int, &str)] = &[
    (XPUERR_INVALID_DEVICE, "XPUERR_INVALID_DEVICE"),
    (XPUERR_UNINIT, "XPUERR_UNINIT"),
    (XPUERR_NODEV, "XPUERR_NODEV"),
    (704, "XPUERR_VERSION"),
    (XPUERR_NOMEM, "XPUERR_NOMEM"),
    (XPUERR_NOCPUMEM, "XPUERR_NOCPUMEM"),
    (XPUERR_INVALID_PARAM, "XPUERR_INVALID_PARAM"),
    (708, "XPUERR_NOXPUFUNC"),
    (709, "XPUERR_LDSO"),
    (710, "XPUERR_LDSYM"),
    (711, "XPUERR_SIMULATOR"),
    (XPUERR_NOSUPPORT, "XPUERR_NOSUPPORT"),
    (713, "XPUERR_ABNORMAL"),
    (714, "XPUERR_KEXCEPTION"),
    (715, "XPUERR_TIMEOUT"),
    (716, "XPUERR_BUSY"),
    (717, "XPUERR_USEAFCLOSE"),
    (718, "XPUERR_UCECC"),
    (719, "XPUERR_OVERHEAT"),
    (720, "XPUERR_EVENTWAIT"),
    (800, "XPUERR_UNEXPECT"),
    (801, "XPUERR_DEVRESET"),
    (802, "XPUERR_HWEXCEPTION"),
    (803, "XPUERR_HBM_INIT"),
    (804, "XPUERR_DEVINIT"),
    (805, "XPUERR_PEERRESET"),
    (806, "XPUERR_MAXDEV"),
    (807, "XPUERR_NOIOC"),
    (808, "XPUERR_DMATIMEOUT"),
    (809, "XPUERR_DMAABORT"),
    (810, "XPUERR_MCUUNINIT"),
    (811, "XPUERR_OLDFW"),
    (812, "XPUERR_PCIE"),
    (813, "XPUERR_FAULT"),
    (814, "XPUERR_INTERRUPTED"),
    (815, "XPUERR_AESTIMEOUT"),
    (816, "XPUERR_HOSTMEM_ALREADY_REGISTERED"),
    (817, "XPUERR_TRACER"),
];

iccl_vendor_support::symbols! {
    /// libxpurt: xpu/runtime.h (XRE 4.33). Defaults of C++ are no defaults here: all arguments are passed.
    pub(crate) struct Xpu {
        fn xpu_device_count(count: *mut c_int) -> XpuError;
        fn xpu_set_device(device: c_int) -> XpuError;
        fn xpu_current_device(device: *mut c_int) -> XpuError;
        fn xpu_device_get_attr(value: *mut u64, attribute: c_int, device: c_int) -> XpuError;
        fn xpu_malloc(pointer: *mut *mut c_void, bytes: u64, kind: c_int) -> XpuError;
        fn xpu_free(pointer: *mut c_void) -> XpuError;
        fn xpu_host_alloc(pointer: *mut *mut c_void, bytes: u64, flags: c_uint) -> XpuError;
        fn xpu_host_free(pointer: *mut c_void) -> XpuError;
        fn xpu_memcpy(
            destination: *mut c_void,
            source: *const c_void,
            bytes: u64,
            kind: c_int,
        ) -> XpuError;
        fn xpu_wait(stream: Stream) -> XpuError;
        fn xpu_stream_create(stream: *mut Stream) -> XpuError;
        fn xpu_stream_destroy(stream: Stream) -> XpuError;
        fn xpu_event_create(event: *mut Event) -> XpuError;
        fn xpu_event_record(event: Event, stream: Stream) -> XpuError;
        fn xpu_event_wait(event: Event) -> XpuError;
        fn xpu_event_destroy(event: Event) -> XpuError;
        optional fn xpu_get_runtime_version(major: *mut u32, minor: *mut u32) -> XpuError;
        // As FlagCX and LMCache compile it; new in XRE 5.
        optional fn xpu_memcpy_async(
            destination: *mut c_void,
            source: *const c_void,
            bytes: u64,
            kind: c_int,
            stream: Stream,
        ) -> XpuError;
    }
}

// P800's libcudart has the prototypes and values of NVIDIA's `cuda_runtime_api.h` and `driver_types.h` (as
// FlagCX compiles it). XRE 4.33's own headers declare CUDA 11.7.

/// `cudaError_t`.
pub(crate) type CudaError = c_int;

pub(crate) const CUDA_SUCCESS: CudaError = 0;
pub(crate) const CUDA_ERROR_INVALID_VALUE: CudaError = 1;
pub(crate) const CUDA_ERROR_MEMORY_ALLOCATION: CudaError = 2;
pub(crate) const CUDA_ERROR_INSUFFICIENT_DRIVER: CudaError = 35;
pub(crate) const CUDA_ERROR_NO_DEVICE: CudaError = 100;
pub(crate) const CUDA_ERROR_NOT_READY: CudaError = 600;
pub(crate) const CUDA_ERROR_NOT_SUPPORTED: CudaError = 801;

pub(crate) const CUDA_HOST_TO_HOST: c_int = 0;
pub(crate) const CUDA_HOST_TO_DEVICE: c_int = 1;
pub(crate) const CUDA_DEVICE_TO_HOST: c_int = 2;
pub(crate) const CUDA_DEVICE_TO_DEVICE: c_int = 3;

/// `cudaStreamNonBlocking`.
pub(crate) const CUDA_STREAM_NON_BLOCKING: c_uint = 1;
/// `cudaEventDisableTiming`.
pub(crate) const CUDA_EVENT_DISABLE_TIMING: c_uint = 2;
/// `cudaHostAllocDefault`; registration with the Mapped flag ends the process.
pub(crate) const CUDA_HOST_ALLOC_DEFAULT: c_uint = 0;
/// `cudaStreamCaptureStatusNone`.
pub(crate) const CUDA_CAPTURE_STATUS_NONE: c_int = 0;

pub(crate) const CUDA_MEMORY_TYPE_UNREGISTERED: c_int = 0;
pub(crate) const CUDA_MEMORY_TYPE_HOST: c_int = 1;
pub(crate) const CUDA_MEMORY_TYPE_DEVICE: c_int = 2;
pub(crate) const CUDA_MEMORY_TYPE_MANAGED: c_int = 3;

/// `struct cudaPointerAttributes`: 24 bytes in CUDA 11 and 12, and room for more.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointerAttributes {
    pub(crate) memory_type: c_int,
    pub(crate) device: c_int,
    pub(crate) reserved: [u64; 31],
}

/// Room for any version's `struct cudaDeviceProp`, whose name lies at its front. The rest is not filled.
pub(crate) const DEVICE_PROPERTIES_BYTES: usize = 4096;

iccl_vendor_support::symbols! {
    /// P800's libcudart, by NVIDIA's prototypes.
    pub(crate) struct Cuda {
        fn cudaGetDeviceCount(count: *mut c_int) -> CudaError;
        fn cudaGetDevice(device: *mut c_int) -> CudaError;
        fn cudaSetDevice(device: c_int) -> CudaError;
        fn cudaGetErrorName(error: CudaError) -> *const c_char;
        fn cudaGetErrorString(error: CudaError) -> *const c_char;
        fn cudaGetLastError() -> CudaError;
        fn cudaDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: c_int) -> CudaError;
        fn cudaGetDeviceProperties(properties: *mut c_void, device: c_int) -> CudaError;
        fn cudaMalloc(pointer: *mut *mut c_void, bytes: usize) -> CudaError;
        fn cudaFree(pointer: *mut c_void) -> CudaError;
        fn cudaHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint) -> CudaError;
        fn cudaFreeHost(pointer: *mut c_void) -> CudaError;
        fn cudaPointerGetAttributes(attributes: *mut PointerAttributes, pointer: *const c_void)
            -> CudaError;
        fn cudaMemcpyAsync(
            destination: *mut c_void,
            source: *const c_void,
            bytes: usize,
            kind: c_int,
            stream: Stream,
        ) -> CudaError;
        fn cudaStreamCreateWithFlags(stream: *mut Stream, flags: c_uint) -> CudaError;
        fn cudaStreamDestroy(stream: Stream) -> CudaError;
        fn cudaStreamQuery(stream: Stream) -> CudaError;
        fn cudaStreamSynchronize(stream: Stream) -> CudaError;
        fn cudaLaunchHostFunc(
            stream: Stream,
            function: unsafe extern "C" fn(user: *mut c_void),
            user: *mut c_void,
        ) -> CudaError;
        fn cudaEventCreateWithFlags(event: *mut Event, flags: c_uint) -> CudaError;
        fn cudaEventDestroy(event: Event) -> CudaError;
        fn cudaEventRecord(event: Event, stream: Stream) -> CudaError;
        fn cudaEventQuery(event: Event) -> CudaError;
        optional fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> CudaError;
        optional fn cudaStreamIsCapturing(stream: Stream, status: *mut c_int) -> CudaError;
    }
}

// BKCL: as FlagCX and Paddle compile it.

/// `BKCLResult_t`. 0 is success, which was measured; the other numbers are the header's.
pub(crate) type BkclResult = c_int;
/// `BKCLContext_t`.
pub(crate) type Context = *mut c_void;

pub(crate) const BKCL_SUCCESS: BkclResult = 0;
/// No id is longer than this: `FlagCX` keeps 4120 bytes with a length of 4.
pub(crate) const MOST_UNIQUE_ID_BYTES: usize = 4096;

iccl_vendor_support::symbols! {
    /// libbkcl.
    pub(crate) struct Bkcl {
        // The id by its address.
        fn bkcl_get_unique_id(id: *mut c_void) -> BkclResult;
        // The rank before the number of ranks.
        fn bkcl_init_rank(context: *mut Context, rank: c_int, ranks: c_int, id: *mut c_void)
            -> BkclResult;
        fn bkcl_destroy_context(context: Context) -> BkclResult;
        fn bkcl_all_reduce(
            context: Context,
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            dtype: c_int,
            op: c_int,
            stream: Stream,
        ) -> BkclResult;
        fn bkcl_reduce(
            context: Context,
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            dtype: c_int,
            op: c_int,
            root: c_int,
            stream: Stream,
        ) -> BkclResult;
        fn bkcl_broadcast(
            context: Context,
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            dtype: c_int,
            root: c_int,
            stream: Stream,
        ) -> BkclResult;
        fn bkcl_reduce_scatter(
            context: Context,
            send: *const c_void,
            receive: *mut c_void,
            receive_count: usize,
            dtype: c_int,
            op: c_int,
            stream: Stream,
        ) -> BkclResult;
        // The count before the second buffer.
        fn bkcl_all_gather(
            context: Context,
            send: *const c_void,
            send_count: usize,
            receive: *mut c_void,
            dtype: c_int,
            stream: Stream,
        ) -> BkclResult;
        // The peer before the type.
        fn bkcl_send(
            context: Context,
            send: *const c_void,
            count: usize,
            peer: c_int,
            dtype: c_int,
            stream: Stream,
        ) -> BkclResult;
        fn bkcl_recv(
            context: Context,
            receive: *mut c_void,
            count: usize,
            peer: c_int,
            dtype: c_int,
            stream: Stream,
        ) -> BkclResult;
        fn bkcl_group_start() -> BkclResult;
        fn bkcl_group_end() -> BkclResult;
        optional fn bkcl_comm_abort(context: Context) -> BkclResult;
        // The count before the second buffer.
        optional fn bkcl_all_to_all(
            context: Context,
            send: *const c_void,
            count_per_peer: usize,
            receive: *mut c_void,
            dtype: c_int,
            stream: Stream,
        ) -> BkclResult;
        // Counts and displacements are arrays in the card's memory.
        optional fn bkcl_all_to_all_v(
            context: Context,
            send: *const c_void,
            send_counts: *const usize,
            send_displacements: *const usize,
            send_dtype: c_int,
            receive: *mut c_void,
            receive_counts: *const usize,
            receive_displacements: *const usize,
            receive_dtype: c_int,
            stream: Stream,
        ) -> BkclResult;
    }
}

iccl_vendor_support::symbols! {
    /// libbkcl: a card's memory at an address of the host's (`FlagCX` declares both in C++).
    pub(crate) struct Mapping {
        fn xccl_mmap(host: *mut *mut c_void, device: *mut c_void, bytes: usize) -> c_int;
        fn xccl_munmap(host: *mut c_void, bytes: usize) -> c_int;
    }
}

/// The arguments of BKCL's functions, by which a mangled name is checked: P a pointer, i `int`, m `size_t`,
/// D the type of elements, O the operation.
pub(crate) const ARGUMENTS: &[(&str, &str)] = &[
    ("bkcl_get_unique_id", "P"),
    ("bkcl_init_rank", "PiiP"),
    ("bkcl_destroy_context", "P"),
    ("bkcl_comm_abort", "P"),
    ("bkcl_all_reduce", "PPPmDOP"),
    ("bkcl_reduce", "PPPmDOiP"),
    ("bkcl_broadcast", "PPPmDiP"),
    ("bkcl_reduce_scatter", "PPPmDOP"),
    ("bkcl_all_gather", "PPmPDP"),
    ("bkcl_all_to_all", "PPmPDP"),
    ("bkcl_all_to_all_v", "PPPPDPPPDP"),
    ("bkcl_send", "PPmiDP"),
    ("bkcl_recv", "PPmiDP"),
    ("bkcl_group_start", ""),
    ("bkcl_group_end", ""),
    ("xccl_mmap", "PPm"),
    ("xccl_munmap", "Pm"),
];
