//! The ranks of one job on this machine: started together, ended together.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use iccl_runtime::topology::RankSet;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals as Caught;

use super::output::{Kept, Sink, forward};
use super::rank;
use crate::failure::{Failure, Result};

/// Signals that are handed on to the ranks.
const FORWARDED: [i32; 7] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT];

/// How long output may still come when all ranks are gone: something that they started may hold
/// their pipes for ever.
const LAST_OUTPUT: Duration = Duration::from_millis(500);

/// What is shown of the ranks' output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// Every line, the rank in front.
    Prefixed,
    /// Every line as it is.
    Plain,
    /// Rank 0 has this process's own output; that of the others is shown only if the job fails.
    RankZero,
}

/// A command as several ranks on this machine.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) ranks: u32,
    /// The place of each rank, where the machine is to play several; else empty.
    pub(crate) places: Vec<Place>,
    pub(crate) command: Vec<OsString>,
    pub(crate) environment: Vec<(String, OsString)>,
    /// How long the others may go on when a rank has failed, and again after TERM.
    pub(crate) grace: Duration,
    pub(crate) show: Show,
}

/// What one rank has to itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Variables, over those of the job.
    pub(crate) environment: Vec<(String, OsString)>,
    /// The network namespace that it runs in.
    pub(crate) network: Option<PathBuf>,
}

impl Place {
    /// On the host of this id.
    pub(crate) fn on_host(id: String) -> Self {
        Self { environment: vec![("ICCL_HOST_ID".to_owned(), id.into())], network: None }
    }
}

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Status(i32),
    Signal(i32),
}

impl Ending {
    /// As a shell says it.
    fn status(self) -> u8 {
        match self {
            Self::Status(status) => status as u8,
            Self::Signal(signal) => 128_u8.wrapping_add(signal as u8),
        }
    }
}

/// The first rank that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Culprit {
    pub(crate) rank: u32,
    pub(crate) ending: Ending,
    /// How many others had to be ended for it.
    pub(crate) ended_others: usize,
}

/// How the job ended.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) culprit: Option<Culprit>,
    /// The first signal that asked this process to end.
    pub(crate) asked_to_end: Option<i32>,
}

impl Report {
    /// The status that this process ends with.
    pub(crate) fn status(&self) -> u8 {
        self.culprit.map_or(0, |culprit| culprit.ending.status())
    }
}

impl Job {
    /// Starts the ranks and waits until all are gone.
    ///
    /// Called on the main thread: the ranks die with the thread that started them.
    pub(crate) fn run(&self, signals: &Signals) -> Result<Report> {
        let mut ranks = Ranks::default();
        // An early return drops the ranks, which ends those that were started.
        for rank in 0..self.ranks {
            ranks.0.push(self.start(rank).map_err(|error| {
                Failure::new(format!("rank {rank} cannot be started: {error}"))
            })?);
        }
        let report = Supervision {
            ranks: &mut ranks.0,
            grace: self.grace,
            culprit: None,
            asked_to_end: None,
            step: Step::Running,
        }
        .watch(&signals.0);
        ranks.bury();
        if report.culprit.is_some() {
            ranks.show_kept();
        }
        Ok(report)
    }

