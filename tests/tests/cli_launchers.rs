//! `iccl` under real launchers of MPI.

use std::path::Path;

use iccl_tests::command::{clean, command_path, run_to_end};
use iccl_tests::plugin_folder;

/// Runs `iccl` as four ranks of a launcher, if it is installed.
fn under(launcher: &str, options: &[&str], arguments: &[&str]) -> Option<String> {
    let path = Path::new("/usr/bin").join(launcher);
    if !path.exists() {
        println!("skipped: {launcher} is not installed");
        return None;
    }
    let own = command_path().to_str().expect("a path");
    let mut command = clean(&path, plugin_folder(), &[options, &[own], arguments].concat());
    let ran = run_to_end(&mut command);
    assert_eq!(ran.code(), Some(0), "{launcher}: {}", ran.all());
    Some(ran.out)
}

const PERF: [&str; 11] =
    ["perf", "all_reduce", "-b", "1K", "-e", "64K", "-f", "64", "--dtype", "bf16,i32", "--json"];

fn all_right(out: &str) {
    let rows: serde_json::Value = serde_json::from_str(out).expect("one answer, from rank 0");
    let rows = rows.as_array().expect("rows");
    assert_eq!(rows.len(), 4);
    for row in rows {
        assert_eq!(row["ranks"], 4, "{row}");
        assert_eq!(row["out_of_place"]["wrong"], 0, "{row}");
        assert_eq!(row["in_place"]["wrong"], 0, "{row}");
    }
}

const OPEN_MPI: [&str; 4] = ["--allow-run-as-root", "--oversubscribe", "-n", "4"];

#[test]
fn under_open_mpi() {
    if let Some(out) = under("mpirun.openmpi", &OPEN_MPI, &PERF) {
        all_right(&out);
    }
    if let Some(out) = under("mpirun.openmpi", &OPEN_MPI, &["plan"]) {
        assert_eq!(out.matches("4 ranks on 1 host").count(), 1, "{out}");
    }
}

#[test]
fn under_mpich() {
    if let Some(out) = under("mpirun.mpich", &["-n", "4"], &PERF) {
        all_right(&out);
    }
}
