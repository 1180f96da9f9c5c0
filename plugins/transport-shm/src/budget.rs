//! How much memory this process may still claim. Asked before claiming, because the kernel's own
//! answer to a claim that is too large can be a signal instead of an error.

use std::path::Path;

/// Why `needed` bytes should not be asked for, with what is available, or `None` if they may be.
pub(crate) fn shortage(needed: u64) -> Option<String> {
    if let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Fsize).current
        && needed > limit
    {
        return Some(format!("{limit} available under this process's limit of file sizes"));
    }
    let available = available_bytes()?;
    (needed > available).then(|| format!("{available} available"))
}

/// Bytes that the host and the control groups of this process have left; what can be reclaimed
/// counts as left. `None` if neither says.
pub(crate) fn available_bytes() -> Option<u64> {
    let host =
        std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| meminfo_available(&text));
    let groups = std::fs::read_to_string("/proc/self/cgroup")
        .ok()
        .and_then(|text| group_available(Path::new("/sys/fs/cgroup"), &text));
    host.into_iter().chain(groups).min()
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The least that any group from the process's own up to the root has left.
fn group_available(mount: &Path, memberships: &str) -> Option<u64> {
    let groups = memberships.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            Some((mount.to_owned(), path, "memory.max", "memory.current", "inactive_file"))
        } else if controllers.split(',').any(|controller| controller == "memory") {
            let (limit, usage) = ("memory.limit_in_bytes", "memory.usage_in_bytes");
            Some((mount.join("memory"), path, limit, usage, "total_inactive_file"))
        } else {
            None
        }
    });
    groups
        .flat_map(|(root, path, limit, usage, reclaimable)| {
            // In a container the path may be that of the host; what does not exist is passed over.
            root.join(path)
                .ancestors()
                .take_while(|folder| folder.starts_with(&root))
                .filter_map(|folder| {
                    let number = |file: &str| -> Option<u64> {
                        std::fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
                    };
                    let used = number(usage)?.saturating_sub(
                        std::fs::read_to_string(folder.join("memory.stat"))
                            .ok()
                            .and_then(|text| statistic(&text, reclaimable))
                            .unwrap_or(0),
                    );
                    Some(number(limit)?.saturating_sub(used))
                })
                .collect::<Vec<_>>()
        })
        .min()
}

fn statistic(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        assert_eq!(meminfo_available("MemTotal: 9 kB\nMemAvailable:     2048 kB\n"), Some(2 << 20));
        assert_eq!(meminfo_available("MemTotal: 9 kB\n"), None);
    }

    #[test]
    fn the_tightest_group_counts_and_reclaimable_pages_are_left() {
        let mount = std::env::temp_dir().join(format!("iccl-budget-{}", std::process::id()));
        let group = mount.join("outer/inner");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(mount.join("outer/memory.max"), "1000\n").unwrap();
        std::fs::write(mount.join("outer/memory.current"), "900\n").unwrap();
        std::fs::write(mount.join("outer/memory.stat"), "anon 5\ninactive_file 300\n").unwrap();
        std::fs::write(group.join("memory.max"), "max\n").unwrap();
        std::fs::write(group.join("memory.current"), "900\n").unwrap();
        let found = group_available(&mount, "0::/outer/inner\n");
        let absent = group_available(&mount, "0::/nowhere\n");
        std::fs::remove_dir_all(&mount).unwrap();
        assert_eq!(found, Some(400));
        assert_eq!(absent, None);
    }
}
