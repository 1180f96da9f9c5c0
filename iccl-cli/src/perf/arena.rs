//! A buffer with guard zones on both sides, which nothing may write to.

use iccl_runtime::comm::{Buffer, Device};

use super::image::Image;
use crate::failure::Result;

/// The bytes on each side. A multiple of every alignment that matters.
const GUARD_BYTES: u64 = 256;

const GUARD_VALUE: u8 = 0xc3;

/// Memory for vectors up to some length.
pub(super) struct Arena {
    whole: Buffer,
}

impl Arena {
    pub(super) fn new(device: &Device, most_bytes: u64) -> Result<Self> {
        Ok(Self { whole: device.allocate::<u8>((most_bytes + 2 * GUARD_BYTES) as usize)? })
    }

    /// The place of a vector of `bytes`.
    pub(super) fn vector(&self, bytes: u64) -> Result<Buffer> {
        Ok(self.whole.slice(GUARD_BYTES, bytes)?)
    }

    /// Writes a vector, and both guards.
    pub(super) fn write(&self, image: &Image) -> Result<()> {
        self.overwrite(0, image)?;
        self.guard(image.bytes())
    }

    /// Writes a vector of which no element is right, and both guards.
    pub(super) fn poison(&self, expected: &Image) -> Result<()> {
        let vector = self.vector(expected.bytes())?;
        expected.poison(|offset, piece| vector.write(offset, piece))?;
        self.guard(expected.bytes())
    }

    /// Writes a part of the vector that is there, from `offset` bytes on.
    pub(super) fn overwrite(&self, offset: u64, image: &Image) -> Result<()> {
        let place = self.whole.slice(GUARD_BYTES + offset, image.bytes())?;
        Ok(image.write(|offset, piece| place.write(offset, piece))?)
    }

    fn guard(&self, bytes: u64) -> Result<()> {
        let guard = [GUARD_VALUE; GUARD_BYTES as usize];
        self.whole.write(0, &guard)?;
        Ok(self.whole.write((GUARD_BYTES + bytes) as usize, &guard)?)
    }

    /// How many elements are not as they should be; bytes of the guards count as elements.
    pub(super) fn wrong(&self, expected: &Image) -> Result<u64> {
        let bytes = expected.bytes();
        let vector = self.vector(bytes)?;
        let wrong = expected.wrong(|offset, found| vector.read_into(offset, found))?;
        let mut guards = [0_u8; 2 * GUARD_BYTES as usize];
        let (before, behind) = guards.split_at_mut(GUARD_BYTES as usize);
        self.whole.read_into(0, before)?;
        self.whole.read_into((GUARD_BYTES + bytes) as usize, behind)?;
        let trampled = guards.iter().filter(|byte| **byte != GUARD_VALUE).count();
        Ok(wrong + trampled as u64)
    }
}
