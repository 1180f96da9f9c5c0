//! The elements of contributions and results.
//!
//! Contributions repeat after a prime number of elements, so that long vectors cost no more than
//! copying and comparing; neither a chunk nor a block of the matrix is a multiple of it, so whatever
//! comes to a wrong place is noticed. Each cell starts at another element, so that what is left over
//! from the cell before is noticed too.

use iccl_plugin_api::{DataType, RedOp};

use super::image::{Content, Image};
use super::memory::NOTHING;
use crate::oracle::{contribution, reduced};

/// Elements after which contributions repeat.
pub const PERIOD: u64 = 1009;
/// Periods are repeated up to this many bytes, so that few pieces are copied.
const LONG_BYTES: usize = 1 << 14;

/// The contributions of all ranks and their reduction.
#[derive(Debug)]
pub struct Values {
    element_bytes: usize,
    /// By rank; the last one is the reduction.
    repeated: Vec<Vec<u8>>,
}

impl Values {
    /// For a type that is reduced by `op`; without one, there is no reduction.
    pub fn new(dtype: DataType, op: Option<RedOp>, ranks: u32) -> Self {
        let element_bytes = dtype.size_bytes();
        let made = op.unwrap_or(RedOp::Sum);
        let one = |rank| contribution(dtype, made, rank, PERIOD as usize, 0x1cc1);
        let mut periods: Vec<Vec<u8>> = (0..ranks).map(one).collect();
        if let Some(op) = op {
            periods.push(reduced(dtype, op, &periods));
        }
        let times = |period: &Vec<u8>| LONG_BYTES.div_ceil(period.len()) + 1;
        let repeated = periods.iter().map(|period| period.repeat(times(period))).collect();
        Self { element_bytes, repeated }
    }

    /// What memory holds from an element of `content` on, as far as it is here in one piece.
    fn from(&self, content: Content, rotation: u64, elements: u64) -> Option<&[u8]> {
        let (repeated, first) = match content {
            Content::Nothing => return None,
            Content::Contribution { rank, first } => (&self.repeated[rank as usize], first),
            Content::Reduced { first } => (self.repeated.last()?, first),
        };
        let phase = (first + rotation + elements) % PERIOD;
        Some(&repeated[phase as usize * self.element_bytes..])
    }

    /// Fills memory with an image.
    pub fn write(&self, image: &Image, rotation: u64, memory: &mut [u8]) {
        for piece in image.pieces() {
            let start = piece.start as usize * self.element_bytes;
            let memory = &mut memory[start..][..piece.count as usize * self.element_bytes];
            let mut at = 0;
            while at < memory.len() {
                let done = (at / self.element_bytes) as u64;
                let rest = &mut memory[at..];
                let Some(source) = self.from(piece.content, rotation, done) else {
                    rest.fill(NOTHING);
                    break;
                };
                let bytes = source.len().min(rest.len());
                rest[..bytes].copy_from_slice(&source[..bytes]);
                at += bytes;
            }
        }
    }

    /// Compares memory with an image; the first element that is wrong, and what it holds instead.
    pub fn compare(&self, image: &Image, rotation: u64, memory: &[u8]) -> Option<String> {
        for piece in image.pieces() {
            let start = piece.start as usize * self.element_bytes;
            let memory = &memory[start..][..piece.count as usize * self.element_bytes];
            let mut at = 0;
            while at < memory.len() {
                let done = (at / self.element_bytes) as u64;
                let rest = &memory[at..];
                let nothing;
                let expected = if let Some(expected) = self.from(piece.content, rotation, done) {
                    expected
                } else {
                    nothing = vec![NOTHING; rest.len().min(LONG_BYTES)];
                    &nothing
                };
                let bytes = expected.len().min(rest.len());
                if expected[..bytes] != rest[..bytes] {
                    return Some(self.tell(piece, done, &expected[..bytes], &rest[..bytes]));
                }
                at += bytes;
            }
        }
        None
    }

    fn tell(&self, piece: &super::image::Piece, done: u64, expected: &[u8], got: &[u8]) -> String {
        let size = self.element_bytes;
        let elements = expected.chunks(size).zip(got.chunks(size));
        let wrong: Vec<_> = (0_u64..).zip(elements).filter(|(_, (a, b))| a != b).collect();
        let (at, (expected, got)) = wrong[0];
        let place = piece.start + done + at;
        let text = |bytes: &[u8]| {
            let mut eight = [0; 8];
            eight[..size].copy_from_slice(bytes);
            format!("{:#x}", u64::from_le_bytes(eight))
        };
        format!(
            "element {place} is {} instead of {} ({:?} of {} elements from {}; {} wrong here)",
            text(got),
            text(expected),
            piece.content,
            piece.count,
            piece.start,
            wrong.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_compares_equal_and_a_changed_bit_does_not() {
        let values = Values::new(DataType::I16, Some(RedOp::Sum), 3);
        let image = Image::of(100_000, Content::Contribution { rank: 2, first: 5 })
            .with(700, 40_000, Content::Reduced { first: 11 })
            .with(90_000, 10, Content::Nothing);
        let mut memory = vec![0; 200_000];
        values.write(&image, 77, &mut memory);
        assert_eq!(values.compare(&image, 77, &memory), None);
        assert!(values.compare(&image, 78, &memory).is_some(), "another cell");
        for at in [0, 1399, 1400, 81_399, 180_003, 199_999] {
            memory[at] ^= 0x10;
            let told = values.compare(&image, 77, &memory).expect("a difference");
            assert!(told.starts_with(&format!("element {} is", at / 2)), "{at}: {told}");
            memory[at] ^= 0x10;
        }
    }
}
