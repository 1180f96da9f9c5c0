//! `iccl diagnose`: compares what the flight recorders of all ranks have written, and names the first
//! operation in which they differ.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::Args;
use iccl_plugin_api::Collective;
use iccl_runtime::observe::{FLIGHT_SCHEMA, FlightOperation, FlightRecord, FlightState};
use iccl_runtime::topology::RankSet;
use serde::Serialize;

use crate::context::Context;
use crate::failure::{Failure, Outcome, Result};
use crate::print;

pub(crate) const EXAMPLES: &str = "\
Examples:
  iccl diagnose /var/tmp/iccl
  iccl diagnose /var/tmp/iccl --json | jq '.communicators[].first_difference'

Ranks write there if they were started with ICCL_FLIGHT_RECORDER=/var/tmp/iccl and failed. Copy the files of all hosts into one folder first. Ends with 1 if ranks differ.";

const MESSAGES: [&str; 2] = ["send", "recv"];

#[derive(Args)]
pub(crate) struct Arguments {
    /// The folder with the ranks' files, as `observe.flight_recorder` names it.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

#[derive(Debug, Serialize)]
struct Answer {
    communicators: Vec<Diagnosis>,
    /// Files that could not be read, and why.
    unreadable: Vec<String>,
}

/// What is known of one communicator.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Diagnosis {
    communicator: String,
    ranks: u32,
    /// Ranks whose file is not there.
    without_file: Vec<u32>,
    first_difference: Option<Difference>,
    /// What each rank says has ended the communicator.
    errors: BTreeMap<u32, String>,
}

/// The first operation that is not the same, or not over, everywhere.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Difference {
    /// `all_reduce seq 5 (f32 × 8, sum)`.
    operation: String,
    sequence: u64,
    /// The ranks that it hangs on, as far as the files tell.
    culprits: Vec<u32>,
    /// A line for each group of ranks.
    found: Vec<String>,
}

pub(crate) fn show(context: &Context, arguments: &Arguments) -> Result {
    let (records, unreadable) = read(&arguments.folder)?;
    let mut jobs: BTreeMap<String, BTreeMap<u32, FlightRecord>> = BTreeMap::new();
    for record in records {
        jobs.entry(record.communicator.clone()).or_default().insert(record.rank, record);
    }
    if jobs.is_empty() {
        let folder = arguments.folder.display();
        return Err(Failure::new(format!("no file of a flight recorder can be read in {folder}"))
            .with_hint(unreadable.first().cloned().unwrap_or_else(|| {
                "observe.flight_recorder names the folder that ranks write to when they fail".into()
            })));
    }
    let communicators: Vec<Diagnosis> = jobs.values().map(diagnose).collect();
    let answer = Answer { communicators, unreadable };
    if context.is_json() {
        print::json(&answer)?;
    } else {
        print::text(&text(&answer))?;
    }
    let differs = answer.communicators.iter().any(|one| one.first_difference.is_some());
    Ok(if differs { Outcome::CheckFailed } else { Outcome::Right })
}

