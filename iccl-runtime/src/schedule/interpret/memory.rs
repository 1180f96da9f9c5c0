//! One rank's buffers, holding symbols.

use super::super::types::{Buffer, Schedule, Slice};
use super::fault::Fault;
use super::ranges::Ranges;
use super::shapes::ShapeId;

/// What a run of bytes holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    /// This expression, for the bytes of the vector that lie `shift` (modulo 2^64) after the bytes
    /// of the buffer.
    Value { shape: ShapeId, shift: u64 },
    /// Whatever a receive under way puts there.
    Unstable { writer: u32 },
}

/// A run of bytes with an expression, on its way: `bytes` bytes from `origin` in the vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) bytes: u64,
    pub(super) shape: ShapeId,
    pub(super) origin: u64,
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    send: Ranges<Content>,
    recv: Ranges<Content>,
    scratch: Ranges<Content>,
    in_place: bool,
}

impl Memory {
    /// The buffers as they are at the start: `own` in the send buffer, nothing elsewhere.
    pub(super) fn new(schedule: &Schedule, own: ShapeId) -> Self {
        let mut memory = Self { in_place: schedule.in_place, ..Self::default() };
        let content = Content::Value { shape: own, shift: 0 };
        memory.buffer(Buffer::Send).set(0..schedule.send_bytes, content);
        memory
    }

    fn buffer(&mut self, buffer: Buffer) -> &mut Ranges<Content> {
        match buffer {
            Buffer::Send if !self.in_place => &mut self.send,
            Buffer::Send | Buffer::Recv => &mut self.recv,
            Buffer::Scratch => &mut self.scratch,
        }
    }

    /// Reads `slice` for `step` of `rank`.
    pub(super) fn read(&mut self, slice: Slice, rank: u32, step: u32) -> Result<Vec<Piece>, Fault> {
        let Slice { buffer, offset, .. } = slice;
        let pieces = self.buffer(buffer).pieces(offset..slice.end());
        let mut read: Vec<Piece> = Vec::with_capacity(pieces.len());
        for (range, content) in pieces {
            let at = range.start;
            let (shape, origin) = match content {
                None => return Err(Fault::Uninitialised { rank, step, buffer, at }),
                Some(Content::Unstable { writer }) => {
                    return Err(Fault::Unstable { rank, step, buffer, at, writer });
                }
                Some(Content::Value { shape, shift }) => (shape, at.wrapping_add(shift)),
            };
            let bytes = range.end - range.start;
            match read.last_mut() {
                Some(last) if last.shape == shape && last.origin + last.bytes == origin => {
                    last.bytes += bytes;
                }
                _ => read.push(Piece { bytes, shape, origin }),
            }
        }
        Ok(read)
    }

    /// Writes `pieces`, which are as long as `slice`.
    pub(super) fn write(&mut self, slice: Slice, pieces: &[Piece]) {
        let mut at = slice.offset;
        for piece in pieces {
            let shift = piece.origin.wrapping_sub(at);
            let content = Content::Value { shape: piece.shape, shift };
            self.buffer(slice.buffer).set(at..at + piece.bytes, content);
            at += piece.bytes;
        }
    }

    /// From now on a receive may be writing `slice`.
    pub(super) fn disturb(&mut self, slice: Slice, writer: u32) {
        self.buffer(slice.buffer).set(slice.offset..slice.end(), Content::Unstable { writer });
    }
}
