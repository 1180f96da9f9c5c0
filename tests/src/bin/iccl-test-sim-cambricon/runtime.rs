//! What is tried with CNRT and the driver.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use iccl_tests::maker::program::{from_hex, hear, say, to_hex};
use iccl_tests::{c_call as c, c_succeeds as ok};

use crate::Sdk;
use crate::symbols::{NotifierHandle, Word};

const HOST_TO_DEVICE: i32 = 0;
const DEVICE_TO_DEVICE: i32 = 1;
const DEVICE_TO_HOST: i32 = 2;
const HOST_TO_HOST: i32 = 3;
const NO_DIRECTION: i32 = 5;
const ARGS_INVALID: i32 = 100_006;
const INVALID_HANDLE: i32 = 100_014;
const WRONG_DIRECTION: i32 = 632_013;
/// Long enough that whatever looks at once looks before the end.
const LATE: &str = "300000";

impl Sdk {
    pub(crate) fn device_memory(&self, bytes: usize) -> Word {
        let mut address = 0;
        ok!(self.runtime, cnrtMalloc(&raw mut address, bytes));
        address
    }

    fn pinned(&self, bytes: usize) -> &'static mut [u8] {
        let mut address = 0_u64;
        ok!(self.runtime, cnrtHostMalloc(&raw mut address, bytes));
        // SAFETY: so many bytes of host memory, which is never freed.
        unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) }
    }

    pub(crate) fn queue(&self) -> Word {
        let mut queue = 0;
        ok!(self.runtime, cnrtQueueCreate(&raw mut queue));
        queue
    }

    pub(crate) fn write(&self, to: Word, bytes: &[u8]) {
        let from = bytes.as_ptr() as u64;
        ok!(self.runtime, cnrtMemcpy(to, from, bytes.len(), HOST_TO_DEVICE));
    }

    pub(crate) fn read(&self, from: Word, bytes: usize) -> Vec<u8> {
        let mut read = vec![0_u8; bytes];
        let to = read.as_mut_ptr() as u64;
        ok!(self.runtime, cnrtMemcpy(to, from, bytes, DEVICE_TO_HOST));
        read
    }
}

