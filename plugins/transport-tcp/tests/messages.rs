//! Messages arrive whole, in order and in their places.

mod common;

use std::time::{Duration, Instant};

use common::{Options, Pair, Rank, drive, drive_for, pattern, segment, status, with_settings};
use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{Progress, TransportDomain, Waker};
use iccl_plugin_api::tables::completion_kind;

/// Sends `length` bytes from `b` to `a` and back.
fn ping_pong(pair: &mut Pair, length: usize) {
    let source = pattern(length as u64, length);
    let (mut there, mut back) = (vec![0xee; length], vec![0xdd; length]);
    let (on_a, on_b) = (pair.on_a, pair.on_b);
    pair.a.receive(on_a, 1, 3, &mut there);
    pair.b.receive(on_b, 2, 4, &mut back);
    pair.b.send(on_b, 3, 3, &source);
    pair.drive(|a, _| !a.ended.is_empty());
    let received = pair.a.take(1).unwrap()[0];
    assert_eq!((received.token, received.kind), (1, completion_kind::RECEIVE));
    assert_eq!((received.length, status(&received)), (length as u64, Status::Ok));
    assert!(there == source, "{length} bytes there");
    pair.a.send(on_a, 4, 4, &there);
    pair.drive(|a, b| a.ended.len() == 1 && b.ended.len() == 2);
    let sent = pair.a.take(1).unwrap()[0];
    assert_eq!((sent.token, sent.kind, sent.length), (4, completion_kind::SEND, length as u64));
    let mut tokens: Vec<_> = pair.b.take(2).unwrap().iter().map(|ended| ended.token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [2, 3]);
    assert!(back == source, "{length} bytes back");
}

const LENGTHS: [usize; 16] = [
    0,
    1,
    63,
    64,
    65,
    4095,
    4096,
    4097,
    16 * 1024 - 72,
    16 * 1024 - 71,
    16 * 1024 + 1,
    65_536,
    256 * 1024,
    256 * 1024 + 1,
    (1 << 20) + 3,
    32 << 20,
];

#[test]
fn every_length_around_a_boundary() {
    let mut pair = Pair::new(&Options::default());
    for length in LENGTHS {
        ping_pong(&mut pair, length);
    }
}

#[test]
fn every_length_over_several_sockets() {
    for sockets in ["2", "3", "4"] {
        let options = with_settings(&[("sockets_per_peer", sockets), ("stripe_bytes", "65536")]);
        let mut pair = Pair::new(&options);
        for length in LENGTHS {
            ping_pong(&mut pair, length);
        }
        for length in [65_537, 131_072, 131_073, 3 * 65_536 + 5, 12 * 65_536] {
            ping_pong(&mut pair, length);
        }
    }
}

#[test]
fn tiny_kernel_buffers_make_short_writes() {
    for sockets in ["1", "3"] {
        let options = with_settings(&[
            ("sockets_per_peer", sockets),
            ("stripe_bytes", "4096"),
            ("send_buffer", "2048"),
            ("receive_buffer", "2048"),
        ]);
        let mut pair = Pair::new(&options);
        for length in [0, 1, 4097, 100_003, 700_001] {
            ping_pong(&mut pair, length);
        }
    }
}

#[test]
fn the_dialers_settings_rule() {
    let dialer = with_settings(&[("sockets_per_peer", "3"), ("stripe_bytes", "8192")]);
    let (mut a, mut b) = (Options::default().open(0), dialer.open(1));
    let address = a.domain.address().unwrap();
    let (on_a, on_b) = (a.await_peer(1, 5, 1), b.dial(0, 5, 1, &address));
    drive(&mut [&mut a, &mut b], |ranks| ranks[0].is_open(on_a) && ranks[1].is_open(on_b));
    let mut pair = Pair { a, b, on_a, on_b };
    ping_pong(&mut pair, 1_000_003);
}

#[test]
fn segments_of_any_size_on_both_sides() {
    let mut pair =
        Pair::new(&with_settings(&[("sockets_per_peer", "2"), ("stripe_bytes", "4096")]));
    let lengths = [0, 1, 7, 0, 4096, 100_000, 3, 64, 65_537, 1, 1, 0, 9000, 2, 5, 31];
    let total = lengths.iter().sum();
    let source = pattern(1, total);
    let mut target = vec![0xee; total];
    let cut = |memory: *mut u8| {
        let mut at = 0;
        lengths.map(|length| {
            at += length;
            segment(memory.wrapping_add(at - length), length)
        })
    };
    let from = cut(source.as_ptr().cast_mut());
    let mut into = cut(target.as_mut_ptr());
    // The receiver cuts elsewhere: two segments at either end become one.
    into[1].length += into[2].length;
    into[2].length = 0;
    pair.a.try_receive(pair.on_a, 1, 1, &into).unwrap();
    pair.b.try_send(pair.on_b, 2, 1, &from).unwrap();
    pair.drive(|a, b| a.ended.len() == 1 && b.ended.len() == 1);
    assert!(target == source);

    let seventeen = [segment(target.as_mut_ptr(), 1); 17];
    let error = pair.a.try_send(pair.on_a, 1, 1, &seventeen).unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument);
}

