//! `iccl run`: how ranks start, speak, and end together.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use iccl_tests::command::{Ran, end_of, iccl, run_to_end};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// The bound of the promise: when one rank dies, the others are ended within it.
const END_TOGETHER: Duration = Duration::from_secs(5);

fn shell(ranks: &str, script: &str) -> Command {
    iccl(&["run", "-n", ranks, "--", "bash", "-c", script])
}

fn started(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("iccl run starts")
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.cast_signed()).expect("a process id")
}

fn is_there(process: u32) -> bool {
    test_kill_process(pid(process)).is_ok()
}

/// Waits until a process is gone.
fn gone(process: u32) -> bool {
    let give_up = Instant::now() + Duration::from_secs(20);
    while is_there(process) && Instant::now() < give_up {
        std::thread::sleep(Duration::from_millis(10));
    }
    !is_there(process)
}

/// The lines of a child's output, as they come.
struct Lines(std::sync::mpsc::Receiver<String>, Vec<String>);

impl Lines {
    fn of(child: &mut Child) -> Self {
        let out = child.stdout.take().expect("piped");
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self(receiver, Vec::new())
    }

    /// Reads until every rank has said something that begins so; gives the rest of it by rank.
    fn each_says(&mut self, ranks: u32, what: &str) -> BTreeMap<u32, String> {
        let mut said = BTreeMap::new();
        let give_up = Instant::now() + Duration::from_secs(60);
        while said.len() < ranks as usize {
            let left = give_up.saturating_duration_since(Instant::now());
            let line = self.0.recv_timeout(left).unwrap_or_else(|error| {
                panic!("{error}: only {said:?} said \"{what}\" in {:?}", self.1)
            });
            let found = line.split_once("] ").and_then(|(rank, text)| {
                let rank: u32 = rank.trim_start_matches('[').parse().ok()?;
                Some((rank, text.strip_prefix(what)?.to_owned()))
            });
            if let Some((rank, text)) = found {
                said.insert(rank, text);
            }
            self.1.push(line);
        }
        said
    }
}

fn pids(lines: &mut Lines, ranks: u32) -> BTreeMap<u32, u32> {
    let said = lines.each_says(ranks, "pid ");
    said.into_iter().map(|(rank, text)| (rank, text.parse().expect("a pid"))).collect()
}

#[test]
fn ranks_know_who_they_are_and_their_lines_are_whole() {
    let ran = run_to_end(&mut shell(
        "3",
        "printf 'a%s' $ICCL_RANK; sleep 0.05; echo /$ICCL_WORLD_SIZE/$ICCL_LOCAL_RANK/$ICCL_LOCAL_WORLD_SIZE
         echo to-stderr >&2; printf 'no newline'",
    ));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    let mut lines: Vec<&str> = ran.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "[0] a0/3/0/3",
            "[0] no newline",
            "[1] a1/3/1/3",
            "[1] no newline",
            "[2] a2/3/2/3",
            "[2] no newline"
        ]
    );
    let mut errors: Vec<&str> = ran.err.lines().collect();
    errors.sort_unstable();
    assert_eq!(errors, ["[0] to-stderr", "[1] to-stderr", "[2] to-stderr"]);
}

#[test]
fn many_ranks_that_write_at_once_do_not_mix_lines() {
    let ran =
        run_to_end(&mut shell("6", "for i in $(seq 300); do echo line $i of $ICCL_RANK; done"));
    assert_eq!(ran.code(), Some(0), "{}", ran.err);
    let mut next = [1_u32; 6];
    for line in ran.out.lines() {
        let rank: usize = line[1..2].parse().expect("a rank");
        assert_eq!(line, format!("[{rank}] line {} of {rank}", next[rank]));
        next[rank] += 1;
    }
    assert_eq!(next, [301; 6]);
}

#[test]
fn when_nobody_reads_any_more_the_job_ends() {
    let mut command = iccl(&["run", "-n", "2", "--", "yes"]);
    let mut job = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("started");
    let mut first = String::new();
    let mut output = BufReader::new(job.stdout.take().expect("its output"));
    output.read_line(&mut first).expect("a line");
    assert!(first == "[0] y\n" || first == "[1] y\n", "{first}");
    drop(output);
    let started = Instant::now();
    let status = loop {
        if let Some(status) = job.try_wait().expect("its status") {
            break status;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "it writes to nobody for ever");
        std::thread::sleep(Duration::from_millis(10));
    };
    // As a shell says it of a program that SIGPIPE ended.
    assert_eq!(status.code(), Some(128 + 13));
}

#[test]
fn lines_can_be_had_as_they_are() {
    let ran = run_to_end(&mut iccl(&["run", "-n", "2", "--no-prefix", "--", "echo", "plain"]));
    assert_eq!(ran.out, "plain\nplain\n", "{}", ran.all());
}

