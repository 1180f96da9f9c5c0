//! The flight recorder: what a rank's last operations were and how far they came, written down when the
//! communicator fails.
//!
//! Recording is a few stores by whoever drives the engine; nothing is formatted until the file is written,
//! and nothing allocated unless many operations are under way. `iccl diagnose` reads the files of all ranks.

use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// How many operations are written.
pub const RECORDED_OPERATIONS: usize = 256;

/// How many that are over stay before the first that is not, so that ranks of which one is ahead have some
/// in common.
const HISTORY: usize = RECORDED_OPERATIONS / 2;

/// No more are remembered, however many are under way.
const MOST_OPERATIONS: usize = 1 << 20;

/// The version of the file's keys: grows when one is removed or changes its meaning.
pub const FLIGHT_SCHEMA: u32 = 1;

/// The last operations of one communicator on one rank, `T` being what is known of each. One that is not over
/// is what is looked for, and stays however many are called behind it.
#[derive(Debug)]
pub struct Recorder<T> {
    entries: VecDeque<Entry<T>>,
    /// The number of the first entry.
    first: u64,
}

#[derive(Debug)]
struct Entry<T> {
    what: T,
    state: FlightState,
    called: SystemTime,
    started: Option<SystemTime>,
    ended: Option<SystemTime>,
}

/// How far an operation came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlightState {
    /// It was called; its turn, or its stream, has not come.
    Waiting,
    /// It has begun.
    Running,
    /// It ended well.
    Done,
}

/// The file of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlightRecord {
    /// [`FLIGHT_SCHEMA`].
    pub schema: u32,
    /// The communicator's number, in hexadecimal; the same on all its ranks.
    pub communicator: String,
    /// The rank that wrote it.
    pub rank: u32,
    /// How many ranks there are.
    pub ranks: u32,
    /// The host's name.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// When it was written, in microseconds since 1970.
    pub written_us: u64,
    /// The error that ended the communicator.
    pub error: String,
    /// The last operations, oldest first; if many are under way, the first of these and what came before.
    pub operations: Vec<FlightOperation>,
    /// How many were called after them.
    pub later: u64,
}

/// One operation of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlightOperation {
    /// Its number: among all collectives, or among the messages to (or from) one peer.
    pub sequence: u64,
    /// What was asked.
    pub collective: String,
    /// The type of the elements.
    pub dtype: String,
    /// The operation; `sum` where nothing is reduced.
    pub op: String,
    /// The root, or the peer of a message.
    pub root: u32,
    /// The number of elements, as in the call.
    pub count: u64,
    /// Bytes of the send and receive buffers that it uses.
    pub send_bytes: u64,
    /// See `send_bytes`.
    pub recv_bytes: u64,
    /// The algorithm.
    pub algorithm: String,
    /// How far it came.
    pub state: FlightState,
    /// When it was called, begun and over, in microseconds since 1970.
    pub called_us: u64,
    /// See `called_us`.
    pub started_us: Option<u64>,
    /// See `called_us`.
    pub ended_us: Option<u64>,
    /// The ranks that it exchanges with, and how much.
    pub links: Vec<FlightLink>,
    /// What it was waiting for, in words; null unless it was running.
    pub waits_for: Option<String>,
}

/// What an operation exchanges with one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlightLink {
    /// The rank.
    pub peer: u32,
    /// Messages that were posted to and from it, control messages included.
    pub posted: u64,
    /// And all that there are.
    pub messages: u64,
    /// Bytes that go to it in all.
    pub sent_bytes: u64,
    /// Bytes that come from it in all.
    pub received_bytes: u64,
}

impl<T> Default for Recorder<T> {
    fn default() -> Self {
        Self { entries: VecDeque::with_capacity(RECORDED_OPERATIONS), first: 0 }
    }
}

impl<T> Recorder<T> {
    /// An operation was called. Gives its number here.
    pub fn called(&mut self, what: T) -> u64 {
        self.forget(RECORDED_OPERATIONS - 1);
        let called = SystemTime::now();
        let (state, started, ended) = (FlightState::Waiting, None, None);
        self.entries.push_back(Entry { what, state, called, started, ended });
        self.first + self.entries.len() as u64 - 1
    }

    /// An operation has begun.
    pub fn started(&mut self, number: u64) {
        if let Some(entry) = self.entry(number) {
            entry.state = FlightState::Running;
            entry.started = Some(SystemTime::now());
        }
    }

    /// An operation is over, and went well.
    pub fn done(&mut self, number: u64) {
        if let Some(entry) = self.entry(number) {
            entry.state = FlightState::Done;
            entry.ended = Some(SystemTime::now());
        }
        self.forget(RECORDED_OPERATIONS);
    }

    /// Forgets the oldest that are over as long as there are more than `wanted`.
    fn forget(&mut self, wanted: usize) {
        let is_over =
            |at: usize| self.entries.get(at).map(|one| one.state) == Some(FlightState::Done);
        let count = self.entries.len();
        let excess = count.saturating_sub(wanted);
        let over = (0..excess).take_while(|at| is_over(*at) && is_over(at + HISTORY)).count();
        let forgotten = over.max(count.saturating_sub(MOST_OPERATIONS));
        self.entries.drain(..forgotten);
        self.first += forgotten as u64;
    }