/// The records of a folder, and what could not be read.
fn read(folder: &Path) -> Result<(Vec<FlightRecord>, Vec<String>)> {
    let unreadable = |error: std::io::Error| {
        Failure::usage(format!("{} cannot be read: {error}", folder.display()))
    };
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let of_rank = name.strip_prefix("iccl-").and_then(|rest| rest.split_once("-rank-"));
        if of_rank.is_some() && path.extension().is_some_and(|extension| extension == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    let (mut records, mut failed) = (Vec::new(), Vec::new());
    for path in paths {
        let record = std::fs::read(&path)
            .map_err(|error| error.to_string())
            .and_then(|text| {
                serde_json::from_slice::<FlightRecord>(&text).map_err(|error| error.to_string())
            })
            .and_then(|record| match record.schema {
                FLIGHT_SCHEMA => Ok(record),
                other => Err(format!("schema {other}, and this iccl reads {FLIGHT_SCHEMA}")),
            });
        match record {
            Ok(record) => records.push(record),
            Err(why) => failed.push(format!("{}: {why}", path.display())),
        }
    }
    Ok((records, failed))
}

/// Ranks by what they say of one operation: nothing where they have not called it.
type Said<'a> = BTreeMap<u32, Option<&'a FlightOperation>>;

fn diagnose(records: &BTreeMap<u32, FlightRecord>) -> Diagnosis {
    let first = records.values().next();
    let ranks = first.map_or(0, |record| record.ranks);
    let without_file = (0..ranks).filter(|rank| !records.contains_key(rank)).collect();
    Diagnosis {
        communicator: first.map_or_else(String::new, |record| record.communicator.clone()),
        ranks,
        first_difference: collectives(records).or_else(|| messages(records)),
        without_file,
        errors: records.iter().map(|(rank, record)| (*rank, record.error.clone())).collect(),
    }
}

/// The first collective that differs.
fn collectives(records: &BTreeMap<u32, FlightRecord>) -> Option<Difference> {
    let of = |record: &FlightRecord| {
        let all = record.operations.iter().cloned();
        all.filter(|one| !MESSAGES.contains(&one.collective.as_str())).collect::<Vec<_>>()
    };
    let lists: BTreeMap<u32, Vec<FlightOperation>> =
        records.iter().map(|(rank, record)| (*rank, of(record))).collect();
    // What a recorder has forgotten says nothing.
    let from = lists.values().filter_map(|list| Some(list.first()?.sequence)).max()?;
    let to = lists.values().filter_map(|list| Some(list.last()?.sequence)).max()?;
    (from..=to).find_map(|sequence| {
        let find = |list: &'_ Vec<FlightOperation>| {
            list.binary_search_by_key(&sequence, |one| one.sequence).ok()
        };
        // Nor does it say anything of what was called after what it has written.
        let knows = |rank: u32, list: &[FlightOperation]| {
            let last = list.last().map(|one| one.sequence);
            records[&rank].later == 0 || last >= Some(sequence)
        };
        let said: Said<'_> = lists
            .iter()
            .filter(|(rank, list)| knows(**rank, list))
            .map(|(rank, list)| (*rank, find(list).map(|at| &list[at])))
            .collect();
        let last = |rank: u32| lists[&rank].last();
        difference(sequence, &said, &last)
    })
}

/// What differs in an operation that all ranks are to call alike.
fn difference<'a>(
    sequence: u64,
    said: &Said<'a>,
    last: &dyn Fn(u32) -> Option<&'a FlightOperation>,
) -> Option<Difference> {
    let mut calls: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for (rank, one) in said {
        if let Some(one) = one {
            calls.entry(named(one)).or_default().insert(*rank);
        }
    }
    // What most ranks called; of equally many, what the lowest did.
    let usual = calls
        .iter()
        .max_by_key(|(_, ranks)| (ranks.len(), std::cmp::Reverse(ranks.first().copied())))
        .map(|(name, _)| name.clone())?;
    let mut found = Vec::new();
    let mut culprits = Vec::new();
    let absent: Vec<u32> =
        said.iter().filter(|(_, one)| one.is_none()).map(|(rank, _)| *rank).collect();
    for rank in &absent {
        let before = last(*rank).map_or_else(
            || "it has called none".to_owned(),
            |one| format!("its last is {}, {}", named(one), state(one.state)),
        );
        found.push(format!("rank {rank} has not called it; {before}"));
    }
    culprits.extend(&absent);
    for (name, ranks) in calls.iter().filter(|(name, _)| **name != usual) {
        found.push(format!("{} called {name} instead", phrase(ranks.iter().copied())));
        culprits.extend(ranks);
    }
    let states: BTreeSet<FlightState> = said.values().flatten().map(|one| one.state).collect();
    let unfinished = states.iter().any(|state| *state != FlightState::Done);
    if culprits.is_empty() && !unfinished {
        return None;
    }
    let with = |wanted: FlightState| {
        let is = |one: &FlightOperation| one.state == wanted;
        said.iter()
            .filter(|(_, one)| one.is_some_and(is))
            .map(|(rank, _)| *rank)
            .collect::<Vec<u32>>()
    };
    let waiting = with(FlightState::Waiting);
    if !waiting.is_empty() {
        found.push(format!(
            "{}: it was called and has not begun: its stream, or what was called before, is not over",
            phrase(waiting.iter().copied())
        ));
        if culprits.is_empty() {
            culprits.clone_from(&waiting);
        }
    }
    let done = with(FlightState::Done);
    if !done.is_empty() && unfinished {
        found.push(format!("{}: done", phrase(done.iter().copied())));
    }
    let mut waits: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (rank, one) in said {
        if let Some(text) = one.and_then(|one| one.waits_for.as_deref()) {
            waits.entry(text).or_default().push(*rank);
        }
    }
    found.extend(
        waits.iter().map(|(text, ranks)| format!("{}: {text}", phrase(ranks.iter().copied()))),
    );
    culprits.sort_unstable();
    Some(Difference { operation: usual, sequence, culprits, found })
}

