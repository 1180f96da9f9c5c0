//! How channels end, and that nothing is left.

use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::TransportDomain;
use iccl_plugin_api::tables::{Completion, completion_kind};

use crate::child::{Actor, names_in_dev_shm, play};
use crate::common::{LONG, Side, both, pair, pattern, segment};

/// What a peer's death may take to be noticed here, on a machine that is busy with other things.
const SOON: Duration = Duration::from_secs(10);

fn statuses(side: &Side) -> Vec<(u64, u32, Status)> {
    side.done.iter().map(|done| (done.token, done.kind, done.outcome())).collect()
}

#[test]
fn b036_a_peer_that_is_killed_in_the_middle_of_a_message_is_reported_lost() {
    let mut side = Side::rank(0, 1 << 16);
    let mut peer = Actor::start("stream", 1, &side.domain.address().unwrap());
    let channel = side.open(1, 1, None).unwrap();
    let mut buffer = vec![0; 256 << 20];
    let start = buffer.as_mut_ptr();
    side.post(false, channel, 1, &[segment(start, buffer.len())]).unwrap();
    let mut later = [0; 8];
    side.receive(channel, 2, &mut later).unwrap();
    let answer = pattern(3, 1 << 20);
    side.send(channel, 3, &answer).unwrap();
    let arrived = |side: &Side| side.state(channel).unwrap() == crate::common::DONE;
    side.until("connected", arrived);
    let end = Instant::now() + LONG;
    // SAFETY: the buffer lives to the end of the test, and only `step` writes to it.
    while unsafe { start.read_volatile() } == 0 {
        side.step();
        assert!(Instant::now() < end, "nothing arrives");
    }
    assert!(side.done.is_empty(), "not in the middle");
    peer.kill();
    let killed = Instant::now();
    side.until("the loss", |side| side.done.len() == 4);
    assert!(killed.elapsed() < SOON, "noticed after {:?}", killed.elapsed());
    let mut ended = statuses(&side);
    assert_eq!(ended.pop(), Some((0, completion_kind::CHANNEL_FAILED, Status::PeerLost)));
    ended.sort_unstable();
    assert_eq!(
        ended,
        [
            (1, completion_kind::RECEIVE, Status::PeerLost),
            (2, completion_kind::RECEIVE, Status::PeerLost),
            (3, completion_kind::SEND, Status::PeerLost)
        ]
    );
    let error = side.state(channel).unwrap_err();
    assert!(error.message.contains("rank 1 is gone"), "{error}");
    assert_eq!(side.send(channel, 4, &[]).unwrap_err().status, Status::PeerLost);
    for _ in 0..100 {
        side.step();
    }
    assert_eq!(side.done.len(), 4, "told twice");
    assert_eq!(names_in_dev_shm(), Vec::<String>::new());
}

#[test]
fn a_killed_peer_is_noticed_by_the_descriptor_as_well() {
    use iccl_plugin_api::sdk::Progress;
    use rustix::event::{PollFd, PollFlags, poll};
    let mut side = Side::rank(0, 4096);
    let mut peer = Actor::start("stream", 1, &side.domain.address().unwrap());
    let channel = side.open(1, 1, None).unwrap();
    side.until("connected", |side| side.state(channel).unwrap() == crate::common::DONE);
    while side.domain.arm().unwrap() == Progress::Done {
        side.step();
    }
    peer.kill();
    // SAFETY: the descriptor is the domain's, which lives to the end of the test.
    let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(side.domain.event_descriptor()) };
    let mut polled = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    let timeout = rustix::time::Timespec { tv_sec: 90, tv_nsec: 0 };
    assert_eq!(poll(&mut polled, Some(&timeout)), Ok(1));
    side.until("the loss", |side| !side.done.is_empty());
    assert_eq!(statuses(&side), [(0, completion_kind::CHANNEL_FAILED, Status::PeerLost)]);
}

#[test]
fn what_a_dying_peer_had_sent_is_delivered_first() {
    let mut side = Side::rank(0, 1 << 16);
    let mut peer = Actor::start("last-words", 1, &side.domain.address().unwrap());
    let channel = side.open(1, 1, None).unwrap();
    side.until("connected", |side| side.state(channel).unwrap() == crate::common::DONE);
    peer.hears("sent");
    peer.kill();
    // It is gone before anything is received, and noticed to be.
    for _ in 0..20 {
        side.domain.wait(Duration::from_millis(10)).unwrap();
        side.step();
    }
    assert!(side.done.is_empty() && side.state(channel).is_ok());
    let (mut first, mut second, mut third) = (vec![0; 1000], vec![0; 2000], vec![0; 1 << 20]);
    side.receive(channel, 1, &mut first).unwrap();
    side.complete(1);
    side.receive(channel, 2, &mut second).unwrap();
    side.receive(channel, 3, &mut third).unwrap();
    side.complete(4);
    assert!(first == pattern(1, 1000) && second == pattern(2, 2000));
    let ends: Vec<Status> = side.done.iter().map(Completion::outcome).collect();
    assert_eq!(ends, [Status::Ok, Status::Ok, Status::PeerLost, Status::PeerLost]);
}

#[test]
fn a_killed_peer_is_noticed_although_its_forked_child_holds_the_socket() {
    let mut side = Side::rank(0, 4096);
    let mut peer = Actor::start("forked", 1, &side.domain.address().unwrap());
    let channel = side.open(1, 1, None).unwrap();
    side.until("connected", |side| side.state(channel).unwrap() == crate::common::DONE);
    let orphan: i32 = peer.hears("forked").parse().unwrap();
    peer.process.kill().unwrap();
    let killed = Instant::now();
    side.until("the loss", |side| !side.done.is_empty());
    let noticed = killed.elapsed();
    // SAFETY: a plain call; the process is the grandchild of this test.
    assert_eq!(unsafe { libc::kill(orphan, libc::SIGKILL) }, 0, "the orphan did not outlive it");
    assert!(noticed < SOON, "noticed after {noticed:?}");
    assert_eq!(statuses(&side), [(0, completion_kind::CHANNEL_FAILED, Status::PeerLost)]);
}

