//! Every function of every table, called as a host calls it: what it answers, what a panic in it
//! becomes, and what the sizes of structs mean.

#![allow(clippy::items_after_statements, reason = "a helper stands beside its one use")]

mod shaky;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use self::shaky::{PANICS, Shaky, ShakyDomain, maybe_panic};
use super::*;
use crate::host::{CallError, PluginView};
use crate::sdk::*;
use crate::tables::{self, Bytes, Completion, Message, PluginInfo, PluginTable};
use crate::{Collective, MemoryKind, registry};

/// The tests share one plugin object and one switch, so they run one after the other.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// The root table of the plugin above.
fn table() -> &'static PluginTable {
    let plugin = registry::static_plugins().find(|plugin| plugin.name == "shaky");
    let table = (plugin.expect("the macro registers the plugin").table)();
    // SAFETY: the macro registers a pointer to a static.
    unsafe { &*table }
}

/// The plugin above, probed.
fn view() -> PluginView {
    // SAFETY: the table is that of a plugin in this image.
    let view = unsafe { PluginView::new(table()) }.expect("the tables are right");
    view.probe(None, &[("depth", "1")]).expect("the probe succeeds");
    view
}

/// Runs `body` while every function of the plugin panics.
fn while_panicking<T>(body: impl FnOnce() -> T) -> T {
    PANICS.store(1, Ordering::SeqCst);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = body();
    std::panic::set_hook(hook);
    PANICS.store(0, Ordering::SeqCst);
    result
}

/// Asserts that a call failed because the plugin panicked, and says so.
fn assert_panicked<T: std::fmt::Debug>(call: &str, result: Result<T, CallError>) {
    let error = result.expect_err(call);
    assert_eq!(error.status, Status::Panic, "{error}");
    assert_eq!(error.message, format!("panicked in {call}: as the test asked"));
    assert!(error.call == call, "{error}");
}

fn domain_request() -> DomainRequest<'static> {
    DomainRequest {
        communicator: 1,
        rank: 0,
        ranks: 2,
        local_ranks: 2,
        job_key: &[5; 32],
        interface: "",
        handshake_timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(1),
    }
}

fn message(token: u64) -> Message {
    Message {
        token,
        segments: std::ptr::null(),
        segment_count: 0,
        envelope: [0; tables::ENVELOPE_BYTES],
    }
}

#[test]
fn b078_every_device_function_may_panic() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let view = view();
    let family = view.device().expect("a device family");
    let device = family.open(0).expect("a device");
    let null = std::ptr::null_mut();
    let region = device.export_region(null, 128).expect("a region");
    let host = MemoryKind::Host;
    while_panicking(|| {
        assert_panicked("device.count", family.count());
        assert_panicked("device.info", family.facts(0));
        assert_panicked("device.open", family.open(0));
        assert_panicked("device.allocate", device.allocate(1, host));
        assert_panicked("device.memory_kind", device.memory_kind(null));
        assert_panicked("device.stream_create", device.stream_create());
        assert_panicked("device.stream_destroy", device.stream_destroy(1));
        assert_panicked("device.stream_query", device.stream_query(1));
        assert_panicked("device.stream_synchronize", device.stream_synchronize(1, Duration::ZERO));
        assert_panicked("device.event_create", device.event_create());
        assert_panicked("device.event_destroy", device.event_destroy(1));
        assert_panicked("device.event_record", device.event_record(1, 1));
        assert_panicked("device.event_query", device.event_query(1));
        assert_panicked("device.flush", device.flush(null, 0));
        assert_panicked("device.export_region", device.export_region(null, 0));
        assert_panicked("device.release_region", device.release_region(&region));
        assert_panicked("device.async_error", device.async_error());
        // SAFETY: the functions panic before they touch anything.
        unsafe {
            assert_panicked("device.free", device.free(null));
            assert_panicked("device.copy", device.copy(0, (null, host), (null, host), 0));
            assert_panicked("device.host_function", device.host_function(0, ring, null));
            assert_panicked("device.stream_wait_value", {
                device.stream_wait_value(0, std::ptr::null(), 0)
            });
            assert_panicked("device.write_value", device.write_value(std::ptr::null_mut(), 0));
            assert_panicked("device.reduce", {
                device.reduce(0, null, &[std::ptr::null(); 2], 5, DataType::F32, RedOp::Sum, 0)
            });
        }
        assert_panicked("device.close", device.close());
    });
}

