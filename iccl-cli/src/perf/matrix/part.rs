//! What the ranks of one part do: operations, each verified on every rank.

use std::path::Path;

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::comm::{Buffer, Communicator, Element, Runtime};
use iccl_runtime::config::Accumulate;
use serde::{Deserialize, Serialize};

use super::super::benchmark::{Case, Operation};
use super::super::choices::Sizes;
use super::super::measure::{Bench, Effort};
use super::super::team::Team;
use super::checks::CHECKS;
use super::{COLLECTIVES, write_report};
use crate::failure::{Failure, Outcome, Result};

/// The collectives of the experiment.
const MEASURED: [Operation; 3] = [Operation::AllReduce, Operation::AllGather, Operation::Sendrecv];

/// One verified operation.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) what: String,
    pub(super) size_bytes: u64,
    pub(super) time_us: f64,
    /// Over all ranks.
    pub(super) wrong: u64,
}

/// One rank's part.
pub(in crate::perf) fn run(
    runtime: &Runtime,
    communicator: &Communicator,
    name: &str,
    sizes: &Sizes,
    report: &Path,
) -> Result {
    let mut ranks = Ranks::new(runtime, communicator, sizes.largest)?;
    if name == COLLECTIVES {
        ranks.collectives(sizes)?;
    } else {
        let check = CHECKS
            .iter()
            .find(|check| check.name == name)
            .ok_or_else(|| Failure::usage(format!("perf matrix has no part {name}")))?;
        (check.run)(&mut ranks)?;
    }
    let wrong: u64 = ranks.lines.iter().map(|line| line.wrong).sum();
    if communicator.rank() == 0 {
        write_report(report, &ranks.lines)?;
    }
    Ok(if wrong == 0 { Outcome::Right } else { Outcome::CheckFailed })
}

/// The ranks, and what they found.
pub(super) struct Ranks<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) communicator: &'a Communicator,
    team: Team<'a>,
    most_bytes: u64,
    wide_sums: bool,
    lines: Vec<Line>,
}

/// What was found on this rank alone; [`Ranks::all_agree`] makes a line of it.
#[derive(Default)]
pub(super) struct Found {
    wrong: u64,
}

impl Found {
    pub(super) fn compare<T: Element + PartialEq>(
        &mut self,
        buffer: &Buffer,
        expected: &[T],
    ) -> Result<()> {
        let found: Vec<T> = buffer.read()?;
        let differ = found.iter().zip(expected).filter(|(found, expected)| found != expected);
        self.wrong += (differ.count() + found.len().abs_diff(expected.len())) as u64;
        Ok(())
    }
}

impl<'a> Ranks<'a> {
    fn new(runtime: &'a Runtime, communicator: &'a Communicator, most_bytes: u64) -> Result<Self> {
        Ok(Self {
            runtime,
            communicator,
            team: Team::new(communicator)?,
            most_bytes: most_bytes.max(1 << 20),
            wide_sums: runtime.config().numerics.accumulate == Accumulate::F32,
            lines: Vec::new(),
        })
    }

    fn bench(&self, effort: Effort) -> Result<Bench<'a>> {
        Bench::new(self.communicator, effort, self.most_bytes, self.wide_sums)
    }

    fn collectives(&mut self, sizes: &Sizes) -> Result<()> {
        let effort = Effort { warmup: 1, iterations: 3, ..ONCE };
        let mut bench = self.bench(effort)?;
        let ranks = self.communicator.ranks();
        for operation in MEASURED {
            let case = f32_sum(operation);
            for count in sizes.counts(operation.size_bytes(ranks, 1, 4)) {
                self.verify(&mut bench, &case, count)?;
            }
        }
        Ok(())
    }

    /// Operations on the usual machinery of `iccl perf`: new inputs, poisoned outputs, guards.
    pub(super) fn cases(
        &mut self,
        cases: &[Case],
        counts: &[u64],
        only_in_place: bool,
    ) -> Result<()> {
        let mut bench = self.bench(Effort { out_of_place: !only_in_place, ..ONCE })?;
        for case in cases {
            for count in counts {
                self.verify(&mut bench, case, *count)?;
            }
        }
        Ok(())
    }

    fn verify(&mut self, bench: &mut Bench, case: &Case, count: u64) -> Result<()> {
        let (out_of_place, in_place) = bench.row(case, count)?;
        let element_bytes = case.dtype.size_bytes() as u64;
        let time = out_of_place.or(in_place).map_or(0.0, |one| one.time.as_secs_f64() * 1e6);
        let placements = [out_of_place, in_place].into_iter().flatten();
        self.lines.push(Line {
            what: case.to_string(),
            size_bytes: case.operation.size_bytes(self.communicator.ranks(), count, element_bytes),
            time_us: time,
            // Something that was not looked at is not right.
            wrong: placements.map(|one| one.wrong.unwrap_or(1)).sum(),
        });
        Ok(())
    }

    /// Ends an operation of a check: what every rank found.
    pub(super) fn all_agree(&mut self, what: &str, found: &Found) -> Result<()> {
        let wrong = self.team.sum(found.wrong)?;
        self.lines.push(Line { what: what.to_owned(), size_bytes: 0, time_us: 0.0, wrong });
        Ok(())
    }
}

const ONCE: Effort = Effort {
    warmup: 0,
    iterations: 1,
    checks: 1,
    blocking: false,
    out_of_place: true,
    in_place: true,
    overlap: false,
};

/// An operation on `f32`; a sum where it reduces.
pub(super) fn f32_sum(operation: Operation) -> Case {
    Case {
        operation,
        dtype: DataType::F32,
        op: operation.reduces().then_some(RedOp::Sum),
        root: operation.has_root().then_some(0),
    }
}
