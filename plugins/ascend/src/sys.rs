//! Ascend's C interfaces as far as the plugin uses them: signatures, values and layouts, and nothing
//! else. Each group names the header that it was read from (CANN 8.1.RC1, and the open sources of 9.x,
//! which agree in all of this). Functions that came after 8.1 are optional. `cargo xtask ascend`
//! compares HCCL's numbers with those of `pyhccl`, made by HCCL's own people.

use std::ffi::{c_char, c_int, c_void};

// acl/acl_base.h, acl/acl_rt.h: handles and answers.

/// `aclError`.
pub(crate) type AclError = c_int;
/// `aclrtContext`.
pub(crate) type Context = *mut c_void;
/// `aclrtStream`.
pub(crate) type Stream = *mut c_void;
/// `aclrtEvent`.
pub(crate) type Event = *mut c_void;

// acl/acl_base.h, acl/error_codes/rt_error_codes.h: numbers of errors.

pub(crate) const ACL_SUCCESS: AclError = 0;
pub(crate) const ACL_ERROR_INVALID_PARAM: AclError = 100_000;
pub(crate) const ACL_ERROR_REPEAT_INITIALIZE: AclError = 100_002;
pub(crate) const ACL_ERROR_COMPILING_STUB_MODE: AclError = 100_039;
pub(crate) const ACL_ERROR_BAD_ALLOC: AclError = 200_000;
pub(crate) const ACL_ERROR_API_NOT_SUPPORT: AclError = 200_001;
pub(crate) const ACL_ERROR_FEATURE_UNSUPPORTED: AclError = 200_006;
pub(crate) const ACL_ERROR_STORAGE_OVER_LIMIT: AclError = 300_000;
pub(crate) const ACL_ERROR_RT_PARAM_INVALID: AclError = 107_000;
pub(crate) const ACL_ERROR_RT_INVALID_DEVICEID: AclError = 107_001;
pub(crate) const ACL_ERROR_RT_CONTEXT_NULL: AclError = 107_002;
pub(crate) const ACL_ERROR_RT_STREAM_NO_CB_REG: AclError = 107_015;
pub(crate) const ACL_ERROR_RT_INVALID_MEMORY_TYPE: AclError = 107_016;
pub(crate) const ACL_ERROR_RT_INVALID_HANDLE: AclError = 107_017;
pub(crate) const ACL_ERROR_RT_WAIT_TIMEOUT: AclError = 107_019;
pub(crate) const ACL_ERROR_RT_TASK_TIMEOUT: AclError = 107_020;
pub(crate) const ACL_ERROR_RT_DEVICE_TASK_ABORT: AclError = 107_022;
pub(crate) const ACL_ERROR_RT_STREAM_ABORT: AclError = 107_023;
pub(crate) const ACL_ERROR_RT_FEATURE_NOT_SUPPORT: AclError = 207_000;
pub(crate) const ACL_ERROR_RT_MEMORY_ALLOCATION: AclError = 207_001;
pub(crate) const ACL_ERROR_RT_NO_DEVICE: AclError = 207_004;
pub(crate) const ACL_ERROR_RT_RESOURCE_ALLOC_FAIL: AclError = 207_005;
pub(crate) const ACL_ERROR_RT_NO_PERMISSION: AclError = 207_006;
pub(crate) const ACL_ERROR_RT_NO_EVENT_RESOURCE: AclError = 207_007;
pub(crate) const ACL_ERROR_RT_NO_STREAM_RESOURCE: AclError = 207_008;
pub(crate) const ACL_ERROR_RT_OVER_LIMIT: AclError = 207_012;
pub(crate) const ACL_ERROR_RT_DEVICE_OOM: AclError = 207_018;
pub(crate) const ACL_ERROR_RT_STREAM_SYNC_TIMEOUT: AclError = 507_046;
pub(crate) const ACL_ERROR_RT_EVENT_SYNC_TIMEOUT: AclError = 507_047;

// acl/acl_rt.h: enum aclrtMemcpyKind.

pub(crate) const MEMCPY_HOST_TO_HOST: c_int = 0;
pub(crate) const MEMCPY_HOST_TO_DEVICE: c_int = 1;
pub(crate) const MEMCPY_DEVICE_TO_HOST: c_int = 2;
pub(crate) const MEMCPY_DEVICE_TO_DEVICE: c_int = 3;