    fn start(&self, rank: u32) -> io::Result<Rank> {
        let ranks = self.ranks.to_string();
        let number = rank.to_string();
        let place = self.places.get(rank as usize);
        let mut command = Command::new("/proc/self/exe");
        command.arg0("iccl").args([rank::NAME, &std::process::id().to_string()]);
        if let Some(network) = place.and_then(|place| place.network.as_ref()) {
            command.arg("--network").arg(network);
        }
        command
            .arg("--")
            .args(&self.command)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .envs([
                ("ICCL_RANK", &number),
                ("ICCL_WORLD_SIZE", &ranks),
                ("ICCL_LOCAL_RANK", &number),
                ("ICCL_LOCAL_WORLD_SIZE", &ranks),
                ("ICCL_JOB_ID", &job_id()),
            ])
            // A meeting point of another job that this one was started in.
            .env_remove("ICCL_UNIQUE_ID")
            .process_group(0);
        if let Some(place) = place {
            command.envs(place.environment.iter().map(|(name, value)| (name, value)));
        }
        // A terminal would stop a rank that reads from it, since its group is not the terminal's.
        let has_input = rank == 0 && !io::stdin().is_terminal();
        command.stdin(if has_input { Stdio::inherit() } else { Stdio::null() });
        let is_shown_as_is = self.show == Show::RankZero && rank == 0;
        if !is_shown_as_is {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child = command.spawn()?;
        let kept = Kept::default();
        let mut readers = Vec::new();
        let prefix = match self.show {
            // What is kept is shown with the ranks that said it.
            Show::Plain | Show::RankZero => String::new(),
            Show::Prefixed => format!("[{rank}] "),
        };
        let sink = |own: Sink| -> Sink {
            if self.show == Show::RankZero { Arc::new(Mutex::new(kept.clone())) } else { own }
        };
        if let Some(pipe) = child.stdout.take() {
            readers.push(forward(pipe, sink(stdout_sink()), prefix.clone())?);
        }
        if let Some(pipe) = child.stderr.take() {
            readers.push(forward(pipe, sink(stderr_sink()), prefix)?);
        }
        Ok(Rank { number: rank, child, ending: None, readers, kept })
    }
}

// Each write locks the stream for a whole piece of lines, so the mutex around it guards nothing more.
fn stdout_sink() -> Sink {
    Arc::new(Mutex::new(io::stdout()))
}

fn stderr_sink() -> Sink {
    Arc::new(Mutex::new(io::stderr()))
}

/// Tells this job from others of this user: the process that started it, and when.
fn job_id() -> String {
    use std::sync::OnceLock;
    use std::time::SystemTime;
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        format!("run-{}-{:x}", std::process::id(), now.as_nanos())
    })
    .clone()
}

/// The signals that come to this process, from when it began to listen. Where several jobs follow each
/// other, one that comes between two of them is handed on to the ranks of the next.
pub(crate) struct Signals(Receiver<i32>);

