//! The blocks of the vector forms, as one rank knows them.

use std::fmt;

/// Elements `first .. first + count` of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Block {
    /// The displacement: where the block starts, in elements from the start of the buffer. Means
    /// nothing for an empty block.
    pub first: u64,
    /// How many elements it has; may be 0.
    pub count: u64,
}

impl Block {
    /// The first element after the block, or `None` if that is beyond any number. 0 if it is empty.
    pub const fn end(self) -> Option<u64> {
        match self.count {
            0 => Some(0),
            count => self.first.checked_add(count),
        }
    }
}

/// The blocks of a vector form (a collective with a count per rank), as one rank knows them. Which
/// those are follows MPI:
///
/// * all-gather-v and reduce-scatter-v: every rank knows how many elements each rank contributes, or
///   gets. The counts must be the same on all ranks, the displacements need not.
/// * gather-v and scatter-v: the root knows all blocks of its buffer; every rank, the root included,
///   knows how many elements it sends, or gets.
/// * all-to-all-v: every rank knows the blocks that it sends and those that it receives.
///
/// Where two ranks both know a count, they are compared before a user's buffer is written.
/// Blocks that are received must not overlap; what lies between them is not touched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    pub(super) send: Vec<Block>,
    pub(super) recv: Vec<Block>,
}

impl Counts {
    /// For all-gather-v: the block of each rank in the receive buffer. Rank r sends as many elements,
    /// from the start of its send buffer, as block r has.
    pub fn all_gather_v(blocks: Vec<Block>) -> Self {
        Self { send: Vec::new(), recv: blocks }
    }

    /// For reduce-scatter-v: the block of each rank in the send buffer. Rank r gets the reduction of
    /// all blocks r at the start of its receive buffer. The blocks must not overlap.
    pub fn reduce_scatter_v(blocks: Vec<Block>) -> Self {
        Self { send: blocks, recv: Vec::new() }
    }

    /// For gather-v: how many elements this rank sends, and, on the root only, where each rank's
    /// block goes in the receive buffer (elsewhere no blocks).
    pub fn gather_v(send_count: u64, blocks: Vec<Block>) -> Self {
        Self { send: vec![Block { first: 0, count: send_count }], recv: blocks }
    }

    /// For scatter-v: on the root only, each rank's block of the send buffer (elsewhere no blocks),
    /// and how many elements this rank gets.
    pub fn scatter_v(blocks: Vec<Block>, recv_count: u64) -> Self {
        Self { send: blocks, recv: vec![Block { first: 0, count: recv_count }] }
    }

    /// For all-to-all-v: the block of the send buffer for each rank, and the block of the receive
    /// buffer from each rank.
    pub fn all_to_all_v(send: Vec<Block>, recv: Vec<Block>) -> Self {
        Self { send, recv }
    }

    /// Blocks of these lengths, one after the other.
    pub fn packed(counts: &[u64]) -> Vec<Block> {
        let mut first = 0_u64;
        let block = |count: &u64| {
            let block = Block { first, count: *count };
            first = first.saturating_add(*count);
            block
        };
        counts.iter().map(block).collect()
    }

    /// All elements of all blocks, or `None` if there are more than can be counted.
    pub fn total(&self) -> Option<u64> {
        self.send
            .iter()
            .chain(&self.recv)
            .try_fold(0_u64, |sum, block| sum.checked_add(block.count))
    }

    /// Where the last block of the longer buffer ends, or `None` if that is beyond any number.
    pub(super) fn longest_buffer(&self) -> Option<u64> {
        self.send.iter().chain(&self.recv).try_fold(0, |end, block| Some(end.max(block.end()?)))
    }

    /// What goes to `peer`.
    pub(super) fn sent(&self, peer: u32) -> Block {
        block_of(&self.send, peer)
    }

    /// What comes from `peer`.
    pub(super) fn received(&self, peer: u32) -> Block {
        block_of(&self.recv, peer)
    }
}

/// The block of `peer`; where there is but one peer, or one block for all, that one.
fn block_of(blocks: &[Block], peer: u32) -> Block {
    match blocks {
        [only] => *only,
        blocks => blocks.get(peer as usize).copied().unwrap_or_default(),
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum =
            |blocks: &[Block]| -> u128 { blocks.iter().map(|one| u128::from(one.count)).sum() };
        match (&self.send[..], &self.recv[..]) {
            ([], blocks) | (blocks, []) => write!(f, "{}", sum(blocks)),
            (send, recv) => write!(f, "{} sent and {} received", sum(send), sum(recv)),
        }
    }
}