/// A host function that counts its calls.
unsafe extern "C" fn ring(user: *mut std::ffi::c_void) {
    // SAFETY: the test passes a counter.
    unsafe { &*user.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn device_answers_arrive() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let family = view().device().expect("a device family");
    assert_eq!(family.count(), Ok(3));
    let facts = family.facts(2).expect("facts");
    assert_eq!(
        (facts.name, facts.pci_address, facts.numa_node, facts.memory_bytes),
        ("shaky card", "0000:01:00.0", Some(1), 1 << 30)
    );
    assert_eq!(facts.capabilities.stream_to_host, tables::stream_to_host::EVENT);
    let error = family.facts(3).expect_err("there are three");
    assert_eq!(
        (error.status, error.message.as_str()),
        (Status::InvalidArgument, "there are three")
    );

    let device = family.open(1).expect("a device");
    assert_eq!(device.stream_create(), Ok(17));
    assert_eq!(device.stream_query(17), Ok(Progress::Pending));
    assert_eq!(device.event_query(1), Ok(Progress::Done));
    assert_eq!(device.memory_kind(std::ptr::null()), Ok(MemoryKind::PinnedHost));
    let error = device.stream_synchronize(17, Duration::from_millis(2)).expect_err("too slow");
    assert_eq!(error.status, Status::Timeout);
    assert_eq!(error.message, "not within 2000 us");
    let error = device.allocate(8, MemoryKind::Host).expect_err("a null pointer is refused");
    assert_eq!(error.status, Status::Internal);
    let region = device.export_region(std::ptr::null_mut(), 256).expect("a region");
    assert_eq!((region.length, region.cookie), (256, 99));
    device.release_region(&region).expect("the region is known");

    let counter = AtomicU32::new(0);
    let user = std::ptr::from_ref(&counter).cast_mut().cast();
    // SAFETY: the counter lives until the device has called it, which it does at once.
    unsafe { device.host_function(0, ring, user) }.expect("a host function");
    assert_eq!(counter.load(Ordering::SeqCst), 1);
}

#[test]
fn b078_every_transport_function_may_panic_and_ends_its_domain() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let family = view().transport().expect("a transport family");
    let mut room = [Completion::EMPTY; 4];
    let zero = Duration::ZERO;
    let region = tables::MemoryRegion {
        form: 0,
        descriptor: -1,
        address: 0,
        offset: 0,
        length: 0,
        cookie: 0,
    };
    let channel =
        ChannelRequest { peer: 1, dial: true, channel: 0, link_digest: 0, address: b"there" };
    /// What panics in one domain, after which the domain is over.
    macro_rules! panics {
        ($call:literal, |$domain:ident| $body:expr) => {{
            let mut $domain = family.open(&domain_request()).expect("a domain");
            let first = while_panicking(|| $body.map(|_| ()));
            assert_panicked(concat!("transport.", $call), first);
            let error = $domain.arm().expect_err("the domain is over");
            assert_eq!(error.status, Status::Panic, "{error}");
            $domain.close().expect("it can still be closed");
        }};
    }
    panics!("address", |domain| domain.address());
    panics!("channel_open", |domain| domain.channel_open(&channel));
    panics!("channel_state", |domain| domain.channel_state(8));
    // SAFETY: the messages have no segments.
    panics!("post_send", |domain| unsafe { domain.post_send(8, &message(1)) });
    // SAFETY: the messages have no segments.
    panics!("post_receive", |domain| unsafe { domain.post_receive(8, &message(1)) });
    panics!("progress", |domain| domain.progress(&mut room));
    panics!("arm", |domain| domain.arm());
    panics!("event_descriptor", |domain| domain.event_descriptor());
    panics!("wait", |domain| domain.wait(zero));
    // SAFETY: the region is empty.
    panics!("register_region", |domain| unsafe { domain.register(&region) });
    panics!("deregister_region", |domain| domain.deregister(1));
    panics!("quiesce", |domain| domain.quiesce(8, zero));
    panics!("channel_close", |domain| domain.channel_close(8));

    let domain = family.open(&domain_request()).expect("a domain");
    let waker = domain.waker();
    while_panicking(|| {
        assert_panicked("transport.wake", waker.wake());
        assert_panicked("transport.open", family.open(&domain_request()));
        assert_panicked("transport.capabilities", family.facts());
    });
    domain.close().expect("a panic of the waker does not end the domain");
    assert_eq!(waker.wake(), Ok(()), "a waker outlives its domain");
}

