//! The checks of links over NICs, with the real RDMA transport, where there is a device for it: in the virtual
//! machine of the step `rdma`.
//!
//! `iccl-test-rail variables FOLDER` builds what the checks need and prints what a process in the machine is told, a
//! line each; FOLDER is that of the transport's plugin. `iccl-test-rail run [NAME]` runs the checks whose names
//! have NAME in them.

use std::process::ExitCode;
use std::time::Instant;

use iccl_tests::rail::{cards, checks};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["variables", transport] => {
            for (name, value) in cards::variables(transport) {
                println!("{name}={value}");
            }
            ExitCode::SUCCESS
        }
        ["run"] => run(""),
        ["run", part] => run(part),
        _ => {
            eprintln!("usage: iccl-test-rail variables FOLDER | run [NAME]");
            ExitCode::from(2)
        }
    }
}

fn run(part: &str) -> ExitCode {
    let chosen: Vec<_> = checks::ALL.iter().filter(|(name, _)| name.contains(part)).collect();
    let mut failed = 0;
    for (name, check) in &chosen {
        let began = Instant::now();
        let outcome = std::panic::catch_unwind(check);
        failed += usize::from(outcome.is_err());
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("{name} ... {word} ({:.1} s)", began.elapsed().as_secs_f64());
    }
    println!("{} checks, {failed} failed", chosen.len());
    if failed == 0 && !chosen.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
