//! The two rings of a connected channel and the messages on them.
//!
//! On the ring a message is a header of [`HEADER_BYTES`] (envelope, length, number), the payload,
//! and padding so that the next header begins on a cache line. A payload larger than the ring
//! streams through it: both sides show each other their progress after every chunk.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{Envelope, PluginError, PluginResult};
use iccl_plugin_api::tables::{Completion, ENVELOPE_BYTES, completion_kind};

use crate::ring::{Corrupted, Cursor};
use crate::segment::{SegmentConsumer, SegmentProducer};
use crate::wake::Bell;

/// Bytes of the ring that a message takes besides its payload and padding.
pub(crate) const HEADER_BYTES: usize = ENVELOPE_BYTES + 16;
const ALIGNMENT_BYTES: u64 = 64;

/// Why a side uses its channel no more, in [`crate::ring::RingControl`]'s `closed` word.
pub(crate) mod closed {
    /// `channel_close`: everything that was sent is in the ring.
    pub(crate) const ORDERLY: u32 = 1;
    /// `quiesce`, or a failure of that side: the last message may be cut short.
    pub(crate) const ABORTED: u32 = 2;
    /// A message was not the one that was expected.
    pub(crate) const MISMATCH: u32 = 3;
}

/// A posted message.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) token: u64,
    pub(crate) length: u64,
    pub(crate) envelope: Envelope,
    pub(crate) cursor: Cursor,
}

/// The messages of a channel that are not over.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    pub(crate) sends: VecDeque<Posted>,
    pub(crate) receives: VecDeque<Posted>,
}

impl Queues {
    pub(crate) fn is_empty(&self) -> bool {
        self.sends.is_empty() && self.receives.is_empty()
    }
}

/// What [`Link::advance`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Advanced {
    /// It stopped because it had done its share, not because nothing could be moved.
    pub(crate) more: bool,
    /// A send waits for the peer to make room.
    pub(crate) blocked: bool,
    /// The peer uses the channel no more, and nothing of it is left to receive.
    pub(crate) ended: Option<End>,
}

/// How the other side went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It said so, with this reason.
    Said(u32),
    /// Its socket or its process ended and it had not said so.
    Vanished,
}

/// Where in a message one direction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Before the padding (of this many bytes) and the next header.
    Between(usize),
    /// In the payload of the first posted message.
    Payload,
}

/// A connected channel.
#[derive(Debug)]
pub(crate) struct Link {
    producer: SegmentProducer,
    consumer: SegmentConsumer,
    peer_bell: Bell,
    /// The socket, whose end is the peer's, and the peer's process where it can be seen.
    pub(crate) socket: OwnedFd,
    pub(crate) process: Option<OwnedFd>,
    /// Socket or process have ended.
    pub(crate) vanished: bool,
    sending: Stage,
    receiving: Stage,
    /// Numbers of the next header sent and received.
    sent: u64,
    received: u64,
    /// After how many bytes progress is shown to the other side: few enough that the two copies
    /// of a message of medium size overlap, enough that showing costs little.
    chunk_bytes: usize,
    /// The most that one call of `advance` moves in each direction, so that one channel does not
    /// keep the others waiting.
    share_bytes: usize,
}

fn padding(length: u64) -> usize {
    let used = (HEADER_BYTES as u64 + length % ALIGNMENT_BYTES) % ALIGNMENT_BYTES;
    ((ALIGNMENT_BYTES - used) % ALIGNMENT_BYTES) as usize
}

fn broken(corrupted: Corrupted) -> PluginError {
    PluginError::new(Status::Internal, format!("shared memory is corrupted: {corrupted}"))
}

/// Why a receive could not be given the message that came.
pub(crate) struct Unexpected {
    pub(crate) envelope: Envelope,
    pub(crate) length: u64,
}

/// What stops a link for good.
pub(crate) enum Stop {
    Failed(PluginError),
    Unexpected(Unexpected),
}

impl From<Corrupted> for Stop {
    fn from(corrupted: Corrupted) -> Self {
        Self::Failed(broken(corrupted))
    }
}

