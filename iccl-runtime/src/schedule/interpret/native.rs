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

/// One side of a call on one rank.
enum Side {
    /// One slice of this length.
    Bytes(u64),
    /// One slice of any length.
    Any,
    /// A slice for each rank of the island.
    Each,
    /// Nothing.
    None,
}

/// What a rank of the island reads and writes. `place` is its place on the island of `ranks` ranks. Nothing
/// for collectives that are no native calls of schedules.
fn sides(call: &IslandCall, place: u64, ranks: u64) -> Option<(Side, Side)> {
    use Side::{Any, Bytes, Each};
    let block = call.count.checked_mul(call.dtype.size_bytes() as u64)?;
    let all = block.checked_mul(ranks)?;
    let is_root = place == u64::from(call.root);
    let on_root = |bytes| if is_root { Bytes(bytes) } else { Bytes(0) };
    let each_on_root = if is_root { Each } else { Side::None };
    Some(match call.collective {
        Collective::AllReduce => (Bytes(block), Bytes(block)),
        Collective::Reduce => (Bytes(block), on_root(block)),
        Collective::Broadcast => (on_root(block), Bytes(block)),
        Collective::AllGather => (Bytes(block), Bytes(all)),
        Collective::ReduceScatter => (Bytes(all), Bytes(block)),
        Collective::Gather => (Bytes(block), on_root(all)),
        Collective::Scatter => (on_root(all), Bytes(block)),
        Collective::AllToAll => (Bytes(all), Bytes(all)),
        Collective::AllGatherV => (Any, Each),
        Collective::ReduceScatterV => (Each, Any),
        Collective::GatherV => (Any, each_on_root),
        Collective::ScatterV => (each_on_root, Any),
        Collective::AllToAllV => (Each, Each),
        Collective::Barrier => (Side::None, Side::None),
        Collective::Send | Collective::Recv => return None,
    })
}

impl Side {
    fn is(&self, slices: &[Slice], element: u64, ranks: usize) -> bool {
        let whole = slices.iter().all(|slice| slice.bytes.is_multiple_of(element));
        let nonempty: Vec<&Slice> = slices.iter().filter(|slice| slice.bytes > 0).collect();
        let one_buffer = nonempty.windows(2).all(|pair| pair[0].buffer == pair[1].buffer);
        whole
            && one_buffer
            && match self {
                Self::Bytes(bytes) => matches!(slices, [slice] if slice.bytes == *bytes),
                Self::Any => slices.len() == 1,
                Self::Each => slices.len() == ranks,
                Self::None => slices.is_empty(),
            }
    }
}

/// Whether a call makes sense in itself, and its slices are as it needs them.
pub(super) fn check(
    schedule: &Schedule,
    step: u32,
    call: &IslandCall,
    sources: &[Slice],
    destinations: &[Slice],
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
    let Some((read, written)) = sides(call, own as u64, ranks.len() as u64) else {
        return Err(malformed(format!("{} is no native call", call.collective)));
    };
    let element = call.dtype.size_bytes() as u64;
    if !read.is(sources, element, ranks.len()) || !written.is(destinations, element, ranks.len()) {
        return Err(malformed(format!("{call:?} of {sources:?} to {destinations:?}")));
    }
    let all = || sources.iter().chain(destinations);
    if all().any(|slice| slice.bytes > 0 && slice.buffer == Buffer::Scratch) {
        return Err(malformed("a native call on memory of the host".into()));
    }
    for (number, destination) in destinations.iter().enumerate() {
        if let Some(other) =
            destinations[number + 1..].iter().find(|other| overlap(schedule, **other, *destination))
        {
            return Err(malformed(format!("{destination:?} and {other:?} overlap")));
        }
        for source in sources.iter().filter(|source| overlap(schedule, **source, *destination)) {
            if !in_place(schedule, call, own as u64, (source, sources), (destination, number)) {
                return Err(malformed(format!("{source:?} and {destination:?} overlap")));
            }
        }
    }
    Ok(())
}

/// Where a slice starts in which memory.
fn at(schedule: &Schedule, slice: Slice) -> (Buffer, u64) {
    let (memory, start) = place(schedule, slice.buffer);
    (memory, start + slice.offset)
}

fn overlap(schedule: &Schedule, one: Slice, other: Slice) -> bool {
    let ((memory, start), (second, from)) = (at(schedule, one), at(schedule, other));
    let meet = start < from + other.bytes && from < start + one.bytes;
    one.bytes > 0 && other.bytes > 0 && memory == second && meet
}

