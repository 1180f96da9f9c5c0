//! The command `iccl`: what plugins, devices and links there are, whether collectives are right and
//! how fast, and a launcher for one machine.
//!
//! One file or folder per subcommand. What several of them need: [`arguments`] (the command line),
//! [`context`] (configuration and logging), [`failure`] (how a command ends), [`mod@print`] (how it
//! answers), [`placement`] (several hosts on one machine) and [`mod@cluster`] (several makers' cards on it).

#![forbid(unsafe_code)]
// The doc comments of arguments are the text of --help, where backticks would be printed.
#![allow(clippy::doc_markdown)]

mod arguments;
mod capabilities;
mod choices;
mod cluster;
mod combinations;
mod config;
mod context;
mod devices;
mod diagnose;
mod doctor;
mod failure;
mod perf;
mod placement;
mod plan;
mod plugins;
mod print;
mod run;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};
use context::Context;
use failure::Outcome;

fn main() -> ExitCode {
    // Clap prints help and usage errors by itself, and ends with 2 for the latter.
    let Arguments { global, command } = Arguments::parse();
    let context = Context::new(global);
    let outcome = match command {
        Command::Plugins(arguments) => plugins::show(&context, &arguments),
        Command::Devices(arguments) => devices::show(&context, &arguments),
        Command::Plan(arguments) => plan::show(&context, &arguments),
        Command::Perf(arguments) => perf::perf(&context, &arguments),
        Command::Run(arguments) => run::run(&context, &arguments),
        Command::Doctor(arguments) => doctor::examine(&context, &arguments),
        Command::Diagnose(arguments) => diagnose::show(&context, &arguments),
        Command::Config(arguments) => config::show(&context, &arguments),
        Command::Holder(arguments) => cluster::network::hold(&arguments),
        Command::Rank(arguments) => run::rank::become_command(&arguments),
    };
    match outcome {
        Ok(Outcome::Right) => ExitCode::SUCCESS,
        Ok(Outcome::CheckFailed) => ExitCode::FAILURE,
        Ok(Outcome::Status(status)) => ExitCode::from(status),
        Err(failure) => failure.report(),
    }
}
