//! What is tried with the runtime.

use std::ffi::CStr;
use std::ptr::null;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::symbols::Word;
use crate::{Sdk, answers, c, say};

const OK: i32 = 0;
const UNINITIALIZE: i32 = 100_001;
const REPEAT_INITIALIZE: i32 = 100_002;
const PARAM_INVALID: i32 = 107_000;
const INVALID_DEVICEID: i32 = 107_001;
const CONTEXT_NULL: i32 = 107_002;
const STREAM_CONTEXT: i32 = 107_003;
const ADDR_UNALIGNED: i32 = 107_008;
const STREAM_SUBSCRIBE: i32 = 107_011;
const THREAD_SUBSCRIBE: i32 = 107_012;
const STREAM_NO_CB_REG: i32 = 107_015;
const STREAM_ABORT: i32 = 107_023;
const FEATURE_NOT_SUPPORT: i32 = 207_000;
const MEMORY_ALLOCATION: i32 = 207_001;
const NO_DEVICE: i32 = 207_004;
const REPORT_TIMEOUT: i32 = 507_012;
const STREAM_SYNC_TIMEOUT: i32 = 507_046;

const HOST_TO_HOST: i32 = 0;
const HOST_TO_DEVICE: i32 = 1;
const DEVICE_TO_HOST: i32 = 2;

/// What no call has written.
const UNTOUCHED: Word = 0x0123_4567;

impl Sdk {
    /// Begins, with a card chosen.
    pub(crate) fn on_card(&self, card: i32) {
        answers!(OK, self.acl, aclInit(null()));
        answers!(OK, self.acl, aclrtSetDevice(card));
    }

    pub(crate) fn card_memory(&self, bytes: usize) -> Word {
        let mut pointer = 0;
        answers!(OK, self.acl, aclrtMalloc(&raw mut pointer, bytes, 0));
        pointer
    }

    pub(crate) fn stream(&self) -> Word {
        let mut stream = 0;
        answers!(OK, self.acl, aclrtCreateStream(&raw mut stream));
        stream
    }

