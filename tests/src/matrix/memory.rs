//! Memory that is reused from cell to cell, with canaries around what a cell uses of it. Where the host cannot
//! read the device's memory, there is an image of it in the host's, which is moved there and back.

use std::ffi::c_void;

use iccl_runtime::Result;
use iccl_runtime::comm::{Buffer, Device};

use super::cell::Alignment;

const PAGE: usize = 4096;
/// Bytes before and after a buffer that must stay as they are.
const ZONE: usize = 256;
const CANARY: u8 = 0xa5;
/// What lies in buffers that nobody has written.
pub const NOTHING: u8 = 0xee;

/// Address space for the longest buffer of any cell; pages come when they are touched. A guard page
/// ends it.
#[derive(Debug)]
pub struct Arena {
    base: *mut u8,
    /// Up to the guard page.
    usable: usize,
    /// The memory whose image this is; it ends where the guard page begins.
    on_card: Option<Buffer>,
}

/// Part of an arena that one cell uses.
#[derive(Clone, Debug)]
pub struct Place {
    start: *mut u8,
    bytes: usize,
    /// Bytes of canaries after it.
    after: usize,
    /// The memory whose image this is, canaries included.
    on_card: Option<Buffer>,
}

impl Arena {
    /// For buffers of up to `longest` bytes.
    ///
    /// # Panics
    /// If there is no address space.
    pub fn new(longest: usize) -> Self {
        let usable = (longest + 2 * PAGE).next_multiple_of(PAGE);
        // SAFETY: a fresh private mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                usable + PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED, "no address space for {longest} bytes");
        // SAFETY: the last page of the mapping.
        let guarded = unsafe { libc::mprotect(base.byte_add(usable), PAGE, libc::PROT_NONE) };
        assert_eq!(guarded, 0, "no guard page");
        Self { base: base.cast(), usable, on_card: None }
    }

    /// The same for a device, with its memory where the host cannot read that.
    ///
    /// # Errors
    /// The device has no memory.
    pub fn on(device: &Device, longest: usize) -> Result<Self> {
        let mut arena = Self::new(longest);
        if device.facts().capabilities.host_accessible == 0 {
            arena.on_card = Some(device.allocate::<u8>(arena.usable)?);
        }
        Ok(arena)
    }

    /// A place for `bytes`, with fresh canaries around it. What it holds is left over from the cell
    /// before.
    ///
    /// # Panics
    /// If the arena is too small.
    pub fn place(&mut self, bytes: usize, element_bytes: usize, alignment: Alignment) -> Place {
        let offset = match alignment {
            Alignment::Line => PAGE,
            Alignment::Element => PAGE + element_bytes,
            Alignment::Odd => PAGE + 3,
            Alignment::Guard => self.usable - bytes,
        };
        assert!(offset >= ZONE && offset + bytes <= self.usable, "the arena is too small");
        let after = ZONE.min(self.usable - offset - bytes);
        let start = self.base.wrapping_add(offset);
        // SAFETY: inside the mapping, before the guard.
        unsafe {
            std::ptr::write_bytes(start.sub(ZONE), CANARY, ZONE);
            std::ptr::write_bytes(start.add(bytes), CANARY, after);
        }
        let on_card = self.on_card.as_ref().map(|whole| {
            let (first, length) = (offset - ZONE, ZONE + bytes + after);
            whole.slice(first as u64, length as u64).expect("the arena is as long as its image")
        });
        Place { start, bytes, after, on_card }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, unmapped once; places are used only while the arena lives.
        unsafe { libc::munmap(self.base.cast(), self.usable + PAGE) };
    }
}

impl Place {
    /// The address of byte `offset`, on the card if the memory is one's.
    pub fn address(&self, offset: usize) -> *mut c_void {
        match &self.on_card {
            Some(card) => card.address().wrapping_byte_add(ZONE + offset),
            None => self.start.wrapping_add(offset).cast(),
        }
    }

    /// Moves what the place holds, canaries included, to the card.
    ///
    /// # Errors
    /// What the card says.
    pub fn to_card(&self) -> Result<()> {
        let Some(card) = &self.on_card else { return Ok(()) };
        // SAFETY: the image and its zones lie in the mapping, and nobody else uses them now.
        card.write(0, unsafe { std::slice::from_raw_parts(self.start.sub(ZONE), self.length()) })
    }

    /// Moves what the card holds, canaries included, to the place.
    ///
    /// # Errors
    /// What the card says.
    pub fn from_card(&self) -> Result<()> {
        let Some(card) = &self.on_card else { return Ok(()) };
        // SAFETY: as above.
        let image = unsafe { std::slice::from_raw_parts_mut(self.start.sub(ZONE), self.length()) };
        card.read_into(0, image)
    }

    fn length(&self) -> usize {
        ZONE + self.bytes + self.after
    }

    /// What it holds.
    ///
    /// # Safety
    /// The arena lives, no operation is under way on it, and no other slice of it lives.
    pub unsafe fn bytes<'a>(&self) -> &'a [u8] {
        // SAFETY: mapped memory; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// To be written.
    ///
    /// # Safety
    /// As [`Place::bytes`].
    pub unsafe fn bytes_mut<'a>(&mut self) -> &'a mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }

    /// Which canaries were written, if any.
    pub fn harmed(&self) -> Option<&'static str> {
        // SAFETY: both zones lie in the mapping and nobody writes to them.
        let (before, after) = unsafe {
            (
                std::slice::from_raw_parts(self.start.sub(ZONE), ZONE),
                std::slice::from_raw_parts(self.start.add(self.bytes), self.after),
            )
        };
        let harmed = |zone: &[u8]| zone.iter().any(|byte| *byte != CANARY);
        if harmed(before) {
            return Some("bytes before the buffer were written");
        }
        harmed(after).then_some("bytes after the buffer were written")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canaries_are_looked_at_on_both_sides() {
        for alignment in Alignment::ALL {
            let mut arena = Arena::new(1000);
            let mut place = arena.place(100, 4, alignment);
            // SAFETY: the arena lives and nobody else uses it.
            unsafe { place.bytes_mut() }.fill(1);
            assert_eq!(place.harmed(), None);
            // SAFETY: the zone before the place.
            unsafe { *place.start.sub(1) = 0 };
            assert!(place.harmed().is_some_and(|text| text.contains("before")));
            if alignment != Alignment::Guard {
                let place = arena.place(100, 4, alignment);
                // SAFETY: the zone after the place.
                unsafe { *place.start.add(100) = 0 };
                assert!(place.harmed().is_some_and(|text| text.contains("after")));
            }
        }
    }

    #[test]
    fn places_start_where_they_should() {
        let mut arena = Arena::new(1000);
        let mut start = |alignment| arena.place(96, 8, alignment).address(0) as usize;
        assert_eq!(start(Alignment::Line) % 64, 0);
        assert_eq!(start(Alignment::Element) % 64, 8);
        assert_eq!(start(Alignment::Odd) % 64, 3);
        assert_eq!((start(Alignment::Guard) + 96) % PAGE, 0);
    }
}