#[test]
fn messages_and_completions_cross() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let family = view().transport().expect("a transport family");
    let facts = family.facts().expect("facts");
    assert_eq!(
        (facts.name, facts.latency, facts.largest_message),
        ("shaky", Duration::from_micros(3), None)
    );
    let mut domain = family.open(&domain_request()).expect("a domain");
    assert_eq!(domain.address().expect("an address"), b"here");
    // SAFETY: the messages have no segments.
    unsafe {
        domain.post_send(8, &message(41)).expect("posted");
        domain.post_receive(8, &message(42)).expect("posted");
        let too_many = Message { segment_count: tables::MAX_SEGMENTS + 1, ..message(43) };
        let error = domain.post_send(8, &too_many).expect_err("too many segments");
        assert_eq!(error.status, Status::InvalidArgument);
    }
    assert!(domain.progress(&mut []).expect("no room").is_empty());
    let mut room = [Completion::EMPTY; 1];
    let tokens: Vec<u64> = (0..3)
        .flat_map(|_| domain.progress(&mut room).expect("progress").to_vec())
        .map(|completion| completion.token)
        .collect();
    assert_eq!(tokens, [41, 42]);
    let error = domain.channel_state(8).map(|progress| assert_eq!(progress, Progress::Pending));
    assert_eq!(error, Ok(()));
}

#[test]
fn two_calls_of_one_domain_at_once_are_refused() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    view();
    let table = transport_table::<Shaky, Shaky>();
    let options = tables::DomainOptions {
        communicator: 1,
        rank: 0,
        ranks: 1,
        local_ranks: 1,
        reserved: 0,
        job_key: Bytes::borrow(&[5; 32]),
        interface: Bytes::EMPTY,
        handshake_timeout_us: 1,
        connect_timeout_us: 1,
    };
    let mut domain = 0;
    let mut error = ErrorInfo::new();
    let open = table.open.expect("open");
    let size = size_of::<tables::DomainOptions>() as u64;
    // SAFETY: the options are whole, and there is room for the handle.
    assert_eq!(unsafe { open(&raw const options, size, &raw mut domain, &raw mut error) }, 0);
    // Wakers may be used beside a call; a second call may not. The domain calls itself here.
    let (arm, wake) = (table.arm.expect("arm"), table.wake.expect("wake"));
    let call = |body: &mut dyn FnMut()| {
        // SAFETY: the domain is open.
        unsafe {
            transport::domain_call::<ShakyDomain>("test", domain, std::ptr::null_mut(), |_| {
                body();
                Ok(Status::Ok)
            })
        }
    };
    let mut inner = (0, 0);
    // SAFETY: the domain is open.
    let outer = call(&mut || unsafe {
        inner = (arm(domain, &raw mut error), wake(domain, std::ptr::null_mut()));
    });
    assert_eq!(outer, Status::Ok.code());
    assert_eq!(inner, (Status::InvalidArgument.code(), Status::Ok.code()));
    assert!(error.message().contains("at the same time"), "{}", error.message());
    // SAFETY: the domain is open, and not used after this.
    assert_eq!(unsafe { table.close.expect("close")(domain, std::ptr::null_mut()) }, 0);
}

#[test]
fn b078_every_collectives_function_may_panic() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let view = view();
    let family = view.collectives().expect("a collectives family");
    let device = Arc::new(view.device().expect("devices").open(0).expect("a device"));
    let id = family.unique_id().expect("an id");
    let communicator = family.join(&device, &id, 4, 2).expect("a communicator");
    let call = NativeCall {
        collective: Collective::AllToAllV,
        dtype: DataType::Bf16,
        op: None,
        root: 0,
        count: 0,
        send: std::ptr::null(),
        receive: std::ptr::null_mut(),
        send_counts: &[1, 2, 3, 4],
        send_displacements: &[],
        receive_counts: &[4, 3, 2, 1],
        receive_displacements: &[],
    };
    // SAFETY: the plugin touches no buffer.
    unsafe {
        communicator.call(&call, 0).expect("the call arrives as it was made");
        let short = NativeCall { send_counts: &[1], ..call };
        let error = communicator.call(&short, 0).expect_err("one entry for four ranks");
        assert_eq!(error.status, Status::InvalidArgument);
    }
    assert_eq!(communicator.async_error(), Ok(Progress::Pending));
    let facts = family.facts().expect("facts");
    assert_eq!((facts.unique_id_bytes, facts.support.len()), (130, 1));
    assert_eq!(facts.support[0].dtypes, DataType::F32.mask());
    assert_eq!(
        family.join(&device, &id, 4, 4).expect_err("rank 4 of 4").status,
        Status::InvalidArgument
    );
    while_panicking(|| {
        assert_panicked("collectives.capabilities", family.facts());
        assert_panicked("collectives.communicator_create", family.join(&device, &id, 4, 2));
        assert_panicked("collectives.group_start", family.group_start());
        assert_panicked("collectives.group_end", family.group_end());
        assert_panicked("collectives.async_error", communicator.async_error());
        assert_panicked("collectives.communicator_abort", communicator.abort());
        // SAFETY: the function panics before it touches anything.
        assert_panicked("collectives.call", unsafe { communicator.call(&call, 0) });
        assert_panicked("collectives.communicator_destroy", communicator.leave());
    });
    let communicator = family.join(&device, &id, 4, 2).expect("a communicator");
    let error = communicator.leave().expect_err("it says so");
    assert_eq!((error.status, error.message.as_str()), (Status::DeviceError, "left in anger"));
}

