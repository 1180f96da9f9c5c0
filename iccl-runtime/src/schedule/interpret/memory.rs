//! One rank's buffers, holding symbols.

use super::super::types::{Buffer, Schedule, Slice};
use super::fault::Fault;
use super::promise::{Held, held, place};
use super::ranges::Ranges;
use super::shapes::ShapeId;

/// What a run of bytes holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// This expression, for the bytes of the contributions that lie `shift` (modulo 2^64) after the
    /// bytes of the memory.
    Value { shape: ShapeId, shift: u64 },
    /// Whatever a receive under way puts there.
    Unstable { writer: u32 },
}

/// A run of bytes with an expression, on its way: `bytes` bytes from `origin` in the contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) bytes: u64,
    pub(super) shape: ShapeId,
    pub(super) origin: u64,
}

#[derive(Debug)]
pub(super) struct Memory {
    send: Ranges<Content>,
    recv: Ranges<Content>,
    scratch: Ranges<Content>,
    device_scratch: Ranges<Content>,
    /// In which memory the send buffer lies, and where; then the same of the receive buffer.
    places: [(Buffer, u64); 2],
}

impl Memory {
    /// The buffers as they are at the start: `own` in the send buffer, nothing elsewhere.
    pub(super) fn new(schedule: &Schedule, own: ShapeId) -> Self {
        let places = [Buffer::Send, Buffer::Recv].map(|buffer| place(schedule, buffer));
        let mut memory = Self {
            send: Ranges::default(),
            recv: Ranges::default(),
            scratch: Ranges::default(),
            device_scratch: Ranges::default(),
            places,
        };
        for Held { bytes, origin } in held(schedule) {
            let length = bytes.end - bytes.start;
            let slice = Slice { buffer: Buffer::Send, offset: bytes.start, bytes: length };
            memory.write(slice, &[Piece { bytes: length, shape: own, origin }]);
        }
        memory
    }

    /// The memory in which `slice` lies, and where it starts in it.
    fn place(&mut self, slice: Slice) -> (&mut Ranges<Content>, u64) {
        let (memory, start) = match slice.buffer {
            Buffer::Send => self.places[0],
            Buffer::Recv => self.places[1],
            scratch @ (Buffer::Scratch | Buffer::DeviceScratch) => (scratch, 0),
        };
        let ranges = match memory {
            Buffer::Send => &mut self.send,
            Buffer::Recv => &mut self.recv,
            Buffer::Scratch => &mut self.scratch,
            Buffer::DeviceScratch => &mut self.device_scratch,
        };
        (ranges, start + slice.offset)
    }

    /// Reads `slice` for `step` of `rank`.
    pub(super) fn read(&mut self, slice: Slice, rank: u32, step: u32) -> Result<Vec<Piece>, Fault> {
        let Slice { buffer, offset, bytes } = slice;
        let (ranges, start) = self.place(slice);
        let pieces = ranges.pieces(start..start + bytes);
        let mut read: Vec<Piece> = Vec::with_capacity(pieces.len());
        for (range, content) in pieces {
            let at = range.start - start + offset;
            let (shape, origin) = match content {
                None => return Err(Fault::Uninitialised { rank, step, buffer, at }),
                Some(Content::Unstable { writer }) => {
                    return Err(Fault::Unstable { rank, step, buffer, at, writer });
                }
                Some(Content::Value { shape, shift }) => (shape, range.start.wrapping_add(shift)),
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
        let (ranges, mut at) = self.place(slice);
        for piece in pieces {
            let shift = piece.origin.wrapping_sub(at);
            let content = Content::Value { shape: piece.shape, shift };
            ranges.set(at..at + piece.bytes, content);
            at += piece.bytes;
        }
    }

    /// The first byte of the user's memories that differs from `other`, with the memory that it lies
    /// in.
    pub(super) fn difference(&self, other: &Self) -> Option<(Buffer, u64)> {
        let send = self.send.difference(&other.send).map(|at| (Buffer::Send, at));
        send.or_else(|| self.recv.difference(&other.recv).map(|at| (Buffer::Recv, at)))
    }

    /// From now on a receive may be writing `slice`.
    pub(super) fn disturb(&mut self, slice: Slice, writer: u32) {
        let (ranges, start) = self.place(slice);
        ranges.set(start..start + slice.bytes, Content::Unstable { writer });
    }
}
