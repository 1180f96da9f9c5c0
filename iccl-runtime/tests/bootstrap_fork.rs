//! A process that forks after it has joined. One test in a binary of its own: a fork copies only the
//! calling thread, so no other test may run beside it.

mod bootstrap_support;

use std::io::Read;
use std::time::Duration;

use bootstrap_support::*;
use iccl_runtime::ErrorKind;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Runs `body` in a forked child and returns its process.
fn fork(body: impl FnOnce() -> i32) -> Pid {
    // SAFETY: the child runs `body`, which takes no lock that a thread of this process may hold
    // (other threads here sleep in `poll`), and leaves with `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let status = body();
        // SAFETY: ends the process without running destructors of what is the parent's.
        unsafe { libc::_exit(status) };
    }
    Pid::from_raw(pid).expect("fork should work")
}

fn exit_status(pid: Pid) -> Option<i32> {
    let (_, status) = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap();
    status.exit_status()
}

/// How many sockets this process has open.
fn sockets() -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    fds.filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .count()
}

#[test]
fn b060_a_forked_child_is_refused_and_leaves_its_parents_job_alone() {
    let mut bootstraps = job(3);
    assert!(sockets() >= 4, "two edges, two ends each");
    let child = fork(|| {
        if sockets() != 0 {
            return 1;
        }
        let kind = |result: iccl_runtime::Result<()>| result.unwrap_err().kind();
        if kind(bootstraps[1].barrier(Duration::from_secs(1))) != ErrorKind::Forked {
            return 2;
        }
        let notice = bootstraps[1].notify_failure(1, None, ErrorKind::Aborted, "from the child");
        if kind(notice) != ErrorKind::Forked {
            return 3;
        }
        // Neither says goodbye nor waits for a thread that is not here.
        bootstraps.clear();
        0
    });
    assert_eq!(exit_status(child), Some(0));
    let bootstraps = shared(bootstraps);
    on_every_rank(&bootstraps, |bootstrap| bootstrap.barrier(PATIENT).unwrap());
    assert!(bootstraps.iter().all(|bootstrap| bootstrap.notices().is_empty()));

    a_killed_parent_is_noticed_although_its_child_lives();
}

/// As with data loaders that outlive a killed training process for some seconds.
fn a_killed_parent_is_noticed_although_its_child_lives() {
    let id = unique_id();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let text = id.to_text();
    let mut rank = {
        // A process of its own: it joins as rank 1, forks, and is killed.
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "parent_of_a_survivor", "--nocapture"]);
        command.env("TEST_SURVIVOR", text).stdout(std::process::Stdio::from(writer));
        command.spawn().unwrap()
    };
    let here = start(options(&id, 0, 2)).join().unwrap().unwrap();
    let mut seen = String::new();
    while !seen.contains("forked ") || !seen.ends_with('\n') {
        let mut buffer = [0; 256];
        let count = reader.read(&mut buffer).unwrap();
        assert!(count > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    let survivor = seen.lines().find_map(|line| line.strip_prefix("forked ")).unwrap();
    let survivor = Pid::from_raw(survivor.parse().unwrap()).unwrap();
    rank.kill().unwrap();
    rank.wait().unwrap();
    let error = here.barrier(Duration::from_secs(20)).unwrap_err();
    let alive = kill_process(survivor, Signal::KILL).is_ok();
    assert_eq!((error.kind(), error.rank()), (ErrorKind::PeerLost, Some(1)), "{error}");
    assert!(alive, "the child outlived its parent");
}

/// Not a test of its own: joins, forks a child that sleeps, and waits to be killed.
#[test]
fn parent_of_a_survivor() {
    let Ok(text) = std::env::var("TEST_SURVIVOR") else { return };
    let id = iccl_runtime::bootstrap::UniqueId::from_text(&text).unwrap();
    let _bootstrap = iccl_runtime::bootstrap::Bootstrap::join(options(&id, 1, 2)).unwrap();
    let child = fork(|| {
        std::thread::sleep(Duration::from_secs(60));
        0
    });
    println!("\nforked {}", child.as_raw_nonzero());
    std::thread::sleep(Duration::from_secs(60));
}
