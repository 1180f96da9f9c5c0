//! What a buffer has to hold, from end to end: parts of known vectors, one after the other.

use std::rc::Rc;

use super::encode::Format;
use super::pattern::Pattern;

/// The contents of a buffer.
#[derive(Clone)]
pub(super) struct Image {
    parts: Vec<Part>,
}

/// Some elements of a vector.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) pattern: Rc<Pattern>,
    pub(super) first: u64,
    pub(super) elements: u64,
    /// The format in which one NaN is as good as another; `None` where every bit counts.
    pub(super) format: Option<Format>,
}

impl Part {
    fn bytes(&self) -> u64 {
        self.elements * self.pattern.element_bytes() as u64
    }
}

impl Image {
    pub(super) fn new(mut parts: Vec<Part>) -> Self {
        parts.retain(|part| part.elements > 0);
        Self { parts }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(Part::bytes).sum()
    }

    /// The contents in pieces: the offset of each in bytes, its bytes, and where they are from.
    fn pieces(&self) -> impl Iterator<Item = (u64, &[u8], &Part)> {
        let mut end = 0;
        self.parts.iter().flat_map(move |part| {
            let start = end;
            end += part.bytes();
            let pieces = part.pattern.pieces(part.first as usize, part.elements as usize);
            pieces.map(move |(offset, piece)| (start + offset, piece, part))
        })
    }

    /// Hands out the contents, piece by piece, each with its offset in bytes.
    pub(super) fn write<E>(
        &self,
        mut write: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.pieces().try_for_each(|(offset, piece, _)| write(offset as usize, piece))
    }

    /// Hands out contents of which no element is right.
    pub(super) fn poison<E>(
        &self,
        mut write: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.write(|offset, piece| {
            let opposite: Vec<u8> = piece.iter().map(|byte| !byte).collect();
            write(offset, &opposite)
        })
    }

    /// How many elements are not as they should be of what `read` gives for an offset in bytes.
    pub(super) fn wrong<E>(
        &self,
        mut read: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut found = Vec::new();
        self.pieces().try_fold(0, |wrong, (offset, piece, part)| {
            found.resize(piece.len(), 0);
            read(offset as usize, &mut found)?;
            Ok(wrong + part.pattern.wrong(piece, &found, part.format))
        })
    }
}
