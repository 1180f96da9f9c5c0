//! `iccl plan`: which way each link takes, and why no better one.

use std::path::PathBuf;

use clap::Args;
use iccl_runtime::comm::Choices;
use iccl_runtime::plan::Plan;

use crate::choices::Table;
use crate::cluster::Cluster;
use crate::context::Context;
use crate::failure::{Failure, Outcome, Result};
use crate::placement::Placement;
use crate::print;

pub(crate) const EXAMPLES: &str = "\
Examples:
  iccl plan -n 4                           a dry run for 4 ranks of this machine
  iccl plan -n 4 --hosts 2                 as if they were on 2 hosts
  iccl plan --ranks-per-host 3,1           as if 3 were on one host and 1 on another
  iccl plan --host-ids a,b,a,b             interleaved over two hosts
  iccl plan --cluster four-vendors.toml    for a cluster that is described in a file
  iccl plan -n 4 --collectives             which algorithm carries what, at which size, and why
  mpirun -n 4 iccl plan                    the real plan of the ranks that mpirun starts
  iccl plan -n 4 --json | jq '.links[] | {src, dst, tier}'

Without a launcher this is a dry run: what every rank would tell the others is taken from this
process, and nothing is opened. Under a launcher (iccl run, torchrun, mpirun, srun, …) the ranks
meet, try what has to be tried, and rank 0 prints the plan that they agreed on. docs/plan.md
explains every tier, reason and key.";

/// The ranks of a dry run that says nothing else.
const DEFAULT_RANKS: u32 = 2;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Plan for this many ranks of this machine [default: 2].
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,
    #[command(flatten)]
    placement: Placement,
    /// Plan for the cluster of this file. No device has to be there.
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["ranks", "hosts", "ranks_per_host", "host_ids"])]
    cluster: Option<PathBuf>,
    /// Show who does which collective, type and operation at which size, and how long it should take.
    #[arg(long)]
    collectives: bool,
}

pub(crate) fn show(context: &Context, arguments: &Arguments) -> Result {
    if let Some(file) = &arguments.cluster {
        let cluster = Cluster::read(file)?;
        let runtime = context.runtime()?;
        let plan = runtime.dry_plan_of(&cluster.dry_ranks()).map_err(Failure::from)?;
        if !context.is_json() {
            print::text(&format!("# {}\n", cluster.summary()))?;
        }
        answer(context, arguments, &plan, &runtime.choices(&plan)?)?;
        return Ok(Outcome::Right);
    }
    let runtime = context.runtime()?;
    let asked = arguments.ranks.or(arguments.placement.ranks());
    if asked.is_none() && arguments.placement.hosts.is_none() && runtime.identity()?.is_some() {
        let communicator = runtime.world()?;
        if communicator.rank() == 0 {
            answer(context, arguments, communicator.plan(), &communicator.choices())?;
        }
        communicator.finalize()?;
        return Ok(Outcome::Right);
    }
    let ranks = asked.or(arguments.placement.hosts).unwrap_or(DEFAULT_RANKS);
    let hosts = match arguments.placement.host_ids(ranks)? {
        Some(ids) => ids.into_iter().map(Some).collect(),
        None => vec![None; ranks as usize],
    };
    let plan = runtime.dry_plan(&hosts).map_err(Failure::from)?;
    answer(context, arguments, &plan, &runtime.choices(&plan)?)?;
    Ok(Outcome::Right)
}

fn answer(context: &Context, arguments: &Arguments, plan: &Plan, choices: &Choices) -> Result<()> {
    if arguments.collectives {
        let table = Table::new(choices, plan);
        return if context.is_json() { print::json(&table) } else { print::text(&table.text()) };
    }
    let report = plan.report();
    if context.is_json() { print::json(&report) } else { print::text(&report.to_string()) }
}
