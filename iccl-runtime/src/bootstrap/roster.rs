//! Who has come, and what that means for the job. Without sockets and clocks: the root tells it
//! what happened, it tells the root what to answer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::message::{CheckIn, Failure};
use crate::ErrorKind;

/// The connection that a check-in came over.
pub(super) type ConnectionId = u64;

/// How many ranks a message names before it only counts them.
const NAMED_RANKS: usize = 16;

/// How long a rank that went away before it checked in may take to come again over a new connection.
const RETURN_LIMIT: Duration = Duration::from_secs(2);

/// The ranks of one job that are to form another, as the first of them was told. They are known by
/// their ranks in the old job until they all have come.
#[derive(Clone, Debug)]
pub(super) struct Members {
    /// By their ranks in the new job; not empty.
    pub(super) ranks: Arc<[u32]>,
    /// What the first of them was asked to do.
    pub(super) call: String,
    /// Who has no part in that.
    pub(super) left_out: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) connection: ConnectionId,
    pub(super) check_in: CheckIn,
}

/// The list of those who have come.
#[derive(Debug, Default)]
pub(super) struct Roster {
    /// Who must come, where that is known from the start.
    members: Option<Members>,
    entries: BTreeMap<u32, Entry>,
    /// Ranks that proved themselves and went away before they checked in, and when.
    went_away: BTreeMap<u32, Instant>,
    /// Which attempt of each rank has come here; another of the same rank is for the next job.
    instances: BTreeMap<u32, u64>,
    deadline: Option<Instant>,
    failure: Option<Failure>,
    /// A process that spoke another wire version, which rank is not known.
    stranger_version: Option<(u32, String)>,
}

/// What a check-in changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Others are still missing.
    Waiting,
    /// The same process again, over a new connection; the old one is to be closed.
    Replaced(ConnectionId),
    /// Everyone is there.
    Complete,
    /// The job has failed, now or before; see [`Roster::failure`].
    Failed,
    /// It has had its part in this one, which is over, and comes for the next.
    Early,
    /// It is not one of those who form the new job, and why; nothing else has changed.
    Outsider(Failure),
}

impl Roster {
    /// A list of whoever comes, or of these.
    pub(super) fn new(members: Option<Members>) -> Self {
        Self { members, ..Self::default() }
    }

    pub(super) fn arrive(
        &mut self,
        connection: ConnectionId,
        check_in: CheckIn,
        now: Instant,
    ) -> Arrival {
        self.went_away.remove(&check_in.rank);
        if self.failure.is_some() {
            let instance = *self.instances.entry(check_in.rank).or_insert(check_in.instance);
            return if instance == check_in.instance || self.members.is_none() {
                Arrival::Failed
            } else {
                Arrival::Early
            };
        }
        if let Some(failure) = self.outsider(&check_in) {
            return Arrival::Outsider(failure);
        }
        if self.is_complete() {
            return Arrival::Early;
        }
        self.instances.insert(check_in.rank, check_in.instance);
        let patience = Duration::from_millis(u64::from(check_in.patience_milliseconds));
        let deadline = now + patience;
        self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
        if let Some(failure) = self.disagreement(&check_in) {
            self.failure = Some(failure);
            return Arrival::Failed;
        }
        let expected = match &self.members {
            Some(members) => members.ranks.len(),
            None => check_in.world_size as usize,
        };
        let entry = Entry { connection, check_in };
        if let Some(old) = self.entries.insert(entry.check_in.rank, entry) {
            return Arrival::Replaced(old.connection);
        }
        if self.entries.len() == expected { Arrival::Complete } else { Arrival::Waiting }
    }

    /// Why a rank is not let in though it belongs to the old job: the first of the new one was told to
    /// leave it out. That must not keep the others from forming it.
    fn outsider(&self, new: &CheckIn) -> Option<Failure> {
        let Members { ranks, call, .. } = self.members.as_ref()?;
        let rank = new.rank;
        if ranks.contains(&rank) {
            return None;
        }
        let (first, theirs) = (ranks[0], &new.call);
        let message = format!(
            "rank {rank} has no part in it: rank {first} calls {call}, rank {rank} calls {theirs}"
        );
        Some(Failure::new(ErrorKind::Mismatch, Some(rank), message))
    }

