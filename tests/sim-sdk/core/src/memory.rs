//! Memory of cards, and what is known of the host's.
//!
//! The addresses of device memory lie in one reserved range that no access is allowed to: whoever
//! dereferences one on the host dies by SIGSEGV. Behind each allocation lies an anonymous file, and
//! the machine's own view of it, by which streams copy. Other processes open the same file.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::{MapFlags, ProtFlags};

use crate::Refusal;
use crate::peer::{FileAddress, View, anonymous_file};

/// How far apart allocations lie. A gap of at least one of these follows each, so that what runs over
/// its end meets nothing.
const GRAIN_BYTES: u64 = 2 << 20;
const PAGE_BYTES: u64 = 4096;
/// Address space for all device memory of a process.
const ARENA_BYTES: u64 = 1 << 40;
/// What fresh device memory holds: nothing that anyone could take for zeros.
const FRESH: u8 = 0xa5;
/// The length of what is filled so at both ends.
const FRESH_BYTES: u64 = 1 << 20;

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The memory of a card.
    Device(u32),
    /// Host memory that cards reach.
    Pinned,
    /// Other host memory.
    Pageable,
}

/// A range of memory, as the machine reaches it. It stays reachable when it is freed meanwhile.
#[derive(Clone)]
pub struct Span {
    view: *mut u8,
    bytes: u64,
    place: Place,
    /// Keeps the view.
    _block: Option<Arc<Block>>,
}

// SAFETY: a span is an address for the streams' threads; who uses it when is the caller's promise, as
// it is with the real libraries.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    /// Where the machine reads and writes it.
    pub fn view(&self) -> *mut u8 {
        self.view
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whose memory it is.
    pub fn place(&self) -> Place {
        self.place
    }

    /// A part of it.
    pub fn part(&self, at: u64, bytes: u64) -> Result<Self, Refusal> {
        let end = at.checked_add(bytes).ok_or(Refusal::InvalidValue)?;
        if end > self.bytes {
            return Err(Refusal::InvalidValue);
        }
        // SAFETY: it lies in this span.
        let view = unsafe { self.view.add(at as usize) };
        Ok(Self { view, bytes, ..self.clone() })
    }
}

/// An allocation of device memory.
struct Block {
    start: u64,
    bytes: u64,
    device: u32,
    file: OwnedFd,
    view: View,
    /// The exporter's name for it, if another process allocated it, and how often it was opened.
    opened: Option<(MemoryHandle, Mutex<u32>)>,
}

/// An allocation's name for other processes of the same host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryHandle {
    file: FileAddress,
    bytes: u64,
    host: u64,
}

impl MemoryHandle {
    /// Its length in bytes.
    pub const BYTES: usize = FileAddress::BYTES + 16;

    /// As bytes.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.file.to_bytes());
        bytes[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[24..].copy_from_slice(&self.host.to_le_bytes());
        bytes
    }

    /// From bytes.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let mut file = [0; 16];
        file.copy_from_slice(&bytes[..16]);
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Self { file: FileAddress::from_bytes(file), bytes: word(16), host: word(24) }
    }
}

impl MemoryHandle {
    /// As 8 bytes, for makers whose handles have no more: where a file with the whole handle is found. The
    /// file stays open as long as this process.
    pub fn to_word(self) -> Result<u64, Refusal> {
        let file = anonymous_file("sim-handle", 0).map_err(|_| Refusal::System)?;
        let written = rustix::io::pwrite(&file, &self.to_bytes(), 0);
        if written != Ok(Self::BYTES) {
            return Err(Refusal::System);
        }
        let word = u64::from(std::process::id()) << 32 | u64::from(file.as_raw_fd() as u32);
        std::mem::forget(file);
        Ok(word)
    }

    /// From what [`MemoryHandle::to_word`] gave, in any process.
    pub fn from_word(word: u64) -> Result<Self, Refusal> {
        let path = format!("/proc/{}/fd/{}", word >> 32, word as u32);
        let bytes = std::fs::read(path).map_err(|_| Refusal::InvalidHandle)?;
        Ok(Self::from_bytes(bytes.try_into().map_err(|_| Refusal::InvalidHandle)?))
    }
}

