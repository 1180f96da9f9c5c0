//! What every collective promises, written down a second time: nothing here is taken from the
//! compilers of schedules.

use std::ops::Range;

use iccl_plugin_api::types::Collective;

use super::super::types::{Buffer, Schedule};
use super::super::{Block, Counts};

/// Where a rank's buffers lie in its memory: (which memory, offset of the buffer's start in it).
/// In place the two share the memory of [`Buffer::Recv`].
pub(super) fn place(schedule: &Schedule, buffer: Buffer) -> (Buffer, u64) {
    if !schedule.in_place || matches!(buffer, Buffer::Scratch | Buffer::DeviceScratch) {
        return (buffer, 0);
    }
    let own_block = match schedule.collective {
        // The shorter buffer is the own block of the longer one.
        Collective::AllGather
        | Collective::Gather
        | Collective::ReduceScatter
        | Collective::Scatter => own(schedule),
        Collective::AllGatherV | Collective::GatherV => listed(schedule, &counts(schedule).recv),
        Collective::ReduceScatterV | Collective::ScatterV => {
            listed(schedule, &counts(schedule).send)
        }
        _ => 0,
    };
    let receives_less = matches!(
        schedule.collective,
        Collective::ReduceScatter
            | Collective::Scatter
            | Collective::ReduceScatterV
            | Collective::ScatterV
    );
    let shifted = if receives_less { Buffer::Recv } else { Buffer::Send };
    (Buffer::Recv, if buffer == shifted { own_block } else { 0 })
}

fn counts(schedule: &Schedule) -> &Counts {
    match &schedule.counts {
        Some(counts) => counts,
        None => unreachable!("a vector form was compiled without counts"),
    }
}

fn element(schedule: &Schedule) -> u64 {
    schedule.dtype.size_bytes() as u64
}

fn own(schedule: &Schedule) -> u64 {
    u64::from(schedule.rank) * schedule.count * element(schedule)
}

fn listed(schedule: &Schedule, blocks: &[Block]) -> u64 {
    let block = blocks[schedule.rank as usize];
    if block.count == 0 { 0 } else { block.first * element(schedule) }
}

/// A run of a buffer that a rank holds at the start, and which bytes of its contribution those are.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) bytes: Range<u64>,
    pub(super) origin: u64,
}

/// What a rank holds in its send buffer at the start. Contributions are told apart by their place in
/// the send buffer; in the reduce-scatter of blocks, which may lie elsewhere on each rank, by their
/// place were all blocks packed.
pub(super) fn held(schedule: &Schedule) -> Vec<Held> {
    let element = element(schedule);
    let sent = |blocks: &[Block]| {
        let mut packed = 0;
        blocks
            .iter()
            .filter(|block| block.count > 0)
            .map(|block| {
                let bytes = block.first * element..(block.first + block.count) * element;
                let origin = match schedule.collective {
                    Collective::ReduceScatterV => packed,
                    _ => bytes.start,
                };
                packed += block.count * element;
                Held { bytes, origin }
            })
            .collect()
    };
    match schedule.collective {
        Collective::AllGatherV => {
            let own = counts(schedule).recv[schedule.rank as usize].count;
            sent(&[Block { first: 0, count: own }])
        }
        Collective::ReduceScatterV
        | Collective::GatherV
        | Collective::ScatterV
        | Collective::AllToAllV => sent(&counts(schedule).send),
        _ => vec![Held { bytes: 0..sent_bytes(schedule), origin: 0 }],
    }
}

/// How much a rank sends where all blocks are equal.
fn sent_bytes(schedule: &Schedule) -> u64 {
    use Collective as C;
    let block = schedule.count * element(schedule);
    let all = block * u64::from(schedule.ranks);
    match schedule.collective {
        C::AllReduce | C::Reduce | C::AllGather | C::Gather | C::Send => block,
        C::ReduceScatter | C::AllToAll => all,
        C::Broadcast if schedule.rank == schedule.root => block,
        C::Scatter if schedule.rank == schedule.root => all,
        _ => 0,
    }
}

/// A run of the receive buffer, and what it must hold in the end.
#[derive(Clone, Debug)]
pub(super) struct Promise {
    pub(super) bytes: Range<u64>,
    /// Whose contribution, or `None` for the reduction of all.
    pub(super) of: Option<u32>,
    /// Which bytes of the contribution.
    pub(super) origin: u64,
}

/// What the collective promises to a rank. `all` are the schedules of all ranks that take part.
pub(super) fn promises(schedule: &Schedule, all: &[Schedule]) -> Vec<Promise> {
    use Collective as C;
    let Schedule { collective, rank, ranks, root, count, .. } = *schedule;
    let bytes = count * element(schedule);
    let is_root = rank == root;
    let whole = |of, origin| vec![Promise { bytes: 0..bytes, of, origin }];
    // Block r of the receive buffer comes from rank r.
    let blocks = |origin: u64| {
        (0..u64::from(ranks))
            .map(|from| Promise {
                bytes: from * bytes..(from + 1) * bytes,
                of: Some(from as u32),
                origin,
            })
            .collect()
    };
    match collective {
        C::AllReduce => whole(None, 0),
        C::Reduce if is_root => whole(None, 0),
        C::Broadcast | C::Recv => whole(Some(root), 0),
        C::AllGather => blocks(0),
        C::Gather if is_root => blocks(0),
        C::ReduceScatter => whole(None, u64::from(rank) * bytes),
        C::Scatter => whole(Some(root), u64::from(rank) * bytes),
        C::AllToAll => blocks(u64::from(rank) * bytes),
        C::Reduce | C::Gather | C::Barrier | C::Send => Vec::new(),
        C::AllGatherV | C::ReduceScatterV | C::GatherV | C::ScatterV | C::AllToAllV => {
            promises_of_blocks(schedule, all)
        }
    }
}

fn promises_of_blocks(schedule: &Schedule, all: &[Schedule]) -> Vec<Promise> {
    let counts = counts(schedule);
    let element = element(schedule);
    let (rank, root) = (schedule.rank as usize, schedule.root as usize);
    let bytes = |block: &Block| block.first * element..(block.first + block.count) * element;
    let sent_by = |from: u32| {
        all.iter().find(|other| other.rank == from).and_then(|other| other.counts.as_ref())
    };
    let received = |origin: &dyn Fn(u32) -> u64| {
        (0..)
            .zip(&counts.recv)
            .filter(|(_, block)| block.count > 0)
            .map(|(from, block)| Promise {
                bytes: bytes(block),
                of: Some(from),
                origin: origin(from),
            })
            .collect()
    };
    match schedule.collective {
        Collective::AllGatherV | Collective::GatherV => received(&|_| 0),
        Collective::AllToAllV => {
            received(&|from| sent_by(from).map_or(0, |counts| counts.send[rank].first * element))
        }
        Collective::ScatterV => {
            let origin = sent_by(root as u32).map_or(0, |counts| counts.send[rank].first * element);
            vec![Promise { bytes: bytes(&counts.recv[0]), of: Some(root as u32), origin }]
        }
        _ => {
            let packed: u64 = counts.send[..rank].iter().map(|block| block.count).sum();
            let own = counts.send[rank].count * element;
            vec![Promise { bytes: 0..own, of: None, origin: packed * element }]
        }
    }
}
