//! A covering array: few cells in which every combination of the values of any two, or any three, of
//! the factors comes together at least once, if such a cell can be.

use iccl_plugin_api::{Collective, DataType, RedOp};
use iccl_runtime::schedule::Algorithm;

use super::cell::{Alignment, Cell};
use super::coordinator::{Device, Ranks, Transport};
use super::{declared, product};
use crate::oracle::scramble;

/// Factors, by their place in a row.
const RANKS: usize = 0;
const TRANSPORT: usize = 1;
const ALGORITHM: usize = 2;
const COLLECTIVE: usize = 3;
const DTYPE: usize = 4;
const OP: usize = 5;
const PLACE: usize = 6;
const COUNT: usize = 7;
const ALIGNMENT: usize = 8;
const ROOT: usize = 9;
const FORM: usize = 10;
const DEVICE: usize = 11;
const FACTORS: usize = 12;

/// A row that is not finished: the value of each factor that has one.
type Row = [Option<usize>; FACTORS];

/// A cell, and where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Who calls.
    pub of: Ranks,
    /// The algorithm that is forced.
    pub forced: Option<Algorithm>,
    /// The operation.
    pub cell: Cell,
}

/// The values of all factors.
struct Factors {
    algorithms: Vec<Option<Algorithm>>,
    collectives: Vec<Collective>,
}

impl Factors {
    fn new() -> Self {
        let forced = declared::forcible().into_iter().map(Some);
        let barrier = |one: &Collective| *one != Collective::Barrier;
        Self {
            algorithms: [None].into_iter().chain(forced).collect(),
            collectives: product::collectives().filter(barrier).collect(),
        }
    }

    fn sizes(&self) -> [usize; FACTORS] {
        let mut sizes = [0; FACTORS];
        sizes[RANKS] = product::RANKS.len();
        sizes[TRANSPORT] = Transport::ALL.len();
        sizes[ALGORITHM] = self.algorithms.len();
        sizes[COLLECTIVE] = self.collectives.len();
        sizes[DTYPE] = DataType::ALL.len();
        // The last one stands for none.
        sizes[OP] = RedOp::ALL.len() + 1;
        sizes[PLACE] = 2;
        sizes[COUNT] = product::COUNTS;
        sizes[ALIGNMENT] = Alignment::ALL.len();
        // First, last, and one between.
        sizes[ROOT] = 3;
        sizes[FORM] = 2;
        sizes[DEVICE] = Device::ALL.len();
        sizes
    }

    /// Whether there is a cell with these values.
    fn can_be(&self, row: &Row) -> bool {
        match row[COLLECTIVE] {
            Some(index) => self.fits(self.collectives[index], row),
            None => self.collectives.iter().any(|collective| self.fits(*collective, row)),
        }
    }

    fn fits(&self, collective: Collective, row: &Row) -> bool {
        let carried = row[ALGORITHM].is_none_or(|index| {
            self.algorithms[index].is_none_or(|one| {
                one.facts().collectives.contains(&collective) && declared::choices(collective) > 1
            })
        });
        let reduced = row[OP].is_none_or(|op| (op < RedOp::ALL.len()) == collective.reduces());
        let placed = row[PLACE].is_none_or(|place| place < product::places(collective).len());
        let rooted = row[ROOT].is_none_or(|root| root == 0 || collective.has_root());
        carried && reduced && placed && rooted
    }

    fn placed(&self, row: &[usize; FACTORS]) -> Placed {
        let ranks = product::RANKS[row[RANKS]];
        Placed {
            of: Ranks {
                ranks,
                transport: Transport::ALL[row[TRANSPORT]],
                device: Device::ALL[row[DEVICE]],
            },
            forced: self.algorithms[row[ALGORITHM]],
            cell: Cell {
                collective: self.collectives[row[COLLECTIVE]],
                dtype: DataType::ALL[row[DTYPE]],
                op: RedOp::ALL.get(row[OP]).copied().unwrap_or(RedOp::Sum),
                in_place: row[PLACE] == 1,
                count: product::count(row[COUNT], ranks),
                root: [0, ranks - 1, ranks / 2][row[ROOT]],
                alignment: Alignment::ALL[row[ALIGNMENT]],
                grouped: row[FORM] == 1,
            },
        }
    }
}

/// Which combinations have not come together yet.
struct Open {
    sizes: [usize; FACTORS],
    /// By factors of a combination: a flag for each of its values.
    flags: Vec<(Vec<usize>, Vec<bool>)>,
    left: usize,
}

impl Open {
    fn new(factors: &Factors, strength: usize) -> Self {
        let sizes = factors.sizes();
        let mut flags = Vec::new();
        let mut left = 0;
        for chosen in subsets(strength) {
            let values: usize = chosen.iter().map(|factor| sizes[*factor]).product();
            let open: Vec<bool> = (0..values)
                .map(|index| {
                    let mut row = Row::default();
                    for (factor, value) in values_of(&sizes, &chosen, index) {
                        row[factor] = Some(value);
                    }
                    factors.can_be(&row)
                })
                .collect();
            left += open.iter().filter(|one| **one).count();
            flags.push((chosen, open));
        }
        Self { sizes, flags, left }
    }

