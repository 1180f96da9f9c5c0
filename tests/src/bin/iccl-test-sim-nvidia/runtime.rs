//! What is tried with runtime and driver.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(crate) use iccl_tests::{c_call as c, c_succeeds as ok};

use crate::symbols::{IpcHandle, Word};
use crate::{Sdk, from_hex, hear, say, to_hex};

const HOST_TO_DEVICE: i32 = 1;
const DEVICE_TO_HOST: i32 = 2;
const DEVICE_TO_DEVICE: i32 = 3;
const NOT_READY: i32 = 600;
/// Long enough that whatever looks at once looks before the end.
const LATE: &str = "300000";

impl Sdk {
    pub(crate) fn device_memory(&self, bytes: usize) -> Word {
        let mut address = 0;
        ok!(self.cuda, cudaMalloc(&raw mut address, bytes));
        address
    }

    pub(crate) fn pinned(&self, bytes: usize) -> &'static mut [u8] {
        let mut address = 0_u64;
        ok!(self.cuda, cudaMallocHost(&raw mut address, bytes));
        // SAFETY: so many bytes of host memory, which is never freed.
        unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) }
    }

    pub(crate) fn stream(&self, flags: u32) -> Word {
        let mut stream = 0;
        ok!(self.cuda, cudaStreamCreateWithFlags(&raw mut stream, flags));
        stream
    }

    fn event(&self, flags: u32) -> Word {
        let mut event = 0;
        ok!(self.cuda, cudaEventCreateWithFlags(&raw mut event, flags));
        event
    }

    pub(crate) fn write(&self, to: Word, bytes: &[u8]) {
        let from = bytes.as_ptr() as u64;
        ok!(self.cuda, cudaMemcpy(to, from, bytes.len(), HOST_TO_DEVICE));
    }

    pub(crate) fn read(&self, from: Word, bytes: usize) -> Vec<u8> {
        let mut read = vec![0_u8; bytes];
        ok!(self.cuda, cudaMemcpy(read.as_mut_ptr() as u64, from, bytes, DEVICE_TO_HOST));
        read
    }
}

pub(crate) fn devices(sdk: &Sdk) {
    let mut attribute = 0;
    let mut ask = || c!(sdk.driver, cuDeviceGetAttribute(&raw mut attribute, 16, 0));
    if ask() == 3 {
        // Nothing works before cuInit.
        ok!(sdk.driver, cuInit(0));
        assert_eq!(ask(), 0);
    }
    let (mut count, mut version) = (-7, 0);
    ok!(sdk.cuda, cudaRuntimeGetVersion(&raw mut version));
    say(&format!("runtime {version}"));
    let mut driver = -1;
    ok!(sdk.cuda, cudaDriverGetVersion(&raw mut driver));
    let status = c!(sdk.cuda, cudaGetDeviceCount(&raw mut count));
    // SAFETY: a text that the library keeps.
    let text = unsafe { CStr::from_ptr((sdk.cuda.cudaGetErrorString)(status)) };
    say(&format!("driver {driver} status {status} count {count} {}", text.to_string_lossy()));
    for index in 0..count.max(0) {
        let mut name = [0_i8; 16];
        ok!(sdk.cuda, cudaDeviceGetPCIBusId(name.as_mut_ptr().cast(), 16, index));
        assert_eq!(c!(sdk.cuda, cudaDeviceGetPCIBusId(name.as_mut_ptr().cast(), 12, index)), 1);
        let mut found = -1;
        ok!(sdk.cuda, cudaDeviceGetByPCIBusId(&raw mut found, name.as_ptr().cast()));
        assert_eq!(found, index);
        // SAFETY: ends with a zero byte.
        say(&format!("card {}", unsafe { CStr::from_ptr(name.as_ptr().cast()) }.to_string_lossy()));
    }
    if count > 1 {
        // The current card is the thread's.
        ok!(sdk.cuda, cudaSetDevice(1));
        let cuda = sdk.cuda;
        let other = std::thread::spawn(move || {
            let mut current = -1;
            ok!(cuda, cudaGetDevice(&raw mut current));
            current
        });
        assert_eq!(other.join().expect("a number"), 0);
        let mut current = -1;
        ok!(sdk.cuda, cudaGetDevice(&raw mut current));
        assert_eq!(current, 1);
        assert_eq!(c!(sdk.cuda, cudaSetDevice(count)), 101);
        ok!(sdk.cuda, cudaDeviceEnablePeerAccess(0, 0));
        assert_eq!(c!(sdk.cuda, cudaDeviceEnablePeerAccess(0, 0)), 704);
    }
}

