//! What the engine tells the flight recorder, and the file that is written when a communicator fails.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, SystemTime};

use super::operation::Operation;
use super::program::Program;
use super::run::Run;
use crate::observe::{
    FLIGHT_SCHEMA, FlightLink, FlightOperation, FlightRecord, FlightState, Recorder, microseconds,
};
use crate::schedule::StepKind;
use crate::{Error, ErrorKind};

/// How long the folder may take: who fails does not wait for a file system that does not answer.
const LONGEST_WRITE: Duration = Duration::from_secs(2);

/// Where the recorder writes, and who it is.
#[derive(Clone, Debug)]
pub struct FlightFolder {
    /// The folder.
    pub folder: PathBuf,
    /// The host's name.
    pub host: String,
}

/// What is kept of an operation: enough to tell everything else when it is asked for.
pub(super) struct Flown {
    program: Arc<Program>,
    sequence: u64,
}

/// The recorder of an engine whose operations are to be written down.
pub(super) struct Flights {
    recorder: Recorder<Flown>,
    folder: FlightFolder,
    communicator: u64,
    rank: u32,
    ranks: u32,
    /// Written once: the first failure is what ended the communicator.
    is_written: bool,
}

impl Flights {
    pub(super) fn new(folder: FlightFolder, communicator: u64, rank: u32, ranks: u32) -> Self {
        let recorder = Recorder::default();
        Self { recorder, folder, communicator, rank, ranks, is_written: false }
    }

    /// An operation was called.
    pub(super) fn called(&mut self, operation: &Operation) {
        let sequence = operation.fingerprint.sequence;
        let program = Arc::clone(&operation.program);
        operation.set_flight(self.recorder.called(Flown { program, sequence }));
    }

    pub(super) fn started(&mut self, operation: &Operation) {
        self.recorder.started(operation.flight());
    }

    pub(super) fn done(&mut self, operation: &Operation) {
        self.recorder.done(operation.flight());
    }

    /// Writes the file, unless the application ended the communicator itself. `runs` are the operations that
    /// have begun.
    pub(super) fn write(&mut self, error: &Error, runs: &[Run], last_seen: &[Option<u64>]) {
        if self.is_written || error.kind() == ErrorKind::Aborted {
            return;
        }
        self.is_written = true;
        let operations = self.recorder.operations(|number, state, flown| {
            let run = runs.iter().find(|run| run.operation.flight() == number);
            describe(flown, state, run, last_seen)
        });
        let record = FlightRecord {
            schema: FLIGHT_SCHEMA,
            communicator: format!("{:016x}", self.communicator),
            rank: self.rank,
            ranks: self.ranks,
            host: self.folder.host.clone(),
            pid: std::process::id(),
            written_us: microseconds(SystemTime::now()),
            error: error.to_string(),
            operations,
            later: self.recorder.later(),
        };
        match write_in_time(record, self.folder.folder.clone()) {
            Ok(path) => tracing::warn!(
                rank = self.rank,
                "the last operations are in {}; `iccl diagnose {}` compares all ranks'",
                path.display(),
                self.folder.folder.display()
            ),
            Err(error) => tracing::warn!(
                rank = self.rank,
                %error,
                "the last operations cannot be written to {}",
                self.folder.folder.display()
            ),
        }
    }
}

/// Writes the file on an expendable thread.
fn write_in_time(record: FlightRecord, folder: PathBuf) -> std::io::Result<PathBuf> {
    let (sender, written) = sync_channel(1);
    std::thread::Builder::new().name("iccl-flight".into()).spawn(move || {
        // Perhaps nobody waits any more.
        let _ = sender.send(record.write(&folder));
    })?;
    let late = |_| Err(std::io::ErrorKind::TimedOut.into());
    written.recv_timeout(LONGEST_WRITE).unwrap_or_else(late)
}

/// All but what the recorder itself knows.
fn describe(
    flown: &Flown,
    state: FlightState,
    run: Option<&Run>,
    last_seen: &[Option<u64>],
) -> FlightOperation {
    let schedule = flown.program.schedule();
    let mut links: Vec<FlightLink> = Vec::new();
    for (index, queue) in flown.program.queues.iter().enumerate() {
        let at = links.iter().position(|link| link.peer == queue.peer).unwrap_or_else(|| {
            links.push(FlightLink {
                peer: queue.peer,
                posted: 0,
                messages: 0,
                sent_bytes: 0,
                received_bytes: 0,
            });
            links.len() - 1
        });
        let link = &mut links[at];
        link.messages += queue.steps.len() as u64;
        link.posted += match (state, run) {
            (FlightState::Done, _) => queue.steps.len() as u64,
            (_, run) => run.map_or(0, |run| u64::from(run.posted[index])),
        };
        for step in &queue.steps {
            match &schedule.steps[*step as usize].kind {
                StepKind::Send { source, .. } => link.sent_bytes += source.bytes,
                StepKind::Recv { destination, .. } => link.received_bytes += destination.bytes,
                _ => {}
            }
        }
    }
    links.sort_by_key(|link| link.peer);
    FlightOperation {
        sequence: flown.sequence,
        collective: schedule.collective.name().to_owned(),
        dtype: schedule.dtype.name().to_owned(),
        op: schedule.op.name().to_owned(),
        root: schedule.root,
        count: schedule.count,
        send_bytes: schedule.send_bytes,
        recv_bytes: schedule.recv_bytes,
        algorithm: schedule.algorithm.name().to_owned(),
        state,
        // The recorder knows when.
        called_us: 0,
        started_us: None,
        ended_us: None,
        links,
        waits_for: run.map(|run| run.waits_for(last_seen).1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_does_not_answer_holds_up_nobody_for_long() {
        let scratch = tempfile::tempdir().expect("a folder");
        // Who opens this waits for a reader.
        let blocked = format!(".iccl-{:016x}-rank-0.json.{}", 7, std::process::id());
        let made = std::process::Command::new("mkfifo").arg(scratch.path().join(blocked)).status();
        assert!(made.expect("mkfifo").success());
        let folder = FlightFolder { folder: scratch.path().to_owned(), host: "a".into() };
        let (sender, written) = sync_channel(1);
        std::thread::spawn(move || {
            let error = Error::new(ErrorKind::Timeout, "too late");
            Flights::new(folder, 7, 0, 1).write(&error, &[], &[]);
            sender.send(()).expect("the test waits");
        });
        written.recv_timeout(10 * LONGEST_WRITE).expect("it gives up");
    }
}
