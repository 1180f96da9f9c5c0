//! Mutants: known faults, put into a copy of the code one at a time. A test suite that does not turn
//! red has a hole.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::run::{Failure, workspace};

/// One fault: `find` becomes `replace` in `file`, and `tests` must turn red.
struct Mutant {
    name: &'static str,
    file: &'static str,
    find: &'static str,
    replace: &'static str,
    /// Arguments of `cargo test`.
    tests: &'static [&'static str],
}

const MUTANTS: &[Mutant] = &[];

pub(crate) fn all(only: Option<&str>) -> Result<(), Failure> {
    let chosen: Vec<&Mutant> =
        MUTANTS.iter().filter(|one| only.is_none_or(|only| one.name.contains(only))).collect();
    let copy = copy_of_workspace()?;
    let mut survivors = Vec::new();
    for mutant in &chosen {
        let path = copy.join(mutant.file);
        let read = fs::read_to_string(&path);
        let original = read.map_err(|error| Failure(format!("{}: {error}", path.display())))?;
        if original.matches(mutant.find).count() != 1 {
            return Err(Failure(format!(
                "mutant {}: its text is not found exactly once in {}; the code has moved on, so \
                 must the mutant",
                mutant.name, mutant.file
            )));
        }
        let write = |text: &str| {
            fs::write(&path, text).map_err(|error| Failure(format!("{}: {error}", path.display())))
        };
        write(&original.replace(mutant.find, mutant.replace))?;
        let outcome = judge(&copy, mutant);
        write(&original)?;
        let told = match &outcome {
            Ok(text) => text,
            Err(Failure(text)) => text.as_str(),
        };
        println!("{:<28} {told}", mutant.name);
        if outcome.is_err() {
            survivors.push(mutant.name);
        }
    }
    if survivors.is_empty() {
        println!("{} mutants, all caught", chosen.len());
        return Ok(());
    }
    Err(Failure(format!("no test noticed: {}", survivors.join(", "))))
}

/// Runs the tests on the broken code.
fn judge(copy: &Path, mutant: &Mutant) -> Result<&'static str, Failure> {
    let cargo = |arguments: &[&str]| {
        Command::new("cargo")
            .args(arguments)
            .current_dir(copy)
            .env("CARGO_TARGET_DIR", workspace().join("target/mutants"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(|error| Failure(format!("cargo cannot be started: {error}")))
    };
    let built = [&["test", "--no-run"], mutant.tests].concat();
    if !cargo(&built)?.success() {
        return Err(Failure("does not compile, so it shows nothing".into()));
    }
    let tested = [&["test"], mutant.tests].concat();
    if cargo(&tested)?.success() { Err(Failure("SURVIVED".into())) } else { Ok("caught") }
}

/// The tracked files of the workspace in a folder of their own.
fn copy_of_workspace() -> Result<PathBuf, Failure> {
    let copy = workspace().join("target/mutants/source");
    let failed = |error: std::io::Error| Failure(format!("{}: {error}", copy.display()));
    if copy.exists() {
        fs::remove_dir_all(&copy).map_err(failed)?;
    }
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(workspace()).output();
    let listed = listed.map_err(|error| Failure(format!("git cannot be started: {error}")))?;
    for name in String::from_utf8_lossy(&listed.stdout).split_terminator('\0') {
        let place = copy.join(name);
        if let Some(folder) = place.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let source = workspace().join(name);
        if source.is_file() {
            fs::copy(source, place).map_err(failed)?;
        }
    }
    Ok(copy)
}
