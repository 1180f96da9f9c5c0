//! What travels on a channel's sockets, as state machines without sockets: how a payload is cut
//! into stripes, what each socket has to send next, where the bytes that arrive belong.
//!
//! ```text
//! socket 0:  length (u64) envelope (64 bytes)  stripe 0, stripe k, 2k, …   next header …
//! socket i:                                    stripe i, stripe k+i, …     next message's …
//! ```
//!
//! Everything is little-endian. A payload of at most one stripe travels on socket 0 alone. The
//! other sockets carry no headers: which byte is whose follows from the headers on socket 0, and
//! nothing is read from them before the header was compared with the posted receive. A header with
//! the length [`END_OF_CHANNEL`] is the orderly end.
//!
//! Not here: sockets, clocks, errors of the operating system.

mod layout;
mod memory;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub(crate) use layout::Layout;
pub(crate) use memory::{IoList, Message};
pub(crate) use receiver::{Mismatched, Receiver};
pub(crate) use sender::Sender;

use iccl_plugin_api::tables::ENVELOPE_BYTES;

/// Length and envelope.
pub(crate) const HEADER_BYTES: usize = 8 + ENVELOPE_BYTES;

/// The length that says that the sender will send no more.
pub(crate) const END_OF_CHANNEL: u64 = u64::MAX;
