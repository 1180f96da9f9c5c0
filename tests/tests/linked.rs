//! Plugins that are linked into the program: they take the same path as those in files. Here are one
//! of the workspace's, one that panics wherever it can, and one whose library is wrong.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use iccl_plugin_api::host::OpenDevice;
use iccl_plugin_api::sdk::{
    CollectivesFacts, Device, DeviceBackend, DeviceFacts, NativeCall, NativeCollectives,
    NativeCommunicator, Plugin, PluginError, PluginResult, Progress, Settings,
};
use iccl_plugin_api::tables::{CollectiveSupport, DeviceCapabilities};
use iccl_plugin_api::{Collective, DataType, MemoryKind, RedOp};
use iccl_plugin_host as _;
use iccl_runtime::ErrorKind;
use iccl_runtime::config::{Config, Sources};
use iccl_runtime::plugins::{Door, PluginSet, Record, SelfTest, call_error};

fn load(settings: &[(&str, &str)]) -> PluginSet {
    let sources = settings
        .iter()
        .fold(Sources::default(), |sources, (key, value)| sources.with(*key, *value));
    PluginSet::load(&Config::load(&sources).unwrap()).unwrap()
}

fn record<'a>(set: &'a PluginSet, name: &str) -> &'a Record {
    let found = set.records().iter().find(|record| record.name.as_deref() == Some(name));
    found.unwrap_or_else(|| panic!("no record of {name}"))
}

#[test]
fn a_linked_plugin_is_active_without_a_folder() {
    let set = load(&[]);
    let host = record(&set, "host");
    assert!(host.is_active(), "{host}");
    assert_eq!(host.door, Some(Door::Linked));
    assert_eq!(host.path.to_str(), Some("(linked into the program)"));
    assert_eq!(host.kinds, ["device"]);
    set.devices_of("host").next().unwrap().open().unwrap().close().unwrap();

    let set = load(&[("plugins.disable", "host")]);
    assert_eq!(record(&set, "host").reason.unwrap().code(), "disabled");
    assert!(set.plugin("host").is_none());
}

#[test]
fn a_file_of_the_same_name_gives_way() {
    let folder = iccl_tests::plugin_folder();
    let set = load(&[("plugins.path", folder.to_str().unwrap())]);
    let file = folder.join("libiccl_host.so");
    let file = set.records().iter().find(|record| record.path == file).unwrap();
    assert_eq!(file.reason.unwrap().code(), "linked-in", "{file}");
    assert_eq!(set.plugin("host").unwrap().door(), Door::Linked);
    assert!(set.transport("tcp").is_some(), "the others are loaded from the folder");
}

#[test]
fn b078_every_call_may_panic_and_the_others_work_on() {
    let set = load(&[]);
    let device = set.devices_of("clumsy").next().unwrap().open().unwrap();
    let panics = |call: &str, error: Option<iccl_plugin_api::host::CallError>| {
        let error = call_error("clumsy", error.expect("it panics"));
        assert_eq!(error.kind(), ErrorKind::PluginPanic, "{error}");
        let begin = format!("plugin clumsy panicked in device.{call}: {call} is not for me");
        assert!(error.to_string().starts_with(&begin), "{error}");
    };
    let mut byte = 0_u8;
    let place = (std::ptr::from_mut(&mut byte).cast::<c_void>(), MemoryKind::Host);
    panics("allocate", device.allocate(1, MemoryKind::Device).err());
    panics("stream_create", device.stream_create().err());
    panics("stream_query", device.stream_query(1).err());
    panics("stream_synchronize", device.stream_synchronize(1, Duration::ZERO).err());
    panics("stream_destroy", device.stream_destroy(1).err());
    panics("memory_kind", device.memory_kind(std::ptr::null()).err());
    // SAFETY: the plugin panics before it touches anything.
    unsafe {
        panics("free", device.free(std::ptr::null_mut()).err());
        panics("copy", device.copy(0, place, (place.0.cast_const(), place.1), 1).err());
    }
    let host: OpenDevice = set.devices_of("host").next().unwrap().open().unwrap();
    let pointer = host.allocate(64, MemoryKind::Device).unwrap();
    // SAFETY: it was just allocated.
    unsafe { host.free(pointer) }.unwrap();
}

#[test]
fn b077_a_thread_that_used_a_plugin_may_end_after_it_was_closed() {
    let set = load(&[]);
    std::thread::spawn(move || {
        let device = set.devices_of("clumsy").next().unwrap().open().unwrap();
        device.close().unwrap();
    })
    .join()
    .unwrap();
}

