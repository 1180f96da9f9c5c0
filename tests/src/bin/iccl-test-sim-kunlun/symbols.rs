//! The functions of the simulated libraries that are tried.

use std::ffi::c_void;
use std::path::Path;

use iccl_vendor_support::Library;

/// A handle or an address.
pub(crate) type Word = u64;

pub(crate) fn open(path: &Path) -> Library {
    // SAFETY: the simulator's libraries do nothing when they are opened.
    unsafe { Library::open(path) }.expect("a simulated library")
}

iccl_vendor_support::symbols! {
    pub(crate) struct Xpu {
        fn xpu_device_count(count: *mut i32) -> i32;
        fn xpu_set_device(device: i32) -> i32;
        fn xpu_malloc(pointer: *mut Word, bytes: u64, kind: i32) -> i32;
        fn xpu_free(pointer: Word) -> i32;
        fn xpu_host_alloc(pointer: *mut Word, bytes: u64, flags: u32) -> i32;
        fn xpu_host_register(pointer: Word, bytes: u64, flags: u32) -> i32;
        fn xpu_memcpy(to: Word, from: Word, bytes: u64, kind: i32) -> i32;
        fn xpu_memcpy_peer(to_device: i32, to: Word, from_device: i32, from: Word, bytes: u64) -> i32;
        fn xpu_stream_create(stream: *mut Word) -> i32;
        fn xpu_wait(stream: Word) -> i32;
        fn xpu_event_create(event: *mut Word) -> i32;
        fn xpu_event_record(event: Word, stream: Word) -> i32;
        fn xpu_event_wait(event: Word) -> i32;
        fn xpu_stream_wait_event(stream: Word, event: Word) -> i32;
        optional fn xpu_memcpy_async(to: Word, from: Word, bytes: u64, kind: i32, stream: Word) -> i32;
    }
}

iccl_vendor_support::symbols! {
    pub(crate) struct Cuda {
        fn cudaSetDevice(device: i32) -> i32;
        fn cudaMalloc(pointer: *mut Word, bytes: usize) -> i32;
        fn cudaMemsetAsync(to: Word, value: i32, bytes: usize, stream: Word) -> i32;
        fn cudaMemcpy(to: Word, from: Word, bytes: usize, kind: i32) -> i32;
        fn cudaMemcpyAsync(to: Word, from: Word, bytes: usize, kind: i32, stream: Word) -> i32;
        fn cudaStreamCreateWithFlags(stream: *mut Word, flags: u32) -> i32;
        fn cudaStreamQuery(stream: Word) -> i32;
        fn cudaStreamSynchronize(stream: Word) -> i32;
        fn cudaHostAlloc(pointer: *mut Word, bytes: usize, flags: u32) -> i32;
        fn cudaHostRegister(pointer: Word, bytes: usize, flags: u32) -> i32;
    }
}

iccl_vendor_support::symbols! {
    pub(crate) struct Bkcl {
        fn bkcl_get_unique_id(id: *mut u8) -> i32;
        fn bkcl_init_rank(context: *mut Word, rank: i32, ranks: i32, id: *const u8) -> i32;
        fn bkcl_comm_init_all(contexts: *mut Word, ranks: i32, devices: *const i32) -> i32;
        fn bkcl_destroy_context(context: Word) -> i32;
        fn bkcl_all_reduce(
            context: Word,
            send: Word,
            receive: Word,
            count: usize,
            dtype: i32,
            op: i32,
            stream: Word,
        ) -> i32;
        fn bkcl_broadcast(
            context: Word,
            send: Word,
            receive: Word,
            count: usize,
            dtype: i32,
            root: i32,
            stream: Word,
        ) -> i32;
        fn bkcl_all_to_all_v(
            context: Word,
            send: Word,
            counts: Word,
            places: Word,
            dtype: i32,
            receive: Word,
            receive_counts: Word,
            receive_places: Word,
            receive_dtype: i32,
            stream: Word,
        ) -> i32;
        fn bkcl_send(context: Word, send: Word, count: usize, peer: i32, dtype: i32, stream: Word)
            -> i32;
        fn bkcl_group_start() -> i32;
        fn bkcl_group_end() -> i32;
    }
}

/// What g++ makes of the names in the newer library's header.
const MANGLED: [&str; 10] = [
    "_Z18bkcl_get_unique_idP12BKCLUniqueId",
    "_Z14bkcl_init_rankPP11BKCLContextiiP12BKCLUniqueId",
    "_Z18bkcl_comm_init_allPP11BKCLContextiPKi",
    "_Z20bkcl_destroy_contextP11BKCLContext",
    "_Z15bkcl_all_reduceP11BKCLContextPKvPvm12BKCLDataType6BKCLOpS3_",
    "_Z14bkcl_broadcastP11BKCLContextPKvPvm12BKCLDataTypeiS3_",
    "_Z17bkcl_all_to_all_vP11BKCLContextPKvPKmS4_12BKCLDataTypePvS4_S4_S5_S6_",
    "_Z9bkcl_sendP11BKCLContextPKvmi12BKCLDataTypePv",
    "_Z16bkcl_group_startv",
    "_Z14bkcl_group_endv",
];

/// BKCL, by plain names or by mangled ones, and never by both.
pub(crate) fn bkcl(path: &Path, is_mangled: bool) -> Bkcl {
    let library = open(path);
    let find = |name: &str| -> Option<*const c_void> {
        let part = format!("{}{name}", name.len());
        let mangled = MANGLED.iter().find(|mangled| mangled.contains(&part)).expect("listed");
        let (plain, mangled) = (library.symbol(name), library.symbol(mangled));
        assert_eq!((plain.is_some(), mangled.is_some()), (!is_mangled, is_mangled), "{name}");
        plain.or(mangled)
    };
    // SAFETY: the prototypes are those of the headers.
    unsafe { Bkcl::resolve_by(find) }.expect("all functions")
}