impl Link {
    pub(crate) fn new(
        (producer, consumer): (SegmentProducer, SegmentConsumer),
        ring_bytes: u64,
        peer_bell: Bell,
        (socket, process): (OwnedFd, Option<OwnedFd>),
    ) -> Self {
        Self {
            producer,
            consumer,
            peer_bell,
            socket,
            process,
            vanished: false,
            sending: Stage::Between(0),
            receiving: Stage::Between(0),
            sent: 0,
            received: 0,
            chunk_bytes: (ring_bytes as usize / 64).clamp(1024, 128 << 10),
            share_bytes: ring_bytes as usize,
        }
    }

    /// Moves what can be moved, up to a fair share, and queues completions of what is over.
    pub(crate) fn advance(
        &mut self,
        channel: u64,
        queues: &mut Queues,
        ready: &mut VecDeque<Completion>,
    ) -> Result<Advanced, Stop> {
        // Before the last look at the ring: what a peer published before it ended is seen below.
        let end = match self.consumer.closed() {
            0 => self.vanished.then_some(End::Vanished),
            reason => Some(End::Said(reason)),
        };
        let (mut send_share, mut receive_share) = (self.share_bytes, self.share_bytes);
        let mut shown = receive_share;
        let mut blocked;
        loop {
            let before = (send_share, receive_share);
            // By turns, a chunk at a time, so that streams in both directions keep each other fed.
            blocked = end.is_none()
                && self.advance_sends(channel, &mut queues.sends, ready, &mut send_share)?;
            self.advance_receives(channel, &mut queues.receives, ready, &mut receive_share)?;
            // Waking for less than half a ring would have the two sides take turns at every chunk.
            if shown - receive_share >= self.share_bytes / 2 {
                self.show_progress();
                shown = receive_share;
            }
            if send_share == 0 || receive_share == 0 || before == (send_share, receive_share) {
                break;
            }
        }
        if shown != receive_share {
            self.show_progress();
        }
        let more = send_share == 0 || receive_share == 0;
        // Whole messages that the peer left behind wait for their receives.
        let holds = end.is_some() && queues.is_empty() && self.holds_message()?;
        let ended = end.filter(|_| !more && !holds);
        Ok(Advanced { more, blocked, ended })
    }

    /// Writes at once what was just posted, so that a small message need not wait for `advance`.
    pub(crate) fn send_now(
        &mut self,
        channel: u64,
        sends: &mut VecDeque<Posted>,
        ready: &mut VecDeque<Completion>,
    ) -> PluginResult<()> {
        let mut share = self.chunk_bytes;
        self.advance_sends(channel, sends, ready, &mut share).map_err(broken)?;
        Ok(())
    }

    /// Writes at most about a chunk of the posted sends. Whether it was stopped by a full ring.
    fn advance_sends(
        &mut self,
        channel: u64,
        sends: &mut VecDeque<Posted>,
        ready: &mut VecDeque<Completion>,
        share: &mut usize,
    ) -> Result<bool, Corrupted> {
        let mut chunk = self.chunk_bytes.min(*share);
        let mut blocked = false;
        while chunk > 0
            && let Some(front) = sends.front_mut()
        {
            if let Stage::Between(padding) = self.sending {
                let left = padding - self.producer.skip(padding)?;
                self.sending = Stage::Between(left);
                if left > 0 || !self.producer.push(&header(front, self.sent))? {
                    blocked = true;
                    break;
                }
                self.sent += 1;
                self.sending = Stage::Payload;
                chunk = chunk.saturating_sub(HEADER_BYTES);
                *share = share.saturating_sub(HEADER_BYTES);
            }
            let pushed = self.producer.push_from(&mut front.cursor, chunk)?;
            chunk -= pushed;
            *share = share.saturating_sub(pushed);
            if front.cursor.remaining_bytes() == 0 {
                let (token, length) = (front.token, front.length);
                ready.push_back(Completion::done(channel, token, completion_kind::SEND, length));
                sends.pop_front();
                self.sending = Stage::Between(padding(length));
            } else if chunk > 0 {
                blocked = true;
                break;
            }
        }
        if self.producer.publish() {
            self.peer_bell.ring();
        }
        Ok(blocked)
    }

