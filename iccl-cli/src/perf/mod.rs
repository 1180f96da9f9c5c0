//! `iccl perf`: measures collectives and verifies every element.
//!
//! [`choices`] reads the command line, [`benchmark`] knows the operations, [`measure`] runs them,
//! [`table`] shows the rows. Verification: [`oracle`] knows inputs and reductions, [`encode`] turns exact
//! numbers into bits, [`layout`] says which of them belong where, as an [`image`] of each buffer,
//! [`pattern`] compares, [`arena`] guards. [`overlap`] computes
//! meanwhile. None of it shares code with the kernels and schedules that it
//! judges. [`mod@matrix`] is all of that on every combination of a cluster's nodes.

mod arena;
mod benchmark;
mod choices;
mod encode;
mod image;
mod layout;
mod matrix;
mod measure;
mod oracle;
mod overlap;
mod pattern;
mod progress;
mod table;
mod team;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::ErrorKind;
use iccl_runtime::bootstrap::{Identity, IdentitySettings};
use iccl_runtime::comm::{Communicator, Runtime};
use iccl_runtime::config::{Accumulate, Config};

use crate::cluster::{Cluster, ClusterArguments, SIMULATED_HOST};
use crate::context::Context;
use crate::failure::{Failure, Outcome, Result};
use crate::placement::Placement;
use crate::print;
use crate::run::job::{Ending, Job, Place, Show, Signals};
use benchmark::{Case, Operation};
use choices::{Root, Size, Sizes, Step, cases, choose};
use measure::{Bench, Effort};
use progress::Progress;
use table::{Row, Totals};

pub(crate) const EXAMPLES: &str = "\
Examples:
  iccl perf all_reduce -n 4 -b 8 -e 64M -f 2 --dtype bf16 --op avg
  iccl perf all_reduce -n 4 --dtype all --op all -b 1M -e 1M
  iccl perf broadcast -n 3 --root all -b 1 -e 64 -i 1 --dtype u8
  iccl perf all_to_all -n 4 -e 1M          a size is that of a rank's whole vector, all blocks
  iccl perf all -n 4                       every collective, type and op, on three sizes
  iccl perf all_reduce -n 4 --hosts 2      as if on two hosts
  iccl perf reduce_scatter -b 1M --overlap how much is hidden behind computation
  iccl perf all --cluster cluster.toml     on simulated cards, as a file describes them
  iccl perf matrix --cluster cluster.toml  whether every combination of its nodes is right
  mpirun -n 4 iccl perf all_reduce         the ranks that a launcher started
  iccl perf all_reduce -n 2 --json | jq '.[] | {size_bytes, busbw: .in_place.busbw_gb_per_s}'

Before every verified iteration the inputs are changed and the outputs poisoned; then every element
and the memory around the buffers is compared with the exact result. The time is the slowest rank's
average. algbw and busbw are defined as in nccl-tests.

Exit status: 1 if an element is wrong, an operation failed, or nothing could be measured.";

/// The ranks that are started where nobody says how many.
const DEFAULT_RANKS: u32 = 2;

