//! The plugin of the tests: all families, whose every function panics when it is asked to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::sdk::*;
use crate::tables::{self, CollectiveSupport, Completion};
use crate::{Collective, DataType, MemoryKind, RedOp, Status};

/// A plugin of all families whose every function panics, or answers, as `PANICS` says.
pub(super) struct Shaky;

/// Whether the functions panic.
pub(super) static PANICS: AtomicU32 = AtomicU32::new(0);

/// Panics if the test asked for it.
pub(super) fn maybe_panic() {
    assert!(PANICS.load(Ordering::SeqCst) == 0, "as the test asked");
}

impl Plugin for Shaky {
    const NAME: &'static str = "shaky";
    const VERSION: &'static str = "1.2.3";
    const VENDOR: &'static str = "tests";
    const DESCRIPTION: &'static str = "panics when asked to";
    const SETTINGS: &'static [tables::SettingSpec] =
        &[tables::SettingSpec::new("depth", "integer", "4", "how deep it goes")];

    fn probe(settings: &Settings<'_>) -> PluginResult<Self> {
        maybe_panic();
        match settings.number("depth")? {
            Some(0) => Err(PluginError::new(Status::NoDevice, "no depth")),
            _ => Ok(Self),
        }
    }

    fn self_test(&self) -> PluginResult<()> {
        maybe_panic();
        Err(PluginError::new(Status::Internal, "a promise is not kept").with_vendor_code(-7))
    }
}

impl DeviceBackend for Shaky {
    type Device = ShakyDevice;

    fn count(&self) -> PluginResult<u32> {
        maybe_panic();
        Ok(3)
    }

    fn facts(&self, index: u32) -> PluginResult<DeviceFacts> {
        maybe_panic();
        if index >= 3 {
            return Err(PluginError::invalid("there are three"));
        }
        let capabilities = tables::DeviceCapabilities {
            stream_to_host: tables::stream_to_host::EVENT,
            host_to_stream: 0,
            host_accessible: 1,
            has_reduce: 0,
            reduce_dtypes: 0,
            reduce_ops: 0,
            region_forms: 0,
            region_alignment: 1,
        };
        Ok(DeviceFacts {
            name: "shaky card",
            pci_address: "0000:01:00.0",
            numa_node: Some(1),
            memory_bytes: 1 << 30,
            capabilities,
        })
    }

    fn open(&self, _: u32) -> PluginResult<ShakyDevice> {
        maybe_panic();
        Ok(ShakyDevice { word: 0 })
    }
}

pub(super) struct ShakyDevice {
    word: u64,
}

impl Drop for ShakyDevice {
    fn drop(&mut self) {
        maybe_panic();
    }
}

