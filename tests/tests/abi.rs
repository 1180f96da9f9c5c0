//! Plugins through their doors: the example plugins in C11 and C++17, and one in Rust, are built,
//! read without loading, loaded, and used.

use std::ffi::c_void;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use iccl_plugin_api::host::{self, DoorError, LogSink, OpenDomain, PluginView, TransportView};
use iccl_plugin_api::note::{self, NoteInfo};
use iccl_plugin_api::sdk::{ChannelRequest, DomainRequest, Progress};
use iccl_plugin_api::tables::{
    Completion, ENTRY_SYMBOL, ENVELOPE_BYTES, Message, ROOT_SYMBOL, Segment, completion_kind,
    family,
};
use iccl_plugin_api::{LogLevel, MemoryKind, Status};
use iccl_tests::{build_c_plugin, plugin_folder};
use object::{Object, ObjectSection};

/// Longer than anything here takes, even on a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// Loads a file and gives the address of a symbol, if it has it. It stays loaded.
fn symbol(path: &Path, name: &str) -> Option<*const c_void> {
    // SAFETY: the file was built from this repository, and its constructors are harmless.
    let library = unsafe { libloading::Library::new(path) }.expect("the plugin can be loaded");
    let library = std::mem::ManuallyDrop::new(library);
    // SAFETY: the symbol is only taken as an address.
    unsafe { library.get::<*const c_void>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

/// Opens a plugin's C door.
fn open_c(path: &Path) -> PluginView {
    let entry = symbol(path, ENTRY_SYMBOL).expect("the plugin has a C door");
    // SAFETY: the symbol is the door of a plugin that stays loaded.
    unsafe { host::open_c_door(entry) }.expect("the C door opens")
}

/// What a file's note says.
fn note_of(path: &Path) -> NoteInfo {
    let bytes = std::fs::read(path).expect("the plugin can be read");
    let file = object::File::parse(&*bytes).expect("the plugin is an ELF file");
    let section = file.section_by_name(note::NOTE_SECTION).expect("the plugin has a note");
    note::parse(section.data().expect("the section lies in the file")).expect("the note is whole")
}

/// Counts its calls.
unsafe extern "C" fn ring(user: *mut c_void) {
    // SAFETY: the test passes a counter that outlives the call.
    unsafe { &*user.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_plugin_in_c11_is_a_device() {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    struct Lines;
    impl LogSink for Lines {
        fn log(&self, level: LogLevel, target: &str, message: &str) {
            LINES.lock().expect("lines").push(format!("{level} {target}: {message}"));
        }
        fn wanted(&self) -> Option<LogLevel> {
            Some(LogLevel::Info)
        }
    }

    let path = build_c_plugin("minimal_device");
    let note = note_of(&path);
    assert_eq!((note.name.as_str(), note.version.as_str()), ("minimal-device", "1.0.0"));
    assert_eq!((note.families, note.abi_major, note.abi_minor), (family::DEVICE, 1, 0));
    assert!(note.sdk.starts_with("c header"), "{}", note.sdk);
    assert!(symbol(&path, ROOT_SYMBOL).is_none(), "a plugin in C has no Rust door");

    let plugin = open_c(&path);
    assert_eq!(plugin.families(), family::DEVICE);
    let description = plugin.describe().expect("a description");
    assert_eq!(description.name, "minimal-device");
    assert_eq!(description.settings[0].key, "devices");

    let error = plugin.probe(None, &[("devices", "0")]).expect_err("no device was asked for");
    assert_eq!(error.status, Status::NoDevice);
    assert_eq!(error.message, "the setting `devices` is 0");
    plugin.probe(Some(host::host_table(Lines)), &[]).expect("one device");
    assert_eq!(*LINES.lock().expect("lines"), ["info minimal_device: one device over host memory"]);
    plugin.self_test().expect("absent, and so right");

    let devices = plugin.device().expect("a device family");
    assert_eq!(devices.count(), Ok(1));
    let facts = devices.facts(0).expect("facts");
    assert_eq!((facts.name, facts.pci_address, facts.numa_node), ("minimal device", "", None));
    assert_eq!(devices.open(1).expect_err("there is one").status, Status::InvalidArgument);

    let device = devices.open(0).expect("the device");
    let stream = device.stream_create().expect("a stream");
    let memory = device.allocate(1000, MemoryKind::Device).expect("memory");
    let written: Vec<u8> = (0..1000_u32).map(|value| (value * 7 % 251) as u8).collect();
    let mut read = vec![0_u8; 1000];
    let host = MemoryKind::Host;
    // SAFETY: both sides are 1000 bytes that live beyond the copies, which are done at once.
    unsafe {
        device
            .copy(stream, (memory, MemoryKind::Device), (written.as_ptr().cast(), host), 1000)
            .expect("copied in");
        device
            .copy(stream, (read.as_mut_ptr().cast(), host), (memory, MemoryKind::Device), 1000)
            .expect("copied out");
    }
    assert_eq!(read, written);

    let counter = AtomicU32::new(0);
    let user = std::ptr::from_ref(&counter).cast_mut().cast();
    // SAFETY: the counter lives until the stream has called it.
    unsafe { device.host_function(stream, ring, user) }.expect("a host function");
    device.stream_synchronize(stream, LONG).expect("the stream is done");
    assert_eq!(counter.load(Ordering::SeqCst), 1);
    assert_eq!(device.stream_query(stream), Ok(Progress::Done));
    device.stream_destroy(stream).expect("the stream was there");
    assert_eq!(
        device.stream_destroy(stream).expect_err("it is gone").status,
        Status::InvalidArgument
    );
    assert_eq!(device.event_create().expect_err("it has no events").status, Status::NotSupported);
    // SAFETY: nothing uses the memory any more.
    unsafe { device.free(memory) }.expect("freed");
    device.close().expect("closed");
}

/// A domain of the loopback transport.
fn domain(transport: TransportView, rank: u32, job_key: &[u8; 32]) -> OpenDomain {
    transport
        .open(&DomainRequest {
            communicator: 7,
            rank,
            ranks: 2,
            local_ranks: 2,
            job_key,
            interface: "",
            handshake_timeout: LONG,
            connect_timeout: LONG,
        })
        .expect("a domain")
}

/// Joins two domains; rank 0 dials. Gives both ends.
fn channels(zero: &mut OpenDomain, one: &mut OpenDomain, digests: [u64; 2]) -> (u64, u64) {
    let address = one.address().expect("an address");
    let waiting =
        ChannelRequest { peer: 0, dial: false, channel: 3, link_digest: digests[1], address: &[] };
    let to_zero = one.channel_open(&waiting).expect("a channel");
    assert_eq!(one.channel_state(to_zero), Ok(Progress::Pending));
    let dialling = ChannelRequest {
        peer: 1,
        dial: true,
        channel: 3,
        link_digest: digests[0],
        address: &address,
    };
    (zero.channel_open(&dialling).expect("a channel"), to_zero)
}

/// A message of these segments, with every byte of its envelope the same.
fn message(token: u64, envelope: u8, segments: &[Segment]) -> Message {
    Message {
        token,
        segments: segments.as_ptr(),
        segment_count: segments.len() as u64,
        envelope: [envelope; ENVELOPE_BYTES],
    }
}

/// The whole of a buffer as a segment.
fn segment(bytes: &mut [u8]) -> Segment {
    Segment { address: bytes.as_mut_ptr().cast(), length: bytes.len() as u64, key: 0 }
}

/// All completions that are there.
fn completions(domain: &mut OpenDomain) -> Vec<Completion> {
    let mut all = Vec::new();
    loop {
        let mut room = [Completion::EMPTY; 2];
        match domain.progress(&mut room).expect("progress") {
            [] => return all,
            some => all.extend_from_slice(some),
        }
    }
}

/// Runs `body` alone: the tests of one transport share the plugin's one state.
fn with_loopback(body: impl FnOnce(PluginView, TransportView)) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let plugin = open_c(&build_c_plugin_once());
    plugin.probe(None, &[("throw_in", "")]).expect("probed");
    body(plugin, plugin.transport().expect("a transport family"));
}

/// The loopback transport, built once in this process, so that it is loaded once.
fn build_c_plugin_once() -> std::path::PathBuf {
    static PATH: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    PATH.get_or_init(|| build_c_plugin("loopback_transport")).clone()
}

#[test]
fn a_plugin_in_cpp17_carries_messages() {
    with_loopback(|plugin, transport| {
        let note = note_of(&build_c_plugin_once());
        assert_eq!((note.name.as_str(), note.families), ("loopback-transport", family::TRANSPORT));
        assert_eq!(plugin.describe().expect("a description").name, note.name);
        assert_eq!(transport.facts().expect("facts").name, "loopback");

        let mut zero = domain(transport, 0, &[1; 32]);
        let mut one = domain(transport, 1, &[1; 32]);
        let (to_one, to_zero) = channels(&mut zero, &mut one, [5, 5]);
        assert_eq!(zero.channel_state(to_one), Ok(Progress::Done));
        assert_eq!(one.channel_state(to_zero), Ok(Progress::Done));

        // Three segments become two, of other lengths.
        let mut sent: Vec<Vec<u8>> = vec![vec![1; 10], vec![2; 300], vec![3; 7]];
        let mut received: Vec<Vec<u8>> = vec![vec![0; 200], vec![0; 117]];
        let from: Vec<Segment> = sent.iter_mut().map(|part| segment(part)).collect();
        let to: Vec<Segment> = received.iter_mut().map(|part| segment(part)).collect();
        // SAFETY: the buffers live and stay untouched until the completions below.
        unsafe {
            zero.post_send(to_one, &message(11, 0xA, &from)).expect("posted");
            zero.post_send(to_one, &message(12, 0xB, &[])).expect("posted");
            assert!(completions(&mut zero).is_empty());
            assert_eq!(one.arm(), Ok(Progress::Pending));
            one.post_receive(to_zero, &message(21, 0xA, &to)).expect("posted");
            one.post_receive(to_zero, &message(22, 0xB, &[])).expect("posted");
        }
        assert_eq!(one.arm(), Ok(Progress::Done));
        for (domain, kind, channel, first) in [
            (&mut zero, completion_kind::SEND, to_one, 11),
            (&mut one, completion_kind::RECEIVE, to_zero, 21),
        ] {
            let done = completions(domain);
            assert_eq!(done.len(), 2);
            for (index, (completion, length)) in done.iter().zip([317, 0]).enumerate() {
                assert_eq!(completion.outcome(), Status::Ok);
                assert_eq!(completion.token, first + index as u64);
                assert_eq!((completion.kind, completion.channel), (kind, channel));
                assert_eq!(completion.length, length);
            }
        }
        assert_eq!(received.concat(), sent.concat());

        // Another envelope than expected: nothing is written, and the channel is over.
        let mut source = [9_u8; 8];
        let mut untouched = [0x55_u8; 8];
        let (from, to) = ([segment(&mut source)], [segment(&mut untouched)]);
        // SAFETY: the buffers live and stay untouched until the completions below.
        unsafe {
            zero.post_send(to_one, &message(13, 0xC, &from)).expect("posted");
            one.post_receive(to_zero, &message(23, 0xD, &to)).expect("posted");
        }
        let done = completions(&mut one);
        assert_eq!(done[0].outcome(), Status::Mismatch);
        assert_eq!(done[0].envelope, [0xC; ENVELOPE_BYTES]);
        assert_eq!(done[1].kind, completion_kind::CHANNEL_FAILED);
        assert_eq!(untouched, [0x55; 8]);
        assert_eq!(one.channel_state(to_zero).expect_err("over").status, Status::Mismatch);
        drop(zero);
        one.close().expect("closed");
    });
}

#[test]
fn a_plugin_in_cpp17_wakes_quiesces_and_refuses_strangers() {
    with_loopback(|_, transport| {
        let mut zero = domain(transport, 0, &[1; 32]);
        let mut one = domain(transport, 1, &[1; 32]);

        // A wait ends by its own time, by a waker, and by news.
        let begin = Instant::now();
        one.wait(Duration::from_millis(20)).expect("time passes");
        assert!(begin.elapsed() >= Duration::from_millis(20));
        let waker = one.waker();
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake().expect("woken"));
            one.wait(LONG).expect("woken");
        });
        assert!(begin.elapsed() < LONG);

        // Strangers and other links are refused.
        let mut stranger = domain(transport, 0, &[2; 32]);
        let (to_one, to_zero) = channels(&mut stranger, &mut one, [5, 5]);
        assert_eq!(
            stranger.channel_state(to_one).expect_err("a stranger").status,
            Status::Unauthenticated
        );
        assert_eq!(one.channel_state(to_zero), Ok(Progress::Pending));
        one.channel_close(to_zero).expect("closed");
        let (to_one, to_zero) = channels(&mut zero, &mut one, [5, 6]);
        assert_eq!(zero.channel_state(to_one).expect_err("differs").status, Status::Mismatch);
        assert_eq!(one.channel_state(to_zero).expect_err("differs").status, Status::Mismatch);
        one.channel_close(to_zero).expect("closed");
        zero.channel_close(to_one).expect("closed");
        completions(&mut zero);
        completions(&mut one);

        // After `quiesce` a receive is over and its memory is left alone.
        let (to_one, to_zero) = channels(&mut zero, &mut one, [5, 5]);
        let mut memory = [0_u8; 4];
        let segments = [segment(&mut memory)];
        // SAFETY: the buffer lives until the channel is quiet.
        unsafe { one.post_receive(to_zero, &message(1, 1, &segments)) }.expect("posted");
        one.quiesce(to_zero, LONG).expect("quiet");
        let mut late = [1_u8; 4];
        let segments = [segment(&mut late)];
        // SAFETY: the buffer lives until the domain is closed.
        unsafe { zero.post_send(to_one, &message(2, 1, &segments)) }.expect("posted");
        let done = completions(&mut one);
        assert_eq!((done[0].token, done[0].outcome()), (1, Status::Aborted));
        assert_eq!(memory, [0; 4]);

        // The other end learns that this one is gone.
        one.close().expect("closed");
        let done = completions(&mut zero);
        assert_eq!((done[0].token, done[0].outcome()), (2, Status::PeerLost));
        assert_eq!(done[1].kind, completion_kind::CHANNEL_FAILED);
        waker.wake().expect("a waker outlives its domain");
    });
}