    fn disagreement(&self, new: &CheckIn) -> Option<Failure> {
        let rank = new.rank;
        let fail = |kind, message| Some(Failure::new(kind, Some(rank), message));
        if let Some(Members { ranks, call, left_out }) = &self.members
            && *call != new.call
        {
            let (first, process, theirs) = (ranks[0], &new.process, &new.call);
            let message = format!(
                "ranks call different things: rank {first} calls {call}, rank {rank} ({process}) \
                 calls {theirs}"
            );
            let either: BTreeSet<u32> = left_out.iter().chain(&new.left_out).copied().collect();
            return Some(Failure {
                left_out: either.into_iter().collect(),
                ..Failure::new(ErrorKind::Mismatch, Some(rank), message)
            });
        }
        if self.members.is_none() && rank >= new.world_size {
            let size = new.world_size;
            let process = &new.process;
            return fail(
                ErrorKind::Rendezvous,
                format!("rank {rank} ({process}) is not below the world size {size}"),
            );
        }
        if let Some(old) = self.entries.get(&rank)
            && old.check_in.instance != new.instance
        {
            let (first, second) = (&old.check_in.process, &new.process);
            return fail(
                ErrorKind::Rendezvous,
                format!("rank {rank} checked in twice: as {first} and as {second}"),
            );
        }
        let (first_rank, first) = self.entries.first_key_value()?;
        let first = &first.check_in;
        if first.world_size != new.world_size {
            let (ours, theirs) = (first.world_size, new.world_size);
            return fail(
                ErrorKind::Rendezvous,
                format!(
                    "ranks disagree on the world size: rank {first_rank} ({}) says {ours}, \
                     rank {rank} ({}) says {theirs}",
                    first.process, new.process
                ),
            );
        }
        if first.protocol_version != new.protocol_version {
            let (ours, theirs) = (first.protocol_version, new.protocol_version);
            return fail(
                ErrorKind::VersionMismatch,
                format!(
                    "protocol versions differ: rank {first_rank} has {ours} ({}), \
                     rank {rank} has {theirs} ({})",
                    first.software, new.software
                ),
            );
        }
        None
    }

    /// A rank's connection broke before everyone was wired.
    pub(super) fn lose(&mut self, rank: u32) {
        let process =
            self.entries.get(&rank).map_or("unknown process", |e| e.check_in.process.as_str());
        let message = format!("rank {rank} ({process}) went away during initialisation");
        self.fail(Failure::new(ErrorKind::PeerLost, Some(rank), message));
    }

    /// Nobody listens any more where this rank did as long as it lived.
    pub(super) fn refused(&mut self, rank: u32) {
        let message = format!(
            "rank {rank} is gone, or has destroyed the communicator: nobody listens where it did"
        );
        self.fail(Failure::new(ErrorKind::PeerLost, Some(rank), message));
    }

    /// A connection ended that had proved to be this rank's, and had not checked in.
    pub(super) fn note_went_away(&mut self, rank: u32, now: Instant) {
        let has_a_part = self.members.as_ref().is_none_or(|members| members.ranks.contains(&rank));
        if has_a_part && !self.entries.contains_key(&rank) {
            self.went_away.entry(rank).or_insert(now);
        }
    }

    /// A process spoke another wire version. Anyone can, so this fails nothing by itself; it is
    /// said when ranks turn out to be missing.
    pub(super) fn note_version(&mut self, theirs: u32, peer: &str) {
        self.stranger_version = Some((theirs, peer.to_owned()));
    }

    /// Fails the job when it is too late for those who are missing. `seen` tells what else is known of
    /// one of them.
    pub(super) fn expire(
        &mut self,
        now: Instant,
        wire_version: u32,
        seen: impl Fn(u32) -> Option<String>,
    ) {
        if let Some(rank) = self.away_too_long(now) {
            let message = format!("rank {rank} went away before it had checked in");
            self.fail(Failure::new(ErrorKind::PeerLost, Some(rank), message));
            return;
        }
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        let missing = self.missing();
        let mut message = match &self.members {
            Some(members) => format!("{}: missing ranks {}", members.call, missing.text),
            None => format!("missing ranks {}", missing.text),
        };
        if let Some(seen) = seen(missing.first) {
            let _ = write!(message, " ({seen})");
        }
        let mut kind = ErrorKind::Rendezvous;
        if let Some((theirs, peer)) = &self.stranger_version {
            kind = ErrorKind::VersionMismatch;
            let _ = write!(
                message,
                "; {peer} spoke wire version {theirs}, this job speaks {wire_version}"
            );
        }
        let culprit = (missing.count == 1).then_some(missing.first);
        self.fail(Failure::new(kind, culprit, message));
    }

