//! The C functions under test, with prototypes written here, found by `dlopen` and `dlsym`.

use std::ffi::{CString, c_char, c_void};

use iccl_tests::c_library as library;
pub(crate) use iccl_tests::maker::program::{open, symbol};

/// An address of device or host memory, a stream or an event.
pub(crate) type Word = u64;
/// `cudaIpcMemHandle_t` and `cudaIpcEventHandle_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

library!(
    /// `libcudart`.
    Runtime {
        cudaGetDeviceCount(*mut i32) -> i32;
        cudaSetDevice(i32) -> i32;
        cudaGetDevice(*mut i32) -> i32;
        cudaDeviceSynchronize() -> i32;
        cudaDeviceGetPCIBusId(*mut c_char, i32, i32) -> i32;
        cudaDeviceGetByPCIBusId(*mut i32, *const c_char) -> i32;
        cudaRuntimeGetVersion(*mut i32) -> i32;
        cudaDriverGetVersion(*mut i32) -> i32;
        cudaGetErrorString(i32) -> *const c_char;
        cudaGetLastError() -> i32;
        cudaMalloc(*mut Word, usize) -> i32;
        cudaFree(Word) -> i32;
        cudaMallocHost(*mut Word, usize) -> i32;
        cudaFreeHost(Word) -> i32;
        cudaHostRegister(Word, usize, u32) -> i32;
        cudaHostUnregister(Word) -> i32;
        cudaMemGetInfo(*mut usize, *mut usize) -> i32;
        cudaPointerGetAttributes(*mut c_void, Word) -> i32;
        cudaMemcpy(Word, Word, usize, i32) -> i32;
        cudaMemcpyAsync(Word, Word, usize, i32, Word) -> i32;
        cudaMemsetAsync(Word, i32, usize, Word) -> i32;
        cudaStreamCreateWithFlags(*mut Word, u32) -> i32;
        cudaStreamDestroy(Word) -> i32;
        cudaStreamSynchronize(Word) -> i32;
        cudaStreamQuery(Word) -> i32;
        cudaStreamWaitEvent(Word, Word, u32) -> i32;
        cudaEventCreateWithFlags(*mut Word, u32) -> i32;
        cudaEventRecord(Word, Word) -> i32;
        cudaEventQuery(Word) -> i32;
        cudaEventSynchronize(Word) -> i32;
        cudaEventElapsedTime(*mut f32, Word, Word) -> i32;
        cudaEventDestroy(Word) -> i32;
        cudaLaunchHostFunc(Word, unsafe extern "C" fn(*mut c_void), *mut c_void) -> i32;
        cudaIpcGetMemHandle(*mut IpcHandle, Word) -> i32;
        cudaIpcOpenMemHandle(*mut Word, IpcHandle, u32) -> i32;
        cudaIpcCloseMemHandle(Word) -> i32;
        cudaIpcGetEventHandle(*mut IpcHandle, Word) -> i32;
        cudaIpcOpenEventHandle(*mut Word, IpcHandle) -> i32;
        cudaDeviceEnablePeerAccess(i32, u32) -> i32;
    }
);

library!(
    /// `libcuda`.
    Driver {
        cuInit(u32) -> i32;
        cuStreamWaitValue64_v2(Word, u64, u64, u32) -> i32;
        cuStreamWriteValue64_v2(Word, u64, u64, u32) -> i32;
        cuStreamWaitValue32_v2(Word, u64, u32, u32) -> i32;
        cuPointerGetAttribute(*mut c_void, i32, u64) -> i32;
        cuMemGetHandleForAddressRange(*mut c_void, u64, usize, i32, u64) -> i32;
        cuDeviceGetAttribute(*mut i32, i32, i32) -> i32;
        iccl_sim_set(*const c_char, *const c_char) -> i32;
        iccl_sim_host_alias(u64, usize, *mut u64) -> i32;
    }
);

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) [u8; 128]);

library!(
    /// `libnccl`, as of 2.18.
    Nccl {
        ncclGetVersion(*mut i32) -> i32;
        ncclGetUniqueId(*mut UniqueId) -> i32;
        ncclGetErrorString(i32) -> *const c_char;
        ncclGetLastError(Word) -> *const c_char;
        ncclCommInitRank(*mut Word, i32, UniqueId, i32) -> i32;
        ncclCommInitRankConfig(*mut Word, i32, UniqueId, i32, *const c_void) -> i32;
        ncclCommInitAll(*mut Word, i32, *const i32) -> i32;
        ncclCommSplit(Word, i32, i32, *mut Word, *const c_void) -> i32;
        ncclCommGetAsyncError(Word, *mut i32) -> i32;
        ncclCommCount(Word, *mut i32) -> i32;
        ncclCommUserRank(Word, *mut i32) -> i32;
        ncclCommCuDevice(Word, *mut i32) -> i32;
        ncclCommFinalize(Word) -> i32;
        ncclCommDestroy(Word) -> i32;
        ncclCommAbort(Word) -> i32;
        ncclRedOpCreatePreMulSum(*mut i32, *const c_void, i32, i32, Word) -> i32;
        ncclRedOpDestroy(i32, Word) -> i32;
        ncclAllReduce(Word, Word, usize, i32, i32, Word, Word) -> i32;
        ncclReduce(Word, Word, usize, i32, i32, i32, Word, Word) -> i32;
        ncclReduceScatter(Word, Word, usize, i32, i32, Word, Word) -> i32;
        ncclBroadcast(Word, Word, usize, i32, i32, Word, Word) -> i32;
        ncclBcast(Word, usize, i32, i32, Word, Word) -> i32;
        ncclAllGather(Word, Word, usize, i32, Word, Word) -> i32;
        ncclSend(Word, usize, i32, i32, Word, Word) -> i32;
        ncclRecv(Word, usize, i32, i32, Word, Word) -> i32;
        ncclGroupStart() -> i32;
        ncclGroupEnd() -> i32;
    }
);

library!(
    /// What 2.28 has beyond.
    NewerNccl {
        ncclCommShrink(Word, *const i32, i32, *mut Word, *const c_void, i32) -> i32;
        ncclAlltoAll(Word, Word, usize, i32, Word, Word) -> i32;
        ncclGather(Word, Word, usize, i32, i32, Word, Word) -> i32;
        ncclScatter(Word, Word, usize, i32, i32, Word, Word) -> i32;
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
