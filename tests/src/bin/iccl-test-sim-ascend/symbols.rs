//! The C functions under test, with prototypes written here.

use std::ffi::c_char;
use std::path::Path;

use iccl_vendor_support::Library;

/// An address of card or host memory, a stream, an event, a communicator.
pub(crate) type Word = u64;

/// # Panics
/// If it can't be loaded.
pub(crate) fn open(path: &Path) -> Library {
    // SAFETY: a simulated library, whose initialisers do nothing but Rust's.
    unsafe { Library::open(path) }.expect("a simulated library")
}

/// What a stream calls.
pub(crate) type Function = extern "C" fn(Word);

/// `HcclRootInfo`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RootInfo(pub(crate) [u8; 4108]);

/// `HcclSendRecvItem`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Item {
    pub(crate) kind: i32,
    pub(crate) buffer: Word,
    pub(crate) count: u64,
    pub(crate) dtype: i32,
    pub(crate) remote_rank: u32,
}

iccl_vendor_support::symbols! {
    /// `libascendcl`.
    pub(crate) struct Acl {
        fn aclInit(configuration: *const c_char) -> i32;
        fn aclGetRecentErrMsg() -> *const c_char;
        fn aclrtGetDeviceCount(count: *mut u32) -> i32;
        fn aclrtSetDevice(device: i32) -> i32;
        fn aclrtGetDevice(device: *mut i32) -> i32;
        fn aclrtMalloc(pointer: *mut Word, bytes: usize, policy: i32) -> i32;
        fn aclrtFree(pointer: Word) -> i32;
        fn aclrtMallocHost(pointer: *mut Word, bytes: usize) -> i32;
        fn aclrtFreeHost(pointer: Word) -> i32;
        fn aclrtHostRegister(pointer: Word, bytes: u64, kind: i32, device: *mut Word) -> i32;
        fn aclrtMemcpy(to: Word, room: usize, from: Word, bytes: usize, kind: i32) -> i32;
        fn aclrtMemcpyAsync(to: Word, room: usize, from: Word, bytes: usize, kind: i32, stream: Word)
            -> i32;
        fn aclrtCreateStream(stream: *mut Word) -> i32;
        fn aclrtDestroyStream(stream: Word) -> i32;
        fn aclrtSynchronizeStream(stream: Word) -> i32;
        fn aclrtSynchronizeStreamWithTimeout(stream: Word, timeout_ms: i32) -> i32;
        fn aclrtStreamQuery(stream: Word, status: *mut i32) -> i32;
        fn aclrtStreamAbort(stream: Word) -> i32;
        fn aclrtCreateEvent(event: *mut Word) -> i32;
        fn aclrtCreateEventExWithFlag(event: *mut Word, flags: u32) -> i32;
        fn aclrtRecordEvent(event: Word, stream: Word) -> i32;
        fn aclrtQueryEventStatus(event: Word, status: *mut i32) -> i32;
        fn aclrtQueryEvent(event: Word, status: *mut i32) -> i32;
        fn aclrtLaunchCallback(function: Function, user: Word, block: i32, stream: Word) -> i32;
        fn aclrtLaunchHostFunc(stream: Word, function: Function, user: Word) -> i32;
        fn aclrtSubscribeReport(thread: u64, stream: Word) -> i32;
        fn aclrtUnSubscribeReport(thread: u64, stream: Word) -> i32;
        fn aclrtProcessReport(timeout_ms: i32) -> i32;
    }
}

iccl_vendor_support::symbols! {
    /// `libhccl`.
    pub(crate) struct Hccl {
        fn HcclGetRootInfo(root: *mut RootInfo) -> i32;
        fn HcclCommInitRootInfo(ranks: u32, root: *const RootInfo, rank: u32, comm: *mut Word) -> i32;
        fn HcclCommInitAll(count: u32, devices: *const i32, comms: *mut Word) -> i32;
        fn HcclCommDestroy(comm: Word) -> i32;
        fn HcclGetCommAsyncError(comm: Word, error: *mut i32) -> i32;
        fn HcclAllReduce(
            send: Word,
            receive: Word,
            count: u64,
            dtype: i32,
            op: i32,
            comm: Word,
            stream: Word,
        ) -> i32;
        fn HcclBroadcast(buffer: Word, count: u64, dtype: i32, root: u32, comm: Word, stream: Word)
            -> i32;
        fn HcclReduce(
            send: Word,
            receive: Word,
            count: u64,
            dtype: i32,
            op: i32,
            root: u32,
            comm: Word,
            stream: Word,
        ) -> i32;
        fn HcclBatchSendRecv(items: *const Item, count: u32, comm: Word, stream: Word) -> i32;
    }
}
