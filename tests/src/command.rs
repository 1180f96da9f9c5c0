//! The command `iccl` as a user has it, for tests that run it.

use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::{cargo_build, place, plugin_folder};

/// A command that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(240);

/// Variables that would tell the command that it is a rank of some job.
const LAUNCHERS: &[&str] = &[
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "JOB_COMPLETION_INDEX",
];

/// The command, built in the test's own profile, in a folder without plugins beside it.
///
/// # Panics
/// If it can't be built.
pub fn command_path() -> &'static Path {
    static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
        let built = cargo_build(&["-p", "iccl-cli", "--bin", "iccl"]);
        let folder = built.join("test-command");
        std::fs::create_dir_all(&folder).expect("the command's folder can be made");
        place(&built.join("iccl"), &folder.join("iccl"));
        folder.join("iccl")
    });
    &PATH
}

/// A call of `iccl` with the plugins of this workspace.
pub fn iccl(arguments: &[&str]) -> Command {
    iccl_with(plugin_folder(), arguments)
}

/// A call of `iccl` with the plugins of a folder.
pub fn iccl_with(plugins: &Path, arguments: &[&str]) -> Command {
    clean(command_path(), plugins, arguments)
}

/// A call of another program that finds those plugins: a launcher, say.
pub fn clean(program: &Path, plugins: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let is_launcher = ["ICCL_", "OMPI_", "PMI_", "PMIX_", "SLURM_"]
            .iter()
            .any(|prefix| text.starts_with(prefix));
        if is_launcher || LAUNCHERS.contains(&text.as_ref()) {
            command.env_remove(&name);
        }
    }
    // Nobody's iccl.toml.
    command.current_dir(command_path().parent().expect("a folder"));
    command.env("ICCL_PLUGIN_PATH", plugins);
    command
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Ran {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Ran {
    /// The exit status; `None` if a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// All of it, for messages.
    pub fn all(&self) -> String {
        let mut text = String::new();
        let _ = write!(text, "{}\n--- out\n{}\n--- err\n{}", self.status, self.out, self.err);
        text
    }

    /// Standard output as JSON.
    ///
    /// # Panics
    /// If it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.all()))
    }
}

/// Runs a command to its end.
///
/// # Panics
/// If it can't be started or hangs.
pub fn run_to_end(command: &mut Command) -> Ran {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    end_of(child, &format!("{command:?}"))
}

/// Waits for a child whose output is piped.
///
/// # Panics
/// If it hangs; it is killed then.
pub fn end_of(mut child: Child, what: &str) -> Ran {
    fn reader(source: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut source) = source {
                let _ = source.read_to_end(&mut bytes);
            }
            bytes
        })
    }
    let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let give_up = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break status;
        }
        if Instant::now() > give_up {
            let _ = child.kill();
            let status = child.wait().expect("a killed child ends");
            let out = String::from_utf8_lossy(&out.join().unwrap_or_default()).into_owned();
            panic!("{what} hangs: {status}\n{out}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let output = Output {
        status,
        stdout: out.join().unwrap_or_default(),
        stderr: err.join().unwrap_or_default(),
    };
    Ran {
        status,
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
