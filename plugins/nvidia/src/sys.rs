//! NVIDIA's C interfaces as far as the plugin uses them: signatures, values and layouts, and nothing
//! else. Each group names the header that it was read from (CUDA 12.9 and 13.0, which agree in all of
//! this; NCCL 2.16 to 2.32). `cargo xtask test --only nvidia` compares them with the real headers.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

// cuda_runtime_api.h, driver_types.h: handles and answers.

/// `cudaError_t`.
pub(crate) type CudaError = c_int;
/// `cudaStream_t`, the same as `CUstream`.
pub(crate) type Stream = *mut c_void;
/// `cudaEvent_t`.
pub(crate) type Event = *mut c_void;

// driver_types.h: enum cudaError.

pub(crate) const CUDA_SUCCESS: CudaError = 0;
pub(crate) const CUDA_ERROR_INVALID_VALUE: CudaError = 1;
pub(crate) const CUDA_ERROR_MEMORY_ALLOCATION: CudaError = 2;
pub(crate) const CUDA_ERROR_STUB_LIBRARY: CudaError = 34;
pub(crate) const CUDA_ERROR_INSUFFICIENT_DRIVER: CudaError = 35;
pub(crate) const CUDA_ERROR_NO_DEVICE: CudaError = 100;
pub(crate) const CUDA_ERROR_NOT_READY: CudaError = 600;
pub(crate) const CUDA_ERROR_NOT_PERMITTED: CudaError = 800;
pub(crate) const CUDA_ERROR_NOT_SUPPORTED: CudaError = 801;

// driver_types.h: enum cudaMemcpyKind.

pub(crate) const MEMCPY_HOST_TO_HOST: c_int = 0;
pub(crate) const MEMCPY_HOST_TO_DEVICE: c_int = 1;
pub(crate) const MEMCPY_DEVICE_TO_HOST: c_int = 2;
pub(crate) const MEMCPY_DEVICE_TO_DEVICE: c_int = 3;

// driver_types.h: flags.

/// `cudaStreamNonBlocking`.
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
/// `cudaEventDisableTiming`.
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
/// `cudaHostAllocPortable`: pinned for every context of the process.
pub(crate) const HOST_ALLOC_PORTABLE: c_uint = 1;

// driver_types.h: enum cudaStreamCaptureStatus, enum cudaStreamCaptureMode.

pub(crate) const CAPTURE_STATUS_NONE: c_int = 0;
pub(crate) const CAPTURE_MODE_RELAXED: c_int = 2;

// driver_types.h: enum cudaMemoryType, struct cudaPointerAttributes.

pub(crate) const MEMORY_TYPE_UNREGISTERED: c_int = 0;
pub(crate) const MEMORY_TYPE_HOST: c_int = 1;
pub(crate) const MEMORY_TYPE_DEVICE: c_int = 2;
pub(crate) const MEMORY_TYPE_MANAGED: c_int = 3;

/// `struct cudaPointerAttributes`: 24 bytes in CUDA 12, 88 in 13, and room for more.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointerAttributes {
    pub(crate) memory_type: c_int,
    pub(crate) device: c_int,
    pub(crate) device_pointer: *mut c_void,
    pub(crate) host_pointer: *mut c_void,
    pub(crate) reserved: [u64; 13],
}

// driver_types.h: enum cudaDeviceAttr.

pub(crate) const ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED: c_int = 116;
pub(crate) const ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_OPTIONS: c_int = 117;
pub(crate) const ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING: c_int = 118;

// driver_types.h: enum cudaFlushGPUDirectRDMAWritesOptions, cudaGPUDirectRDMAWritesOrdering,
// cudaFlushGPUDirectRDMAWritesTarget, cudaFlushGPUDirectRDMAWritesScope.

pub(crate) const FLUSH_OPTION_HOST: c_int = 1;
pub(crate) const WRITES_ORDERING_OWNER: c_int = 100;
pub(crate) const FLUSH_TARGET_CURRENT_DEVICE: c_int = 0;
pub(crate) const FLUSH_TO_OWNER: c_int = 100;