#[test]
fn b078_probe_and_self_test_may_panic() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let view = view();
    while_panicking(|| assert_panicked("self_test", view.self_test()));
    let error = view.self_test().expect_err("a promise is not kept");
    assert_eq!((error.status, error.vendor_code), (Status::Internal, -7));
    assert_eq!(error.to_string(), "self_test: internal: a promise is not kept (code -7)");

    // A plugin of its own, since a probe that succeeded once is over.
    struct Unlucky;
    impl Plugin for Unlucky {
        const NAME: &'static str = "unlucky";
        const VERSION: &'static str = "1.0.0";
        const VENDOR: &'static str = "tests";
        const DESCRIPTION: &'static str = "has no luck with its probe";
        fn probe(settings: &Settings<'_>) -> PluginResult<Self> {
            maybe_panic();
            match settings.text("luck") {
                Some("good") => Ok(Self),
                _ => Err(PluginError::new(Status::LibraryMissing, "libluck.so.1: not found")),
            }
        }
    }
    impl Exported for Unlucky {
        fn slot() -> &'static PluginSlot<Self> {
            static SLOT: PluginSlot<Unlucky> = PluginSlot::new();
            &SLOT
        }
    }
    let table = Box::leak(Box::new(plugin_table::<Unlucky>()));
    // SAFETY: the table is that of a plugin in this image.
    let view = unsafe { PluginView::new(table) }.expect("the tables are right");
    while_panicking(|| assert_panicked("probe", view.probe(None, &[])));
    let error = view.probe(None, &[]).expect_err("no luck");
    assert_eq!(error.status, Status::LibraryMissing);
    let error = view.self_test().expect_err("not probed");
    assert_eq!(error.status, Status::InvalidArgument);
    view.probe(None, &[("luck", "good")]).expect("a later probe may succeed");
    view.probe(None, &[("luck", "bad")]).expect("the first success stays");
    view.self_test().expect("now there is an object");
}