    fn away_too_long(&self, now: Instant) -> Option<u32> {
        let is_late = |since: Instant| now >= since + RETURN_LIMIT;
        self.went_away.iter().find(|(_, since)| is_late(**since)).map(|(rank, _)| *rank)
    }

    fn missing(&self) -> MissingRanks {
        let is_there = |rank| self.entries.contains_key(&rank);
        if let Some(members) = &self.members {
            let mut ranks = members.ranks.to_vec();
            ranks.sort_unstable();
            return missing_among(ranks, is_there);
        }
        let world_size =
            self.entries.first_key_value().map_or(0, |(_, entry)| entry.check_in.world_size);
        missing_ranks(world_size, is_there)
    }

    /// Whether all members of a new job have come.
    fn is_complete(&self) -> bool {
        self.members.as_ref().is_some_and(|members| self.entries.len() == members.ranks.len())
    }

    pub(super) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// When [`expire`](Self::expire) is due.
    pub(super) fn next(&self) -> Option<Instant> {
        let away = self.went_away.values().min().map(|since| *since + RETURN_LIMIT);
        [self.deadline, away].into_iter().flatten().min()
    }

    pub(super) fn entries(&self) -> &BTreeMap<u32, Entry> {
        &self.entries
    }
}

/// The ranks that are not there.
pub(super) struct MissingRanks {
    pub(super) count: usize,
    pub(super) first: u32,
    /// `[1, 5]`, cut where it would be long.
    pub(super) text: String,
}

/// Which of `world_size` ranks are not there.
pub(super) fn missing_ranks(world_size: u32, is_there: impl Fn(u32) -> bool) -> MissingRanks {
    missing_among(0..world_size, is_there)
}