iccl_vendor_support::symbols! {
    /// libcudart: cuda_runtime_api.h.
    pub(crate) struct Runtime {
        fn cudaGetDeviceCount(count: *mut c_int) -> CudaError;
        fn cudaGetDevice(device: *mut c_int) -> CudaError;
        fn cudaRuntimeGetVersion(version: *mut c_int) -> CudaError;
        fn cudaDriverGetVersion(version: *mut c_int) -> CudaError;
        fn cudaGetErrorName(error: CudaError) -> *const c_char;
        fn cudaGetErrorString(error: CudaError) -> *const c_char;
        fn cudaGetLastError() -> CudaError;
        fn cudaDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> CudaError;
        fn cudaDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: c_int) -> CudaError;
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
        fn cudaStreamIsCapturing(stream: Stream, status: *mut c_int) -> CudaError;
        fn cudaThreadExchangeStreamCaptureMode(mode: *mut c_int) -> CudaError;
        fn cudaLaunchHostFunc(
            stream: Stream,
            function: unsafe extern "C" fn(user: *mut c_void),
            user: *mut c_void,
        ) -> CudaError;
        fn cudaEventCreateWithFlags(event: *mut Event, flags: c_uint) -> CudaError;
        fn cudaEventDestroy(event: Event) -> CudaError;
        fn cudaEventRecord(event: Event, stream: Stream) -> CudaError;
        fn cudaEventQuery(event: Event) -> CudaError;
        optional fn cudaDeviceFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) -> CudaError;
    }
}

// cuda.h: handles and answers. `CUresult` and `cudaError_t` agree in the numbers used here.

/// `CUresult`.
pub(crate) type DriverResult = c_int;
/// `CUdevice`.
pub(crate) type DriverDevice = c_int;
/// `CUcontext`.
pub(crate) type Context = *mut c_void;
/// `CUdeviceptr`.
pub(crate) type DevicePointer = u64;

// cuda.h: enum CUdevice_attribute.

pub(crate) const DRIVER_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS: c_int = 122;
pub(crate) const DRIVER_ATTRIBUTE_DMA_BUF_SUPPORTED: c_int = 124;

// cuda.h: enum CUpointer_attribute, CUmemRangeHandleType, CUstreamWaitValue_flags.

pub(crate) const POINTER_ATTRIBUTE_SYNC_MEMOPS: c_int = 6;
pub(crate) const RANGE_HANDLE_DMA_BUF_FD: c_int = 1;
pub(crate) const STREAM_WAIT_VALUE_GEQ: c_uint = 0;

iccl_vendor_support::symbols! {
    /// libcuda: cuda.h. The names are those that its macros stand for.
    pub(crate) struct Driver {
        fn cuInit(flags: c_uint) -> DriverResult;
        fn cuGetErrorString(error: DriverResult, text: *mut *const c_char) -> DriverResult;
        fn cuDeviceGet(device: *mut DriverDevice, ordinal: c_int) -> DriverResult;
        fn cuDeviceGetName(name: *mut c_char, length: c_int, device: DriverDevice) -> DriverResult;
        fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: DriverDevice)
            -> DriverResult;
        fn cuDevicePrimaryCtxRetain(context: *mut Context, device: DriverDevice) -> DriverResult;
        fn cuDevicePrimaryCtxRelease_v2(device: DriverDevice) -> DriverResult;
        fn cuCtxGetCurrent(context: *mut Context) -> DriverResult;
        fn cuCtxSetCurrent(context: Context) -> DriverResult;
        optional fn cuDeviceTotalMem_v2(bytes: *mut usize, device: DriverDevice) -> DriverResult;
        optional fn cuStreamWaitValue64_v2(
            stream: Stream,
            address: DevicePointer,
            value: u64,
            flags: c_uint,
        ) -> DriverResult;
        optional fn cuMemGetHandleForAddressRange(
            handle: *mut c_void,
            address: DevicePointer,
            bytes: usize,
            handle_type: c_int,
            flags: c_ulonglong,
        ) -> DriverResult;
        optional fn cuPointerSetAttribute(
            value: *const c_void,
            attribute: c_int,
            address: DevicePointer,
        ) -> DriverResult;
    }
}

// nccl.h: handles and answers.

/// `ncclResult_t`.
pub(crate) type NcclResult = c_int;
/// `ncclComm_t`.
pub(crate) type Communicator = *mut c_void;

/// `ncclUniqueId`. Passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId {
    pub(crate) internal: [u8; UNIQUE_ID_BYTES],
}

/// `NCCL_UNIQUE_ID_BYTES`.
pub(crate) const UNIQUE_ID_BYTES: usize = 128;

// nccl.h: enum ncclResult_t.

pub(crate) const NCCL_SUCCESS: NcclResult = 0;
pub(crate) const NCCL_SYSTEM_ERROR: NcclResult = 2;
pub(crate) const NCCL_INVALID_ARGUMENT: NcclResult = 4;
pub(crate) const NCCL_INVALID_USAGE: NcclResult = 5;
pub(crate) const NCCL_REMOTE_ERROR: NcclResult = 6;
pub(crate) const NCCL_IN_PROGRESS: NcclResult = 7;

// nccl.h: enum ncclDataType_t. The 8-bit floats are there from 2.24.