/// How long the other ranks may say what they saw when one has failed.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Args)]
#[allow(clippy::struct_excessive_bools)] // Each is a switch of the command line.
pub(crate) struct Arguments {
    /// The collective, or all of them.
    #[arg(value_enum)]
    collective: Which,
    /// Start this many ranks here, unless a launcher has started them [default: 2].
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: Option<u32>,
    /// The smallest size in bytes: 8, 64K, 1M [default: 8].
    #[arg(short = 'b', long, value_name = "SIZE")]
    min_bytes: Option<Size>,
    /// The largest size in bytes [default: 64M; 1M for `all`].
    #[arg(short = 'e', long, value_name = "SIZE")]
    max_bytes: Option<Size>,
    /// Multiply the size by this from row to row [default: 2; 128 for `all`].
    #[arg(short = 'f', long, value_name = "N", conflicts_with = "step_bytes",
          value_parser = clap::value_parser!(u64).range(2..))]
    step_factor: Option<u64>,
    /// Add this to the size from row to row.
    #[arg(short = 'i', long, value_name = "SIZE")]
    step_bytes: Option<Size>,
    /// Element types: a list, or all [default: f32; all for `all`].
    #[arg(short = 'd', long, value_name = "LIST", value_delimiter = ',')]
    dtype: Vec<String>,
    /// Reduction operations: a list of sum, prod, min, max, avg, premulsum, and for integers band, bor,
    /// bxor; or all that a type has [default: sum; all for `all`].
    #[arg(short = 'o', long, value_name = "LIST", value_delimiter = ',')]
    op: Vec<String>,
    /// The root of a reduce, broadcast, gather or scatter: a rank, or all in turn.
    #[arg(short = 'r', long, value_name = "RANK", default_value = "0")]
    root: Root,
    /// Measured iterations [default: 20; 3 for `all`].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    iters: Option<u32>,
    /// Iterations before the clock starts [default: 5; 1 for `all`].
    #[arg(short = 'w', long, value_name = "N")]
    warmup: Option<u32>,
    /// Verified iterations for each row; 0 verifies nothing.
    #[arg(short = 'c', long, value_name = "N", default_value = "1")]
    check: u32,
    /// Wait for each operation before the next is enqueued: latency instead of throughput.
    #[arg(short = 'z', long)]
    blocking: bool,
    /// Only with one buffer for input and output.
    #[arg(long, conflicts_with = "out_of_place_only")]
    in_place_only: bool,
    /// Only with two buffers.
    #[arg(long)]
    out_of_place_only: bool,
    /// Also measure how much of the operation is hidden behind computation.
    #[arg(long)]
    overlap: bool,
    #[command(flatten)]
    placement: Placement,
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The part of the matrix that is this rank's.
    #[arg(long, hide = true, requires = "matrix_report")]
    matrix_part: Option<String>,
    /// Where rank 0 writes what came out.
    #[arg(long, hide = true)]
    matrix_report: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    One(Operation),
    All,
    /// All combinations of a cluster's nodes.
    Matrix,
}

impl ValueEnum for Which {
    fn value_variants<'a>() -> &'a [Self] {
        const VARIANTS: [Which; Operation::ALL.len() + 2] = {
            let mut all = [Which::All; Operation::ALL.len() + 2];
            all[Operation::ALL.len() + 1] = Which::Matrix;
            let mut place = 0;
            while place < Operation::ALL.len() {
                all[place] = Which::One(Operation::ALL[place]);
                place += 1;
            }
            all
        };
        &VARIANTS
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        match self {
            Self::One(operation) => operation.to_possible_value(),
            Self::All => Some(clap::builder::PossibleValue::new("all").help("Every one of them")),
            Self::Matrix => Some(
                clap::builder::PossibleValue::new("matrix")
                    .help("Whether every combination of the nodes of --cluster is right"),
            ),
        }
    }
}

/// The arguments with their defaults, checked.
struct Request {
    operations: Vec<Operation>,
    dtypes: Vec<DataType>,
    ops: Vec<RedOp>,
    root: Root,
    sizes: Sizes,
    effort: Effort,
}

impl Arguments {
    fn request(&self) -> Result<Request> {
        let is_matrix = self.collective == Which::Matrix;
        let is_all = self.collective == Which::All;
        let smallest = self.min_bytes.unwrap_or(Size(if is_matrix { 256 } else { 8 })).0;
        let usual = if is_all || is_matrix { 1 << 20 } else { 64 << 20 };
        let largest = self.max_bytes.map_or(usual.max(smallest), |size| size.0);
        if largest < smallest {
            return Err(Failure::usage(format!(
                "the largest size ({largest} bytes) is below the smallest ({smallest})"
            )));
        }
        let step = match self.step_bytes {
            Some(Size(0)) => return Err(Failure::usage("sizes that grow by 0 bytes never end")),
            Some(Size(bytes)) => Step::Plus(bytes),
            None => Step::Times(self.step_factor.unwrap_or(match self.collective {
                Which::All => 128,
                Which::Matrix => 16,
                Which::One(_) => 2,
            })),
        };
        let every_dtype = DataType::ALL;
        let dtypes = if is_all { every_dtype } else { &[DataType::F32] };
        let ops = if is_all { RedOp::ALL } else { &[RedOp::Sum] };
        Ok(Request {
            operations: match self.collective {
                Which::One(operation) => vec![operation],
                Which::All | Which::Matrix => Operation::ALL.to_vec(),
            },
            dtypes: choose("type", &self.dtype, every_dtype, DataType::name, dtypes)?,
            ops: choose("op", &self.op, RedOp::ALL, RedOp::name, ops)?,
            root: self.root,
            sizes: Sizes { smallest, largest, step },
            effort: Effort {
                warmup: self.warmup.unwrap_or(if is_all { 1 } else { 5 }),
                iterations: self.iters.unwrap_or(if is_all { 3 } else { 20 }),
                checks: self.check,
                blocking: self.blocking,
                out_of_place: !self.in_place_only,
                in_place: !self.out_of_place_only,
                overlap: self.overlap,
            },
        })
    }
}

