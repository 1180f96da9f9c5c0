//! Cambricon's C interfaces as far as the plugin uses them: signatures, values and layouts, and nothing
//! else. Each group names the header that it was read from: cnrt.h 6.14.1, `cn_api.h` 2.15.5 (`CNDrv`),
//! cncl.h 1.25.0. What cards run today is newer (CNRT 7, `CNDrv` 3), and was read by nobody here.

use std::ffi::{c_char, c_int, c_uint, c_void};

// cnrt.h: handles and answers.

/// `cnrtRet_t`.
pub(crate) type CnrtReturn = c_int;
/// `cnrtQueue_t`, `CNqueue`.
pub(crate) type Queue = *mut c_void;
/// `cnrtNotifier_t`, `CNnotifier`.
pub(crate) type Notifier = *mut c_void;

// cnrt.h: cnrtRet_t. CNDrv has the same numbers from 100000 on.

pub(crate) const SUCCESS: CnrtReturn = 0;
pub(crate) const ERROR_NOT_READY: CnrtReturn = 1;
pub(crate) const ERROR_INIT: CnrtReturn = 100_002;
pub(crate) const ERROR_NO_DEVICE: CnrtReturn = 100_004;
pub(crate) const ERROR_DEVICE_INVALID: CnrtReturn = 100_005;
pub(crate) const ERROR_ARGS_INVALID: CnrtReturn = 100_006;
pub(crate) const ERROR_SYS_NO_MEM: CnrtReturn = 100_010;
pub(crate) const ERROR_NOT_SUPPORT: CnrtReturn = 100_050;
pub(crate) const ERROR_OPS_NOT_PERMITTED: CnrtReturn = 100_051;
pub(crate) const ERROR_NO_MEM: CnrtReturn = 100_100;
/// Deprecated, and what the header still says of what is pending.
pub(crate) const ERROR_BUSY: CnrtReturn = 632_014;
pub(crate) const ERROR_CNDRV_FUNC_NOT_FOUND: CnrtReturn = 632_020;

// cn_api.h: CNresult, beyond those.

/// More than the process may have.
pub(crate) const ERROR_OVER_PROCESS_MEMORY: CnrtReturn = 100_101;

// cnrt.h: cnrtMemTransDir_t.

pub(crate) const HOST_TO_DEVICE: c_int = 0;
pub(crate) const DEVICE_TO_DEVICE: c_int = 1;
pub(crate) const DEVICE_TO_HOST: c_int = 2;
pub(crate) const HOST_TO_HOST: c_int = 3;

// cnrt.h: notifier flags.

/// `CNRT_NOTIFIER_DISABLE_TIMING_ALL`.
pub(crate) const NOTIFIER_DISABLE_TIMING_ALL: c_uint = 4;

// cnrt.h: cnrtMemType_t, cnrtPointerAttributes_t.

pub(crate) const MEMORY_UNREGISTERED: c_int = 0;
pub(crate) const MEMORY_HOST: c_int = 1;
pub(crate) const MEMORY_DEVICE: c_int = 2;

/// `cnrtPointerAttributes_t`, and room for what newer versions write behind.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointerAttributes {
    pub(crate) memory_type: c_int,
    pub(crate) device: c_int,
    pub(crate) size: usize,
    pub(crate) device_pointer: *mut c_void,
    pub(crate) host_pointer: *mut c_void,
    pub(crate) newer: [u64; 28],
}

// cnrt.h: cnrtDeviceAttr_t.

pub(crate) const ATTRIBUTE_TOTAL_MEMORY_MEGABYTES: c_int = 0x405;

/// `cnrtMemcpyAsync` and what replaced it. The queue comes before the direction.
pub(crate) type CopyAsync = unsafe extern "C" fn(
    destination: *mut c_void,
    source: *mut c_void,
    bytes: usize,
    queue: Queue,
    direction: c_int,
) -> CnrtReturn;