    /// The operations as they are written, oldest first; `describe` tells what is not known here, given the
    /// operation's number and how far it came.
    pub fn operations(
        &self,
        describe: impl Fn(u64, FlightState, &T) -> FlightOperation,
    ) -> Vec<FlightOperation> {
        let numbered = (self.first..).zip(&self.entries);
        numbered
            .take(RECORDED_OPERATIONS)
            .map(|(number, entry)| FlightOperation {
                state: entry.state,
                called_us: microseconds(entry.called),
                started_us: entry.started.map(microseconds),
                ended_us: entry.ended.map(microseconds),
                ..describe(number, entry.state, &entry.what)
            })
            .collect()
    }

    /// How many were called after those that are written.
    pub fn later(&self) -> u64 {
        self.entries.len().saturating_sub(RECORDED_OPERATIONS) as u64
    }

    /// `None` for one that is forgotten.
    fn entry(&mut self, number: u64) -> Option<&mut Entry<T>> {
        let at = number.checked_sub(self.first)?;
        self.entries.get_mut(usize::try_from(at).ok()?)
    }
}

impl FlightRecord {
    /// Writes the file of this rank into a folder, which is made if it is not there. Gives its path.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&self, folder: &Path) -> std::io::Result<PathBuf> {
        std::fs::create_dir_all(folder)?;
        let name = format!("iccl-{}-rank-{}.json", self.communicator, self.rank);
        let path = folder.join(&name);
        // Whoever reads it finds it whole.
        let unfinished = folder.join(format!(".{name}.{}", self.pid));
        let mut file = std::fs::File::create(&unfinished)?;
        serde_json::to_writer_pretty(&mut file, self)?;
        file.write_all(b"\n")?;
        std::fs::rename(&unfinished, &path)?;
        Ok(path)
    }
}

/// Since 1970; 0 for a clock that stands before that.
pub fn microseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(sequence: u64) -> FlightOperation {
        FlightOperation {
            sequence,
            collective: "all_reduce".into(),
            dtype: "f32".into(),
            op: "sum".into(),
            root: 0,
            count: 8,
            send_bytes: 32,
            recv_bytes: 32,
            algorithm: "direct".into(),
            state: FlightState::Waiting,
            called_us: 0,
            started_us: None,
            ended_us: None,
            links: Vec::new(),
            waits_for: None,
        }
    }

    #[test]
    fn the_last_operations_are_kept_and_older_ones_are_forgotten() {
        let mut recorder = Recorder::default();
        let numbers: Vec<u64> = (0..RECORDED_OPERATIONS as u64 + 10)
            .map(|one| {
                let number = recorder.called(one);
                recorder.started(number);
                recorder.done(number);
                number
            })
            .collect();
        // Forgotten ones are nobody's.
        recorder.started(numbers[3]);
        let last = recorder.called(numbers.len() as u64);
        recorder.started(last);
        let all = recorder.operations(|number, _, sequence| {
            assert_eq!(number, *sequence);
            plain(*sequence)
        });
        assert_eq!((all.len(), all[0].sequence, recorder.later()), (RECORDED_OPERATIONS, 11, 0));
        let states: Vec<FlightState> = all.iter().map(|one| one.state).collect();
        assert_eq!(states.iter().filter(|one| **one == FlightState::Done).count(), all.len() - 1);
        assert_eq!(states.last(), Some(&FlightState::Running));
        assert!(all[10].started_us <= all[10].ended_us && all[10].ended_us.is_some());
    }

    #[test]
    fn what_is_not_over_is_kept_however_many_are_called_behind_it() {
        let mut recorder = Recorder::default();
        let called = |recorder: &mut Recorder<u64>, count: u64| -> Vec<u64> {
            (0..count).map(|one| recorder.called(one)).collect()
        };
        for number in called(&mut recorder, 1000) {
            recorder.done(number);
        }
        let stuck = recorder.called(0);
        recorder.started(stuck);
        let behind = called(&mut recorder, 1000);
        let written = |recorder: &Recorder<u64>| {
            let all = recorder.operations(|number, _, _| plain(number));
            let first =
                all.iter().find(|one| one.state != FlightState::Done).map(|one| one.sequence);
            (all[0].sequence, all.len(), first, recorder.later())
        };
        let history = HISTORY as u64;
        let later = 1001 + history - RECORDED_OPERATIONS as u64;
        let expected = (stuck - history, RECORDED_OPERATIONS, Some(stuck), later);
        assert_eq!(written(&recorder), expected);
        // Once it is over, they are forgotten as they end.
        recorder.done(stuck);
        behind.iter().for_each(|number| recorder.done(*number));
        assert_eq!((recorder.entries.len(), recorder.later()), (RECORDED_OPERATIONS, 0));
        // There is an end.
        recorder.called(0);
        called(&mut recorder, MOST_OPERATIONS as u64 + 10);
        assert!(recorder.entries.len() <= MOST_OPERATIONS + 1);
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let record = FlightRecord {
            schema: FLIGHT_SCHEMA,
            communicator: "00ff".into(),
            rank: 3,
            ranks: 4,
            host: "a".into(),
            pid: 1,
            written_us: microseconds(SystemTime::now()),
            error: "Timeout: too late".into(),
            operations: vec![plain(7)],
            later: 0,
        };
        let path = record.write(&folder.path().join("new")).expect("written");
        assert_eq!(path.file_name().and_then(|name| name.to_str()), Some("iccl-00ff-rank-3.json"));
        let text = std::fs::read_to_string(&path).expect("read");
        assert!(text.contains("\"state\": \"waiting\""), "{text}");
        assert_eq!(serde_json::from_str::<FlightRecord>(&text).expect("JSON"), record);
    }
}
