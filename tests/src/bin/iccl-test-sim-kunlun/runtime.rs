//! What is tried with the runtime, by both of its faces.

use crate::symbols::{Cuda, Word, open};
use crate::{Sdk, address, answers, c, say};

const OK: i32 = 0;
const INVALID_DEVICE: i32 = -701;
const NO_DEVICE: i32 = -703;
const NO_MEMORY: i32 = -705;
const INVALID_PARAM: i32 = -707;
const NOT_SUPPORTED: i32 = -712;

const DEVICE_TO_HOST: i32 = 0;
const HOST_TO_DEVICE: i32 = 1;
const DEVICE_TO_DEVICE: i32 = 2;

/// What no call has written.
const UNTOUCHED: Word = 0x0123_4567;

impl Sdk {
    /// Memory of the current card that holds something.
    pub(crate) fn on_card<T>(&self, values: &[T]) -> Word {
        let bytes = size_of_val(values) as u64;
        let mut pointer = 0;
        answers!(OK, self.xpu, xpu_malloc(&raw mut pointer, bytes, 0));
        answers!(OK, self.xpu, xpu_memcpy(pointer, address(values), bytes, HOST_TO_DEVICE));
        pointer
    }

    /// What lies on the card.
    pub(crate) fn read<T: Copy + Default>(&self, pointer: Word, count: usize) -> Vec<T> {
        let values = vec![T::default(); count];
        let bytes = size_of_val(&values[..]) as u64;
        answers!(OK, self.xpu, xpu_memcpy(address(&values), pointer, bytes, DEVICE_TO_HOST));
        values
    }

    pub(crate) fn stream(&self) -> Word {
        let mut stream = 0;
        answers!(OK, self.xpu, xpu_stream_create(&raw mut stream));
        stream
    }
}

pub(crate) fn devices(sdk: &Sdk) {
    let xpu = &sdk.xpu;
    let mut count = -7;
    let found = c!(xpu, xpu_device_count(&raw mut count));
    say(&format!("count {found} {count}"));
    if found == NO_DEVICE {
        return;
    }
    answers!(INVALID_DEVICE, xpu, xpu_set_device(count));
    let mut pointer = UNTOUCHED;
    answers!(INVALID_PARAM, xpu, xpu_malloc(&raw mut pointer, 64, 5));
    answers!(NO_MEMORY, xpu, xpu_malloc(&raw mut pointer, 1 << 50, 0));
    answers!(INVALID_PARAM, xpu, xpu_host_alloc(&raw mut pointer, 64, 2));
    answers!(INVALID_PARAM, xpu, xpu_host_register(address(&[0_u8; 64]), 64, 2));
    assert_eq!(pointer, UNTOUCHED, "outputs stay as they were");
    let memory = sdk.on_card(&[1_u8; 64]);
    answers!(OK, xpu, xpu_free(memory));
    answers!(INVALID_PARAM, xpu, xpu_free(memory));
}

/// Dies by it.
pub(crate) fn dereference(sdk: &Sdk) {
    let memory = sdk.on_card(&[7_u8; 64]);
    say("about to read");
    // SAFETY: there is none; that it ends the process is what is tried.
    let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(memory as usize).read_volatile() };
    say(&format!("read {byte}"));
}

/// Directions are the reverse of CUDA's, there is none for within the host, and copies are synchronous.
pub(crate) fn copies(sdk: &Sdk) {
    let xpu = &sdk.xpu;
    let (first, second) = (sdk.on_card(&[1_u8; 64]), sdk.on_card(&[2_u8; 64]));
    let host = [3_u8; 64];
    let on_host = address(&host);
    for wrong in [DEVICE_TO_HOST, DEVICE_TO_DEVICE, 3] {
        answers!(INVALID_PARAM, xpu, xpu_memcpy(first, on_host, 64, wrong));
    }
    answers!(INVALID_PARAM, xpu, xpu_memcpy(on_host, first, 64, HOST_TO_DEVICE));
    answers!(INVALID_PARAM, xpu, xpu_memcpy(first, second + 32, 64, DEVICE_TO_DEVICE));
    assert_eq!(sdk.read::<u8>(first, 64), [1; 64], "nothing was copied");
    answers!(OK, xpu, xpu_memcpy(first, second, 64, DEVICE_TO_DEVICE));
    assert_eq!(sdk.read::<u8>(first, 64), [2; 64]);
    // XRE 5 copies on a stream, and lands late.
    assert_eq!(xpu.xpu_memcpy_async.is_some(), sdk.is_new);
    if let Some(copy) = xpu.xpu_memcpy_async {
        let (stream, mut pinned) = (sdk.stream(), 0);
        answers!(OK, xpu, xpu_host_alloc(&raw mut pinned, 64, 0));
        // SAFETY: the scenario passes what the prototype asks for; pinned memory was allocated just now.
        let byte = unsafe {
            assert_eq!(copy(pinned, first, 64, DEVICE_TO_HOST, stream), OK);
            std::ptr::with_exposed_provenance::<u8>(pinned as usize).read_volatile()
        };
        assert_ne!(byte, 2, "it lands late");
        answers!(OK, xpu, xpu_wait(stream));
    }
}