impl Signals {
    /// Hands every signal to the main thread from now on.
    pub(crate) fn listen() -> Result<Self> {
        let failed =
            |error: io::Error| Failure::new(format!("signals cannot be waited for: {error}"));
        let mut caught = Caught::new(FORWARDED.iter().chain(&[SIGCHLD])).map_err(failed)?;
        let (sender, receiver) = channel();
        let hear = move || {
            for signal in caught.forever() {
                if sender.send(signal).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new().name("iccl-signals".into()).spawn(hear).map_err(failed)?;
        Ok(Self(receiver))
    }
}

struct Rank {
    number: u32,
    child: Child,
    /// Set when it is over. The process stays unburied until the job ends, so that its number, which is
    /// that of its group, is not given to another.
    ending: Option<Ending>,
    readers: Vec<JoinHandle<()>>,
    kept: Kept,
}

impl Rank {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Signals the rank and what it started in its group.
    fn signal(&self, signal: Signal) {
        // Nobody there is what is wanted.
        let _ = kill_process_group(self.pid(), signal);
    }

    /// Looks whether it is over.
    fn look(&mut self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if self.ending.is_some() {
            return;
        }
        if let Ok(Some(status)) = waitid(WaitId::Pid(self.pid()), options) {
            self.ending = match (status.exit_status(), status.terminating_signal()) {
                (Some(status), _) => Some(Ending::Status(status)),
                (None, Some(signal)) => Some(Ending::Signal(signal)),
                (None, None) => None,
            };
        }
    }
}

/// The ranks that were started; dropping them ends them.
#[derive(Default)]
struct Ranks(Vec<Rank>);

impl Ranks {
    /// Ends what is left, and takes the last output.
    fn bury(&mut self) {
        for rank in &mut self.0 {
            rank.signal(Signal::KILL);
            let _ = rank.child.wait();
        }
        let give_up = Instant::now() + LAST_OUTPUT;
        for reader in self.0.iter_mut().flat_map(|rank| rank.readers.drain(..)) {
            while !reader.is_finished() && Instant::now() < give_up {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// What several ranks said alike, as of a setting that makes no sense, is shown once.
    fn show_kept(&self) {
        let mut said: Vec<(Vec<u32>, Vec<u8>)> = Vec::new();
        for rank in &self.0 {
            let words = rank.kept.take();
            match said.iter_mut().find(|(_, known)| *known == words) {
                Some((ranks, _)) => ranks.push(rank.number),
                None => said.push((vec![rank.number], words)),
            }
        }
        for (ranks, words) in said {
            let ranks: RankSet = ranks.into_iter().collect();
            let prefix = format!("[{ranks}] ");
            let lines = words.split_inclusive(|byte| *byte == b'\n');
            let text: Vec<u8> = lines.flat_map(|line| [prefix.as_bytes(), line].concat()).collect();
            let _ = io::stderr().write_all(&text);
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.bury();
    }
}

/// What is being done about the ranks.
#[derive(Clone, Copy)]
enum Step {
    Running,
    /// One has failed; the others may say what they saw until then.
    Grace(Instant),
    /// They were asked to end; until then.
    Terminated(Instant),
    Killed,
}

struct Supervision<'a> {
    ranks: &'a mut [Rank],
    grace: Duration,
    culprit: Option<Culprit>,
    asked_to_end: Option<i32>,
    step: Step,
}

impl Supervision<'_> {
    fn watch(mut self, signals: &Receiver<i32>) -> Report {
        loop {
            self.look();
            if self.ranks.iter().all(|rank| rank.ending.is_some()) {
                return Report { culprit: self.culprit, asked_to_end: self.asked_to_end };
            }
            let received = match self.step {
                Step::Running | Step::Killed => {
                    signals.recv().map_err(|_| RecvTimeoutError::Disconnected)
                }
                Step::Grace(until) | Step::Terminated(until) => {
                    signals.recv_timeout(until.saturating_duration_since(Instant::now()))
                }
            };
            match received {
                Ok(SIGCHLD) => {}
                Ok(signal) => self.hand_on(signal),
                // The thread that hears signals never ends; if it did, nobody could be waited for.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => self.next_step(),
            }
        }
    }

    /// Takes note of ranks that ended; the first that failed starts the end of the others.
    fn look(&mut self) {
        for rank in &mut *self.ranks {
            let was_over = rank.ending.is_some();
            rank.look();
            let Some(ending) = rank.ending.filter(|_| !was_over) else { continue };
            if ending != Ending::Status(0) && self.culprit.is_none() {
                self.culprit = Some(Culprit { rank: rank.number, ending, ended_others: 0 });
            }
        }
        if self.culprit.is_some() && matches!(self.step, Step::Running) {
            self.step = Step::Grace(Instant::now() + self.grace);
        }
    }

    fn hand_on(&mut self, signal: i32) {
        let asks_to_end = [SIGINT, SIGTERM, SIGHUP, SIGQUIT].contains(&signal);
        if asks_to_end && self.asked_to_end.is_some() {
            // Asked again: the ranks do not listen.
            self.step = Step::Terminated(Instant::now());
            return self.next_step();
        }
        if let Some(known) = Signal::from_named_raw(signal) {
            self.signal_all(known);
        }
        if asks_to_end {
            self.asked_to_end = Some(signal);
        }
    }

    fn next_step(&mut self) {
        match self.step {
            Step::Running | Step::Grace(_) => {
                let left = self.ranks.iter().filter(|rank| rank.ending.is_none()).count();
                if let Some(culprit) = &mut self.culprit {
                    culprit.ended_others = left;
                }
                self.signal_all(Signal::TERM);
                // A stopped process acts on nothing else.
                self.signal_all(Signal::CONT);
                self.step = Step::Terminated(Instant::now() + self.grace);
            }
            Step::Terminated(_) | Step::Killed => {
                self.signal_all(Signal::KILL);
                self.step = Step::Killed;
            }
        }
    }

    fn signal_all(&self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| rank.ending.is_none()) {
            rank.signal(signal);
        }
    }
}
