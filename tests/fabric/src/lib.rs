//! A transport that has a NIC in name only: messages go over TCP, but it takes no memory that is not
//! registered as an RDMA transport would have it. Device memory by address it refuses with `EFAULT`, as the
//! kernel does that has no peer memory; dma-bufs it maps.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use iccl_plugin_api::sdk::{
    ChannelRequest, CompletionSink, DomainRequest, Plugin, PluginError, PluginResult,
    PostedMessage, Progress, Settings, Transport, TransportDomain, TransportFacts,
};
use iccl_plugin_api::tables::{MemoryRegion, Segment, reach, region_form};
use iccl_plugin_api::{MemoryKind, Status};
use iccl_tcp::{TcpDomain, TcpSettings, TcpWaker};
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Regions that were left when their domain was closed. The runtime takes everything back before.
pub static LEFT: AtomicUsize = AtomicUsize::new(0);
/// Longer regions are refused for want of memory.
pub const MOST_BYTES: u64 = 16 << 20;
/// The one rank of a test that may be on host memory, which has no keys.
pub const HOST_RANK: u32 = 3;

/// The transport.
#[derive(Debug)]
pub struct Fabric(TcpSettings);

impl Plugin for Fabric {
    const NAME: &'static str = "transport-rdma";
    const VERSION: &'static str = "0.1.0";
    const VENDOR: &'static str = "tests";
    const DESCRIPTION: &'static str = "TCP that asks for memory as a NIC does";
    const SETTINGS: &'static [iccl_plugin_api::tables::SettingSpec] = iccl_tcp::SPECS;

    fn probe(settings: &Settings<'_>) -> PluginResult<Self> {
        Ok(Self(TcpSettings::from(settings)?))
    }
}

impl Transport for Fabric {
    type Domain = FabricDomain;

    fn facts(&self) -> TransportFacts {
        TransportFacts {
            name: "rdma",
            reach: reach::SAME_HOST | reach::OTHER_HOSTS | reach::FABRIC,
            memory_kinds: MemoryKind::ALL.iter().fold(0, |mask, kind| mask | kind.mask()),
            latency: Duration::from_micros(3),
            bytes_per_us: 12_000,
            largest_message: None,
        }
    }

    fn open(&self, request: &DomainRequest<'_>) -> PluginResult<FabricDomain> {
        let tcp = TcpDomain::open(request, &self.0)?;
        Ok(FabricDomain { tcp, rank: request.rank, regions: HashMap::new(), last_key: 0 })
    }
}

/// What is registered.
#[derive(Debug)]
struct Region {
    /// As segments count.
    address: u64,
    length: u64,
    /// Where it lies in this process.
    here: usize,
    mapped: Option<(usize, usize)>,
}

/// Its use by one communicator.
#[derive(Debug)]
pub struct FabricDomain {
    tcp: TcpDomain,
    rank: u32,
    regions: HashMap<u64, Region>,
    last_key: u64,
}

impl FabricDomain {
    /// The segments as TCP takes them. Every one on the way of a card has its key.
    fn here(&self, message: &PostedMessage<'_>) -> Vec<Segment> {
        let place = |segment: &Segment| {
            if segment.length == 0 || (segment.key == 0 && self.rank == HOST_RANK) {
                return *segment;
            }
            let region = self.regions.get(&segment.key);
            let region = region.unwrap_or_else(|| panic!("no region {}", segment.key));
            let offset = (segment.address as u64).checked_sub(region.address).expect("inside");
            assert!(offset + segment.length <= region.length, "past the end of a region");
            let address = std::ptr::with_exposed_provenance_mut(region.here + offset as usize);
            Segment { address, key: 0, ..*segment }
        };
        message.segments.iter().map(place).collect()
    }
}

fn system(errno: i32, what: &str) -> PluginError {
    PluginError::system(Status::TransportError, what, &std::io::Error::from_raw_os_error(errno))
}

impl TransportDomain for FabricDomain {
    type Waker = TcpWaker;

