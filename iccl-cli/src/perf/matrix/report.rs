//! What `iccl perf matrix` says.

use serde::Serialize;

use super::checks::Check;
use super::part::Line;
use crate::cluster::Cluster;
use crate::failure::Result;
use crate::print;

/// All of it.
#[derive(Debug, Default, Serialize)]
pub(super) struct Answer {
    pub(super) results: Vec<ResultRow>,
    pub(super) checks: Vec<CheckRow>,
}

/// One collective of one size on one combination of nodes.
#[derive(Debug, Serialize)]
pub(super) struct ResultRow {
    nodes: Vec<String>,
    ranks: u32,
    collective: String,
    size_bytes: Option<u64>,
    /// The slowest rank's average.
    time_us: Option<f64>,
    /// Elements that differ, over all ranks, out of place and in place.
    wrong: Option<u64>,
    /// Why there is no result.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

/// One of the further checks.
#[derive(Debug, Serialize)]
pub(super) struct CheckRow {
    check: &'static str,
    what: &'static str,
    nodes: Vec<String>,
    ranks: u32,
    /// How many operations were verified.
    operations: u64,
    wrong: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

fn names(cluster: &Cluster) -> Vec<String> {
    cluster.nodes.iter().map(|node| format!("{} {}", node.name, node.cards)).collect()
}

impl ResultRow {
    pub(super) fn of(cluster: &Cluster, lines: Result<Vec<Line>, String>) -> Vec<Self> {
        let row = |collective: String| Self {
            nodes: names(cluster),
            ranks: cluster.ranks(),
            collective,
            size_bytes: None,
            time_us: None,
            wrong: None,
            failed: None,
        };
        match lines {
            Ok(lines) => lines
                .into_iter()
                .map(|line| Self {
                    size_bytes: Some(line.size_bytes),
                    time_us: Some(line.time_us),
                    wrong: Some(line.wrong),
                    ..row(line.what)
                })
                .collect(),
            Err(why) => vec![Self { failed: Some(why), ..row("all".to_owned()) }],
        }
    }

    fn is_right(&self) -> bool {
        self.wrong == Some(0)
    }
}

impl CheckRow {
    pub(super) fn of(check: &Check, cluster: &Cluster, lines: Result<Vec<Line>, String>) -> Self {
        let mut row = Self {
            check: check.name,
            what: check.what,
            nodes: names(cluster),
            ranks: cluster.ranks(),
            operations: 0,
            wrong: None,
            failed: None,
        };
        match lines {
            Ok(lines) => {
                row.operations = lines.len() as u64;
                row.wrong = Some(lines.iter().map(|line| line.wrong).sum());
            }
            Err(why) => row.failed = Some(why),
        }
        row
    }

    /// A check that verified nothing is not right.
    fn is_right(&self) -> bool {
        self.wrong == Some(0) && self.operations > 0
    }
}

impl Answer {
    pub(super) fn is_right(&self) -> bool {
        !self.results.is_empty()
            && self.results.iter().all(ResultRow::is_right)
            && self.checks.iter().all(CheckRow::is_right)
    }

    pub(super) fn print(&self, as_json: bool) -> Result<()> {
        if as_json { print::json(self) } else { print::text(&self.text()) }
    }

    fn text(&self) -> String {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let verdict = |wrong: Option<u64>, failed: &Option<String>| match (wrong, failed) {
            (_, Some(why)) => format!("FAILED: {why}"),
            (Some(0), _) => "0".to_owned(),
            (wrong, _) => format!("{} WRONG", or_dash(wrong.map(|wrong| wrong.to_string()))),
        };
        let results = self.results.iter().map(|row| {
            vec![
                row.nodes.join(" + "),
                row.ranks.to_string(),
                row.collective.clone(),
                or_dash(row.size_bytes.map(|bytes| bytes.to_string())),
                or_dash(row.time_us.map(|time| format!("{time:.0}"))),
                verdict(row.wrong, &row.failed),
            ]
        });
        let heads = ["nodes and cards", "ranks", "collective", "bytes", "us", "wrong elements"];
        let mut text = print::table(&heads, results.collect());
        let checks = self.checks.iter().map(|row| {
            vec![
                row.what.to_owned(),
                row.nodes.join(" + "),
                row.ranks.to_string(),
                row.operations.to_string(),
                verdict(row.wrong, &row.failed),
            ]
        });
        let heads = ["check", "nodes and cards", "ranks", "operations", "wrong elements"];
        text.push('\n');
        text += &print::table(&heads, checks.collect());
        let right = |all: usize, right: usize| format!("{right} of {all} right");
        let good_results = self.results.iter().filter(|row| row.is_right()).count();
        let good_checks = self.checks.iter().filter(|row| row.is_right()).count();
        let results = right(self.results.len(), good_results);
        let checks = right(self.checks.len(), good_checks);
        text + &format!("\nresults: {results}; checks: {checks}\n")
    }
}
