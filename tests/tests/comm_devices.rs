//! Devices that can do less than host memory, and devices that fail: a plugin over host memory, linked in,
//! whose streams lack what the runtime can do without, whose memory may lie where the host cannot read
//! it, and whose calls fail when they are told to.

use std::ffi::c_void;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use iccl_plugin_api::sdk::{
    Device, DeviceBackend, DeviceFacts, HostCallback, Plugin, PluginError, PluginResult, Progress,
    Settings,
};
use iccl_plugin_api::tables::{DeviceCapabilities, host_to_stream, stream_to_host};
use iccl_plugin_api::{DataType, MemoryKind, RedOp, Status};
use iccl_plugin_host::HostDevice;
use iccl_runtime::comm::{Buffer, Communicator, Group, Handle, Reduction, Scalar, Stream};
use iccl_runtime::{Error, ErrorKind, Result};
use iccl_tests::ranks::{Job, SOON, must_be_right, wait_until};

// Linked in, so that no folder is needed.
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const I32: DataType = DataType::I32;
const SUM: RedOp = RedOp::Sum;

// --- The device ---------------------------------------------------------------------------------

/// Enough that every test has its own. What number `n` can do is told by `n % 4`, and by these.
const DEVICES: usize = 64;
/// From this one on, nobody may follow a pointer into a device's memory.
const FIRST_FAR: u32 = 32;
/// From this one on, there are events.
const FIRST_WITH_EVENTS: u32 = 48;
/// Gives no pinned memory, though its own is far.
const WITHOUT_PINNED: u32 = 47;
/// Added to the addresses of memory that is far: nothing is mapped there in any process.
const FAR_AWAY: usize = 1 << 50;
/// How many more calls of each device succeed; below 0: all.
static CALLS_LEFT: [AtomicI64; DEVICES] = [const { AtomicI64::new(-1) }; DEVICES];

struct Obstinate;

impl Plugin for Obstinate {
    const NAME: &'static str = "obstinate";
    const VERSION: &'static str = "1.0.0";
    const VENDOR: &'static str = "the tests";
    const DESCRIPTION: &'static str = "fails when told to";

    fn probe(_: &Settings<'_>) -> PluginResult<Self> {
        Ok(Self)
    }
}

const fn calls_host(index: u32) -> bool {
    index.is_multiple_of(2)
}

const fn is_far(index: u32) -> bool {
    index >= FIRST_FAR
}

const fn waits_for_host(index: u32) -> bool {
    index % 4 < 2
}

impl DeviceBackend for Obstinate {
    type Device = ObstinateDevice;

    fn count(&self) -> PluginResult<u32> {
        Ok(DEVICES as u32)
    }

    fn facts(&self, index: u32) -> PluginResult<DeviceFacts> {
        Ok(DeviceFacts {
            name: "obstinate device",
            pci_address: "",
            numa_node: None,
            memory_bytes: 0,
            capabilities: DeviceCapabilities {
                stream_to_host: if calls_host(index) { stream_to_host::HOST_FUNCTION } else { 0 }
                    | if index >= FIRST_WITH_EVENTS { stream_to_host::EVENT } else { 0 },
                host_to_stream: if waits_for_host(index) { host_to_stream::WAIT_VALUE } else { 0 },
                host_accessible: u32::from(!is_far(index)),
                has_reduce: 0,
                reduce_dtypes: 0,
                reduce_ops: 0,
                region_forms: 0,
                region_alignment: 0,
            },
        })
    }

    fn open(&self, index: u32) -> PluginResult<ObstinateDevice> {
        Ok(ObstinateDevice { index, host: HostDevice::new() })
    }
}

struct ObstinateDevice {
    index: u32,
    host: HostDevice,
}

impl ObstinateDevice {
    fn may(&self) -> PluginResult<()> {
        let left = &CALLS_LEFT[self.index as usize];
        if left.load(Ordering::SeqCst) >= 0 && left.fetch_sub(1, Ordering::SeqCst) == 0 {
            return Err(PluginError::new(Status::OutOfResources, "no more of that"));
        }
        Ok(())
    }
}