pub(crate) fn dereference(sdk: &Sdk) {
    let address = sdk.device_memory(64);
    sdk.write(address, &[7; 64]);
    assert_eq!(sdk.read(address, 64), [7; 64]);
    say("about to read");
    // SAFETY: none: no access to the address is allowed, and this process ends here.
    let byte = unsafe { (address as *const u8).read_volatile() };
    say(&format!("read {byte}"));
}

pub(crate) fn copies(sdk: &Sdk) {
    const BYTES: usize = 1 << 16;
    let (stream, memory) = (sdk.stream(1), sdk.device_memory(BYTES));
    let from = sdk.pinned(BYTES);
    let to = sdk.pinned(BYTES);
    sdk.driver.set("delay_us", LATE);
    // Pinned memory is read and written when the copy is done, not when it is asked for.
    from.fill(1);
    let (source, target) = (from.as_ptr() as u64, to.as_mut_ptr() as u64);
    ok!(sdk.cuda, cudaMemcpyAsync(memory, source, BYTES, HOST_TO_DEVICE, stream));
    from.fill(2);
    ok!(sdk.cuda, cudaMemcpyAsync(target, memory, BYTES, DEVICE_TO_HOST, stream));
    assert_eq!(c!(sdk.cuda, cudaStreamQuery(stream)), NOT_READY);
    assert!(to.iter().all(|&byte| byte == 0), "it lands late");
    ok!(sdk.cuda, cudaStreamSynchronize(stream));
    ok!(sdk.cuda, cudaStreamQuery(stream));
    assert!(to.iter().all(|&byte| byte == 2), "the source was read late");
    // Pageable memory is read before the call returns, and written before it returns.
    let mut pageable = vec![3_u8; BYTES];
    let address = pageable.as_mut_ptr() as u64;
    ok!(sdk.cuda, cudaMemcpyAsync(memory, address, BYTES, HOST_TO_DEVICE, stream));
    assert_eq!(c!(sdk.cuda, cudaStreamQuery(stream)), NOT_READY);
    pageable.fill(4);
    ok!(sdk.cuda, cudaMemcpyAsync(address, memory, BYTES, DEVICE_TO_HOST, stream));
    assert!(pageable.iter().all(|&byte| byte == 3));
    // Registered memory is pinned.
    sdk.driver.set("delay_us", "0");
    pageable.fill(5);
    ok!(sdk.cuda, cudaHostRegister(address, BYTES, 0));
    assert_eq!(c!(sdk.cuda, cudaHostRegister(address, BYTES, 0)), 712);
    sdk.driver.set("delay_us", LATE);
    ok!(sdk.cuda, cudaMemcpyAsync(address, memory, BYTES, DEVICE_TO_HOST, stream));
    assert!(pageable.iter().all(|&byte| byte == 5), "it lands late");
    ok!(sdk.cuda, cudaStreamSynchronize(stream));
    assert!(pageable.iter().all(|&byte| byte == 3));
    ok!(sdk.cuda, cudaHostUnregister(address));
    assert_eq!(c!(sdk.cuda, cudaHostUnregister(address)), 713);
    sdk.driver.set("delay_us", "0");
    // What runs over an allocation's end is refused, and so is a direction that is none.
    let copy = |bytes, kind| c!(sdk.cuda, cudaMemcpy(memory, address, bytes, kind));
    assert_eq!(copy(BYTES + 1, HOST_TO_DEVICE), 1);
    assert_eq!(copy(BYTES, DEVICE_TO_DEVICE), 1);
    assert_eq!(copy(BYTES, 5), 21);
    // Fills.
    ok!(sdk.cuda, cudaMemsetAsync(memory, 0x1ff, BYTES - 1, stream));
    ok!(sdk.cuda, cudaStreamSynchronize(stream));
    let read = sdk.read(memory, BYTES);
    assert_eq!((read[BYTES - 2], read[BYTES - 1]), (0xff, 3));
    // A copy from a card's memory to itself waits for nobody; memory that is freed meanwhile stays.
    let other = sdk.device_memory(BYTES);
    ok!(sdk.cuda, cudaMemcpyAsync(other, memory, BYTES, DEVICE_TO_DEVICE, stream));
    ok!(sdk.cuda, cudaFree(memory));
    assert_eq!(c!(sdk.cuda, cudaFree(memory)), 1);
    assert_eq!(sdk.read(other, BYTES), read);
    assert_eq!(c!(sdk.cuda, cudaMemcpy(other, memory, BYTES, 4)), 1);
    // The card's memory is limited (the test sets 1 MiB).
    let (mut free, mut total, mut address) = (0, 0, 99);
    ok!(sdk.cuda, cudaMemGetInfo(&raw mut free, &raw mut total));
    assert_eq!((free, total), ((1 << 20) - BYTES, 1 << 20));
    assert_eq!(c!(sdk.cuda, cudaMalloc(&raw mut address, 1 << 20)), 2);
    assert_eq!(address, 99);
    ok!(sdk.cuda, cudaFreeHost(from.as_ptr() as u64));
    assert_eq!(c!(sdk.cuda, cudaFreeHost(other)), 1);
}