impl Arguments {
    /// The matrix chooses types, operations and placements itself.
    fn check_matrix(&self) -> Result<()> {
        let is_chosen = !self.dtype.is_empty() || !self.op.is_empty() || self.root != Root::Rank(0);
        let is_tuned = self.iters.is_some() || self.warmup.is_some() || self.check != 1;
        let is_placed = self.in_place_only || self.out_of_place_only;
        if is_chosen || is_tuned || is_placed || self.overlap || self.blocking {
            return Err(Failure::usage(
                "perf matrix takes sizes (-b, -e, -f, -i) and a cluster only",
            ));
        }
        Ok(())
    }
}

pub(crate) fn perf(context: &Context, arguments: &Arguments) -> Result {
    let request = arguments.request()?;
    let config = context.config()?;
    let asked = arguments.ranks.or(arguments.placement.ranks());
    let launched = launched(&config)?;
    let is_rank_of_cluster = config.environment().get(SIMULATED_HOST).is_some();
    if arguments.cluster.cluster.is_some() && launched.is_some() && !is_rank_of_cluster {
        return Err(Failure::usage(
            "--cluster starts the ranks itself, and a launcher has started this one",
        )
        .with_hint("leave --cluster to the launcher: iccl run --cluster FILE -- iccl perf …"));
    }
    if arguments.collective == Which::Matrix && arguments.matrix_part.is_none() {
        arguments.check_matrix()?;
        return matrix::matrix(context, arguments);
    }
    let Some(size) = launched else {
        let cluster = arguments.cluster.read()?;
        let asked = asked.or(arguments.placement.hosts).unwrap_or(DEFAULT_RANKS);
        let ranks = cluster.as_ref().map_or(asked, Cluster::ranks);
        if let Root::Rank(root) = request.root {
            check_root(&request, root, ranks)?;
        }
        let Some(cluster) = cluster else {
            return start_ranks(ranks, arguments.placement.places(ranks)?);
        };
        let stage = arguments.cluster.stage(&cluster)?;
        return start_ranks(ranks, stage.places());
    };
    if let Some(asked) = arguments.ranks
        && asked != size
    {
        return Err(Failure::usage(format!("-n {asked}, but the launcher started {size} ranks"))
            .with_hint("leave -n to the launcher"));
    }
    let runtime = Runtime::with_config(config)?;
    let communicator = runtime.world()?;
    if let (Some(part), Some(report)) = (&arguments.matrix_part, &arguments.matrix_report) {
        let outcome = matrix::run_part(&runtime, &communicator, part, &request.sizes, report);
        communicator.finalize()?;
        return outcome;
    }
    let wide_sums = runtime.config().numerics.accumulate == Accumulate::F32;
    let outcome = Run { context, request, communicator: &communicator, wide_sums }.run();
    communicator.finalize()?;
    outcome
}

/// How many ranks a launcher started, this one among them.
fn launched(config: &Config) -> Result<Option<u32>> {
    let settings = IdentitySettings::from_config(config)?;
    let identity = Identity::discover(config.environment(), &settings)?;
    Ok(identity.map(|identity| identity.world_size))
}

fn check_root(request: &Request, root: u32, ranks: u32) -> Result<()> {
    if root >= ranks && request.operations.iter().any(|one| one.has_root()) {
        return Err(Failure::usage(format!("--root {root}: there are {ranks} ranks")));
    }
    Ok(())
}

/// Runs this command line again as `ranks` ranks.
fn start_ranks(ranks: u32, places: Vec<Place>) -> Result {
    let mut command: Vec<OsString> = vec!["/proc/self/exe".into()];
    command.extend(std::env::args_os().skip(1));
    start_command(&Signals::listen()?, ranks, places, command)
}