impl Device for ObstinateDevice {
    fn allocate(&self, bytes: u64, kind: MemoryKind) -> PluginResult<*mut c_void> {
        self.may()?;
        if self.index == WITHOUT_PINNED && kind == MemoryKind::PinnedHost {
            return Err(PluginError::not_supported("there is no such memory"));
        }
        let far = if is_far(self.index) && kind == MemoryKind::Device { FAR_AWAY } else { 0 };
        Ok(self.host.allocate(bytes, kind)?.wrapping_byte_add(far))
    }
    unsafe fn free(&self, pointer: *mut c_void) -> PluginResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.host.free(near(pointer)) }
    }
    fn memory_kind(&self, pointer: *const c_void) -> PluginResult<MemoryKind> {
        let is_device = !is_far(self.index) || pointer.addr() >= FAR_AWAY;
        Ok(if is_device { MemoryKind::Device } else { MemoryKind::Host })
    }
    unsafe fn copy(
        &self,
        stream: u64,
        destination: (*mut c_void, MemoryKind),
        source: (*const c_void, MemoryKind),
        bytes: u64,
    ) -> PluginResult<()> {
        if is_far(self.index) {
            self.may()?;
        }
        for (address, kind) in [(destination.0.addr(), destination.1), (source.0.addr(), source.1)]
        {
            let far = is_far(self.index) && kind == MemoryKind::Device;
            assert_eq!(address >= FAR_AWAY, far, "{address:x} is no {kind} memory");
        }
        let destination = (near(destination.0), destination.1);
        let source = (near(source.0.cast_mut()).cast_const(), source.1);
        // SAFETY: the caller's promise.
        unsafe { self.host.copy(stream, destination, source, bytes) }
    }
    fn stream_create(&self) -> PluginResult<u64> {
        self.may()?;
        self.host.stream_create()
    }
    fn stream_destroy(&self, stream: u64) -> PluginResult<()> {
        self.host.stream_destroy(stream)
    }
    fn stream_query(&self, stream: u64) -> PluginResult<Progress> {
        self.host.stream_query(stream)
    }
    fn stream_synchronize(&self, stream: u64, timeout: Duration) -> PluginResult<()> {
        self.host.stream_synchronize(stream, timeout)
    }
    fn host_function(&self, stream: u64, callback: HostCallback) -> PluginResult<()> {
        assert!(calls_host(self.index), "it said that it cannot");
        self.may()?;
        self.host.host_function(stream, callback)
    }
    unsafe fn stream_wait_value(
        &self,
        stream: u64,
        word: *const u64,
        value: u64,
    ) -> PluginResult<()> {
        assert!(waits_for_host(self.index), "it said that it cannot");
        self.may()?;
        // SAFETY: the caller's promise.
        unsafe { self.host.stream_wait_value(stream, word, value) }
    }
    unsafe fn write_value(&self, word: *mut u64, value: u64) -> PluginResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.host.write_value(word, value) }
    }
    fn event_create(&self) -> PluginResult<u64> {
        assert!(self.index >= FIRST_WITH_EVENTS, "it said that it has none");
        self.may()?;
        self.host.event_create()
    }
    fn event_destroy(&self, event: u64) -> PluginResult<()> {
        self.host.event_destroy(event)
    }
    fn event_record(&self, event: u64, stream: u64) -> PluginResult<()> {
        self.may()?;
        self.host.event_record(event, stream)
    }
    fn event_query(&self, event: u64) -> PluginResult<Progress> {
        self.host.event_query(event)
    }
}

/// Where memory really lies.
fn near(pointer: *mut c_void) -> *mut c_void {
    pointer.map_addr(|address| address & (FAR_AWAY - 1))
}

iccl_plugin_api::export_plugin! { plugin: Obstinate, device: Obstinate }

/// A job whose ranks have these devices.
fn job_on(devices: &[usize]) -> Job {
    let job = Job::new(devices.len() as u32).with("device.backend", "obstinate");
    (0..).zip(devices).fold(job, |job, (rank, device)| {
        job.with_on(rank, "bootstrap.local_rank", &device.to_string())
    })
}

fn fail_after(device: usize, calls: i64) {
    CALLS_LEFT[device].store(calls, Ordering::SeqCst);
}

/// Whether the failure that was asked for has come.
fn has_failed(device: usize) -> bool {
    CALLS_LEFT[device].swap(-1, Ordering::SeqCst) < 0
}

// --- Devices that can do less ---------------------------------------------------------------------

fn filled(communicator: &Communicator, value: i32) -> Buffer {
    communicator.device().buffer_from(&vec![value; 3000]).expect("memory")
}

