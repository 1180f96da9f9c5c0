//! How vectors are cut: into slices per rank, and slices into chunks. Never inside an element.

use super::Slice;
use super::types::Buffer;

/// A schedule has at most about this many steps, so that a huge vector gets longer messages instead
/// of an endless list.
pub(super) const MOST_STEPS: u64 = 100_000;

/// Elements `first .. first + elements` of the vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) first: u64,
    pub(super) elements: u64,
}

impl Cut {
    /// The whole vector.
    pub(super) const fn whole(elements: u64) -> Self {
        Self { first: 0, elements }
    }

    /// Part `index` of `parts`: lengths differ by at most one element, the longer ones come first.
    pub(super) fn part(self, parts: u64, index: u64) -> Self {
        let (base, longer) = (self.elements / parts, self.elements % parts);
        Self {
            first: self.first + base * index + index.min(longer),
            elements: base + u64::from(index < longer),
        }
    }

    /// How many chunks of at most `elements` elements this has.
    pub(super) const fn chunks(self, elements: u64) -> u64 {
        self.elements.div_ceil(elements)
    }

    /// How many chunks all of `parts` parts have together.
    pub(super) fn chunks_of_parts(self, parts: u64, elements: u64) -> u64 {
        let longer = self.elements % parts;
        let shorter = self.elements / parts;
        longer * (shorter + 1).div_ceil(elements) + (parts - longer) * shorter.div_ceil(elements)
    }

    /// Chunk `index`: all have `elements` elements but the last, which has what is left.
    pub(super) fn chunk(self, elements: u64, index: u64) -> Self {
        let skipped = elements * index;
        Self { first: self.first + skipped, elements: elements.min(self.elements - skipped) }
    }

    /// The elements that these are of `block`, counted from the start of the buffer.
    pub(super) const fn inside(self, block: Self) -> Self {
        Self { first: block.first + self.first, elements: self.elements }
    }

    /// All but the first `elements` elements; nothing if there are no more.
    pub(super) fn after(self, elements: u64) -> Self {
        let skipped = elements.min(self.elements);
        Self { first: self.first + skipped, elements: self.elements - skipped }
    }

    /// These elements in `buffer`, where the vector starts at offset 0.
    pub(super) const fn within(self, buffer: Buffer, element_bytes: u64) -> Slice {
        Slice { buffer, offset: self.first * element_bytes, bytes: self.elements * element_bytes }
    }
}

/// A block cut into chunks, which are counted from the start of the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunks {
    block: Cut,
    elements: u64,
}

impl Chunks {
    /// Chunks of `elements` elements of `block`.
    pub(super) const fn new(block: Cut, elements: u64) -> Self {
        Self { block, elements }
    }

    /// How many there are.
    pub(super) const fn count(self) -> u64 {
        self.block.chunks(self.elements)
    }

    /// How many elements the longest has.
    pub(super) fn longest(self) -> u64 {
        self.elements.min(self.block.elements)
    }

    /// The chunk with this number, if there are that many.
    pub(super) fn get(self, number: u64) -> Option<Cut> {
        (number < self.count()).then(|| self.block.chunk(self.elements, number))
    }
}

/// How many elements a chunk has: `chunk_bytes` worth, at least one, and so many that `elements`
/// elements make no more than [`MOST_STEPS`] steps at `steps_per_chunk` steps a chunk (or that there
/// is one chunk).
pub(super) fn chunk_elements(
    chunk_bytes: u64,
    element_bytes: u64,
    elements: u64,
    steps_per_chunk: u64,
) -> u64 {
    let wanted = (chunk_bytes / element_bytes).max(1);
    let most_chunks = (MOST_STEPS / steps_per_chunk).max(1);
    wanted.max(elements.div_ceil(most_chunks))
}

/// The next multiple of 64 bytes, on which slices of scratch start.
pub(super) const fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_and_chunks_cover_exactly_once(
            first in 0_u64..1 << 40,
            elements in 0_u64..1 << 40,
            parts in 1_u64..300,
            chunk in (1_u64 << 32)..1 << 41,
        ) {
            let whole = Cut { first, elements };
            let mut next = first;
            for index in 0..parts {
                let part = whole.part(parts, index);
                prop_assert_eq!(part.first, next);
                let mut inner = part.first;
                for piece in 0..part.chunks(chunk) {
                    let piece = part.chunk(chunk, piece);
                    prop_assert_eq!(piece.first, inner);
                    prop_assert!(piece.elements > 0 && piece.elements <= chunk);
                    inner += piece.elements;
                }
                prop_assert_eq!(inner, part.first + part.elements);
                next = inner;
            }
            prop_assert_eq!(next, first + elements);
        }

        #[test]
        fn chunks_stay_few(bytes in 0_u64..1 << 20, elements in 0_u64..1 << 60, steps in 1_u64..500) {
            let chunk = chunk_elements(bytes, 8, elements, steps);
            prop_assert!(chunk >= 1 && chunk >= bytes / 8);
            prop_assert!(elements.div_ceil(chunk) * steps <= MOST_STEPS);
        }
    }
}
