//! What can be wrong with schedules.

use super::super::types::{Buffer, Slice};
use crate::error::{Error, ErrorKind};

/// A fault of a schedule, or of several that do not fit together. Steps are named by their index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A step is malformed in itself.
    #[error("rank {rank} step {step}: {what}")]
    Malformed {
        /// Whose schedule.
        rank: u32,
        /// Which step.
        step: u32,
        /// What is wrong.
        what: String,
    },
    /// A step reaches past the end of a buffer.
    #[error("rank {rank} step {step}: {slice:?} ends after {length} bytes of the buffer")]
    OutOfBounds {
        /// Whose schedule.
        rank: u32,
        /// Which step.
        step: u32,
        /// What it touches.
        slice: Slice,
        /// How long the buffer is.
        length: u64,
    },
    /// The user's send buffer is written out of place.
    #[error("rank {rank} step {step} writes the user's send buffer")]
    SendWritten {
        /// Whose schedule.
        rank: u32,
        /// Which step.
        step: u32,
    },
    /// Two steps touch the same bytes, one of them writes, and no chain of dependencies orders them.
    #[error("rank {rank}: steps {first} and {second} race for byte {at} of {buffer:?}")]
    Race {
        /// Whose schedule.
        rank: u32,
        /// The step that stands first.
        first: u32,
        /// The other one.
        second: u32,
        /// In which buffer (in place, send and receive buffer are both called `Recv`).
        buffer: Buffer,
        /// The first byte that both touch.
        at: u64,
    },
    /// The user's receive buffer is written, or others are told that this rank agrees, or the
    /// operation ends, before all ranks are known to agree.
    #[error("rank {rank} comes to step {step} before rank {unheard} was heard")]
    BeforeAgreement {
        /// Whose schedule.
        rank: u32,
        /// Which step.
        step: u32,
        /// A rank whose fingerprint need not have arrived.
        unheard: u32,
    },
    /// The two ends of a message do not mean the same one.
    #[error(
        "message {ordinal} from rank {from} to rank {to}: {field} is {sent} at the sender and {expected} at the receiver"
    )]
    Disagreement {
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
        /// The how many-th message of the pair, gate messages included, from 0.
        ordinal: u64,
        /// What differs.
        field: &'static str,
        /// The sender's value.
        sent: u64,
        /// The receiver's value.
        expected: u64,
    },
    /// Nobody receives a message, or nobody sends it.
    #[error("rank {from} sends {sends} messages to rank {to}, which receives {receives}")]
    Unmatched {
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
        /// Messages sent.
        sends: u64,
        /// Messages received.
        receives: u64,
    },
    /// Two ranks of an island make different native calls in the same place.
    #[error("native call {ordinal}: rank {first} asks for {asked}, rank {second} for {other}")]
    NativeDisagreement {
        /// One rank.
        first: u32,
        /// The other.
        second: u32,
        /// The how many-th native call of each, from 0.
        ordinal: u64,
        /// What the one asks for.
        asked: String,
        /// What the other asks for.
        other: String,
    },
    /// Two ranks of an island make different numbers of native calls, or do not agree on who is on it.
    #[error("rank {first} makes {calls} native calls on its island, rank {second} {others}")]
    NativeUnmatched {
        /// One rank.
        first: u32,
        /// Its calls.
        calls: u64,
        /// The other.
        second: u32,
        /// The other's calls on that island.
        others: u64,
    },
    /// Nothing can go on, and not all is done.
    #[error("deadlock: rank {rank} step {step} can never complete: {why}")]
    Deadlock {
        /// A rank that is stuck.
        rank: u32,
        /// A step of it that is ready and cannot complete.
        step: u32,
        /// What it waits for.
        why: String,
    },
    /// A step reads bytes that nobody wrote.
    #[error("rank {rank} step {step} reads byte {at} of {buffer:?}, which nobody wrote")]
    Uninitialised {
        /// Whose schedule.
        rank: u32,
        /// Which step.
        step: u32,
        /// In which buffer.
        buffer: Buffer,
        /// The first such byte.
        at: u64,
    },
    /// A step reads bytes while a receive may be writing them.
    #[error(
        "rank {rank} step {step} reads byte {at} of {buffer:?} while step {writer} receives into it"
    )]
    Unstable {
        /// Whose schedule.
        rank: u32,
        /// The step that reads.
        step: u32,
        /// In which buffer.
        buffer: Buffer,
        /// The first such byte.
        at: u64,
        /// The receive.
        writer: u32,
    },
    /// A reduction combines different elements.
    #[error("rank {rank} step {step} combines bytes {first} and {second} of the vector")]
    Misaligned {
        /// Whose schedule.
        rank: u32,
        /// Which step.
        step: u32,
        /// Place in the vector of a byte of one operand.
        first: u64,
        /// Place of the byte of another operand that it is combined with.
        second: u64,
    },
    /// The result is not what the collective promises.
    #[error("rank {rank} byte {at}: {what}")]
    WrongResult {
        /// On which rank.
        rank: u32,
        /// The first wrong byte of the buffer.
        at: u64,
        /// What is wrong.
        what: String,
    },
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::new(ErrorKind::Internal, format!("schedule: {fault}"))
    }
}