fn missing_among(
    ranks: impl IntoIterator<Item = u32>,
    is_there: impl Fn(u32) -> bool,
) -> MissingRanks {
    let mut named = Vec::new();
    let mut count = 0;
    for rank in ranks.into_iter().filter(|rank| !is_there(*rank)) {
        count += 1;
        if named.len() < NAMED_RANKS {
            named.push(rank);
        }
    }
    let mut text = named.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if count > named.len() {
        let _ = write!(text, ", and {} more", count - named.len());
    }
    MissingRanks { count, first: named.first().copied().unwrap_or(0), text: format!("[{text}]") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_in(rank: u32, world_size: u32) -> CheckIn {
        CheckIn {
            rank,
            world_size,
            instance: u64::from(rank),
            protocol_version: 1,
            software: "iccl test".into(),
            process: format!("pid {}", 100 + rank),
            patience_milliseconds: 3000,
            listener: None,
            call: String::new(),
            left_out: Vec::new(),
        }
    }

    fn failure_of(check_ins: &[CheckIn]) -> Failure {
        let mut roster = Roster::default();
        let now = Instant::now();
        let last = check_ins
            .iter()
            .enumerate()
            .map(|(index, c)| roster.arrive(index as u64, c.clone(), now))
            .last();
        assert_eq!(last, Some(Arrival::Failed));
        // Whoever comes later is told the same, for as long as those who came would have waited.
        assert_eq!(roster.deadline(), Some(now + Duration::from_secs(3)));
        assert_eq!(roster.arrive(99, check_in(0, 1), now), Arrival::Failed);
        roster.failure().unwrap().clone()
    }

    #[test]
    fn complete_when_everyone_is_there_in_any_order() {
        let mut roster = Roster::default();
        let now = Instant::now();
        assert_eq!(roster.arrive(0, check_in(2, 3), now), Arrival::Waiting);
        assert_eq!(roster.arrive(1, check_in(0, 3), now), Arrival::Waiting);
        assert_eq!(roster.arrive(2, check_in(0, 3), now), Arrival::Replaced(1));
        assert_eq!(roster.arrive(3, check_in(1, 3), now), Arrival::Complete);
        assert_eq!(roster.failure(), None);
    }

    #[test]
    fn b039_disagreements_name_both_sides() {
        let mut twice = check_in(1, 3);
        twice.instance = 77;
        twice.process = "pid 7".into();
        let failure = failure_of(&[check_in(1, 3), twice]);
        assert_eq!(failure.message, "rank 1 checked in twice: as pid 101 and as pid 7");
        assert_eq!((failure.kind, failure.rank), (ErrorKind::Rendezvous, Some(1)));

        let failure = failure_of(&[check_in(0, 3), check_in(1, 2)]);
        assert_eq!(
            failure.message,
            "ranks disagree on the world size: rank 0 (pid 100) says 3, rank 1 (pid 101) says 2"
        );

        let failure = failure_of(&[check_in(0, 2), check_in(2, 2)]);
        assert_eq!(failure.message, "rank 2 (pid 102) is not below the world size 2");
    }

    #[test]
    fn protocol_versions_must_agree() {
        let mut newer = check_in(1, 2);
        newer.protocol_version = 2;
        let failure = failure_of(&[check_in(0, 2), newer]);
        assert_eq!(failure.kind, ErrorKind::VersionMismatch);
        assert!(failure.message.contains("rank 0 has 1"), "{}", failure.message);
        assert!(failure.message.contains("rank 1 has 2"), "{}", failure.message);
    }

    #[test]
    fn b038_missing_ranks_are_named_at_the_earliest_deadline() {
        let mut roster = Roster::default();
        let now = Instant::now();
        roster.arrive(0, check_in(0, 3), now);
        let mut hasty = check_in(2, 3);
        hasty.patience_milliseconds = 500;
        roster.arrive(1, hasty, now);
        roster.expire(now + Duration::from_millis(499), 1, |_| None);
        assert_eq!(roster.failure(), None);
        roster.expire(now + Duration::from_millis(500), 1, |_| None);
        let failure = roster.failure().unwrap();
        assert_eq!((failure.message.as_str(), failure.rank), ("missing ranks [1]", Some(1)));
    }

    #[test]
    fn b061_a_stranger_with_another_version_is_mentioned_when_ranks_are_missing() {
        let mut roster = Roster::default();
        let now = Instant::now();
        roster.arrive(0, check_in(0, 2), now);
        roster.note_version(9, "10.0.0.9:1");
        assert_eq!(roster.failure(), None, "a stranger cannot end the job");
        roster.expire(now + Duration::from_secs(3), 1, |_| None);
        let failure = roster.failure().unwrap();
        assert_eq!(failure.kind, ErrorKind::VersionMismatch);
        assert_eq!(
            failure.message,
            "missing ranks [1]; 10.0.0.9:1 spoke wire version 9, this job speaks 1"
        );
    }

    #[test]
    fn a_rank_that_goes_away_before_its_check_in_is_named_unless_it_comes_again() {
        let mut roster = Roster::default();
        let now = Instant::now();
        roster.arrive(0, check_in(0, 3), now);
        roster.note_went_away(1, now);
        roster.note_went_away(2, now);
        roster.arrive(1, check_in(1, 3), now);
        assert_eq!(roster.next(), Some(now + RETURN_LIMIT));
        roster.expire(now, 1, |_| None);
        assert_eq!(roster.failure(), None);
        roster.expire(now + RETURN_LIMIT, 1, |_| None);
        let failure = roster.failure().unwrap();
        assert_eq!((failure.kind, failure.rank), (ErrorKind::PeerLost, Some(2)));
        assert_eq!(failure.message, "rank 2 went away before it had checked in");
    }

    fn survivors() -> Roster {
        let call = "shrink without [1]".into();
        Roster::new(Some(Members { ranks: Arc::new([0, 2, 5]), call, left_out: vec![1] }))
    }

    fn call(rank: u32, call: &str) -> CheckIn {
        CheckIn { call: call.into(), ..check_in(rank, 3) }
    }

    #[test]
    fn members_are_complete_when_all_have_come_whatever_their_numbers() {
        let mut roster = survivors();
        let now = Instant::now();
        for rank in [5, 0] {
            let arrival = roster.arrive(0, call(rank, "shrink without [1]"), now);
            assert_eq!(arrival, Arrival::Waiting);
        }
        // Whoever is left out hears it, and disturbs nobody.
        let arrival = roster.arrive(0, call(1, "shrink without [2]"), now);
        let Arrival::Outsider(failure) = arrival else { panic!("{arrival:?}") };
        assert_eq!(
            failure.message,
            "rank 1 has no part in it: rank 0 calls shrink without [1], rank 1 calls shrink \
             without [2]"
        );
        let arrival = roster.arrive(0, call(2, "shrink without [1]"), now);
        assert_eq!(arrival, Arrival::Complete);
    }

    #[test]
    fn members_that_call_different_things_are_told_of_both() {
        let mut roster = survivors();
        let now = Instant::now();
        assert_eq!(roster.arrive(0, call(0, "shrink without [1]"), now), Arrival::Waiting);
        let other = CheckIn { left_out: vec![1, 2], ..call(5, "shrink without [1, 2]") };
        assert_eq!(roster.arrive(1, other, now), Arrival::Failed);
        let failure = roster.failure().unwrap();
        assert_eq!(failure.left_out, [1, 2], "what either leaves out");
        assert_eq!((failure.kind, failure.rank), (ErrorKind::Mismatch, Some(5)));
        assert_eq!(
            failure.message,
            "ranks call different things: rank 0 calls shrink without [1], rank 5 (pid 105) calls \
             shrink without [1, 2]"
        );
        // Those who had a part in it come for the next attempt; whoever is late for this one is told,
        // over another connection too.
        let again = |rank, instance| CheckIn { instance, ..call(rank, "shrink without [1]") };
        assert_eq!(roster.arrive(2, again(5, 1), now), Arrival::Early);
        assert_eq!(roster.arrive(3, again(0, 2), now), Arrival::Early);
        assert_eq!(roster.arrive(4, again(2, 3), now), Arrival::Failed);
        assert_eq!(roster.arrive(5, again(2, 3), now), Arrival::Failed);
        assert_eq!(roster.arrive(6, again(2, 4), now), Arrival::Early);
    }

    #[test]
    fn a_member_that_has_given_up_comes_for_the_next_attempt() {
        let mut roster = survivors();
        let now = Instant::now();
        roster.arrive(0, call(0, "shrink without [1]"), now);
        roster.arrive(1, call(5, "shrink without [1]"), now);
        // It knows of its own failure without being told.
        roster.fail(Failure::new(ErrorKind::Aborted, Some(5), "rank 5 gave up".to_owned()));
        let again = CheckIn { instance: 77, ..call(5, "shrink without [1]") };
        assert_eq!(roster.arrive(2, again, now), Arrival::Early);
    }

    #[test]
    fn who_was_left_out_hears_so_when_all_members_are_there_too() {
        let mut roster = survivors();
        let now = Instant::now();
        roster.arrive(0, call(0, "shrink without [1]"), now);
        roster.arrive(1, call(5, "shrink without [1]"), now);
        assert_eq!(roster.arrive(2, call(2, "shrink without [1]"), now), Arrival::Complete);
        let left_out = roster.arrive(3, call(1, "shrink without []"), now);
        assert!(matches!(left_out, Arrival::Outsider(_)), "{left_out:?}");
        let next = CheckIn { instance: 78, ..call(2, "shrink without [0]") };
        assert_eq!(roster.arrive(4, next, now), Arrival::Early);
        assert!(roster.failure().is_none(), "nobody is disturbed");
    }

    #[test]
    fn members_that_are_missing_are_named() {
        let mut roster = survivors();
        let now = Instant::now();
        roster.arrive(0, call(0, "shrink without [1]"), now);
        roster.expire(now + Duration::from_secs(3), 1, |rank| Some(format!("{rank} is silent")));
        let failure = roster.failure().unwrap();
        assert_eq!(failure.message, "shrink without [1]: missing ranks [2, 5] (2 is silent)");
        let mut roster = survivors();
        roster.refused(5);
        assert_eq!(roster.failure().unwrap().rank, Some(5));
    }

    #[test]
    fn long_lists_are_cut() {
        let missing = missing_ranks(1000, |rank| rank == 3);
        assert_eq!((missing.count, missing.first), (999, 0));
        assert!(missing.text.ends_with("15, 16, and 983 more]"), "{}", missing.text);
    }
}
