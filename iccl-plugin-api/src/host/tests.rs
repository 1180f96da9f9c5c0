//! What the views make of tables that are older, newer, incomplete or wrong, and of answers that
//! break the rules.

#![allow(clippy::items_after_statements, reason = "a helper stands beside its one use")]

use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::sdk::{ChannelRequest, DomainRequest, Progress};
use crate::tables::{
    ABI_MAJOR, Bytes, Completion, DeviceCapabilities, DeviceInfo, DeviceTable, DomainOptions,
    ErrorInfo, Growing, HostTable, LONGEST_ADDRESS, Message, PluginInfo, PluginTable, SettingValue,
    TransportTable,
};
use crate::{LogLevel, MemoryKind, Status};

unsafe extern "C" fn describe(place: *mut PluginInfo, size: u64, _: *mut ErrorInfo) -> i32 {
    let mut info = PluginInfo::absent();
    info.name = Bytes::from_static("by-hand");
    info.version = Bytes::from_static("0.1.0");
    // SAFETY: the view passes room for `size` bytes.
    unsafe { info.write_prefix(place, size) };
    0
}

unsafe extern "C" fn probe(
    _: *const HostTable,
    _: *const SettingValue,
    setting_count: u64,
    error: *mut ErrorInfo,
) -> i32 {
    // The number of settings is the status to answer.
    // SAFETY: the view passes a place.
    unsafe { (*error).set_message("line one\nline two") };
    setting_count as i32
}

unsafe extern "C" fn count(count: *mut u32, _: *mut ErrorInfo) -> i32 {
    // SAFETY: the view passes a place.
    unsafe { *count = 1 };
    0
}
unsafe extern "C" fn info(_: u32, place: *mut DeviceInfo, size: u64, _: *mut ErrorInfo) -> i32 {
    let mut info = DeviceInfo::absent();
    info.name = Bytes::from_static("hand");
    info.numa_node = -1;
    // SAFETY: the view passes room for `size` bytes.
    unsafe { info.write_prefix(place, size) };
    0
}
unsafe extern "C" fn capabilities(
    _: u32,
    _: *mut DeviceCapabilities,
    _: u64,
    _: *mut ErrorInfo,
) -> i32 {
    0
}
unsafe extern "C" fn open(_: u32, device: *mut u64, _: *mut ErrorInfo) -> i32 {
    // SAFETY: the view passes a place.
    unsafe { *device = 9 };
    0
}
unsafe extern "C" fn by_device(_: u64, _: *mut ErrorInfo) -> i32 {
    0
}
unsafe extern "C" fn allocate(
    _: u64,
    bytes: u64,
    _: u32,
    pointer: *mut *mut std::ffi::c_void,
    _: *mut ErrorInfo,
) -> i32 {
    // SAFETY: the view passes a place.
    unsafe { *pointer = std::ptr::without_provenance_mut(bytes as usize) };
    0
}
unsafe extern "C" fn free(_: u64, _: *mut std::ffi::c_void, _: *mut ErrorInfo) -> i32 {
    0
}
unsafe extern "C" fn copy(
    _: u64,
    _: u64,
    _: *mut std::ffi::c_void,
    _: u32,
    _: *const std::ffi::c_void,
    _: u32,
    _: u64,
    _: *mut ErrorInfo,
) -> i32 {
    // `Pending` is no answer of a copy.
    1
}
unsafe extern "C" fn stream_create(_: u64, stream: *mut u64, _: *mut ErrorInfo) -> i32 {
    // SAFETY: the view passes a place.
    unsafe { *stream = 4 };
    0
}
/// Answers the stream's number as the status.
unsafe extern "C" fn stream_status(_: u64, stream: u64, _: *mut ErrorInfo) -> i32 {
    stream as i32
}
unsafe extern "C" fn synchronize(_: u64, _: u64, timeout_us: u64, _: *mut ErrorInfo) -> i32 {
    i32::from(timeout_us != u64::MAX) * Status::Timeout.code()
}

/// A device table with the mandatory functions only.
fn device_table() -> DeviceTable {
    let mut table = DeviceTable::absent();
    table.struct_size = size_of::<DeviceTable>() as u32;
    table.count = Some(count);
    table.info = Some(info);
    table.capabilities = Some(capabilities);
    table.open = Some(open);
    table.close = Some(by_device);
    table.allocate = Some(allocate);
    table.free = Some(free);
    table.copy = Some(copy);
    table.stream_create = Some(stream_create);
    table.stream_destroy = Some(stream_status);
    table.stream_query = Some(stream_status);
    table.stream_synchronize = Some(synchronize);
    table
}

/// A root table with one device family. All live for ever, as a plugin's do.
fn root_table(device: DeviceTable) -> PluginTable {
    let mut table = PluginTable::absent();
    table.struct_size = size_of::<PluginTable>() as u32;
    table.abi_major = ABI_MAJOR;
    table.describe = Some(describe);
    table.probe = Some(probe);
    table.device = Box::leak(Box::new(device));
    table
}