#[test]
fn the_status_is_that_of_the_rank_that_failed_and_the_others_are_ended() {
    let began = Instant::now();
    // One ignores TERM, one has a child of its own.
    let script = "case $ICCL_RANK in
           0) trap '' TERM; while :; do sleep 0.1; done;;
           1) sleep 1000 & wait;;
           2) sleep 0.3; exit 7;;
           3) sleep 1000;;
         esac";
    let run = ["run", "-n", "4", "--grace", "0.5", "--", "bash", "-c", script];
    let ran = run_to_end(&mut iccl(&run));
    assert_eq!(ran.code(), Some(7), "{}", ran.all());
    assert!(ran.err.contains("rank 2 ended with status 7; ended 3 other ranks"), "{}", ran.err);
    assert!(began.elapsed() < END_TOGETHER, "{:?}", began.elapsed());
}

#[test]
fn a_signal_that_kills_a_rank_is_its_status() {
    let ran = run_to_end(&mut shell("2", "[ $ICCL_RANK = 1 ] && kill -SEGV $$; sleep 1000"));
    assert_eq!(ran.code(), Some(128 + 11), "{}", ran.all());
    assert!(ran.err.contains("rank 1 was killed by SIGSEGV (11)"), "{}", ran.err);
}

#[test]
fn a_command_that_is_not_there_is_127() {
    let ran = run_to_end(&mut iccl(&["run", "-n", "2", "--", "/no/such/command"]));
    assert_eq!(ran.code(), Some(127), "{}", ran.all());
    assert!(ran.err.contains("/no/such/command cannot be run"), "{}", ran.err);
}

#[test]
fn signals_reach_the_ranks() {
    let script = "trap 'echo got usr1' USR1; trap 'echo got term; exit 5' TERM
                  echo pid $$; while :; do sleep 0.05; done";
    let mut child = started(shell("2", script));
    let mut lines = Lines::of(&mut child);
    pids(&mut lines, 2);
    kill_process(pid(child.id()), Signal::USR1).expect("sent");
    lines.each_says(2, "got usr1");
    kill_process(pid(child.id()), Signal::TERM).expect("sent");
    lines.each_says(2, "got term");
    let ran = end_of(child, "iccl run");
    assert_eq!(ran.code(), Some(5), "{}", ran.all());
    assert!(!ran.err.contains("iccl run:"), "it was asked to end: {}", ran.err);
}

#[test]
fn an_interrupt_is_clean_and_a_second_one_is_final() {
    let mut child = started(shell("3", "echo pid $$; sleep 1000"));
    let mut lines = Lines::of(&mut child);
    let ranks = pids(&mut lines, 3);
    kill_process(pid(child.id()), Signal::INT).expect("sent");
    let ran = end_of(child, "iccl run");
    assert_eq!(ran.code(), Some(128 + 2), "{}", ran.all());
    assert!(ranks.values().all(|rank| gone(*rank)));

    let mut child =
        started(shell("2", "trap '' INT TERM; echo pid $$; while :; do sleep 0.1; done"));
    let mut lines = Lines::of(&mut child);
    let ranks = pids(&mut lines, 2);
    kill_process(pid(child.id()), Signal::INT).expect("sent");
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().expect("waited").is_none(), "the ranks were asked and may go on");
    kill_process(pid(child.id()), Signal::INT).expect("sent");
    let ran = end_of(child, "iccl run");
    assert_eq!(ran.code(), Some(128 + 9), "{}", ran.all());
    assert!(ranks.values().all(|rank| gone(*rank)));
}

#[test]
fn no_rank_outlives_a_launcher_that_is_killed() {
    let mut child = started(shell("3", "echo pid $$; exec sleep 1000"));
    let mut lines = Lines::of(&mut child);
    let ranks = pids(&mut lines, 3);
    child.kill().expect("killed");
    child.wait().expect("gone");
    assert!(ranks.values().all(|rank| gone(*rank)), "{ranks:?}");
}

#[test]
fn what_a_rank_leaves_behind_is_ended_and_holds_nothing_up() {
    let ran = run_to_end(&mut shell("2", "sleep 1000 & echo pid $!"));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    for line in ran.out.lines() {
        let process = line.rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("a pid");
        assert!(gone(process), "{line}");
    }
}

#[test]
fn settings_reach_the_ranks() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("own.toml");
    std::fs::write(&file, "[engine]\nspin = \"7us\"\n").expect("written");
    let own = iccl_tests::command::command_path().to_str().expect("a path");
    let arguments = [
        "run",
        "-n",
        "1",
        "--config",
        file.to_str().expect("a path"),
        "--set",
        "engine.op_timeout=9s",
        "--",
        own,
        "config",
        "engine",
    ];
    let ran = run_to_end(&mut iccl(&arguments));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    let row = |key: &str| ran.out.lines().find(|line| line.contains(key)).expect("a row");
    assert!(row("engine.spin").contains("own.toml:2:"), "{}", ran.out);
    assert!(row("engine.op_timeout").contains("ICCL_OP_TIMEOUT"), "{}", ran.out);
}

