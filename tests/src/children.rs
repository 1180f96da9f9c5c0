//! What the processes of the tests of split and shrink do.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::Barrier;
use std::time::Duration;

use iccl_runtime::comm::{Communicator, Runtime};
use iccl_runtime::{Error, ErrorKind, Result};

use crate::processes::Holdings;
use crate::ranks::sum;

/// Elements of each all-reduce.
const COUNT: usize = 2000;
/// Rounds before a communicator counts as one that works.
const WORKS: i32 = 10;
/// Attempts to shrink before something must be wrong.
const ATTEMPTS: u32 = 100;

fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // Whoever reads may have gone.
    let _ = writeln!(output, "{line}");
    let _ = output.flush();
}

/// Which communicator is shrunk when one fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Always the first: what ranks may do that do not all learn of a failure in the same place.
    World,
    /// The one that failed.
    Last,
}

/// Adds numbers with all ranks, and with those that are left when some fail, until there are at most
/// `least` and they have done `rounds` rounds. Says `running RANKS`, `failed KIND CULPRIT`, `shrunk
/// RANKS`, `done RANKS`; ranks are those of the world.
///
/// # Errors
/// A wrong sum, or what does not end with fewer ranks.
pub fn survive(anchor: Anchor, least: u32, rounds: i32) -> Result<()> {
    let world = Runtime::new()?.world()?;
    say("ready");
    let mut older: Vec<Communicator> = Vec::new();
    let mut last = world;
    loop {
        let error = match work(&last, least, rounds) {
            Ok(()) => {
                last.finalize()?;
                say(&format!("done {}", members(&last, &older)));
                return Ok(());
            }
            Err(error) => error,
        };
        let culprit = error.rank().map(|rank| in_world(&last, &older, rank));
        let culprit_text = culprit.map_or("none".to_owned(), |rank| rank.to_string());
        say(&format!("failed {} {culprit_text} {error}", error.kind().name()));
        let is_failure = matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Timeout);
        if !is_failure {
            return Err(error);
        }
        let smaller = match anchor {
            Anchor::Last => {
                let smaller = recover(&last, error.rank())?;
                older.push(last);
                smaller
            }
            Anchor::World => {
                if older.is_empty() {
                    older.push(last);
                }
                recover(&older[0], culprit)?
            }
        };
        last = smaller;
        say(&format!("shrunk {}", members(&last, &older)));
    }
}

/// Makes communicators out of the world, and adds numbers in them, until something fails.
///
/// # Errors
/// What failed; ranks are those of the world.
pub fn divide() -> Result<()> {
    let world = Runtime::new()?.world()?;
    say("ready");
    for round in 0.. {
        // Halves, and all in the opposite order.
        let half = world.split(Some(world.rank() % 2), 0)?;
        let all = world.split(Some(0), -(world.rank() as i32))?;
        for part in [half, all].into_iter().flatten() {
            sum(&part, 1, COUNT).map_err(|error| match error.rank() {
                Some(rank) => error.with_rank(part.parent_ranks()[rank as usize]),
                None => error,
            })?;
        }
        if round == 3 {
            say("running");
        }
    }
    Ok(())
}

/// The rank in the world of a rank of the last communicator.
fn in_world(last: &Communicator, older: &[Communicator], rank: u32) -> u32 {
    let lineage = older.iter().skip(1).chain(older.first().map(|_| last));
    lineage.rev().fold(rank, |rank, communicator| communicator.parent_ranks()[rank as usize])
}

fn members(last: &Communicator, older: &[Communicator]) -> String {
    let members = (0..last.ranks()).map(|rank| in_world(last, older, rank).to_string());
    members.collect::<Vec<_>>().join(",")
}

/// Rounds until something fails, or there are few ranks and enough rounds.
fn work(communicator: &Communicator, least: u32, rounds: i32) -> Result<()> {
    let ranks = communicator.ranks() as i32;
    for round in 1.. {
        let sums = sum(communicator, communicator.rank() as i32 * round, COUNT)?;
        let expected = ranks * (ranks - 1) / 2 * round;
        if sums.iter().any(|one| *one != expected) {
            let text = format!("round {round}: a wrong sum, {} instead of {expected}", sums[0]);
            return Err(Error::new(ErrorKind::Internal, text));
        }
        if round == WORKS {
            say(&format!("running {ranks}"));
        }
        if communicator.ranks() <= least && round >= rounds {
            return Ok(());
        }
    }
    Ok(())
}

/// Shrinks until the survivors agree on who they are.
fn recover(broken: &Communicator, culprit: Option<u32>) -> Result<Communicator> {
    let mut failed: BTreeSet<u32> = culprit.into_iter().collect();
    failed.remove(&broken.rank());
    let mut last = None;
    for attempt in 0..ATTEMPTS {
        failed.extend(broken.lost_ranks());
        let list: Vec<u32> = failed.iter().copied().collect();
        let error = match broken.shrink(&list) {
            Ok(smaller) => return Ok(smaller),
            Err(error) => error,
        };
        say(&format!("attempt {attempt} without {list:?}: {error}"));
        match error.kind() {
            ErrorKind::PeerLost => failed.extend(error.rank()),
            ErrorKind::Mismatch => {}
            _ => return Err(error),
        }
        last = Some(error);
        // News of deaths takes a moment.
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(last.unwrap_or_else(|| Error::new(ErrorKind::Internal, "no attempt was made")))
}

/// Makes and ends communicators out of one of two ranks, both in this process.
///
/// # Errors
/// What cannot be made.
///
/// # Panics
/// If a rank does.
pub fn descendants(times: u64) -> Result<()> {
    let runtime = Runtime::new()?;
    let id = runtime.local_unique_id()?;
    let together = Barrier::new(2);
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|rank| {
            let (runtime, id, together) = (&runtime, &id, &together);
            scope.spawn(move || {
                let world = runtime.communicator(id, rank, 2)?;
                for time in 0..times {
                    let copy = world.duplicate()?;
                    let part = copy.split(Some(0), -(rank as i32))?;
                    let alone = world.split(Some(rank), 0)?;
                    let all = world.shrink(&[])?;
                    for one in [part, alone, Some(all)].into_iter().flatten() {
                        sum(&one, 1, COUNT)?;
                    }
                    drop(copy);
                    if time != times / 5 && time + 1 != times {
                        continue;
                    }
                    together.wait();
                    if rank == 0 {
                        // Threads that were detached may take a moment to end.
                        std::thread::sleep(Duration::from_millis(300));
                        let Holdings { descriptors, threads, resident_kib } = Holdings::now();
                        say(&format!("holds {descriptors} {threads} {resident_kib}"));
                    }
                    together.wait();
                }
                Ok::<_, Error>(())
            })
        });
        threads.into_iter().try_for_each(|thread| thread.join().expect("a rank"))
    })
}