pub(crate) fn streams(sdk: &Sdk) {
    let xpu = &sdk.xpu;
    let (stream, other, mut event) = (sdk.stream(), sdk.stream(), 0);
    answers!(OK, xpu, xpu_event_create(&raw mut event));
    answers!(OK, xpu, xpu_event_record(event, stream));
    answers!(OK, xpu, xpu_stream_wait_event(other, event));
    answers!(OK, xpu, xpu_event_wait(event));
    answers!(OK, xpu, xpu_wait(other));
    answers!(OK, xpu, xpu_wait(0));
    // A stream is of its card.
    answers!(OK, xpu, xpu_set_device(1));
    answers!(INVALID_PARAM, xpu, xpu_wait(stream));
    answers!(INVALID_PARAM, xpu, xpu_event_record(event, stream));
    // Cards reach each other.
    let there = sdk.on_card(&[5_u8; 8]);
    answers!(OK, xpu, xpu_set_device(0));
    let here = sdk.on_card(&[0_u8; 8]);
    answers!(OK, xpu, xpu_memcpy_peer(0, here, 1, there, 8));
    assert_eq!(sdk.read::<u8>(here, 8), [5; 8]);
    answers!(INVALID_PARAM, xpu, xpu_memcpy_peer(1, here, 0, there, 8));
}

/// Those of K200 do not.
pub(crate) fn k200(sdk: &Sdk) {
    let memory = sdk.on_card(&[5_u8; 8]);
    answers!(NOT_SUPPORTED, sdk.xpu, xpu_memcpy_peer(0, memory, 1, memory, 8));
}

fn cudart(sdk: &Sdk) -> Cuda {
    // SAFETY: the prototypes are those of the header.
    unsafe { Cuda::resolve(&open(&sdk.folder.join("libcudart.so"))) }.expect("all functions")
}

const CUDA_INVALID_HANDLE: i32 = 400;
const CUDA_NOT_READY: i32 = 600;

/// CUDA's numbers, on the same card; what is asynchronous by name is not.
pub(crate) fn cuda(sdk: &Sdk) {
    let cuda = cudart(sdk);
    let (mut memory, mut stream, mut pinned) = (0, 0, 0);
    answers!(OK, cuda, cudaMalloc(&raw mut memory, 64));
    answers!(OK, cuda, cudaStreamCreateWithFlags(&raw mut stream, 1));
    answers!(OK, cuda, cudaHostAlloc(&raw mut pinned, 64, 0));
    answers!(OK, cuda, cudaMemsetAsync(memory, 9, 64, stream));
    answers!(OK, cuda, cudaStreamQuery(stream));
    assert_eq!(sdk.read::<u8>(memory, 64), [9; 64], "libxpurt sees the same");
    answers!(OK, cuda, cudaMemcpyAsync(pinned, memory, 64, 2, stream));
    answers!(CUDA_NOT_READY, cuda, cudaStreamQuery(stream));
    answers!(OK, cuda, cudaStreamSynchronize(stream));
    answers!(1, cuda, cudaMemcpy(pinned, memory, 64, 1));
    answers!(OK, cuda, cudaSetDevice(1));
    answers!(CUDA_INVALID_HANDLE, cuda, cudaMemcpyAsync(pinned, memory, 64, 2, stream));
    let host = vec![0_u8; 4096];
    answers!(OK, cuda, cudaHostRegister(address(&host), 4096, 0));
}

/// Ends the process, as it does for real.
pub(crate) fn register(sdk: &Sdk, words: &[&str]) {
    let cuda = cudart(sdk);
    let host = vec![0_u8; 4096];
    let (bytes, flags) = if words == ["mapped"] { (4096, 2) } else { (512 << 30, 0) };
    c!(cuda, cudaHostRegister(address(&host), bytes, flags));
}
