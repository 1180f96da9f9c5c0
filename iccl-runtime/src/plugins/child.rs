//! The first run of a plugin that is not trusted, in a process of its own: a crash or a hang in a
//! vendor's driver cannot be undone. This is the parent's side; `helper` is the child's. See `docs/decisions/0003-child-probe.md`.

use std::io::{ErrorKind as IoErrorKind, PipeReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use iccl_plugin_api::tables::CollectiveSupport;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::file::{self, CheckedFile};
use super::folders::own_places;
use super::helper::HELPER_NAME;
use super::reason::{Reason, Refusal};
use super::record::one_line;
use super::settings::settings_for;
use crate::Result;
use crate::config::Config;

/// Most bytes that a child may say.
const LONGEST_ANSWER: usize = 256 * 1024;

/// How much of what the plugin printed is kept.
const PRINTED_BYTES: usize = 300;

/// How often a silent child is looked at: it may be gone while another process holds its pipes.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// How long a killed child may take to be gone. One that hangs inside the kernel may never be.
const BURIAL: Duration = Duration::from_secs(1);

/// What the child says, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Said {
    /// What it does next.
    Stage(String),
    /// What the plugin says of itself; the child waits for [`Told`] now.
    Description {
        name: String,
        /// Key and kind.
        settings: Vec<(String, String)>,
    },
    /// The plugin goes no further.
    Refused { code: String, detail: String },
    /// All went well.
    Fine {
        /// Collective, dtypes and ops of each combination that is left after the self-test.
        support: Vec<[u32; 3]>,
        struck: Vec<String>,
    },
}

/// What the child is told, in one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) settings: Vec<(String, String)>,
    pub(super) self_test: bool,
}

/// What is kept of a child's run that went well.
#[derive(Clone, Debug, Default)]
pub(super) struct Passed {
    pub(super) support: Vec<CollectiveSupport>,
    pub(super) struck: Vec<String>,
}

/// The program that is run as the child, or where it was looked for: beside the executable and this
/// library, then among the plugins.
pub(super) fn find_helper(
    searched: &[PathBuf],
    allow_insecure: bool,
) -> std::result::Result<PathBuf, Vec<PathBuf>> {
    let places: Vec<PathBuf> = own_places().into_iter().chain(searched.iter().cloned()).collect();
    places
        .iter()
        .find_map(|place| {
            let helper = file::open(&place.join(HELPER_NAME)).ok()?;
            match helper.check_trust(allow_insecure) {
                Ok(path) => Some(path),
                Err(refusal) => {
                    tracing::warn!(place = %place.display(), "{HELPER_NAME}: {}", refusal.detail);
                    None
                }
            }
        })
        .ok_or(places)
}

/// Runs the plugin in a child process.
///
/// # Errors
/// What the configuration gets wrong about the plugin. What the plugin does wrong is the inner
/// result.
pub(super) fn probe(
    helper: &Path,
    file: &CheckedFile,
    config: &Config,
) -> Result<std::result::Result<Passed, Refusal>> {
    let mut run = match Run::start(helper, file, config.plugins.probe_timeout) {
        Ok(run) => run,
        Err(error) => {
            let detail = format!("{}: {error}", helper.display());
            return Ok(Err(Refusal::new(Reason::ProbeChildFailed, detail)));
        }
    };
    let outcome = run.converse(config);
    run.bury();
    outcome
}

/// A child that runs.
struct Run {
    child: Child,
    socket: UnixStream,
    /// Whether the child may still say something.
    listening: bool,
    /// What the plugin prints, until it is closed.
    printed: Option<PipeReader>,
    /// What came and was not taken yet.
    answer: Vec<u8>,
    /// The end of what the plugin printed.
    tail: Vec<u8>,
    stage: String,
    timeout: Duration,
    deadline: Instant,
}

