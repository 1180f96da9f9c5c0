//! Making native communicators: a plugin over host memory, linked in, whose memory the host cannot read, and
//! whose library has unique ids of any length, notes with which id each rank joins, and may never let go.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use iccl_plugin_api::sdk::{
    CollectivesFacts, Device, DeviceBackend, DeviceFacts, HostCallback, NativeCall,
    NativeCollectives, NativeCommunicator, Plugin, PluginError, PluginResult, Progress, Settings,
};
use iccl_plugin_api::tables::{
    CollectiveSupport, DeviceCapabilities, host_to_stream, stream_to_host,
};
use iccl_plugin_api::{Collective, DataType, MemoryKind};
use iccl_plugin_host::HostDevice;
use iccl_runtime::ErrorKind;
use iccl_tests::ranks::{Job, SOON, must_be_right, wait_until};

// Linked in, so that no folder is needed.
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const RANKS: u32 = 4;
/// Added to the addresses of the device's memory: nothing is mapped there in any process.
const FAR_AWAY: usize = 1 << 50;
/// How long an id of the library is, in bytes.
static ID_BYTES: AtomicU64 = AtomicU64::new(128);
/// Who joined, with which id.
static JOINED: Mutex<Vec<(u32, Vec<u8>)>> = Mutex::new(Vec::new());
/// Whether who leaves a communicator comes back only when this is over.
static HOLDS_ON: AtomicBool = AtomicBool::new(false);
/// How many have begun to leave.
static LEAVING: AtomicU64 = AtomicU64::new(0);

/// Held by the test that tells the library how to behave.
fn library() -> MutexGuard<'static, ()> {
    static LIBRARY: Mutex<()> = Mutex::new(());
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

struct LongIds;

impl Plugin for LongIds {
    const NAME: &'static str = "long-ids";
    const VERSION: &'static str = "1.0.0";
    const VENDOR: &'static str = "the tests";
    const DESCRIPTION: &'static str = "has ids of any length";

    fn probe(_: &Settings<'_>) -> PluginResult<Self> {
        Ok(Self)
    }
}

impl DeviceBackend for LongIds {
    type Device = FarDevice;

    fn count(&self) -> PluginResult<u32> {
        Ok(RANKS)
    }

    fn facts(&self, _: u32) -> PluginResult<DeviceFacts> {
        Ok(DeviceFacts {
            name: "far device",
            pci_address: "",
            numa_node: None,
            memory_bytes: 0,
            capabilities: DeviceCapabilities {
                stream_to_host: stream_to_host::HOST_FUNCTION | stream_to_host::EVENT,
                host_to_stream: host_to_stream::WAIT_VALUE,
                host_accessible: 0,
                has_reduce: 0,
                reduce_dtypes: 0,
                reduce_ops: 0,
                region_forms: 0,
                region_alignment: 0,
            },
        })
    }

    fn open(&self, _: u32) -> PluginResult<FarDevice> {
        Ok(FarDevice(HostDevice::new()))
    }
}

struct FarDevice(HostDevice);

/// Where memory really lies.
fn near(pointer: *mut c_void) -> *mut c_void {
    pointer.map_addr(|address| address & (FAR_AWAY - 1))
}

impl Device for FarDevice {
    fn allocate(&self, bytes: u64, kind: MemoryKind) -> PluginResult<*mut c_void> {
        let far = if kind == MemoryKind::Device { FAR_AWAY } else { 0 };
        Ok(self.0.allocate(bytes, kind)?.wrapping_byte_add(far))
    }
    unsafe fn free(&self, pointer: *mut c_void) -> PluginResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.free(near(pointer)) }
    }
    fn memory_kind(&self, pointer: *const c_void) -> PluginResult<MemoryKind> {
        let is_far = pointer.addr() >= FAR_AWAY;
        Ok(if is_far { MemoryKind::Device } else { MemoryKind::Host })
    }
    unsafe fn copy(
        &self,
        stream: u64,
        destination: (*mut c_void, MemoryKind),
        source: (*const c_void, MemoryKind),
        bytes: u64,
    ) -> PluginResult<()> {
        let destination = (near(destination.0), destination.1);
        let source = (near(source.0.cast_mut()).cast_const(), source.1);
        // SAFETY: the caller's promise.
        unsafe { self.0.copy(stream, destination, source, bytes) }
    }
    fn stream_create(&self) -> PluginResult<u64> {
        self.0.stream_create()
    }
    fn stream_destroy(&self, stream: u64) -> PluginResult<()> {
        self.0.stream_destroy(stream)
    }
    fn stream_query(&self, stream: u64) -> PluginResult<Progress> {
        self.0.stream_query(stream)
    }
    fn stream_synchronize(&self, stream: u64, timeout: Duration) -> PluginResult<()> {
        self.0.stream_synchronize(stream, timeout)
    }
    fn host_function(&self, stream: u64, callback: HostCallback) -> PluginResult<()> {
        self.0.host_function(stream, callback)
    }
    unsafe fn stream_wait_value(
        &self,
        stream: u64,
        word: *const u64,
        value: u64,
    ) -> PluginResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.stream_wait_value(stream, word, value) }
    }
    unsafe fn write_value(&self, word: *mut u64, value: u64) -> PluginResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.write_value(word, value) }
    }
    fn event_create(&self) -> PluginResult<u64> {
        self.0.event_create()
    }
    fn event_destroy(&self, event: u64) -> PluginResult<()> {
        self.0.event_destroy(event)
    }
    fn event_record(&self, event: u64, stream: u64) -> PluginResult<()> {
        self.0.event_record(event, stream)
    }
    fn event_query(&self, event: u64) -> PluginResult<Progress> {
        self.0.event_query(event)
    }
}

