//! The published experiment and its fifteen further checks, on simulated cards of every maker that there
//! is: `iccl perf matrix`.

use std::fmt::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use iccl_tests::cluster::{iccl, makers, sdks};
use iccl_tests::command::{end_of, run_to_end};
use rustix::process::{Pid, Signal, kill_process};

/// A cluster with two cards of each of the first three makers, as the experiment has it.
fn cluster() -> String {
    let vendors = makers().into_iter().take(3);
    let mut text = String::new();
    for vendor in vendors {
        let _ = write!(text, "[[node]]\nname = \"{vendor}\"\nvendor = \"{vendor}\"\ncards = 2\n\n");
    }
    text
}

#[test]
fn every_combination_of_makers_computes_what_it_should() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cluster.toml");
    std::fs::write(&file, cluster()).expect("written");
    let (file, sdks) = (file.to_str().expect("text"), sdks(&makers()));
    let sdks = sdks.to_str().expect("text");
    let sizes = ["-b", "256", "-e", "128K", "-f", "8"];
    let mut arguments = vec!["perf", "matrix", "--cluster", file, "--sim-sdk", sdks, "--json"];
    arguments.extend(sizes);
    let ran = run_to_end(&mut iccl(&arguments));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    let answer = ran.json();
    let results = answer["results"].as_array().expect("results");
    assert!(results.len() >= 40, "{}", results.len());
    assert!(results.iter().all(|row| row["wrong"] == 0), "{}", ran.all());
    let of = |nodes: usize| {
        let rows =
            results.iter().filter(|row| row["nodes"].as_array().map(Vec::len) == Some(nodes));
        rows.count()
    };
    // Three collectives of four sizes on at least three pairs and one triple.
    assert!(of(2) >= 36 && of(3) >= 12, "{} and {}", of(2), of(3));
    for collective in ["all_reduce f32 sum", "all_gather f32", "sendrecv f32"] {
        assert!(results.iter().any(|row| row["collective"] == collective), "{collective}");
    }
    let checks = answer["checks"].as_array().expect("checks");
    assert_eq!(checks.len(), 15);
    for check in checks {
        assert!(check["wrong"] == 0 && check["operations"].as_u64() > Some(0), "{check}");
    }
}

#[test]
fn all_makers_work_together_in_one_communicator() {
    let (file, sdks) = (iccl_tests::cluster::file("four-vendors.toml"), sdks(&makers()));
    let (file, sdks) = (file.to_str().expect("text"), sdks.to_str().expect("text"));
    let mut arguments = vec!["perf", "all", "--cluster", file, "--sim-sdk", sdks, "--json"];
    arguments
        .extend(["-b", "8K", "-e", "8K", "--dtype", "bf16,i32", "--op", "sum,avg", "--iters", "1"]);
    let ran = run_to_end(&mut iccl(&arguments));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    let rows = ran.json();
    let rows = rows.as_array().expect("rows");
    assert!(rows.len() > 20 && rows.iter().all(|row| row["ranks"] == 8), "{}", ran.all());
    assert!(rows.iter().all(|row| row["out_of_place"]["wrong"] == 0), "{}", ran.all());
}

#[test]
fn a_matrix_needs_a_cluster_and_chooses_what_it_measures() {
    let ran = run_to_end(&mut iccl(&["perf", "matrix"]));
    assert_eq!(ran.code(), Some(2), "{}", ran.all());
    assert!(ran.err.contains("needs a cluster"), "{}", ran.err);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cluster.toml");
    let one = "[[node]]\nname = \"a\"\nvendor = \"host\"\n";
    std::fs::write(&file, one).expect("written");
    let file = file.to_str().expect("text");
    let ran = run_to_end(&mut iccl(&["perf", "matrix", "--cluster", file]));
    assert_eq!(ran.code(), Some(2), "{}", ran.all());
    assert!(ran.err.contains("takes 2 to 5 nodes"), "{}", ran.err);
    let ran = run_to_end(&mut iccl(&["perf", "matrix", "--cluster", file, "--dtype", "f16"]));
    assert_eq!(ran.code(), Some(2), "{}", ran.all());
}

#[test]
fn a_part_that_fails_is_told_and_the_others_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cluster.toml");
    let node = |name: &str| format!("[[node]]\nname = \"{name}\"\nvendor = \"nvidia\"\n");
    std::fs::write(&file, node("a") + &node("b")).expect("written");
    let (file, sdks) = (file.to_str().expect("text"), sdks(&["nvidia"]));
    let sdks = sdks.to_str().expect("text");
    let arguments = ["perf", "matrix", "--cluster", file, "--sim-sdk", sdks, "-e", "256"];
    // No rank gets memory of its card.
    let mut command = iccl(&arguments);
    command.env("ICCL_SIM_NVIDIA_FAULTS", "cudaMalloc@*=2");
    let ran = run_to_end(&mut command);
    assert_eq!(ran.code(), Some(1), "{}", ran.all());
    assert_eq!(ran.out.matches("FAILED: ").count(), 16, "{}", ran.all());
    assert!(ran.out.contains("results: 0 of 1 right; checks: 0 of 15 right"), "{}", ran.out);
}

#[test]
fn a_copy_that_a_library_leaves_out_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cluster.toml");
    let node = |name: &str| format!("[[node]]\nname = \"{name}\"\nvendor = \"nvidia\"\n");
    std::fs::write(&file, node("a") + &node("b")).expect("written");
    let (file, sdks) = (file.to_str().expect("text"), sdks(&["nvidia"]));
    let sdks = sdks.to_str().expect("text");
    let arguments = ["perf", "matrix", "--cluster", file, "--sim-sdk", sdks, "-e", "256"];
    let mut command = iccl(&arguments);
    // Every rank skips one copy, which other parts of the matrix use for other things.
    command.env("ICCL_SIM_NVIDIA_FAULTS", "cudaMemcpyAsync@60=nothing");
    let ran = run_to_end(&mut command);
    assert_eq!(ran.code(), Some(1), "{}", ran.all());
    assert!(ran.out.contains(" WRONG"), "{}", ran.all());
}

/// Whether the process has children.
fn has_children(process: u32) -> bool {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    children.is_ok_and(|children| !children.trim().is_empty())
}

#[test]
fn an_interrupt_between_two_jobs_ends_the_matrix() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cluster.toml");
    let node = |name: &str| format!("[[node]]\nname = \"{name}\"\nvendor = \"host\"\n");
    std::fs::write(&file, node("a") + &node("b")).expect("written");
    let file = file.to_str().expect("text");
    let mut command = iccl(&["perf", "matrix", "--cluster", file, "-e", "256"]);
    // What it leaves in the folder for temporary files would be here.
    command.env("TMPDIR", folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("iccl starts");
    let give_up = Instant::now() + Duration::from_secs(60);
    for is_awaited in [true, false] {
        while has_children(child.id()) != is_awaited {
            assert!(Instant::now() < give_up, "no job begins and ends");
        }
    }
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process id");
    kill_process(pid, Signal::INT).expect("the command is there");
    let ran = end_of(child, "iccl perf matrix");
    assert_eq!(ran.code(), Some(130), "{}", ran.all());
    let left = std::fs::read_dir(folder.path()).expect("the folder").count();
    assert_eq!(left, 1, "only the cluster file");
}