    fn address(&self) -> PluginResult<Vec<u8>> {
        self.tcp.address()
    }

    fn channel_open(&mut self, request: &ChannelRequest<'_>) -> PluginResult<u64> {
        self.tcp.channel_open(request)
    }

    fn channel_state(&self, channel: u64) -> PluginResult<Progress> {
        self.tcp.channel_state(channel)
    }

    unsafe fn post_send(&mut self, channel: u64, message: PostedMessage<'_>) -> PluginResult<()> {
        let segments = self.here(&message);
        // SAFETY: the caller promises it of the same bytes at their other address.
        unsafe { self.tcp.post_send(channel, PostedMessage { segments: &segments, ..message }) }
    }

    unsafe fn post_receive(
        &mut self,
        channel: u64,
        message: PostedMessage<'_>,
    ) -> PluginResult<()> {
        let segments = self.here(&message);
        // SAFETY: as above.
        unsafe { self.tcp.post_receive(channel, PostedMessage { segments: &segments, ..message }) }
    }

    fn progress(&mut self, completions: &mut CompletionSink<'_>) -> PluginResult<()> {
        self.tcp.progress(completions)
    }

    fn arm(&mut self) -> PluginResult<Progress> {
        self.tcp.arm()
    }

    fn event_descriptor(&self) -> std::os::fd::RawFd {
        self.tcp.event_descriptor()
    }

    fn wait(&mut self, timeout: Duration) -> PluginResult<()> {
        self.tcp.wait(timeout)
    }

    fn waker(&self) -> TcpWaker {
        self.tcp.waker()
    }

    fn register(&mut self, region: &MemoryRegion) -> PluginResult<u64> {
        if region.length > MOST_BYTES {
            return Err(system(libc::ENOMEM, "ibv_reg_mr"));
        }
        let &MemoryRegion { form, address, offset, length, .. } = region;
        let (here, mapped) = match form {
            region_form::HOST_ALIAS => (address as usize, None),
            region_form::DMA_BUF => {
                assert_eq!(address, 0, "a dma-buf has no address");
                let bytes = (offset + length) as usize;
                // SAFETY: the plugin owns the descriptor until the region is released.
                let file = unsafe { BorrowedFd::borrow_raw(region.descriptor) };
                let access = ProtFlags::READ | ProtFlags::WRITE;
                let place = std::ptr::null_mut();
                // SAFETY: a new mapping, whose end is `deregister`.
                let start = unsafe { mmap(place, bytes, access, MapFlags::SHARED, file, 0) };
                let start = start.map_err(|error| system(error.raw_os_error(), "mmap"))?;
                let start = start.expose_provenance();
                (start + offset as usize, Some((start, bytes)))
            }
            _ => return Err(system(libc::EFAULT, "ibv_reg_mr")),
        };
        self.last_key += 1;
        self.regions.insert(self.last_key, Region { address, length, here, mapped });
        Ok(self.last_key)
    }

    fn deregister(&mut self, key: u64) -> PluginResult<()> {
        let region = self.regions.remove(&key);
        let region = region.ok_or_else(|| PluginError::invalid(format!("no region {key}")))?;
        if let Some((start, bytes)) = region.mapped {
            // SAFETY: it was mapped so in `register`, and nobody uses it any more.
            unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(start), bytes) }
                .map_err(|error| system(error.raw_os_error(), "munmap"))?;
        }
        Ok(())
    }

    fn quiesce(&mut self, channel: u64, timeout: Duration) -> PluginResult<()> {
        self.tcp.quiesce(channel, timeout)
    }

    fn channel_close(&mut self, channel: u64) -> PluginResult<()> {
        self.tcp.channel_close(channel)
    }
}

impl Drop for FabricDomain {
    fn drop(&mut self) {
        LEFT.fetch_add(self.regions.len(), Ordering::SeqCst);
    }
}

iccl_plugin_api::export_plugin! {
    plugin: Fabric,
    transport: Fabric,
}
