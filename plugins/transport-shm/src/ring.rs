//! One direction of a channel: a ring of bytes in shared memory with one producer and one consumer
//! that live in different processes.
//!
//! * Positions are counts of bytes since the beginning; they never wrap, their remainder by the
//!   capacity (a power of two) is the offset. `head` is the producer's word, `tail` the consumer's;
//!   each is written by one side only, on cache lines of its own.
//! * Each side keeps its own position in private memory and only *reads* the other's word, so a
//!   peer that scribbles over the control words can make this side refuse ([`Corrupted`]), never
//!   make it touch a byte outside the ring.
//! * Bytes are copied with raw pointers: a reference to memory that another process may write
//!   would promise too much.
//! * A producer that finds no room and wants to sleep says so in `waiting`; only then does the
//!   consumer have to wake it.

use std::ops::Deref;

use iccl_plugin_api::tables::Segment;

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// A word on cache lines of its own (two: processors fetch lines in pairs).
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Line<T>(T);

/// The control words of one ring, in shared memory. All zero is the empty ring.
#[repr(C)]
#[derive(Debug, Default)]
pub struct RingControl {
    /// Bytes published by the producer.
    head: Line<AtomicU64>,
    /// Bytes released by the consumer.
    tail: Line<AtomicU64>,
    /// Not zero: the producer's process sleeps, or is about to, until there is room.
    waiting: Line<AtomicU32>,
    /// Not zero: the producer's process uses the channel no more, in neither direction; why.
    closed: Line<AtomicU32>,
}

/// Where a ring's bytes are.
pub trait RingMemory {
    /// Copies `bytes` bytes from `source` to `offset`.
    ///
    /// # Safety
    /// `source` is readable for `bytes`, `offset + bytes` is at most the capacity, and the caller
    /// is the producer and has that range to itself by the ring's protocol.
    unsafe fn write(&self, offset: usize, source: *const u8, bytes: usize);

    /// Copies `bytes` bytes from `offset` to `destination`.
    ///
    /// # Safety
    /// As [`RingMemory::write`] with the consumer, and `destination` writable.
    unsafe fn read(&self, offset: usize, destination: *mut u8, bytes: usize);
}

/// A control word says what it cannot: the peer, or something in its process, is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupted {
    /// Which word.
    pub word: &'static str,
    /// What it says.
    pub value: u64,
    /// The position that it is measured against.
    pub position: u64,
}

impl std::fmt::Display for Corrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the ring's {} is {}, impossible at position {}",
            self.word, self.value, self.position
        )
    }
}

/// A position in the bytes of a posted message.
#[derive(Debug)]
pub struct Cursor {
    /// The part of a segment that is copied next.
    next: *mut u8,
    next_bytes: usize,
    /// Segments after that one, and how many of them are used up.
    rest: Box<[Segment]>,
    used: usize,
    remaining_bytes: u64,
}

// SAFETY: the pointers are to a message's payload, which by the contract of `post_send` and
// `post_receive` is the domain's until the completion, whichever thread drives the domain.
unsafe impl Send for Cursor {}

impl Cursor {
    /// The beginning of the bytes of `segments`.
    ///
    /// # Safety
    /// What the segments point to stays readable (for a receive: writable, and touched by nobody
    /// else) until the cursor has been dropped.
    pub unsafe fn new(segments: &[Segment]) -> Self {
        let remaining_bytes = segments.iter().map(|segment| segment.length).sum();
        let (first, rest) = match segments {
            [] => (None, Box::default()),
            [first, rest @ ..] => (Some(first), rest.into()),
        };
        Self {
            next: first.map_or(std::ptr::null_mut(), |first| first.address.cast()),
            next_bytes: first.map_or(0, |first| first.length as usize),
            rest,
            used: 0,
            remaining_bytes,
        }
    }

    /// Bytes not copied yet.
    pub fn remaining_bytes(&self) -> u64 {
        self.remaining_bytes
    }

    /// The next run of bytes, at most `limit`; its length is 0 only at the end.
    fn run(&mut self, limit: usize) -> (*mut u8, usize) {
        while self.next_bytes == 0 && self.used < self.rest.len() {
            let segment = &self.rest[self.used];
            (self.next, self.next_bytes) = (segment.address.cast(), segment.length as usize);
            self.used += 1;
        }
        (self.next, self.next_bytes.min(limit))
    }

    fn advance(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.next_bytes);
        self.next = self.next.wrapping_add(bytes);
        self.next_bytes -= bytes;
        self.remaining_bytes -= bytes as u64;
    }
}