// acl/acl_rt.h: enum aclrtMemMallocPolicy.

/// `ACL_MEM_MALLOC_HUGE_FIRST`.
pub(crate) const MALLOC_HUGE_FIRST: c_int = 0;

// acl/acl_rt.h: what queries write. The two say the opposite of each other.

/// `ACL_STREAM_STATUS_COMPLETE`.
pub(crate) const STREAM_STATUS_COMPLETE: c_int = 0;
/// `ACL_EVENT_RECORDED_STATUS_COMPLETE`.
pub(crate) const EVENT_RECORDED_STATUS_COMPLETE: c_int = 1;

// acl/acl_rt.h: flags of events.

/// `ACL_EVENT_SYNC`.
pub(crate) const EVENT_SYNC: u32 = 1;

// acl/acl_rt.h: enum aclrtCallbackBlockType.

/// `ACL_CALLBACK_BLOCK`: what comes later on the stream waits for the callback.
pub(crate) const CALLBACK_BLOCK: c_int = 1;

/// `aclrtCallback`, `aclrtHostFunc`.
pub(crate) type Callback = unsafe extern "C" fn(user: *mut c_void);

// acl/acl_rt.h: enum aclrtMemLocationType, struct aclrtPtrAttributes.

pub(crate) const LOCATION_HOST: c_int = 0;
pub(crate) const LOCATION_DEVICE: c_int = 1;
pub(crate) const LOCATION_UNREGISTERED: c_int = 2;

/// `aclrtPtrAttributes`: 28 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PointerAttributes {
    pub(crate) location_id: u32,
    pub(crate) location_type: c_int,
    pub(crate) page_bytes: u32,
    pub(crate) reserved: [u32; 4],
}

// acl/acl_rt.h: enum aclrtDevAttr.

/// `ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE`.
pub(crate) const ATTRIBUTE_TOTAL_GLOBAL_MEMORY: c_int = 301;

// acl/acl_base.h: enum aclCANNPackageName, struct aclCANNPackageVersion.

/// `ACL_PKG_NAME_HCCL`.
pub(crate) const PACKAGE_HCCL: c_int = 3;

/// `aclCANNPackageVersion`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PackageVersion {
    pub(crate) version: [u8; 128],
    pub(crate) major: [u8; 64],
    pub(crate) minor: [u8; 64],
    pub(crate) release: [u8; 64],
    pub(crate) patch: [u8; 64],
    pub(crate) reserved: [u8; 128],
}

iccl_vendor_support::symbols! {
    /// libascendcl: acl/acl.h, acl/acl_rt.h.
    pub(crate) struct Acl {
        fn aclInit(configuration: *const c_char) -> AclError;
        fn aclGetRecentErrMsg() -> *const c_char;
        fn aclrtGetVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) -> AclError;
        fn aclrtGetSocName() -> *const c_char;
        fn aclrtGetDeviceCount(count: *mut u32) -> AclError;
        fn aclrtSetDevice(device: i32) -> AclError;
        fn aclrtGetDevice(device: *mut i32) -> AclError;
        fn aclrtGetCurrentContext(context: *mut Context) -> AclError;
        fn aclrtSetCurrentContext(context: Context) -> AclError;
        fn aclrtMalloc(pointer: *mut *mut c_void, bytes: usize, policy: c_int) -> AclError;
        fn aclrtFree(pointer: *mut c_void) -> AclError;
        fn aclrtMallocHost(pointer: *mut *mut c_void, bytes: usize) -> AclError;
        fn aclrtFreeHost(pointer: *mut c_void) -> AclError;
        fn aclrtPointerGetAttributes(pointer: *const c_void, attributes: *mut PointerAttributes)
            -> AclError;
        fn aclrtMemcpy(
            destination: *mut c_void,
            destination_bytes: usize,
            source: *const c_void,
            bytes: usize,
            kind: c_int,
        ) -> AclError;
        fn aclrtMemcpyAsync(
            destination: *mut c_void,
            destination_bytes: usize,
            source: *const c_void,
            bytes: usize,
            kind: c_int,
            stream: Stream,
        ) -> AclError;
        fn aclrtCreateStream(stream: *mut Stream) -> AclError;
        fn aclrtDestroyStream(stream: Stream) -> AclError;
        fn aclrtSynchronizeStream(stream: Stream) -> AclError;
        fn aclrtStreamQuery(stream: Stream, status: *mut c_int) -> AclError;
        fn aclrtStreamAbort(stream: Stream) -> AclError;
        fn aclrtCreateEventExWithFlag(event: *mut Event, flags: u32) -> AclError;
        fn aclrtDestroyEvent(event: Event) -> AclError;
        fn aclrtRecordEvent(event: Event, stream: Stream) -> AclError;
        fn aclrtQueryEventStatus(event: Event, status: *mut c_int) -> AclError;
        fn aclrtLaunchCallback(
            function: Callback,
            user: *mut c_void,
            block_type: c_int,
            stream: Stream,
        ) -> AclError;
        fn aclrtSubscribeReport(thread: u64, stream: Stream) -> AclError;
        fn aclrtUnSubscribeReport(thread: u64, stream: Stream) -> AclError;
        fn aclrtProcessReport(timeout_ms: i32) -> AclError;
        optional fn aclrtLaunchHostFunc(
            stream: Stream,
            function: Callback,
            user: *mut c_void,
        ) -> AclError;
        optional fn aclsysGetCANNVersion(package: c_int, version: *mut PackageVersion) -> AclError;
        optional fn aclrtGetDeviceInfo(device: u32, attribute: c_int, value: *mut i64) -> AclError;
        optional fn aclrtDeviceGetPCIBusId(device: i32, text: *mut c_char, bytes: i32) -> AclError;
    }
}