pub(crate) fn streams(sdk: &Sdk) {
    const BYTES: usize = 4096;
    let (first, second) = (sdk.stream(1), sdk.stream(1));
    let (memory, result) = (sdk.device_memory(BYTES), sdk.pinned(BYTES));
    let (begin, end, never) = (sdk.event(0), sdk.event(0), sdk.event(2));
    sdk.driver.set("delay_us", "0");
    ok!(sdk.cuda, cudaMemsetAsync(memory, 1, BYTES, first));
    ok!(sdk.cuda, cudaStreamSynchronize(first));
    sdk.driver.set("delay_us", LATE);
    // Without an event, a stream does not wait for another.
    ok!(sdk.cuda, cudaEventRecord(begin, first));
    ok!(sdk.cuda, cudaMemsetAsync(memory, 2, BYTES, first));
    ok!(sdk.cuda, cudaEventRecord(end, first));
    assert_eq!(c!(sdk.cuda, cudaEventQuery(end)), NOT_READY);
    let mut milliseconds = 0.0;
    assert_eq!(c!(sdk.cuda, cudaEventElapsedTime(&raw mut milliseconds, begin, end)), NOT_READY);
    sdk.driver.set("delay_us", "0");
    let target = result.as_mut_ptr() as u64;
    ok!(sdk.cuda, cudaMemcpyAsync(target, memory, BYTES, DEVICE_TO_HOST, second));
    ok!(sdk.cuda, cudaStreamSynchronize(second));
    assert_eq!(result[7], 1);
    // With one it does.
    ok!(sdk.cuda, cudaStreamWaitEvent(second, end, 0));
    ok!(sdk.cuda, cudaMemcpyAsync(target, memory, BYTES, DEVICE_TO_HOST, second));
    ok!(sdk.cuda, cudaStreamSynchronize(second));
    assert_eq!(result[7], 2);
    ok!(sdk.cuda, cudaEventSynchronize(end));
    ok!(sdk.cuda, cudaEventElapsedTime(&raw mut milliseconds, begin, end));
    assert!((300.0..60_000.0).contains(&milliseconds), "{milliseconds}");
    ok!(sdk.cuda, cudaEventElapsedTime(&raw mut milliseconds, end, begin));
    assert!(milliseconds <= -300.0, "{milliseconds}");
    // An event that was never recorded is done, and has no time.
    ok!(sdk.cuda, cudaEventQuery(never));
    ok!(sdk.cuda, cudaStreamWaitEvent(second, never, 0));
    assert_eq!(c!(sdk.cuda, cudaEventElapsedTime(&raw mut milliseconds, never, end)), 400);
    // Events are of their card.
    ok!(sdk.cuda, cudaSetDevice(1));
    let elsewhere = sdk.stream(1);
    assert_eq!(c!(sdk.cuda, cudaEventRecord(begin, elsewhere)), 400);
    ok!(sdk.cuda, cudaStreamWaitEvent(elsewhere, end, 0));
    ok!(sdk.cuda, cudaSetDevice(0));
    // What is in a stream is done though the stream is gone; its handle means nothing any more.
    sdk.driver.set("delay_us", LATE);
    ok!(sdk.cuda, cudaMemsetAsync(memory, 3, BYTES, first));
    ok!(sdk.cuda, cudaEventRecord(end, first));
    ok!(sdk.cuda, cudaStreamDestroy(first));
    assert_eq!(c!(sdk.cuda, cudaStreamQuery(first)), 400);
    ok!(sdk.cuda, cudaEventSynchronize(end));
    assert_eq!(sdk.read(memory, 1), [3]);
    ok!(sdk.cuda, cudaEventDestroy(end));
    assert_eq!(c!(sdk.cuda, cudaEventQuery(end)), 400);
    // An event for other processes has no time.
    let mut event = 0;
    assert_eq!(c!(sdk.cuda, cudaEventCreateWithFlags(&raw mut event, 4)), 1);
}

