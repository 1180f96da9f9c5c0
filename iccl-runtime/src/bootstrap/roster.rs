//! Who has come, and what that means for the job. Without sockets and clocks: the root tells it
//! what happened, it tells the root what to answer.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use super::message::{CheckIn, Failure};
use crate::ErrorKind;

/// The connection that a check-in came over.
pub(super) type ConnectionId = u64;

/// How many ranks a message names before it only counts them.
const NAMED_RANKS: usize = 16;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) connection: ConnectionId,
    pub(super) check_in: CheckIn,
}

/// The list of those who have come.
#[derive(Debug, Default)]
pub(super) struct Roster {
    entries: BTreeMap<u32, Entry>,
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
}

impl Roster {
    pub(super) fn arrive(
        &mut self,
        connection: ConnectionId,
        check_in: CheckIn,
        now: Instant,
    ) -> Arrival {
        if self.failure.is_some() {
            return Arrival::Failed;
        }
        let patience = Duration::from_millis(u64::from(check_in.patience_milliseconds));
        let deadline = now + patience;
        self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
        if let Some(failure) = self.disagreement(&check_in) {
            self.failure = Some(failure);
            return Arrival::Failed;
        }
        let world_size = check_in.world_size;
        let entry = Entry { connection, check_in };
        if let Some(old) = self.entries.insert(entry.check_in.rank, entry) {
            return Arrival::Replaced(old.connection);
        }
        if self.entries.len() == world_size as usize { Arrival::Complete } else { Arrival::Waiting }
    }

    fn disagreement(&self, new: &CheckIn) -> Option<Failure> {
        let rank = new.rank;
        let fail = |kind, message| Some(Failure::new(kind, Some(rank), message));
        if rank >= new.world_size {
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

    /// A process spoke another wire version. Anyone can, so this fails nothing by itself; it is
    /// said when ranks turn out to be missing.
    pub(super) fn note_version(&mut self, theirs: u32, peer: &str) {
        self.stranger_version = Some((theirs, peer.to_owned()));
    }

    /// Fails the job when it is too late for those who are missing.
    pub(super) fn expire(&mut self, now: Instant, wire_version: u32) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        let missing = self.missing();
        let mut message = format!("missing ranks {}", missing.text);
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

    fn missing(&self) -> MissingRanks {
        let world_size =
            self.entries.first_key_value().map_or(0, |(_, entry)| entry.check_in.world_size);
        missing_ranks(world_size, |rank| self.entries.contains_key(&rank))
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
    let mut named = Vec::new();
    let mut count = 0;
    for rank in (0..world_size).filter(|rank| !is_there(*rank)) {
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
        roster.expire(now + Duration::from_millis(499), 1);
        assert_eq!(roster.failure(), None);
        roster.expire(now + Duration::from_millis(500), 1);
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
        roster.expire(now + Duration::from_secs(3), 1);
        let failure = roster.failure().unwrap();
        assert_eq!(failure.kind, ErrorKind::VersionMismatch);
        assert_eq!(
            failure.message,
            "missing ranks [1]; 10.0.0.9:1 spoke wire version 9, this job speaks 1"
        );
    }

    #[test]
    fn long_lists_are_cut() {
        let missing = missing_ranks(1000, |rank| rank == 3);
        assert_eq!((missing.count, missing.first), (999, 0));
        assert!(missing.text.ends_with("15, 16, and 983 more]"), "{}", missing.text);
    }
}