pub(crate) const NCCL_INT8: c_int = 0;
pub(crate) const NCCL_UINT8: c_int = 1;
pub(crate) const NCCL_INT32: c_int = 2;
pub(crate) const NCCL_UINT32: c_int = 3;
pub(crate) const NCCL_INT64: c_int = 4;
pub(crate) const NCCL_UINT64: c_int = 5;
pub(crate) const NCCL_FLOAT16: c_int = 6;
pub(crate) const NCCL_FLOAT32: c_int = 7;
pub(crate) const NCCL_FLOAT64: c_int = 8;
pub(crate) const NCCL_BFLOAT16: c_int = 9;

// nccl.h: enum ncclRedOp_t.

pub(crate) const NCCL_SUM: c_int = 0;
pub(crate) const NCCL_PROD: c_int = 1;
pub(crate) const NCCL_MAX: c_int = 2;
pub(crate) const NCCL_MIN: c_int = 3;
pub(crate) const NCCL_AVG: c_int = 4;

/// `ncclConfig_t` as of NCCL 2.18. It is only appended to, and a library takes what the size says.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) blocking: c_int,
    pub(crate) cga_cluster_size: c_int,
    pub(crate) min_ctas: c_int,
    pub(crate) max_ctas: c_int,
    pub(crate) net_name: *const c_char,
    pub(crate) split_share: c_int,
}

/// `NCCL_API_MAGIC`.
pub(crate) const CONFIG_MAGIC: c_uint = 0xcafe_beef;
/// `NCCL_VERSION(2, 18, 0)`, whose layout [`Config`] has.
pub(crate) const CONFIG_VERSION: c_uint = 21800;
/// `NCCL_CONFIG_UNDEF_INT`.
pub(crate) const CONFIG_UNDEFINED: c_int = c_int::MIN;

iccl_vendor_support::symbols! {
    /// libnccl: nccl.h. What is not optional is there from 2.16.
    pub(crate) struct Nccl {
        fn ncclGetVersion(version: *mut c_int) -> NcclResult;
        fn ncclGetErrorString(result: NcclResult) -> *const c_char;
        fn ncclGetLastError(communicator: Communicator) -> *const c_char;
        fn ncclGetUniqueId(id: *mut UniqueId) -> NcclResult;
        fn ncclCommInitRankConfig(
            communicator: *mut Communicator,
            ranks: c_int,
            id: UniqueId,
            rank: c_int,
            config: *mut Config,
        ) -> NcclResult;
        fn ncclCommFinalize(communicator: Communicator) -> NcclResult;
        fn ncclCommDestroy(communicator: Communicator) -> NcclResult;
        fn ncclCommAbort(communicator: Communicator) -> NcclResult;
        fn ncclCommGetAsyncError(communicator: Communicator, result: *mut NcclResult) -> NcclResult;
        fn ncclGroupStart() -> NcclResult;
        fn ncclGroupEnd() -> NcclResult;
        fn ncclAllReduce(
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            dtype: c_int,
            op: c_int,
            communicator: Communicator,
            stream: Stream,
        ) -> NcclResult;
        fn ncclReduce(
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            dtype: c_int,
            op: c_int,
            root: c_int,
            communicator: Communicator,
            stream: Stream,
        ) -> NcclResult;
        fn ncclBroadcast(
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            dtype: c_int,
            root: c_int,
            communicator: Communicator,
            stream: Stream,
        ) -> NcclResult;
        fn ncclReduceScatter(
            send: *const c_void,
            receive: *mut c_void,
            receive_count: usize,
            dtype: c_int,
            op: c_int,
            communicator: Communicator,
            stream: Stream,
        ) -> NcclResult;
        fn ncclAllGather(
            send: *const c_void,
            receive: *mut c_void,
            send_count: usize,
            dtype: c_int,
            communicator: Communicator,
            stream: Stream,
        ) -> NcclResult;
        fn ncclSend(
            send: *const c_void,
            count: usize,
            dtype: c_int,
            peer: c_int,
            communicator: Communicator,
            stream: Stream,
        ) -> NcclResult;
        fn ncclRecv(
            receive: *mut c_void,
            count: usize,
            dtype: c_int,
            peer: c_int,
            communicator: Communicator,
            stream: Stream,
        ) -> NcclResult;
        optional fn ncclAlltoAll(
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            dtype: c_int,
            communicator: Communicator,
            stream: Stream,
        ) -> NcclResult;
        optional fn ncclGather(
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            dtype: c_int,
            root: c_int,
            communicator: Communicator,
            stream: Stream,
        ) -> NcclResult;
        optional fn ncclScatter(
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            dtype: c_int,
            root: c_int,
            communicator: Communicator,
            stream: Stream,
        ) -> NcclResult;
    }
}
