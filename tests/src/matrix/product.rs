//! Every cell there is.

use iccl_plugin_api::{Collective, DataType, RedOp};
use iccl_runtime::schedule::Algorithm;

use super::cell::{Alignment, Cell};
use super::{declared, expect};
use crate::oracle::scramble;

/// Numbers of ranks.
pub const RANKS: [u32; 7] = [1, 2, 3, 4, 5, 7, 8];

/// How many classes of counts there are, see [`count`].
pub const COUNTS: usize = 9;

/// A count of a class: 0, 1, around the number of ranks, around a vector register, 1000, and one that
/// takes several messages.
pub fn count(class: usize, ranks: u32) -> u64 {
    let ranks = u64::from(ranks);
    [0, 1, ranks - 1, ranks, ranks + 1, 31, 33, 1000, 1_000_003][class]
}

/// The operations of the matrix. Receiving is part of [`Collective::Send`].
pub fn collectives() -> impl Iterator<Item = Collective> {
    Collective::ALL.iter().copied().filter(|one| *one != Collective::Recv)
}

/// What can be done with elements in this collective.
pub fn ops(collective: Collective) -> &'static [RedOp] {
    if collective.reduces() { RedOp::ALL } else { &[RedOp::Sum] }
}

/// Every cell for a number of ranks: of all collectives, or, where an algorithm is forced, of those
/// that it carries and others carry too. Roots and alignments take turns. Where no algorithm is forced,
/// each call is made in a group too, but for the longest vectors.
pub fn cells(ranks: u32, forced: Option<Algorithm>) -> Vec<Cell> {
    let mut counts: Vec<u64> = (0..COUNTS).map(|class| count(class, ranks)).collect();
    counts.sort_unstable();
    counts.dedup();
    let (mut cells, mut grouped) = (Vec::new(), Vec::new());
    for collective in collectives() {
        let chosen = |one: Algorithm| {
            one.facts().collectives.contains(&collective) && declared::choices(collective) > 1
        };
        if forced.is_some_and(|one| !chosen(one)) {
            continue;
        }
        if collective == Collective::Barrier {
            cells.push(barrier());
            grouped.push(Cell { grouped: true, ..barrier() });
            continue;
        }
        for &dtype in DataType::ALL {
            for &op in ops(collective) {
                for in_place in places(collective) {
                    for &count in &counts {
                        let turn = scramble(cells.len() as u64);
                        let cell = Cell {
                            collective,
                            dtype,
                            op,
                            in_place: *in_place,
                            count,
                            root: if collective.has_root() { turn as u32 % ranks } else { 0 },
                            alignment: Alignment::ALL[(turn >> 32) as usize % 4],
                            grouped: false,
                        };
                        cells.push(cell);
                        if forced.is_none() && count <= 1000 {
                            grouped.push(Cell { grouped: true, ..cell });
                        }
                    }
                }
            }
        }
    }
    cells.extend(grouped);
    cells
}

/// What the buffers of all ranks may have together.
pub const MOST_BYTES: u64 = 256 << 20;

/// Whether a cell fits into memory that a usual machine has to spare.
pub fn fits(cell: &Cell, ranks: u32) -> bool {
    bytes(cell, ranks) <= MOST_BYTES
}

/// What the buffers of all ranks have together.
pub fn bytes(cell: &Cell, ranks: u32) -> u64 {
    let elements = |rank| {
        let part = expect::part(cell, rank, ranks);
        part.memories.iter().map(|memory| memory.before.elements()).sum::<u64>()
    };
    (0..ranks).map(elements).sum::<u64>() * cell.dtype.size_bytes() as u64
}

/// Out of place and, where there are two buffers of one rank, in place.
pub fn places(collective: Collective) -> &'static [bool] {
    if collective == Collective::Send { &[false] } else { &[false, true] }
}

/// The barrier, to which nothing is told.
pub fn barrier() -> Cell {
    Cell {
        collective: Collective::Barrier,
        dtype: DataType::U8,
        op: RedOp::Sum,
        in_place: false,
        count: 0,
        root: 0,
        alignment: Alignment::Line,
        grouped: false,
    }
}
