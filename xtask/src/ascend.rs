//! The simulated HCCL, driven by `pyhccl`: bindings for Python by HCCL's own people, who know the order of
//! arguments and the numbers. Several processes, each a rank, as `tests/sim-sdk/ascend/drive.py` says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::layout;
use crate::pip::fetch;
use crate::run::{Failure, cargo, output, run, workspace};

/// The package, which has a wheel for one version of Python only.
const PACKAGE: &str = "pyhccl==0.1.0";
const PYTHON: (u32, u32) = (3, 11);

/// What is simulated, and its package.
const LIBRARIES: &[(&str, &str)] =
    &[("libascendcl.so", "iccl-sim-libascendcl-so"), ("libhccl.so", "iccl-sim-libhccl-so")];

/// Drives, and says what was driven.
pub(crate) fn drive() -> Result<(), Failure> {
    let python = python()?;
    let cache = workspace().join("target/ascend");
    let package = fetch(python, &cache, PACKAGE)?;
    let libraries = libraries(&cache)?;
    let numbers = cache.join("numbers.txt");
    let count = write_numbers(&numbers)?;
    let script = workspace().join("tests/sim-sdk/ascend/drive.py");
    let mut command = Command::new(python);
    command.arg(script).arg(&libraries).arg(&numbers);
    command.env("PYTHONPATH", package).env("PYHCCL_LIBRARY", libraries.join("libhccl.so"));
    run(&mut command)?;
    println!("sys.rs agrees with {PACKAGE} in {count} numbers, and the simulator with its calls");
    Ok(())
}

/// A Python that can load the package.
fn python() -> Result<&'static str, Failure> {
    let (major, minor) = PYTHON;
    let is_right = |name: &&str| {
        let question = ["-c", "import sys; print(sys.version_info[0], sys.version_info[1])"];
        let answer = output(Command::new(name).args(question));
        answer.is_ok_and(|text| text.trim_ascii() == format!("{major} {minor}").as_bytes())
    };
    ["python3.11", "python3"].into_iter().find(is_right).ok_or_else(|| {
        Failure(format!(
            "nothing was done, since {PACKAGE} needs Python {major}.{minor}, and there is none"
        ))
    })
}

/// Builds the simulated libraries, and puts them into a folder under their own names.
fn libraries(cache: &Path) -> Result<PathBuf, Failure> {
    let packages: Vec<&str> = LIBRARIES.iter().flat_map(|(_, package)| ["-p", package]).collect();
    run(cargo(&["build"]).args(packages))?;
    let folder = cache.join("libraries");
    let failed = |error| Failure(format!("{} cannot be made: {error}", folder.display()));
    fs::create_dir_all(&folder).map_err(failed)?;
    for (library, package) in LIBRARIES {
        let built = layout::folder("dev").join(format!("lib{}.so", package.replace('-', "_")));
        fs::copy(built, folder.join(library)).map_err(failed)?;
    }
    Ok(folder)
}

/// Writes the constants of `sys.rs` that are HCCL's, a line each, and says how many there are.
fn write_numbers(file: &Path) -> Result<usize, Failure> {
    let sys = workspace().join("plugins/ascend/src/sys.rs");
    let text = fs::read_to_string(&sys)
        .map_err(|error| Failure(format!("{} cannot be read: {error}", sys.display())))?;
    let mut lines = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("pub(crate) const ")) {
        let parts = line.split_once(": ").zip(line.trim_end_matches(';').split_once(" = "));
        let Some(((name, _), (_, value))) = parts else {
            return Err(Failure(format!("sys.rs: `{line}` is no constant of one line")));
        };
        let theirs = if name == "ROOT_INFO_BYTES" { "HCCL_ROOT_INFO_BYTES" } else { name };
        if theirs.starts_with("HCCL_") {
            lines.push(format!("{theirs} {}\n", value.replace('_', "")));
        }
    }
    fs::write(file, lines.concat())
        .map_err(|error| Failure(format!("{} cannot be written: {error}", file.display())))?;
    Ok(lines.len())
}