    fn words(&self) -> String {
        let text = c!(self.acl, aclGetRecentErrMsg());
        if text.is_null() {
            return String::new();
        }
        // SAFETY: a text that stays until this thread's next call.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// Nothing works before the runtime was begun, and beginning twice is told.
pub(crate) fn begin(sdk: &Sdk) {
    let acl = &sdk.acl;
    let mut count = 77;
    answers!(UNINITIALIZE, acl, aclrtGetDeviceCount(&raw mut count));
    assert!(sdk.words().contains("aclrtGetDeviceCount failed, retCode=100001"));
    assert_eq!(sdk.words(), "", "reading forgets it");
    answers!(OK, acl, aclInit(null()));
    answers!(REPEAT_INITIALIZE, acl, aclInit(null()));
    let found = c!(acl, aclrtGetDeviceCount(&raw mut count));
    say(&format!("count {found} {count}"));
    if found == NO_DEVICE {
        return;
    }
    let mut device = -7;
    answers!(CONTEXT_NULL, acl, aclrtGetDevice(&raw mut device));
    answers!(INVALID_DEVICEID, acl, aclrtSetDevice(count as i32));
    let mut pointer = UNTOUCHED;
    answers!(CONTEXT_NULL, acl, aclrtMalloc(&raw mut pointer, 64, 0));
    assert_eq!((device, pointer), (-7, UNTOUCHED), "outputs stay as they were");
}

/// Dies by it.
pub(crate) fn dereference(sdk: &Sdk) {
    sdk.on_card(0);
    let memory = sdk.card_memory(64);
    say("about to read");
    // SAFETY: there is none; that it ends the process is what is tried.
    let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(memory as usize).read_volatile() };
    say(&format!("read {byte}"));
}

pub(crate) fn memory(sdk: &Sdk) {
    let acl = &sdk.acl;
    sdk.on_card(1);
    let mut pointer = UNTOUCHED;
    answers!(PARAM_INVALID, acl, aclrtMalloc(&raw mut pointer, 0, 0));
    answers!(PARAM_INVALID, acl, aclrtMalloc(&raw mut pointer, 64, 8));
    answers!(MEMORY_ALLOCATION, acl, aclrtMalloc(&raw mut pointer, 2 << 20, 0));
    answers!(PARAM_INVALID, acl, aclrtMallocHost(&raw mut pointer, 0));
    assert_eq!(pointer, UNTOUCHED, "outputs stay as they were");
    answers!(PARAM_INVALID, acl, aclrtFree(0));
    let memory = sdk.card_memory(64);
    assert_eq!(memory % 64, 0);
    answers!(OK, acl, aclrtFree(memory));
    answers!(PARAM_INVALID, acl, aclrtFree(memory));
    let mut device_side = UNTOUCHED;
    let odd = vec![0_u8; 8192];
    let odd = (odd.as_ptr() as Word).next_multiple_of(4096) + 8;
    answers!(ADDR_UNALIGNED, acl, aclrtHostRegister(odd, 64, 0, &raw mut device_side));
}

pub(crate) fn copies(sdk: &Sdk) {
    let acl = &sdk.acl;
    sdk.on_card(0);
    let memory = sdk.card_memory(64);
    let (mut pinned, mut other) = (0, 0);
    answers!(OK, acl, aclrtMallocHost(&raw mut pinned, 64));
    answers!(OK, acl, aclrtMallocHost(&raw mut other, 64));
    let source = [7_u8; 64];
    let from = source.as_ptr() as Word;
    answers!(OK, acl, aclrtMemcpy(memory, 64, from, 64, HOST_TO_DEVICE));
    // Less room than bytes, and the wrong way.
    answers!(PARAM_INVALID, acl, aclrtMemcpy(memory, 63, from, 64, HOST_TO_DEVICE));
    answers!(PARAM_INVALID, acl, aclrtMemcpy(memory, 64, from, 64, DEVICE_TO_HOST));
    let stream = sdk.stream();
    answers!(OK, acl, aclrtMemcpyAsync(pinned, 64, memory, 64, DEVICE_TO_HOST, stream));
    let first =
        // SAFETY: pinned memory that the test allocated.
        || unsafe { std::ptr::with_exposed_provenance::<u8>(pinned as usize).read_volatile() };
    assert_ne!(first(), 7, "it lands late");
    answers!(OK, acl, aclrtSynchronizeStream(stream));
    assert_eq!(first(), 7);
    let refused = c!(acl, aclrtMemcpyAsync(other, 64, pinned, 64, HOST_TO_HOST, stream));
    assert_eq!(refused, FEATURE_NOT_SUPPORT);
    answers!(OK, acl, aclrtMemcpy(other, 64, pinned, 64, HOST_TO_HOST));
    // With pageable memory it is over when it returns.
    let mut back = [0_u8; 64];
    let to = back.as_mut_ptr() as Word;
    answers!(OK, acl, aclrtMemcpyAsync(to, 64, memory, 64, DEVICE_TO_HOST, stream));
    assert_eq!(back, source);
    answers!(OK, acl, aclrtFreeHost(pinned));
}

/// Stream and event say the opposite by the same number.
pub(crate) fn streams(sdk: &Sdk) {
    let acl = &sdk.acl;
    sdk.on_card(0);
    let memory = sdk.card_memory(64);
    let (mut event, mut older) = (0, 0);
    answers!(OK, acl, aclrtCreateEventExWithFlag(&raw mut event, 1));
    answers!(OK, acl, aclrtCreateEvent(&raw mut older));
    let status = |event| {
        let mut status = -1;
        answers!(OK, acl, aclrtQueryEventStatus(event, &raw mut status));
        status
    };
    assert_eq!(status(event), 1, "never recorded is complete");
    let stream = sdk.stream();
    let of_stream = || {
        let mut status = -1;
        answers!(OK, acl, aclrtStreamQuery(stream, &raw mut status));
        status
    };
    assert_eq!(of_stream(), 0, "complete");
    let mut pinned = 0;
    answers!(OK, acl, aclrtMallocHost(&raw mut pinned, 64));
    answers!(OK, acl, aclrtMemcpyAsync(pinned, 64, memory, 64, DEVICE_TO_HOST, stream));
    answers!(OK, acl, aclrtRecordEvent(event, stream));
    answers!(OK, acl, aclrtRecordEvent(older, stream));
    assert_eq!((of_stream(), status(event), status(older)), (1, 0, 0), "not ready");
    let mut inverted = -1;
    answers!(OK, acl, aclrtQueryEvent(older, &raw mut inverted));
    assert_eq!(inverted, 1, "the older query's not ready");
    answers!(PARAM_INVALID, acl, aclrtQueryEvent(event, &raw mut inverted));
    answers!(STREAM_SYNC_TIMEOUT, acl, aclrtSynchronizeStreamWithTimeout(stream, 1));
    answers!(OK, acl, aclrtSynchronizeStream(stream));
    assert_eq!((of_stream(), status(event)), (0, 1));
    answers!(OK, acl, aclrtDestroyStream(stream));
}

/// A thread has the card that it chose, and streams are of their card.
pub(crate) fn threads(sdk: &Sdk) {
    let acl = &sdk.acl;
    sdk.on_card(1);
    let stream = sdk.stream();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut device = -7;
            answers!(CONTEXT_NULL, acl, aclrtGetDevice(&raw mut device));
            answers!(CONTEXT_NULL, acl, aclrtSynchronizeStream(stream));
            answers!(OK, acl, aclrtSetDevice(2));
            answers!(STREAM_CONTEXT, acl, aclrtSynchronizeStream(stream));
            answers!(OK, acl, aclrtSetDevice(1));
            answers!(OK, acl, aclrtSynchronizeStream(stream));
        });
    });
}