    /// The place of a row's values among those of some factors, if it has them all.
    fn index(&self, chosen: &[usize], row: &Row) -> Option<usize> {
        chosen.iter().try_fold(0, |index, factor| Some(index * self.sizes[*factor] + row[*factor]?))
    }

    /// How many open combinations with `factor` the row has.
    fn gain(&self, row: &Row, factor: usize) -> usize {
        let with = self.flags.iter().filter(|(chosen, _)| chosen.contains(&factor));
        with.filter(|(chosen, open)| self.index(chosen, row).is_some_and(|index| open[index]))
            .count()
    }

    /// An open combination, from `random` on.
    fn any(&self, random: u64) -> Option<Row> {
        let groups = self.flags.len();
        for group in (0..groups).map(|at| (at + random as usize) % groups) {
            let (chosen, open) = &self.flags[group];
            let values = open.len();
            let start = (random >> 16) as usize % values;
            let found = (0..values).map(|at| (at + start) % values).find(|index| open[*index]);
            if let Some(index) = found {
                let mut row = Row::default();
                for (factor, value) in values_of(&self.sizes, chosen, index) {
                    row[factor] = Some(value);
                }
                return Some(row);
            }
        }
        None
    }

    fn close(&mut self, row: &Row) {
        for group in 0..self.flags.len() {
            if let Some(index) = self.index(&self.flags[group].0, row) {
                let open = &mut self.flags[group].1[index];
                self.left -= usize::from(*open);
                *open = false;
            }
        }
    }
}

/// All sets of this many factors.
fn subsets(strength: usize) -> Vec<Vec<usize>> {
    (0_usize..1 << FACTORS)
        .filter(|set| set.count_ones() as usize == strength)
        .map(|set| (0..FACTORS).filter(|factor| set >> factor & 1 == 1).collect())
        .collect()
}

/// The values of some factors that have this place among all of theirs.
fn values_of(sizes: &[usize; FACTORS], chosen: &[usize], index: usize) -> Vec<(usize, usize)> {
    let mut index = index;
    let mut values: Vec<_> = chosen
        .iter()
        .rev()
        .map(|factor| {
            let value = index % sizes[*factor];
            index /= sizes[*factor];
            (*factor, value)
        })
        .collect();
    values.reverse();
    values
}

/// Cells that cover all combinations of `strength` factors; the same for the same seed.
///
/// # Panics
/// Never: a combination that is open has a cell.
pub fn rows(strength: usize, seed: u64) -> Vec<Placed> {
    let factors = Factors::new();
    let mut open = Open::new(&factors, strength);
    let mut random = seed;
    let mut next = || {
        random = random.wrapping_add(1);
        scramble(random)
    };
    let mut rows = Vec::new();
    while open.left > 0 {
        let mut row = open.any(next()).expect("a combination that is left");
        let mut unset: Vec<usize> = (0..FACTORS).filter(|one| row[*one].is_none()).collect();
        while !unset.is_empty() {
            let factor = unset.swap_remove(next() as usize % unset.len());
            let size = open.sizes[factor];
            let start = next() as usize % size;
            let best = (0..size)
                .map(|value| (value + start) % size)
                .filter_map(|value| {
                    row[factor] = Some(value);
                    factors.can_be(&row).then(|| (open.gain(&row, factor), value))
                })
                // The first of the best, so that ties are broken at random.
                .reduce(|best, one| if one.0 > best.0 { one } else { best });
            row[factor] = Some(best.expect("a combination that can be").1);
        }
        open.close(&row);
        rows.push(factors.placed(&row.map(|value| value.expect("all are set"))));
    }
    rows
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Counted from the cells, not from what the generator believes.
    #[test]
    fn every_pair_is_there() {
        let rows = rows(2, 7);
        let algorithms = declared::forcible().len() + 1;
        let pairs: HashSet<_> = rows.iter().map(|one| (one.of.ranks, one.forced)).collect();
        assert_eq!(pairs.len(), product::RANKS.len() * algorithms);
        let pairs: HashSet<_> =
            rows.iter().map(|one| (one.cell.collective, one.cell.dtype)).collect();
        assert_eq!(pairs.len(), 14 * DataType::ALL.len());
        let reductions = rows.iter().filter(|one| one.cell.collective.reduces());
        let pairs: HashSet<_> = reductions.map(|one| (one.cell.dtype, one.cell.op)).collect();
        assert_eq!(pairs.len(), DataType::ALL.len() * RedOp::ALL.len());
        let pairs: HashSet<_> =
            rows.iter().map(|one| (one.of.transport, one.cell.alignment)).collect();
        assert_eq!(pairs.len(), 3 * 4);
        let pairs: HashSet<_> =
            rows.iter().map(|one| (one.of.device, one.cell.collective)).collect();
        assert_eq!(pairs.len(), 2 * 14);
        assert!(rows.len() < 600, "{} rows for pairs", rows.len());
        assert_eq!(rows, super::rows(2, 7), "the same for the same seed");
    }
}