#[test]
fn jobs_inside_jobs_and_side_by_side_do_not_meet() {
    let own = iccl_tests::command::command_path().to_str().expect("a path").to_owned();
    let perf = ["perf", "all_reduce", "-b", "8", "-e", "8", "--iters", "1", "--json"];
    let start = || {
        let arguments = [&["run", "-n", "2", "--", own.as_str()], &perf[..]].concat();
        started(iccl(&arguments))
    };
    let jobs: Vec<Child> = (0..3).map(|_| start()).collect();
    for job in jobs {
        let ran = end_of(job, "iccl run");
        assert_eq!(ran.code(), Some(0), "{}", ran.all());
        assert!(ran.out.contains("\"ranks\": 2"), "{}", ran.out);
    }
    // The plan under a launcher is the real one, printed once.
    let ran = run_to_end(&mut iccl(&["run", "-n", "3", "--hosts", "2", "--", &own, "plan"]));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    assert_eq!(ran.out.matches("3 ranks on 2 hosts").count(), 1, "{}", ran.out);
}

/// One of four ranks is killed in the middle of a loop: the other three say who is gone.
fn kill_one_of_four(arguments: &[&str]) -> Ran {
    let program = Path::new(env!("CARGO_BIN_EXE_endless_all_reduce"));
    // Long enough that the ranks themselves have to notice.
    let run = ["run", "-n", "4", "--grace", "20"];
    let program = [program.to_str().expect("a path")];
    let mut child = started(iccl(&[&run[..], arguments, &["--"], &program].concat()));
    let mut lines = Lines::of(&mut child);
    let ranks = pids(&mut lines, 4);
    let began = Instant::now();
    kill_process(pid(ranks[&2]), Signal::KILL).expect("sent");
    let said = lines.each_says(3, "lost ");
    assert!(began.elapsed() < END_TOGETHER, "{:?}", began.elapsed());
    for rank in [0, 1, 3] {
        assert!(said[&rank].starts_with("Some(2)"), "rank {rank}: {said:?}");
    }
    end_of(child, "iccl run")
}

#[test]
fn b036_a_killed_rank_is_named_by_the_others() {
    for layout in [&[][..], &["--host-ids", "a,b,a,b"]] {
        let ran = kill_one_of_four(layout);
        assert_eq!(ran.code(), Some(128 + 9), "{}", ran.all());
        assert!(ran.err.contains("rank 2 was killed by SIGKILL (9)"), "{}", ran.err);
    }
}

#[test]
fn b036_a_stopped_rank_is_waited_for_until_the_deadline_and_named() {
    let program = Path::new(env!("CARGO_BIN_EXE_endless_all_reduce"));
    let program = program.to_str().expect("a path");
    for deadline in ["1s", "60s"] {
        let set = format!("engine.op_timeout={deadline}");
        let run = ["run", "-n", "3", "--grace", "20", "--set", &set, "--", program];
        let mut child = started(iccl(&run));
        let mut lines = Lines::of(&mut child);
        let ranks = pids(&mut lines, 3);
        kill_process(pid(ranks[&1]), Signal::STOP).expect("sent");
        if deadline == "1s" {
            let said = lines.each_says(2, "lost ");
            // A rank may also have to wait for one that waits, and then names both.
            for rank in [0, 2] {
                assert!(said[&rank].contains("rank 1 (last seen at"), "rank {rank}: {said:?}");
                assert!(said[&rank].contains("longer than 1s"), "rank {rank}: {said:?}");
            }
        } else {
            // In time: nobody minds.
            std::thread::sleep(Duration::from_millis(500));
            kill_process(pid(ranks[&1]), Signal::CONT).expect("sent");
            std::thread::sleep(Duration::from_millis(200));
            assert!(lines.0.try_recv().is_err(), "nobody lost anybody");
            assert!(child.try_wait().expect("waited").is_none());
        }
        // Ends ranks that are stopped, too, when asked again; two signals at once may count as one.
        while child.try_wait().expect("waited").is_none() {
            kill_process(pid(child.id()), Signal::TERM).expect("sent");
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(ranks.values().all(|rank| gone(*rank)), "{ranks:?}");
    }
}

#[test]
fn b092_a_killed_job_leaves_nothing_in_dev_shm() {
    let ours = || {
        let entries = std::fs::read_dir("/dev/shm").map(|all| all.filter_map(Result::ok));
        let names = entries.into_iter().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().contains("iccl")).collect::<Vec<_>>()
    };
    let before = ours();
    let program = Path::new(env!("CARGO_BIN_EXE_endless_all_reduce"));
    let mut child = started(iccl(&["run", "-n", "2", "--", program.to_str().expect("a path")]));
    let mut lines = Lines::of(&mut child);
    let ranks = pids(&mut lines, 2);
    child.kill().expect("killed");
    child.wait().expect("gone");
    assert!(ranks.values().all(|rank| gone(*rank)));
    assert_eq!(ours(), before);
}
