//! The whole test suite, step by step.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;
use std::time::Instant;

use crate::run::{Failure, cargo, is_installed, output, run, workspace};
use crate::{generate, layout, rdma, sanitizers};

type Step = (&'static str, fn(Demands) -> Result<(), Failure>);

/// What must not be left out.
#[derive(Clone, Copy)]
struct Demands {
    rdma: bool,
}

const STEPS: &[Step] = &[
    ("needs", |_| needs()),
    ("format", |_| run(&mut cargo(&["fmt", "--all", "--check"]))),
    ("lints", |_| {
        let all = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
        run(&mut cargo(&all))
    }),
    ("generated", |_| generate::all(true)),
    ("licences", |_| licences()),
    ("docs", |_| {
        let documented = ["doc", "--workspace", "--no-deps", "--quiet"];
        run(cargo(&documented).env("RUSTDOCFLAGS", "-D warnings"))
    }),
    // Both go on after a failure: one run tells all that is wrong.
    ("unit", |_| {
        let all = ["test", "--workspace", "--exclude", "iccl-tests", "--quiet", "--no-fail-fast"];
        run(&mut cargo(&all))
    }),
    ("build", |_| layout::build("release")),
    ("system", |_| run(&mut cargo(&["test", "-p", "iccl-tests", "--release", "--no-fail-fast"]))),
    ("rdma", |demands| rdma::test(demands.rdma)),
];

/// What takes too long for every push.
const FULL_STEPS: &[Step] = &[
    ("huge", |_| {
        let program = ["run", "--release", "-p", "iccl-tests", "--bin", "iccl-test-matrix"];
        run(cargo(&program).args(["--", "huge"]))
    }),
    ("valgrind", |_| valgrind()),
    ("threads", |_| sanitizers::threads()),
    ("addresses", |_| sanitizers::addresses()),
    ("matrix", |_| matrix()),
];

/// Runs all steps, or those whose name contains `only`.
pub(crate) fn all(only: Option<&str>, full: bool, rdma: bool) -> Result<(), Failure> {
    let steps: Vec<&Step> = STEPS.iter().chain(if full { FULL_STEPS } else { &[] }).collect();
    let chosen: Vec<&&Step> =
        steps.iter().filter(|(name, _)| only.is_none_or(|only| name.contains(only))).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = steps.iter().map(|(name, _)| *name).collect();
        return Err(Failure(format!("no such step; there are: {}", names.join(", "))));
    }
    let started = Instant::now();
    for (index, (name, step)) in chosen.iter().enumerate() {
        let began = Instant::now();
        println!("\n=== {name} ({} of {})", index + 1, chosen.len());
        step(Demands { rdma }).map_err(|Failure(text)| Failure(format!("step {name}: {text}")))?;
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

/// The marshalling of the ABI, in both directions, under valgrind where it is installed. What tests leak
/// on purpose is not an error.
fn valgrind() -> Result<(), Failure> {
    if !is_installed("valgrind") {
        println!("not checked: valgrind is not installed");
        return Ok(());
    }
    let runner = r#"target."cfg(all())".runner=["valgrind", "-q", "--error-exitcode=9"]"#;
    run(&mut cargo(&["--config", runner, "test", "-p", "iccl-plugin-api", "--lib"]))
}

/// The full product. Blocks that were right before are not run again, as long as the code is the same.
fn matrix() -> Result<(), Failure> {
    let state = workspace().join("target/matrix.txt");
    let code = state_of_the_code()?;
    let program = ["run", "--release", "--quiet", "-p", "iccl-tests", "--bin", "iccl-test-matrix"];
    run(cargo(&program).args(["--", "full"]).arg(state).arg(code))
}

/// The commit, and a digest of what was changed since.
fn state_of_the_code() -> Result<String, Failure> {
    let git =
        |arguments: &[&str]| output(Command::new("git").args(arguments).current_dir(workspace()));
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    let commit = String::from_utf8_lossy(&commit).trim().to_owned();
    let changes = git(&["diff", "HEAD"])?;
    if changes.is_empty() {
        return Ok(commit);
    }
    let mut hasher = DefaultHasher::new();
    changes.hash(&mut hasher);
    Ok(format!("{commit}+{:016x}", hasher.finish()))
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