fn view(table: PluginTable) -> Result<PluginView, TableError> {
    // SAFETY: the table lives for ever, and its functions are those above.
    unsafe { PluginView::new(Box::leak(Box::new(table))) }
}

fn open_device(table: DeviceTable) -> OpenDevice {
    view(root_table(table)).expect("a view").device().expect("devices").open(0).expect("a device")
}

#[test]
fn null_mandatory_functions_are_named() {
    let mut device = device_table();
    device.copy = None;
    device.stream_query = None;
    let mut root = root_table(device);
    root.probe = None;
    let error = view(root).expect_err("functions are missing");
    assert_eq!(
        error.to_string(),
        "null mandatory function probe, device.copy, device.stream_query"
    );
}

#[test]
fn a_wait_needs_a_wake() {
    unsafe extern "C" fn wait(_: u64, _: u64, _: *mut ErrorInfo) -> i32 {
        0
    }
    let mut transport = TransportTable::absent();
    transport.struct_size = size_of::<TransportTable>() as u32;
    transport.wait = Some(wait);
    let mut root = root_table(device_table());
    root.transport = Box::leak(Box::new(transport));
    let error = view(root).expect_err("functions are missing").to_string();
    assert!(error.starts_with("null mandatory function transport.capabilities, "), "{error}");
    assert!(error.ends_with("transport.close, transport.wake"), "{error}");
}

#[test]
fn b068_tables_of_another_size_or_major() {
    // SAFETY: null is what is tested.
    assert_eq!(unsafe { PluginView::new(std::ptr::null()) }.err(), Some(TableError::Null));

    let mut root = root_table(device_table());
    root.abi_major = ABI_MAJOR + 1;
    let error = view(root).expect_err("another major");
    assert_eq!(error.to_string(), "ABI 2, and this host accepts 1");

    let mut root = root_table(device_table());
    root.struct_size = 12;
    assert_eq!(view(root).err(), Some(TableError::BadSize { table: "root", bytes: 12 }));

    let mut device = device_table();
    device.struct_size = u32::MAX;
    let error = view(root_table(device)).expect_err("an absurd size");
    assert_eq!(error.to_string(), "the device table says that it has 4294967295 bytes");

    // An older table ends before its optional functions: they are absent, whatever follows it.
    let mut device = device_table();
    device.async_error = Some(by_device);
    device.struct_size = std::mem::offset_of!(DeviceTable, host_function) as u32;
    device.event_query = Some(stream_status);
    let device = open_device(device);
    let error = device.event_query(0).expect_err("absent");
    assert_eq!(
        error.to_string(),
        "device.event_query: not-supported: the plugin has no device.event_query"
    );

    // A table that ends before a mandatory function lacks it.
    let mut device = device_table();
    device.struct_size = std::mem::offset_of!(DeviceTable, stream_synchronize) as u32;
    let error = view(root_table(device)).expect_err("a function is missing");
    assert_eq!(error, TableError::MissingFunctions(vec!["device.stream_synchronize"]));

    // A newer table has more behind what this version knows.
    #[repr(C)]
    struct Newer {
        known: DeviceTable,
        unknown: [u64; 4],
    }
    let mut newer = Newer { known: device_table(), unknown: [!0; 4] };
    newer.known.struct_size = size_of::<Newer>() as u32;
    let newer: &'static Newer = Box::leak(Box::new(newer));
    assert_eq!(newer.unknown[0], !0);
    let mut root = root_table(device_table());
    root.device = std::ptr::from_ref(newer).cast();
    let family = view(root).expect("a newer table").device().expect("devices");
    assert_eq!(family.count(), Ok(1));
}

#[test]
fn b045_every_optional_function_may_be_null() {
    let device = open_device(device_table());
    let null = std::ptr::null_mut();
    let absent = |result: Result<(), CallError>| {
        let error = result.expect_err("the function is null");
        assert_eq!(error.status, Status::NotSupported, "{error}");
    };
    // These have a meaning when they are absent.
    assert_eq!(device.memory_kind(null), Ok(MemoryKind::Device));
    assert_eq!(device.flush(null, 8), Ok(()));
    assert_eq!(device.async_error(), Ok(()));
    absent(device.event_create().map(|_| ()));
    absent(device.event_destroy(1));
    absent(device.event_record(1, 1));
    absent(device.event_query(1).map(|_| ()));
    absent(device.export_region(null, 8).map(|_| ()));
    absent(device.release_region(&crate::tables::MemoryRegion::absent()));
    unsafe extern "C" fn never(_: *mut std::ffi::c_void) {}
    // SAFETY: the functions are null, so nothing is touched.
    unsafe {
        absent(device.host_function(0, never, null));
        absent(device.stream_wait_value(0, std::ptr::null(), 0));
        absent(device.write_value(std::ptr::null_mut(), 0));
        absent(device.reduce(0, null, &[], 0, crate::DataType::I8, crate::RedOp::Sum, 0));
    }
    let root = root_table(device_table());
    assert_eq!(view(root).expect("a view").self_test(), Ok(()));
}