fn start_command(
    signals: &Signals,
    ranks: u32,
    places: Vec<Place>,
    command: Vec<OsString>,
) -> Result {
    let environment = Vec::new();
    let show = Show::RankZero;
    let report = Job { ranks, places, command, environment, grace: GRACE, show }.run(signals)?;
    let Some(culprit) = report.culprit else { return Ok(Outcome::Right) };
    match culprit.ending {
        // It has said what is wrong.
        Ending::Status(1) => Ok(Outcome::CheckFailed),
        Ending::Status(2) => Ok(Outcome::Status(2)),
        Ending::Signal(_) if report.asked_to_end.is_some() => Ok(Outcome::Status(report.status())),
        _ => Err(Failure::new(culprit.to_string())),
    }
}

/// One rank's part.
struct Run<'a> {
    context: &'a Context,
    request: Request,
    communicator: &'a Communicator,
    wide_sums: bool,
}

impl Run<'_> {
    fn run(&self) -> Result {
        let Request { operations, dtypes, ops, root, sizes, effort } = &self.request;
        let ranks = self.communicator.ranks();
        if let Root::Rank(root) = *root {
            check_root(&self.request, root, ranks)?;
        }
        let cases = cases(operations, dtypes, ops, *root, ranks);
        let mut bench = Bench::new(self.communicator, *effort, sizes.largest, self.wide_sums)?;
        let is_first = bench.is_first();
        let shows_table = is_first && !self.context.is_json();
        if shows_table {
            print::text(&table::head(self.communicator, &self.effort_text()))?;
        }
        let counts: Vec<Vec<u64>> = cases.iter().map(|case| self.counts(case)).collect();
        let mut progress = Progress::new(shows_table, counts.iter().map(Vec::len).sum());
        let mut rows: Vec<Row> = Vec::new();
        let mut totals = Totals::default();
        let mut operation = None;
        for (case, counts) in cases.iter().zip(counts) {
            if shows_table && operation != Some(case.operation) {
                operation = Some(case.operation);
                progress.clear();
                print::text(&table::column_heads(&case.operation.to_string(), effort.overlap))?;
            }
            for count in counts {
                progress.show(rows.len(), &format!("{case}, {count} elements"));
                let row = self.row(&mut bench, case, count)?;
                progress.clear();
                let is_skipped = row.is_skipped();
                totals.add(&row);
                if shows_table {
                    print::text(&row.line())?;
                }
                rows.push(row);
                if is_skipped {
                    break;
                }
            }
        }
        if is_first && self.context.is_json() {
            print::json(&rows)?;
        } else if shows_table {
            print::text(&totals.foot())?;
        }
        let is_right = totals.wrong() == 0 && bench.wrong_here() == 0 && !totals.is_empty();
        Ok(if is_right { Outcome::Right } else { Outcome::CheckFailed })
    }

    fn counts(&self, case: &Case) -> Vec<u64> {
        if !case.operation.moves_elements() {
            return vec![0];
        }
        let element_bytes = case.dtype.size_bytes() as u64;
        let ranks = self.communicator.ranks();
        self.request.sizes.counts(case.operation.size_bytes(ranks, 1, element_bytes))
    }

    /// Measures a row, or says why it cannot be. What is not supported is so on every rank.
    fn row(&self, bench: &mut Bench, case: &Case, count: u64) -> Result<Row> {
        let ranks = self.communicator.ranks();
        let fewest = case.operation.fewest_ranks();
        if ranks < fewest {
            return Ok(Row::skipped(case, ranks, format!("it takes {fewest} ranks")));
        }
        let op = case.op.unwrap_or(RedOp::Sum);
        let explained =
            self.communicator.explain(case.operation.collective(), case.dtype, op, count);
        let algorithm = explained.ok().map(|choice| choice.algorithm.name());
        match bench.row(case, count) {
            Ok(figures) => Ok(Row::measured(case, ranks, count, algorithm, figures)),
            Err(failure) if failure.kind() == Some(ErrorKind::NotSupported) => {
                Ok(Row::skipped(case, ranks, failure.message().to_owned()))
            }
            Err(failure) => Err(failure),
        }
    }

    fn effort_text(&self) -> String {
        let Effort { warmup, iterations, checks, blocking, overlap, .. } = self.request.effort;
        let how = if blocking { "one at a time" } else { "enqueued together" };
        let checked = match checks {
            0 => "nothing verified".to_owned(),
            1 => "every element of one more iteration verified".to_owned(),
            more => format!("every element of {more} more iterations verified"),
        };
        let computed = if overlap {
            "; hidden: behind a computation as long, on each rank's thread"
        } else {
            ""
        };
        format!(
            "{warmup} iterations to warm up, {iterations} measured ({how}), {checked}{computed}"
        )
    }
}
