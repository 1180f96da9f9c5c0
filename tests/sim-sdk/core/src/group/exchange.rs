//! Messages between the ranks of a group.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::file::{GroupFile, SLOT_HEAD_BYTES, SLOTS};

/// Bytes to a rank or from it. The memory belongs to whoever asked, until the exchange is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) peer: usize,
    pub(crate) at: *mut u8,
    pub(crate) bytes: usize,
    /// Both sides must say the same; else neither gets on, as with the real libraries.
    pub(crate) tag: u64,
}

/// Whether an exchange came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Done,
    Stopped,
}

/// Messages of one channel, in order, and how far the first is.
struct Queue {
    peer: usize,
    messages: VecDeque<Message>,
    moved: usize,
}

fn queues(messages: Vec<Message>) -> Vec<Queue> {
    let mut queues: Vec<Queue> = Vec::new();
    for message in messages.into_iter().filter(|message| message.bytes > 0) {
        let known = queues.iter_mut().find(|queue| queue.peer == message.peer);
        match known {
            Some(queue) => queue.messages.push_back(message),
            None => queues.push(Queue {
                peer: message.peer,
                messages: VecDeque::from([message]),
                moved: 0,
            }),
        }
    }
    queues
}

impl Queue {
    /// The bytes that move next: where they are, how many, and the tag.
    fn next(&self, most: usize) -> Option<(*mut u8, usize, u64)> {
        let message = self.messages.front()?;
        let bytes = most.min(message.bytes - self.moved);
        // SAFETY: less was moved than the message has.
        Some((unsafe { message.at.add(self.moved) }, bytes, message.tag))
    }

    fn advance(&mut self, bytes: usize) {
        self.moved += bytes;
        if self.messages.front().is_some_and(|message| message.bytes == self.moved) {
            self.messages.pop_front();
            self.moved = 0;
        }
    }
}

impl GroupFile {
    /// Sends and receives, all at once. Messages to this rank itself find each other in their order.
    /// Looks at `stop` whenever nothing moves.
    pub(crate) fn exchange(
        &self,
        sends: Vec<Message>,
        receives: Vec<Message>,
        stop: &dyn Fn() -> bool,
    ) -> Ended {
        let is_own = |message: &Message| message.peer == self.rank;
        let (own_sends, sends): (Vec<_>, Vec<_>) = sends.into_iter().partition(is_own);
        let (own_receives, receives): (Vec<_>, Vec<_>) = receives.into_iter().partition(is_own);
        for (from, to) in own_sends.iter().zip(&own_receives) {
            // SAFETY: both are this rank's memory, for as long as the exchange lasts.
            unsafe { std::ptr::copy(from.at, to.at, from.bytes.min(to.bytes)) };
        }
        let (mut sends, mut receives) = (queues(sends), queues(receives));
        loop {
            let heard = self.listen();
            let mut has_moved = false;
            for queue in &mut sends {
                has_moved |= self.push(queue);
            }
            for queue in &mut receives {
                has_moved |= self.pull(queue);
            }
            let is_over = |queues: &[Queue]| queues.iter().all(|one| one.messages.is_empty());
            if is_over(&sends) && is_over(&receives) {
                return Ended::Done;
            }
            if !has_moved {
                if stop() {
                    return Ended::Stopped;
                }
                self.sleep(heard);
            }
        }
    }

    /// Fills free slots of a channel.
    fn push(&self, queue: &mut Queue) -> bool {
        let (from, to) = (self.rank, queue.peer);
        let mut has_moved = false;
        while let Some((at, bytes, tag)) = queue.next(self.slot_bytes) {
            let filled = self.filled(from, to).load(Ordering::Relaxed);
            if filled - self.emptied(from, to).load(Ordering::Acquire) == SLOTS {
                break;
            }
            let slot = self.slot(from, to, filled);
            // SAFETY: the slot is this rank's until it is counted as filled, and long enough.
            unsafe {
                slot.cast::<[u64; 2]>().write_unaligned([tag, bytes as u64]);
                slot.add(SLOT_HEAD_BYTES).copy_from_nonoverlapping(at, bytes);
            }
            self.filled(from, to).store(filled + 1, Ordering::Release);
            self.ring(to);
            queue.advance(bytes);
            has_moved = true;
        }
        has_moved
    }

    /// Empties filled slots of a channel. One that holds something else than is expected stays full.
    fn pull(&self, queue: &mut Queue) -> bool {
        let (from, to) = (queue.peer, self.rank);
        let mut has_moved = false;
        while let Some((at, bytes, tag)) = queue.next(self.slot_bytes) {
            let emptied = self.emptied(from, to).load(Ordering::Relaxed);
            if self.filled(from, to).load(Ordering::Acquire) == emptied {
                break;
            }
            let slot = self.slot(from, to, emptied);
            // SAFETY: the slot is this rank's until it is counted as emptied.
            let head = unsafe { slot.cast::<[u64; 2]>().read_unaligned() };
            if head != [tag, bytes as u64] {
                break;
            }
            // SAFETY: so many bytes are in the slot, and wanted.
            unsafe { at.copy_from_nonoverlapping(slot.add(SLOT_HEAD_BYTES), bytes) };
            self.emptied(from, to).store(emptied + 1, Ordering::Release);
            self.ring(from);
            queue.advance(bytes);
            has_moved = true;
        }
        has_moved
    }
}
