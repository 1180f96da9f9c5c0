//! Jobs under real launchers: what a user of `mpirun` gets on one host without setting anything.
//! A launcher that is not installed is said and skipped.

mod bootstrap_support;

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bootstrap_support::*;
use iccl_runtime::bootstrap::{Bootstrap, Identity, IdentitySettings, JoinOptions};
use iccl_runtime::config::{Config, Sources};

const RANK: &str = "TEST_RANK_UNDER_LAUNCHER";

/// Not a test of its own: one rank, as an application would begin.
#[test]
fn rank() {
    if std::env::var(RANK).is_err() {
        return;
    }
    let config = Config::load(&Sources::of_process()).unwrap();
    let settings = IdentitySettings::from_config(&config).unwrap();
    let identity = Identity::discover(config.environment(), &settings).unwrap().unwrap();
    let rendezvous = identity.rendezvous().unwrap();
    let mut options = JoinOptions::new(rendezvous, identity.rank, identity.world_size);
    options.is_one_host = identity.is_one_host();
    options.init_timeout = PATIENT;
    options.descriptor = vec![identity.rank as u8; 3];
    let bootstrap = Bootstrap::join(options).unwrap();
    let expected: Vec<_> = (0..identity.world_size).map(|rank| vec![rank as u8; 3]).collect();
    assert_eq!(bootstrap.descriptors(), expected);
    bootstrap.barrier(PATIENT).unwrap();
    let (rank, world_size, launcher) = (identity.rank, identity.world_size, identity.launcher);
    // In one piece: what the other ranks' test harnesses print must not come between.
    let line = format!("\nrank {rank} of {world_size} under {launcher} is fine\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
    bootstrap.goodbye(PATIENT);
}

/// Starts four ranks and returns their lines in order.
fn run(launcher: &str, arguments: &[&str]) -> Option<Vec<String>> {
    let program = std::env::current_exe().unwrap();
    let started = Instant::now();
    let output = Command::new(launcher)
        .args(arguments)
        .arg(program)
        .args(["--exact", "rank", "--nocapture"])
        .env(RANK, "1")
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("{launcher} is not installed: skipped");
            return None;
        }
        output => output.unwrap(),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(started.elapsed() < PATIENT);
    let mut lines: Vec<_> =
        text.lines().filter(|line| line.ends_with("is fine")).map(str::to_owned).collect();
    lines.sort();
    Some(lines)
}

fn expected(launcher: &str) -> Vec<String> {
    (0..4).map(|rank| format!("rank {rank} of 4 under {launcher} is fine")).collect()
}

#[test]
fn open_mpi_on_one_host() {
    let arguments = ["--allow-run-as-root", "--oversubscribe", "-n", "4"];
    if let Some(lines) = run("mpirun.openmpi", &arguments) {
        assert_eq!(lines, expected("Open MPI"));
    }
}

#[test]
fn mpich_on_one_host() {
    if let Some(lines) = run("mpirun.mpich", &["-n", "4"]) {
        assert_eq!(lines, expected("PMI"));
    }
}

#[test]
fn two_jobs_of_one_launcher_at_once_do_not_meet() {
    let jobs: Vec<_> =
        (0..2).map(|_| std::thread::spawn(|| run("mpirun.mpich", &["-n", "4"]))).collect();
    for job in jobs {
        if let Some(lines) = job.join().unwrap() {
            assert_eq!(lines, expected("PMI"));
        }
    }
}

#[test]
fn ranks_that_are_started_by_hand_meet_where_iccl_root_says() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    by_hand(&format!("127.0.0.1:{port}"));
}

#[test]
fn ranks_that_are_started_by_hand_meet_through_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meeting");
    // What a job before has left behind leads nowhere, and is replaced.
    let stale = unique_id_of_a_dead_root();
    std::fs::write(&path, stale).unwrap();
    let owner_only = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, owner_only).unwrap();
    by_hand(&format!("file://{}", path.display()));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

fn unique_id_of_a_dead_root() -> String {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args(["--exact", "dead_root", "--nocapture"])
        .env("TEST_DEAD_ROOT", "1")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find(|line| line.starts_with("iccl1:")).unwrap().to_owned()
}

/// Not a test of its own: makes a unique id and goes away.
#[test]
fn dead_root() {
    if std::env::var("TEST_DEAD_ROOT").is_ok() {
        println!("\n{}", unique_id_with(Duration::from_secs(1)).to_text());
    }
}

fn by_hand(root: &str) {
    let program = std::env::current_exe().unwrap();
    let ranks: Vec<_> = [2, 1, 0]
        .map(|rank: u32| {
            std::thread::sleep(Duration::from_millis(100));
            Command::new(&program)
                .args(["--exact", "rank", "--nocapture"])
                .env(RANK, "1")
                .env("ICCL_RANK", rank.to_string())
                .env("ICCL_WORLD_SIZE", "3")
                .env("ICCL_LOCAL_WORLD_SIZE", "3")
                .env("ICCL_ROOT", root)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .into();
    for rank in ranks {
        let output = rank.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("is fine"), "{text}");
    }
}