iccl_vendor_support::symbols! {
    /// libcnrt: cnrt.h.
    pub(crate) struct Runtime {
        fn cnrtGetLibVersion(major: *mut c_int, minor: *mut c_int, patch: *mut c_int) -> CnrtReturn;
        fn cnrtDriverGetVersion(major: *mut c_int, minor: *mut c_int, patch: *mut c_int)
            -> CnrtReturn;
        fn cnrtGetErrorStr(error: CnrtReturn) -> *const c_char;
        fn cnrtGetErrorName(error: CnrtReturn) -> *const c_char;
        fn cnrtGetLastError() -> CnrtReturn;
        fn cnrtGetDeviceCount(count: *mut c_uint) -> CnrtReturn;
        fn cnrtGetDevice(device: *mut c_int) -> CnrtReturn;
        fn cnrtSetDevice(device: c_int) -> CnrtReturn;
        fn cnrtDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> CnrtReturn;
        fn cnrtDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: c_int) -> CnrtReturn;
        fn cnrtMalloc(pointer: *mut *mut c_void, bytes: usize) -> CnrtReturn;
        fn cnrtFree(pointer: *mut c_void) -> CnrtReturn;
        fn cnrtHostMalloc(pointer: *mut *mut c_void, bytes: usize) -> CnrtReturn;
        fn cnrtFreeHost(pointer: *mut c_void) -> CnrtReturn;
        fn cnrtPointerGetAttributes(attributes: *mut PointerAttributes, pointer: *const c_void)
            -> CnrtReturn;
        fn cnrtQueueCreate(queue: *mut Queue) -> CnrtReturn;
        fn cnrtQueueDestroy(queue: Queue) -> CnrtReturn;
        fn cnrtQueueQuery(queue: Queue) -> CnrtReturn;
        fn cnrtQueueSync(queue: Queue) -> CnrtReturn;
        fn cnrtInvokeHostFunc(
            queue: Queue,
            function: unsafe extern "C" fn(user: *mut c_void),
            user: *mut c_void,
        ) -> CnrtReturn;
        fn cnrtNotifierCreateWithFlags(notifier: *mut Notifier, flags: c_uint) -> CnrtReturn;
        fn cnrtNotifierDestroy(notifier: Notifier) -> CnrtReturn;
        fn cnrtPlaceNotifier(notifier: Notifier, queue: Queue) -> CnrtReturn;
        fn cnrtQueryNotifier(notifier: Notifier) -> CnrtReturn;
        optional fn cnrtMemcpyAsync_V3(
            destination: *mut c_void,
            source: *mut c_void,
            bytes: usize,
            queue: Queue,
            direction: c_int,
        ) -> CnrtReturn;
        optional fn cnrtMemcpyAsync_V2(
            destination: *mut c_void,
            source: *mut c_void,
            bytes: usize,
            queue: Queue,
            direction: c_int,
        ) -> CnrtReturn;
        optional fn cnrtMemcpyAsync(
            destination: *mut c_void,
            source: *mut c_void,
            bytes: usize,
            queue: Queue,
            direction: c_int,
        ) -> CnrtReturn;
    }
}

// cn_api.h: handles.

/// `CNdev`.
pub(crate) type DriverDevice = u64;
/// `CNaddr`.
pub(crate) type DeviceAddress = u64;

// cn_api.h: CNdevice_attribute.

pub(crate) const DRIVER_ATTRIBUTE_DMA_BUF_SUPPORTED: c_int = 0x313;

// cn_api.h: CNmemRangeHandleType.

pub(crate) const RANGE_HANDLE_DMA_BUF_FD: c_int = 1;

iccl_vendor_support::symbols! {
    /// libcndrv: `cn_api.h`. The signature of `cnMemGetHandleForAddressRange` is that which Mooncake
    /// compiles with.
    pub(crate) struct Driver {
        fn cnInit(flags: c_uint) -> CnrtReturn;
        fn cnDeviceGet(device: *mut DriverDevice, ordinal: c_int) -> CnrtReturn;
        fn cnDeviceGetName(name: *mut c_char, length: c_uint, device: DriverDevice) -> CnrtReturn;
        fn cnDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: DriverDevice)
            -> CnrtReturn;
        optional fn cnMemGetHandleForAddressRange(
            handle: *mut c_void,
            address: DeviceAddress,
            bytes: usize,
            handle_type: c_int,
            flags: u64,
        ) -> CnrtReturn;
    }
}

// cncl.h: handles and answers.

/// `cnclResult_t`.
pub(crate) type CnclResult = c_int;
/// `cnclComm_t`.
pub(crate) type Communicator = *mut c_void;

/// `cnclCliqueId`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CliqueId {
    pub(crate) data: [u8; 128],
    pub(crate) hash: u64,
}

/// All of it is to be sent to the other ranks.
pub(crate) const CLIQUE_ID_BYTES: usize = size_of::<CliqueId>();

// cncl.h: cnclResult_t. The low four bits are its class.

pub(crate) const CNCL_SUCCESS: CnclResult = 0x00;
pub(crate) const CNCL_UNSUPPORTED: CnclResult = 0x11;
pub(crate) const CNCL_NULL_POINTER: CnclResult = 0x21;
pub(crate) const CNCL_SYS_MALLOC: CnclResult = 0x12;
pub(crate) const CNCL_CNRT_MALLOC: CnclResult = 0x33;
/// Not an error.
pub(crate) const CNCL_ASYNC_IN_PROGRESS: CnclResult = 0x06;
pub(crate) const CNCL_CLASS: CnclResult = 0x0f;
pub(crate) const CNCL_CLASS_SYSTEM: CnclResult = 0x02;
pub(crate) const CNCL_CLASS_ARGUMENTS: CnclResult = 0x07;
pub(crate) const CNCL_MLU_ALLOCATE: CnclResult = 0x08;