#[test]
fn a_sum_in_place_of_a_mean_is_struck_and_the_rest_is_used() {
    let set = load(&[]);
    let record = record(&set, "liar");
    assert!(record.is_active(), "{record}");
    let SelfTest::Struck(struck) = &record.self_test else { panic!("{record}") };
    assert_eq!(struck, &["all_reduce f32 avg (its result differs from the host's)"]);
    assert!(record.to_string().contains("not used for all_reduce f32 avg"), "{record}");
    let support = set.collectives_of("liar").unwrap().support();
    let offers = |dtype: DataType, op: RedOp| {
        support.iter().any(|each| each.dtypes & dtype.mask() != 0 && each.ops & op.mask() != 0)
    };
    assert!(offers(DataType::F32, RedOp::Sum) && offers(DataType::I32, RedOp::Avg));
    assert!(!offers(DataType::F32, RedOp::Avg));
}

/// Panics wherever it can, once it is open.
struct Clumsy;

impl Plugin for Clumsy {
    const NAME: &'static str = "clumsy";
    const VERSION: &'static str = "1.0.0";
    const VENDOR: &'static str = "the tests";
    const DESCRIPTION: &'static str = "panics";

    fn probe(_: &Settings<'_>) -> PluginResult<Self> {
        Ok(Self)
    }
}

fn plain_facts(name: &'static str) -> DeviceFacts {
    DeviceFacts {
        name,
        pci_address: "",
        numa_node: None,
        memory_bytes: 0,
        capabilities: DeviceCapabilities {
            stream_to_host: 0,
            host_to_stream: 0,
            host_accessible: 1,
            has_reduce: 0,
            reduce_dtypes: 0,
            reduce_ops: 0,
            region_forms: 0,
            region_alignment: 0,
        },
    }
}

impl DeviceBackend for Clumsy {
    type Device = ClumsyDevice;

    fn count(&self) -> PluginResult<u32> {
        Ok(1)
    }

    fn facts(&self, _: u32) -> PluginResult<DeviceFacts> {
        Ok(plain_facts("clumsy device"))
    }

    fn open(&self, _: u32) -> PluginResult<ClumsyDevice> {
        thread_local! {
            static LEFT: Left = const { Left };
        }
        LEFT.with(|_| ());
        Ok(ClumsyDevice)
    }
}

/// Something that a plugin leaves to be dropped when the thread ends.
struct Left;

impl Drop for Left {
    fn drop(&mut self) {
        std::hint::black_box(std::thread::current().id());
    }
}

struct ClumsyDevice;

impl Device for ClumsyDevice {
    fn allocate(&self, _: u64, _: MemoryKind) -> PluginResult<*mut c_void> {
        panic!("allocate is not for me");
    }
    unsafe fn free(&self, _: *mut c_void) -> PluginResult<()> {
        panic!("free is not for me");
    }
    fn memory_kind(&self, _: *const c_void) -> PluginResult<MemoryKind> {
        panic!("memory_kind is not for me");
    }
    unsafe fn copy(
        &self,
        _: u64,
        _: (*mut c_void, MemoryKind),
        _: (*const c_void, MemoryKind),
        _: u64,
    ) -> PluginResult<()> {
        panic!("copy is not for me");
    }
    fn stream_create(&self) -> PluginResult<u64> {
        panic!("stream_create is not for me");
    }
    fn stream_destroy(&self, _: u64) -> PluginResult<()> {
        panic!("stream_destroy is not for me");
    }
    fn stream_query(&self, _: u64) -> PluginResult<Progress> {
        panic!("stream_query is not for me");
    }
    fn stream_synchronize(&self, _: u64, _: Duration) -> PluginResult<()> {
        panic!("stream_synchronize is not for me");
    }
}

iccl_plugin_api::export_plugin! { plugin: Clumsy, device: Clumsy }

/// Two devices over host memory and a native library that returns the sum for the mean of floats.
struct Liar;

impl Plugin for Liar {
    const NAME: &'static str = "liar";
    const VERSION: &'static str = "1.0.0";
    const VENDOR: &'static str = "the tests";
    const DESCRIPTION: &'static str = "has a library that is wrong";

    fn probe(_: &Settings<'_>) -> PluginResult<Self> {
        Ok(Self)
    }
}

impl DeviceBackend for Liar {
    type Device = LiarDevice;

    fn count(&self) -> PluginResult<u32> {
        Ok(2)
    }

    fn facts(&self, _: u32) -> PluginResult<DeviceFacts> {
        Ok(plain_facts("liar device"))
    }

    fn open(&self, _: u32) -> PluginResult<LiarDevice> {
        Ok(LiarDevice)
    }
}

struct LiarDevice;

/// Of all allocations.
const BLOCK: std::alloc::Layout = match std::alloc::Layout::from_size_align(4096, 64) {
    Ok(layout) => layout,
    Err(_) => panic!("this is a layout"),
};