fn must_hold(buffer: &Buffer, value: i32) {
    assert_eq!(buffer.read::<i32>().expect("memory"), vec![value; 3000]);
}

#[test]
fn streams_that_cannot_wait_are_waited_for() {
    // A rank of each kind, on memory that the host reads, and on memory that it does not, with events
    // and without.
    for devices in [[0, 1, 2, 3], [32, 33, 34, 35], [48, 49, 50, 51], [0, 33, 50, 3]] {
        streams_are_waited_for_on(&devices);
    }
}

fn streams_are_waited_for_on(devices: &[usize; 4]) {
    job_on(devices).run(|communicator| {
        let index = communicator.device().index();
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let device = communicator.device();
        let (stream, other) = (device.stream().expect("one"), device.stream().expect("one"));
        assert_eq!(stream.hold().is_ok(), waits_for_host(index));
        for round in 0..20 {
            must_be_right(communicator);
            let sum = filled(communicator, rank as i32 + round);
            let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
            let received = filled(communicator, -1);
            let sent = filled(communicator, rank as i32);
            let own = filled(communicator, -1);
            let handles = Group::run(|| {
                Ok([
                    communicator.send(&sent, 3000, I32, next, &stream)?,
                    communicator.all_reduce(&sum, &sum, 3000, I32, SUM, &stream)?,
                    communicator.recv(&received, 3000, I32, before, &stream)?,
                    communicator.send(&sent, 3000, I32, rank, &stream)?,
                    communicator.recv(&own, 3000, I32, rank, &other)?,
                ])
            });
            let handles = handles.unwrap_or_else(|error| panic!("{error}"));
            if !waits_for_host(index) {
                assert!(handles.iter().all(Handle::is_over), "who enqueues waits");
            }
            for handle in &handles {
                handle.wait().unwrap_or_else(|error| panic!("{error}"));
            }
            must_hold(&sum, 6 + 4 * round);
            must_hold(&received, before as i32);
            must_hold(&own, rank as i32);
        }
    });
}

/// A stream that cannot say when it comes to an operation is waited for, but not for ever.
#[test]
fn a_stream_that_does_not_come_is_waited_for_no_longer_than_an_operation() {
    for device in [5, 37, 53] {
        let job = job_on(&[device]).with("engine.op_timeout", "300ms");
        job.run(|communicator| {
            let device = communicator.device();
            let stream = device.stream().expect("a stream");
            let buffer = filled(communicator, 3);
            let hold = stream.hold().expect("it waits for the host");
            let begun = Instant::now();
            let called = communicator.all_reduce(&buffer, &buffer, 3000, I32, SUM, &stream);
            let error = called.expect_err("the stream is held");
            assert!(begun.elapsed() < SOON);
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            let text = error.to_string();
            assert!(text.contains("all_reduce") && text.contains("obstinate device"), "{text}");
            hold.release();
            // Nothing took place, and nothing stays.
            stream.synchronize_for(SOON).unwrap_or_else(|error| panic!("{error}"));
            communicator
                .all_reduce(&buffer, &buffer, 3000, I32, SUM, &stream)
                .and_then(|handle| handle.wait())
                .unwrap_or_else(|error| panic!("{error}"));
            must_hold(&buffer, 3);
        });
    }
}

#[test]
fn a_device_whose_memory_nobody_can_reach_is_refused() {
    let job = job_on(&[WITHOUT_PINNED as usize, 0]);
    let runtime = job.runtime(0).expect("its plugin is there");
    let error = runtime.device().expect_err("there is no way to its memory");
    assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
    assert!(error.message().contains("gives no pinned host memory"), "{error}");
    assert!(error.to_string().contains("there is no such memory"), "{error}");
    for outcome in job.try_run(|_| ()) {
        let error = outcome.expect_err("rank 0 has no device");
        assert_eq!(error.rank().unwrap_or(0), 0, "{error}");
    }
}