/// The writing side.
#[derive(Debug)]
pub struct Producer<C, M> {
    control: C,
    memory: M,
    capacity: u64,
    /// Bytes written.
    head: u64,
    /// Bytes published.
    published: u64,
    /// The consumer's word when it was last read.
    tail: u64,
}

impl<C: Deref<Target = RingControl>, M: RingMemory> Producer<C, M> {
    /// The producer of an empty ring of `capacity` bytes, a power of two.
    pub fn new(control: C, memory: M, capacity: usize) -> Self {
        debug_assert!(capacity.is_power_of_two());
        Self { control, memory, capacity: capacity as u64, head: 0, published: 0, tail: 0 }
    }

    /// Bytes that can be written; the shared word is read only if fewer than `wanted` are known.
    ///
    /// # Errors
    /// The consumer's word makes no sense.
    pub fn room(&mut self, wanted: usize) -> Result<usize, Corrupted> {
        let room = self.capacity - (self.head - self.tail);
        if room >= wanted as u64 {
            return Ok(room as usize);
        }
        let tail = self.control.tail.0.load(Ordering::Acquire);
        if tail < self.tail || tail > self.published {
            return Err(Corrupted { word: "tail", value: tail, position: self.published });
        }
        self.tail = tail;
        Ok((self.capacity - (self.head - tail)) as usize)
    }

    /// Writes all of `bytes`, or nothing if there is no room.
    ///
    /// # Errors
    /// As [`Producer::room`].
    pub fn push(&mut self, bytes: &[u8]) -> Result<bool, Corrupted> {
        if self.room(bytes.len())? < bytes.len() {
            return Ok(false);
        }
        // SAFETY: a slice is readable, and the room for it has just been seen.
        unsafe { self.write(bytes.as_ptr(), bytes.len()) };
        Ok(true)
    }

    /// Writes what there is room for, at most `limit` bytes, and says how many.
    ///
    /// # Errors
    /// As [`Producer::room`].
    pub fn push_from(&mut self, cursor: &mut Cursor, limit: usize) -> Result<usize, Corrupted> {
        let wanted = (limit as u64).min(cursor.remaining_bytes()) as usize;
        let total = self.room(wanted)?.min(wanted);
        let mut left = total;
        while left > 0 {
            let (source, bytes) = cursor.run(left);
            // SAFETY: the cursor's maker promised readable segments; `left` is within the room.
            unsafe { self.write(source, bytes) };
            cursor.advance(bytes);
            left -= bytes;
        }
        Ok(total)
    }

    /// Leaves at most `bytes` bytes as they are, as room allows, and says how many.
    ///
    /// # Errors
    /// As [`Producer::room`].
    pub fn skip(&mut self, bytes: usize) -> Result<usize, Corrupted> {
        let skipped = self.room(bytes)?.min(bytes);
        self.head += skipped as u64;
        Ok(skipped)
    }

    /// # Safety
    /// `source` is readable for `bytes`, and [`Producer::room`] has said that they fit.
    unsafe fn write(&mut self, source: *const u8, bytes: usize) {
        let offset = (self.head & (self.capacity - 1)) as usize;
        let first = bytes.min(self.capacity as usize - offset);
        // SAFETY: both parts lie in the ring by construction; the range from `head` on is the
        // producer's until it is published.
        unsafe {
            self.memory.write(offset, source, first);
            if first < bytes {
                self.memory.write(0, source.add(first), bytes - first);
            }
        }
        self.head += bytes as u64;
    }

    /// Bytes written and not published.
    pub fn unpublished_bytes(&self) -> usize {
        (self.head - self.published) as usize
    }

    /// Shows the consumer what has been written. Whether there was anything: then ring its bell.
    pub fn publish(&mut self) -> bool {
        if self.published == self.head {
            return false;
        }
        self.control.head.0.store(self.head, Ordering::Release);
        self.published = self.head;
        true
    }

    /// Before going to sleep for want of room: asks the consumer to ring when it makes some.
    /// Whether there is more room by now: then do not sleep.
    ///
    /// # Errors
    /// As [`Producer::room`].
    pub fn ask_for_room(&mut self) -> Result<bool, Corrupted> {
        self.control.waiting.0.store(1, Ordering::Relaxed);
        // Pairs with the fence in `wants_room`: either the consumer sees the request, or this side
        // sees the room.
        fence(Ordering::SeqCst);
        let before = self.tail;
        self.room(usize::MAX)?;
        Ok(self.tail != before)
    }

