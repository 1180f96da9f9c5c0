//! Memory that notices who writes where it may not: it ends at a page that cannot be touched, and
//! begins after bytes that are looked at.

use std::ffi::c_void;

const PAGE: usize = 4096;
const CANARY: u8 = 0xa5;

/// `bytes` of memory that end at a guard page, so that they begin at any address.
#[derive(Debug)]
pub struct Guarded {
    base: *mut c_void,
    mapped: usize,
    start: *mut u8,
    bytes: usize,
    /// Bytes between the memory and the guard, for memory that begins off an element's alignment.
    shift: usize,
}

// SAFETY: plain memory that this value owns.
unsafe impl Send for Guarded {}

impl Guarded {
    /// Filled with `fill`, ending at the guard page.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn new(bytes: usize, fill: u8) -> Self {
        Self::shifted(bytes, fill, 0)
    }

    /// As [`Guarded::new`], ending `shift` bytes earlier.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn shifted(bytes: usize, fill: u8, shift: usize) -> Self {
        // A page before for canaries, and the guard.
        let usable = (bytes + shift + PAGE).next_multiple_of(PAGE);
        let mapped = usable + PAGE;
        // SAFETY: a fresh private mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED, "no memory");
        // SAFETY: the last page of the mapping.
        let guarded = unsafe { libc::mprotect(base.byte_add(usable), PAGE, libc::PROT_NONE) };
        assert_eq!(guarded, 0, "no guard page");
        let start = base.wrapping_byte_add(usable - bytes - shift).cast::<u8>();
        // SAFETY: inside the mapping, before the guard.
        unsafe {
            std::ptr::write_bytes(base.cast::<u8>(), CANARY, usable);
            std::ptr::write_bytes(start, fill, bytes);
        }
        Self { base, mapped, start, bytes, shift }
    }

    /// A copy of `content`, ending `shift` bytes before the guard page.
    pub fn holding(content: &[u8], shift: usize) -> Self {
        let mut memory = Self::shifted(content.len(), 0, shift);
        memory.bytes_mut().copy_from_slice(content);
        memory
    }

    /// The first byte.
    pub fn address(&self) -> *mut c_void {
        self.start.cast()
    }

    /// What it holds. Nothing may be under way on it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: owned, initialised memory; the caller has waited for operations on it.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// To be written. Nothing may be under way on it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }

    /// Looks at the bytes around the memory.
    ///
    /// # Panics
    /// If one was written.
    pub fn check(&self) {
        let before = self.start as usize - self.base as usize;
        // SAFETY: the mapping's part before the memory, which nobody should write.
        let canaries = unsafe { std::slice::from_raw_parts(self.base.cast::<u8>(), before) };
        assert!(
            canaries.iter().all(|byte| *byte == CANARY),
            "bytes before the buffer were written"
        );
        let canaries =
            // SAFETY: the bytes between the memory and the guard.
            unsafe { std::slice::from_raw_parts(self.start.add(self.bytes), self.shift) };
        assert!(canaries.iter().all(|byte| *byte == CANARY), "bytes after the buffer were written");
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, unmapped once.
        unsafe { libc::munmap(self.base, self.mapped) };
    }
}