#[test]
fn memory_that_is_not_the_devices_is_refused_before_a_byte_moves() {
    job_on(&[56, 57]).run(|communicator| {
        let stream = communicator.stream();
        let far = filled(communicator, communicator.rank() as i32);
        let mut here = vec![7_i32; 3000];
        let before = communicator.counters().peer(1 - communicator.rank());
        for (send, receive, what) in [
            (here.as_ptr().cast(), far.address(), "send buffer"),
            (far.address().cast_const(), here.as_mut_ptr().cast(), "receive buffer"),
        ] {
            let called =
                // SAFETY: one of the two is refused; both live until then.
                unsafe { communicator.all_reduce_raw(send, receive, 3000, I32, SUM, stream) };
            let error = called.expect_err("host memory");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.message().contains(&format!("the {what} is host memory")), "{error}");
        }
        let scalar = 2_i32;
        // SAFETY: it is refused; it lives until then.
        let scalar = unsafe { Scalar::in_memory((&raw const scalar).cast()) };
        let reduction = Reduction::pre_mul_sum(scalar);
        let error = communicator.all_reduce(&far, &far, 3000, I32, reduction, stream);
        let error = error.expect_err("host memory");
        assert!(error.message().contains("the scalar is host memory"), "{error}");
        assert_eq!(communicator.counters().peer(1 - communicator.rank()), before);
        must_hold(&far, communicator.rank() as i32);
        // What is the device's is taken, scalars too.
        let factor = communicator.device().buffer_from(&[communicator.rank() as i32 + 1]);
        let factor = factor.expect("memory");
        let reduction = Reduction::pre_mul_sum(Scalar::in_buffer(&factor));
        communicator
            .all_reduce(&far, &far, 3000, I32, reduction, stream)
            .and_then(|handle| handle.wait())
            .unwrap_or_else(|error| panic!("{error}"));
        must_hold(&far, 2);
    });
}

// --- Devices that fail ------------------------------------------------------------------------------

/// Makes a group on three streams; each needs two calls of the device.
fn grouped(communicator: &Communicator, streams: &[Stream; 3]) -> Result<[Buffer; 3]> {
    let (rank, peer) = (communicator.rank(), 1 - communicator.rank());
    let sent = filled(communicator, 10 + rank as i32);
    let results = [-1, rank as i32, -1].map(|value| filled(communicator, value));
    Group::run(|| {
        drop(communicator.send(&sent, 3000, I32, peer, &streams[0])?);
        drop(communicator.recv(&results[0], 3000, I32, peer, &streams[1])?);
        drop(communicator.all_reduce(&results[1], &results[1], 3000, I32, SUM, &streams[2])?);
        drop(communicator.send(&sent, 3000, I32, rank, &streams[0])?);
        drop(communicator.recv(&results[2], 3000, I32, rank, &streams[2])?);
        Ok(())
    })?;
    Ok(results)
}

#[test]
fn a_group_that_a_driver_refuses_in_part_does_not_take_place() {
    job_on(&[4, 8]).run(|communicator| {
        let device = communicator.device();
        let (rank, peer) = (communicator.rank(), 1 - communicator.rank());
        let streams = [0, 1, 2].map(|_| device.stream().expect("a stream"));
        for refused in 0..6 {
            if rank == 0 {
                let before = filled(communicator, 0);
                // Memory is allocated before: four buffers.
                fail_after(4, 4 + refused);
                let error = grouped(communicator, &streams).expect_err("refused");
                assert!(has_failed(4));
                assert_eq!(error.kind(), ErrorKind::OutOfResources, "{error}");
                assert!(error.to_string().contains("no more of that"), "{error}");
                for stream in &streams {
                    // Nothing is behind, and nothing stays.
                    stream.synchronize_for(SOON).unwrap_or_else(|error| panic!("{error}"));
                    assert!(stream.is_done().expect("a stream"));
                }
                // A single call neither.
                fail_after(4, refused % 2);
                let call = communicator.all_reduce(&before, &before, 3000, I32, SUM, &streams[0]);
                assert_eq!(call.expect_err("refused").kind(), ErrorKind::OutOfResources);
                assert!(has_failed(4));
                must_hold(&before, 0);
            }
            // The other rank has seen nothing of it.
            let results = grouped(communicator, &streams).unwrap_or_else(|error| panic!("{error}"));
            for stream in &streams {
                stream.synchronize_for(SOON).unwrap_or_else(|error| panic!("{error}"));
            }
            let expected = [10 + peer as i32, 1, 10 + rank as i32];
            for (buffer, value) in results.iter().zip(expected) {
                must_hold(buffer, value);
            }
        }
    });
}

