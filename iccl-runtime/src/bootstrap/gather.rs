//! Rank 0's side of all-gathers: collects contributions, notices who disagrees and who is missing.
//! Without sockets and clocks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::message::Failure;
use super::roster::missing_ranks;
use crate::ErrorKind;

/// Rounds that may be open at once; ranks that are further apart have lost count.
const OPEN_ROUNDS: usize = 8;

/// The end of one round: what everyone is told.
pub(super) type Outcome = Result<Vec<Vec<u8>>, Failure>;

#[derive(Debug)]
struct Round {
    tag: u32,
    /// The rank that came first, whose tag counts.
    first: u32,
    contributions: BTreeMap<u32, Vec<u8>>,
    deadline: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Gatherer {
    world_size: u32,
    rounds: BTreeMap<u64, Round>,
    /// Rounds up to this one have ended; what comes late for them is dropped.
    ended: u64,
    gone: BTreeSet<u32>,
}

impl Gatherer {
    pub(super) fn new(world_size: u32) -> Self {
        Self { world_size, rounds: BTreeMap::new(), ended: 0, gone: BTreeSet::new() }
    }

    /// Takes one rank's contribution to round `sequence` (from 1) and returns the outcome when the
    /// round ends with it. Only rank 0's own carries a deadline.
    pub(super) fn contribute(
        &mut self,
        sequence: u64,
        tag: u32,
        rank: u32,
        bytes: Vec<u8>,
        deadline: Option<Instant>,
    ) -> Option<Outcome> {
        if sequence <= self.ended || rank >= self.world_size {
            return None;
        }
        if !self.rounds.contains_key(&sequence) && self.rounds.len() >= OPEN_ROUNDS {
            let message = format!(
                "all-gather: rank {rank} is in round {sequence}, others are in round {}",
                self.ended + 1
            );
            let failure = Failure::new(ErrorKind::Mismatch, Some(rank), message);
            return Some(self.end(sequence, Err(failure)));
        }
        let round = self.rounds.entry(sequence).or_insert_with(|| Round {
            tag,
            first: rank,
            contributions: BTreeMap::new(),
            deadline: None,
        });
        round.deadline = round.deadline.or(deadline);
        if round.tag != tag {
            let (first, first_tag) = (round.first, round.tag);
            let message = format!(
                "all-gather: ranks are doing different things: rank {first} has tag {first_tag:#x}, \
                 rank {rank} has tag {tag:#x}"
            );
            let failure = Failure::new(ErrorKind::Mismatch, Some(rank), message);
            return Some(self.end(sequence, Err(failure)));
        }
        round.contributions.insert(rank, bytes);
        if round.contributions.len() == self.world_size as usize {
            let table = std::mem::take(&mut round.contributions).into_values().collect();
            return Some(self.end(sequence, Ok(table)));
        }
        if let Some(rank) = self.gone_without(sequence) {
            return Some(self.end(sequence, Err(left(rank))));
        }
        None
    }

    /// Notes that a rank has said goodbye, and ends every round that needs it.
    pub(super) fn leave(&mut self, rank: u32) -> Vec<(u64, Outcome)> {
        self.gone.insert(rank);
        let open: Vec<u64> = self.rounds.keys().copied().collect();
        open.into_iter()
            .filter_map(|sequence| {
                let rank = self.gone_without(sequence)?;
                Some((sequence, self.end(sequence, Err(left(rank)))))
            })
            .collect()
    }

    fn gone_without(&self, sequence: u64) -> Option<u32> {
        let round = self.rounds.get(&sequence)?;
        self.gone.iter().copied().find(|rank| !round.contributions.contains_key(rank))
    }

