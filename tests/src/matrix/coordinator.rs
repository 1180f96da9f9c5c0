//! Starts the ranks of a block, gives them cells, and sums up what they say.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use iccl_runtime::schedule::Algorithm;

use super::cell::Cell;
use super::covering::Placed;
use super::declared;
use crate::ranks::Job;
use crate::sim_cards;

/// Small, so that a long vector takes many messages.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// Within this time a rank says something. Its operations have a deadline of their own.
const SILENCE: Duration = Duration::from_secs(180);

/// How the ranks are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// By shared memory.
    Shm,
    /// By TCP.
    Tcp,
    /// Two hosts, to which ranks belong in turn: shared memory inside, TCP between.
    Mixed,
}

impl Transport {
    /// Every way.
    pub const ALL: [Self; 3] = [Self::Shm, Self::Tcp, Self::Mixed];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Mixed => "mixed",
        }
    }

    /// The one with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Whether two ranks are joined by shared memory.
    pub fn is_shared(self, first: u32, second: u32) -> bool {
        match self {
            Self::Shm => true,
            Self::Tcp => false,
            Self::Mixed => first % 2 == second % 2,
        }
    }
}

/// What the ranks compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Device {
    /// Host memory.
    Host,
    /// Simulated cards of NVIDIA, one for each rank, whose library for collectives is not there.
    SimNvidia,
}

impl Device {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Host, Self::SimNvidia];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::SimNvidia => "sim-nvidia",
        }
    }

    /// The one with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// Who calls the cells of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ranks {
    /// How many.
    pub ranks: u32,
    /// How they are joined.
    pub transport: Transport,
    /// What they compute on.
    pub device: Device,
}

/// `4 mixed host`, as arguments of a command.
impl std::fmt::Display for Ranks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.ranks, self.transport.name(), self.device.name())
    }
}

/// What the ranks of a communicator are told.
pub fn job(of: Ranks, forced: Option<Algorithm>) -> Job {
    let Ranks { ranks, transport, device } = of;
    let mut job = Job::new(ranks)
        .with("engine.chunk_bytes", &CHUNK_BYTES.to_string())
        .with("engine.op_timeout", "150s");
    match transport {
        Transport::Shm | Transport::Tcp => job = job.with("transport.enabled", transport.name()),
        Transport::Mixed => {
            let hosts: Vec<_> =
                (0..ranks).map(|rank| ["left", "right"][rank as usize % 2]).collect();
            job = job.on_hosts(&hosts);
        }
    }
    if device == Device::SimNvidia {
        job = sim_cards::nvidia(job);
    }
    for collective in forced.map_or(&[][..], |one| one.facts().collectives) {
        if declared::choices(*collective) > 1 {
            let name = forced.map_or("", Algorithm::name);
            job = job.with(&format!("algorithm.{collective}"), name);
        }
    }
    job
}

/// The cells of one communicator.
#[derive(Clone, Debug)]
pub struct Column {
    /// The algorithm that is forced.
    pub forced: Option<Algorithm>,
    /// The operations, in the order in which all ranks call them.
    pub cells: Vec<Cell>,
}

/// What came of cells.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Cells that ran and were right in every byte on every rank.
    pub right: u64,
    /// Cells that had to be refused and were, by who declares it.
    pub refused: BTreeMap<String, u64>,
    /// What was wrong, with the command that repeats it.
    pub wrong: Vec<String>,
}

impl Summary {
    /// Adds what came of others.
    pub fn add(&mut self, other: Self) {
        self.right += other.right;
        for (reason, times) in other.refused {
            *self.refused.entry(reason).or_default() += times;
        }
        self.wrong.extend(other.wrong);
    }

    /// How many were refused.
    pub fn refusals(&self) -> u64 {
        self.refused.values().sum()
    }

    /// Prints what was refused, and what was wrong.
    pub fn print(&self) {
        for (reason, times) in &self.refused {
            println!("  refused {times:>7}: {reason}");
        }
        for wrong in self.wrong.iter().take(20) {
            println!("  WRONG {wrong}");
        }
        println!(
            "{} cells ran and were right, {} were refused as declared, {} were wrong",
            self.right,
            self.refusals(),
            self.wrong.len()
        );
    }
}

/// The ranks of one communicator after the other, as processes.
pub struct Block<'a> {
    /// The path of `iccl-test-matrix`.
    pub program: &'a str,
    /// Who calls.
    pub of: Ranks,
    /// Whether to print how far it is.
    pub talkative: bool,
}

/// A rank that is a process. Ended when dropped.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What one rank says of a column.
#[derive(Default, PartialEq, Eq)]
struct Said {
    right: u64,
    refused: BTreeMap<String, u64>,
    wrong: Vec<String>,
    ended: bool,
}

