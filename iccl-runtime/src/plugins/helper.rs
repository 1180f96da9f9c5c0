//! The child process in which a plugin is run first: the program `iccl-plugin-probe`. See
//! `child` for the other side.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use iccl_plugin_api::LogLevel;
use iccl_plugin_api::host::{LogSink, host_table};

use super::activate::{SelfTests, activate};
use super::child::{Said, Told};
use super::image;
use super::reason::{Reason, Refusal};

/// The program's file name.
pub const HELPER_NAME: &str = "iccl-plugin-probe";

/// The whole program: loads the plugin that its one argument names, and tells the parent at the
/// other end of its standard input what became of it.
pub fn helper_main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter().skip(1);
    let (Some(path), None) = (arguments.next(), arguments.next()) else {
        eprintln!("{HELPER_NAME} is run by iccl; it takes the path of a plugin");
        return ExitCode::from(2);
    };
    match Parent::meet() {
        Ok(mut parent) => {
            let verdict = run(Path::new(&path), &mut parent).unwrap_or_else(|refusal| {
                let code = refusal.reason.code().to_owned();
                Said::Refused { code, detail: refusal.detail }
            });
            parent.say(&verdict);
            // SAFETY: ends the process without running what a vendor's library may have left to run
            // at exit, which can hang.
            unsafe { libc::_exit(0) }
        }
        Err(error) => {
            eprintln!("{HELPER_NAME} is run by iccl: {error}");
            ExitCode::from(2)
        }
    }
}

/// All stages of a plugin.
fn run(path: &Path, parent: &mut Parent) -> Result<Said, Refusal> {
    parent.say(&Said::Stage("dlopen".to_owned()));
    let image = image::load(path)?;
    parent.say(&Said::Stage("describe".to_owned()));
    let (description, _) = image::describe(image.view, None)?;
    let settings = description
        .settings
        .iter()
        .map(|setting| (setting.key.to_owned(), setting.kind.to_owned()))
        .collect();
    parent.say(&Said::Description { name: description.name.to_owned(), settings });
    let told = parent.hear()?;
    let self_tests = if told.self_test { SelfTests::Run } else { SelfTests::Off };
    let stage = |stage: &'static str| parent.say(&Said::Stage(stage.to_owned()));
    let offer = activate(image.view, host_table(Printed), &told.settings, self_tests, stage)?;
    let support = offer.collectives.map(|native| native.support).unwrap_or_default();
    Ok(Said::Fine {
        support: support.iter().map(|each| [each.collective, each.dtypes, each.ops]).collect(),
        struck: offer.struck,
    })
}

/// The plugin's louder lines, where the parent keeps the last of them.
struct Printed;

impl LogSink for Printed {
    fn log(&self, level: LogLevel, _: &str, message: &str) {
        if level <= LogLevel::Warn {
            eprintln!("{level}: {message}");
        }
    }

    fn wanted(&self) -> Option<LogLevel> {
        Some(LogLevel::Warn)
    }
}

/// The other end of standard input.
struct Parent(BufReader<UnixStream>);

impl Parent {
    fn meet() -> std::io::Result<Self> {
        use rustix::process::{Resource, Rlimit, Signal};
        // A parent that is killed must not leave us with a plugin that hangs, nor a crash a core.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
        // A descriptor of our own, so that a plugin that uses standard input does not meet it.
        let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        socket.peer_addr()?;
        let nothing = std::fs::File::open("/dev/null")?;
        // SAFETY: makes standard input another open file; nothing in this process has read from it.
        if unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&nothing), 0) } < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self(BufReader::new(socket)))
    }

    /// Says one line. Where the parent is gone there is nobody to tell that to.
    fn say(&mut self, said: &Said) {
        if let Ok(mut line) = serde_json::to_vec(said) {
            line.push(b'\n');
            let _ = self.0.get_mut().write_all(&line);
        }
    }

    fn hear(&mut self) -> Result<Told, Refusal> {
        let failed = |error: std::io::Error| {
            Refusal::new(Reason::ProbeChildFailed, format!("the parent says nothing: {error}"))
        };
        let mut line = String::new();
        self.0.read_line(&mut line).map_err(failed)?;
        serde_json::from_str(&line).map_err(|error| failed(error.into()))
    }
}
