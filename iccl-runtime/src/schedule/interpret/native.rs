//! What a native call does, written down a second time: how much each rank of the island reads and
//! writes, when it is in place, and which expressions come out.

use iccl_plugin_api::types::{Collective, RedOp};

use super::super::types::{Buffer, Finish, IslandCall, Schedule, Slice};
use super::fault::Fault;
use super::memory::Piece;
use super::promise::place;
use super::shapes::Shapes;

/// Combines what the ranks of the island gave, in their order.
pub(super) type Combine<'a> =
    &'a mut dyn FnMut(Vec<Vec<Piece>>, Finish, &mut Shapes) -> Result<Vec<Piece>, Fault>;

/// How many bytes a rank of the island reads and writes. `place` is its place on the island of
/// `ranks` ranks. `None` for collectives that are no native calls of schedules.
fn lengths(call: &IslandCall, place: u64, ranks: u64) -> Option<(u64, u64)> {
    let block = call.count.checked_mul(call.dtype.size_bytes() as u64)?;
    let all = block.checked_mul(ranks)?;
    let on_root = |bytes| if place == u64::from(call.root) { bytes } else { 0 };
    Some(match call.collective {
        Collective::AllReduce => (block, block),
        Collective::Reduce => (block, on_root(block)),
        Collective::Broadcast => (on_root(block), block),
        Collective::AllGather => (block, all),
        Collective::ReduceScatter => (all, block),
        Collective::Gather => (block, on_root(all)),
        Collective::Scatter => (on_root(all), block),
        Collective::AllToAll => (all, all),
        _ => return None,
    })
}

/// Whether a call makes sense in itself, and its slices are as it needs them.
pub(super) fn check(
    schedule: &Schedule,
    step: u32,
    call: &IslandCall,
    source: Slice,
    destination: Slice,
) -> Result<(), Fault> {
    let malformed = |what: String| Fault::Malformed { rank: schedule.rank, step, what };
    let ranks = schedule.island.as_deref().unwrap_or_default();
    let Some(own) = ranks.iter().position(|rank| *rank == schedule.rank) else {
        return Err(malformed("a native call of a rank that is on no island".into()));
    };
    let is_ascending = ranks.windows(2).all(|pair| pair[0] < pair[1]);
    if !is_ascending || ranks.len() < 2 || call.root as usize >= ranks.len() {
        return Err(malformed(format!("{call:?} on the island of {ranks:?}")));
    }
    if call.collective.reduces() != call.op.is_some() {
        return Err(malformed(format!("{call:?} has an operation and should not, or lacks it")));
    }
    let own = own as u64;
    let Some((read, written)) = lengths(call, own, ranks.len() as u64) else {
        return Err(malformed(format!("{} is no native call", call.collective)));
    };
    if (source.bytes, destination.bytes) != (read, written) {
        let what = format!(
            "{call:?} reads {read} and writes {written} bytes, not {source:?} and {destination:?}"
        );
        return Err(malformed(what));
    }
    if [source, destination].iter().any(|slice| slice.bytes > 0 && slice.buffer == Buffer::Scratch)
    {
        return Err(malformed("a native call on memory of the host".into()));
    }
    let at = |slice: Slice| {
        let (memory, start) = place(schedule, slice.buffer);
        (memory, start + slice.offset)
    };
    let ((from, start), (to, end)) = (at(source), at(destination));
    let apart = from != to || start + read <= end || end + written <= start;
    let in_place = match call.collective {
        Collective::AllReduce | Collective::Reduce | Collective::Broadcast => start == end,
        Collective::AllGather | Collective::Gather => start == end + own * read,
        Collective::ReduceScatter | Collective::Scatter => end == start + own * written,
        _ => false,
    };
    if read > 0 && written > 0 && !apart && !in_place {
        return Err(malformed(format!("{source:?} and {destination:?} overlap")));
    }
    Ok(())
}

/// What each rank of the island gets, from what each gave.
pub(super) fn perform(
    call: &IslandCall,
    given: &[Vec<Piece>],
    shapes: &mut Shapes,
    combine: Combine<'_>,
) -> Result<Vec<Vec<Piece>>, Fault> {
    let ranks = given.len();
    let block = call.count * call.dtype.size_bytes() as u64;
    let root = call.root as usize;
    let part = |pieces: &[Piece], index: usize| cut(pieces, block * index as u64, block);
    let only_root = |pieces: Vec<Piece>| -> Vec<Vec<Piece>> {
        let mut all = vec![Vec::new(); ranks];
        all[root] = pieces;
        all
    };
    let finish = match call.op {
        Some(RedOp::Avg) => Finish::DivideByRanks(ranks as u32),
        _ => Finish::None,
    };
    Ok(match call.collective {
        Collective::AllReduce => vec![combine(given.to_vec(), finish, shapes)?; ranks],
        Collective::Reduce => only_root(combine(given.to_vec(), finish, shapes)?),
        Collective::ReduceScatter => {
            let blocks = |index| given.iter().map(|pieces| part(pieces, index)).collect();
            (0..ranks)
                .map(|index| combine(blocks(index), finish, shapes))
                .collect::<Result<_, _>>()?
        }
        Collective::Broadcast => vec![given[root].clone(); ranks],
        Collective::AllGather => vec![given.concat(); ranks],
        Collective::Gather => only_root(given.concat()),
        Collective::Scatter => (0..ranks).map(|index| part(&given[root], index)).collect(),
        Collective::AllToAll => (0..ranks)
            .map(|index| given.iter().flat_map(|pieces| part(pieces, index)).collect())
            .collect(),
        other => unreachable!("{other} was refused by the check"),
    })
}

/// `bytes` bytes of `pieces` from `start`.
fn cut(pieces: &[Piece], start: u64, bytes: u64) -> Vec<Piece> {
    let mut at = 0;
    let mut found = Vec::new();
    for piece in pieces {
        let from = start.max(at);
        let to = (start + bytes).min(at + piece.bytes);
        if from < to {
            found.push(Piece { bytes: to - from, origin: piece.origin + (from - at), ..*piece });
        }
        at += piece.bytes;
    }
    found
}

/// What a call asks for, as text.
pub(super) fn text(call: &IslandCall) -> String {
    let IslandCall { collective, dtype, op, count, root } = call;
    let op = op.map_or(String::new(), |op| format!(" {op}"));
    format!("{collective}{op} of {count} {dtype}, root {root}")
}
