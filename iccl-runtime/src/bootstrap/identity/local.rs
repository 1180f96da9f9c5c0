//! What the ranks of one job on one host have in common when the launcher gives the job no name.

use super::Launcher;

/// Launchers' processes above a rank, by the beginning of the command's name.
const LAUNCHERS: [&str; 10] = [
    "hydra_pmi_proxy",
    "hydra_pmi_prox",
    "pmi_proxy",
    "mpiexec",
    "mpirun",
    "orted",
    "prted",
    "prterun",
    "slurmstepd",
    "mpispawn",
];
const ANCESTORS: usize = 32;

/// The job's name: the launcher's, or else the launcher's process, which stands above all ranks of
/// the job on this host and above those of no other job; or else the parent.
pub(super) fn job(launcher: Launcher, named: &str) -> String {
    if !named.is_empty() {
        return format!("{launcher} {named}");
    }
    let mut ancestors = Vec::new();
    let mut pid = std::process::id();
    while ancestors.len() < ANCESTORS
        && let Some(process) = Process::read(pid)
    {
        pid = process.parent;
        ancestors.push(process);
    }
    let above = ancestors.get(1..).unwrap_or_default();
    let found = above
        .iter()
        .find(|process| LAUNCHERS.iter().any(|name| process.command.starts_with(name)))
        .or(above.first());
    found.map_or_else(
        || format!("{launcher} unknown"),
        |process| format!("{launcher} process {} started {}", process.pid, process.started),
    )
}

/// A process as `/proc` shows it.
struct Process {
    pid: u32,
    parent: u32,
    command: String,
    /// In clock ticks since boot: tells processes with the same number apart.
    started: u64,
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        if pid == 0 {
            return None;
        }
        Self::parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// `pid (command) state parent …`; the command may contain spaces and parentheses.
    fn parse(pid: u32, stat: &str) -> Option<Self> {
        let (_, after) = stat.split_once('(')?;
        let (command, fields) = after.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            command: command.to_owned(),
            started: fields.get(19)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let stat = "7 (odd) name (x) S 3 7 7 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 4711 10 1";
        let process = Process::parse(7, stat).unwrap();
        assert_eq!((process.command.as_str(), process.parent), ("odd) name (x", 3));
        assert_eq!(process.started, 4711);
        assert!(Process::parse(7, "7 (x) S 3").is_none());
        assert!(Process::read(std::process::id()).is_some());
    }

    #[test]
    fn the_launchers_own_name_counts_first() {
        assert_eq!(job(Launcher::OpenMpi, "1397489665"), "Open MPI 1397489665");
        let unnamed = job(Launcher::Pmi, "");
        assert!(unnamed.starts_with("PMI process "), "{unnamed}");
        assert_eq!(unnamed, job(Launcher::Pmi, ""));
    }
}