#[test]
fn b068_structs_that_grew_are_written_as_far_as_there_is_room() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    view();
    let describe = table().describe.expect("describe");
    // An older host has less: nothing is written beyond.
    let mut bytes = [0xEE_u8; size_of::<PluginInfo>()];
    let half = std::mem::offset_of!(PluginInfo, vendor);
    // SAFETY: there is room for `half` bytes.
    let status = unsafe { describe(bytes.as_mut_ptr().cast(), half as u64, std::ptr::null_mut()) };
    assert_eq!(status, Status::Ok.code());
    assert!(bytes[..half].iter().any(|&byte| byte != 0xEE));
    assert!(bytes[half..].iter().all(|&byte| byte == 0xEE));
    // A newer host has more: what this version does not know stays zero.
    let mut bytes = [0_u8; size_of::<PluginInfo>() + 64];
    let size = bytes.len() as u64;
    // SAFETY: there is room for `size` bytes.
    let status = unsafe { describe(bytes.as_mut_ptr().cast(), size, std::ptr::null_mut()) };
    assert_eq!(status, Status::Ok.code());
    assert!(bytes[size_of::<PluginInfo>()..].iter().all(|&byte| byte == 0));
    // An older host's arguments: what it does not have is zero.
    let options = [0x11_u8; 8];
    // SAFETY: eight bytes are readable.
    let read = unsafe { tables::DomainOptions::read_prefix(options.as_ptr().cast(), 8) };
    assert_eq!((read.communicator, read.rank), (0x1111_1111_1111_1111, 0));
    assert_eq!(read.connect_timeout_us, 0);
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    view();
    let device = device_table::<Shaky, Shaky>();
    let transport = transport_table::<Shaky, Shaky>();
    let invalid = Status::InvalidArgument.code();
    let mut error = ErrorInfo::new();
    let null: *mut std::ffi::c_void = std::ptr::null_mut();
    // SAFETY: null and misaligned arguments are what is tested; the functions check for them.
    unsafe {
        assert_eq!(device.count.expect("count")(null.cast(), &raw mut error), invalid);
        assert_eq!(device.close.expect("close")(0, &raw mut error), invalid);
        assert_eq!(device.close.expect("close")(3, &raw mut error), invalid);
        assert_eq!(error.message(), "0x3 is no device handle");
        assert_eq!(device.info.expect("info")(0, null.cast(), 8, std::ptr::null_mut()), invalid);
        assert_eq!(transport.arm.expect("arm")(0, &raw mut error), invalid);
        assert_eq!(
            transport.open.expect("open")(null.cast(), 0, null.cast(), &raw mut error),
            invalid
        );
        let mut handle = 0;
        device.open.expect("open")(0, &raw mut handle, &raw mut error);
        let copy = device.copy.expect("copy");
        assert_eq!(
            copy(handle, 0, null, 77, null, 0, 0, &raw mut error),
            Status::NotSupported.code()
        );
        assert_eq!(error.message(), "unknown memory kind number 77");
        let host_function = device.host_function.expect("host_function");
        assert_eq!(host_function(handle, 0, None, null, &raw mut error), invalid);
        device.close.expect("close")(handle, &raw mut error);
    }
}

#[test]
fn failures_say_what_they_are() {
    let mut error = ErrorInfo::new();
    // A failure that calls itself a success is still a failure.
    let liar = PluginError {
        status: Status::Ok,
        vendor_code: 3,
        message: "ü".repeat(tables::ERROR_MESSAGE_BYTES),
    };
    assert_eq!(report(&raw mut error, &liar), Status::Internal.code());
    assert_eq!(error.vendor_code, 3);
    assert_eq!(error.message(), "ü".repeat(tables::ERROR_MESSAGE_BYTES / 2));
    let mut odd = ErrorInfo::new();
    odd.set_message(&format!("a{}", "ü".repeat(tables::ERROR_MESSAGE_BYTES)));
    assert_eq!(odd.message_length as usize, tables::ERROR_MESSAGE_BYTES - 1);
    // A panic whose payload is no text, and panics when dropped.
    struct Nasty;
    impl Drop for Nasty {
        fn drop(&mut self) {
            panic!("once more");
        }
    }
    let status = guard("nasty", &raw mut error, || std::panic::panic_any(Nasty));
    assert_eq!(status, Status::Panic.code());
    assert_eq!(error.message(), "panicked in nasty: a panic without words");
}

/// A plugin whose transport is another type than itself.
struct Wrapper(Shaky);

impl Plugin for Wrapper {
    const NAME: &'static str = "wrapper";
    const VERSION: &'static str = "1.0.0";
    const VENDOR: &'static str = "tests";
    const DESCRIPTION: &'static str = "has its transport inside";
    fn probe(settings: &Settings<'_>) -> PluginResult<Self> {
        Shaky::probe(settings).map(Self)
    }
}

impl std::borrow::Borrow<Shaky> for Wrapper {
    fn borrow(&self) -> &Shaky {
        &self.0
    }
}

crate::export_plugin! { plugin: Wrapper, transport: Shaky }

#[test]
fn a_family_may_be_another_type_than_the_plugin() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let plugin = registry::static_plugins().find(|plugin| plugin.name == "wrapper");
    let table = (plugin.expect("the macro registers the plugin").table)();
    // SAFETY: the macro registers a pointer to a static.
    let view = unsafe { PluginView::new(table) }.expect("the tables are right");
    assert_eq!(view.families(), tables::family::TRANSPORT);
    let transport = view.transport().expect("a transport family");
    let error = transport.facts().expect_err("not probed, and another plugin than the other");
    assert_eq!(error.status, Status::InvalidArgument);
    view.probe(None, &[]).expect("probed");
    assert_eq!(transport.facts().expect("facts").name, "shaky");
}

#[test]
fn an_image_with_two_plugins_opens_its_doors_to_neither() {
    assert_eq!(registry::static_plugins().count(), 2);
    assert!(registry::only_table().is_null());
}