/// Rank 1's device fails at the k-th of its calls while three ranks meet; they have communicators, or all of
/// them learn of it.
#[test]
fn b037_a_device_that_fails_at_any_step_of_the_initialisation() {
    for failing in [16, 40] {
        a_device_that_fails_while_ranks_meet(failing);
    }
}

fn a_device_that_fails_while_ranks_meet(failing: usize) {
    let mut failures = 0;
    for step in 0.. {
        let job = job_on(&[12, failing, 20]).with("bootstrap.init_timeout", "30s");
        fail_after(failing, step);
        let started = Instant::now();
        let outcomes = job.try_run(|communicator| {
            if communicator.rank() == 1 {
                return Ok(());
            }
            // Who has a communicator learns of the failure from it, waiting or not.
            let pending = communicator.barrier(communicator.stream())?;
            let buffer = communicator.device().allocate::<i32>(1)?;
            let late = communicator.recv(&buffer, 1, I32, 1, &communicator.device().stream()?);
            for handle in [Ok(pending), late] {
                handle.and_then(|handle| handle.wait())?;
            }
            Ok(())
        });
        assert!(started.elapsed() < SOON, "step {step}: {:?}", started.elapsed());
        if !has_failed(failing) {
            // Nothing is left that could fail before the communicator stands: what remains is rank 1,
            // which goes at once.
            assert!(outcomes[1].is_ok(), "step {step}");
            break;
        }
        failures += 1;
        let error = outcomes[1].as_ref().expect_err("its device failed");
        assert_eq!(error.kind(), ErrorKind::OutOfResources, "step {step}: {error}");
        for rank in [0, 2] {
            let told: &Error = match &outcomes[rank] {
                Ok(Err(error)) | Err(error) => error,
                Ok(Ok(())) => panic!("step {step}: rank {rank} noticed nothing"),
            };
            assert_eq!(told.rank(), Some(1), "step {step}, rank {rank}: {told}");
        }
    }
    assert!(failures >= 3, "a stream and its words are made: {failures}");
}

/// Rank 0's card fails at the k-th of its calls in an operation: that ends it on all ranks, by name.
#[test]
fn b037_a_card_that_fails_at_any_step_of_an_operation() {
    let mut failures = 0;
    for step in 0..20 {
        let job = job_on(&[52, 60]).with("engine.chunk_bytes", "4KiB");
        let outcomes = job.run(|communicator| {
            let buffer = filled(communicator, communicator.rank() as i32);
            let stream = communicator.device().stream().expect("a stream");
            communicator.barrier(&stream).and_then(|handle| handle.wait()).expect("both are here");
            if communicator.rank() == 0 {
                fail_after(52, step);
            }
            let called = communicator.all_reduce(&buffer, &buffer, 3000, I32, SUM, &stream);
            called.and_then(|handle| handle.wait())
        });
        if !has_failed(52) {
            assert!(outcomes.iter().all(Result::is_ok), "step {step}: {outcomes:?}");
            continue;
        }
        failures += 1;
        let error = outcomes[0].as_ref().expect_err("its card failed");
        assert_eq!(error.kind(), ErrorKind::OutOfResources, "step {step}: {error}");
        let text = error.to_string();
        assert!(text.contains("obstinate") && text.contains("no more of that"), "{text}");
        if let Err(told) = &outcomes[1] {
            assert_eq!(told.rank(), Some(0), "step {step}: {told}");
        }
    }
    assert!(failures > 5, "{failures}");
}

#[test]
fn a_device_that_fails_does_so_for_its_caller_alone() {
    let job = job_on(&[24, 28]);
    job.run(|communicator| {
        let device = communicator.device();
        if communicator.rank() == 0 {
            for calls in 0..4 {
                fail_after(24, calls);
                match device.stream() {
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::OutOfResources, "{error}");
                        assert!(has_failed(24));
                    }
                    // What one that failed had made already is there for the next.
                    Ok(_) => assert!(calls > 0 && !has_failed(24)),
                }
            }
            fail_after(24, 0);
            let stream = device.stream();
            assert!(stream.is_err() && has_failed(24));
            let stream = device.stream().expect("a stream");
            fail_after(24, 0);
            assert!(stream.hold().is_err() && has_failed(24));
            wait_until("the stream", || stream.is_done().expect("a stream"));
            drop(stream.hold().expect("a hold"));
            wait_until("the stream", || stream.is_done().expect("a stream"));
        }
        must_be_right(communicator);
    });
}
