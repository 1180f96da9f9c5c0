//! Ranks that are processes: killed, stopped, late, forked, and what they hold.

use std::time::{Duration, Instant};

use iccl_tests::oracle::scramble;
use iccl_tests::processes::{Launch, Rank, SOON};

const PROGRAM: &str = env!("CARGO_BIN_EXE_iccl-test-rank");

fn launch(ranks: u32, arguments: &[&str]) -> Launch {
    Launch::new(PROGRAM, ranks, arguments)
}

/// What a rank says of an error: kind, culprit and text.
fn error_of(rank: &mut Rank) -> (String, String, String) {
    let line = rank.line("error");
    let mut words = line.splitn(3, ' ').map(str::to_owned);
    let mut word = || words.next().unwrap_or_default();
    (word(), word(), word())
}

fn must_name(rank: &mut Rank, kinds: &[&str], culprit: &str) -> String {
    let (kind, named, text) = error_of(rank);
    let number = rank.rank();
    assert!(kinds.contains(&kind.as_str()), "rank {number}: {kind}: {text}");
    assert_eq!(named, culprit, "rank {number}: {kind}: {text}");
    text
}

// --- Ranks that go -----------------------------------------------------------------------------

/// A rank is killed at some moment; the others name it.
#[test]
fn b036_a_killed_rank_is_named_by_the_others() {
    for round in 0..20_u64 {
        let random = scramble(round);
        let launch = launch(4, &["loop"]);
        let launch = match round % 4 {
            0 => launch.with("ICCL_TRANSPORT_ENABLED", "shm"),
            1 => launch.with("ICCL_TRANSPORT_ENABLED", "tcp"),
            2 => (0..4).fold(launch, |launch, rank| {
                launch.with_on(rank, "ICCL_HOST_ID", ["left", "right"][rank as usize % 2])
            }),
            _ => launch,
        };
        let victim = (random % 4) as usize;
        // In the loop, or while the ranks meet.
        let in_the_loop = round % 5 != 0;
        // One that has not checked in yet is missed only when the time is up.
        let launch = launch.with("ICCL_INIT_TIMEOUT", if in_the_loop { "60s" } else { "3s" });
        let mut ranks = launch.start_all();
        ranks[victim].line(if in_the_loop { "running" } else { "begin" });
        std::thread::sleep(Duration::from_micros(random >> 8 & 0x3fff));
        let killed = Instant::now();
        ranks[victim].signal(libc::SIGKILL);
        let name = victim.to_string();
        for (number, rank) in ranks.iter_mut().enumerate().filter(|(number, _)| *number != victim) {
            let (kind, culprit, text) = error_of(rank);
            let told = format!("round {round}, killed {victim}: rank {number}: {kind}: {text}");
            if in_the_loop {
                assert_eq!(
                    (kind.as_str(), culprit.as_str()),
                    ("peer-lost", name.as_str()),
                    "{told}"
                );
            } else {
                // Before it has been here for the others, it is one that is missing.
                assert!(
                    text.contains(&format!("rank {name}")) || text.contains(&format!("[{name}]")),
                    "{told}"
                );
            }
            // 5 s are promised; a loaded machine may take longer to run this test.
            assert!(killed.elapsed() < Duration::from_secs(15), "{told}: {:?}", killed.elapsed());
            let (status, _) = rank.finish();
            assert_eq!(status.code(), Some(3));
        }
    }
}

#[test]
fn b036_a_stopped_rank_is_named_when_time_is_up() {
    for transport in ["shm", "tcp"] {
        let launch = launch(5, &["loop"])
            .with("ICCL_OP_TIMEOUT", "2s")
            .with("ICCL_TRANSPORT_ENABLED", transport);
        let mut ranks = launch.start_all();
        ranks[1].line("running");
        ranks[1].signal(libc::SIGSTOP);
        // Most of them wait for others that wait themselves.
        for rank in [0, 2, 3, 4] {
            let text = must_name(&mut ranks[rank], &["timeout"], "1");
            assert!(text.contains("all_reduce seq") && text.contains("rank 1"), "{text}");
        }
        ranks[1].signal(libc::SIGCONT);
        // It learns that the others have given up, from its own clock or from them.
        let (kind, _, text) = error_of(&mut ranks[1]);
        assert!(["timeout", "peer-lost"].contains(&kind.as_str()), "{kind}: {text}");
    }
}

