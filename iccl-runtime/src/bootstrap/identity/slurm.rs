//! What Slurm packs into its variables: lists of hosts and of tasks per node.

use super::number;
use crate::config::Environment;
use crate::{Error, ErrorKind, Result};

/// Ports derived for Slurm jobs begin here: below the kernel's ephemeral ones.
pub(super) const BASE_PORT: u16 = 20000;

/// How many tasks of this step run on this node.
pub(super) fn local_tasks(environment: &Environment) -> Result<Option<u32>> {
    let Some(text) = environment.get("SLURM_STEP_TASKS_PER_NODE") else { return Ok(None) };
    let node = number(environment, "SLURM_NODEID")?.unwrap_or(0);
    tasks_of_node(text, node).map(Some).ok_or_else(|| {
        let message = format!(
            "SLURM_STEP_TASKS_PER_NODE=\"{text}\": nothing in it for node {node}, or not like 4(x2),1"
        );
        Error::new(ErrorKind::InvalidConfig, message)
    })
}

/// The entry of one node in a list such as `4(x2),1`.
fn tasks_of_node(text: &str, node: u32) -> Option<u32> {
    let mut first_node = 0_u32;
    for part in text.split(',') {
        let (tasks, repeat) = match part.split_once("(x") {
            Some((tasks, repeat)) => (tasks, repeat.strip_suffix(')')?.parse::<u32>().ok()?),
            None => (part, 1),
        };
        let tasks = tasks.trim().parse().ok()?;
        first_node = first_node.checked_add(repeat)?;
        if node < first_node {
            return Some(tasks);
        }
    }
    None
}

/// The step's number, by which its ranks know each other.
pub(super) fn job(environment: &Environment) -> Option<String> {
    let job = environment.get("SLURM_JOB_ID")?;
    Some(format!("{job}.{}", environment.get("SLURM_STEP_ID").unwrap_or("0")))
}

/// The host of rank 0.
pub(super) fn first_host(environment: &Environment) -> Result<Option<String>> {
    let found = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"]
        .into_iter()
        .find_map(|name| Some((name, environment.get(name)?)));
    let Some((name, list)) = found else { return Ok(None) };
    first_of(list).map(Some).ok_or_else(|| {
        let message = format!("{name}=\"{list}\": not a list such as gnode[10,20-22]");
        Error::new(ErrorKind::InvalidConfig, message)
    })
}

/// The first host of a list such as `gnode[10,20-22],login1`. Several brackets may follow each other
/// (`rack[1-2]node[08-11]`); leading zeros are part of the name.
fn first_of(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    loop {
        let Some(end) = rest.find(['[', ',']) else {
            host += rest;
            break;
        };
        host += &rest[..end];
        if rest[end..].starts_with(',') {
            break;
        }
        let (inside, after) = rest[end + 1..].split_once(']')?;
        let first = inside.split([',', '-']).next()?;
        if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        host += first;
        rest = after;
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (!host.is_empty() && host.bytes().all(is_name)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list() {
        for (list, first) in [
            ("gnode[10,20-22]", "gnode10"),
            ("gnode[008-011,020]", "gnode008"),
            ("login1", "login1"),
            ("a,b[1-2]", "a"),
            ("rack[1-2]node[08-11]", "rack1node08"),
            ("n[3-4].cluster", "n3.cluster"),
            ("gpu-a-[1,3],gpu-b-2", "gpu-a-1"),
        ] {
            assert_eq!(first_of(list).as_deref(), Some(first), "{list}");
        }
        for broken in ["", "gnode[", "gnode[]", "gnode[a-b]", "gnode[1", ",", "x y", "a;rm"] {
            assert_eq!(first_of(broken), None, "{broken}");
        }
    }

    #[test]
    fn tasks_per_node() {
        let list = "4(x2),1,3(x3)";
        let tasks: Vec<_> = (0..7).map(|node| tasks_of_node(list, node)).collect();
        assert_eq!(tasks, [Some(4), Some(4), Some(1), Some(3), Some(3), Some(3), None]);
        for broken in ["", "x", "4(x", "4(x2", "4(xy)", "-1"] {
            assert_eq!(tasks_of_node(broken, 0), None, "{broken}");
        }
    }
}
