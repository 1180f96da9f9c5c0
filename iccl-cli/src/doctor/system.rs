//! Limits, memory, processors, the kernel.

use rustix::fs::{MemfdFlags, memfd_create, statvfs};
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};

use super::Check;
use super::network::rdma_devices;
use crate::print;

/// Fewer file descriptors are too few for a handful of ranks with several sockets each.
const FEWEST_DESCRIPTORS: u64 = 256;

/// What large jobs want.
const COMFORTABLE_DESCRIPTORS: u64 = 4096;

/// What vendors' libraries put into `/dev/shm` for a handful of cards.
const COMFORTABLE_SHM_BYTES: u64 = 1 << 30;

/// The default of container engines.
const SMALL_SHM_BYTES: u64 = 64 << 20;

pub(super) fn checks() -> Vec<Check> {
    let descriptors = getrlimit(Resource::Nofile);
    vec![
        processors(),
        memlock(getrlimit(Resource::Memlock).current, !rdma_devices().is_empty()),
        open_files(descriptors.current, descriptors.maximum),
        shared_memory_folder(),
        anonymous_files(),
        process_descriptors(),
    ]
}

fn processors() -> Check {
    match std::thread::available_parallelism() {
        Ok(count) if count.get() == 1 => Check::warn(
            "processors",
            "1 usable",
            "ranks that share one processor wait for each other; give the job more",
        ),
        Ok(count) => Check::ok("processors", format!("{count} usable")),
        Err(error) => Check::warn("processors", format!("not known: {error}"), "look at nproc"),
    }
}

/// `limit` in bytes, `None` for none.
fn memlock(limit: Option<u64>, has_rdma: bool) -> Check {
    const NAME: &str = "memlock limit";
    const HINT: &str = "RDMA pins the memory that it uses: ulimit -l unlimited, memlock in \
                        /etc/security/limits.conf, LimitMEMLOCK=infinity for a service, \
                        --ulimit memlock=-1 for a container";
    match limit {
        None => Check::ok(NAME, "unlimited"),
        Some(bytes) if has_rdma => {
            Check::warn(NAME, format!("{}, and there is an RDMA device", print::bytes(bytes)), HINT)
        }
        Some(bytes) => Check::ok(NAME, format!("{}; enough without RDMA", print::bytes(bytes))),
    }
}

fn open_files(soft: Option<u64>, hard: Option<u64>) -> Check {
    const NAME: &str = "file descriptors";
    let Some(soft) = soft else { return Check::ok(NAME, "unlimited") };
    let most = hard.map_or("unlimited".to_owned(), |hard| hard.to_string());
    let found = format!("{soft} (at most {most})");
    let hint = format!("ulimit -n {COMFORTABLE_DESCRIPTORS}, or nofile in limits.conf");
    match soft {
        soft if soft < FEWEST_DESCRIPTORS => Check::fail(NAME, found, hint),
        soft if soft < COMFORTABLE_DESCRIPTORS => Check::warn(
            NAME,
            found,
            format!("enough for small jobs; for more than a few hundred ranks: {hint}"),
        ),
        _ => Check::ok(NAME, found),
    }
}

fn shared_memory_folder() -> Check {
    const NAME: &str = "/dev/shm";
    match statvfs("/dev/shm") {
        Ok(facts) => shm_size(facts.f_blocks.saturating_mul(facts.f_frsize)),
        Err(error) => Check::warn(
            NAME,
            format!("not there: {error}"),
            "iccl does without it, but vendors' libraries and Python's multiprocessing do not: \
             mount a tmpfs",
        ),
    }
}

fn shm_size(bytes: u64) -> Check {
    const NAME: &str = "/dev/shm";
    let size = print::bytes(bytes);
    if bytes >= COMFORTABLE_SHM_BYTES {
        return Check::ok(NAME, size);
    }
    let why = if bytes <= SMALL_SHM_BYTES { " (the default of containers)" } else { "" };
    Check::warn(
        NAME,
        format!("{size}{why}"),
        "iccl's own shared memory does not live there, but that of vendors' libraries does: \
         --shm-size=1g for a container, or an emptyDir of medium Memory",
    )
}

fn anonymous_files() -> Check {
    match memfd_create("iccl-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING) {
        Ok(_) => Check::ok("memfd", "works"),
        Err(error) => Check::warn(
            "memfd",
            format!("memfd_create: {error}"),
            "shared memory between ranks needs it; without it links take tcp",
        ),
    }
}

fn process_descriptors() -> Check {
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) => Check::ok("pidfd", "works"),
        Err(error) => Check::warn(
            "pidfd",
            format!("pidfd_open: {error}"),
            "needs Linux 5.3; a rank that is gone is noticed later without it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn few_descriptors_fail_and_some_are_worth_a_word() {
        assert_eq!(open_files(Some(64), Some(64)).result, Verdict::Fail);
        assert_eq!(open_files(Some(1024), None).result, Verdict::Warn);
        assert_eq!(open_files(Some(1 << 20), None).result, Verdict::Ok);
        assert_eq!(open_files(None, None).result, Verdict::Ok);
    }

    #[test]
    fn the_memlock_limit_matters_with_rdma_only() {
        let limit = Some(8 << 20);
        assert_eq!(memlock(limit, false).result, Verdict::Ok);
        let check = memlock(limit, true);
        assert_eq!(check.result, Verdict::Warn);
        assert!(check.found.contains("8 MiB") && check.hint.contains("ulimit -l"));
        assert_eq!(memlock(None, true).result, Verdict::Ok);
    }

    #[test]
    fn a_containers_shm_is_worth_a_word() {
        let check = shm_size(64 << 20);
        assert_eq!(check.result, Verdict::Warn);
        assert!(check.found.contains("64 MiB") && check.hint.contains("--shm-size"));
        assert_eq!(shm_size(4 << 30).result, Verdict::Ok);
    }
}