pub(crate) fn devices(sdk: &Sdk) {
    // The driver does nothing before cnInit.
    let mut handle = 7;
    let early = c!(sdk.driver, cnDeviceGet(&raw mut handle, 0));
    assert_eq!(handle, 7);
    let mut count = 77_u32;
    let status = c!(sdk.runtime, cnrtGetDeviceCount(&raw mut count));
    // SAFETY: a text that the library keeps.
    let name = unsafe { CStr::from_ptr((sdk.runtime.cnrtGetErrorName)(status)) };
    say(&format!("status {status} count {count} {}", name.to_string_lossy()));
    assert_eq!(early, if status == 0 { 100_002 } else { status });
    if status != 0 {
        assert_eq!(c!(sdk.driver, cnInit(0)), status);
        return;
    }
    ok!(sdk.driver, cnInit(0));
    for index in 0..count as i32 {
        let mut text = [0_i8; 16];
        let place = text.as_mut_ptr();
        assert_eq!(c!(sdk.runtime, cnrtDeviceGetPCIBusId(place.cast(), 12, index)), ARGS_INVALID);
        ok!(sdk.runtime, cnrtDeviceGetPCIBusId(place.cast(), 13, index));
        let mut found = -1;
        ok!(sdk.runtime, cnrtDeviceGetByPCIBusId(&raw mut found, place.cast()));
        assert_eq!(found, index);
        // SAFETY: ends with a zero byte.
        say(&format!("card {}", unsafe { CStr::from_ptr(place.cast()) }.to_string_lossy()));
        // A device of the driver is no number of a card.
        ok!(sdk.driver, cnDeviceGet(&raw mut handle, index));
        let mut name = [0_i8; 64];
        ok!(sdk.driver, cnDeviceGetName(name.as_mut_ptr().cast(), 64, handle));
        let wrong = c!(sdk.driver, cnDeviceGetName(name.as_mut_ptr().cast(), 64, index as u64));
        assert_eq!(wrong, 100_005);
    }
    let mut megabytes = 0;
    ok!(sdk.runtime, cnrtDeviceGetAttribute(&raw mut megabytes, 0x405, 0));
    assert_eq!(megabytes, 16 << 10);
    assert_eq!(c!(sdk.runtime, cnrtDeviceGetAttribute(&raw mut megabytes, 0x7777, 0)), 632_009);
    // The current card is the thread's.
    ok!(sdk.runtime, cnrtSetDevice(1));
    let runtime = sdk.runtime;
    let other = std::thread::spawn(move || {
        let mut current = -1;
        ok!(runtime, cnrtGetDevice(&raw mut current));
        current
    });
    assert_eq!(other.join().expect("a number"), 0);
    let mut current = -1;
    ok!(sdk.runtime, cnrtGetDevice(&raw mut current));
    assert_eq!(current, 1);
    assert_eq!(c!(sdk.runtime, cnrtSetDevice(count as i32)), 100_005);
    let mut reach = 9_u32;
    ok!(sdk.runtime, cnrtGetPeerAccessibility(&raw mut reach, 0, 1));
    assert_eq!(reach, 1);
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
    let (queue, memory) = (sdk.queue(), sdk.device_memory(BYTES));
    let (from, to) = (sdk.pinned(BYTES), sdk.pinned(BYTES));
    sdk.driver.set("delay_us", LATE);
    // Pinned memory is read and written when the copy is done, not when it is asked for.
    from.fill(1);
    let (source, target) = (from.as_ptr() as u64, to.as_mut_ptr() as u64);
    ok!(sdk.runtime, cnrtMemcpyAsync_V3(memory, source, BYTES, queue, HOST_TO_DEVICE));
    from.fill(2);
    ok!(sdk.runtime, cnrtMemcpyAsync_V2(target, memory, BYTES, queue, NO_DIRECTION));
    assert_eq!(c!(sdk.runtime, cnrtQueueQuery(queue)), 1);
    assert_eq!(
        [c!(sdk.runtime, cnrtPeekAtLastError()), c!(sdk.runtime, cnrtGetLastError())],
        [1; 2]
    );
    assert_eq!(c!(sdk.runtime, cnrtGetLastError()), 0);
    sdk.driver.set("pending", "632014");
    assert_eq!(c!(sdk.runtime, cnrtQueueQuery(queue)), 632_014);
    assert!(to.iter().all(|&byte| byte == 0), "it lands late");
    ok!(sdk.runtime, cnrtQueueSync(queue));
    ok!(sdk.runtime, cnrtQueueQuery(queue));
    assert!(to.iter().all(|&byte| byte == 2), "the source was read late");
    sdk.driver.set("delay_us", "0");
    // Each direction has its number, and others that contradict the pointers are refused.
    let other = sdk.device_memory(BYTES);
    let ways = [
        (other, memory, DEVICE_TO_DEVICE),
        (target, other, DEVICE_TO_HOST),
        (target, source, HOST_TO_HOST),
        (memory, source, HOST_TO_DEVICE),
    ];
    for (to, from, right) in ways {
        for direction in HOST_TO_DEVICE..=HOST_TO_HOST {
            let expected = if direction == right { 0 } else { WRONG_DIRECTION };
            let copied = c!(sdk.runtime, cnrtMemcpyAsync(to, from, 64, queue, direction));
            assert_eq!(copied, expected, "{direction} for {right}");
        }
    }
    assert_eq!(c!(sdk.runtime, cnrtMemcpy(memory, source, 64, 6)), WRONG_DIRECTION);
    // A direction where the queue belongs is no queue.
    let direction = HOST_TO_DEVICE as u64 + 3;
    let swapped = c!(sdk.runtime, cnrtMemcpyAsync(memory, source, 64, direction, queue as i32));
    assert_eq!(swapped, INVALID_HANDLE);
    // What runs over an allocation's end is refused.
    let over = c!(sdk.runtime, cnrtMemcpy(memory, source, BYTES + 1, HOST_TO_DEVICE));
    assert_eq!(over, ARGS_INVALID);
    // Copies from card to card name both.
    ok!(sdk.runtime, cnrtSetDevice(1));
    let elsewhere = sdk.device_memory(64);
    ok!(sdk.runtime, cnrtMemcpyPeer(elsewhere, 1, memory, 0, 64));
    assert_eq!(c!(sdk.runtime, cnrtMemcpyPeer(elsewhere, 0, memory, 1, 64)), ARGS_INVALID);
    assert_eq!(sdk.read(elsewhere, 64), [2; 64]);
    ok!(sdk.runtime, cnrtSetDevice(0));
    // The card's memory is limited (the test sets 1 MiB), and outputs stay as they are on errors.
    let (mut free, mut total, mut address) = (0, 0, 99);
    ok!(sdk.runtime, cnrtMemGetInfo(&raw mut free, &raw mut total));
    assert_eq!((free, total), ((1 << 20) - 2 * BYTES, 1 << 20));
    assert_eq!(c!(sdk.runtime, cnrtMalloc(&raw mut address, 1 << 20)), 100_100);
    assert_eq!(address, 99);
    ok!(sdk.runtime, cnrtFree(memory));
    assert_eq!(c!(sdk.runtime, cnrtFree(memory)), ARGS_INVALID);
    ok!(sdk.runtime, cnrtFreeHost(source));
    ok!(sdk.runtime, cnrtSyncDevice());
}

