//! Running commands, and saying which one failed.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Why a task failed, in a line or two.
pub(crate) struct Failure(pub(crate) String);

/// The folder of the workspace.
pub(crate) fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// A call of the cargo that runs this.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace());
    command
}

/// Runs a command; its output goes to the terminal.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    let text = text(command);
    let status = command
        .status()
        .map_err(|error| Failure(format!("`{text}` cannot be started: {error}")))?;
    if status.success() { Ok(()) } else { Err(Failure(format!("`{text}` failed: {status}"))) }
}

/// Runs a command as a person at a prompt would see it.
pub(crate) fn show(program: &Path, arguments: &[&str]) -> Result<(), Failure> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    println!("\n$ {name} {}", arguments.join(" "));
    run(Command::new(program).args(arguments))
}

/// What a command prints.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>, Failure> {
    let text = text(command);
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| Failure(format!("`{text}` cannot be started: {error}")))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(Failure(format!("`{text}` failed: {}", output.status)))
    }
}

fn text(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or_default().to_string_lossy();
    let arguments: Vec<_> = command.get_args().map(|one| one.to_string_lossy()).collect();
    format!("{program} {}", arguments.join(" "))
}

/// Whether a program is on the path.
pub(crate) fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}
