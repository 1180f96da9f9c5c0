//! The whole test suite, step by step.

use std::time::Instant;

use crate::run::{Failure, cargo, is_installed, run};
use crate::{generate, layout};

type Step = (&'static str, fn() -> Result<(), Failure>);

const STEPS: &[Step] = &[
    ("needs", needs),
    ("format", || run(&mut cargo(&["fmt", "--all", "--check"]))),
    ("lints", || {
        let all = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
        run(&mut cargo(&all))
    }),
    ("generated", || generate::all(true)),
    ("licences", licences),
    ("docs", || {
        let documented = ["doc", "--workspace", "--no-deps", "--quiet"];
        run(cargo(&documented).env("RUSTDOCFLAGS", "-D warnings"))
    }),
    ("unit", || run(&mut cargo(&["test", "--workspace", "--exclude", "iccl-tests", "--quiet"]))),
    ("build", || layout::build("release")),
    ("system", || run(&mut cargo(&["test", "-p", "iccl-tests", "--release"]))),
];

/// Runs all steps, or those whose name contains `only`.
pub(crate) fn all(only: Option<&str>) -> Result<(), Failure> {
    let chosen: Vec<&Step> =
        STEPS.iter().filter(|(name, _)| only.is_none_or(|only| name.contains(only))).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = STEPS.iter().map(|(name, _)| *name).collect();
        return Err(Failure(format!("no such step; there are: {}", names.join(", "))));
    }
    let started = Instant::now();
    for (index, (name, step)) in chosen.iter().enumerate() {
        let began = Instant::now();
        println!("\n=== {name} ({} of {})", index + 1, chosen.len());
        step().map_err(|Failure(text)| Failure(format!("step {name}: {text}")))?;
        println!("=== {name}: right, {} s", began.elapsed().as_secs());
    }
    println!("\nall {} steps right, {} s", chosen.len(), started.elapsed().as_secs());
    Ok(())
}

/// The programs that tests call, and the Debian packages that bring them.
const NEEDED: &[(&str, &str)] =
    &[("cc", "gcc"), ("c++", "g++"), ("mpirun.openmpi", "openmpi-bin"), ("mpirun.mpich", "mpich")];

fn needs() -> Result<(), Failure> {
    let missing: Vec<_> = NEEDED.iter().filter(|(program, _)| !is_installed(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let programs: Vec<_> = missing.iter().map(|(program, _)| *program).collect();
    let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    Err(Failure(format!(
        "not found: {}. On Debian and Ubuntu: apt-get install {}",
        programs.join(", "),
        packages.join(" ")
    )))
}

/// Licences, bans and sources, where cargo-deny is installed. (Advisories need a database from the
/// network: `cargo deny check advisories`.)
fn licences() -> Result<(), Failure> {
    if !is_installed("cargo-deny") {
        println!("not checked: cargo-deny is not installed (`cargo install cargo-deny`)");
        return Ok(());
    }
    run(&mut cargo(&["deny", "--offline", "check", "bans", "licenses", "sources"]))
}
