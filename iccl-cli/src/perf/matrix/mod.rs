//! `iccl perf matrix`: whether every combination of a cluster's nodes computes what it should.
//!
//! Here the cluster is taken apart: every two or more of its nodes as a job of their own, then the whole
//! cluster laid out anew for each check. [`part`] is what the ranks of such a job do, [`checks`] what
//! the checks are, [`report`] what is said about it.

mod checks;
mod part;
mod report;

pub(super) use part::run as run_part;

use std::cmp::Reverse;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;

use super::{Arguments, start_command};
use crate::cluster::{Cluster, Node, Order};
use crate::context::Context;
use crate::failure::{Failure, Outcome, Result};
use crate::run::job::Signals;
use checks::{CHECKS, Cards, Check};
use report::{Answer, CheckRow, ResultRow};

/// More nodes have more combinations than anybody waits for.
const MOST_NODES: usize = 5;

/// The option by which a rank learns which part is its own, and where rank 0 writes what came out.
const PART: &str = "--matrix-part";
const REPORT: &str = "--matrix-report";

/// The name of the part that measures the collectives.
const COLLECTIVES: &str = "collectives";

/// Runs all parts, one job after the other.
pub(super) fn matrix(context: &Context, arguments: &Arguments) -> Result {
    let Some(cluster) = arguments.cluster.read()? else {
        return Err(Failure::usage("perf matrix needs a cluster")
            .with_hint("name one with --cluster FILE; docs/command.md says what is in it"));
    };
    if !(2..=MOST_NODES).contains(&cluster.nodes.len()) {
        let message = format!(
            "perf matrix takes 2 to {MOST_NODES} nodes, and the cluster has {}",
            cluster.nodes.len()
        );
        return Err(Failure::usage(message));
    }
    let jobs = Jobs { arguments, signals: Signals::listen()? };
    let shows_progress = std::io::stderr().is_terminal() && !context.is_json();
    let mut answer = Answer::default();
    for nodes in combinations(&cluster) {
        let part = Cluster::new(nodes, Order::ByNode);
        tell(shows_progress, COLLECTIVES, &part);
        answer.results.extend(ResultRow::of(&part, jobs.run(&part, COLLECTIVES)?));
    }
    for check in &CHECKS {
        let part = laid_out(&cluster, check);
        tell(shows_progress, check.name, &part);
        answer.checks.push(CheckRow::of(check, &part, jobs.run(&part, check.name)?));
    }
    answer.print(context.is_json())?;
    Ok(if answer.is_right() { Outcome::Right } else { Outcome::CheckFailed })
}

fn tell(shows_progress: bool, what: &str, part: &Cluster) {
    if shows_progress {
        eprintln!("# {what}: {}", part.summary());
    }
}

/// Every two nodes, then every three, …, then all; each in the order of the file.
fn combinations(cluster: &Cluster) -> Vec<Vec<Node>> {
    let nodes = &cluster.nodes;
    let mut chosen: Vec<u32> =
        (1..1_u32 << nodes.len()).filter(|set| set.count_ones() >= 2).collect();
    chosen.sort_by_key(|set| (set.count_ones(), Reverse(set.reverse_bits())));
    let members = |set: &u32| {
        let is_in = |number: &usize| set >> number & 1 == 1;
        (0..nodes.len()).filter(is_in).map(|number| nodes[number].clone()).collect()
    };
    chosen.iter().map(members).collect()
}

/// The cluster as a check wants it.
fn laid_out(cluster: &Cluster, check: &Check) -> Cluster {
    let mut nodes = cluster.nodes.clone();
    match check.cards {
        Cards::AsTheyAre => {}
        Cards::Each(pattern) => {
            for (node, cards) in nodes.iter_mut().zip(pattern.iter().cycle()) {
                node.cards = *cards;
            }
        }
        Cards::ThreeInAll => {
            nodes.truncate(3);
            let first = 4 - nodes.len() as u32;
            for (number, node) in nodes.iter_mut().enumerate() {
                node.cards = if number == 0 { first } else { 1 };
            }
        }
    }
    Cluster::new(nodes, check.order)
}

