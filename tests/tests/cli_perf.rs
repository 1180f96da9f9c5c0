//! `iccl perf`: right results are shown to be right, on every layout that one machine can play.

use iccl_tests::command::{Ran, iccl, run_to_end};
use serde_json::Value;

fn perf(arguments: &[&str]) -> Ran {
    run_to_end(&mut iccl(&[&["perf"], arguments].concat()))
}

/// The rows, which must all be right where they were measured.
fn right_rows(ran: &Ran) -> Vec<Value> {
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    let rows = ran.json().as_array().expect("an array of rows").clone();
    for row in rows.iter().filter(|row| row.get("skipped").is_none()) {
        for placement in ["out_of_place", "in_place"] {
            let wrong = &row[placement]["wrong"];
            assert!(wrong.is_null() || wrong == 0, "{row}");
        }
    }
    rows
}

fn measured(rows: &[Value]) -> usize {
    rows.iter().filter(|row| row.get("skipped").is_none()).count()
}

const QUICK: [&str; 5] = ["--iters", "2", "-w", "1", "--json"];

#[test]
fn the_mean_over_four_ranks_is_right_for_every_type() {
    let arguments = ["all_reduce", "-n", "4", "--op", "avg", "--dtype", "all"];
    let sizes = ["-b", "1K", "-e", "1M", "-f", "32"];
    let rows = right_rows(&perf(&[&arguments[..], &sizes, &QUICK].concat()));
    // Fourteen types with three sizes each.
    assert_eq!(measured(&rows), 14 * 3);
    assert_eq!(rows.len(), 14 * 3);
    let f32_row = rows.iter().find(|row| row["dtype"] == "f32").expect("f32");
    for placement in ["out_of_place", "in_place"] {
        assert_eq!(f32_row[placement]["wrong"], 0, "{f32_row}");
        assert!(f32_row[placement]["time_us"].as_f64().is_some_and(|time| time > 0.0));
    }
}

#[test]
fn all_of_it_on_three_ranks() {
    let rows = right_rows(&perf(&["all", "-n", "3", "-b", "6", "-e", "600", "-f", "10", "--json"]));
    for collective in [
        "all_reduce",
        "reduce",
        "broadcast",
        "all_gather",
        "reduce_scatter",
        "gather",
        "scatter",
        "all_to_all",
        "barrier",
        "sendrecv",
    ] {
        assert!(rows.iter().any(|row| row["collective"] == collective), "{collective}");
    }
    // Every type has every operation, but bits of floats.
    for (dtype, ops) in [("f8e4m3", 6), ("f8e5m2", 6), ("f32", 6), ("u16", 9)] {
        let of_type = rows.iter().filter(|row| {
            row["collective"] == "reduce_scatter"
                && row["dtype"] == dtype
                && row["out_of_place"]["wrong"] == 0
        });
        let mut seen: Vec<&str> = of_type.filter_map(|row| row["op"].as_str()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), ops, "{dtype}: {seen:?}");
    }
    let barrier = rows.iter().find(|row| row["collective"] == "barrier").expect("barrier");
    assert_eq!(barrier["out_of_place"]["wrong"], 0, "{barrier}");
}

