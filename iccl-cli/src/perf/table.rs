//! nccl-tests' table, and the same rows as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use iccl_plugin_api::RedOp;
use iccl_runtime::comm::Communicator;
use iccl_runtime::plan::{PlanReport, Tier};
use serde::Serialize;

use super::benchmark::Case;
use super::measure::Measurement;
use super::overlap::Overlap;

/// Links are listed one by one up to this many ranks.
const MOST_RANKS_WITH_LINKS: usize = 8;

/// A row of the answer.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    collective: String,
    dtype: Option<&'static str>,
    op: Option<&'static str>,
    root: Option<u32>,
    ranks: u32,
    size_bytes: u64,
    count: u64,
    algorithm: Option<&'static str>,
    out_of_place: Option<Figures>,
    in_place: Option<Figures>,
    /// Why it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<String>,
}

/// The figures of one placement.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Figures {
    time_us: f64,
    /// In 10⁹ bytes per second.
    algbw_gb_per_s: f64,
    busbw_gb_per_s: f64,
    wrong: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overlap: Option<OverlapFigures>,
}

/// What was measured with `--overlap`.
#[derive(Clone, Copy, Debug, Serialize)]
struct OverlapFigures {
    communication_us: f64,
    computation_us: f64,
    both_us: f64,
    /// The part of the shorter of communication and computation that cost no time.
    hidden: f64,
}

impl OverlapFigures {
    fn new(overlap: Overlap) -> Self {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        Self {
            communication_us: us(overlap.communication),
            computation_us: us(overlap.computation),
            both_us: us(overlap.both),
            hidden: overlap.hidden(),
        }
    }
}

impl Figures {
    fn new(case: &Case, ranks: u32, bytes: u64, measurement: Measurement) -> Self {
        let seconds = measurement.time.max(Duration::from_nanos(1)).as_secs_f64();
        let algorithm = bytes as f64 / 1e9 / seconds;
        Self {
            time_us: measurement.time.as_secs_f64() * 1e6,
            algbw_gb_per_s: algorithm,
            busbw_gb_per_s: algorithm * case.operation.bus_factor(ranks),
            wrong: measurement.wrong,
            overlap: measurement.overlap.map(OverlapFigures::new),
        }
    }
}

impl Row {
    pub(super) fn measured(
        case: &Case,
        ranks: u32,
        count: u64,
        algorithm: Option<&'static str>,
        (out_of_place, in_place): (Option<Measurement>, Option<Measurement>),
    ) -> Self {
        let element_bytes = case.dtype.size_bytes() as u64;
        let size_bytes = case.operation.size_bytes(ranks, count, element_bytes);
        let figures = |one: Option<Measurement>| {
            one.map(|measurement| Figures::new(case, ranks, size_bytes, measurement))
        };
        Self {
            algorithm,
            out_of_place: figures(out_of_place),
            in_place: figures(in_place),
            count,
            size_bytes,
            ..Self::skipped(case, ranks, String::new())
        }
        .without_reason()
    }

    pub(super) fn skipped(case: &Case, ranks: u32, why: String) -> Self {
        Self {
            collective: case.operation.to_string(),
            dtype: case.operation.moves_elements().then(|| case.dtype.name()),
            op: case.op.map(RedOp::name),
            root: case.root,
            ranks,
            size_bytes: 0,
            count: 0,
            algorithm: None,
            out_of_place: None,
            in_place: None,
            skipped: Some(why),
        }
    }

    fn without_reason(mut self) -> Self {
        self.skipped = None;
        self
    }

    fn has_overlap(&self) -> bool {
        self.placements().any(|figures| figures.overlap.is_some())
    }

    fn placements(&self) -> impl Iterator<Item = Figures> {
        [self.out_of_place, self.in_place].into_iter().flatten()
    }

    pub(super) fn is_skipped(&self) -> bool {
        self.skipped.is_some()
    }

    /// The line of the table.
    pub(super) fn line(&self) -> String {
        if let Some(why) = &self.skipped {
            let words = [Some(self.collective.as_str()), self.dtype, self.op];
            let what: Vec<&str> = words.into_iter().flatten().collect();
            return format!("# skipped: {}: {why}\n", what.join(" "));
        }
        let root = self.root.map_or("-1".to_owned(), |root| root.to_string());
        let mut line = format!(
            "{:>12}  {:>12}  {:>6}  {:>6}  {:>4}",
            self.size_bytes,
            self.count,
            self.dtype.unwrap_or("none"),
            self.op.unwrap_or("none"),
            root
        );
        for figures in [self.out_of_place, self.in_place] {
            if let Some(figures) = figures {
                let wrong = figures.wrong.map_or("N/A".to_owned(), |wrong| wrong.to_string());
                let _ = write!(
                    line,
                    "  {:>8}  {:>6.2}  {:>6.2}  {wrong:>6}",
                    time(figures.time_us),
                    figures.algbw_gb_per_s,
                    figures.busbw_gb_per_s,
                );
                if let Some(overlap) = figures.overlap {
                    let _ = write!(line, "  {:>6.1}", overlap.hidden * 100.0);
                }
            } else {
                let _ = write!(line, "  {:>8}  {:>6}  {:>6}  {:>6}", "N/A", "N/A", "N/A", "N/A");
                if self.has_overlap() {
                    let _ = write!(line, "  {:>6}", "N/A");
                }
            }
        }
        let _ = writeln!(line, "  {}", self.algorithm.unwrap_or("-"));
        line
    }
}

