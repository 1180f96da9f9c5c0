//! A map from runs of bytes to values.

use std::collections::BTreeMap;
use std::ops::Range;

/// Runs that do not overlap, keyed by their start; each holds its end and its value.
#[derive(Clone, Debug)]
pub(super) struct Ranges<T> {
    runs: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self { runs: BTreeMap::new() }
    }
}

impl<T: Clone> Ranges<T> {
    /// Gives all bytes of `range` the value.
    pub(super) fn set(&mut self, range: Range<u64>, value: T) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        let covered: Vec<u64> = self.runs.range(range.clone()).map(|(start, _)| *start).collect();
        for start in covered {
            self.runs.remove(&start);
        }
        self.runs.insert(range.start, (range.end, value));
    }

    /// The values in `range`, in order; `None` where none was set. Covers `range` exactly.
    pub(super) fn pieces(&self, range: Range<u64>) -> Vec<(Range<u64>, Option<T>)> {
        let mut pieces = Vec::new();
        let mut next = range.start;
        let before = self.runs.range(..range.start).next_back();
        for (start, (end, value)) in before.into_iter().chain(self.runs.range(range.clone())) {
            let (start, end) = ((*start).max(range.start), (*end).min(range.end));
            if start >= end {
                continue;
            }
            if start > next {
                pieces.push((next..start, None));
            }
            pieces.push((start..end, Some(value.clone())));
            next = end;
        }
        if next < range.end {
            pieces.push((next..range.end, None));
        }
        pieces
    }

    /// The first byte whose value is another in `other`, or is set in only one of the two.
    pub(super) fn difference(&self, other: &Self) -> Option<u64>
    where
        T: PartialEq,
    {
        let end = |ranges: &Self| ranges.runs.values().next_back().map_or(0, |(end, _)| *end);
        let pieces = self.pieces(0..end(self).max(end(other))).into_iter();
        pieces
            .flat_map(|(range, value)| {
                let others = other.pieces(range).into_iter();
                others.filter(move |(_, other)| *other != value).map(|(range, _)| range.start)
            })
            .next()
    }

    fn split(&mut self, at: u64) {
        if let Some((_, run)) = self.runs.range_mut(..at).next_back()
            && run.0 > at
        {
            let upper = run.clone();
            run.0 = at;
            self.runs.insert(at, upper);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_an_array(
            writes in prop::collection::vec((0_u64..40, 0_u64..12, any::<u8>()), 0..30),
            from in 0_u64..40,
            length in 0_u64..20,
        ) {
            let mut ranges = Ranges::default();
            let mut array = [None; 64];
            for (start, bytes, value) in writes {
                ranges.set(start..start + bytes, value);
                array[start as usize..(start + bytes) as usize].fill(Some(value));
            }
            let mut next = from;
            for (piece, value) in ranges.pieces(from..from + length) {
                prop_assert_eq!(piece.start, next);
                prop_assert!(!piece.is_empty());
                for at in piece.clone() {
                    prop_assert_eq!(array[at as usize], value);
                }
                next = piece.end;
            }
            prop_assert_eq!(next, from + length);

            prop_assert_eq!(ranges.difference(&ranges.clone()), None);
            let mut changed = ranges.clone();
            changed.set(from..from + length, 0);
            let first = (from..from + length).find(|at| array[*at as usize] != Some(0));
            prop_assert_eq!(ranges.difference(&changed), first);
            prop_assert_eq!(changed.difference(&ranges), first);
        }
    }
}