/// Whether a source and a destination that overlap lie as NCCL allows it.
fn in_place(
    schedule: &Schedule,
    call: &IslandCall,
    own: u64,
    (source, sources): (&Slice, &[Slice]),
    (destination, number): (&Slice, usize),
) -> bool {
    let (start, end) = (at(schedule, *source).1, at(schedule, *destination).1);
    match call.collective {
        Collective::AllReduce | Collective::Reduce | Collective::Broadcast => start == end,
        Collective::AllGather | Collective::Gather => start == end + own * source.bytes,
        Collective::ReduceScatter | Collective::Scatter => end == start + own * destination.bytes,
        Collective::AllGatherV | Collective::GatherV => start == end && number as u64 == own,
        Collective::ReduceScatterV | Collective::ScatterV => {
            start == end && sources.get(own as usize) == Some(source)
        }
        _ => false,
    }
}

/// What each rank of the island gets, slice by slice, from what each gave.
pub(super) fn perform(
    call: &IslandCall,
    given: &[Vec<Vec<Piece>>],
    shapes: &mut Shapes,
    combine: Combine<'_>,
) -> Result<Vec<Vec<Vec<Piece>>>, Fault> {
    let ranks = given.len();
    let block = call.count * call.dtype.size_bytes() as u64;
    let root = call.root as usize;
    let part = |pieces: &[Piece], index: usize| cut(pieces, block * index as u64, block);
    let only = |blocks: &[Vec<Piece>]| blocks.first().cloned().unwrap_or_default();
    let whole = || given.iter().map(|blocks| only(blocks));
    // What others than the root get: an empty slice, or none at all.
    let only_root = |result: Vec<Vec<Piece>>, others: Vec<Vec<Piece>>| {
        let mut all = vec![others; ranks];
        all[root] = result;
        all
    };
    let finish = match call.op {
        Some(RedOp::Avg) => Finish::DivideByRanks(ranks as u32),
        _ => Finish::None,
    };
    let nothing = || vec![Vec::new()];
    // Block `index` of each rank that lists blocks.
    let listed = |index: usize| given.iter().map(move |blocks| blocks[index].clone());
    Ok(match call.collective {
        Collective::AllReduce => {
            vec![vec![combine(whole().collect(), finish, shapes)?]; ranks]
        }
        Collective::Reduce => {
            only_root(vec![combine(whole().collect(), finish, shapes)?], nothing())
        }
        Collective::ReduceScatter => {
            let blocks = |index| whole().map(|pieces| part(&pieces, index)).collect();
            (0..ranks)
                .map(|index| Ok(vec![combine(blocks(index), finish, shapes)?]))
                .collect::<Result<_, _>>()?
        }
        Collective::ReduceScatterV => (0..ranks)
            .map(|index| Ok(vec![combine(listed(index).collect(), finish, shapes)?]))
            .collect::<Result<_, _>>()?,
        Collective::Broadcast => vec![vec![only(&given[root])]; ranks],
        Collective::AllGather => vec![vec![whole().flatten().collect()]; ranks],
        Collective::Gather => only_root(vec![whole().flatten().collect()], nothing()),
        Collective::Scatter => {
            (0..ranks).map(|index| vec![part(&only(&given[root]), index)]).collect()
        }
        Collective::AllToAll => (0..ranks)
            .map(|index| vec![whole().flat_map(|pieces| part(&pieces, index)).collect()])
            .collect(),
        Collective::AllGatherV => vec![whole().collect(); ranks],
        Collective::GatherV => only_root(whole().collect(), Vec::new()),
        Collective::ScatterV => given[root].iter().map(|block| vec![block.clone()]).collect(),
        Collective::AllToAllV => (0..ranks).map(|index| listed(index).collect()).collect(),
        Collective::Barrier => vec![Vec::new(); ranks],
        other => unreachable!("{other} was refused by the check"),
    })
}

/// In a reduce-scatter of blocks, the place of the first rank that gives a block of another length than the
/// first rank does, and that block.
pub(super) fn uneven(call: &IslandCall, given: &[Vec<Vec<Piece>>]) -> Option<(usize, String)> {
    if call.collective != Collective::ReduceScatterV {
        return None;
    }
    let lengths = |blocks: &[Vec<Piece>]| -> Vec<u64> {
        blocks.iter().map(|pieces| pieces.iter().map(|piece| piece.bytes).sum()).collect()
    };
    let expected = lengths(&given[0]);
    let place = given.iter().position(|blocks| lengths(blocks) != expected)?;
    Some((place, format!("blocks of {:?} bytes, not {expected:?}", lengths(&given[place]))))
}

/// The place of the first slice that is not as long as what comes for it, and what comes.
pub(super) fn mismatch(written: &[Slice], results: &[Vec<Piece>]) -> Option<(usize, String)> {
    let length = |pieces: &[Piece]| pieces.iter().map(|piece| piece.bytes).sum::<u64>();
    let differs = |(slice, pieces): (&Slice, &Vec<Piece>)| slice.bytes != length(pieces);
    let place = written.iter().zip(results).position(differs)?;
    let (expected, comes) = (written[place].bytes, length(&results[place]));
    Some((place, format!("a block of {expected} bytes, and {comes} come")))
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