pub(crate) struct Memory {
    /// What one card has.
    device_bytes: u64,
    host: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The reserved range, once there is one.
    arena: Option<u64>,
    /// Free parts of it: start and length.
    free: BTreeMap<u64, u64>,
    blocks: BTreeMap<u64, Arc<Block>>,
    /// Host memory that cards reach: start, length, and whether the machine allocated it.
    pinned: BTreeMap<u64, (u64, bool)>,
    used: BTreeMap<u32, u64>,
}

impl Memory {
    pub(crate) fn new(device_bytes: u64, host: u64) -> Self {
        Self { device_bytes, host, state: Mutex::default() }
    }

    pub(crate) fn allocate(&self, device: u32, bytes: u64) -> Result<u64, Refusal> {
        let mut state = self.lock();
        let used = state.used.get(&device).copied().unwrap_or(0);
        if bytes > self.device_bytes - used.min(self.device_bytes) {
            return Err(Refusal::OutOfMemory);
        }
        let whole = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let file = anonymous_file("sim-device", whole).map_err(|_| Refusal::OutOfMemory)?;
        let view = View::new(file.as_fd(), whole as usize).map_err(|_| Refusal::OutOfMemory)?;
        let ends = bytes.min(FRESH_BYTES) as usize;
        // SAFETY: both ranges lie in the view that was just made.
        unsafe {
            view.address().write_bytes(FRESH, ends);
            view.address().add(bytes as usize - ends).write_bytes(FRESH, ends);
        }
        let start = state.reserve(whole)?;
        *state.used.entry(device).or_default() += bytes;
        let block = Block { start, bytes, device, file, view, opened: None };
        state.blocks.insert(start, Arc::new(block));
        Ok(start)
    }

    /// Frees what [`Memory::allocate`] gave.
    pub(crate) fn free(&self, start: u64) -> Result<(), Refusal> {
        let mut state = self.lock();
        let block = state.blocks.get(&start).ok_or(Refusal::InvalidValue)?;
        if block.opened.is_some() {
            return Err(Refusal::InvalidValue);
        }
        let (device, bytes) = (block.device, block.bytes);
        if let Some(used) = state.used.get_mut(&device) {
            *used -= bytes;
        }
        state.give_back(start);
        Ok(())
    }

    /// Free and all bytes of a card.
    pub(crate) fn room(&self, device: u32) -> (u64, u64) {
        let used = self.lock().used.get(&device).copied().unwrap_or(0);
        (self.device_bytes - used, self.device_bytes)
    }