    /// Reads at most about a chunk into the posted receives.
    fn advance_receives(
        &mut self,
        channel: u64,
        receives: &mut VecDeque<Posted>,
        ready: &mut VecDeque<Completion>,
        share: &mut usize,
    ) -> Result<(), Stop> {
        let mut chunk = self.chunk_bytes.min(*share);
        while chunk > 0
            && let Some(front) = receives.front_mut()
        {
            if let Stage::Between(padding) = self.receiving {
                let left = padding - self.consumer.skip(padding)?;
                self.receiving = Stage::Between(left);
                let mut header = [0; HEADER_BYTES];
                if left > 0 || !self.consumer.peek(&mut header)? {
                    break;
                }
                let (envelope, length, number) = parse(&header);
                if number != self.received {
                    let (word, position) = ("message number", self.received);
                    return Err(Corrupted { word, value: number, position }.into());
                }
                if envelope != front.envelope || length != front.length {
                    return Err(Stop::Unexpected(Unexpected { envelope, length }));
                }
                self.consumer.skip(HEADER_BYTES)?;
                self.received += 1;
                self.receiving = Stage::Payload;
                chunk = chunk.saturating_sub(HEADER_BYTES);
                *share = share.saturating_sub(HEADER_BYTES);
            }
            let pulled = self.consumer.pull_into(&mut front.cursor, chunk)?;
            chunk -= pulled;
            *share = share.saturating_sub(pulled);
            if front.cursor.remaining_bytes() == 0 {
                let (token, length) = (front.token, front.length);
                ready.push_back(Completion::done(channel, token, completion_kind::RECEIVE, length));
                receives.pop_front();
                self.receiving = Stage::Between(padding(length));
            } else if chunk > 0 {
                break;
            }
        }
        self.consumer.release();
        Ok(())
    }

    /// Wakes a producer that sleeps because the ring was full.
    fn show_progress(&mut self) {
        if self.consumer.wants_room() {
            self.peer_bell.ring();
        }
    }

    /// Whether a whole message waits for a receive to be posted.
    fn holds_message(&mut self) -> Result<bool, Corrupted> {
        let Stage::Between(padding) = self.receiving else { return Ok(false) };
        let mut bytes = [0; HEADER_BYTES + ALIGNMENT_BYTES as usize];
        let bytes = &mut bytes[..padding + HEADER_BYTES];
        if !self.consumer.peek(bytes)? {
            return Ok(false);
        }
        let Some(header) = bytes[padding..].first_chunk() else { return Ok(false) };
        let (_, length, _) = parse(header);
        let here = self.consumer.available(usize::MAX)? - padding - HEADER_BYTES;
        Ok(here as u64 >= length)
    }

    /// Whether `advance` might find something, apart from what the posted messages ask for.
    pub(crate) fn peer_has_ended(&self) -> bool {
        self.vanished || self.consumer.closed() != 0
    }

    /// Before sleeping with a send that waits for room: true if there is some by now.
    pub(crate) fn ask_for_room(&mut self) -> PluginResult<bool> {
        self.producer.ask_for_room().map_err(broken)
    }

    /// Tells the peer that this side uses the channel no more.
    pub(crate) fn close(&mut self, reason: u32) {
        self.producer.close(reason);
        self.peer_bell.ring();
        // The socket may be held open by a forked child as well.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

fn header(message: &Posted, number: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..ENVELOPE_BYTES].copy_from_slice(&message.envelope);
    header[ENVELOPE_BYTES..ENVELOPE_BYTES + 8].copy_from_slice(&message.length.to_ne_bytes());
    header[ENVELOPE_BYTES + 8..].copy_from_slice(&number.to_ne_bytes());
    header
}

fn parse(header: &[u8; HEADER_BYTES]) -> (Envelope, u64, u64) {
    let mut envelope = [0; ENVELOPE_BYTES];
    envelope.copy_from_slice(&header[..ENVELOPE_BYTES]);
    let number = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&header[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    (envelope, number(ENVELOPE_BYTES), number(ENVELOPE_BYTES + 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_begin_on_cache_lines() {
        for length in [0, 1, 47, 48, 49, 63, 64, 65, 1 << 40, u64::MAX] {
            let total = HEADER_BYTES as u128 + u128::from(length) + padding(length) as u128;
            assert_eq!(total % 64, 0, "length {length}");
            assert!(padding(length) < 64);
        }
    }
}