/// As many digits as say something.
fn time(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.2}"),
        us if us < 10_000.0 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

/// The lines above the table.
pub(super) fn head(communicator: &Communicator, effort: &str) -> String {
    let report = communicator.plan().report();
    format!(
        "# iccl {}: {}, device {} on rank 0\n# {}\n# {effort}\n",
        env!("CARGO_PKG_VERSION"),
        report.summary(),
        communicator.device(),
        links(&report),
    )
}

/// `links: 0-1 shm, 0-2 tcp, …`
fn links(report: &PlanReport) -> String {
    if report.ranks == 1 {
        return "links: none, one rank".to_owned();
    }
    match &report.links {
        Some(links) if report.ranks <= MOST_RANKS_WITH_LINKS => {
            let links: Vec<String> = links
                .iter()
                .map(|link| format!("{}-{} {}", link.src, link.dst, link.chosen.tier))
                .collect();
            format!("links: {}", links.join(", "))
        }
        _ => {
            let tiers = report.tiers.iter().filter(|(tier, _)| **tier != Tier::SelfCopy);
            let tiers: Vec<String> = tiers.map(|(tier, links)| format!("{links} {tier}")).collect();
            format!("links: {} (`iccl plan` lists them)", tiers.join(", "))
        }
    }
}

/// The heads of the columns, as nccl-tests has them, and one more for what is hidden.
pub(super) fn column_heads(operation: &str, with_overlap: bool) -> String {
    let width = if with_overlap { 40 } else { 32 };
    let group = |name: &str| format!("  {name:^width$}");
    let figures = |names: [&str; 4], hidden: &str| {
        let [time, algbw, busbw, wrong] = names;
        let hidden = if with_overlap { format!("  {hidden:>6}") } else { String::new() };
        format!("  {time:>8}  {algbw:>6}  {busbw:>6}  {wrong:>6}{hidden}")
    };
    let named = figures(["time", "algbw", "busbw", "#wrong"], "hidden");
    let units = figures(["(us)", "(GB/s)", "(GB/s)", ""], "(%)");
    let line = |first: &str, rest: [&str; 4], figures: &str| {
        let [count, dtype, op, root] = rest;
        let text =
            format!("#{first:>11}  {count:>12}  {dtype:>6}  {op:>6}  {root:>4}{figures}{figures}");
        text.trim_end().to_owned()
    };
    let groups = format!("{}{}", group("out-of-place"), group("in-place"));
    let first = format!("# {operation:<46}{groups}");
    format!(
        "#\n{}\n{}  algorithm\n{}\n",
        first.trim_end(),
        line("size", ["count", "type", "redop", "root"], &named),
        line("(B)", ["(elements)", "", "", ""], &units),
    )
}

/// What all rows come to.
#[derive(Debug, Default)]
pub(super) struct Totals {
    measured: u32,
    verified: u32,
    wrong: u64,
    bus_bandwidth: f64,
}

impl Totals {
    pub(super) fn add(&mut self, row: &Row) {
        for figures in row.placements() {
            self.measured += 1;
            self.bus_bandwidth += figures.busbw_gb_per_s;
            if let Some(wrong) = figures.wrong {
                self.verified += 1;
                self.wrong += wrong;
            }
        }
    }

    pub(super) fn wrong(&self) -> u64 {
        self.wrong
    }

    pub(super) fn is_empty(&self) -> bool {
        self.measured == 0
    }

    /// The lines below the table.
    pub(super) fn foot(&self) -> String {
        let average = self.bus_bandwidth / f64::from(self.measured.max(1));
        let verdict = match (self.verified, self.wrong) {
            (0, _) => "nothing was verified".to_owned(),
            (_, 0) => "0 OK".to_owned(),
            (_, wrong) => format!("{wrong} FAILED"),
        };
        format!("# Out of bounds values : {verdict}\n# Avg bus bandwidth    : {average:.4} GB/s\n")
    }
}