/// No byte repeats its neighbour, and no part repeats another soon.
fn id_of(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at * 131 % 251) as u8).collect()
}

impl NativeCollectives for LongIds {
    type Backend = Self;
    type Communicator = Noted;

    fn facts(&self) -> PluginResult<CollectivesFacts> {
        const SUPPORT: &[CollectiveSupport] =
            &[CollectiveSupport::new(Collective::Broadcast, DataType::ALL, &[])];
        Ok(CollectivesFacts {
            unique_id_bytes: ID_BYTES.load(Ordering::SeqCst),
            support: SUPPORT,
            flags: 0,
            library: "long ids 1",
        })
    }

    fn unique_id(&self) -> PluginResult<Vec<u8>> {
        Ok(id_of(ID_BYTES.load(Ordering::SeqCst)))
    }

    fn join(&self, _: &FarDevice, id: &[u8], ranks: u32, rank: u32) -> PluginResult<Noted> {
        assert_eq!(ranks, RANKS);
        JOINED.lock().unwrap_or_else(PoisonError::into_inner).push((rank, id.to_vec()));
        Ok(Noted)
    }
}

/// A communicator that nobody uses: sums are made by iccl.
struct Noted;

impl NativeCommunicator for Noted {
    unsafe fn call(&self, call: &NativeCall<'_>, _: u64) -> PluginResult<()> {
        Err(PluginError::not_supported(format!("nobody may ask for {}", call.collective)))
    }
    fn async_error(&self) -> PluginResult<Progress> {
        Ok(Progress::Done)
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        LEAVING.fetch_add(1, Ordering::SeqCst);
        while HOLDS_ON.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

iccl_plugin_api::export_plugin! { plugin: LongIds, device: LongIds, collectives: LongIds }

fn job() -> Job {
    (0..RANKS).fold(Job::new(RANKS).with("device.backend", "long-ids"), |job, rank| {
        job.with_on(rank, "bootstrap.local_rank", &rank.to_string())
    })
}

/// B030: every rank joins with every byte of the id, and one that is too long is no id.
#[test]
fn b030_ids_of_any_length_reach_every_rank_whole() {
    let _library = library();
    for bytes in [1, 128, 136, 256, 4108, 65_536] {
        ID_BYTES.store(bytes, Ordering::SeqCst);
        job().run(|communicator| {
            must_be_right(communicator);
            let islands = communicator.plan().islands();
            assert!(islands.len() == 1 && islands[0].is_used(), "{bytes}: {islands:?}");
        });
        let mut joined = std::mem::take(&mut *JOINED.lock().expect("nobody panicked"));
        joined.sort();
        let expected: Vec<_> = (0..RANKS).map(|rank| (rank, id_of(bytes))).collect();
        assert!(
            joined == expected,
            "{bytes}: {:?}",
            joined.iter().map(|one| one.0).collect::<Vec<_>>()
        );
    }
    for bytes in [0, 65_537, u64::MAX] {
        ID_BYTES.store(bytes, Ordering::SeqCst);
        job().run(|communicator| {
            must_be_right(communicator);
            let islands = communicator.plan().islands();
            let why = islands[0].why_unused().expect("a reason");
            assert!(why.contains(&format!("{bytes} bytes")), "{why}");
        });
        assert_eq!(JOINED.lock().expect("nobody panicked").len(), 0, "{bytes}");
    }
}

/// What fails after the native communicators were made does not wait for a library that does not let go.
#[test]
fn an_initialisation_that_fails_does_not_wait_for_the_library() {
    let _library = library();
    let before = LEAVING.load(Ordering::SeqCst);
    HOLDS_ON.store(true, Ordering::SeqCst);
    ID_BYTES.store(128, Ordering::SeqCst);
    let started = Instant::now();
    // So that the test ends if they wait.
    std::thread::spawn(|| {
        std::thread::sleep(2 * SOON);
        HOLDS_ON.store(false, Ordering::SeqCst);
    });
    // A rule that matches no link is a warning, and so an error.
    let rule = r#"[{ between = ["host:nowhere", "host:nowhere"], forbid = "tcp" }]"#;
    let job = job().with("plan.rule", rule).with("device.on_degrade", "fail");
    for outcome in job.try_run(|_| ()) {
        let error = outcome.expect_err("a warning is an error");
        assert_eq!(error.kind(), ErrorKind::PlanUnsatisfiable, "{error}");
    }
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    HOLDS_ON.store(false, Ordering::SeqCst);
    wait_until("all leave", || LEAVING.load(Ordering::SeqCst) - before == u64::from(RANKS));
    JOINED.lock().expect("nobody panicked").clear();
}