pub(crate) fn default_stream(sdk: &Sdk) {
    let (blocking, free) = (sdk.stream(0), sdk.stream(1));
    let (memory, result) = (sdk.device_memory(4), sdk.pinned(4));
    let target = result.as_mut_ptr() as u64;
    sdk.driver.set("delay_us", LATE);
    // The default stream waits for blocking streams, and they for it; the others do not.
    ok!(sdk.cuda, cudaMemsetAsync(memory, 1, 4, blocking));
    ok!(sdk.cuda, cudaMemcpyAsync(target, memory, 4, DEVICE_TO_HOST, 0));
    let after = sdk.event(2);
    ok!(sdk.cuda, cudaEventRecord(after, blocking));
    let beside = sdk.event(2);
    ok!(sdk.cuda, cudaEventRecord(beside, free));
    ok!(sdk.cuda, cudaEventSynchronize(beside));
    assert_eq!(c!(sdk.cuda, cudaStreamQuery(0)), NOT_READY);
    assert_eq!(c!(sdk.cuda, cudaEventQuery(after)), NOT_READY);
    ok!(sdk.cuda, cudaEventSynchronize(after));
    assert_eq!(result, [1; 4]);
    ok!(sdk.cuda, cudaStreamQuery(0));
    // A thread's own default stream is a blocking one.
    ok!(sdk.cuda, cudaMemsetAsync(memory, 2, 4, 2));
    assert_eq!(c!(sdk.cuda, cudaStreamQuery(2)), NOT_READY);
    ok!(sdk.cuda, cudaStreamSynchronize(0));
    ok!(sdk.cuda, cudaStreamQuery(2));
    ok!(sdk.cuda, cudaDeviceSynchronize());
}

/// What a host function leaves behind.
#[derive(Default)]
struct Seen {
    calls: AtomicU32,
    status: AtomicI32,
    may_end: AtomicBool,
}

struct Call<'a> {
    sdk: &'a Sdk,
    seen: &'a Seen,
}