#[test]
fn b060_a_forked_child_that_drops_the_domain_does_not_disturb_its_parent() {
    let mut side = Side::rank(0, 1 << 16);
    let mut peer = Actor::start("fork-drop", 1, &side.domain.address().unwrap());
    let channel = side.open(1, 1, None).unwrap();
    for round in 0..10 {
        let mut message = [0; 100];
        side.done.clear();
        side.receive(channel, round, &mut message).unwrap();
        side.complete(1);
        side.send(channel, round, &message).unwrap();
        side.complete(2);
        side.assert_all_done(2);
    }
    peer.ends_well();
}

#[test]
fn b091_b092_opening_and_closing_leaves_nothing() {
    play("no-leak");
}

#[test]
fn b093_a_limit_of_file_sizes_is_an_error_on_both_sides() {
    play("limited");
}

#[test]
fn an_orderly_end_comes_after_all_that_was_sent() {
    let (mut left, mut right, dialer, acceptor) = pair(4096);
    left.send(dialer, 1, &[1; 100]).unwrap();
    left.send(dialer, 2, &[2; 200]).unwrap();
    left.complete(2);
    left.assert_all_done(2);
    left.domain.channel_close(dialer).unwrap();
    drop(left);
    for _ in 0..100 {
        right.step();
        right.domain.wait(Duration::from_millis(1)).unwrap();
    }
    assert!(right.done.is_empty(), "an end with nothing outstanding is no failure");
    let (mut first, mut second, mut third) = ([0; 100], [0; 200], [0; 300]);
    right.receive(acceptor, 1, &mut first).unwrap();
    right.receive(acceptor, 2, &mut second).unwrap();
    right.complete(2);
    right.assert_all_done(2);
    assert!(first == [1; 100] && second == [2; 200]);
    right.step();
    let error = right.receive(acceptor, 3, &mut third).unwrap_err();
    assert_eq!(error.status, Status::PeerLost);
    assert!(error.message.contains("rank 0 has closed"), "{error}");
    right.step();
    assert_eq!(right.done.len(), 2);
}

#[test]
fn an_orderly_end_fails_what_the_peer_still_waits_for() {
    let (mut left, mut right, dialer, acceptor) = pair(4096);
    let mut never = [0; 10];
    right.receive(acceptor, 1, &mut never).unwrap();
    right.step();
    left.domain.channel_close(dialer).unwrap();
    right.complete(2);
    assert_eq!(
        statuses(&right),
        [
            (1, completion_kind::RECEIVE, Status::PeerLost),
            (0, completion_kind::CHANNEL_FAILED, Status::PeerLost)
        ]
    );
}

#[test]
fn a_quiesced_channel_touches_no_memory_and_tells_the_peer() {
    let (mut left, mut right, dialer, acceptor) = pair(1 << 16);
    let sent = vec![1; 1 << 20];
    let mut back = vec![0; 1 << 20];
    left.send(dialer, 1, &sent).unwrap();
    right.receive(acceptor, 1, &mut back).unwrap();
    let mut other = [0; 10];
    right.receive(acceptor, 2, &mut other).unwrap();
    let answer = vec![4; 1 << 17];
    right.send(acceptor, 3, &answer).unwrap();
    for _ in 0..3 {
        left.step();
        right.step();
    }
    right.domain.quiesce(acceptor, Duration::ZERO).unwrap();
    right.domain.quiesce(acceptor, Duration::ZERO).unwrap();
    let reached = back.iter().position(|byte| *byte == 0).expect("it was not in the middle");
    assert!(reached > 0);
    both(&mut left, &mut right, |left, right| right.done.len() == 3 && left.done.len() == 2);
    assert!(back[reached..].iter().all(|byte| *byte == 0));
    let mut ended = statuses(&right);
    ended.sort_unstable();
    assert_eq!(
        ended,
        [
            (1, completion_kind::RECEIVE, Status::Aborted),
            (2, completion_kind::RECEIVE, Status::Aborted),
            (3, completion_kind::SEND, Status::Aborted)
        ]
    );
    assert_eq!(right.state(acceptor).unwrap_err().status, Status::Aborted);
    assert_eq!(right.send(acceptor, 5, &[]).unwrap_err().status, Status::Aborted);
    assert_eq!(
        statuses(&left),
        [
            (1, completion_kind::SEND, Status::PeerLost),
            (0, completion_kind::CHANNEL_FAILED, Status::PeerLost)
        ]
    );
    right.domain.channel_close(acceptor).unwrap();
}

#[test]
fn a_channel_that_never_connects_can_be_given_up() {
    let mut side = Side::rank(0, 4096);
    let channel = side.open(1, 1, None).unwrap();
    let mut buffer = [0; 8];
    side.receive(channel, 1, &mut buffer).unwrap();
    side.domain.quiesce(channel, LONG).unwrap();
    side.step();
    assert_eq!(statuses(&side), [(1, completion_kind::RECEIVE, Status::Aborted)]);
    side.domain.channel_close(channel).unwrap();
    // The number is free again.
    side.open(1, 1, None).unwrap();
}

#[test]
fn a_domain_that_is_dropped_ends_its_channels() {
    let (left, mut right, _, acceptor) = pair(4096);
    let mut buffer = [0; 8];
    right.receive(acceptor, 1, &mut buffer).unwrap();
    drop(left);
    right.complete(2);
    assert_eq!(right.done[0].outcome(), Status::PeerLost);
}