    /// Tells the consumer's process that this one uses the channel no more.
    pub fn close(&mut self, reason: u32) {
        self.control.closed.0.store(reason, Ordering::Release);
    }
}

/// The reading side.
#[derive(Debug)]
pub struct Consumer<C, M> {
    control: C,
    memory: M,
    capacity: u64,
    /// Bytes read.
    tail: u64,
    /// Bytes released.
    released: u64,
    /// The producer's word when it was last read.
    head: u64,
}

impl<C: Deref<Target = RingControl>, M: RingMemory> Consumer<C, M> {
    /// The consumer of an empty ring of `capacity` bytes, a power of two.
    pub fn new(control: C, memory: M, capacity: usize) -> Self {
        debug_assert!(capacity.is_power_of_two());
        Self { control, memory, capacity: capacity as u64, tail: 0, released: 0, head: 0 }
    }

    /// Bytes that can be read; the shared word is read only if fewer than `wanted` are known.
    ///
    /// # Errors
    /// The producer's word makes no sense.
    pub fn available(&mut self, wanted: usize) -> Result<usize, Corrupted> {
        let available = self.head - self.tail;
        if available >= wanted as u64 {
            return Ok(available as usize);
        }
        let head = self.control.head.0.load(Ordering::Acquire);
        if head < self.head || head - self.released > self.capacity {
            return Err(Corrupted { word: "head", value: head, position: self.released });
        }
        self.head = head;
        Ok((head - self.tail) as usize)
    }

    /// Copies the next bytes without taking them, if there are enough of them.
    ///
    /// # Errors
    /// As [`Consumer::available`].
    pub fn peek(&mut self, bytes: &mut [u8]) -> Result<bool, Corrupted> {
        if self.available(bytes.len())? < bytes.len() {
            return Ok(false);
        }
        // SAFETY: a slice is writable, and that many bytes have just been seen to be there.
        unsafe { self.read(bytes.as_mut_ptr(), bytes.len()) };
        Ok(true)
    }

    /// Takes what there is, at most `limit` bytes, and says how many.
    ///
    /// # Errors
    /// As [`Consumer::available`].
    pub fn pull_into(&mut self, cursor: &mut Cursor, limit: usize) -> Result<usize, Corrupted> {
        let wanted = (limit as u64).min(cursor.remaining_bytes()) as usize;
        let total = self.available(wanted)?.min(wanted);
        let mut left = total;
        while left > 0 {
            let (destination, bytes) = cursor.run(left);
            // SAFETY: the cursor's maker promised writable segments; `left` bytes are there.
            unsafe { self.read(destination, bytes) };
            cursor.advance(bytes);
            self.tail += bytes as u64;
            left -= bytes;
        }
        Ok(total)
    }

    /// Drops at most `bytes` of what there is, and says how many.
    ///
    /// # Errors
    /// As [`Consumer::available`].
    pub fn skip(&mut self, bytes: usize) -> Result<usize, Corrupted> {
        let skipped = self.available(bytes)?.min(bytes);
        self.tail += skipped as u64;
        Ok(skipped)
    }

    /// # Safety
    /// `destination` is writable for `bytes`, and [`Consumer::available`] has said that they are
    /// there.
    unsafe fn read(&self, destination: *mut u8, bytes: usize) {
        let offset = (self.tail & (self.capacity - 1)) as usize;
        let first = bytes.min(self.capacity as usize - offset);
        // SAFETY: both parts lie in the ring by construction; the range from `tail` to `head` is
        // the consumer's until it is released.
        unsafe {
            self.memory.read(offset, destination, first);
            if first < bytes {
                self.memory.read(0, destination.add(first), bytes - first);
            }
        }
    }

    /// Bytes read and not released.
    pub fn unreleased_bytes(&self) -> usize {
        (self.tail - self.released) as usize
    }

    /// Gives the room of what has been read back to the producer.
    pub fn release(&mut self) {
        if self.released != self.tail {
            self.control.tail.0.store(self.tail, Ordering::Release);
            self.released = self.tail;
        }
    }

    /// After [`Consumer::release`]: whether the producer sleeps for want of room. Then ring its
    /// bell. Answers once for each time that it was asked.
    pub fn wants_room(&mut self) -> bool {
        fence(Ordering::SeqCst);
        self.control.waiting.0.load(Ordering::Relaxed) != 0
            && self.control.waiting.0.swap(0, Ordering::Relaxed) != 0
    }

    /// Why the producer's process uses the channel no more, 0 if it still does. Read it *before*
    /// reading the ring for the last time: what was published before is visible after.
    pub fn closed(&self) -> u32 {
        self.control.closed.0.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