#[test]
fn b036_a_rank_that_is_stopped_for_a_while_does_no_harm() {
    for transport in ["shm", "tcp"] {
        let launch = launch(3, &["wait"]).with("ICCL_TRANSPORT_ENABLED", transport);
        let mut ranks = launch.start_all();
        ranks[1].line("ready");
        ranks[1].signal(libc::SIGSTOP);
        std::thread::sleep(Duration::from_secs(2));
        ranks[1].signal(libc::SIGCONT);
        for rank in &mut ranks {
            let number = rank.rank();
            let said = rank.line("waited");
            let mut times = said.split(' ').map(|time| time.parse::<u64>().expect("a time"));
            let (waited, used) = (times.next().expect("a time"), times.next().expect("a time"));
            if number != 1 {
                assert!(waited > 1_000_000, "{transport}: rank {number} did not wait: {waited} µs");
                // Waiting costs next to no processor time.
                assert!(used * 50 < waited, "{transport}: {used} µs used in {waited} µs");
            }
            rank.line("done");
            rank.must_succeed();
        }
    }
}

#[test]
fn a_rank_that_exits_in_the_middle_is_named() {
    for transport in ["shm", "tcp"] {
        let mut ranks =
            launch(3, &["leave", "one"]).with("ICCL_TRANSPORT_ENABLED", transport).start_all();
        for rank in [0, 2] {
            must_name(&mut ranks[rank], &["peer-lost"], "1");
        }
        ranks[1].must_succeed();
    }
}

#[test]
fn b052_a_process_that_exits_without_destroying_ends_at_once() {
    for _ in 0..5 {
        let mut ranks = launch(3, &["leave", "all"]).start_all();
        for rank in &mut ranks {
            rank.line("leaves");
            let left = Instant::now();
            // By itself and without a signal.
            rank.must_succeed();
            assert!(left.elapsed() < Duration::from_secs(20), "{:?}", left.elapsed());
        }
    }
}

#[test]
fn b050_an_abort_names_the_rank_that_aborted() {
    let mut ranks = launch(3, &["abort"]).start_all();
    for rank in [0, 2] {
        must_name(&mut ranks[rank], &["aborted"], "1");
    }
    ranks[1].must_succeed();
}

/// A rank aborts while its peer is stopped, and threads of it wait for both communicators and for a group.
#[test]
fn b050_an_abort_needs_nobody() {
    // A second is promised; a loaded machine may take longer to run this test.
    const PROMISED: Duration = Duration::from_secs(5);
    for transport in ["shm", "tcp"] {
        let launch = launch(2, &["abort-beside-a-stopped-rank"]);
        let mut ranks = launch.with("ICCL_TRANSPORT_ENABLED", transport).start_all();
        // Both communicators of both ranks.
        for _ in 0..2 {
            ranks[0].line("busy");
            ranks[1].line("busy");
        }
        ranks[1].signal(libc::SIGSTOP);
        for waiters in [2, 1] {
            for _ in 0..waiters {
                let said = ranks[0].line("woken");
                let (time, kind) = said.split_once(' ').expect("two words");
                assert_eq!(kind, "aborted", "{transport}");
                let time = Duration::from_micros(time.parse().expect("a time"));
                assert!(time < PROMISED, "{transport}: woken after {time:?}");
            }
            let said = ranks[0].line("aborted");
            let time = Duration::from_micros(said.parse().expect("a time"));
            println!("{transport}: aborted in {time:?}");
            assert!(time < PROMISED, "{transport}: abort took {time:?}");
        }
        ranks[0].line("done");
        ranks[0].must_succeed();
        ranks[1].signal(libc::SIGCONT);
        for _ in 0..3 {
            assert_eq!(ranks[1].line("told"), "aborted Some(0)", "{transport}");
        }
        ranks[1].line("done");
        ranks[1].must_succeed();
    }
}

