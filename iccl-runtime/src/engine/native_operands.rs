//! The memory of a native call as libraries take it: an address, and in the vector forms the lengths and
//! places of the blocks from there.

use iccl_plugin_api::Collective;

use crate::schedule::{IslandCall, Slice};

/// What one side of a native call reads or writes on this rank.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Where it starts; null if there is nothing.
    pub address: *mut u8,
    /// Bytes from there to the end of what is read or written.
    pub(super) bytes: u64,
    /// Elements of the block of each rank of the island, in a vector form that has one for each; else
    /// empty.
    pub counts: Vec<u64>,
    /// Where these start, in elements from the address; as many.
    pub displacements: Vec<u64>,
}

/// What a native call reads and writes on this rank.
#[derive(Clone, Debug)]
pub struct Operands {
    /// What is read. It is not written through this.
    pub sent: Operand,
    /// What is written.
    pub received: Operand,
    /// Elements of the single block of a vector form; 0 where there is none.
    own: u64,
}

impl Operand {
    /// `blocks`, one for each rank, or the only one.
    fn new(
        slices: &[Slice],
        blocks: bool,
        element_bytes: u64,
        address: impl Fn(Slice) -> *mut u8,
    ) -> Self {
        let first = slices.iter().filter(|slice| slice.bytes > 0).min_by_key(|slice| slice.offset);
        let start = first.map_or(0, |slice| slice.offset);
        let filled = slices.iter().filter(|slice| slice.bytes > 0);
        let end = filled.map(|slice| slice.offset + slice.bytes).max().unwrap_or(start);
        // The displacement of an empty block means nothing.
        let displacement = |slice: &Slice| match slice.bytes {
            0 => 0,
            _ => (slice.offset - start) / element_bytes,
        };
        let listed = if blocks { slices } else { &[] };
        Self {
            address: first.map_or(std::ptr::null_mut(), |slice| address(*slice)),
            bytes: end - start,
            counts: listed.iter().map(|slice| slice.bytes / element_bytes).collect(),
            displacements: listed.iter().map(displacement).collect(),
        }
    }

    /// The blocks that are read or written: bytes from the address, and how many. What lies between them
    /// is nobody's of this call.
    pub(super) fn blocks(&self, element_bytes: u64) -> Vec<(u64, u64)> {
        if self.counts.is_empty() {
            return if self.bytes == 0 { Vec::new() } else { vec![(0, self.bytes)] };
        }
        let blocks = std::iter::zip(&self.displacements, &self.counts);
        let filled = blocks.filter(|(_, count)| **count > 0);
        filled.map(|(at, count)| (at * element_bytes, count * element_bytes)).collect()
    }
}

impl Operands {
    /// What a step of a schedule reads and writes; `address` says where a slice lies.
    pub(super) fn new(
        call: &IslandCall,
        sources: &[Slice],
        destinations: &[Slice],
        address: impl Fn(Slice) -> *mut u8,
    ) -> Self {
        use Collective::{AllGatherV, AllToAllV, GatherV, ReduceScatterV, ScatterV};
        let element_bytes = call.dtype.size_bytes() as u64;
        let sends_blocks = matches!(call.collective, ReduceScatterV | ScatterV | AllToAllV);
        let receives_blocks = matches!(call.collective, AllGatherV | GatherV | AllToAllV);
        let single = if sends_blocks { destinations } else { sources };
        let own = single.first().map_or(0, |slice| slice.bytes / element_bytes);
        Self {
            sent: Operand::new(sources, sends_blocks, element_bytes, &address),
            received: Operand::new(destinations, receives_blocks, element_bytes, &address),
            own: if sends_blocks == receives_blocks { 0 } else { own },
        }
    }

    /// The count that the library is given: in a vector form, that of the block that this rank gives or
    /// gets.
    pub fn count(&self, call: &IslandCall) -> u64 {
        if self.own > 0 { self.own } else { call.count }
    }
}

#[cfg(test)]
mod tests {
    use iccl_plugin_api::DataType;

    use super::*;
    use crate::schedule::Buffer;

    fn slice(offset: u64, bytes: u64) -> Slice {
        Slice { buffer: Buffer::Send, offset, bytes }
    }

    fn call(collective: Collective) -> IslandCall {
        IslandCall { collective, dtype: DataType::I32, op: None, count: 0, root: 0 }
    }

    fn at(slice: Slice) -> *mut u8 {
        std::ptr::without_provenance_mut(0x1000 + slice.offset as usize)
    }

    #[test]
    fn blocks_are_counted_from_the_first_that_is_not_empty() {
        let blocks = [slice(24, 8), slice(0, 0), slice(12, 4)];
        let operands = Operands::new(&call(Collective::ScatterV), &blocks, &[slice(64, 8)], at);
        assert_eq!(operands.sent.address.addr(), 0x1000 + 12);
        assert_eq!(operands.sent.counts, [2, 0, 1]);
        assert_eq!(operands.sent.displacements, [3, 0, 0]);
        assert_eq!(operands.sent.bytes, 20);
        // Between them lie 8 bytes of somebody else.
        assert_eq!(operands.sent.blocks(4), [(12, 8), (0, 4)]);
        assert_eq!(operands.received.address.addr(), 0x1000 + 64);
        assert!(operands.received.counts.is_empty());
        assert_eq!(operands.count(&call(Collective::ScatterV)), 2);
    }

    #[test]
    fn what_has_no_blocks_has_its_count_and_no_lists() {
        let whole = IslandCall { count: 7, ..call(Collective::Broadcast) };
        let operands = Operands::new(&whole, &[slice(0, 0)], &[slice(4, 28)], at);
        assert!(operands.sent.address.is_null() && operands.sent.counts.is_empty());
        assert!(operands.sent.blocks(4).is_empty());
        assert_eq!(operands.received.blocks(4), [(0, 28)]);
        assert_eq!(operands.count(&whole), 7);
        let exchange = call(Collective::AllToAllV);
        let operands = Operands::new(&exchange, &[slice(0, 4)], &[slice(8, 4)], at);
        assert_eq!((operands.count(&exchange), operands.received.counts.as_slice()), (0, &[1][..]));
    }
}
