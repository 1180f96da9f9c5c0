//! Memory that the runtime lends: pointers and lengths, turned into `iovec`s.

use iccl_plugin_api::sdk::{Envelope, PluginResult, PostedMessage};
use iccl_plugin_api::tables::Segment;

/// Most pieces of one system call.
const IO_PIECES: usize = 32;

/// Runs of memory for one vectored system call, in order.
pub(crate) struct IoList {
    used: usize,
    bytes: u64,
    pieces: [libc::iovec; IO_PIECES],
}

impl IoList {
    pub(crate) fn new() -> Self {
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { used: 0, bytes: 0, pieces: [nothing; IO_PIECES] }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.used == IO_PIECES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Bytes of all pieces.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn pieces(&self) -> &[libc::iovec] {
        &self.pieces[..self.used]
    }

    /// Adds a piece unless it is empty. The list must not be full.
    pub(crate) fn push(&mut self, address: *mut u8, length: usize) {
        if length > 0 {
            self.pieces[self.used] = libc::iovec { iov_base: address.cast(), iov_len: length };
            self.used += 1;
            self.bytes += length as u64;
        }
    }
}

/// A run of lent memory.
#[derive(Clone, Copy, Debug)]
struct Span {
    address: *mut u8,
    length: u64,
}

/// A posted message. What its spans point to is lent until the message's completion is given back.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) token: u64,
    pub(crate) length: u64,
    pub(crate) envelope: Envelope,
    spans: Vec<Span>,
}

// SAFETY: the spans are lent to the domain, not to a thread: whoever drives the domain may use them,
// by the contract of `post_send` and `post_receive`.
unsafe impl Send for Message {}

impl Message {
    /// The message that the runtime posts.
    ///
    /// # Errors
    /// See [`PostedMessage::checked_length`]. A longer one would also collide with the mark of the end.
    pub(crate) fn posted(message: &PostedMessage<'_>) -> PluginResult<Self> {
        let length = message.checked_length()?;
        let segments = message.segments.iter().filter(|segment| segment.length > 0);
        let span =
            |segment: &Segment| Span { address: segment.address.cast(), length: segment.length };
        let spans = segments.map(span).collect();
        Ok(Self { token: message.token, length, envelope: *message.envelope, spans })
    }

    /// A message without payload.
    pub(crate) fn empty(envelope: Envelope) -> Self {
        Self { token: 0, length: 0, envelope, spans: Vec::new() }
    }

    /// Adds bytes `offset..offset + length` of the payload to `list` until it is full, and says how
    /// many were added.
    pub(crate) fn gather(&self, mut offset: u64, length: u64, list: &mut IoList) -> u64 {
        let mut left = length;
        for span in &self.spans {
            if left == 0 || list.is_full() {
                break;
            }
            if offset >= span.length {
                offset -= span.length;
                continue;
            }
            let take = (span.length - offset).min(left);
            // `offset` lies inside the span, so the address stays inside its memory.
            list.push(span.address.wrapping_add(offset as usize), take as usize);
            left -= take;
            offset = 0;
        }
        length - left
    }
}
