//! Where the bytes that arrive belong.

use std::collections::VecDeque;

use iccl_plugin_api::sdk::Envelope;

use super::{END_OF_CHANNEL, HEADER_BYTES, IoList, Layout, Message};

/// Bytes that may be read from the first socket before it is known where they belong: a message of
/// up to 16 KiB then takes one system call.
const STAGING_BYTES: usize = 16 * 1024 + HEADER_BYTES;

/// The receiving half of a channel.
#[derive(Debug)]
pub(crate) struct Receiver {
    layout: Layout,
    /// Posted receives that are not complete, oldest first.
    posted: VecDeque<Incoming>,
    /// Number of the oldest one, counted from the channel's first.
    first: u64,
    /// Messages with a smaller number have had their header compared.
    verified: u64,
    cursors: Vec<Cursor>,
    staging: Staging,
    ended: bool,
}

#[derive(Debug)]
struct Incoming {
    message: Message,
    lanes_done: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    message: u64,
    /// Bytes of this lane's share that have arrived.
    position: u64,
}

/// A message arrived that is not the one that was expected. The channel is unusable.
#[derive(Debug)]
pub(crate) struct Mismatched {
    /// The receive that was posted for it; its memory is untouched.
    pub(crate) expected: Message,
    /// The envelope that came.
    pub(crate) envelope: Envelope,
    /// The length that came, in bytes.
    pub(crate) length: u64,
}

