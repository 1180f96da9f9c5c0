//! Anonymous files that other processes of the same user open by process and descriptor. They leave
//! nothing behind, however a process ends.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags};

/// Where an anonymous file of some process is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileAddress {
    pub(crate) process: u32,
    pub(crate) descriptor: u32,
    /// Descriptors are used again; the file behind them is another then.
    pub(crate) inode: u64,
}

impl FileAddress {
    pub(crate) const BYTES: usize = 16;

    pub(crate) fn of(file: &OwnedFd) -> std::io::Result<Self> {
        let inode = rustix::fs::fstat(file)?.st_ino;
        Ok(Self { process: std::process::id(), descriptor: file.as_raw_fd() as u32, inode })
    }

    pub(crate) fn open(self) -> std::io::Result<OwnedFd> {
        let path = format!("/proc/{}/fd/{}", self.process, self.descriptor);
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        if rustix::fs::fstat(&file)?.st_ino == self.inode {
            return Ok(file);
        }
        Err(std::io::ErrorKind::NotFound.into())
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.process.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.descriptor.to_le_bytes());
        bytes[8..].copy_from_slice(&self.inode.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let mut inode = [0; 8];
        inode.copy_from_slice(&bytes[8..]);
        Self {
            process: u32::from_le_bytes(word(0)),
            descriptor: u32::from_le_bytes(word(4)),
            inode: u64::from_le_bytes(inode),
        }
    }
}

/// An anonymous file of a length.
pub(crate) fn anonymous_file(name: &str, bytes: u64) -> std::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, bytes)?;
    Ok(file)
}

/// A readable and writable view of a whole file. Unmapped when dropped.
#[derive(Debug)]
pub(crate) struct View {
    address: *mut u8,
    bytes: usize,
}

// SAFETY: the view is plain memory, shared with other processes; whoever reads and writes it
// orders that by streams or by the counters of a group.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    pub(crate) fn new(file: BorrowedFd<'_>, bytes: usize) -> std::io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let address =
            // SAFETY: a new mapping at an address that the kernel chooses.
            unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0)? };
        Ok(Self { address: address.cast(), bytes })
    }

    /// Its first byte.
    pub(crate) fn address(&self) -> *mut u8 {
        self.address
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody has a reference into it that outlives this.
        let _ = unsafe { rustix::mm::munmap(self.address.cast(), self.bytes) };
    }
}
