//! What a rank is before it becomes the command: it sees to it that it does not outlive `iccl run`.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::failure::{Failure, Result};

/// The hidden subcommand's name.
pub(crate) const NAME: &str = "rank-of-run";

#[derive(Args)]
pub(crate) struct Arguments {
    /// The process id of `iccl run`.
    parent: i32,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn become_command(arguments: &Arguments) -> Result {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::new(format!("the rank cannot be tied to iccl run: {error}")))?;
    // It may have died before that.
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != arguments.parent) {
        return Err(Failure::new("iccl run is gone"));
    }
    let (program, rest) = arguments
        .command
        .split_first()
        .unwrap_or_else(|| unreachable!("the command line requires a command"));
    let error = Command::new(program).args(rest).exec();
    let status = if error.kind() == ErrorKind::NotFound { 127 } else { 126 };
    Err(Failure::new(format!("{} cannot be run: {error}", program.to_string_lossy()))
        .with_status(status))
}
