//! Ranks as processes: real ones that can be killed and stopped. Each runs one scenario of
//! `iccl-test-rank` and prints lines that the test reads.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use iccl_runtime::bootstrap::UniqueId;

use crate::ranks::Job;

/// Within this time everything has happened, however loaded the machine.
pub const SOON: Duration = Duration::from_secs(60);

/// A rank that is a process. Ended when dropped.
#[derive(Debug)]
pub struct Rank {
    number: u32,
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

/// How to start the ranks of one job.
#[derive(Debug)]
pub struct Launch {
    program: String,
    ranks: u32,
    id: UniqueId,
    arguments: Vec<String>,
    environment: Vec<(Option<u32>, String, String)>,
    user: Option<(u32, u32)>,
}

impl Launch {
    /// A job whose ranks meet at this process. `program` is the path of `iccl-test-rank`; the
    /// arguments are the scenario and what belongs to it.
    pub fn new(program: &str, ranks: u32, arguments: &[&str]) -> Self {
        let id = Job::new(ranks).unique_id();
        let launch = Self {
            program: program.to_owned(),
            ranks,
            id,
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            environment: Vec::new(),
            user: None,
        };
        launch.with("ICCL_OP_TIMEOUT", "60s").with("ICCL_INIT_TIMEOUT", "60s")
    }

    /// A variable of all ranks.
    #[must_use]
    pub fn with(self, name: &str, value: &str) -> Self {
        self.set(None, name, value)
    }

    /// A variable of one rank.
    #[must_use]
    pub fn with_on(self, rank: u32, name: &str, value: &str) -> Self {
        self.set(Some(rank), name, value)
    }

    /// Runs one rank as another user.
    #[must_use]
    pub fn as_user(mut self, rank: u32, user: u32) -> Self {
        self.user = Some((rank, user));
        self
    }

    fn set(mut self, rank: Option<u32>, name: &str, value: &str) -> Self {
        self.environment.push((rank, name.to_owned(), value.to_owned()));
        self
    }

    /// Starts one rank.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn start(&self, rank: u32) -> Rank {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .env("ICCL_RANK", rank.to_string())
            .env("ICCL_WORLD_SIZE", self.ranks.to_string())
            .env("ICCL_UNIQUE_ID", self.id.to_text())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (whose, name, value) in &self.environment {
            if whose.is_none_or(|whose| whose == rank) {
                command.env(name, value);
            }
        }
        if let Some((_, user)) = self.user.filter(|(whose, _)| *whose == rank) {
            command.uid(user);
        }
        let mut child = command.spawn().expect("a rank's process");
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
        Rank { number: rank, child, lines, seen: Vec::new() }
    }

    /// Starts all ranks.
    pub fn start_all(&self) -> Vec<Rank> {
        (0..self.ranks).map(|rank| self.start(rank)).collect()
    }
}

impl Rank {
    /// Its number.
    pub fn rank(&self) -> u32 {
        self.number
    }

    /// Its process.
    pub fn process(&self) -> i32 {
        self.child.id() as i32
    }

    /// The next line that starts with `word`, without it.
    ///
    /// # Panics
    /// If it does not come soon, with all that did.
    pub fn line(&mut self, word: &str) -> String {
        let deadline = Instant::now() + SOON;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if let Some(rest) = line.strip_prefix(word) {
                        return rest.trim().to_owned();
                    }
                }
                Err(error) => {
                    let (rank, seen) = (self.number, self.seen.join("\n"));
                    let how = match error {
                        RecvTimeoutError::Timeout => "in time",
                        RecvTimeoutError::Disconnected => "before its end",
                    };
                    panic!("rank {rank} did not say \"{word}\" {how}:\n{seen}");
                }
            }
        }
    }

    /// Waits for its end, and gives all that it said.
    ///
    /// # Panics
    /// If it does not end soon.
    pub fn finish(&mut self) -> (ExitStatus, Vec<String>) {
        let deadline = Instant::now() + SOON;
        loop {
            if let Some(status) = self.child.try_wait().expect("its status") {
                while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(5)) {
                    self.seen.push(line);
                }
                return (status, std::mem::take(&mut self.seen));
            }
            assert!(
                Instant::now() < deadline,
                "rank {} does not end: {:?}",
                self.number,
                self.seen
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for a good end.
    ///
    /// # Panics
    /// If it fails or does not end soon.
    pub fn must_succeed(&mut self) -> Vec<String> {
        let (status, said) = self.finish();
        assert!(status.success(), "rank {}: {status}\n{}", self.number, said.join("\n"));
        said
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it is gone.
    pub fn signal(&self, signal: i32) {
        // SAFETY: a child that has not been waited for.
        let sent = unsafe { libc::kill(self.process(), signal) };
        assert_eq!(sent, 0, "rank {} cannot be sent {signal}", self.number);
    }

    /// Processor time that it has used.
    ///
    /// # Panics
    /// If it is gone.
    pub fn processor_time(&self) -> Duration {
        processor_time(self.process())
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor time that all threads of a process have used.
///
/// # Panics
/// If it is gone.
pub fn processor_time(process: i32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("its threads");
    let nanoseconds = tasks.filter_map(Result::ok).filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

/// What a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Resident memory in KiB.
    pub resident_kib: u64,
}

impl Holdings {
    /// Of this process.
    ///
    /// # Panics
    /// If the kernel does not tell.
    pub fn now() -> Self {
        let count = |folder: &str| std::fs::read_dir(folder).expect("a folder of /proc").count();
        let status = std::fs::read_to_string("/proc/self/status").expect("a status");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        Self {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            resident_kib: resident.expect("a size"),
        }
    }
}
