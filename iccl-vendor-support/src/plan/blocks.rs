//! Blocks of a buffer, one for each rank.

use iccl_plugin_api::DataType;
use iccl_plugin_api::sdk::{PluginError, PluginResult};

/// A block, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// From the front of the buffer.
    pub offset: usize,
    /// Its length.
    pub count: usize,
}

/// Blocks of a buffer, one for each rank.
pub(super) struct Blocks {
    address: usize,
    element_bytes: usize,
    /// In iccl's elements.
    places: Vec<Block>,
}

impl Blocks {
    /// Blocks of equal length, one after the other.
    pub(super) fn even(
        address: usize,
        dtype: DataType,
        count: usize,
        ranks: u32,
    ) -> PluginResult<Self> {
        let all = count.checked_mul(ranks as usize);
        all.and_then(|all| all.checked_mul(dtype.size_bytes())).ok_or_else(too_large)?;
        let places = (0..ranks as usize).map(|rank| Block { offset: rank * count, count });
        Ok(Self { address, element_bytes: dtype.size_bytes(), places: places.collect() })
    }

    /// Blocks of the given counts; without displacements one after the other.
    pub(super) fn uneven(
        address: usize,
        dtype: DataType,
        (counts, displacements): (&[u64], &[u64]),
        (what, ranks): (&str, u32),
    ) -> PluginResult<Self> {
        if counts.len() != ranks as usize || ![0, counts.len()].contains(&displacements.len()) {
            return Err(PluginError::invalid(format!(
                "{} {what} counts and {} displacements for {ranks} ranks",
                counts.len(),
                displacements.len()
            )));
        }
        let element_bytes = dtype.size_bytes();
        let mut next = 0_u64;
        let mut places = Vec::with_capacity(counts.len());
        for (rank, &count) in counts.iter().enumerate() {
            let begin = displacements.get(rank).copied().unwrap_or(next);
            next = begin.checked_add(count).ok_or_else(too_large)?;
            next.checked_mul(element_bytes as u64).ok_or_else(too_large)?;
            places.push(Block { offset: begin as usize, count: count as usize });
        }
        Ok(Self { address, element_bytes, places })
    }

    /// Where a rank's block begins.
    pub(super) fn at(&self, rank: usize) -> usize {
        self.address.wrapping_add(self.places[rank].offset * self.element_bytes)
    }

    pub(super) fn count(&self, rank: usize) -> usize {
        self.places[rank].count
    }

    /// The ranks that have a block at all.
    pub(super) fn owners(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.places.len()).filter(|rank| self.count(*rank) > 0)
    }

    /// In the library's elements, of which `factor` are one of iccl's.
    pub(super) fn scaled(&self, factor: usize) -> Vec<Block> {
        let scale =
            |block: &Block| Block { offset: block.offset * factor, count: block.count * factor };
        self.places.iter().map(scale).collect()
    }
}

pub(super) fn too_large() -> PluginError {
    PluginError::invalid("the buffers would be larger than an address space")
}