#[test]
fn many_messages_at_once_in_both_directions_keep_their_order() {
    for sockets in ["1", "3"] {
        let options = with_settings(&[("sockets_per_peer", sockets), ("stripe_bytes", "8192")]);
        let mut pair = Pair::new(&options);
        let lengths: Vec<_> = (0..200_usize).map(|index| index * index * 7 % 30_011).collect();
        let sources: Vec<_> = lengths
            .iter()
            .enumerate()
            .map(|(seed, &length)| pattern(seed as u64, length))
            .collect();
        let empty = || lengths.iter().map(|&length| vec![0; length]).collect::<Vec<_>>();
        let (mut at_a, mut at_b) = (empty(), empty());
        for (index, source) in sources.iter().enumerate() {
            let (token, envelope) = (index as u64, index as u8);
            pair.a.send(pair.on_a, token, envelope, source);
            pair.b.send(pair.on_b, token, envelope, source);
            pair.a.receive(pair.on_a, 1000 + token, envelope, &mut at_a[index]);
            pair.b.receive(pair.on_b, 1000 + token, envelope, &mut at_b[index]);
        }
        pair.drive(|a, b| a.ended.len() == 400 && b.ended.len() == 400);
        assert!(at_a == sources && at_b == sources);
        for rank in [&pair.a, &pair.b] {
            for kind in [completion_kind::SEND, completion_kind::RECEIVE] {
                let ended = rank.ended.iter().filter(|ended| ended.kind == kind);
                let tokens: Vec<_> = ended.map(|ended| ended.token % 1000).collect();
                assert!(tokens.is_sorted() && tokens.len() == 200);
            }
        }
    }
}

#[test]
fn messages_posted_before_the_channel_is_open_are_sent_then() {
    let options = Options::default();
    let (mut a, mut b) = (options.open(0), options.open(1));
    let address = a.domain.address().unwrap();
    let (source, mut target) = (pattern(1, 5000), vec![0; 5000]);
    let on_b = b.dial(0, 5, 1, &address);
    b.send(on_b, 1, 1, &source);
    // The connection is parked until the other side opens the channel.
    drive_for(&mut [&mut a, &mut b], Duration::from_millis(50));
    assert!(!b.is_open(on_b) && b.ended.is_empty());
    let on_a = a.await_peer(1, 5, 1);
    a.receive(on_a, 2, 1, &mut target);
    drive(&mut [&mut a, &mut b], |ranks| !ranks[0].ended.is_empty());
    assert!(target == source);
}

#[test]
fn a_peer_that_posts_no_receive_holds_up_nobody_else() {
    let options = Options { ranks: 3, ..Options::default() };
    let (mut a, mut slow, mut quick) = (options.open(0), options.open(1), options.open(2));
    let address = a.domain.address().unwrap();
    let (to_slow, to_quick) = (a.await_peer(1, 1, 0), a.await_peer(2, 1, 0));
    let (on_slow, on_quick) = (slow.dial(0, 1, 0, &address), quick.dial(0, 1, 0, &address));
    let big = vec![7; 64 << 20];
    a.send(to_slow, 1, 1, &big);
    let (small, mut target) = (pattern(2, 100_000), vec![0; 100_000]);
    for round in 0..20 {
        quick.receive(on_quick, round, 2, &mut target);
        a.send(to_quick, 100 + round, 2, &small);
        drive(&mut [&mut a, &mut slow, &mut quick], |ranks| !ranks[2].ended.is_empty());
        assert!(target == small);
        quick.ended.clear();
    }
    // What was not asked for stays in the kernel: the send is not over, the receiver holds nothing.
    assert!(a.ended.iter().all(|ended| ended.token >= 100));
    let mut all = vec![0; big.len()];
    slow.receive(on_slow, 1, 1, &mut all);
    drive(&mut [&mut a, &mut slow, &mut quick], |ranks| !ranks[1].ended.is_empty());
    assert!(all == big);
}

