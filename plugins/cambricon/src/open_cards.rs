//! Which cards this process has opened. CNCL wants all ranks of a process in one call, so whoever joins
//! has to know for whom to wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The cards that are open, and how often each.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenCards {
    counts: Arc<Mutex<BTreeMap<i32, usize>>>,
}

impl OpenCards {
    /// Counts a card as open until the answer is dropped.
    pub(crate) fn open(&self, ordinal: i32) -> OpenCard {
        *self.locked().entry(ordinal).or_default() += 1;
        OpenCard { all: self.clone(), ordinal }
    }

    /// Whether all cards that are open are among these.
    pub(crate) fn are_within(&self, ordinals: &BTreeSet<i32>) -> bool {
        self.locked().keys().all(|ordinal| ordinals.contains(ordinal))
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<i32, usize>> {
        // Changed in one step, so a panic elsewhere can't have left it half-made.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A card that is open.
#[derive(Debug)]
pub(crate) struct OpenCard {
    all: OpenCards,
    ordinal: i32,
}

impl Drop for OpenCard {
    fn drop(&mut self) {
        let mut counts = self.all.locked();
        if let Some(count) = counts.get_mut(&self.ordinal) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.ordinal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_open_until_it_is_closed_as_often_as_it_was_opened() {
        let cards = OpenCards::default();
        let within = |ordinals: &[i32]| cards.are_within(&ordinals.iter().copied().collect());
        assert!(within(&[]));
        let (first, second, third) = (cards.open(2), cards.open(2), cards.open(0));
        assert!(within(&[0, 2, 5]) && !within(&[2]));
        drop(third);
        assert!(within(&[2]));
        drop(first);
        assert!(!within(&[0]));
        drop(second);
        assert!(within(&[]));
    }
}
