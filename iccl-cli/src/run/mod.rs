//! `iccl run`: a command as several ranks on this machine.
//!
//! [`job`] starts the ranks, waits, and ends them; [`rank`] is what each rank is before it becomes the
//! command; [`output`] puts the rank before every line. `iccl perf` starts its ranks here, too.

pub(crate) mod job;
mod output;
pub(crate) mod rank;

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use iccl_runtime::config::{CONFIG_VARIABLE, Config, SETTINGS};

use crate::cluster::{Cluster, ClusterArguments};
use crate::context::Context;
use crate::failure::{Failure, Outcome, Result};
use crate::placement::Placement;
use job::{Ending, Job, Show, Signals};

pub(crate) const EXAMPLES: &str = "\
Examples:
  iccl run -n 4 -- python train.py
  iccl run -n 4 --config iccl.toml -- ./my-program --fast
  iccl run --host-ids a,b,a,b -- iccl perf all_reduce
  iccl run -n 2 --no-prefix -- ./prints-a-table
  iccl run --cluster four-vendors.toml -- iccl perf all_reduce

Every rank gets ICCL_RANK, ICCL_WORLD_SIZE, ICCL_LOCAL_RANK, ICCL_LOCAL_WORLD_SIZE and ICCL_JOB_ID;
the ranks meet over a socket that only this user's processes can use. Lines are printed with their
rank in front. INT, TERM, HUP, QUIT, USR1, USR2 and CONT are handed on. When a rank ends with an
error or by a signal, the others get --grace to say what they saw, then TERM, then KILL.

Exit status: that of the first rank that failed, 128 + the signal that killed it, or 0.
127: the command was not found. 126: it cannot be run.";

#[derive(Args)]
pub(crate) struct Arguments {
    /// The number of ranks.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096),
          required_unless_present_any = ["ranks_per_host", "host_ids", "cluster"])]
    ranks: Option<u32>,
    #[command(flatten)]
    placement: Placement,
    #[command(flatten)]
    cluster: ClusterArguments,
    /// How long the other ranks may go on when one has failed, in seconds; then they get TERM, and
    /// as long again later KILL.
    #[arg(long, value_name = "SECONDS", default_value = "1.5", value_parser = seconds)]
    grace: Duration,
    /// Print the lines as they are, without the rank in front.
    #[arg(long)]
    no_prefix: bool,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

pub(crate) fn run(context: &Context, arguments: &Arguments) -> Result {
    let config = context.config()?;
    let cluster = arguments.cluster.read()?;
    let stage = cluster.as_ref().map(|cluster| arguments.cluster.stage(cluster)).transpose()?;
    let asked = arguments.ranks.or(arguments.placement.ranks());
    let ranks = cluster.as_ref().map_or(asked.unwrap_or(1), Cluster::ranks);
    let job = Job {
        ranks,
        places: match &stage {
            Some(stage) => stage.places(),
            None => arguments.placement.places(ranks)?,
        },
        command: arguments.command.clone(),
        environment: settings_for_ranks(context, &config)?,
        grace: arguments.grace,
        show: if arguments.no_prefix { Show::Plain } else { Show::Prefixed },
    };
    let report = job.run(&Signals::listen()?)?;
    if let Some(culprit) = &report.culprit
        && report.asked_to_end.is_none()
    {
        eprintln!("iccl run: {culprit}");
    }
    Ok(match report.status() {
        0 => Outcome::Right,
        status => Outcome::Status(status),
    })
}

/// The options of this command line as variables of the ranks: `--config` and `--set`.
fn settings_for_ranks(context: &Context, config: &Config) -> Result<Vec<(String, OsString)>> {
    let mut variables = Vec::new();
    if context.global().config.is_some()
        && let Some(file) = config.file()
    {
        variables.push((CONFIG_VARIABLE.to_owned(), file.as_os_str().to_owned()));
    }
    for (key, value) in &context.global().set {
        let setting = SETTINGS.iter().find(|setting| setting.key == key);
        let variable = setting.and_then(|setting| setting.reach.environment).ok_or_else(|| {
            Failure::usage(format!("{key} has no variable by which the ranks could get it"))
                .with_hint("write it into a file and give that with --config")
        })?;
        variables.push((variable.to_owned(), value.into()));
    }
    Ok(variables)
}

impl std::fmt::Display for job::Culprit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.ending {
            Ending::Status(status) => write!(f, "rank {} ended with status {status}", self.rank)?,
            Ending::Signal(signal) => {
                let name = signal_hook::low_level::signal_name(signal).unwrap_or("signal");
                write!(f, "rank {} was killed by {name} ({signal})", self.rank)?;
            }
        }
        match self.ended_others {
            0 => Ok(()),
            1 => f.write_str("; ended the other rank"),
            others => write!(f, "; ended {others} other ranks"),
        }
    }
}