/// Starts this program as the ranks of one part after the other.
struct Jobs<'a> {
    arguments: &'a Arguments,
    signals: Signals,
}

impl Jobs<'_> {
    /// What the ranks said; or, inside, why they said nothing.
    fn run(&self, cluster: &Cluster, part: &str) -> Result<Result<Vec<part::Line>, String>> {
        let stage = self.arguments.cluster.stage(cluster)?;
        let mut command: Vec<OsString> = vec!["/proc/self/exe".into()];
        command.extend(std::env::args_os().skip(1));
        let file = stage.folder().join("report.json");
        command.extend([PART.into(), part.into(), REPORT.into(), file.clone().into()]);
        let ended = start_command(&self.signals, cluster.ranks(), stage.places(), command);
        match ended {
            Ok(Outcome::Right) => Ok(read_report(&file)),
            Ok(Outcome::CheckFailed) => Ok(read_report(&file).and_then(|lines| {
                if lines.iter().all(|line| line.wrong == 0) {
                    return Err("a rank failed when all results were there".to_owned());
                }
                Ok(lines)
            })),
            // Asked to end, or the command line is wrong.
            Ok(Outcome::Status(status)) => {
                Err(Failure::new(format!("{part}: ended early")).with_status(status))
            }
            Err(failure) => Ok(Err(failure.message().to_owned())),
        }
    }
}

/// What rank 0 of a job wrote.
fn read_report(file: &Path) -> Result<Vec<part::Line>, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|_| "a rank failed before there was a result".to_owned())?;
    serde_json::from_str(&text).map_err(|error| format!("the ranks' report: {error}"))
}

/// Rank 0's part of it.
fn write_report(file: &Path, lines: &[part::Line]) -> Result<()> {
    let text = serde_json::to_string(lines)
        .map_err(|error| Failure::new(format!("the report is no JSON: {error}")))?;
    std::fs::write(file, text)
        .map_err(|error| Failure::new(format!("{} cannot be written: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(names: &str) -> Cluster {
        let node = |name: char| Node {
            name: name.to_string(),
            vendor: "nvidia".to_owned(),
            sdk: "nvidia".to_owned(),
            library: None,
            cards: 2,
            nics: Vec::new(),
        };
        Cluster::new(names.chars().map(node).collect(), Order::ByNode)
    }

    #[test]
    fn all_pairs_come_first_then_more_nodes() {
        let all = |names: &str| {
            let sets = combinations(&cluster(names)).into_iter();
            let named = sets.map(|nodes| nodes.iter().map(|node| node.name.as_str()).collect());
            named.collect::<Vec<String>>().join(" ")
        };
        assert_eq!(all("ab"), "ab");
        assert_eq!(all("abc"), "ab ac bc abc");
        assert_eq!(all("abcd"), "ab ac ad bc bd cd abc abd acd bcd abcd");
    }

    #[test]
    fn each_check_has_the_ranks_that_it_needs() {
        let cards = |names: &str, name: &str| {
            let check = CHECKS.iter().find(|check| check.name == name).expect("a check");
            let nodes = laid_out(&cluster(names), check).nodes;
            nodes.iter().map(|node| node.cards).collect::<Vec<_>>()
        };
        assert_eq!(cards("ab", "average"), [2, 1]);
        assert_eq!(cards("abc", "average"), [1, 1, 1]);
        assert_eq!(cards("abcd", "average"), [1, 1, 1]);
        assert_eq!(cards("abc", "one-card"), [1, 1, 1]);
        assert_eq!(cards("abc", "unequal-cards"), [3, 1, 2]);
        assert_eq!(cards("abc", "in-place"), [2, 2, 2]);
        assert_eq!(CHECKS.len(), 15);
    }
}