impl Run {
    fn start(helper: &Path, file: &CheckedFile, timeout: Duration) -> std::io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let (printed, their_output) = std::io::pipe()?;
        let child = Command::new(helper)
            .arg(&file.path)
            .stdin(OwnedFd::from(theirs))
            .stdout(their_output.try_clone()?)
            .stderr(their_output)
            // So that whatever the plugin starts ends with it.
            .process_group(0)
            .spawn()?;
        socket.set_nonblocking(true)?;
        rustix::io::ioctl_fionbio(&printed, true)?;
        Ok(Self {
            child,
            socket,
            listening: true,
            printed: Some(printed),
            answer: Vec::new(),
            tail: Vec::new(),
            stage: "start".to_owned(),
            timeout,
            deadline: Instant::now() + timeout,
        })
    }

    fn converse(&mut self, config: &Config) -> Result<std::result::Result<Passed, Refusal>> {
        loop {
            let said = match self.next() {
                Ok(said) => said,
                Err(refusal) => return Ok(Err(refusal)),
            };
            match said {
                Said::Stage(stage) => self.stage = stage,
                Said::Description { name, settings } => {
                    let declared: Vec<(&str, &str)> =
                        settings.iter().map(|(key, kind)| (key.as_str(), kind.as_str())).collect();
                    let told = Told {
                        settings: settings_for(config, &name, &declared)?,
                        self_test: config.plugins.self_test,
                    };
                    // A child that does not listen any more is found dead by the next look.
                    if let Err(error) = self.tell(&told) {
                        tracing::debug!(%error, "a probing child does not listen");
                    }
                }
                Said::Refused { code, detail } => {
                    let reason = Reason::from_code(&code).unwrap_or(Reason::ProbeFailed);
                    return Ok(Err(Refusal::new(reason, detail)));
                }
                Said::Fine { support, struck } => {
                    let combination = |[collective, dtypes, ops]: [u32; 3]| CollectiveSupport {
                        collective,
                        dtypes,
                        ops,
                        reserved: 0,
                    };
                    let support = support.into_iter().map(combination).collect();
                    return Ok(Ok(Passed { support, struck }));
                }
            }
        }
    }

    /// Sends a line. A host that did not ask to ignore SIGPIPE must not be ended by it.
    fn tell(&self, told: &Told) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(told)?;
        line.push(b'\n');
        let mut rest = line.as_slice();
        while !rest.is_empty() {
            match rustix::net::send(&self.socket, rest, rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) => rest = &rest[count..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The next line that the child says, or why there is none.
    fn next(&mut self) -> std::result::Result<Said, Refusal> {
        loop {
            if let Some(end) = self.answer.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.answer.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|error| {
                    Refusal::new(Reason::ProbeChildFailed, format!("it speaks nonsense: {error}"))
                });
            }
            // Asked before reading, so that nothing that it said last is missed.
            let ended = self.child.try_wait();
            self.read();
            if self.answer.contains(&b'\n') {
                continue;
            }
            if self.answer.len() > LONGEST_ANSWER {
                return Err(Refusal::new(Reason::ProbeChildFailed, "it does not stop talking"));
            }
            match ended {
                Ok(Some(status)) => return Err(self.ended(status)),
                Ok(None) => {}
                // The application ignores SIGCHLD, or took the status of our child.
                Err(_) => return Err(self.vanished()),
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.hung());
            }
            self.sleep(left);
        }
    }

    /// Takes what came from both sides, without waiting.
    fn read(&mut self) {
        let mut buffer = [0; 4096];
        while self.listening && self.answer.len() <= LONGEST_ANSWER {
            match (&self.socket).read(&mut buffer) {
                Ok(0) => self.listening = false,
                Ok(count) => self.answer.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == IoErrorKind::Interrupted => {}
                Err(error) if error.kind() == IoErrorKind::WouldBlock => break,
                Err(_) => self.listening = false,
            }
        }
        // A plugin that prints without end must not keep us here.
        for _ in 0..16 {
            let Some(printed) = &mut self.printed else { return };
            match printed.read(&mut buffer) {
                Ok(0) => self.printed = None,
                Ok(count) => {
                    self.tail.extend_from_slice(&buffer[..count]);
                    let surplus = self.tail.len().saturating_sub(PRINTED_BYTES);
                    self.tail.drain(..surplus);
                }
                Err(error) if error.kind() == IoErrorKind::Interrupted => {}
                Err(error) if error.kind() == IoErrorKind::WouldBlock => return,
                Err(_) => self.printed = None,
            }
        }
    }

    /// Waits for something to read, or for the time of the next look.
    fn sleep(&self, left: Duration) {
        let longest = if self.listening { LOOK_INTERVAL } else { Duration::from_millis(1) };
        let time = left.min(longest);
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
        let mut descriptors = Vec::with_capacity(2);
        if self.listening {
            descriptors.push(PollFd::new(&self.socket, PollFlags::IN));
        }
        if let Some(printed) = &self.printed {
            descriptors.push(PollFd::new(printed, PollFlags::IN));
        }
        // A signal is as good as an early look.
        let _ = poll(&mut descriptors, Some(&time));
    }

    fn ended(&self, status: ExitStatus) -> Refusal {
        let how = match status.signal() {
            Some(signal) => format!("killed by {} in {}", signal_name(signal), self.stage),
            None => {
                format!("ended with status {} in {}", status.code().unwrap_or_default(), self.stage)
            }
        };
        Refusal::new(Reason::ProbeCrashed, self.with_printed(how))
    }

    fn vanished(&self) -> Refusal {
        let how = format!("ended in {}, and its status is lost", self.stage);
        Refusal::new(Reason::ProbeCrashed, self.with_printed(how))
    }

    fn hung(&self) -> Refusal {
        let how = format!("did not answer within {:?} in {}", self.timeout, self.stage);
        Refusal::new(Reason::ProbeHung, self.with_printed(how))
    }

    /// Adds the end of what the plugin printed.
    fn with_printed(&self, how: String) -> String {
        let printed = one_line(&String::from_utf8_lossy(&self.tail));
        if printed.is_empty() { how } else { format!("{how}; it printed: {printed}") }
    }

    /// Ends the child and all that it started. Its verdict is in, or it never will be.
    fn bury(mut self) {
        let group = rustix::process::Pid::from_child(&self.child);
        // What is gone already can't be killed.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let deadline = Instant::now() + BURIAL;
        while !matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
            if Instant::now() > deadline {
                let pid = self.child.id();
                tracing::warn!(pid, "a probing child hangs in the kernel and cannot be ended");
                return;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// The name of a signal that ends processes.
fn signal_name(signal: i32) -> String {
    match signal {
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGBUS => "SIGBUS",
        libc::SIGABRT => "SIGABRT",
        libc::SIGILL => "SIGILL",
        libc::SIGFPE => "SIGFPE",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGKILL => "SIGKILL",
        libc::SIGTERM => "SIGTERM",
        libc::SIGSYS => "SIGSYS",
        other => return format!("signal {other}"),
    }
    .to_owned()
}