#[test]
fn b078_exceptions_do_not_cross() {
    with_loopback(|plugin, transport| {
        let mut zero = domain(transport, 0, &[1; 32]);
        let throw_in = |function: &str| {
            plugin.probe(None, &[("throw_in", function)]).expect("probed");
        };
        throw_in("address");
        let error = zero.address().expect_err("it throws");
        assert!(error.is_panic(), "{error}");
        assert_eq!(error.to_string(), "transport.address: panic: threw in address: asked to throw");
        throw_in("progress");
        let error = zero.progress(&mut []).expect_err("it throws");
        assert_eq!(error.message, "threw in progress: asked to throw");
        throw_in("");
        assert!(completions(&mut zero).is_empty());
        let error = plugin.probe(None, &[("throw_in", "probe")]).expect_err("it throws");
        assert_eq!(error.status, Status::Panic);
        throw_in("");
    });
}

#[test]
fn a_plugin_in_rust_has_two_doors_to_the_same_tables() {
    for (name, families) in [("transport-tcp", family::TRANSPORT), ("host", family::DEVICE)] {
        let path = plugin_folder().join(format!("libiccl_{name}.so"));
        let note = note_of(&path);
        assert_eq!(note.name, name);
        assert_eq!(note.families & families, families);
        let c_view = open_c(&path);
        let root = symbol(&path, ROOT_SYMBOL).expect("the plugin has a Rust door");
        // SAFETY: the symbol is the door of a plugin that stays loaded.
        let rust_view = unsafe { host::open_rust_door(root) }.expect("the Rust door opens");
        assert_eq!(rust_view.families(), note.families);
        let description = rust_view.describe().expect("a description");
        assert_eq!(Ok(&description), c_view.describe().as_ref());
        assert_eq!(description.name, name);
        assert_eq!(description.version, note.version);
    }
}

