//! Which part of which buffer goes to whom, for every collective: the block that a rank sends to a
//! peer, the block that it receives from one, how long its buffers are, and where the two lie in one
//! memory when the operation is in place.

use std::sync::Arc;

use iccl_plugin_api::types::Collective;

use super::counts::{Block, Counts};
use super::cuts::Cut;
use super::types::{Origins, Request};
use crate::error::{Error, ErrorKind, Result};

/// Whether the count of the collective is that of one rank's block.
pub(super) const fn per_rank(collective: Collective) -> bool {
    use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
    matches!(collective, AllGather | ReduceScatter | Gather | Scatter | AllToAll)
}

/// Whether each rank knows only its own counts, so that pairs of ranks must compare theirs.
pub(super) const fn pairwise(collective: Collective) -> bool {
    matches!(collective, Collective::GatherV | Collective::ScatterV | Collective::AllToAllV)
}

/// Whether the collective has a count per rank.
pub(super) const fn is_vector_form(collective: Collective) -> bool {
    matches!(collective, Collective::AllGatherV | Collective::ReduceScatterV)
        || pairwise(collective)
}

impl Request {
    /// The blocks of a vector form.
    fn blocks(&self) -> &Counts {
        match &self.counts {
            Some(counts) => counts,
            None => unreachable!("validation refuses vector forms without counts"),
        }
    }

    /// What this rank sends to `to`, in its send buffer. Itself included.
    pub(super) fn send_block(&self, to: u32) -> Cut {
        use Collective::{
            AllGatherV, AllToAll, AllToAllV, GatherV, ReduceScatter, ReduceScatterV, Scatter,
            ScatterV,
        };
        match self.collective {
            ReduceScatter | Scatter | AllToAll => self.block_at(to),
            AllGatherV => Cut::whole(self.blocks().received(self.rank).count),
            ReduceScatterV | GatherV | ScatterV | AllToAllV => self.blocks().sent(to).into(),
            _ => Cut::whole(self.count),
        }
    }

    /// What this rank receives from `from`, in its receive buffer. Itself included.
    pub(super) fn recv_block(&self, from: u32) -> Cut {
        use Collective::{
            AllGather, AllGatherV, AllToAll, AllToAllV, Gather, GatherV, ReduceScatterV, ScatterV,
        };
        match self.collective {
            AllGather | Gather | AllToAll => self.block_at(from),
            ReduceScatterV => Cut::whole(self.blocks().sent(self.rank).count),
            AllGatherV | GatherV | ScatterV | AllToAllV => self.blocks().received(from).into(),
            _ => Cut::whole(self.count),
        }
    }

    /// Block `rank` of a vector of equal blocks.
    pub(super) fn block_at(&self, rank: u32) -> Cut {
        Cut { first: self.count.saturating_mul(rank.into()), elements: self.count }
    }

    /// How many elements of the send buffer and of the receive buffer this rank uses, gaps included.
    pub(super) fn buffer_elements(&self) -> (u64, u64) {
        use Collective::{
            AllGather, AllGatherV, AllReduce, AllToAll, AllToAllV, Barrier, Broadcast, Gather,
            GatherV, Recv, Reduce, ReduceScatter, ReduceScatterV, Scatter, ScatterV, Send,
        };
        let end =
            |blocks: &[Block]| blocks.iter().filter_map(|block| block.end()).max().unwrap_or(0);
        let root = |elements| if self.rank == self.root { elements } else { 0 };
        let one = self.count;
        let all = one.saturating_mul(self.ranks.into());
        match self.collective {
            AllReduce => (one, one),
            Reduce => (one, root(one)),
            Broadcast => (root(one), one),
            AllGather => (one, all),
            ReduceScatter => (all, one),
            Gather => (one, root(all)),
            Scatter => (root(all), one),
            AllToAll => (all, all),
            AllGatherV => (self.blocks().received(self.rank).count, end(&self.blocks().recv)),
            ReduceScatterV => (end(&self.blocks().send), self.blocks().sent(self.rank).count),
            GatherV | ScatterV | AllToAllV => (end(&self.blocks().send), end(&self.blocks().recv)),
            Barrier => (0, 0),
            Send => (one, 0),
            Recv => (0, one),
        }
    }

