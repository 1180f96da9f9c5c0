//! Sets of ranks as people write them: `0-3, 7`.

use std::collections::BTreeSet;
use std::fmt;

/// A set of ranks that prints as ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankSet(BTreeSet<u32>);

impl RankSet {
    /// The ranks in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// How many ranks there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lowest rank.
    pub fn first(&self) -> Option<u32> {
        self.0.first().copied()
    }

    /// Adds a rank.
    pub fn insert(&mut self, rank: u32) {
        self.0.insert(rank);
    }

    /// `rank 3` or `ranks 0-2, 5`.
    pub fn phrase(&self) -> String {
        let noun = if self.len() == 1 { "rank" } else { "ranks" };
        format!("{noun} {self}")
    }
}

impl FromIterator<u32> for RankSet {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Self {
        Self(ranks.into_iter().collect())
    }
}

/// Ranges beyond this many are counted, not printed, so that a message stays one readable line.
const PRINTED_RANGES: usize = 16;

impl fmt::Display for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for rank in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == rank => *last = rank,
                _ => ranges.push((rank, rank)),
            }
        }
        for (index, (first, last)) in ranges.iter().take(PRINTED_RANGES).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
        }
        let hidden: u32 = ranges.iter().skip(PRINTED_RANGES).map(|(a, b)| b - a + 1).sum();
        if hidden > 0 {
            write!(f, " and {hidden} more")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_print_as_ranges() {
        let set: RankSet = [7, 0, 1, 2, 5].into_iter().collect();
        assert_eq!(set.phrase(), "ranks 0-2, 5, 7");
        assert_eq!(RankSet::from_iter([4]).phrase(), "rank 4");
    }

    #[test]
    fn a_scattered_set_is_cut_and_counted() {
        let set: RankSet = (0..100).map(|rank| rank * 2).collect();
        assert!(set.to_string().ends_with("28, 30 and 84 more"), "{set}");
    }
}
