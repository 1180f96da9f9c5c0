//! What each socket has to send next.

use std::collections::VecDeque;

use super::{END_OF_CHANNEL, HEADER_BYTES, IoList, Layout, Message};
use iccl_plugin_api::tables::ENVELOPE_BYTES;

/// The sending half of a channel.
#[derive(Debug)]
pub(crate) struct Sender {
    layout: Layout,
    /// Messages that are not wholly sent, oldest first.
    queue: VecDeque<Outgoing>,
    /// Number of the oldest message in the queue, counted from the channel's first.
    first: u64,
    /// How far each lane is.
    cursors: Vec<Cursor>,
}

#[derive(Debug)]
struct Outgoing {
    message: Message,
    header: [u8; HEADER_BYTES],
    lanes_done: u32,
    is_end: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    message: u64,
    /// Bytes of this lane's part that are sent; on lane 0 the header counts.
    position: u64,
}

impl Sender {
    pub(crate) fn new() -> Self {
        let layout = Layout { lanes: 1, stripe_bytes: u64::MAX };
        Self { layout, queue: VecDeque::new(), first: 0, cursors: vec![Cursor::default()] }
    }

    /// Sets how payloads are cut, before the first byte is sent.
    pub(crate) fn set_layout(&mut self, layout: Layout) {
        self.layout = layout;
        self.cursors = vec![Cursor::default(); layout.lanes as usize];
    }

    /// Queues a message.
    pub(crate) fn post(&mut self, message: Message) {
        let length = message.length;
        self.push(message, length, false);
    }

    /// Queues the orderly end.
    pub(crate) fn post_end(&mut self) {
        self.push(Message::empty([0; ENVELOPE_BYTES]), END_OF_CHANNEL, true);
    }

    fn push(&mut self, message: Message, length: u64, is_end: bool) {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&length.to_le_bytes());
        header[8..].copy_from_slice(&message.envelope);
        self.queue.push_back(Outgoing { message, header, lanes_done: 0, is_end });
        // Lanes that have nothing of this message are done with it.
        for lane in 1..self.cursors.len() {
            self.sent(lane, 0);
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a lane has something to send.
    pub(crate) fn has_output(&self, lane: usize) -> bool {
        self.cursors[lane].message < self.first + self.queue.len() as u64
    }

    /// Adds what `lane` has to send next to `list`, over several messages, until the list is full.
    pub(crate) fn gather(&self, lane: usize, list: &mut IoList) {
        let Cursor { message: mut number, mut position } = self.cursors[lane];
        while let Some(outgoing) = self.queue.get((number - self.first) as usize) {
            let mut payload_position = position;
            if lane == 0 {
                if list.is_full() {
                    return;
                }
                let header = &outgoing.header[HEADER_BYTES.min(position as usize)..];
                list.push(header.as_ptr().cast_mut(), header.len());
                payload_position = position.saturating_sub(HEADER_BYTES as u64);
            }
            let message = &outgoing.message;
            let share = self.layout.share(message.length, lane);
            while payload_position < share {
                if list.is_full() {
                    return;
                }
                let run = self.layout.run(message.length, lane, payload_position);
                payload_position += message.gather(run.offset, run.length, list);
            }
            number += 1;
            position = 0;
        }
    }

    /// Reports that the first `bytes` of what `gather` gave for `lane` are sent.
    pub(crate) fn sent(&mut self, lane: usize, mut bytes: u64) {
        let cursor = &mut self.cursors[lane];
        while let Some(outgoing) = self.queue.get_mut((cursor.message - self.first) as usize) {
            let header = if lane == 0 { HEADER_BYTES as u64 } else { 0 };
            let part = header + self.layout.share(outgoing.message.length, lane);
            let step = bytes.min(part - cursor.position);
            cursor.position += step;
            bytes -= step;
            if cursor.position < part {
                break;
            }
            outgoing.lanes_done += 1;
            *cursor = Cursor { message: cursor.message + 1, position: 0 };
        }
        debug_assert_eq!(bytes, 0, "more sent than there was");
    }

    /// The oldest message if all of it is sent.
    pub(crate) fn pop_done(&mut self) -> Option<Message> {
        let lanes = self.layout.lanes;
        while self.queue.front().is_some_and(|outgoing| outgoing.lanes_done == lanes) {
            let outgoing = self.queue.pop_front()?;
            self.first += 1;
            if !outgoing.is_end {
                return Some(outgoing.message);
            }
        }
        None
    }

    /// Gives up the messages that are not wholly sent.
    pub(crate) fn abandon(&mut self) -> impl Iterator<Item = Message> + use<> {
        let queue = std::mem::take(&mut self.queue);
        queue.into_iter().filter(|outgoing| !outgoing.is_end).map(|outgoing| outgoing.message)
    }
}