#[derive(Debug, Default)]
struct Staging {
    /// Allocated when first used.
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        Self {
            layout: Layout { lanes: 1, stripe_bytes: u64::MAX },
            posted: VecDeque::new(),
            first: 0,
            verified: 0,
            cursors: vec![Cursor::default()],
            staging: Staging::default(),
            ended: false,
        }
    }

    /// Sets how payloads are cut, before the first byte arrives.
    pub(crate) fn set_layout(&mut self, layout: Layout) {
        self.layout = layout;
        self.cursors = vec![Cursor::default(); layout.lanes as usize];
    }

    /// Queues a receive.
    pub(crate) fn post(&mut self, message: Message) {
        self.posted.push_back(Incoming { message, lanes_done: 0 });
    }

    /// Whether no receive is posted.
    pub(crate) fn is_idle(&self) -> bool {
        self.posted.is_empty()
    }

    /// Whether the peer has said that it will send no more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the header of a message is here.
    pub(crate) fn has_next_message(&self) -> bool {
        !self.ended && self.cursors[0].message == self.verified && self.staging.header().is_some()
    }

    /// Whether `lane` may be read.
    pub(crate) fn wants(&self, lane: usize) -> bool {
        let known = if lane == 0 && !self.ended {
            self.first + self.posted.len() as u64
        } else {
            self.verified
        };
        self.cursors[lane].message < known
    }

    /// Whether a receive waits for a message that will never come.
    pub(crate) fn waits_in_vain(&self) -> bool {
        self.ended && self.verified < self.first + self.posted.len() as u64
    }

    /// Adds to `list` where the next bytes of `lane` go. Without a posted receive, the first lane's
    /// go to what room is left in the staging buffer; the other lanes have none then.
    pub(crate) fn room(&mut self, lane: usize, list: &mut IoList) {
        let Cursor { message: number, mut position } = self.cursors[lane];
        if number == self.verified {
            if lane == 0 {
                self.staging.room(list);
            }
            return;
        }
        let message = &self.posted[(number - self.first) as usize].message;
        let share = self.layout.share(message.length, lane);
        while position < share {
            if list.is_full() {
                return;
            }
            let run = self.layout.run(message.length, lane, position);
            position += message.gather(run.offset, run.length, list);
        }
        // The next header usually follows at once: take it with the same call.
        if lane == 0 && !list.is_full() {
            self.staging.room(list);
        }
    }

    /// Takes note that `bytes` were read into what `room` gave for `lane`.
    ///
    /// # Errors
    /// The message that arrived is not the one that was expected.
    pub(crate) fn received(&mut self, lane: usize, bytes: u64) -> Result<(), Box<Mismatched>> {
        if lane > 0 {
            self.advance(lane, bytes);
            return Ok(());
        }
        let direct = bytes.min(self.payload_left());
        self.staging.end += (bytes - direct) as usize;
        self.advance(0, direct);
        self.use_staging()
    }

    /// Distributes what is in the staging buffer; to be called after `post`.
    ///
    /// # Errors
    /// The message that arrived is not the one that was expected.
    pub(crate) fn use_staging(&mut self) -> Result<(), Box<Mismatched>> {
        loop {
            if self.cursors[0].message < self.verified {
                let left = self.payload_left();
                if left > 0 && self.staging.used() == 0 {
                    return Ok(());
                }
                let bytes = self.copy_from_staging(left);
                self.advance(0, bytes);
            } else {
                let Some(header) = self.staging.header() else { return Ok(()) };
                if !self.take_header(header)? {
                    return Ok(());
                }
            }
        }
    }

    /// Compares a header with the receive posted for it. False if there is none yet.
    fn take_header(&mut self, header: [u8; HEADER_BYTES]) -> Result<bool, Box<Mismatched>> {
        let (length, envelope) = split_header(&header);
        if length == END_OF_CHANNEL {
            self.ended = true;
            return Ok(false);
        }
        let index = (self.verified - self.first) as usize;
        let Some(incoming) = self.posted.get(index) else { return Ok(false) };
        if (incoming.message.length != length || incoming.message.envelope != envelope)
            && let Some(Incoming { message: expected, .. }) = self.posted.remove(index)
        {
            return Err(Box::new(Mismatched { expected, envelope, length }));
        }
        self.staging.start += HEADER_BYTES;
        self.verified += 1;
        // Lanes that have nothing of this message are done with it.
        for lane in 1..self.cursors.len() {
            self.advance(lane, 0);
        }
        Ok(true)
    }

    /// Bytes that the first lane still lacks of the message it is at.
    fn payload_left(&self) -> u64 {
        let cursor = self.cursors[0];
        if cursor.message == self.verified {
            return 0;
        }
        let message = &self.posted[(cursor.message - self.first) as usize].message;
        self.layout.share(message.length, 0) - cursor.position
    }

    fn copy_from_staging(&mut self, wanted: u64) -> u64 {
        let cursor = self.cursors[0];
        let message = &self.posted[(cursor.message - self.first) as usize].message;
        let mut position = cursor.position;
        let mut wanted = wanted.min(self.staging.used() as u64);
        let mut copied = 0;
        while wanted > 0 {
            let run = self.layout.run(message.length, 0, position);
            let mut list = IoList::new();
            let bytes = message.gather(run.offset, run.length.min(wanted), &mut list);
            for piece in list.pieces() {
                let source = self.staging.take(piece.iov_len);
                // SAFETY: the piece lies in memory that is lent to us for writing until the
                // message's completion, and cannot overlap with our own staging buffer.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        source.as_ptr(),
                        piece.iov_base.cast(),
                        source.len(),
                    );
                }
            }
            position += bytes;
            wanted -= bytes;
            copied += bytes;
        }
        copied
    }

    /// Moves a lane on, past messages that have no more for it.
    fn advance(&mut self, lane: usize, mut bytes: u64) {
        while self.cursors[lane].message < self.verified {
            let cursor = &mut self.cursors[lane];
            let incoming = &mut self.posted[(cursor.message - self.first) as usize];
            let share = self.layout.share(incoming.message.length, lane);
            let step = bytes.min(share - cursor.position);
            cursor.position += step;
            bytes -= step;
            if cursor.position < share {
                break;
            }
            incoming.lanes_done += 1;
            *cursor = Cursor { message: cursor.message + 1, position: 0 };
        }
        debug_assert_eq!(bytes, 0, "more received than there was room for");
    }

    /// The oldest receive if all of it has arrived.
    pub(crate) fn pop_done(&mut self) -> Option<Message> {
        let front = self.posted.front()?;
        if front.lanes_done < self.layout.lanes {
            return None;
        }
        self.first += 1;
        self.posted.pop_front().map(|incoming| incoming.message)
    }

    /// Gives up the receives that are not complete.
    pub(crate) fn abandon(&mut self) -> impl Iterator<Item = Message> + use<> {
        std::mem::take(&mut self.posted).into_iter().map(|incoming| incoming.message)
    }
}

fn split_header(header: &[u8; HEADER_BYTES]) -> (u64, Envelope) {
    let mut length = [0; 8];
    length.copy_from_slice(&header[..8]);
    let mut envelope = [0; HEADER_BYTES - 8];
    envelope.copy_from_slice(&header[8..]);
    (u64::from_le_bytes(length), envelope)
}

impl Staging {
    fn used(&self) -> usize {
        self.end - self.start
    }

    /// The next header if all of it is here.
    fn header(&self) -> Option<[u8; HEADER_BYTES]> {
        let bytes = self.bytes.get(self.start..self.end)?.get(..HEADER_BYTES)?;
        bytes.try_into().ok()
    }

    fn take(&mut self, bytes: usize) -> &[u8] {
        let start = self.start;
        self.start += bytes;
        &self.bytes[start..start + bytes]
    }

    /// Adds what room is left to `list`.
    fn room(&mut self, list: &mut IoList) {
        if self.bytes.is_empty() {
            self.bytes = vec![0; STAGING_BYTES].into_boxed_slice();
        }
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let room = &mut self.bytes[self.end..];
        list.push(room.as_mut_ptr(), room.len());
    }
}