impl Device for LiarDevice {
    fn allocate(&self, bytes: u64, _: MemoryKind) -> PluginResult<*mut c_void> {
        assert!(bytes <= BLOCK.size() as u64);
        // SAFETY: the layout has a size.
        Ok(unsafe { std::alloc::alloc_zeroed(BLOCK) }.cast())
    }
    unsafe fn free(&self, pointer: *mut c_void) -> PluginResult<()> {
        // SAFETY: the caller promises that it came from `allocate`.
        unsafe { std::alloc::dealloc(pointer.cast(), BLOCK) };
        Ok(())
    }
    fn memory_kind(&self, _: *const c_void) -> PluginResult<MemoryKind> {
        Ok(MemoryKind::Host)
    }
    unsafe fn copy(
        &self,
        _: u64,
        destination: (*mut c_void, MemoryKind),
        source: (*const c_void, MemoryKind),
        bytes: u64,
    ) -> PluginResult<()> {
        let (to, from) = (destination.0.cast::<u8>(), source.0.cast::<u8>());
        // SAFETY: the caller promises that both sides are valid and do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes as usize) };
        Ok(())
    }
    fn stream_create(&self) -> PluginResult<u64> {
        Ok(1)
    }
    fn stream_destroy(&self, _: u64) -> PluginResult<()> {
        Ok(())
    }
    fn stream_query(&self, _: u64) -> PluginResult<Progress> {
        Ok(Progress::Done)
    }
    fn stream_synchronize(&self, _: u64, _: Duration) -> PluginResult<()> {
        Ok(())
    }
}

/// The contributions of one communicator's calls, by the number of the call.
#[derive(Default)]
struct Table {
    contributions: Mutex<HashMap<u64, Vec<Vec<i32>>>>,
    arrived: Condvar,
}

/// The tables of all communicators, by unique id.
static TABLES: Mutex<Vec<(Vec<u8>, Arc<Table>)>> = Mutex::new(Vec::new());

struct LiarCommunicator {
    table: Arc<Table>,
    ranks: u32,
    calls: Mutex<u64>,
}

impl NativeCollectives for Liar {
    type Backend = Liar;
    type Communicator = LiarCommunicator;

    fn facts(&self) -> PluginResult<CollectivesFacts> {
        const SUPPORT: &[CollectiveSupport] = &[CollectiveSupport::new(
            Collective::AllReduce,
            &[DataType::F32, DataType::I32],
            &[RedOp::Sum, RedOp::Avg],
        )];
        Ok(CollectivesFacts { unique_id_bytes: 8, support: SUPPORT, flags: 0, library: "liar 1" })
    }

    fn unique_id(&self) -> PluginResult<Vec<u8>> {
        let number = TABLES.lock().unwrap_or_else(PoisonError::into_inner).len() as u64;
        Ok(number.to_le_bytes().to_vec())
    }

    fn join(
        &self,
        _: &LiarDevice,
        unique_id: &[u8],
        ranks: u32,
        _: u32,
    ) -> PluginResult<LiarCommunicator> {
        let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        let known =
            tables.iter().find(|(id, _)| id == unique_id).map(|(_, table)| Arc::clone(table));
        let table = known.unwrap_or_else(|| {
            let table = Arc::new(Table::default());
            tables.push((unique_id.to_vec(), Arc::clone(&table)));
            table
        });
        Ok(LiarCommunicator { table, ranks, calls: Mutex::new(0) })
    }
}

impl NativeCommunicator for LiarCommunicator {
    unsafe fn call(&self, call: &NativeCall<'_>, _: u64) -> PluginResult<()> {
        let number = {
            let mut calls = self.calls.lock().unwrap();
            *calls += 1;
            *calls
        };
        let count = call.count as usize;
        let float = call.dtype == DataType::F32;
        // SAFETY: the caller promises `count` elements of 4 bytes.
        let mine: Vec<i32> = unsafe {
            if float {
                let send = std::slice::from_raw_parts(call.send.cast::<f32>(), count);
                send.iter().map(|&value| value as i32).collect()
            } else {
                std::slice::from_raw_parts(call.send.cast::<i32>(), count).to_vec()
            }
        };
        let mut contributions = self.table.contributions.lock().unwrap();
        contributions.entry(number).or_default().push(mine);
        self.table.arrived.notify_all();
        while contributions[&number].len() < self.ranks as usize {
            let wait = Duration::from_secs(60);
            let (guard, timeout) = self.table.arrived.wait_timeout(contributions, wait).unwrap();
            contributions = guard;
            if timeout.timed_out() {
                return Err(PluginError::new(iccl_plugin_api::Status::Timeout, "nobody came"));
            }
        }
        let divisor = match (call.op, float) {
            (Some(RedOp::Avg), false) => i64::from(self.ranks),
            // What is wrong with this library.
            _ => 1,
        };
        for index in 0..count {
            let each = contributions[&number].iter().map(|each| i64::from(each[index]));
            let sum: i64 = each.sum();
            // SAFETY: as above, and nobody else touches what is received.
            unsafe {
                if float {
                    call.receive.cast::<f32>().add(index).write((sum / divisor) as f32);
                } else {
                    call.receive.cast::<i32>().add(index).write((sum / divisor) as i32);
                }
            }
        }
        Ok(())
    }

    fn async_error(&self) -> PluginResult<Progress> {
        Ok(Progress::Done)
    }
}

iccl_plugin_api::export_plugin! { plugin: Liar, device: Liar, collectives: Liar }