#[test]
fn b038_a_rank_that_never_starts_is_named() {
    let launch = launch(3, &["rounds", "1", "1"]).with("ICCL_INIT_TIMEOUT", "2s");
    let mut ranks = [launch.start(0), launch.start(2)];
    for rank in &mut ranks {
        let (kind, _, text) = error_of(rank);
        assert!(["rendezvous", "timeout"].contains(&kind.as_str()), "{kind}: {text}");
        assert!(text.contains("rank 1") || text.contains("[1]") || text.contains("1 of"), "{text}");
    }
}

#[test]
fn b099_who_is_waited_for_is_told() {
    let mut ranks = launch(3, &["skip", "4"]).with("ICCL_STALL_WARN", "500ms").start_all();
    for rank in &mut ranks {
        let number = rank.rank();
        let said = rank.must_succeed().join("\n");
        if number != 1 {
            let told = said.contains("all_reduce seq 4 (i64 × 8, sum)")
                && said.contains("rank 1 (last seen at seq 3)");
            assert!(told, "rank {number}: {said}");
        }
    }
}

#[test]
fn b099_a_rank_that_does_not_call_is_named() {
    let mut ranks = launch(4, &["skip", "4"]).with("ICCL_OP_TIMEOUT", "1s").start_all();
    for rank in &mut ranks {
        let number = rank.rank();
        let text = must_name(rank, &["timeout"], "1");
        assert!(text.contains("rank 1 is in no operation"), "rank {number}: {text}");
        assert!(text.contains("all_reduce seq 4"), "rank {number}: {text}");
    }
}

// --- Layouts, forks ----------------------------------------------------------------------------

#[test]
fn b041_uneven_hosts() {
    for hosts in [&["a", "a", "b"][..], &["a", "a", "a", "b", "b"], &["a", "b", "b", "b"]] {
        let ranks = hosts.len() as u32;
        let launch = launch(ranks, &["rounds", "50", "5000"]);
        let launch = (0..ranks).fold(launch, |launch, rank| {
            launch.with_on(rank, "ICCL_HOST_ID", hosts[rank as usize])
        });
        for rank in &mut launch.start_all() {
            rank.must_succeed();
        }
    }
}

/// Ranks of different users say that they are on one host, but do not give each other their memory.
#[test]
fn b057_where_shared_memory_cannot_be_attached_the_link_is_tcp() {
    // SAFETY: asks for the own user.
    if unsafe { libc::geteuid() } != 0 {
        println!("not root: cannot run a rank as another user, so nothing is tested");
        return;
    }
    let launch = launch(3, &["warnings"]).with("ICCL_HOST_ID", "one").as_user(2, 65_534);
    let mut ranks = launch.start_all();
    for rank in &mut ranks {
        let number = rank.rank();
        let said = rank.must_succeed();
        let tier = |word: &str, peer: u32| {
            let link = format!("{word} {peer} ");
            let line = said.iter().find_map(|line| line.strip_prefix(&link));
            line.unwrap_or_else(|| panic!("rank {number} says nothing of {peer}: {said:?}"))
        };
        for peer in (0..3).filter(|peer| *peer != number) {
            let expected = if number == 2 || peer == 2 { "tcp" } else { "shm" };
            assert_eq!(tier("link", peer), expected, "{number} to {peer}: {said:?}");
            assert_eq!(tier("copied", peer), expected, "{number} to {peer}: {said:?}");
        }
        let warnings: Vec<_> = said.iter().filter(|line| line.starts_with("warning")).collect();
        assert_eq!(warnings.len(), 1, "rank {number}: {said:?}");
        let told = warnings[0].contains("attach-failed(") && warnings[0].contains("runs as user");
        assert!(told, "rank {number}: {said:?}");
    }
}

#[test]
fn b060_a_fork_is_refused_and_harms_nobody() {
    for transport in ["shm", "tcp"] {
        let mut ranks = launch(2, &["fork"]).with("ICCL_TRANSPORT_ENABLED", transport).start_all();
        for rank in &mut ranks {
            assert_eq!(rank.line("child"), "0", "{transport}: calls in the child");
            rank.line("done");
            rank.must_succeed();
        }
    }
}

// --- What it costs -----------------------------------------------------------------------------

#[test]
fn b095_an_idle_communicator_costs_nothing() {
    for transport in ["shm", "tcp", "shm,tcp"] {
        let mut ranks =
            launch(2, &["idle", "3000"]).with("ICCL_TRANSPORT_ENABLED", transport).start_all();
        for rank in &mut ranks {
            let used: u64 = rank.line("used").parse().expect("a time");
            // 0.1 s in 10 s, so 30 ms in 3 s.
            assert!(used < 30_000, "{transport}: {used} µs of processor time in 3 s");
            rank.must_succeed();
        }
    }
}

