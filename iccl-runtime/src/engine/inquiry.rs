//! Who keeps the others waiting?
//!
//! When an operation runs out of time, a rank sees only whom it waits for itself, and that one may be
//! waiting as well. So all ranks tell each other whom they wait for, listen for a moment, and follow
//! the chain: it ends at a rank that does not answer or is in no operation.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::Error;
use crate::bootstrap::way;

/// How long a rank listens.
const PATIENCE: Duration = Duration::from_millis(700);

/// What is known so far.
pub(super) struct Inquiry {
    rank: u32,
    /// This rank's view.
    pub(super) error: Error,
    /// Whom each rank that answered waits for: itself if it is in no operation, nobody if its
    /// own device or library holds it up.
    pub(super) waits: BTreeMap<u32, Option<u32>>,
    pub(super) until: Instant,
    /// Whether the others have been told of this rank.
    pub(super) told: bool,
}

impl Inquiry {
    pub(super) fn new(rank: u32, error: Error, waits_for: Option<u32>) -> Self {
        let waits = BTreeMap::from([(rank, waits_for)]);
        Self { rank, error, waits, until: Instant::now() + PATIENCE, told: false }
    }

    /// This rank's view, with whoever is at the end of the chain.
    pub(super) fn conclusion(&self) -> Error {
        let mut visited = vec![self.rank];
        let mut at = self.rank;
        loop {
            let next = match self.waits.get(&at) {
                // A rank in no operation looks along the chain of one that is.
                Some(Some(next)) if *next == at && at == self.rank && visited.len() == 1 => {
                    let other = self.waits.iter().find(|(rank, _)| **rank != self.rank);
                    match other {
                        Some((rank, _)) => *rank,
                        None => return self.error.clone(),
                    }
                }
                Some(Some(next)) if *next == at => {
                    return self.blame(at, "is in no operation");
                }
                Some(Some(next)) => *next,
                Some(None) => return self.blame(at, "is held up by its own device or library"),
                None => return self.blame(self.first_silent(at), "does not answer"),
            };
            if next != self.rank && visited.contains(&next) {
                // They wait for each other.
                return self.error.clone();
            }
            if next == self.rank {
                let own = self.waits.get(&self.rank).copied().flatten();
                return if own == Some(self.rank) {
                    self.blame(self.rank, "is in no operation")
                } else {
                    self.error.clone()
                };
            }
            visited.push(next);
            at = next;
        }
    }

    /// Whether a rank answers can only be heard if all do over which its answer would come.
    fn first_silent(&self, silent: u32) -> u32 {
        let way = way(self.rank, silent);
        way.into_iter().find(|rank| !self.waits.contains_key(rank)).unwrap_or(silent)
    }

    fn blame(&self, rank: u32, why: &str) -> Error {
        let mut error =
            Error::new(self.error.kind(), format!("{}; rank {rank} {why}", self.error.message()))
                .with_rank(rank);
        if let Some(hint) = self.error.hint() {
            error = error.with_hint(hint);
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn culprit(rank: u32, own: Option<u32>, others: &[(u32, Option<u32>)]) -> Option<u32> {
        let error = Error::new(ErrorKind::Timeout, "all_reduce took longer than 2s");
        let mut inquiry = Inquiry::new(rank, error, own);
        inquiry.waits.extend(others.iter().copied());
        inquiry.conclusion().rank()
    }

    #[test]
    fn the_chain_leads_to_the_silent_one() {
        assert_eq!(culprit(0, Some(2), &[(2, Some(1)), (3, Some(1))]), Some(1));
        assert_eq!(culprit(3, Some(1), &[(0, Some(2)), (2, Some(1))]), Some(1));
        assert_eq!(culprit(0, Some(1), &[]), Some(1));
    }

    #[test]
    fn a_silent_rank_is_excused_by_one_that_would_pass_its_answer_on() {
        // Rank 0 is stopped: nobody hears anybody.
        assert_eq!(culprit(3, Some(2), &[]), Some(0));
        // 5 and 6 hear each other and 1 above them.
        assert_eq!(culprit(5, Some(2), &[(1, Some(0)), (6, Some(2))]), Some(0));
        assert_eq!(culprit(5, Some(2), &[(1, Some(0)), (0, Some(2))]), Some(2));
    }

    #[test]
    fn or_to_the_one_that_is_in_no_operation() {
        // Rank 1 has not called it, rank 3 has nothing to do with it.
        assert_eq!(culprit(0, Some(2), &[(2, Some(1)), (1, Some(1)), (3, Some(3))]), Some(1));
        assert_eq!(culprit(1, Some(1), &[(0, Some(2)), (2, Some(1))]), Some(1));
        assert_eq!(culprit(3, Some(3), &[(0, Some(2)), (2, Some(1)), (1, Some(1))]), Some(1));
    }

    #[test]
    fn nobody_is_to_blame_where_all_wait_for_each_other() {
        assert_eq!(culprit(0, Some(1), &[(1, Some(0))]), None);
        assert_eq!(culprit(0, Some(1), &[(1, Some(2)), (2, Some(1))]), None);
    }

    #[test]
    fn local_work_is_named() {
        assert_eq!(culprit(0, Some(1), &[(1, None)]), Some(1));
    }
}