static CALLS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(user: Word) {
    CALLS.fetch_add(user, Ordering::AcqRel);
}

/// Functions of the host's need a thread that asks for them, or are the runtime's; never both.
pub(crate) fn reports(sdk: &Sdk) {
    let acl = &sdk.acl;
    sdk.on_card(0);
    let (stream, other) = (sdk.stream(), sdk.stream());
    answers!(STREAM_NO_CB_REG, acl, aclrtLaunchCallback(count, 1, 1, stream));
    answers!(PARAM_INVALID, acl, aclrtProcessReport(0));
    answers!(THREAD_SUBSCRIBE, acl, aclrtProcessReport(1));
    // SAFETY: no arguments.
    let this = unsafe { libc::pthread_self() } as u64;
    answers!(OK, acl, aclrtSubscribeReport(this, stream));
    answers!(STREAM_SUBSCRIBE, acl, aclrtSubscribeReport(this, stream));
    answers!(REPORT_TIMEOUT, acl, aclrtProcessReport(1));
    answers!(OK, acl, aclrtLaunchCallback(count, 10, 1, stream));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(CALLS.load(Ordering::Acquire), 0, "nobody asked");
    let mut status = -1;
    answers!(OK, acl, aclrtStreamQuery(stream, &raw mut status));
    assert_eq!(status, 1, "the stream waits for it");
    answers!(OK, acl, aclrtProcessReport(-1));
    assert_eq!(CALLS.load(Ordering::Acquire), 10);
    answers!(OK, acl, aclrtSynchronizeStream(stream));
    answers!(PARAM_INVALID, acl, aclrtLaunchHostFunc(stream, count, 1));
    answers!(OK, acl, aclrtUnSubscribeReport(this, stream));
    answers!(OK, acl, aclrtLaunchHostFunc(other, count, 100));
    answers!(OK, acl, aclrtSynchronizeStream(other));
    assert_eq!(CALLS.load(Ordering::Acquire), 110);
}

extern "C" fn late(_: Word) {
    std::thread::sleep(Duration::from_millis(200));
}

/// A stream that is torn down does nothing any more, and who waits for it hears so.
pub(crate) fn abort(sdk: &Sdk) {
    let acl = &sdk.acl;
    sdk.on_card(0);
    let stream = sdk.stream();
    answers!(OK, acl, aclrtLaunchHostFunc(stream, late, 0));
    answers!(OK, acl, aclrtLaunchHostFunc(stream, count, 1));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            answers!(OK, acl, aclrtSetDevice(0));
            c!(acl, aclrtSynchronizeStream(stream))
        });
        std::thread::sleep(Duration::from_millis(50));
        answers!(OK, acl, aclrtStreamAbort(stream));
        assert_eq!(waiter.join().expect("an answer"), STREAM_ABORT);
    });
    assert_eq!(CALLS.load(Ordering::Acquire), 0);
    answers!(STREAM_ABORT, acl, aclrtLaunchHostFunc(stream, count, 1));
    answers!(OK, acl, aclrtDestroyStream(stream));
}