impl Device for ShakyDevice {
    fn allocate(&self, _: u64, _: MemoryKind) -> PluginResult<*mut std::ffi::c_void> {
        maybe_panic();
        Ok(std::ptr::null_mut())
    }
    unsafe fn free(&self, _: *mut std::ffi::c_void) -> PluginResult<()> {
        maybe_panic();
        Ok(())
    }
    fn memory_kind(&self, _: *const std::ffi::c_void) -> PluginResult<MemoryKind> {
        maybe_panic();
        Ok(MemoryKind::PinnedHost)
    }
    unsafe fn copy(
        &self,
        _: u64,
        _: (*mut std::ffi::c_void, MemoryKind),
        _: (*const std::ffi::c_void, MemoryKind),
        _: u64,
    ) -> PluginResult<()> {
        maybe_panic();
        Ok(())
    }
    fn stream_create(&self) -> PluginResult<u64> {
        maybe_panic();
        Ok(self.word + 17)
    }
    fn stream_destroy(&self, _: u64) -> PluginResult<()> {
        maybe_panic();
        Ok(())
    }
    fn stream_query(&self, _: u64) -> PluginResult<Progress> {
        maybe_panic();
        Ok(Progress::Pending)
    }
    fn stream_synchronize(&self, _: u64, timeout: Duration) -> PluginResult<()> {
        maybe_panic();
        Err(PluginError::new(Status::Timeout, format!("not within {} us", timeout.as_micros())))
    }
    fn host_function(&self, _: u64, callback: HostCallback) -> PluginResult<()> {
        maybe_panic();
        callback.call();
        Ok(())
    }
    unsafe fn stream_wait_value(&self, _: u64, _: *const u64, _: u64) -> PluginResult<()> {
        maybe_panic();
        Ok(())
    }
    unsafe fn write_value(&self, _: *mut u64, _: u64) -> PluginResult<()> {
        maybe_panic();
        Ok(())
    }
    fn event_create(&self) -> PluginResult<u64> {
        maybe_panic();
        Ok(1)
    }
    fn event_destroy(&self, _: u64) -> PluginResult<()> {
        maybe_panic();
        Ok(())
    }
    fn event_record(&self, _: u64, _: u64) -> PluginResult<()> {
        maybe_panic();
        Ok(())
    }
    fn event_query(&self, _: u64) -> PluginResult<Progress> {
        maybe_panic();
        Ok(Progress::Done)
    }
    unsafe fn reduce(
        &self,
        _: u64,
        _: *mut std::ffi::c_void,
        sources: &[*const std::ffi::c_void],
        elements: u64,
        _: DataType,
        _: RedOp,
        _: u32,
    ) -> PluginResult<()> {
        maybe_panic();
        assert_eq!((sources.len(), elements), (2, 5));
        Ok(())
    }
    fn flush(&self, _: *mut std::ffi::c_void, _: u64) -> PluginResult<()> {
        maybe_panic();
        Ok(())
    }
    fn export_region(
        &self,
        _: *mut std::ffi::c_void,
        bytes: u64,
    ) -> PluginResult<tables::MemoryRegion> {
        maybe_panic();
        Ok(tables::MemoryRegion {
            form: tables::region_form::ADDRESS,
            descriptor: -1,
            address: 64,
            offset: 0,
            length: bytes,
            cookie: 99,
        })
    }
    fn release_region(&self, region: &tables::MemoryRegion) -> PluginResult<()> {
        maybe_panic();
        assert_eq!(region.cookie, 99);
        Ok(())
    }
    fn async_error(&self) -> PluginResult<()> {
        maybe_panic();
        Ok(())
    }
}

impl NativeCollectives for Shaky {
    type Backend = Self;
    type Communicator = ShakyCommunicator;

    fn facts(&self) -> PluginResult<CollectivesFacts> {
        const SUPPORT: &[CollectiveSupport] =
            &[CollectiveSupport::new(Collective::AllReduce, &[DataType::F32], &[RedOp::Sum])];
        maybe_panic();
        Ok(CollectivesFacts {
            unique_id_bytes: 130,
            support: SUPPORT,
            flags: tables::collectives_flag::DETERMINISTIC,
            library: "shakyccl 1.0",
        })
    }
    fn unique_id(&self) -> PluginResult<Vec<u8>> {
        maybe_panic();
        Ok(vec![7; 130])
    }
    fn join(
        &self,
        device: &ShakyDevice,
        unique_id: &[u8],
        ranks: u32,
        rank: u32,
    ) -> PluginResult<ShakyCommunicator> {
        maybe_panic();
        assert_eq!((device.word, unique_id.len(), ranks, rank), (0, 130, 4, 2));
        Ok(ShakyCommunicator)
    }
    fn group_start(&self) -> PluginResult<()> {
        maybe_panic();
        Ok(())
    }
    fn group_end(&self) -> PluginResult<()> {
        maybe_panic();
        Ok(())
    }
}

pub(super) struct ShakyCommunicator;

