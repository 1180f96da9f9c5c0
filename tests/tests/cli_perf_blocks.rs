//! `iccl perf` of collectives with blocks, and of reduce: right on one host and on mixed ones, in and out
//! of place, with the sizes and factors of nccl-tests.

use iccl_tests::command::{iccl, run_to_end};
use serde_json::Value;

/// On three ranks of one host, and of two.
const LAYOUTS: [&[&str]; 2] = [&["-n", "3"], &["--host-ids", "a,b,a"]];

/// The rows, each measured, and right in both placements.
fn right_rows(arguments: &[&str], hosts: &[&str]) -> Vec<Value> {
    let effort = ["--iters", "2", "-w", "1", "-c", "2", "--json"];
    let ran = run_to_end(&mut iccl(&[&["perf"], arguments, hosts, &effort].concat()));
    assert_eq!(ran.code(), Some(0), "{arguments:?} {hosts:?}: {}", ran.all());
    let rows = ran.json().as_array().expect("an array of rows").clone();
    for row in &rows {
        for placement in ["out_of_place", "in_place"] {
            assert_eq!(row[placement]["wrong"], 0, "{row}");
        }
    }
    rows
}

/// From no block at all over odd ones to those of several chunks.
const SIZES: [&str; 6] = ["-b", "1", "-e", "300K", "-f", "60"];

#[test]
fn blocks_of_any_type_arrive_as_they_are() {
    for collective in ["all_gather", "all_to_all"] {
        for hosts in LAYOUTS {
            let dtypes = ["--dtype", "i8,u16,bf16,f8e4m3,f64"];
            let rows = right_rows(&[&[collective][..], &dtypes, &SIZES].concat(), hosts);
            // 1, 60, 3600 and 216000 bytes; for f64 the first has no block, and the second two elements of each.
            assert_eq!(rows.len(), 5 * 4, "{collective}");
        }
    }
}

#[test]
fn every_root_gathers_and_scatters() {
    for collective in ["gather", "scatter"] {
        for hosts in LAYOUTS {
            let arguments = [collective, "--dtype", "u8,f8e5m2,f32", "--root", "all"];
            let rows = right_rows(&[&arguments[..], &SIZES].concat(), hosts);
            for root in 0..3 {
                let of_root = rows.iter().filter(|row| row["root"] == root);
                assert!(of_root.count() >= 3 * 3, "{collective} {root}");
            }
        }
    }
}

#[test]
fn reductions_are_right_on_every_root_and_in_every_block() {
    for hosts in LAYOUTS {
        for dtypes in ["i8,u32,bf16", "f16,f64,f8e4m3"] {
            let case = ["--dtype", dtypes, "--op", "all"];
            let rows = right_rows(&[&["reduce_scatter"][..], &case, &SIZES].concat(), hosts);
            for op in ["sum", "prod", "min", "max", "avg", "premulsum"] {
                assert!(rows.iter().any(|row| row["op"] == op), "{op}");
            }
            let few = ["-b", "8", "-e", "200K", "-f", "20000", "--root", "all"];
            let rows = right_rows(&[&["reduce"][..], &case, &few].concat(), hosts);
            for root in 0..3 {
                assert!(rows.iter().any(|row| row["root"] == root), "{root}");
            }
        }
    }
}

#[test]
fn sizes_and_factors_are_those_of_nccl_tests() {
    for (collective, count, factor) in [
        ("reduce", 300, 1.0),
        ("all_gather", 100, 2.0 / 3.0),
        ("reduce_scatter", 100, 2.0 / 3.0),
        ("gather", 100, 2.0 / 3.0),
        ("scatter", 100, 2.0 / 3.0),
        ("all_to_all", 100, 2.0 / 3.0),
    ] {
        let rows = right_rows(&[collective, "-b", "1200", "-e", "1200"], &["-n", "3"]);
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((&row["size_bytes"], &row["count"]), (&1200.into(), &count.into()), "{row}");
        for placement in ["out_of_place", "in_place"] {
            let figure = |name: &str| row[placement][name].as_f64().expect("a number");
            let algorithm = figure("algbw_gb_per_s");
            let expected = 1200.0 / 1e3 / figure("time_us");
            assert!((algorithm / expected - 1.0).abs() < 1e-6, "{row}");
            assert!((figure("busbw_gb_per_s") / algorithm - factor).abs() < 1e-9, "{row}");
        }
        assert!(row["algorithm"].is_string(), "{row}");
    }
    let rows = right_rows(&["alltoall", "-b", "1207", "-e", "1207"], &["-n", "3"]);
    assert_eq!((&rows[0]["size_bytes"], &rows[0]["count"]), (&1200.into(), &100.into()));
}

#[test]
fn every_algorithm_of_gathers_and_reductions_is_right() {
    for (collective, algorithms) in [
        ("all_gather", &["direct", "ring", "bruck"][..]),
        ("reduce", &["direct", "owner", "binomial"]),
        ("reduce_scatter", &["direct", "ring"]),
    ] {
        for algorithm in algorithms {
            let forced = format!("algorithm={collective}={algorithm}");
            let case = ["--set", &forced, "--dtype", "u8,f64", "--op", "sum"];
            let sizes = ["-b", "0", "-e", "200K", "-i", "66K", "--root", "2"];
            for hosts in LAYOUTS {
                let rows = right_rows(&[&[collective][..], &case, &sizes].concat(), hosts);
                assert!(rows.iter().all(|row| row["algorithm"] == *algorithm), "{rows:?}");
            }
        }
    }
}