    /// Where the two buffers start in the one memory of an operation in place, whether this one is
    /// or not. NCCL's rules: all-reduce, reduce, broadcast and all-to-all have the same start;
    /// all-gather and, on the root, gather send from where this rank's block is received
    /// (send = receive + rank · count); reduce-scatter and, on the root, scatter receive where this
    /// rank's block is sent from (receive = send + rank · count); the vector forms likewise, with the
    /// displacement of the block. All-to-all-v has no form in place.
    ///
    /// Meant for requests that [`compile`](super::compile) accepts.
    pub fn in_place_origins(&self) -> Origins {
        use Collective::{
            AllGather, AllGatherV, Gather, GatherV, ReduceScatter, ReduceScatterV, Scatter,
            ScatterV,
        };
        let bytes = |cut: Cut| match cut.elements {
            0 => 0,
            _ => cut.first.saturating_mul(self.element_bytes()),
        };
        match self.collective {
            AllGather | Gather | AllGatherV | GatherV => {
                Origins { send: bytes(self.recv_block(self.rank)), recv: 0 }
            }
            ReduceScatter | Scatter | ReduceScatterV | ScatterV => {
                Origins { send: 0, recv: bytes(self.send_block(self.rank)) }
            }
            _ => Origins::default(),
        }
    }

    /// The counts that all ranks must have given alike, beyond [`Request::count`].
    pub fn agreed_counts(&self) -> Vec<u64> {
        match &self.counts {
            Some(counts) if !pairwise(self.collective) => {
                counts.send.iter().chain(&counts.recv).map(|block| block.count).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl From<Block> for Cut {
    fn from(block: Block) -> Self {
        // The displacement of an empty block means nothing, and may lie outside the buffer.
        Self { first: if block.count == 0 { 0 } else { block.first }, elements: block.count }
    }
}

/// Refuses counts that do not go with the collective and the rank, or contradict themselves.
pub(super) fn validate(request: &Request) -> Result<()> {
    let Request { collective, rank, ranks, root, .. } = *request;
    let refuse = |message: String| {
        Err(Error::new(ErrorKind::InvalidArgument, format!("{collective}: {message}")))
    };
    let Some(counts) = request.counts.as_ref().map(Arc::as_ref) else {
        if is_vector_form(collective) {
            return refuse("it needs a count for each rank".into());
        }
        return Ok(());
    };
    let on_root = if rank == root { ranks } else { 0 };
    let (send, recv) = match collective {
        Collective::AllGatherV => (0, ranks),
        Collective::ReduceScatterV => (ranks, 0),
        Collective::GatherV => (1, on_root),
        Collective::ScatterV => (on_root, 1),
        Collective::AllToAllV => (ranks, ranks),
        _ => return refuse("it takes one count, not a count for each rank".into()),
    };
    for (what, blocks, expected) in [("send", &counts.send, send), ("receive", &counts.recv, recv)]
    {
        if blocks.len() != expected as usize {
            return refuse(format!(
                "rank {rank} of {ranks} gives {} {what} counts, and {expected} are needed",
                blocks.len()
            ));
        }
    }
    let reduces = collective == Collective::ReduceScatterV;
    for (what, blocks, apart) in [("send", &counts.send, reduces), ("receive", &counts.recv, true)]
    {
        if apart && let Some((first, second)) = overlapping(blocks) {
            return refuse(format!("the {what} blocks of ranks {first} and {second} overlap"));
        }
    }
    let (own_sent, own_received) = (counts.sent(rank).count, counts.received(rank).count);
    let knows_both = collective == Collective::AllToAllV || (pairwise(collective) && rank == root);
    if knows_both && own_sent != own_received {
        return refuse(format!(
            "rank {rank} sends itself {own_sent} elements and receives {own_received} from itself"
        ));
    }
    let expected = if pairwise(collective) { Some(0) } else { counts.total() };
    if expected.is_some_and(|expected| expected != request.count) {
        return refuse(format!("the count of the request is {}, not {counts}", request.count));
    }
    Ok(())
}

/// The ranks of two blocks that share an element.
fn overlapping(blocks: &[Block]) -> Option<(usize, usize)> {
    let mut places: Vec<(u64, u64, usize)> = blocks
        .iter()
        .enumerate()
        .filter(|(_, block)| block.count > 0)
        .map(|(rank, block)| (block.first, block.first.saturating_add(block.count), rank))
        .collect();
    places.sort_unstable();
    let pairs = places.windows(2).find(|pair| pair[1].0 < pair[0].1)?;
    Some((pairs[0].2.min(pairs[1].2), pairs[0].2.max(pairs[1].2)))
}
