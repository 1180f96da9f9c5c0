//! The C functions under test, with prototypes written here.

use std::ffi::{CString, c_char, c_void};

use iccl_tests::c_library;

/// An address of device or host memory, a queue or a notifier.
pub(crate) type Word = u64;
/// `cnrtIpcNotifierHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NotifierHandle(pub(crate) [u64; 8]);

c_library!(
    /// `libcnrt`.
    Runtime {
        cnrtGetDeviceCount(*mut u32) -> i32;
        cnrtSetDevice(i32) -> i32;
        cnrtGetDevice(*mut i32) -> i32;
        cnrtSyncDevice() -> i32;
        cnrtDeviceGetAttribute(*mut i32, i32, i32) -> i32;
        cnrtDeviceGetPCIBusId(*mut c_char, i32, i32) -> i32;
        cnrtDeviceGetByPCIBusId(*mut i32, *const c_char) -> i32;
        cnrtGetPeerAccessibility(*mut u32, i32, i32) -> i32;
        cnrtGetLibVersion(*mut i32, *mut i32, *mut i32) -> i32;
        cnrtDriverGetVersion(*mut i32, *mut i32, *mut i32) -> i32;
        cnrtGetErrorStr(i32) -> *const c_char;
        cnrtGetErrorName(i32) -> *const c_char;
        cnrtGetLastError() -> i32;
        cnrtPeekAtLastError() -> i32;
        cnrtMalloc(*mut Word, usize) -> i32;
        cnrtFree(Word) -> i32;
        cnrtHostMalloc(*mut Word, usize) -> i32;
        cnrtFreeHost(Word) -> i32;
        cnrtMemGetInfo(*mut usize, *mut usize) -> i32;
        cnrtPointerGetAttributes(*mut c_void, Word) -> i32;
        cnrtMmap(Word, *mut Word, usize) -> i32;
        cnrtMemcpy(Word, Word, usize, i32) -> i32;
        cnrtMemcpyAsync(Word, Word, usize, Word, i32) -> i32;
        cnrtMemcpyAsync_V2(Word, Word, usize, Word, i32) -> i32;
        cnrtMemcpyAsync_V3(Word, Word, usize, Word, i32) -> i32;
        cnrtMemcpyPeer(Word, i32, Word, i32, usize) -> i32;
        cnrtMemsetAsync(Word, i32, usize, Word) -> i32;
        cnrtQueueCreate(*mut Word) -> i32;
        cnrtQueueDestroy(Word) -> i32;
        cnrtQueueSync(Word) -> i32;
        cnrtQueueQuery(Word) -> i32;
        cnrtQueueWaitNotifier(Word, Word, u32) -> i32;
        cnrtNotifierCreate(*mut Word) -> i32;
        cnrtNotifierCreateWithFlags(*mut Word, u32) -> i32;
        cnrtNotifierDestroy(Word) -> i32;
        cnrtPlaceNotifier(Word, Word) -> i32;
        cnrtQueryNotifier(Word) -> i32;
        cnrtWaitNotifier(Word) -> i32;
        cnrtNotifierElapsedTime(Word, Word, *mut f32) -> i32;
        cnrtNotifierDuration(Word, Word, *mut f32) -> i32;
        cnrtInvokeHostFunc(Word, unsafe extern "C" fn(*mut c_void), *mut c_void) -> i32;
        cnrtAcquireMemHandle(*mut Word, Word) -> i32;
        cnrtMapMemHandle(*mut Word, Word, i32) -> i32;
        cnrtUnMapMemHandle(Word) -> i32;
        cnrtIpcGetNotifierHandle(*mut NotifierHandle, Word) -> i32;
        cnrtIpcOpenNotifierHandle(*mut Word, NotifierHandle) -> i32;
    }
);

c_library!(
    /// `libcndrv`.
    Driver {
        cnInit(u32) -> i32;
        cnDeviceGet(*mut u64, i32) -> i32;
        cnDeviceGetName(*mut c_char, u32, u64) -> i32;
        cnDeviceGetAttribute(*mut i32, i32, u64) -> i32;
        cnMemGetAddressRange(*mut u64, *mut u64, u64) -> i32;
        cnGetMemAttribute(*mut c_void, i32, u64) -> i32;
        cnMemGetHandleForAddressRange(*mut c_void, u64, usize, i32, u64) -> i32;
        cnIpcGetMemHandle(*mut u64, u64) -> i32;
        iccl_sim_set(*const c_char, *const c_char) -> i32;
    }
);

/// `cnclCliqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CliqueId {
    pub(crate) data: [u8; 128],
    pub(crate) hash: u64,
}

c_library!(
    /// `libcncl`.
    Cncl {
        cnclGetLibVersion(*mut i32, *mut i32, *mut i32) -> i32;
        cnclGetErrorStr(i32) -> *const c_char;
        cnclGetCliqueId(*mut CliqueId) -> i32;
        cnclInitComms(*mut Word, i32, *const i32, *const i32, i32, *const CliqueId) -> i32;
        cnclDestroyComms(*mut Word, i32) -> i32;
        cnclFreeComm(Word) -> i32;
        cnclAbortComm(Word) -> i32;
        cnclGetCommCount(*mut i32, Word) -> i32;
        cnclGetCommRank(*mut i32, Word) -> i32;
        cnclGetCommDevice(*mut i32, Word) -> i32;
        cnclGetCommAsyncError(Word) -> i32;
        cnclGroupStart() -> i32;
        cnclGroupEnd() -> i32;
        cnclBcast(Word, usize, i32, i32, Word, Word) -> i32;
        cnclBroadcast(Word, Word, usize, i32, i32, Word, Word) -> i32;
        cnclAllGather(Word, Word, usize, i32, Word, Word) -> i32;
        cnclReduce(Word, Word, usize, i32, i32, i32, Word, Word) -> i32;
        cnclAllReduce(Word, Word, usize, i32, i32, Word, Word) -> i32;
        cnclReduceScatter(Word, Word, usize, i32, i32, Word, Word) -> i32;
        cnclAlltoAll(Word, Word, usize, i32, Word, Word) -> i32;
        cnclAlltoAllv(
            *const Word, *const u32, *const i32, *const Word, *const u32, *const i32, Word, Word
        ) -> i32;
        cnclSend(Word, usize, i32, i32, Word, Word) -> i32;
        cnclRecv(Word, usize, i32, i32, Word, Word) -> i32;
    }
);

impl Driver {
    /// Changes a setting of the simulator.
    pub(crate) fn set(&self, key: &str, value: &str) {
        let (key, value) = (CString::new(key).expect("text"), CString::new(value).expect("text"));
        // SAFETY: two texts that end with a zero byte.
        assert_eq!(unsafe { (self.iccl_sim_set)(key.as_ptr(), value.as_ptr()) }, 0);
    }
}