#[test]
fn b095_eight_ranks_share_two_cores() {
    let started = Instant::now();
    for rank in &mut launch(8, &["rounds", "1000", "128"]).start_all() {
        rank.must_succeed();
    }
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
}

/// Descriptors, threads and KiB at two moments.
fn holdings(rank: &mut Rank) -> [[u64; 3]; 2] {
    [0, 1].map(|_| {
        let line = rank.line("holds");
        let mut numbers = line.split(' ').map(|number| number.parse().expect("a number"));
        std::array::from_fn(|_| numbers.next().expect("three numbers"))
    })
}

#[test]
fn b089_b091_communicators_leave_nothing_behind() {
    for (transport, times) in [("shm", "1000"), ("tcp", "200")] {
        let launch = launch(1, &["communicators", times]);
        let mut rank = launch.with("ICCL_TRANSPORT_ENABLED", transport).start(0);
        let [early, late] = holdings(&mut rank);
        assert_eq!(early[..2], late[..2], "{transport}: descriptors and threads");
        let grown = late[2].saturating_sub(early[2]);
        assert!(grown < 4 << 10, "{transport}: {times} communicators left {grown} KiB");
        rank.must_succeed();
    }
}

#[test]
fn b091_calls_leave_nothing_behind() {
    for (ranks, calls) in [(1, "100000"), (2, "20000")] {
        let mut ranks = launch(ranks, &["calls", calls]).start_all();
        for rank in &mut ranks {
            let [early, late] = holdings(rank);
            assert_eq!(early[..2], late[..2], "descriptors and threads");
            let grown = late[2].saturating_sub(early[2]);
            // 160 bytes a call, as another library once lost, would be 12 MiB.
            assert!(grown < 2 << 10, "{calls} calls left {grown} KiB");
        }
        for rank in &mut ranks {
            rank.must_succeed();
        }
    }
}

#[test]
fn b089_too_few_descriptors_are_an_error_that_says_so() {
    // Whatever is missing when: a job works in full, works over another way, or says what it lacks.
    let mut failed = Vec::new();
    for limit in [8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 24, 28, 32, 64] {
        let text = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
        let launch = Launch::new("/bin/sh", 2, &["-c", &text, PROGRAM, "rounds", "5", "100"]);
        let mut ranks = launch.with("ICCL_INIT_TIMEOUT", "2s").start_all();
        let said: Vec<_> = ranks.iter_mut().map(Rank::finish).collect();
        if said.iter().all(|(status, _)| status.success()) {
            continue;
        }
        failed.push(limit);
        let tells =
            |line: &String| line.contains("descriptor") || line.contains("Too many open files");
        let told = said.iter().any(|(_, lines)| lines.iter().any(tells));
        let ended = said.iter().all(|(status, _)| matches!(status.code(), Some(0 | 3)));
        assert!(told && ended, "with {limit} descriptors: {said:#?}");
    }
    assert!(failed.contains(&8), "eight are too few: {failed:?}");
    assert!(failed.iter().all(|&limit| limit < 32), "32 are enough for two ranks: {failed:?}");
}

/// Prints how fast it is; nothing is asserted, since machines differ.
#[test]
fn how_fast_it_is() {
    let measure = |ranks: u32, arguments: &[&str], transport: &str, word: &str| {
        let launch = launch(ranks, arguments).with("ICCL_TRANSPORT_ENABLED", transport);
        let mut ranks = launch.start_all();
        let said = ranks[0].line(word);
        println!("{transport}, {} ranks, {}: {said}", ranks.len(), arguments.join(" "));
        for rank in &mut ranks {
            rank.must_succeed();
        }
    };
    for transport in ["shm", "tcp"] {
        measure(2, &["latency", "2000"], transport, "latency");
        for ranks in [2, 4] {
            let bytes = if cfg!(debug_assertions) { "1048576" } else { "67108864" };
            measure(ranks, &["bandwidth", bytes, "5"], transport, "bandwidth");
        }
    }
}