pub(crate) fn queues(sdk: &Sdk) {
    let (first, second) = (sdk.queue(), sdk.queue());
    let (memory, result) = (sdk.device_memory(8), sdk.pinned(8));
    let target = result.as_mut_ptr() as u64;
    let [mut begin, mut end, mut bare] = [0; 3];
    ok!(sdk.runtime, cnrtNotifierCreate(&raw mut begin));
    ok!(sdk.runtime, cnrtNotifierCreate(&raw mut end));
    ok!(sdk.runtime, cnrtNotifierCreateWithFlags(&raw mut bare, 4));
    // One for other processes has no time.
    assert_eq!(c!(sdk.runtime, cnrtNotifierCreateWithFlags(&raw mut bare, 8)), ARGS_INVALID);
    sdk.driver.set("delay_us", LATE);
    // The notifier comes before the queue.
    assert_eq!(c!(sdk.runtime, cnrtPlaceNotifier(first, begin)), INVALID_HANDLE);
    ok!(sdk.runtime, cnrtPlaceNotifier(begin, first));
    ok!(sdk.runtime, cnrtMemsetAsync(memory, 5, 8, first));
    ok!(sdk.runtime, cnrtPlaceNotifier(end, first));
    assert_eq!(c!(sdk.runtime, cnrtQueryNotifier(end)), 1);
    sdk.driver.set("delay_us", "0");
    assert_eq!(c!(sdk.runtime, cnrtQueueWaitNotifier(second, end, 0)), INVALID_HANDLE);
    assert_eq!(c!(sdk.runtime, cnrtQueueWaitNotifier(end, second, 1)), ARGS_INVALID);
    ok!(sdk.runtime, cnrtQueueWaitNotifier(end, second, 0));
    ok!(sdk.runtime, cnrtMemcpyAsync(target, memory, 8, second, DEVICE_TO_HOST));
    ok!(sdk.runtime, cnrtQueueSync(second));
    assert_eq!(result, [5; 8]);
    ok!(sdk.runtime, cnrtWaitNotifier(end));
    // The time comes last: milliseconds, and microseconds.
    let (mut milliseconds, mut microseconds) = (0.0, 0.0);
    ok!(sdk.runtime, cnrtNotifierElapsedTime(begin, end, &raw mut milliseconds));
    ok!(sdk.runtime, cnrtNotifierDuration(begin, end, &raw mut microseconds));
    assert!((300.0..60_000.0).contains(&milliseconds), "{milliseconds}");
    assert!((milliseconds * 1000.0 - microseconds).abs() < 1.0, "{microseconds}");
    ok!(sdk.runtime, cnrtPlaceNotifier(bare, first));
    ok!(sdk.runtime, cnrtWaitNotifier(bare));
    let timeless = c!(sdk.runtime, cnrtNotifierElapsedTime(begin, bare, &raw mut milliseconds));
    assert_eq!(timeless, INVALID_HANDLE);
    // A query is about the last place.
    sdk.driver.set("delay_us", LATE);
    ok!(sdk.runtime, cnrtMemsetAsync(memory, 6, 8, first));
    ok!(sdk.runtime, cnrtPlaceNotifier(end, first));
    assert_eq!(c!(sdk.runtime, cnrtQueryNotifier(end)), 1);
    // What is in a queue is done though the queue is gone; its handle means nothing any more.
    ok!(sdk.runtime, cnrtQueueDestroy(first));
    assert_eq!(c!(sdk.runtime, cnrtQueueQuery(first)), INVALID_HANDLE);
    ok!(sdk.runtime, cnrtWaitNotifier(end));
    assert_eq!(sdk.read(memory, 1), [6]);
    ok!(sdk.runtime, cnrtNotifierDestroy(end));
    assert_eq!(c!(sdk.runtime, cnrtQueryNotifier(end)), INVALID_HANDLE);
    // Notifiers are of their card.
    ok!(sdk.runtime, cnrtSetDevice(1));
    let elsewhere = sdk.queue();
    assert_eq!(c!(sdk.runtime, cnrtPlaceNotifier(begin, elsewhere)), INVALID_HANDLE);
}