    /// Ends the rounds whose deadline has passed.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<(u64, Outcome)> {
        let late: Vec<u64> = self
            .rounds
            .iter()
            .filter(|(_, round)| round.deadline.is_some_and(|deadline| now >= deadline))
            .map(|(sequence, _)| *sequence)
            .collect();
        late.into_iter()
            .filter_map(|sequence| {
                let round = self.rounds.get(&sequence)?;
                let tag = round.tag;
                let missing =
                    missing_ranks(self.world_size, |r| round.contributions.contains_key(&r));
                let message = format!(
                    "all-gather (tag {tag:#x}): missing ranks {} at the deadline",
                    missing.text
                );
                let culprit = (missing.count == 1).then_some(missing.first);
                let failure = Failure::new(ErrorKind::Timeout, culprit, message);
                Some((sequence, self.end(sequence, Err(failure))))
            })
            .collect()
    }

    /// The earliest deadline.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.rounds.values().filter_map(|round| round.deadline).min()
    }

    fn end(&mut self, sequence: u64, outcome: Outcome) -> Outcome {
        self.rounds.remove(&sequence);
        self.ended = self.ended.max(sequence);
        outcome
    }
}

fn left(rank: u32) -> Failure {
    let message = format!("all-gather: rank {rank} has left the job");
    Failure::new(ErrorKind::PeerLost, Some(rank), message)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_table_is_in_order_of_rank_whoever_comes_first() {
        let mut gatherer = Gatherer::new(3);
        assert_eq!(gatherer.contribute(1, 7, 2, vec![2], None), None);
        assert_eq!(gatherer.contribute(1, 7, 0, vec![0], None), None);
        assert_eq!(
            gatherer.contribute(1, 7, 1, vec![1], None),
            Some(Ok(vec![vec![0], vec![1], vec![2]]))
        );
        // Late and repeated ones change nothing.
        assert_eq!(gatherer.contribute(1, 7, 1, vec![9], None), None);
    }

    #[test]
    fn different_tags_are_an_error_that_names_both() {
        let mut gatherer = Gatherer::new(3);
        gatherer.contribute(1, 0x10, 2, vec![], None);
        let failure = gatherer.contribute(1, 0x11, 1, vec![], None).unwrap().unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Mismatch);
        assert!(failure.message.contains("rank 2 has tag 0x10, rank 1 has tag 0x11"));
    }

    #[test]
    fn a_deadline_names_who_is_missing() {
        let mut gatherer = Gatherer::new(4);
        let now = Instant::now();
        gatherer.contribute(1, 7, 0, vec![], Some(now));
        gatherer.contribute(1, 7, 2, vec![], None);
        assert_eq!(gatherer.deadline(), Some(now));
        let ended = gatherer.expire(now + Duration::from_millis(1));
        let failure = ended[0].1.as_ref().unwrap_err();
        assert_eq!(failure.message, "all-gather (tag 0x7): missing ranks [1, 3] at the deadline");
        assert_eq!(gatherer.deadline(), None);
    }

    #[test]
    fn a_rank_that_left_ends_the_rounds_that_need_it() {
        let mut gatherer = Gatherer::new(3);
        gatherer.contribute(1, 7, 0, vec![], None);
        gatherer.contribute(1, 7, 1, vec![], None);
        let ended = gatherer.leave(2);
        assert_eq!(ended[0].1.as_ref().unwrap_err().rank, Some(2));
        let later = gatherer.contribute(2, 7, 0, vec![], None).unwrap().unwrap_err();
        assert_eq!(later.message, "all-gather: rank 2 has left the job");
        // One that left after its contribution is not missed.
        let mut gatherer = Gatherer::new(2);
        gatherer.contribute(1, 7, 1, vec![], None);
        assert_eq!(gatherer.leave(1), []);
        assert!(gatherer.contribute(1, 7, 0, vec![], None).unwrap().is_ok());
    }

    #[test]
    fn a_rank_that_lost_count_cannot_pile_up_rounds() {
        let mut gatherer = Gatherer::new(2);
        for sequence in 1..=OPEN_ROUNDS as u64 {
            assert_eq!(gatherer.contribute(sequence, 7, 1, vec![], None), None);
        }
        assert!(gatherer.contribute(99, 7, 1, vec![], None).unwrap().is_err());
    }
}
