//! Ranks that are processes and go on when some of them are killed or stopped.

use std::time::{Duration, Instant};

use iccl_tests::oracle::scramble;
use iccl_tests::processes::{Launch, Rank};

const PROGRAM: &str = env!("CARGO_BIN_EXE_iccl-test-rank");

fn launch(ranks: u32, arguments: &[&str]) -> Launch {
    Launch::new(PROGRAM, ranks, arguments)
}

/// The layouts in which ranks must behave alike.
fn layout(launch: Launch, ranks: u32, which: u64) -> Launch {
    match which % 3 {
        0 => launch.with("ICCL_TRANSPORT_ENABLED", "shm"),
        1 => launch.with("ICCL_TRANSPORT_ENABLED", "tcp"),
        _ => (0..ranks).fold(launch, |launch, rank| {
            launch.with_on(rank, "ICCL_HOST_ID", ["left", "right"][rank as usize % 2])
        }),
    }
}

/// The ranks that are left, as a rank says it.
fn names(ranks: &[usize]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn without(ranks: usize, victims: &[usize]) -> Vec<usize> {
    (0..ranks).filter(|rank| !victims.contains(rank)).collect()
}

/// All that are left are done, with each other and nobody else.
fn must_be_done(ranks: &mut [Rank], survivors: &[usize]) -> String {
    let mut said = Vec::new();
    for rank in survivors {
        assert_eq!(ranks[*rank].line("done"), names(survivors), "rank {rank}");
        said.push(format!("rank {rank}:"));
        said.extend(ranks[*rank].must_succeed());
    }
    said.join("\n")
}

/// One after the other dies in the middle of an all-reduce; those that are left shrink what has
/// failed, again and again, and their sums are right.
#[test]
fn b036_survivors_of_killed_ranks_go_on() {
    for (which, victims) in [[1_usize, 3], [0, 1], [3, 2]].into_iter().enumerate() {
        for anchor in ["last", "world"] {
            let launch = layout(launch(4, &["survive", anchor, "2", "20"]), 4, which as u64);
            let mut ranks = launch.start_all();
            for step in 0..2 {
                let gone = &victims[..step];
                let running = (4 - step).to_string();
                for rank in without(4, gone) {
                    assert_eq!(ranks[rank].line("running"), running, "rank {rank}");
                }
                ranks[victims[step]].signal(libc::SIGKILL);
                for rank in without(4, &victims[..=step]) {
                    let failed = ranks[rank].line("failed");
                    let expected = format!("peer-lost {} ", victims[step]);
                    assert!(failed.starts_with(&expected), "{anchor}: rank {rank}: {failed}");
                    let left = names(&without(4, &victims[..=step]));
                    assert_eq!(ranks[rank].line("shrunk"), left, "{anchor}: rank {rank}");
                }
            }
            must_be_done(&mut ranks, &without(4, &victims));
        }
    }
}

#[test]
fn b036_survivors_of_two_that_are_killed_at_once_go_on() {
    // The first of each is where others meet, or above others in the tree.
    for (which, (ranks, victims)) in
        [(4, [0, 3]), (4, [1, 2]), (4, [2, 3]), (9, [1, 6]), (9, [0, 1])].into_iter().enumerate()
    {
        let least = (ranks - 2).to_string();
        let launch = launch(ranks as u32, &["survive", "world", &least, "20"]);
        let mut all = layout(launch, ranks as u32, which as u64).start_all();
        for rank in &mut all {
            rank.line("running");
        }
        for victim in victims {
            all[victim].signal(libc::SIGKILL);
        }
        must_be_done(&mut all, &without(ranks, &victims));
    }
}

#[test]
fn b036_a_rank_that_is_killed_while_others_shrink_is_left_out_too() {
    for (which, victims) in [[3_usize, 0], [0, 1], [1, 2], [2, 3]].into_iter().enumerate() {
        let launch = layout(launch(4, &["survive", "world", "2", "20"]), 4, which as u64);
        let mut ranks = launch.start_all();
        for rank in &mut ranks {
            rank.line("running");
        }
        ranks[victims[0]].signal(libc::SIGKILL);
        // It begins to shrink.
        ranks[victims[1]].line("failed");
        ranks[victims[1]].signal(libc::SIGKILL);
        must_be_done(&mut ranks, &without(4, &victims));
    }
}

/// Two die, each at a random moment: in an operation, while the others shrink, or begin anew.
#[test]
fn b036_ranks_killed_at_random_moments() {
    for round in 0..20_u64 {
        let random = scramble(round ^ 0x5117);
        let launch = layout(launch(4, &["survive", "world", "2", "20"]), 4, round);
        let mut ranks = launch.start_all();
        let first = (random % 4) as usize;
        let second = (first + 1 + (random >> 8) as usize % 3) % 4;
        ranks[first].line("running");
        std::thread::sleep(Duration::from_micros(random >> 16 & 0xfff));
        let killed = Instant::now();
        ranks[first].signal(libc::SIGKILL);
        // What follows takes some 10 ms.
        std::thread::sleep(Duration::from_micros(random >> 32 & 0x7fff));
        ranks[second].signal(libc::SIGKILL);
        let said = must_be_done(&mut ranks, &without(4, &[first, second]));
        // A loaded machine may take long; the deadlines are a minute.
        let took = killed.elapsed();
        let told = format!("round {round}: {first}, then {second}: {took:?}\n{said}");
        assert!(took < Duration::from_secs(30), "{told}");
    }
}

/// A rank dies while communicators are made out of others, used and ended; the others name it at once.
#[test]
fn b036_a_rank_killed_while_communicators_are_made_is_named() {
    for round in 0..10_u64 {
        let random = scramble(round ^ 0xd1f1);
        let mut ranks = layout(launch(4, &["divide"]), 4, round).start_all();
        let victim = (random % 4) as usize;
        ranks[victim].line("running");
        std::thread::sleep(Duration::from_micros(random >> 16 & 0xffff));
        let killed = Instant::now();
        ranks[victim].signal(libc::SIGKILL);
        for rank in without(4, &[victim]) {
            let error = ranks[rank].line("error");
            let expected = format!("peer-lost {victim} ");
            assert!(error.starts_with(&expected), "round {round}: rank {rank}: {error}");
        }
        let took = killed.elapsed();
        assert!(took < Duration::from_secs(30), "round {round}: {victim}: {took:?}");
    }
}

/// A rank that is stopped is not gone: it does not answer in time, and is left out. When it wakes up
/// it learns that it is alone, and disturbs nobody.
#[test]
fn b036_a_stopped_rank_is_left_out() {
    for victim in [1_usize, 0] {
        let launch = launch(4, &["survive", "last", "3", "3000"])
            .with("ICCL_OP_TIMEOUT", "1s")
            .with("ICCL_INIT_TIMEOUT", "5s");
        let mut ranks = launch.start_all();
        for rank in &mut ranks {
            rank.line("running");
        }
        ranks[victim].signal(libc::SIGSTOP);
        let left = without(4, &[victim]);
        for rank in &left {
            let failed = ranks[*rank].line("failed");
            assert!(failed.starts_with(&format!("timeout {victim} ")), "rank {rank}: {failed}");
            assert_eq!(ranks[*rank].line("shrunk"), names(&left), "rank {rank}");
        }
        ranks[victim].signal(libc::SIGCONT);
        let failed = ranks[victim].line("failed");
        assert!(failed.starts_with("timeout") || failed.starts_with("peer-lost"), "{failed}");
        must_be_done(&mut ranks, &left);
        let _ = ranks[victim].finish();
    }
}

#[test]
fn b089_b091_descendants_leave_nothing_behind() {
    for transport in ["shm", "tcp"] {
        let launch = launch(1, &["descendants", "200"]);
        let mut rank = launch.with("ICCL_TRANSPORT_ENABLED", transport).start(0);
        let [early, late] = [0, 1].map(|_| {
            let line = rank.line("holds");
            let numbers: Vec<u64> =
                line.split(' ').map(|number| number.parse().expect("a number")).collect();
            numbers
        });
        assert_eq!(early[..2], late[..2], "{transport}: descriptors and threads");
        let grown = late[2].saturating_sub(early[2]);
        assert!(grown < 4 << 10, "{transport}: 640 communicators left {grown} KiB");
        rank.must_succeed();
    }
}