struct Seen<'a> {
    sdk: &'a Sdk,
    calls: AtomicU32,
    status: AtomicI32,
}

unsafe extern "C" fn count(user: *mut c_void) {
    // SAFETY: the test passes a `Seen` that outlives the queue's work.
    let seen = unsafe { &*user.cast::<Seen<'_>>() };
    seen.status.store(c!(seen.sdk.runtime, cnrtQueueQuery(0)), Ordering::SeqCst);
    seen.calls.fetch_add(1, Ordering::SeqCst);
}

pub(crate) fn host_functions(sdk: &Sdk) {
    let queue = sdk.queue();
    let seen = Seen { sdk, calls: AtomicU32::new(0), status: AtomicI32::new(0) };
    let user = std::ptr::from_ref(&seen).cast_mut().cast();
    sdk.driver.set("delay_us", LATE);
    ok!(sdk.runtime, cnrtInvokeHostFunc(queue, count, user));
    assert_eq!(seen.calls.load(Ordering::SeqCst), 0, "it is late");
    ok!(sdk.runtime, cnrtQueueSync(queue));
    assert_eq!(seen.calls.load(Ordering::SeqCst), 1);
    assert_eq!(seen.status.load(Ordering::SeqCst), 100_051, "it must not call CNRT");
    // Nothing runs on a card in error, which every call tells.
    ok!(sdk.runtime, cnrtInvokeHostFunc(queue, count, user));
    sdk.driver.set("faults", "cnrtQueueQuery@1=sticky:100132");
    assert_eq!(c!(sdk.runtime, cnrtQueueQuery(queue)), 100_132);
    assert_eq!(c!(sdk.runtime, cnrtQueueSync(queue)), 100_132);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(seen.calls.load(Ordering::SeqCst), 1);
}

pub(crate) fn pointers(sdk: &Sdk) {
    let memory = sdk.device_memory(3 * 4096);
    let pinned = sdk.pinned(8).as_ptr() as u64;
    let pageable = std::ptr::from_ref(sdk) as u64;
    for (address, kind) in [(memory + 7, 2), (pinned, 1), (pageable, 0)] {
        let mut attributes = [0xee_u8; 256];
        ok!(sdk.runtime, cnrtPointerGetAttributes(attributes.as_mut_ptr().cast(), address));
        assert_eq!(attributes[..4], i32::to_ne_bytes(kind));
    }
    ok!(sdk.driver, cnInit(0));
    let (mut start, mut bytes) = (0, 0);
    ok!(sdk.driver, cnMemGetAddressRange(&raw mut start, &raw mut bytes, memory + 5));
    assert_eq!((start, bytes), (memory, 3 * 4096));
    let mut kind = 0_i32;
    ok!(sdk.driver, cnGetMemAttribute((&raw mut kind).cast(), 1, memory));
    assert_eq!(kind, 2);
    // No dma-buf and no host address, unless it is set so; and only by the right type.
    let (mut file, mut has, mut device, mut alias) = (-1, 9, 0, 1_u64);
    ok!(sdk.driver, cnDeviceGet(&raw mut device, 0));
    let mut export = |address, bytes, kind| {
        let out = (&raw mut file).cast();
        c!(sdk.driver, cnMemGetHandleForAddressRange(out, address, bytes, kind, 0))
    };
    assert_eq!(export(memory, 4096, 1), 100_050);
    assert_eq!(c!(sdk.runtime, cnrtMmap(memory, &raw mut alias, 16)), 100_050);
    ok!(sdk.driver, cnDeviceGetAttribute(&raw mut has, 0x313, device));
    assert_eq!(has, 0);
    sdk.driver.set("dma_buf", "1");
    sdk.driver.set("host_alias", "1");
    ok!(sdk.driver, cnDeviceGetAttribute(&raw mut has, 0x313, device));
    assert_eq!(has, 1);
    assert_eq!(export(memory, 4096, 0), ARGS_INVALID, "0 is the wrong type");
    assert_eq!(export(memory, 4 * 4096, 1), ARGS_INVALID);
    assert_eq!(export(memory, 4096, 1), 0);
    sdk.write(memory, b"through the file");
    let mut read = [0_u8; 16];
    // SAFETY: a descriptor that this process owns, and a buffer of that length.
    let got = unsafe { libc::pread(file, read.as_mut_ptr().cast(), 16, 0) };
    assert_eq!((got, &read), (16, b"through the file"));
    ok!(sdk.runtime, cnrtMmap(memory, &raw mut alias, 16));
    // SAFETY: the simulator's view of 16 bytes.
    assert_eq!(unsafe { std::slice::from_raw_parts(alias as *const u8, 16) }, b"through the file");
}

/// A copy of this process may not use the libraries.
pub(crate) fn forked(sdk: &Sdk) {
    let mut count = 0;
    ok!(sdk.runtime, cnrtGetDeviceCount(&raw mut count));
    // SAFETY: the child calls one function and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_refused = c!(sdk.runtime, cnrtGetDeviceCount(&raw mut count)) == 100_015;
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child, with room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

const SHARED_BYTES: usize = 3 << 20;

pub(crate) fn export(sdk: &Sdk) {
    let memory = sdk.device_memory(SHARED_BYTES);
    let (queue, mut notifier) = (sdk.queue(), 0);
    ok!(sdk.runtime, cnrtNotifierCreateWithFlags(&raw mut notifier, 4 | 8));
    sdk.write(memory + 100, b"from the exporter");
    // A handle is 8 bytes and names a whole allocation; the driver gives as many as are asked for.
    let (mut handle, mut again) = (0, 0);
    assert_eq!(c!(sdk.runtime, cnrtAcquireMemHandle(&raw mut handle, memory + 4096)), 100_102);
    ok!(sdk.runtime, cnrtAcquireMemHandle(&raw mut handle, memory));
    ok!(sdk.driver, cnInit(0));
    ok!(sdk.driver, cnIpcGetMemHandle(&raw mut again, memory));
    let mut notifier_handle = NotifierHandle([0; 8]);
    ok!(sdk.runtime, cnrtIpcGetNotifierHandle(&raw mut notifier_handle, notifier));
    // The notifier is placed behind a write that lands late.
    sdk.driver.set("delay_us", LATE);
    ok!(sdk.runtime, cnrtMemsetAsync(memory, 8, 100, queue));
    ok!(sdk.runtime, cnrtPlaceNotifier(notifier, queue));
    let bytes: Vec<u8> = notifier_handle.0.iter().flat_map(|word| word.to_ne_bytes()).collect();
    say(&format!("handles {handle} {}", to_hex(&bytes)));
    assert_eq!(hear(), "written");
    assert_eq!(sdk.read(memory + 200, 17), b"from the importer");
}

pub(crate) fn import(sdk: &Sdk) {
    let line = hear();
    let (memory, notifier) = line.split_once(' ').expect("two handles");
    let handle: u64 = memory.parse().expect("a word");
    let bytes: [u8; 64] = from_hex(notifier);
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    let (mut opened, mut shared) = (0, 0);
    if std::env::var_os("ICCL_SIM_HOST").is_some() {
        assert_eq!(c!(sdk.runtime, cnrtMapMemHandle(&raw mut opened, handle, 0)), ARGS_INVALID);
        return;
    }
    ok!(sdk.runtime, cnrtMapMemHandle(&raw mut opened, handle, 0));
    let queue = sdk.queue();
    ok!(sdk.runtime, cnrtIpcOpenNotifierHandle(&raw mut shared, NotifierHandle(words)));
    ok!(sdk.runtime, cnrtQueueWaitNotifier(shared, queue, 0));
    let seen = sdk.pinned(117);
    let target = seen.as_mut_ptr() as u64;
    ok!(sdk.runtime, cnrtMemcpyAsync(target, opened, 117, queue, DEVICE_TO_HOST));
    ok!(sdk.runtime, cnrtQueueSync(queue));
    assert_eq!(seen[..100], [8; 100]);
    assert_eq!(&seen[100..], b"from the exporter");
    sdk.write(opened + 200, b"from the importer");
    assert_eq!(c!(sdk.runtime, cnrtFree(opened)), ARGS_INVALID, "it is not this process's to free");
    ok!(sdk.runtime, cnrtUnMapMemHandle(opened));
    assert_eq!(c!(sdk.runtime, cnrtUnMapMemHandle(opened)), ARGS_INVALID);
}