/// The first message whose ends differ, or that is not over.
fn messages(records: &BTreeMap<u32, FlightRecord>) -> Option<Difference> {
    let of = |rank: u32, collective: &str, peer: u32, sequence: u64| {
        let mut all = records.get(&rank)?.operations.iter();
        all.find(|one| one.collective == collective && one.root == peer && one.sequence == sequence)
    };
    let unfinished = records.iter().flat_map(|(rank, record)| {
        let open = record.operations.iter().filter(|one| {
            MESSAGES.contains(&one.collective.as_str()) && one.state != FlightState::Done
        });
        open.map(move |one| (one.called_us, *rank, one))
    });
    let (_, rank, one) = unfinished.min_by_key(|(called, rank, _)| (*called, *rank))?;
    let other = if one.collective == MESSAGES[0] { MESSAGES[1] } else { MESSAGES[0] };
    let mut found = vec![format!("rank {rank}: {}", state(one.state))];
    found.extend(one.waits_for.iter().map(|text| format!("rank {rank}: {text}")));
    let mut culprits = vec![rank];
    let peer = one.root;
    match of(peer, other, rank, one.sequence) {
        Some(end) if (&end.dtype, end.count) != (&one.dtype, one.count) => {
            found.push(format!("rank {peer} called {}", named(end)));
            culprits.push(peer);
        }
        Some(end) => found.push(format!("rank {peer}: {}, {}", named(end), state(end.state))),
        None if records.get(&peer).is_some_and(|record| record.later == 0) => {
            found.push(format!("rank {peer} has not called its {other}"));
            culprits = vec![peer];
        }
        None => {}
    }
    culprits.sort_unstable();
    Some(Difference {
        operation: format!("{} of rank {rank}", named(one)),
        sequence: one.sequence,
        culprits,
        found,
    })
}

/// What was asked, as in the log.
fn named(one: &FlightOperation) -> String {
    let mut parts = Vec::new();
    // In vector forms ranks know counts of their own.
    parts.push(match one.count {
        0 => one.dtype.clone(),
        count => format!("{} × {count}", one.dtype),
    });
    let collective = Collective::from_name(&one.collective);
    if collective.is_some_and(Collective::reduces) {
        parts.push(one.op.clone());
    }
    if collective.is_some_and(Collective::has_root) {
        parts.push(format!("root {}", one.root));
    } else if MESSAGES.contains(&one.collective.as_str()) {
        parts.push(format!("peer {}", one.root));
    }
    format!("{} seq {} ({})", one.collective, one.sequence, parts.join(", "))
}

const fn state(state: FlightState) -> &'static str {
    match state {
        FlightState::Waiting => "not begun",
        FlightState::Running => "not over",
        FlightState::Done => "done",
    }
}

fn phrase(ranks: impl IntoIterator<Item = u32>) -> String {
    ranks.into_iter().collect::<RankSet>().phrase()
}