impl Block<'_> {
    /// Runs columns of cells.
    ///
    /// # Panics
    /// If processes can't be started.
    pub fn run(&self, columns: &[Column]) -> Summary {
        let meeting = Meeting::new();
        let mut processes: Vec<Process> =
            (0..self.of.ranks).map(|rank| self.start(rank, &meeting)).collect();
        let mut summary = Summary::default();
        for column in columns {
            let id = Job::new(self.of.ranks).unique_id().to_text();
            let algorithm = column.forced.map_or("auto", Algorithm::name);
            let mut text = format!("column {algorithm} {id}\n");
            for cell in &column.cells {
                text.push_str(&cell.to_string());
                text.push('\n');
            }
            text.push_str("go\n");
            for process in &mut processes {
                let input = process.input.as_mut().expect("open until the end");
                // A rank that is gone says nothing, which is noticed below.
                let _ = input.write_all(text.as_bytes()).and_then(|()| input.flush());
            }
            let said: Vec<Said> = (0..)
                .zip(&mut processes)
                .map(|(rank, one)| self.listen(rank, one, algorithm))
                .collect();
            let lost = said.iter().any(|one| !one.ended);
            summary.add(self.sum_up(algorithm, &said));
            if lost || !summary.wrong.is_empty() {
                return summary;
            }
        }
        for process in &mut processes {
            process.input = None;
            let ended = process.child.wait().expect("a rank's end");
            if !ended.success() {
                summary.wrong.push(format!("{}: a rank ended with {ended}", self.of));
            }
        }
        summary
    }

    fn start(&self, rank: u32, meeting: &Meeting) -> Process {
        let Ranks { ranks, transport, device } = self.of;
        let mut command = Command::new(self.program);
        command.env_clear();
        if device == Device::SimNvidia {
            command.envs(sim_cards::variables());
        }
        let mut child = command
            .args(["rank", &rank.to_string(), &ranks.to_string(), transport.name(), device.name()])
            .arg(&meeting.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a rank's process");
        let input = child.stdin.take();
        let (sender, lines) = channel();
        let outputs: [Box<dyn BufRead + Send>; 2] = [
            Box::new(BufReader::new(child.stdout.take().expect("its output"))),
            Box::new(BufReader::new(child.stderr.take().expect("its messages"))),
        ];
        for output in outputs {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in output.lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Process { child, input, lines }
    }

    /// Hears a rank until it is done with a column.
    fn listen(&self, rank: u32, process: &mut Process, algorithm: &str) -> Said {
        let mut said = Said::default();
        let mut deadline = Instant::now() + SILENCE;
        let mut last = "nothing".to_owned();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = process.lines.recv_timeout(left) else {
                said.wrong.push(format!("it fell silent or ended; last said: {last}"));
                return said;
            };
            deadline = Instant::now() + SILENCE;
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match word {
                "at" if self.talkative && rank == 0 => {
                    println!("  {}, {algorithm}: {line}", self.of);
                }
                "wrong" => {
                    let (cell, text) = rest.split_once(' ').unwrap_or((rest, ""));
                    said.wrong.push(format!("{}: {text}", self.repeat(algorithm, cell)));
                }
                "refused" => {
                    let (times, reason) = rest.split_once(' ').unwrap_or((rest, ""));
                    said.refused.insert(reason.to_owned(), times.parse().expect("a number"));
                }
                "done" => {
                    let (right, _) = rest.split_once(' ').expect("two numbers");
                    said.right = right.parse().expect("a number");
                    said.ended = true;
                    return said;
                }
                _ => {}
            }
            last = line;
        }
    }

    /// The command that runs one cell again.
    fn repeat(&self, algorithm: &str, cell: &str) -> String {
        format!("iccl-test-matrix cell {} {algorithm} {cell}", self.of)
    }

    /// Ranks must have come to the same.
    fn sum_up(&self, algorithm: &str, said: &[Said]) -> Summary {
        let mut summary = Summary::default();
        let first = &said[0];
        let place = format!("{}, {algorithm}", self.of);
        for (rank, one) in said.iter().enumerate() {
            for wrong in &one.wrong {
                summary.wrong.push(format!("{place}, rank {rank}: {wrong}"));
            }
            if one.wrong.is_empty()
                && first.wrong.is_empty()
                && (one.right, &one.refused) != (first.right, &first.refused)
            {
                let text = format!("{place}: ranks 0 and {rank} did not refuse the same cells");
                summary.wrong.push(text);
            }
        }
        summary.right = first.right;
        summary.refused.clone_from(&first.refused);
        summary
    }
}

/// A file that all ranks of a block map. Removed when dropped.
struct Meeting {
    path: PathBuf,
}

impl Meeting {
    fn new() -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("iccl-test-meeting-{process}-{number}"));
        std::fs::write(&path, [0; 4096]).expect("a file in which ranks meet");
        Self { path }
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Runs cells of all kinds: those that have ranks and transport in common are one block.
pub fn run_placed(program: &str, placed: &[Placed]) -> Summary {
    let mut blocks: BTreeMap<Ranks, BTreeMap<Option<Algorithm>, Vec<Cell>>> = BTreeMap::new();
    for one in placed {
        let columns = blocks.entry(one.of).or_default();
        columns.entry(one.forced).or_default().push(one.cell);
    }
    let mut summary = Summary::default();
    for (of, columns) in blocks {
        let block = Block { program, of, talkative: false };
        let columns: Vec<Column> = columns
            .into_iter()
            .map(|(forced, mut cells)| {
                // Those that can be under way at once come together.
                cells.sort_by_key(|cell| cell.grouped);
                if forced.is_none() {
                    cells.push(super::product::barrier());
                }
                Column { forced, cells }
            })
            .collect();
        summary.add(block.run(&columns));
    }
    summary
}