// hccl/hccl_types.h: handles and answers.

/// `HcclResult`.
pub(crate) type HcclResult = c_int;
/// `HcclComm`.
pub(crate) type Communicator = *mut c_void;

/// `HCCL_ROOT_INFO_BYTES`.
pub(crate) const ROOT_INFO_BYTES: usize = 4108;

/// `HcclRootInfo`. Passed by address.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RootInfo {
    pub(crate) internal: [u8; ROOT_INFO_BYTES],
}

// hccl/hccl_types.h: enum HcclResult.

pub(crate) const HCCL_SUCCESS: HcclResult = 0;
pub(crate) const HCCL_E_PARA: HcclResult = 1;
pub(crate) const HCCL_E_PTR: HcclResult = 2;
pub(crate) const HCCL_E_MEMORY: HcclResult = 3;
pub(crate) const HCCL_E_NOT_SUPPORT: HcclResult = 5;
pub(crate) const HCCL_E_TIMEOUT: HcclResult = 9;
pub(crate) const HCCL_E_TCP_CONNECT: HcclResult = 11;
pub(crate) const HCCL_E_ROCE_CONNECT: HcclResult = 12;
pub(crate) const HCCL_E_TCP_TRANSFER: HcclResult = 13;
pub(crate) const HCCL_E_ROCE_TRANSFER: HcclResult = 14;
pub(crate) const HCCL_E_NETWORK: HcclResult = 19;
pub(crate) const HCCL_E_AGAIN: HcclResult = 20;
pub(crate) const HCCL_E_REMOTE: HcclResult = 21;
pub(crate) const HCCL_E_OOM: HcclResult = 24;

// hccl/hccl_types.h: enum HcclReduceOp.

pub(crate) const HCCL_REDUCE_SUM: c_int = 0;
pub(crate) const HCCL_REDUCE_PROD: c_int = 1;
pub(crate) const HCCL_REDUCE_MAX: c_int = 2;
pub(crate) const HCCL_REDUCE_MIN: c_int = 3;

// hccl/hccl_types.h: enum HcclDataType. The 8-bit floats differ between sources and are not used.

pub(crate) const HCCL_DATA_TYPE_INT8: c_int = 0;
pub(crate) const HCCL_DATA_TYPE_INT16: c_int = 1;
pub(crate) const HCCL_DATA_TYPE_INT32: c_int = 2;
pub(crate) const HCCL_DATA_TYPE_FP16: c_int = 3;
pub(crate) const HCCL_DATA_TYPE_FP32: c_int = 4;
pub(crate) const HCCL_DATA_TYPE_INT64: c_int = 5;
pub(crate) const HCCL_DATA_TYPE_UINT64: c_int = 6;
pub(crate) const HCCL_DATA_TYPE_UINT8: c_int = 7;
pub(crate) const HCCL_DATA_TYPE_UINT16: c_int = 8;
pub(crate) const HCCL_DATA_TYPE_UINT32: c_int = 9;
pub(crate) const HCCL_DATA_TYPE_FP64: c_int = 10;
pub(crate) const HCCL_DATA_TYPE_BFP16: c_int = 11;