fn text(answer: &Answer) -> String {
    let mut lines: Vec<String> = Vec::new();
    for one in &answer.communicators {
        let plural = if one.ranks == 1 { "" } else { "s" };
        lines.push(format!("communicator {}: {} rank{plural}", one.communicator, one.ranks));
        if !one.without_file.is_empty() {
            let ranks = phrase(one.without_file.iter().copied());
            lines.push(format!(
                "no file of {ranks}: killed, stuck outside of iccl, or written elsewhere"
            ));
        }
        match &one.first_difference {
            None => lines.push("what the files hold is the same on all ranks, and over".to_owned()),
            Some(first) => {
                let whom = match &first.culprits[..] {
                    [] => String::new(),
                    ranks => format!(", by {}", phrase(ranks.iter().copied())),
                };
                lines.push(format!("first difference: {}{whom}", first.operation));
                lines.extend(first.found.iter().map(|line| format!("  {line}")));
            }
        }
        lines.extend(
            one.errors.iter().map(|(rank, error)| format!("rank {rank} ended by: {error}")),
        );
        lines.push(String::new());
    }
    lines.extend(answer.unreadable.iter().map(|one| format!("not read: {one}")));
    lines.join("\n").trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use FlightState::{Done, Running, Waiting};

    fn operation(sequence: u64, collective: &str, state: FlightState) -> FlightOperation {
        FlightOperation {
            sequence,
            collective: collective.to_owned(),
            dtype: "f32".to_owned(),
            op: "sum".to_owned(),
            root: 0,
            count: 8,
            send_bytes: 32,
            recv_bytes: 32,
            algorithm: "direct".to_owned(),
            state,
            called_us: sequence,
            started_us: None,
            ended_us: None,
            links: Vec::new(),
            waits_for: (state == Running).then(|| "waits for rank 9".to_owned()),
        }
    }

    fn records(lists: Vec<Vec<FlightOperation>>, ranks: u32) -> BTreeMap<u32, FlightRecord> {
        let record = |(rank, operations): (u32, Vec<FlightOperation>)| {
            let record = FlightRecord {
                schema: FLIGHT_SCHEMA,
                communicator: "1".to_owned(),
                rank,
                ranks,
                host: "a".to_owned(),
                pid: 1,
                written_us: 0,
                error: "too late".to_owned(),
                operations,
                later: 0,
            };
            (rank, record)
        };
        (0..).zip(lists).map(record).collect()
    }

    fn first(lists: Vec<Vec<FlightOperation>>) -> Difference {
        let ranks = lists.len() as u32;
        diagnose(&records(lists, ranks)).first_difference.expect("a difference")
    }

    #[test]
    fn a_rank_that_has_not_called_is_named_with_what_it_called_last() {
        let came = || vec![operation(4, "all_gather", Done), operation(5, "all_reduce", Running)];
        let found = first(vec![came(), vec![operation(4, "all_gather", Done)], came()]);
        assert_eq!((found.sequence, &found.culprits[..]), (5, &[1][..]));
        assert_eq!(found.operation, "all_reduce seq 5 (f32 × 8, sum)");
        assert_eq!(
            found.found,
            [
                "rank 1 has not called it; its last is all_gather seq 4 (f32 × 8), done",
                "ranks 0, 2: waits for rank 9"
            ]
        );
    }

    #[test]
    fn a_rank_that_called_something_else_is_named_and_only_the_first_difference_counts() {
        let usual = || vec![operation(1, "all_reduce", Running), operation(2, "barrier", Waiting)];
        let other = vec![operation(1, "broadcast", Running), operation(2, "all_gather", Waiting)];
        let found = first(vec![usual(), usual(), other]);
        assert_eq!((found.sequence, &found.culprits[..]), (1, &[2][..]));
        assert!(found.found[0].starts_with("rank 2 called broadcast seq 1"), "{found:?}");
    }

    #[test]
    fn a_rank_whose_stream_has_not_come_is_named() {
        let found = first(vec![
            vec![operation(1, "all_reduce", Running)],
            vec![operation(1, "all_reduce", Waiting)],
        ]);
        assert_eq!(found.culprits, [1]);
    }

    #[test]
    fn what_is_over_everywhere_or_forgotten_is_no_difference() {
        let lists = vec![
            vec![operation(1, "all_reduce", Done), operation(2, "all_reduce", Done)],
            vec![operation(2, "all_reduce", Done)],
        ];
        let diagnosis = diagnose(&records(lists, 3));
        assert_eq!(diagnosis.first_difference, None);
        assert_eq!(diagnosis.without_file, [2]);
    }

    #[test]
    fn what_was_called_after_the_end_of_a_file_is_not_missed() {
        let lists = vec![
            vec![operation(1, "all_reduce", Done), operation(2, "all_reduce", Done)],
            vec![operation(1, "all_reduce", Done)],
        ];
        let mut records = records(lists, 2);
        let missed = diagnose(&records).first_difference.expect("a difference");
        assert_eq!(missed.culprits, [1]);
        records.get_mut(&1).expect("a record").later = 1;
        assert_eq!(diagnose(&records).first_difference, None);
    }

    #[test]
    fn a_message_without_its_other_end_is_found() {
        let message = |collective: &str, peer: u32, state| FlightOperation {
            root: peer,
            ..operation(0, collective, state)
        };
        let found = first(vec![vec![message("send", 1, Running)], vec![message("recv", 2, Done)]]);
        assert_eq!(found.culprits, [1]);
        assert!(found.found.contains(&"rank 1 has not called its recv".to_owned()), "{found:?}");
        let longer = FlightOperation { count: 9, ..message("recv", 0, Running) };
        let found = first(vec![vec![message("send", 1, Running)], vec![longer]]);
        assert_eq!(found.culprits, [0, 1]);
    }
}