#[test]
fn odd_counts_roots_and_rounds() {
    let every_count = ["-b", "0", "-e", "33", "-i", "1", "-c", "2"];
    let reduce = ["all_reduce", "-n", "5", "--dtype", "u8", "--op", "sum,max"];
    let rows = right_rows(&perf(&[&reduce[..], &every_count, &QUICK].concat()));
    assert_eq!(measured(&rows), 2 * 34);
    let broadcast = ["broadcast", "-n", "4", "--dtype", "i16", "--root", "all"];
    let sizes = ["-b", "2", "-e", "100K", "-f", "37"];
    let rows = right_rows(&perf(&[&broadcast[..], &sizes, &QUICK].concat()));
    let roots: std::collections::BTreeSet<u64> =
        rows.iter().filter_map(|row| row["root"].as_u64()).collect();
    assert_eq!(roots.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn one_rank_is_a_job_too() {
    let rows = right_rows(&perf(&["all", "-n", "1", "-b", "64", "-e", "64", "--json"]));
    assert!(measured(&rows) > 50);
    let alone = rows.iter().find(|row| row["collective"] == "sendrecv").expect("sendrecv");
    assert!(alone["skipped"].as_str().is_some_and(|why| why.contains("2 ranks")), "{alone}");
}

#[test]
fn b029_b041_hosts_may_be_interleaved_and_uneven() {
    for (ids, same, other) in [("a,b,a,b", "0-2 shm", "0-1 tcp"), ("a,a,a,b", "0-1 shm", "2-3 tcp")]
    {
        let ran = perf(&[
            "all",
            "--host-ids",
            ids,
            "-b",
            "1000",
            "-e",
            "100K",
            "-f",
            "100",
            "--dtype",
            "bf16,i32,f64",
        ]);
        assert_eq!(ran.code(), Some(0), "{}", ran.all());
        assert!(ran.out.contains("4 ranks on 2 hosts"), "{}", ran.out);
        let links = ran.out.lines().find(|line| line.starts_with("# links:")).expect("links");
        assert!(links.contains(same) && links.contains(other), "{links}");
        assert!(ran.out.contains("# Out of bounds values : 0 OK"), "{}", ran.out);
    }
}

#[test]
fn the_table_has_the_columns_that_people_know() {
    let ran = perf(&["all_reduce", "-n", "2", "-b", "8", "-e", "64", "--iters", "2"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    let heads = ran.out.lines().find(|line| line.contains("redop")).expect("heads");
    let words: Vec<&str> = heads.split_whitespace().collect();
    let figures = ["time", "algbw", "busbw", "#wrong"];
    assert_eq!(words[..6], ["#", "size", "count", "type", "redop", "root"]);
    assert_eq!(words[6..10], figures);
    assert_eq!(words[10..14], figures);
    let rows: Vec<Vec<&str>> = ran
        .out
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[0][..5], ["8", "2", "f32", "sum", "-1"]);
    assert!(rows.iter().all(|row| row[8] == "0" && row[12] == "0"), "{}", ran.out);
    assert!(ran.err.is_empty(), "quiet when all is right: {}", ran.err);
}

/// One of each kind.
const TYPES: &str = "i8,u16,i64,bf16,f64,f8e4m3";

/// Every algorithm that may carry it gives the same exact results; the others are refused, not wrong.
#[test]
fn b002_every_algorithm_on_every_transport_is_right_or_refused() {
    for (algorithm, carries_avg) in
        [("direct", true), ("owner", true), ("recursive_doubling", false), ("ring", false)]
    {
        let forced = format!("algorithm=all_reduce={algorithm}");
        for hosts in [&["-n", "3"][..], &["--host-ids", "a,b,a"]] {
            let arguments = ["all_reduce", "--set", &forced, "--dtype", TYPES, "--op", "all"];
            let sizes = ["-b", "24", "-e", "24K", "-f", "1024"];
            let rows = right_rows(&perf(&[&arguments[..], hosts, &sizes, &QUICK].concat()));
            for row in &rows {
                let is_measured = row.get("skipped").is_none();
                assert!(!is_measured || row["algorithm"] == algorithm, "{row}");
                if row["op"] == "avg" {
                    assert_eq!(is_measured, carries_avg, "{algorithm}: {row}");
                }
                // One of a type that is not narrow, which every algorithm carries.
                if row["op"] == "premulsum" && row["dtype"] == "f64" {
                    assert!(is_measured, "{algorithm}: {row}");
                }
            }
            assert!(measured(&rows) > 10, "{algorithm}");
        }
    }
}

#[test]
fn b003_the_mean_is_right_at_every_small_count_and_around_thresholds() {
    let mean = ["all_reduce", "-n", "4", "--op", "avg", "--dtype", "f32", "--in-place-only"];
    let small = ["-b", "4", "-e", "520", "-i", "4", "--iters", "1", "-w", "0", "--json"];
    let rows = right_rows(&perf(&[&mean[..], &small].concat()));
    assert_eq!(measured(&rows), 130);
    let around = ["-b", "16380", "-e", "16392", "-i", "4", "--iters", "1", "-w", "0", "--json"];
    assert_eq!(measured(&right_rows(&perf(&[&mean[..], &around].concat()))), 4);
}

#[test]
fn b072_a_device_that_is_not_there_is_an_error_on_every_rank() {
    let ran = perf(&["barrier", "-n", "2", "--set", "device.backend=ascend"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.all());
    for prefix in ["error: ", "[1] error: "] {
        let line = ran.err.lines().find(|line| line.starts_with(prefix)).expect("an error");
        assert!(line.contains("ascend") && line.contains("searched"), "{line}");
        assert!(line.contains("host (active)"), "what was seen: {line}");
    }
}

#[test]
fn what_is_wrong_with_a_setting_is_not_said_by_every_rank() {
    let ran = perf(&["barrier", "-n", "4", "--set", "plugin.tcp.socketz=3"]);
    assert_eq!(ran.code(), Some(2), "{}", ran.all());
    let lines: Vec<&str> = ran.err.lines().filter(|line| line.contains("socketz")).collect();
    assert_eq!(lines.len(), 2, "{}", ran.err);
    assert!(lines[0].starts_with("error: ") && lines[1].starts_with("[1-3] error: "), "{lines:?}");
}

#[test]
fn a_launcher_and_the_command_line_must_agree_on_the_ranks() {
    let mut command = iccl(&["perf", "barrier", "-n", "3"]);
    let ran = run_to_end(command.env("RANK", "0").env("WORLD_SIZE", "4"));
    assert_eq!(ran.code(), Some(2), "{}", ran.all());
    assert!(ran.err.contains("-n 3") && ran.err.contains("4 ranks"), "{}", ran.err);
}

#[test]
fn nothing_measured_is_a_failure() {
    let arguments = ["all_reduce", "-n", "2", "--dtype", "f32", "--op", "bxor"];
    let ran = perf(&[&arguments[..], &["-b", "8", "-e", "8"]].concat());
    assert_eq!(ran.code(), Some(1), "{}", ran.all());
    assert!(ran.out.contains("# skipped: all_reduce f32 bxor"), "{}", ran.out);
}

#[test]
fn unverified_is_not_said_to_be_right() {
    let ran = perf(&["all_reduce", "-n", "2", "-c", "0", "-b", "8", "-e", "8", "--iters", "1"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    assert!(ran.out.contains("nothing was verified") && ran.out.contains("N/A"), "{}", ran.out);
    assert!(!ran.out.contains("0 OK"), "{}", ran.out);
}

#[test]
fn overlap_says_how_much_was_hidden() {
    let arguments = ["perf", "reduce_scatter", "-n", "2", "-b", "64K", "-e", "256K", "-f", "4"];
    let effort = ["--iters", "3", "-w", "1", "--overlap"];
    let ran = run_to_end(&mut iccl(&[&arguments[..], &effort, &["--json"]].concat()));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    let rows = ran.json().as_array().expect("an array of rows").clone();
    assert_eq!(rows.len(), 2);
    for row in &rows {
        for placement in ["out_of_place", "in_place"] {
            let figures = &row[placement];
            assert_eq!(figures["wrong"], 0, "{row}");
            let number = |key: &str| figures["overlap"][key].as_f64().expect("a number");
            let [communication, computation, both] =
                ["communication_us", "computation_us", "both_us"].map(number);
            assert!(communication > 0.0 && computation > 0.0 && both > 0.0, "{row}");
            // As docs/command.md says.
            let hidden = (communication + computation - both) / communication.min(computation);
            assert!((number("hidden") - hidden).abs() < 0.01, "{row}");
        }
    }
    let ran = run_to_end(&mut iccl(&[&arguments[..], &effort].concat()));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    let told = ran.all();
    let heads = told.lines().find(|line| line.contains("busbw")).expect("heads");
    assert_eq!(heads.matches("hidden").count(), 2, "{told}");
    let row = told.lines().find(|line| line.trim_start().starts_with("65536")).expect("a row");
    // Five words of the case, five of each placement, and the algorithm.
    assert_eq!(row.split_whitespace().count(), 16, "{told}");
    assert!(told.contains("Out of bounds values : 0 OK"), "{told}");
    // Unasked, there is no such column and no such key.
    let plain = run_to_end(&mut iccl(&[&arguments[..], &["--iters", "1", "--json"]].concat()));
    assert!(!plain.all().contains("hidden"), "{}", plain.all());
}

#[test]
fn a_ring_of_messages_can_overlap_too() {
    let ran = run_to_end(&mut iccl(&[
        "perf",
        "sendrecv",
        "-n",
        "3",
        "-b",
        "1M",
        "-e",
        "1M",
        "--iters",
        "2",
        "--overlap",
    ]));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    let told = ran.all();
    let row = told.lines().find(|line| line.trim_start().starts_with("1048576")).expect("a row");
    assert_eq!(row.split_whitespace().count(), 16, "{told}");
    assert_eq!(row.matches("N/A").count(), 5, "{told}");
}
