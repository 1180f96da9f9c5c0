//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::{cluster, config, devices, diagnose, doctor, perf, plan, plugins, run};

/// Collectives across accelerator cards of different makers.
#[derive(Parser)]
#[command(
    name = "iccl",
    version,
    about = "Collectives across accelerator cards of different makers",
    disable_help_subcommand = true,
    after_help = "\
Examples:
  iccl plugins                             what was found, and why something is not used
  iccl plan -n 4                           which way each link would take, and why no better one
  iccl perf all_reduce -n 4 --op avg       a verified benchmark on 4 ranks of this machine
  iccl run -n 4 -- python train.py         start 4 ranks
  iccl doctor                              what this machine lacks, and what to do

Exit status: 0 right, 1 a check or an operation failed, 2 the command line or the configuration
is wrong. `iccl run` ends with the status of the command."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every subcommand.
#[derive(Args, Clone)]
pub(crate) struct Global {
    /// The configuration file (else ICCL_CONFIG, else ./iccl.toml if there is one).
    #[arg(long, global = true, value_name = "FILE", help_heading = "Options for all commands")]
    pub(crate) config: Option<PathBuf>,
    /// A setting over file and environment, such as engine.op_timeout=30s. Repeatable.
    #[arg(
        long = "set",
        global = true,
        value_name = "KEY=VALUE",
        value_parser = key_and_value,
        help_heading = "Options for all commands"
    )]
    pub(crate) set: Vec<(String, String)>,
    /// JSON on standard output, with the keys of docs/command.md.
    #[arg(long, global = true, help_heading = "Options for all commands")]
    pub(crate) json: bool,
    /// More detail; twice: more log lines, three times: all.
    #[arg(short, long, global = true, action = clap::ArgAction::Count,
          help_heading = "Options for all commands")]
    pub(crate) verbose: u8,
    /// Log errors only.
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "verbose",
        help_heading = "Options for all commands"
    )]
    pub(crate) quiet: bool,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show every plugin that was found, whether it is used, and why not.
    #[command(after_help = plugins::EXAMPLES)]
    Plugins(plugins::Arguments),
    /// Show the devices of this machine.
    #[command(after_help = devices::EXAMPLES)]
    Devices(devices::Arguments),
    /// Show which way each link takes, and why no better one.
    #[command(after_help = plan::EXAMPLES)]
    Plan(plan::Arguments),
    /// Measure a collective and verify every element of its results.
    #[command(after_help = perf::EXAMPLES)]
    Perf(perf::Arguments),
    /// Start a command as several ranks on this machine.
    #[command(after_help = run::EXAMPLES)]
    Run(run::Arguments),
    /// Check this machine for what users trip over, and say what to do.
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::Arguments),
    /// Compare what all ranks wrote when a job failed, and name the first operation that differs.
    #[command(after_help = diagnose::EXAMPLES)]
    Diagnose(diagnose::Arguments),
    /// Show every setting, its value, and where the value came from.
    #[command(after_help = config::EXAMPLES)]
    Config(config::Arguments),
    /// Hold the network namespace of a node.
    #[command(name = cluster::network::HOLDER, hide = true)]
    Holder(cluster::network::HolderArguments),
    /// Become one rank of `iccl run`.
    #[command(name = run::rank::NAME, hide = true)]
    Rank(run::rank::Arguments),
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("expected KEY=VALUE, such as engine.op_timeout=30s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_visible_command_shows_examples() {
        for command in Arguments::command().get_subcommands().filter(|one| !one.is_hide_set()) {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("Examples:\n  iccl "), "{}", command.get_name());
        }
    }

    #[test]
    fn a_setting_needs_a_key() {
        assert_eq!(key_and_value("a.b=c=d"), Ok(("a.b".into(), "c=d".into())));
        assert!(key_and_value("a.b").is_err());
        assert!(key_and_value("=c").is_err());
    }
}
