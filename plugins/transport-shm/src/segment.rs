//! Memory that two processes share: anonymous files that are passed by descriptor.
//!
//! They have no name in any file system, so nothing is left behind however a process ends, and
//! nobody opens them by guessing. They are sealed against a change of size before they are passed
//! on, and whoever receives one checks seals and size before it maps it: a mapping beyond the end
//! of a file kills its user with SIGBUS. For the same reason all their memory is claimed when they
//! are made, and a host without enough of it is an error that says how much was missing.

use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::budget;
use crate::doorbell::Doorbell;
use crate::ring::{Consumer, Producer, RingControl, RingMemory};

/// The unit of mappings. A multiple of it is a multiple of it on machines with smaller pages.
const PAGE_BYTES: usize = 65536;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Smallest and largest ring that is made or accepted.
pub(crate) const RING_BYTES: std::ops::RangeInclusive<u64> = 4096..=1 << 30;

/// Shared memory, mapped into this process.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory, used through atomics and raw copies only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps all of `file`, whose size is `bytes` and cannot change.
    fn new(file: BorrowedFd<'_>, bytes: usize) -> PluginResult<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                file,
                0,
            )
        }
        .map_err(|errno| {
            refused(Status::OutOfResources, format!("mapping {bytes} bytes"), errno)
        })?;
        let start = NonNull::new(start.cast())
            .ok_or_else(|| PluginError::new(Status::Internal, "memory was mapped at address 0"))?;
        Ok(Self { start, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

fn refused(status: Status, what: impl std::fmt::Display, errno: Errno) -> PluginError {
    PluginError::system(status, format!("shared memory: {what}"), &errno.into())
}

/// Makes an anonymous file of `bytes` zeroes, all of them backed by memory, its size sealed.
fn create_file(name: &str, bytes: u64) -> PluginResult<OwnedFd> {
    if let Some(shortage) = budget::shortage(bytes) {
        return Err(PluginError::new(
            Status::OutOfResources,
            format!("shared memory: {bytes} bytes needed, {shortage}"),
        ));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know NOEXEC_SEAL, later ones may insist on it.
    let file = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|errno| match errno {
            Errno::INVAL => rustix::fs::memfd_create(name, flags),
            _ => Err(errno),
        })
        .map_err(|errno| refused(Status::OutOfResources, "memfd_create", errno))?;
    let claim = |errno| {
        let available = budget::available_bytes()
            .map_or_else(|| "unknown".to_owned(), |available| available.to_string());
        let what = format!("{bytes} bytes needed, {available} available");
        refused(Status::OutOfResources, what, errno)
    };
    rustix::fs::ftruncate(&file, bytes).map_err(claim)?;
    loop {
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(claim(errno)),
        }
    }
    rustix::fs::fcntl_add_seals(&file, SEALS)
        .map_err(|errno| refused(Status::TransportError, "sealing", errno))?;
    Ok(file)
}

/// Whether a file that a peer sent is what it should be, so that touching it cannot be fatal.
fn check_file(file: BorrowedFd<'_>, bytes: u64) -> PluginResult<()> {
    let broken = |what: String| {
        PluginError::new(Status::TransportError, format!("shared memory from the peer: {what}"))
    };
    let seals = rustix::fs::fcntl_get_seals(file)
        .map_err(|errno| broken(format!("not an anonymous file ({errno})")))?;
    if !seals.contains(SEALS) {
        return Err(broken("its size is not sealed".to_owned()));
    }
    let stat = rustix::fs::fstat(file).map_err(|errno| broken(format!("fstat: {errno}")))?;
    if stat.st_size as u64 != bytes {
        return Err(broken(format!("{} bytes long instead of {bytes}", stat.st_size)));
    }
    // Sealed at its full length, yet a file with holes would claim memory only when touched.
    if (stat.st_blocks as u64) * 512 < bytes {
        return Err(broken("not all of it is backed by memory".to_owned()));
    }
    Ok(())
}

/// The shared page of a doorbell.
#[derive(Debug)]
pub(crate) struct DoorbellPage {
    mapping: Mapping,
}

impl DoorbellPage {
    const BYTES: u64 = PAGE_BYTES as u64;

    /// A new one, and the file by which peers map it.
    pub(crate) fn create() -> PluginResult<(Self, OwnedFd)> {
        let file = create_file("iccl-doorbell", Self::BYTES)?;
        let mapping = Mapping::new(std::os::fd::AsFd::as_fd(&file), PAGE_BYTES)?;
        Ok((Self { mapping }, file))
    }

    /// A peer's.
    pub(crate) fn attach(file: BorrowedFd<'_>) -> PluginResult<Self> {
        check_file(file, Self::BYTES)?;
        Ok(Self { mapping: Mapping::new(file, PAGE_BYTES)? })
    }
}

impl Deref for DoorbellPage {
    type Target = Doorbell;

    fn deref(&self) -> &Doorbell {
        // SAFETY: the page is mapped as long as `self`, aligned, large enough, and a doorbell is
        // one atomic, for which any bytes are a value.
        unsafe { self.mapping.start.cast::<Doorbell>().as_ref() }
    }
}

/// The producer of a ring in a segment.
pub(crate) type SegmentProducer = Producer<Control, Area>;
/// The consumer of a ring in a segment.
pub(crate) type SegmentConsumer = Consumer<Control, Area>;

/// The memory of a channel: control words of both rings, then the bytes of both.
#[derive(Debug)]
pub(crate) struct Segment {
    mapping: Mapping,
    ring_bytes: usize,
}

impl Segment {
    /// Bytes of memory that a channel takes for rings of this size.
    pub(crate) fn total_bytes(ring_bytes: u64) -> u64 {
        PAGE_BYTES as u64 + 2 * ring_bytes
    }

    /// A new one, and the file by which the peer maps it.
    pub(crate) fn create(ring_bytes: u64) -> PluginResult<(Self, OwnedFd)> {
        let file = create_file("iccl-channel", Self::total_bytes(ring_bytes))?;
        let segment = Self::map(std::os::fd::AsFd::as_fd(&file), ring_bytes)?;
        Ok((segment, file))
    }

    /// The one that the peer made.
    pub(crate) fn attach(file: BorrowedFd<'_>, ring_bytes: u64) -> PluginResult<Self> {
        if !RING_BYTES.contains(&ring_bytes) || !ring_bytes.is_power_of_two() {
            return Err(PluginError::new(
                Status::TransportError,
                format!("shared memory from the peer: rings of {ring_bytes} bytes"),
            ));
        }
        check_file(file, Self::total_bytes(ring_bytes))?;
        Self::map(file, ring_bytes)
    }

    fn map(file: BorrowedFd<'_>, ring_bytes: u64) -> PluginResult<Self> {
        let mapping = Mapping::new(file, Self::total_bytes(ring_bytes) as usize)?;
        Ok(Self { mapping, ring_bytes: ring_bytes as usize })
    }

    /// This side's ends of the two rings. The dialer writes the first ring and reads the second.
    pub(crate) fn split(self, dialer: bool) -> (SegmentProducer, SegmentConsumer) {
        let ring_bytes = self.ring_bytes;
        let segment = Arc::new(self);
        let ends = |index: usize| {
            (
                Control { segment: Arc::clone(&segment), index },
                Area { segment: Arc::clone(&segment), offset: PAGE_BYTES + index * ring_bytes },
            )
        };
        let (control, area) = ends(usize::from(!dialer));
        let producer = Producer::new(control, area, ring_bytes);
        let (control, area) = ends(usize::from(dialer));
        (producer, Consumer::new(control, area, ring_bytes))
    }
}

/// The control words of one of a segment's two rings.
#[derive(Debug)]
pub(crate) struct Control {
    segment: Arc<Segment>,
    index: usize,
}

impl Deref for Control {
    type Target = RingControl;

    fn deref(&self) -> &RingControl {
        const { assert!(2 * size_of::<RingControl>() <= PAGE_BYTES) };
        // SAFETY: `index` is 0 or 1 and both control blocks lie in the first page, which is mapped
        // as long as the segment; they are atomics, for which any bytes are a value.
        unsafe { self.segment.mapping.start.cast::<RingControl>().add(self.index).as_ref() }
    }
}

/// The bytes of one of a segment's two rings.
#[derive(Debug)]
pub(crate) struct Area {
    segment: Arc<Segment>,
    offset: usize,
}

impl Area {
    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        debug_assert!(offset + bytes <= self.segment.ring_bytes);
        self.segment.mapping.start.as_ptr().wrapping_add(self.offset + offset)
    }
}

impl RingMemory for Area {
    unsafe fn write(&self, offset: usize, source: *const u8, bytes: usize) {
        // SAFETY: the caller's promise, and the area lies within the mapping. A payload does not
        // overlap a private mapping of this transport.
        unsafe { std::ptr::copy_nonoverlapping(source, self.at(offset, bytes), bytes) }
    }

    unsafe fn read(&self, offset: usize, destination: *mut u8, bytes: usize) {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(self.at(offset, bytes), destination, bytes) }
    }
}

#[cfg(test)]
mod tests;