    /// Host memory that cards reach.
    pub(crate) fn allocate_pinned(&self, bytes: u64) -> Result<u64, Refusal> {
        let whole = bytes.max(1).next_multiple_of(PAGE_BYTES) as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let made = unsafe {
            let flags = MapFlags::PRIVATE;
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole, protection, flags)
        };
        let start = made.map_err(|_| Refusal::OutOfMemory)? as u64;
        self.lock().pinned.insert(start, (bytes.max(1), true));
        Ok(start)
    }

    /// Frees what [`Memory::allocate_pinned`] gave.
    pub(crate) fn free_pinned(&self, start: u64) -> Result<(), Refusal> {
        let mut state = self.lock();
        let Some((bytes, true)) = state.pinned.get(&start).copied() else {
            return Err(Refusal::InvalidValue);
        };
        state.pinned.remove(&start);
        let whole = bytes.next_multiple_of(PAGE_BYTES) as usize;
        // SAFETY: mapped by `allocate_pinned`; the caller is done with it.
        let _ = unsafe { rustix::mm::munmap(start as *mut _, whole) };
        Ok(())
    }

    /// Makes host memory of the caller's reachable for cards.
    pub(crate) fn register(&self, start: u64, bytes: u64) -> Result<(), Refusal> {
        let mut state = self.lock();
        if start == 0 || bytes == 0 || state.in_arena(start) {
            return Err(Refusal::InvalidValue);
        }
        let before = state.pinned.range(..start + bytes).next_back();
        if before.is_some_and(|(other, (length, _))| other + length > start) {
            return Err(Refusal::AlreadyRegistered);
        }
        state.pinned.insert(start, (bytes, false));
        Ok(())
    }

    pub(crate) fn unregister(&self, start: u64) -> Result<(), Refusal> {
        let mut state = self.lock();
        match state.pinned.get(&start) {
            Some((_, false)) => {
                state.pinned.remove(&start);
                Ok(())
            }
            _ => Err(Refusal::NotRegistered),
        }
    }

    /// What lies at an address. All of the range must lie in one allocation.
    pub(crate) fn span(&self, address: u64, bytes: u64) -> Result<Span, Refusal> {
        let end = address.checked_add(bytes).ok_or(Refusal::InvalidValue)?;
        let state = self.lock();
        if let Some((_, block)) = state.blocks.range(..=address).next_back()
            && end <= block.start + block.bytes
        {
            let offset = (address - block.start) as usize;
            // SAFETY: the offset lies in the block's view.
            let view = unsafe { block.view.address().add(offset) };
            let place = Place::Device(block.device);
            return Ok(Span { view, bytes, place, _block: Some(Arc::clone(block)) });
        }
        if state.in_arena(address) || (address == 0 && bytes != 0) {
            return Err(Refusal::InvalidValue);
        }
        let pinned = state.pinned.range(..=address).next_back();
        let is_pinned = pinned.is_some_and(|(start, (length, _))| end <= start + length);
        let place = if is_pinned { Place::Pinned } else { Place::Pageable };
        Ok(Span { view: address as *mut u8, bytes, place, _block: None })
    }

    /// Start and length of the allocation around a device address.
    pub(crate) fn allocation(&self, address: u64) -> Result<(u64, u64), Refusal> {
        let state = self.lock();
        let block = state.blocks.range(..=address).next_back().map(|(_, block)| block);
        let block = block.filter(|block| address < block.start + block.bytes.max(1));
        block.map(|block| (block.start, block.bytes)).ok_or(Refusal::InvalidValue)
    }

    /// A descriptor of the file behind an allocation, whose first byte is the allocation's.
    pub(crate) fn file(&self, start: u64) -> Result<OwnedFd, Refusal> {
        let state = self.lock();
        let block = state.blocks.get(&start).ok_or(Refusal::InvalidValue)?;
        block.file.try_clone().map_err(|_| Refusal::System)
    }

    /// The name of the allocation around an address.
    pub(crate) fn export(&self, address: u64) -> Result<MemoryHandle, Refusal> {
        let (start, bytes) = self.allocation(address)?;
        let state = self.lock();
        let block = state.blocks.get(&start).ok_or(Refusal::InvalidValue)?;
        let file = FileAddress::of(&block.file).map_err(|_| Refusal::System)?;
        Ok(MemoryHandle { file, bytes, host: self.host })
    }

    /// Opens another process's allocation for a card. Gives its start; opening it again gives the same.
    pub(crate) fn open(&self, handle: MemoryHandle, device: u32) -> Result<u64, Refusal> {
        if handle.file.process == std::process::id() {
            return Err(Refusal::OwnHandle);
        }
        if handle.host != self.host || handle.bytes == 0 {
            return Err(Refusal::InvalidValue);
        }
        let mut state = self.lock();
        for block in state.blocks.values() {
            if let Some((name, times)) = &block.opened
                && *name == handle
            {
                *times.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                return Ok(block.start);
            }
        }
        let file = handle.file.open().map_err(|_| Refusal::InvalidHandle)?;
        let whole = handle.bytes.next_multiple_of(PAGE_BYTES);
        let view = View::new(file.as_fd(), whole as usize).map_err(|_| Refusal::OutOfMemory)?;
        let start = state.reserve(whole)?;
        let opened = Some((handle, Mutex::new(1)));
        let block = Block { start, bytes: handle.bytes, device, file, view, opened };
        state.blocks.insert(start, Arc::new(block));
        Ok(start)
    }

    /// Closes what [`Memory::open`] gave, as often as it was opened.
    pub(crate) fn close(&self, start: u64) -> Result<(), Refusal> {
        let mut state = self.lock();
        let block = state.blocks.get(&start).ok_or(Refusal::InvalidValue)?;
        let (_, times) = block.opened.as_ref().ok_or(Refusal::InvalidValue)?;
        let left = {
            let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
            *times -= 1;
            *times
        };
        if left == 0 {
            state.give_back(start);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn in_arena(&self, address: u64) -> bool {
        self.arena.is_some_and(|start| address >= start && address - start < ARENA_BYTES)
    }

    /// Takes addresses for an allocation.
    fn reserve(&mut self, bytes: u64) -> Result<u64, Refusal> {
        if self.arena.is_none() {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let (bytes, protection) = (ARENA_BYTES as usize, ProtFlags::empty());
            // SAFETY: a new mapping, to which no access is allowed, where the kernel chooses.
            let made = unsafe {
                rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags)
            };
            let start = made.map_err(|_| Refusal::OutOfMemory)? as u64;
            self.arena = Some(start);
            let aligned = start.next_multiple_of(GRAIN_BYTES);
            self.free.insert(aligned, ARENA_BYTES - (aligned - start));
        }
        let taken = grains(bytes);
        let found = self.free.iter().find(|(_, length)| **length >= taken);
        let (start, length) = found.map(|(a, b)| (*a, *b)).ok_or(Refusal::OutOfMemory)?;
        self.free.remove(&start);
        if length > taken {
            self.free.insert(start + taken, length - taken);
        }
        Ok(start)
    }

    fn give_back(&mut self, start: u64) {
        let Some(block) = self.blocks.remove(&start) else { return };
        let (mut start, mut length) = (start, grains(block.bytes.max(1)));
        if let Some((&before, &bytes)) = self.free.range(..start).next_back()
            && before + bytes == start
        {
            self.free.remove(&before);
            (start, length) = (before, bytes + length);
        }
        if let Some(bytes) = self.free.remove(&(start + length)) {
            length += bytes;
        }
        self.free.insert(start, length);
    }
}