unsafe extern "C" fn count(user: *mut c_void) {
    // SAFETY: the test passes a `Call` that outlives the stream's work.
    let call = unsafe { &*user.cast::<Call<'_>>() };
    call.seen.status.store(c!(call.sdk.cuda, cudaStreamQuery(0)), Ordering::SeqCst);
    call.seen.calls.fetch_add(1, Ordering::SeqCst);
}

unsafe extern "C" fn block(user: *mut c_void) {
    // SAFETY: as above.
    let call = unsafe { &*user.cast::<Call<'_>>() };
    while !call.seen.may_end.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn host_functions(sdk: &Sdk) {
    let (first, second) = (sdk.stream(1), sdk.stream(1));
    let (seen, other) = (Seen::default(), Seen::default());
    let (one, two) = (Call { sdk, seen: &seen }, Call { sdk, seen: &other });
    let user = |call: &Call<'_>| std::ptr::from_ref(call).cast_mut().cast::<c_void>();
    ok!(sdk.cuda, cudaLaunchHostFunc(first, count, user(&one)));
    ok!(sdk.cuda, cudaStreamSynchronize(first));
    assert_eq!(seen.calls.load(Ordering::SeqCst), 1);
    assert_eq!(seen.status.load(Ordering::SeqCst), 800, "it must not call CUDA");
    // One that does not return holds its own stream, not another.
    ok!(sdk.cuda, cudaLaunchHostFunc(first, block, user(&one)));
    ok!(sdk.cuda, cudaLaunchHostFunc(first, count, user(&one)));
    ok!(sdk.cuda, cudaLaunchHostFunc(second, count, user(&two)));
    ok!(sdk.cuda, cudaStreamSynchronize(second));
    assert_eq!(c!(sdk.cuda, cudaStreamQuery(first)), NOT_READY);
    assert_eq!(seen.calls.load(Ordering::SeqCst), 1);
    seen.may_end.store(true, Ordering::SeqCst);
    ok!(sdk.cuda, cudaStreamSynchronize(first));
    assert_eq!(seen.calls.load(Ordering::SeqCst), 2);
    // If all streams share a thread for them, it does.
    sdk.driver.set("shared_host_thread", "1");
    seen.may_end.store(false, Ordering::SeqCst);
    ok!(sdk.cuda, cudaLaunchHostFunc(first, block, user(&one)));
    std::thread::sleep(Duration::from_millis(100));
    ok!(sdk.cuda, cudaLaunchHostFunc(second, count, user(&two)));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(c!(sdk.cuda, cudaStreamQuery(second)), NOT_READY);
    seen.may_end.store(true, Ordering::SeqCst);
    ok!(sdk.cuda, cudaStreamSynchronize(second));
    ok!(sdk.cuda, cudaStreamSynchronize(first));
}

pub(crate) fn values(sdk: &Sdk) {
    let stream = sdk.stream(1);
    let (memory, word) = (sdk.device_memory(4096), sdk.pinned(16));
    let at = word.as_mut_ptr() as u64;
    // SAFETY: 8 aligned bytes, used as one word from here on.
    let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(at as *mut u64) };
    assert_eq!(c!(sdk.driver, cuStreamWaitValue64_v2(stream, at + 4, 5, 0)), 1, "not aligned");
    ok!(sdk.driver, cuStreamWaitValue64_v2(stream, at, 5, 0));
    ok!(sdk.cuda, cudaMemsetAsync(memory, 9, 4096, stream));
    word.store(4, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(c!(sdk.cuda, cudaStreamQuery(stream)), NOT_READY);
    word.store(6, Ordering::SeqCst);
    ok!(sdk.cuda, cudaStreamSynchronize(stream));
    assert_eq!(sdk.read(memory, 1), [9]);
    // Writes, to memory of the card too; the comparison is by difference.
    ok!(sdk.driver, cuStreamWriteValue64_v2(stream, memory, u64::MAX, 0));
    ok!(sdk.driver, cuStreamWriteValue64_v2(stream, at, 1, 0));
    ok!(sdk.driver, cuStreamWaitValue64_v2(stream, at, u64::MAX, 0));
    ok!(sdk.cuda, cudaStreamSynchronize(stream));
    assert_eq!(word.load(Ordering::SeqCst), 1);
    assert_eq!(sdk.read(memory, 9), [255, 255, 255, 255, 255, 255, 255, 255, 9]);
    ok!(sdk.driver, cuStreamWaitValue32_v2(stream, memory, 1 << 31, 2));
    ok!(sdk.cuda, cudaStreamSynchronize(stream));
    let local = 0_u64;
    let pageable = &raw const local as u64;
    assert_eq!(c!(sdk.driver, cuStreamWaitValue64_v2(stream, pageable, 0, 0)), 1);
}

pub(crate) fn pointers(sdk: &Sdk) {
    let memory = sdk.device_memory(3 * 4096);
    let pinned = sdk.pinned(8).as_ptr() as u64;
    let pageable = std::ptr::from_ref(sdk) as u64;
    for (address, kind) in [(memory + 7, 2), (pinned, 1), (pageable, 0)] {
        let mut attributes = [0xee_u8; 128];
        ok!(sdk.cuda, cudaPointerGetAttributes(attributes.as_mut_ptr().cast(), address));
        assert_eq!(attributes[..4], i32::to_ne_bytes(kind));
        let written = attributes.iter().rposition(|&byte| byte != 0xee).expect("written") + 1;
        assert!((17..=88).contains(&written));
        let is_13 = std::env::var("CUDART").is_ok_and(|version| version == "13");
        assert_eq!(written, if is_13 { 88 } else { 24 });
    }
    let (mut kind, mut start, mut bytes) = (0_u32, 0_u64, 0_usize);
    let ask = |out: *mut c_void, attribute, pointer| {
        c!(sdk.driver, cuPointerGetAttribute(out, attribute, pointer))
    };
    assert_eq!(ask((&raw mut kind).cast(), 2, memory + 5), 0);
    assert_eq!(ask((&raw mut start).cast(), 11, memory + 5), 0);
    assert_eq!(ask((&raw mut bytes).cast(), 12, memory + 5), 0);
    assert_eq!((kind, start, bytes), (2, memory, 3 * 4096));
    assert_eq!(ask((&raw mut kind).cast(), 2, pageable), 1);
    // No dma-buf and no host address, unless it is set so.
    let (mut file, mut has, mut alias) = (-1, 9, 1_u64);
    let mut export = |address, bytes| {
        let out = (&raw mut file).cast();
        c!(sdk.driver, cuMemGetHandleForAddressRange(out, address, bytes, 1, 0))
    };
    assert_eq!(export(memory, 4096), 801);
    assert_eq!(c!(sdk.driver, iccl_sim_host_alias(memory, 9, &raw mut alias)), 801);
    ok!(sdk.driver, cuDeviceGetAttribute(&raw mut has, 124, 0));
    assert_eq!(has, 0);
    sdk.driver.set("dma_buf", "1");
    sdk.driver.set("host_alias", "1");
    assert_eq!(export(memory + 1, 4096), 1);
    assert_eq!(export(memory, 4 * 4096), 1);
    assert_eq!(export(memory, 4096), 0);
    ok!(sdk.driver, cuDeviceGetAttribute(&raw mut has, 124, 0));
    assert_eq!(has, 1);
    sdk.write(memory, b"through the file");
    let mut read = [0_u8; 16];
    // SAFETY: a descriptor that this process owns, and a buffer of that length.
    let got = unsafe { libc::pread(file, read.as_mut_ptr().cast(), 16, 0) };
    assert_eq!((got, &read), (16, b"through the file"));
    ok!(sdk.driver, iccl_sim_host_alias(memory, 16, &raw mut alias));
    // SAFETY: the simulator's view of 16 bytes.
    assert_eq!(unsafe { std::slice::from_raw_parts(alias as *const u8, 16) }, b"through the file");
}

pub(crate) fn faults(sdk: &Sdk) {
    // The test sets `cudaMalloc@2=46` and `cudaMemGetInfo@1=nothing` by the environment.
    let mut address = 0;
    ok!(sdk.cuda, cudaMalloc(&raw mut address, 8));
    assert_eq!(c!(sdk.cuda, cudaMalloc(&raw mut address, 8)), 46);
    assert_eq!(c!(sdk.cuda, cudaGetLastError()), 46);
    ok!(sdk.cuda, cudaGetLastError());
    ok!(sdk.cuda, cudaMalloc(&raw mut address, 8));
    let (mut free, mut total) = (7, 7);
    ok!(sdk.cuda, cudaMemGetInfo(&raw mut free, &raw mut total));
    assert_eq!((free, total), (7, 7));
    // A call that hangs.
    sdk.driver.set("faults", "cudaFree@1=hang");
    let (cuda, began) = (sdk.cuda, Instant::now());
    let hanging = std::thread::spawn(move || c!(cuda, cudaFree(address)));
    while began.elapsed() < Duration::from_millis(300) {
        assert!(!hanging.is_finished());
        std::thread::sleep(Duration::from_millis(10));
    }
    // An error that stays: every call returns it, and nothing runs any more.
    let (stream, seen) = (sdk.stream(1), Seen::default());
    let call = Call { sdk, seen: &seen };
    sdk.driver.set("faults", "cudaStreamQuery@2=sticky:719");
    ok!(sdk.cuda, cudaStreamQuery(stream));
    sdk.driver.set("delay_us", LATE);
    let user = std::ptr::from_ref(&call).cast_mut().cast();
    ok!(sdk.cuda, cudaLaunchHostFunc(stream, count, user));
    assert_eq!(c!(sdk.cuda, cudaStreamQuery(stream)), 719);
    assert_eq!(c!(sdk.cuda, cudaStreamSynchronize(stream)), 719);
    assert_eq!(c!(sdk.cuda, cudaMalloc(&raw mut address, 8)), 719);
    assert_eq!(c!(sdk.cuda, cudaGetLastError()), 719);
    assert_eq!(c!(sdk.cuda, cudaGetLastError()), 719);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(seen.calls.load(Ordering::SeqCst), 0);
}

const SHARED_BYTES: usize = 3 << 20;

pub(crate) fn export(sdk: &Sdk) {
    let memory = sdk.device_memory(SHARED_BYTES);
    let stream = sdk.stream(1);
    let event = sdk.event(2 | 4);
    sdk.write(memory + 100, b"from the exporter");
    let (mut handle, mut event_handle) = (IpcHandle([0; 64]), IpcHandle([0; 64]));
    ok!(sdk.cuda, cudaIpcGetMemHandle(&raw mut handle, memory + 100));
    ok!(sdk.cuda, cudaIpcGetEventHandle(&raw mut event_handle, event));
    let mut opened = 0;
    assert_eq!(c!(sdk.cuda, cudaIpcOpenMemHandle(&raw mut opened, handle, 1)), 201);
    // The event is recorded behind a write that lands late.
    sdk.driver.set("delay_us", LATE);
    ok!(sdk.cuda, cudaMemsetAsync(memory, 8, 100, stream));
    ok!(sdk.cuda, cudaEventRecord(event, stream));
    say(&format!("handles {} {}", to_hex(&handle.0), to_hex(&event_handle.0)));
    assert_eq!(hear(), "written");
    assert_eq!(sdk.read(memory + 200, 17), b"from the importer");
}

pub(crate) fn import(sdk: &Sdk) {
    let line = hear();
    let (memory, event) = line.split_once(' ').expect("two handles");
    let (handle, event) = (IpcHandle(from_hex(memory)), IpcHandle(from_hex(event)));
    let (mut opened, mut again, mut shared) = (0, 0, 0);
    if std::env::var_os("ICCL_SIM_HOST").is_some() {
        assert_eq!(c!(sdk.cuda, cudaIpcOpenMemHandle(&raw mut opened, handle, 1)), 1);
        return;
    }
    ok!(sdk.cuda, cudaIpcOpenMemHandle(&raw mut opened, handle, 1));
    ok!(sdk.cuda, cudaIpcOpenMemHandle(&raw mut again, handle, 1));
    assert_eq!(opened, again);
    let stream = sdk.stream(1);
    ok!(sdk.cuda, cudaIpcOpenEventHandle(&raw mut shared, event));
    ok!(sdk.cuda, cudaStreamWaitEvent(stream, shared, 0));
    let seen = sdk.pinned(117);
    let target = seen.as_mut_ptr() as u64;
    ok!(sdk.cuda, cudaMemcpyAsync(target, opened, 117, DEVICE_TO_HOST, stream));
    ok!(sdk.cuda, cudaStreamSynchronize(stream));
    assert_eq!(seen[..100], [8; 100]);
    assert_eq!(&seen[100..], b"from the exporter");
    sdk.write(opened + 200, b"from the importer");
    assert_eq!(c!(sdk.cuda, cudaFree(opened)), 1, "it is not this process's to free");
    ok!(sdk.cuda, cudaIpcCloseMemHandle(opened));
    ok!(sdk.cuda, cudaIpcCloseMemHandle(opened));
    assert_eq!(c!(sdk.cuda, cudaIpcCloseMemHandle(opened)), 1);
}