// cncl.h: cnclDataType_t.

pub(crate) const CNCL_FLOAT16: c_int = 0x10;
pub(crate) const CNCL_BFLOAT16: c_int = 0x11;
pub(crate) const CNCL_FLOAT32: c_int = 0x12;
pub(crate) const CNCL_INT8: c_int = 0x20;
pub(crate) const CNCL_INT16: c_int = 0x21;
pub(crate) const CNCL_INT32: c_int = 0x22;
pub(crate) const CNCL_INT64: c_int = 0x23;
pub(crate) const CNCL_UINT8: c_int = 0x30;
pub(crate) const CNCL_UINT16: c_int = 0x31;
pub(crate) const CNCL_UINT32: c_int = 0x32;
pub(crate) const CNCL_UINT64: c_int = 0x33;

// cncl.h: cnclReduceOp_t.

pub(crate) const CNCL_SUM: c_int = 0;
pub(crate) const CNCL_PROD: c_int = 1;
pub(crate) const CNCL_MAX: c_int = 2;
pub(crate) const CNCL_MIN: c_int = 3;

iccl_vendor_support::symbols! {
    /// libcncl: cncl.h.
    pub(crate) struct Cncl {
        fn cnclGetLibVersion(major: *mut c_int, minor: *mut c_int, patch: *mut c_int) -> CnclResult;
        fn cnclGetErrorStr(result: CnclResult) -> *const c_char;
        fn cnclGetCliqueId(id: *mut CliqueId) -> CnclResult;
        fn cnclInitComms(
            communicators: *mut Communicator,
            number: c_int,
            devices: *const c_int,
            ranks: *const c_int,
            all_ranks: c_int,
            id: *const CliqueId,
        ) -> CnclResult;
        fn cnclDestroyComms(communicators: *mut Communicator, number: c_int) -> CnclResult;
        fn cnclAbortComm(communicator: Communicator) -> CnclResult;
        fn cnclGetCommAsyncError(communicator: Communicator) -> CnclResult;
        fn cnclGroupStart() -> CnclResult;
        fn cnclGroupEnd() -> CnclResult;
        fn cnclBcast(
            buffer: *mut c_void,
            count: usize,
            dtype: c_int,
            root: c_int,
            communicator: Communicator,
            queue: Queue,
        ) -> CnclResult;
        fn cnclAllGather(
            send: *const c_void,
            receive: *mut c_void,
            send_count: usize,
            dtype: c_int,
            communicator: Communicator,
            queue: Queue,
        ) -> CnclResult;
        fn cnclReduce(
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            dtype: c_int,
            op: c_int,
            root: c_int,
            communicator: Communicator,
            queue: Queue,
        ) -> CnclResult;
        fn cnclAllReduce(
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            dtype: c_int,
            op: c_int,
            communicator: Communicator,
            queue: Queue,
        ) -> CnclResult;
        fn cnclReduceScatter(
            send: *const c_void,
            receive: *mut c_void,
            receive_count: usize,
            dtype: c_int,
            op: c_int,
            communicator: Communicator,
            queue: Queue,
        ) -> CnclResult;
        fn cnclSend(
            send: *mut c_void,
            count: usize,
            dtype: c_int,
            peer: c_int,
            communicator: Communicator,
            queue: Queue,
        ) -> CnclResult;
        fn cnclRecv(
            receive: *mut c_void,
            count: usize,
            dtype: c_int,
            peer: c_int,
            communicator: Communicator,
            queue: Queue,
        ) -> CnclResult;
        optional fn cnclBroadcast(
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            dtype: c_int,
            root: c_int,
            communicator: Communicator,
            queue: Queue,
        ) -> CnclResult;
        optional fn cnclAlltoAll(
            send: *const c_void,
            receive: *mut c_void,
            count_per_peer: usize,
            dtype: c_int,
            communicator: Communicator,
            queue: Queue,
        ) -> CnclResult;
        optional fn cnclAlltoAllv(
            send: *mut *const c_void,
            send_counts: *mut u32,
            send_dtypes: *mut c_int,
            receive: *mut *mut c_void,
            receive_counts: *mut u32,
            receive_dtypes: *mut c_int,
            communicator: Communicator,
            queue: Queue,
        ) -> CnclResult;
    }
}