#[test]
fn b080_unknown_status_is_not_success() {
    let device = open_device(device_table());
    assert_eq!(device.stream_query(0), Ok(Progress::Done));
    assert_eq!(device.stream_query(1), Ok(Progress::Pending));
    for status in [-1_i32, 17, 1000, i32::MIN, i32::MAX] {
        let error = device.stream_query(u64::from(status as u32)).expect_err("no known status");
        assert_eq!(error.status, Status::Internal);
        assert!(error.message.contains(&format!("unknown status number {status}")), "{error}");
    }
    for status in Status::ALL.iter().filter(|status| !status.is_success()) {
        let error = device.stream_query(status.code() as u64).expect_err("a failure");
        assert_eq!(error.status, *status);
    }
    // A completion's status is no different.
    let with = |status| Completion { status, ..Completion::EMPTY }.outcome();
    assert_eq!((with(0), with(9)), (Status::Ok, Status::PeerLost));
    assert_eq!(
        (with(1), with(-5), with(99)),
        (Status::Internal, Status::Internal, Status::Internal)
    );
}

#[test]
fn answers_that_break_the_rules_are_failures() {
    let device = open_device(device_table());
    let host = MemoryKind::Host;
    let null = std::ptr::null_mut();
    // SAFETY: the function copies nothing.
    let error = unsafe { device.copy(0, (null, host), (null, host), 0) }.expect_err("pending");
    assert_eq!(error.status, Status::Internal);
    // The function answers the number of bytes as the address.
    let error = device.allocate(63, host).expect_err("misaligned");
    assert_eq!(error.status, Status::Internal);
    assert_eq!(device.allocate(128, host).map(<*mut std::ffi::c_void>::addr), Ok(128));
    assert_eq!(device.stream_synchronize(1, Duration::MAX), Ok(()));

    let view = view(root_table(device_table())).expect("a view");
    let settings = [("a", "b"); 4];
    let error = view.probe(None, &settings).expect_err("status 4");
    assert_eq!((error.status, error.message.as_str()), (Status::NoDevice, "line one line two"));
    assert_eq!(view.describe().expect("a description").name, "by-hand");
}

#[test]
fn descriptions_that_make_no_sense_are_refused() {
    /// A `describe` that changes one thing about a sensible answer.
    macro_rules! describing {
        (|$info:ident| $change:expr) => {{
            unsafe extern "C" fn odd(
                place: *mut PluginInfo,
                size: u64,
                error: *mut ErrorInfo,
            ) -> i32 {
                // SAFETY: the view passes room for `size` bytes.
                unsafe {
                    describe(place, size, error);
                    let $info = &mut *place;
                    $change;
                }
                0
            }
            let mut root = root_table(device_table());
            root.describe = Some(odd);
            view(root).expect("a view").describe()
        }};
    }
    let error = describing!(|info| info.name = Bytes::from_static("Not Kebab"));
    assert_eq!(error.expect_err("a name").message, "the name \"Not Kebab\" is not in kebab case");
    let error = describing!(|info| info.name = Bytes::EMPTY);
    assert_eq!(error.expect_err("no name").status, Status::Internal);
    let error = describing!(|info| info.vendor = Bytes::borrow(&[0xFF, 0xFE]));
    assert!(error.expect_err("no text").message.contains("UTF-8"));
    let error = describing!(|info| info.vendor.length = u64::MAX);
    assert_eq!(error.expect_err("an absurd length").status, Status::Internal);
    let error = describing!(|info| info.setting_count = 3);
    assert!(error.expect_err("no list").message.contains("settings"));
}