impl NativeCommunicator for ShakyCommunicator {
    unsafe fn call(&self, call: &NativeCall<'_>, _: u64) -> PluginResult<()> {
        maybe_panic();
        assert_eq!(call.collective, Collective::AllToAllV);
        assert_eq!(call.op, None);
        assert_eq!(call.send_counts, [1, 2, 3, 4]);
        assert!(call.receive_displacements.is_empty());
        Ok(())
    }
    fn async_error(&self) -> PluginResult<Progress> {
        maybe_panic();
        Ok(Progress::Pending)
    }
    fn abort(&self) -> PluginResult<()> {
        maybe_panic();
        Ok(())
    }
    fn leave(self) -> PluginResult<()> {
        maybe_panic();
        Err(PluginError::new(Status::DeviceError, "left in anger"))
    }
}

impl Transport for Shaky {
    type Domain = ShakyDomain;

    fn facts(&self) -> TransportFacts {
        maybe_panic();
        TransportFacts {
            name: "shaky",
            reach: tables::reach::SAME_HOST,
            memory_kinds: MemoryKind::Host.mask(),
            latency: Duration::from_micros(3),
            bytes_per_us: 1000,
            largest_message: None,
        }
    }
    fn open(&self, request: &DomainRequest<'_>) -> PluginResult<ShakyDomain> {
        maybe_panic();
        assert_eq!(request.job_key, &[5; 32]);
        Ok(ShakyDomain { woken: Arc::new(AtomicU32::new(0)), posted: Vec::new() })
    }
}

pub(super) struct ShakyDomain {
    woken: Arc<AtomicU32>,
    posted: Vec<(u64, u64)>,
}

pub(super) struct ShakyWaker(Arc<AtomicU32>);

impl Waker for ShakyWaker {
    fn wake(&self) {
        maybe_panic();
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl TransportDomain for ShakyDomain {
    type Waker = ShakyWaker;

    fn address(&self) -> PluginResult<Vec<u8>> {
        maybe_panic();
        Ok(b"here".to_vec())
    }
    fn channel_open(&mut self, request: &ChannelRequest<'_>) -> PluginResult<u64> {
        maybe_panic();
        assert_eq!(request.address, b"there");
        Ok(8)
    }
    fn channel_state(&self, _: u64) -> PluginResult<Progress> {
        maybe_panic();
        Ok(Progress::Pending)
    }
    unsafe fn post_send(&mut self, channel: u64, message: PostedMessage<'_>) -> PluginResult<()> {
        maybe_panic();
        self.posted.push((channel, message.token));
        Ok(())
    }
    unsafe fn post_receive(
        &mut self,
        channel: u64,
        message: PostedMessage<'_>,
    ) -> PluginResult<()> {
        maybe_panic();
        self.posted.push((channel, message.token));
        Ok(())
    }
    fn progress(&mut self, completions: &mut CompletionSink<'_>) -> PluginResult<()> {
        maybe_panic();
        while !completions.is_full() && !self.posted.is_empty() {
            let (channel, token) = self.posted.remove(0);
            completions.put(Completion::done(channel, token, tables::completion_kind::SEND, 0));
        }
        Ok(())
    }
    fn arm(&mut self) -> PluginResult<Progress> {
        maybe_panic();
        Ok(Progress::Pending)
    }
    fn event_descriptor(&self) -> i32 {
        maybe_panic();
        0
    }
    fn wait(&mut self, _: Duration) -> PluginResult<()> {
        maybe_panic();
        Ok(())
    }
    fn waker(&self) -> ShakyWaker {
        ShakyWaker(Arc::clone(&self.woken))
    }
    fn register(&mut self, _: &tables::MemoryRegion) -> PluginResult<u64> {
        maybe_panic();
        Ok(55)
    }
    fn deregister(&mut self, _: u64) -> PluginResult<()> {
        maybe_panic();
        Ok(())
    }
    fn quiesce(&mut self, _: u64, _: Duration) -> PluginResult<()> {
        maybe_panic();
        Ok(())
    }
    fn channel_close(&mut self, _: u64) -> PluginResult<()> {
        maybe_panic();
        Ok(())
    }
}

crate::export_plugin! { plugin: Shaky, device: Shaky, collectives: Shaky, transport: Shaky }