/// Waits as an engine does that has other things to wait for as well.
fn poll_until(rank: &mut Rank, mut done: impl FnMut(&mut Rank) -> bool) {
    let deadline = Instant::now() + common::LONG;
    loop {
        rank.progress();
        if done(rank) {
            return;
        }
        assert!(Instant::now() < deadline, "nothing more happens");
        if rank.domain.arm().unwrap() == Progress::Done {
            continue;
        }
        let mut poll =
            libc::pollfd { fd: rank.domain.event_descriptor(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which lives as long as the domain.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 20_000) };
        assert_eq!(ready, 1, "the descriptor did not become readable");
    }
}

fn wait_until(rank: &mut Rank, mut done: impl FnMut(&mut Rank) -> bool) {
    let deadline = Instant::now() + common::LONG;
    loop {
        rank.progress();
        if done(rank) {
            return;
        }
        assert!(Instant::now() < deadline, "nothing more happens");
        rank.domain.wait(common::LONG).unwrap();
    }
}

#[test]
fn two_threads_that_sleep_between_messages() {
    for sockets in ["1", "2"] {
        let options = with_settings(&[("sockets_per_peer", sockets), ("stripe_bytes", "65536")]);
        let (mut a, mut b) = (options.open(0), options.open(1));
        let address = a.domain.address().unwrap();
        let rounds = [0, 8, 70_000, 3 << 20, 8];
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let channel = a.await_peer(1, 5, 1);
                for length in rounds {
                    let mut memory = vec![0; length];
                    a.receive(channel, 1, 1, &mut memory);
                    poll_until(&mut a, |a| a.take(1).is_some());
                    a.send(channel, 2, 2, &memory);
                    poll_until(&mut a, |a| a.take(1).is_some());
                }
            });
            let channel = b.dial(0, 5, 1, &address);
            for length in rounds {
                let (source, mut target) = (pattern(3, length), vec![0; length]);
                b.receive(channel, 1, 2, &mut target);
                b.send(channel, 2, 1, &source);
                wait_until(&mut b, |b| b.take(2).is_some());
                assert!(target == source);
            }
        });
    }
}

#[test]
fn a_waker_ends_the_wait_that_runs_or_the_next_one() {
    let mut rank = Options::default().open(0);
    let waker = rank.domain.waker();
    let start = Instant::now();
    waker.wake();
    rank.domain.wait(common::LONG).unwrap();
    // A wake that `progress` has already heard of counts for the next wait as well.
    waker.wake();
    rank.domain.arm().unwrap();
    rank.progress();
    rank.domain.wait(common::LONG).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            waker.wake();
        });
        rank.domain.wait(common::LONG).unwrap();
    });
    assert!(start.elapsed() < common::LONG);
    // And only one wait: the next one sleeps.
    let start = Instant::now();
    rank.domain.wait(Duration::from_millis(30)).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(25));
}

#[test]
fn works_above_1024_descriptors() {
    // SAFETY: all-zero is a valid `rlimit`, and the calls read and write one.
    let limit = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max.min(8192);
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        limit.rlim_cur
    };
    let wanted = if limit >= 2048 { 1100 } else { (limit / 2) as usize };
    let placeholders: Vec<_> =
        (0..wanted).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
    let mut pair = Pair::new(&Options::default());
    if limit >= 2048 {
        assert!(pair.a.domain.event_descriptor() > 1024);
    }
    ping_pong(&mut pair, 100_000);
    drop(placeholders);
}

#[test]
fn many_channels_of_one_pair() {
    let options = Options::default();
    let (mut a, mut b) = (options.open(0), options.open(1));
    let address = a.domain.address().unwrap();
    let numbers = 0..100_u64;
    let on_a: Vec<_> = numbers.clone().map(|number| a.await_peer(1, number, number)).collect();
    let on_b: Vec<_> = numbers.clone().map(|number| b.dial(0, number, number, &address)).collect();
    let sources: Vec<_> = numbers.clone().map(|number| pattern(number, 3000)).collect();
    let mut targets = vec![vec![0; 3000]; on_a.len()];
    for (index, target) in targets.iter_mut().enumerate() {
        a.receive(on_a[index], index as u64, 1, target);
        b.send(on_b[index], index as u64, 1, &sources[index]);
    }
    drive(&mut [&mut a, &mut b], |ranks| ranks[0].ended.len() == 100);
    assert!(targets == sources);
}

#[test]
fn ipv6_loopback() {
    let options = Options { interface: "::1", ..Options::default() };
    let mut pair = Pair::new(&options);
    assert!(pair.a.domain.listens_on().is_ipv6());
    ping_pong(&mut pair, 100_000);
}