/// A transport that answers more than there is room for.
#[test]
fn a_transport_that_counts_wrong_is_caught() {
    unsafe extern "C" fn open(
        _: *const DomainOptions,
        _: u64,
        domain: *mut u64,
        _: *mut ErrorInfo,
    ) -> i32 {
        // SAFETY: the view passes a place.
        unsafe { *domain = 1 };
        0
    }
    unsafe extern "C" fn address(
        _: u64,
        _: *mut u8,
        capacity: u64,
        length: *mut u64,
        _: *mut ErrorInfo,
    ) -> i32 {
        // SAFETY: the view passes a place.
        unsafe { *length = capacity + 1 };
        0
    }
    unsafe extern "C" fn progress(
        _: u64,
        _: *mut Completion,
        capacity: u32,
        count: *mut u32,
        _: *mut ErrorInfo,
    ) -> i32 {
        // SAFETY: the view passes a place.
        unsafe { *count = capacity + 1 };
        0
    }
    unsafe extern "C" fn event_descriptor(_: u64, _: *mut i32, _: *mut ErrorInfo) -> i32 {
        0
    }
    unsafe extern "C" fn capabilities(
        _: *mut crate::tables::TransportCapabilities,
        _: u64,
        _: *mut ErrorInfo,
    ) -> i32 {
        0
    }
    unsafe extern "C" fn channel_open(
        _: u64,
        _: *const crate::tables::ChannelOptions,
        _: u64,
        _: *mut u64,
        error: *mut ErrorInfo,
    ) -> i32 {
        // A message length beyond the message is cut.
        // SAFETY: the view passes a place.
        unsafe { (*error).message_length = u32::MAX };
        Status::Unauthenticated.code()
    }
    unsafe extern "C" fn post(_: u64, _: u64, _: *const Message, _: *mut ErrorInfo) -> i32 {
        0
    }
    unsafe extern "C" fn by_channel(_: u64, _: u64, _: *mut ErrorInfo) -> i32 {
        0
    }
    unsafe extern "C" fn quiesce(_: u64, _: u64, _: u64, _: *mut ErrorInfo) -> i32 {
        0
    }
    let mut table = TransportTable::absent();
    table.struct_size = size_of::<TransportTable>() as u32;
    table.capabilities = Some(capabilities);
    table.open = Some(open);
    table.address = Some(address);
    table.channel_open = Some(channel_open);
    table.channel_state = Some(by_channel);
    table.post_send = Some(post);
    table.post_receive = Some(post);
    table.progress = Some(progress);
    table.arm = Some(by_device);
    table.event_descriptor = Some(event_descriptor);
    table.quiesce = Some(quiesce);
    table.channel_close = Some(by_channel);
    table.close = Some(by_device);
    let mut root = root_table(device_table());
    root.transport = Box::leak(Box::new(table));
    let family = view(root).expect("a view").transport().expect("a transport");
    assert!(!family.has_wait() && !family.has_register());
    assert!(family.facts().expect_err("no name").message.contains("no name"));
    let request = DomainRequest {
        communicator: 0,
        rank: 0,
        ranks: 1,
        local_ranks: 1,
        job_key: &[0; 32],
        interface: "",
        handshake_timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(1),
    };
    let mut domain = family.open(&request).expect("a domain");
    let error = domain.address().expect_err("too long");
    assert_eq!(error.message, format!("an address of {} bytes", LONGEST_ADDRESS + 1));
    let mut room = [Completion::EMPTY; 2];
    let error = domain.progress(&mut room).expect_err("too many");
    assert_eq!(error.message, "3 completions where 2 have room");
    assert_eq!(domain.event_descriptor().expect_err("none").status, Status::Internal);
    let channel = ChannelRequest { peer: 0, dial: false, channel: 0, link_digest: 0, address: &[] };
    let error = domain.channel_open(&channel).expect_err("refused");
    assert_eq!(error.status, Status::Unauthenticated);
    assert!(error.message.len() <= crate::tables::ERROR_MESSAGE_BYTES);
    assert_eq!(domain.wait(Duration::ZERO).expect_err("absent").status, Status::NotSupported);
    assert_eq!(domain.waker().wake().expect_err("absent").status, Status::NotSupported);
}

#[test]
fn log_lines_reach_the_sink_and_its_panics_stay() {
    static LINES: Mutex<Vec<(LogLevel, String, String)>> = Mutex::new(Vec::new());
    struct Sink;
    impl LogSink for Sink {
        fn log(&self, level: LogLevel, target: &str, message: &str) {
            assert!(message != "panic", "the sink panics");
            LINES.lock().expect("lines").push((level, target.to_owned(), message.to_owned()));
        }
        fn wanted(&self) -> Option<LogLevel> {
            Some(LogLevel::Debug)
        }
    }
    let host = host_table(Sink);
    let (log, level) = (host.log.expect("log"), host.log_level.expect("log_level"));
    let text = Bytes::from_static;
    // SAFETY: the functions take the table's context, and the texts live.
    unsafe {
        assert_eq!(level(host.context), LogLevel::Debug.code());
        log(host.context, 2, text("here"), text("warned"));
        log(host.context, 77, text("there"), Bytes::borrow(&[b'a', 0xFF]));
        log(host.context, 1, text("there"), text("panic"));
    }
    let lines = LINES.lock().expect("the sink's panic did not hold the lock");
    assert_eq!(
        *lines,
        [
            (LogLevel::Warn, "here".to_owned(), "warned".to_owned()),
            (LogLevel::Trace, "there".to_owned(), "a\u{FFFD}".to_owned()),
        ]
    );
}
