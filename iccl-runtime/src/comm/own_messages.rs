//! Messages of a rank to itself: a send and a receive of one group are one copy.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use iccl_plugin_api::{Collective, DataType, RedOp};

use super::enqueue::Few;
use super::group::Checked;
use super::stream::Stream;
use crate::engine::Program;
use crate::schedule::{Algorithm, Request, Schedule, compile};
use crate::{Error, ErrorKind, Result};

/// The calls of a group, where the two halves of a message of a rank to itself are one.
pub(super) struct Joined {
    /// What is to be enqueued, and a second stream on which it takes place, if there is one.
    pub(super) entries: Few<(Checked, Option<Stream>)>,
    /// Which entry each of the calls became.
    pub(super) entry_of: Few<usize>,
}

/// Whether the call is one half of a message of `rank` to itself.
pub(super) fn is_one(rank: u32, collective: Collective, peer: u32) -> bool {
    matches!(collective, Collective::Send | Collective::Recv) && rank == peer
}

pub(super) fn needs_a_group(collective: Collective, rank: u32) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("{collective}: rank {rank} can be its own peer only in a group"),
    )
    .with_hint("make the send and the receive between the start and the end of one group")
}

/// A copy of `count` elements from the send buffer to the receive buffer; in place, nothing.
///
/// # Errors
/// `InvalidArgument` for more elements than there can be.
pub(super) fn program(count: u64, dtype: DataType, in_place: bool) -> Result<Program> {
    // Between a rank and itself a message is what a broadcast is where nobody else is.
    Ok(Program::new(compile(&Request {
        collective: Collective::Broadcast,
        dtype,
        op: RedOp::Sum,
        count,
        root: 0,
        rank: 0,
        ranks: 1,
        in_place,
        algorithm: Algorithm::Local,
        chunk_bytes: u64::MAX,
        counts: None,
        islands: None,
    })?))
}

/// How much of its buffers a call uses, given what its program does: of a message of a rank to itself,
/// one half.
pub(super) fn used_bytes(request: &Request, schedule: &Schedule) -> (u64, u64) {
    let Schedule { send_bytes, recv_bytes, .. } = *schedule;
    match request.collective {
        Collective::Send => (send_bytes, 0),
        Collective::Recv => (0, recv_bytes),
        _ => (send_bytes, recv_bytes),
    }
}

/// Makes one of the k-th send of a rank to itself and the k-th receive.
///
/// # Errors
/// `InvalidArgument` for one without the other, or buffers that overlap in part; `Mismatch` if they
/// differ.
pub(super) fn join(calls: Few<Checked>) -> Result<Joined> {
    let mut joined = Joined {
        entries: Few::with_capacity(calls.len()),
        entry_of: Few::with_capacity(calls.len()),
    };
    // By communicator: halves that wait for the other.
    let mut halves: HashMap<usize, VecDeque<usize>> = HashMap::new();
    for call in calls {
        let at = joined.entries.len();
        if !is_one(call.order.rank, call.collective, call.root) {
            joined.entry_of.push(at);
            joined.entries.push((call, None));
            continue;
        }
        let waiting = halves.entry(Arc::as_ptr(&call.order) as usize).or_default();
        // All that wait are sends, or all are receives.
        let meets =
            waiting.pop_front_if(|half| joined.entries[*half].0.collective != call.collective);
        if let Some(half) = meets {
            joined.entry_of.push(half);
            complete(&mut joined.entries[half], call)?;
        } else {
            waiting.push_back(at);
            joined.entry_of.push(at);
            joined.entries.push((call, None));
        }
    }
    match halves.values().flatten().min() {
        Some(half) => Err(joined.is_alone(*half)),
        None => Ok(joined),
    }
}

impl Joined {
    fn is_alone(&self, half: usize) -> Error {
        let (call, _) = &self.entries[half];
        let (collective, rank) = (call.collective, call.root);
        let place = self.entry_of.iter().position(|entry| *entry == half).unwrap_or_default() + 1;
        let other = match collective {
            Collective::Send => "receive from",
            _ => "send to",
        };
        Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "call {place} of the group ({collective}): there is no {other} rank {rank} itself \
                 that it could meet"
            ),
        )
        .with_hint("a rank that sends to itself receives from itself in the same group")
    }
}

/// Adds the other half to one that was waiting for it.
fn complete(entry: &mut (Checked, Option<Stream>), other: Checked) -> Result<()> {
    let (half, also) = entry;
    let (ours, theirs) = (half.request.fingerprint, other.request.fingerprint);
    if (ours.dtype, ours.count) != (theirs.dtype, theirs.count) {
        let mut sides = [(half.collective, ours), (other.collective, theirs)];
        sides.sort_by_key(|(collective, _)| *collective != Collective::Send);
        let [(_, sent), (_, received)] = sides;
        return Err(Error::new(
            ErrorKind::Mismatch,
            format!(
                "rank {} sends itself {} elements of {}, and receives {} of {}",
                half.root, sent.count, sent.dtype, received.count, received.dtype
            ),
        )
        .with_rank(half.root));
    }
    let mut other = other;
    half.request.keep.append(&mut other.request.keep);
    match other.collective {
        Collective::Send => half.request.send = other.request.send,
        _ => half.request.receive = other.request.receive,
    }
    if other.stream.address() != half.stream.address() {
        *also = Some(other.stream);
    }
    // The halves are a send with the number of a send, whichever came first.
    half.collective = Collective::Send;
    let (from, to) = (half.request.send as u64, half.request.receive as u64);
    let bytes = half.request.program.schedule().send_bytes;
    if from == to {
        half.request.program = Arc::new(program(ours.count, ours.dtype, true)?);
    } else if from.abs_diff(to) < bytes {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "rank {} sends itself {bytes} bytes, and the send and receive buffers overlap in part",
                half.root
            ),
        ));
    }
    Ok(())
}