#[test]
fn a_plugin_of_its_own_hands_its_log_lines_to_the_host() {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    struct Lines;
    impl LogSink for Lines {
        fn log(&self, level: LogLevel, _: &str, message: &str) {
            LINES.lock().expect("lines").push(format!("{level} {message}"));
        }
        fn wanted(&self) -> Option<LogLevel> {
            Some(LogLevel::Debug)
        }
    }
    let plugin = open_c(&plugin_folder().join("libiccl_transport-shm.so"));
    plugin.probe(Some(host::host_table(Lines)), &[]).expect("probed");
    let lines = LINES.lock().expect("lines");
    let expected =
        |line: &String| line.starts_with("debug transport-shm ") && line.contains("is probed sdk=");
    assert!(lines.iter().any(expected), "{lines:?}");
}

#[test]
fn the_guides_example_in_c_compiles() {
    let guide = std::fs::read_to_string(iccl_tests::workspace().join("docs/abi.md"))
        .expect("the guide can be read");
    let example = guide.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("acme.c");
    let library = folder.path().join("libiccl_acme.so");
    std::fs::write(&source, example.expect("the guide has an example")).expect("written");
    iccl_tests::compile_plugin(&source, &library);
    assert_eq!(note_of(&library).name, "acme");
    let entry = symbol(&library, ENTRY_SYMBOL).expect("it has a door");
    // SAFETY: the symbol is the door of a plugin that stays loaded.
    let error = unsafe { host::open_c_door(entry) }.expect_err("the example leaves functions out");
    assert!(error.to_string().starts_with("null mandatory function device.info, "), "{error}");
}

#[test]
fn a_rust_door_that_is_not_understood_leaves_the_c_door() {
    // A header of another `abi_stable`: 64-byte aligned zeroes are no header of ours.
    #[repr(align(64))]
    struct Zeroes([u8; 4096]);
    static ZEROES: Zeroes = Zeroes([0; 4096]);
    // SAFETY: the address is readable for longer than any header, and stays.
    let error = unsafe { host::open_rust_door(ZEROES.0.as_ptr().cast()) }.expect_err("no header");
    assert!(matches!(error, DoorError::NotUnderstood(_)), "{error}");
    assert!(!error.to_string().contains('\n'));
    // SAFETY: null is refused before it is read.
    let error = unsafe { host::open_rust_door(std::ptr::null()) }.expect_err("null");
    assert!(matches!(error, DoorError::NotUnderstood(_)), "{error}");
}