// hccl/hccl_types.h: enum HcclSendRecvType, struct HcclSendRecvItem.

pub(crate) const HCCL_SEND: c_int = 0;
pub(crate) const HCCL_RECV: c_int = 1;

/// `HcclSendRecvItem`: 32 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendRecvItem {
    pub(crate) kind: c_int,
    pub(crate) buffer: *mut c_void,
    pub(crate) count: u64,
    pub(crate) dtype: c_int,
    pub(crate) remote_rank: u32,
}

iccl_vendor_support::symbols! {
    /// libhccl and, from 9.x on, libhcomm: hccl/hccl.h, hccl/hccl_comm.h. Arrays of counts and
    /// displacements are host memory of 64-bit numbers, in elements.
    pub(crate) struct Hccl {
        fn HcclGetErrorString(result: HcclResult) -> *const c_char;
        fn HcclGetRootInfo(root_info: *mut RootInfo) -> HcclResult;
        fn HcclCommInitRootInfo(
            ranks: u32,
            root_info: *const RootInfo,
            rank: u32,
            communicator: *mut Communicator,
        ) -> HcclResult;
        fn HcclCommDestroy(communicator: Communicator) -> HcclResult;
        fn HcclGetCommAsyncError(communicator: Communicator, result: *mut HcclResult) -> HcclResult;
        fn HcclAllReduce(
            send: *const c_void,
            receive: *mut c_void,
            count: u64,
            dtype: c_int,
            op: c_int,
            communicator: Communicator,
            stream: Stream,
        ) -> HcclResult;
        fn HcclReduce(
            send: *const c_void,
            receive: *mut c_void,
            count: u64,
            dtype: c_int,
            op: c_int,
            root: u32,
            communicator: Communicator,
            stream: Stream,
        ) -> HcclResult;
        fn HcclReduceScatter(
            send: *const c_void,
            receive: *mut c_void,
            receive_count: u64,
            dtype: c_int,
            op: c_int,
            communicator: Communicator,
            stream: Stream,
        ) -> HcclResult;
        fn HcclBroadcast(
            buffer: *mut c_void,
            count: u64,
            dtype: c_int,
            root: u32,
            communicator: Communicator,
            stream: Stream,
        ) -> HcclResult;
        fn HcclAllGather(
            send: *const c_void,
            receive: *mut c_void,
            send_count: u64,
            dtype: c_int,
            communicator: Communicator,
            stream: Stream,
        ) -> HcclResult;
        fn HcclScatter(
            send: *const c_void,
            receive: *mut c_void,
            receive_count: u64,
            dtype: c_int,
            root: u32,
            communicator: Communicator,
            stream: Stream,
        ) -> HcclResult;
        fn HcclAlltoAll(
            send: *const c_void,
            send_count: u64,
            send_type: c_int,
            receive: *const c_void,
            receive_count: u64,
            receive_type: c_int,
            communicator: Communicator,
            stream: Stream,
        ) -> HcclResult;
        fn HcclAlltoAllV(
            send: *const c_void,
            send_counts: *const u64,
            send_displacements: *const u64,
            send_type: c_int,
            receive: *const c_void,
            receive_counts: *const u64,
            receive_displacements: *const u64,
            receive_type: c_int,
            communicator: Communicator,
            stream: Stream,
        ) -> HcclResult;
        fn HcclBatchSendRecv(
            items: *mut SendRecvItem,
            count: u32,
            communicator: Communicator,
            stream: Stream,
        ) -> HcclResult;
        fn HcclBarrier(communicator: Communicator, stream: Stream) -> HcclResult;
    }
}

const _: () = assert!(size_of::<PointerAttributes>() == 28);
const _: () = assert!(size_of::<SendRecvItem>() == 32);
const _: () = assert!(size_of::<RootInfo>() == 4108);
const _: () = assert!(size_of::<PackageVersion>() == 512);