/// What an allocation takes of the arena, with the gap behind it.
fn grains(bytes: u64) -> u64 {
    bytes.next_multiple_of(GRAIN_BYTES) + GRAIN_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_used_again_and_join() {
        let memory = Memory::new(1 << 30, 0);
        let one = memory.allocate(0, 100).expect("memory");
        let two = memory.allocate(0, 3 << 20).expect("memory");
        let three = memory.allocate(0, 100).expect("memory");
        assert_eq!(memory.room(0), ((1 << 30) - 200 - (3 << 20), 1 << 30));
        for start in [one, three, two] {
            memory.free(start).expect("allocated");
        }
        assert_eq!(memory.room(0).0, 1 << 30);
        assert_eq!(memory.lock().free.len(), 1);
        assert_eq!(memory.allocate(0, 20 << 20), Ok(one));
        assert_eq!(memory.free(two), Err(Refusal::InvalidValue));
    }

    #[test]
    fn a_handle_fits_into_a_word() {
        let memory = Memory::new(1 << 20, 7);
        let start = memory.allocate(0, 100).expect("memory");
        let handle = memory.export(start).expect("a handle");
        let word = handle.to_word().expect("a word");
        assert_eq!(MemoryHandle::from_word(word), Ok(handle));
        assert_eq!(MemoryHandle::from_word(word ^ 1 << 30), Err(Refusal::InvalidHandle));
    }

    #[test]
    fn ranges_are_those_of_one_allocation() {
        let memory = Memory::new(1 << 20, 0);
        assert_eq!(memory.allocate(0, 1 + (1 << 20)), Err(Refusal::OutOfMemory));
        let start = memory.allocate(3, 1000).expect("memory");
        let place = |address, bytes| memory.span(address, bytes).map(|span| span.place());
        assert_eq!(place(start + 999, 1), Ok(Place::Device(3)));
        assert_eq!(place(start + 999, 2), Err(Refusal::InvalidValue));
        assert_eq!(place(0, 1), Err(Refusal::InvalidValue));
        assert_eq!(memory.allocation(start + 7), Ok((start, 1000)));
        let pinned = memory.allocate_pinned(10).expect("memory");
        assert_eq!(place(pinned + 9, 1), Ok(Place::Pinned));
        assert_eq!(place(pinned + 9, 2), Ok(Place::Pageable));
        let word = 7_u64;
        let address = &raw const word as u64;
        assert_eq!(place(address, 8), Ok(Place::Pageable));
        memory.register(address, 8).expect("not yet registered");
        assert_eq!(place(address, 8), Ok(Place::Pinned));
        assert_eq!(memory.register(address + 4, 8), Err(Refusal::AlreadyRegistered));
        memory.unregister(address).expect("registered");
        assert_eq!(memory.unregister(address), Err(Refusal::NotRegistered));
        assert_eq!(memory.free_pinned(pinned), Ok(()));
    }
}
