//! Sleeping and being woken. A wake-up that is lost shows as a wait that lasts until its timeout.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use iccl_plugin_api::sdk::{Progress, TransportDomain, Waker};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::child::{Actor, play};
use crate::common::{LONG, Side, pair, pattern};

/// Steps and waits, without a timeout that would hide a lost wake-up.
fn until_without_timeout(side: &mut Side, mut over: impl FnMut(&Side) -> bool) {
    loop {
        side.step();
        if over(side) {
            return;
        }
        let began = Instant::now();
        side.domain.wait(LONG).unwrap();
        assert!(began.elapsed() < LONG, "nobody woke the waiter");
    }
}

fn readable(side: &Side, timeout: Duration) -> bool {
    // SAFETY: the descriptor is the domain's, which outlives the call.
    let descriptor = unsafe { BorrowedFd::borrow_raw(side.domain.event_descriptor()) };
    let mut polled = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::try_from(timeout).unwrap())).unwrap() == 1
}

fn poll_until(side: &mut Side, mut over: impl FnMut(&Side) -> bool) {
    loop {
        side.step();
        if over(side) {
            return;
        }
        if side.domain.arm().unwrap() == Progress::Pending {
            assert!(readable(side, LONG), "nobody woke the waiter");
        }
    }
}

type Wait = fn(&mut Side, &dyn Fn(&Side) -> bool);

/// Messages, then a stream that is larger than the ring, both ways; everybody sleeps when there is
/// nothing to do.
fn everything_wakes(wait: Wait) {
    let (mut left, mut right) = (Side::rank(0, 4096), Side::rank(1, 4096));
    let address = right.domain.address().unwrap();
    let thread = std::thread::spawn(move || {
        let acceptor = right.open(0, 1, None).unwrap();
        // Asleep before the dialer comes.
        wait(&mut right, &|side| side.state(acceptor).unwrap() == Progress::Done);
        for round in 0..50 {
            let mut message = vec![0; 50_000];
            right.done.clear();
            right.receive(acceptor, round, &mut message).unwrap();
            wait(&mut right, &|side| side.done.len() == 1);
            std::thread::sleep(Duration::from_millis(round % 2));
            right.send(acceptor, round, &message).unwrap();
            wait(&mut right, &|side| side.done.len() == 2);
            right.assert_all_done(2);
        }
        // Asleep until the other side has gone.
        wait(&mut right, &|side| side.state(acceptor).is_err());
    });
    std::thread::sleep(Duration::from_millis(20));
    let dialer = left.open(1, 1, Some(&address)).unwrap();
    for round in 0..50 {
        let (message, mut back) = (pattern(round, 50_000), vec![0; 50_000]);
        left.done.clear();
        left.receive(dialer, round, &mut back).unwrap();
        left.send(dialer, round, &message).unwrap();
        wait(&mut left, &|side| side.done.len() == 2);
        left.assert_all_done(2);
        assert!(back == message);
    }
    left.domain.channel_close(dialer).unwrap();
    thread.join().unwrap();
}

#[test]
fn everything_that_can_happen_wakes_a_wait() {
    everything_wakes(|side, over| until_without_timeout(side, over));
}

#[test]
fn everything_that_can_happen_makes_the_descriptor_readable() {
    everything_wakes(|side, over| poll_until(side, over));
}

#[test]
fn the_descriptor_stays_readable_until_progress_and_no_longer() {
    let (mut left, mut right, dialer, acceptor) = pair(4096);
    let mut back = [0; 8];
    right.receive(acceptor, 1, &mut back).unwrap();
    assert_eq!(right.domain.arm(), Ok(Progress::Done), "a receive was posted since");
    right.step();
    while right.domain.arm().unwrap() == Progress::Done {
        right.step();
    }
    assert!(!readable(&right, Duration::from_millis(50)));
    left.send(dialer, 1, &[1; 8]).unwrap();
    assert!(readable(&right, LONG) && readable(&right, Duration::ZERO));
    right.step();
    assert_eq!(right.done.len(), 1);
    left.send(dialer, 2, &[2; 8]).unwrap();
    assert_eq!(right.domain.arm(), Ok(Progress::Done), "the bell was rung since");
    right.step();
    while right.domain.arm().unwrap() == Progress::Done {
        right.step();
    }
    assert!(!readable(&right, Duration::from_millis(50)));
}

#[test]
fn a_waker_ends_the_wait_that_runs_or_the_next_one() {
    let (mut left, mut right, ..) = pair(4096);
    let waker = left.domain.waker();
    // A waker before the wait, with progress in between.
    left.step();
    waker.wake();
    left.step();
    let began = Instant::now();
    left.domain.wait(LONG).unwrap();
    assert!(began.elapsed() < LONG);
    // A wait that runs.
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        waker.wake();
        waker
    });
    left.step();
    left.domain.wait(LONG).unwrap();
    assert!(began.elapsed() < LONG);
    let waker = thread.join().unwrap();
    // Each use is good for one wait.
    left.step();
    let began = Instant::now();
    left.domain.wait(Duration::from_millis(100)).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(100));
    // A waker may outlive its domain.
    drop(left);
    waker.wake();
    right.step();
}

#[test]
fn b095_waiting_takes_no_processor_time() {
    play("idle");
}

#[test]
fn b095_eight_processes_on_few_processors_get_their_turns() {
    const PEERS: u32 = 8;
    const ROUNDS: u64 = 200;
    let mut side = Side::rank(0, 1 << 16);
    let address = side.domain.address().unwrap();
    let mut peers: Vec<_> = (1..=PEERS).map(|rank| Actor::start("echo", rank, &address)).collect();
    let channels: Vec<_> = (1..=PEERS).map(|rank| side.open(rank, 1, None).unwrap()).collect();
    let mut back = vec![[0_u8; 1024]; PEERS as usize];
    for round in 0..ROUNDS {
        let mut message = [round as u8 & 0x7f; 1024];
        if round + 1 == ROUNDS {
            message[0] = 0xff;
        }
        side.done.clear();
        for (channel, back) in channels.iter().zip(&mut back) {
            side.receive(*channel, round, back).unwrap();
            side.send(*channel, round, &message).unwrap();
        }
        side.complete(2 * PEERS as usize);
        side.assert_all_done(2 * PEERS as usize);
        assert!(back.iter().all(|back| *back == message));
    }
    for peer in &mut peers {
        peer.ends_well();
    }
}
