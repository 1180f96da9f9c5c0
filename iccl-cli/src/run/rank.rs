//! What a rank is before it becomes the command: it sees to it that it does not outlive `iccl run`.

use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::failure::{Failure, Result};

/// The hidden subcommand's name.
pub(crate) const NAME: &str = "rank-of-run";

#[derive(Args)]
pub(crate) struct Arguments {
    /// The process id of `iccl run`.
    parent: i32,
    /// The network namespace to be in.
    #[arg(long)]
    network: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn become_command(arguments: &Arguments) -> Result {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::new(format!("the rank cannot be tied to iccl run: {error}")))?;
    check_parent(arguments.parent)?;
    if let Some(network) = &arguments.network {
        enter(network)?;
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

/// The parent may have died before this process was tied to it.
pub(crate) fn check_parent(parent: i32) -> Result<()> {
    if getppid().is_none_or(|found| found.as_raw_nonzero().get() != parent) {
        return Err(Failure::new("iccl run is gone"));
    }
    Ok(())
}

fn enter(network: &Path) -> Result<()> {
    File::open(network)
        .and_then(|file| {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(file.as_fd(), kind).map_err(Into::into)
        })
        .map_err(|error| {
            let name = network.display();
            Failure::new(format!("the network namespace {name} cannot be entered: {error}"))
        })
}
