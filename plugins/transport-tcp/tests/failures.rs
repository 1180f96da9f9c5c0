//! What happens when something goes wrong: every posted message ends with the reason, the channel
//! says it once, and nothing hangs.

mod common;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use common::{LONG, Options, Pair, drive, drive_for, pattern, status, with_settings};
use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{ChannelRequest, TransportDomain};
use iccl_plugin_api::tables::{Completion, completion_kind};

/// Checks that messages with these tokens ended with `expected`, and the channel once.
fn check_failed(ended: &[Completion], expected: Status, mut tokens: Vec<u64>) {
    let failed = ended.iter().filter(|ended| ended.kind == completion_kind::CHANNEL_FAILED);
    let failed: Vec<_> = failed.map(status).collect();
    assert_eq!(failed, [expected]);
    let messages = ended.iter().filter(|ended| ended.kind != completion_kind::CHANNEL_FAILED);
    let mut seen = Vec::new();
    for ended in messages {
        assert_eq!(status(ended), expected);
        seen.push(ended.token);
    }
    seen.sort_unstable();
    tokens.sort_unstable();
    assert_eq!(seen, tokens);
}

#[test]
fn another_envelope_or_length_ends_the_channel_and_leaves_the_buffer_untouched() {
    for (sent, expected) in [((1, 5000), (2, 5000)), ((1, 5000), (1, 4999)), ((1, 0), (1, 1))] {
        let mut pair = Pair::new(&with_settings(&[("sockets_per_peer", "2")]));
        let (source, mut target) = (pattern(1, sent.1), vec![0xee; expected.1]);
        let (mut next, mut never) = (vec![0xee; 10], vec![0; 10]);
        pair.a.receive(pair.on_a, 1, expected.0, &mut target);
        pair.a.receive(pair.on_a, 2, 1, &mut next);
        pair.b.receive(pair.on_b, 4, 1, &mut never);
        pair.b.send(pair.on_b, 3, sent.0, &source);
        pair.drive(|a, b| a.ended.len() == 3 && b.ended.len() == 3);
        assert!(target.iter().chain(&next).all(|&byte| byte == 0xee));
        let first = pair.a.ended[0];
        assert_eq!((first.token, status(&first)), (1, Status::Mismatch));
        assert_eq!((first.envelope[0], first.length), (sent.0, sent.1 as u64));
        check_failed(&pair.a.ended, Status::Mismatch, vec![1, 2]);
        assert_eq!(pair.a.failure(pair.on_a).unwrap().status, Status::Mismatch);
        let error = pair.a.try_send(pair.on_a, 9, 9, &[]).unwrap_err();
        assert_eq!(error.status, Status::Mismatch);
        // The other side loses the channel too.
        let sent = pair.b.ended.remove(0);
        assert_eq!((sent.token, status(&sent)), (3, Status::Ok));
        check_failed(&pair.b.ended, Status::PeerLost, vec![4]);
    }
}

#[test]
fn a_peer_that_goes_in_the_middle_of_a_message_is_lost() {
    for sockets in ["1", "3"] {
        let options = with_settings(&[("sockets_per_peer", sockets), ("stripe_bytes", "65536")]);
        let Pair { mut a, mut b, on_a, on_b } = Pair::new(&options);
        let source = vec![7; 64 << 20];
        let mut target = vec![0; source.len()];
        let mut later = vec![0; 10];
        a.receive(on_a, 1, 1, &mut target);
        a.receive(on_a, 2, 1, &mut later);
        a.send(on_a, 3, 1, &source);
        b.send(on_b, 1, 1, &source);
        for _ in 0..3 {
            b.progress();
            a.progress();
        }
        assert!(a.ended.is_empty() && b.ended.is_empty());
        drop(b);
        drive(&mut [&mut a], |ranks| ranks[0].ended.len() == 4);
        check_failed(&a.ended, Status::PeerLost, vec![1, 2, 3]);
        let text = a.failure(on_a).unwrap().message;
        assert!(text.starts_with("rank 1, channel 5"), "{text}");
    }
}

#[test]
fn a_peer_that_goes_is_noticed_without_a_posted_message() {
    let Pair { mut a, mut b, on_a, on_b } = Pair::new(&Options::default());
    // Something half sent, so that the end is not in order.
    let source = pattern(1, 10);
    b.send(on_b, 1, 1, &source);
    let mut never = vec![0; 10];
    b.receive(on_b, 2, 2, &mut never);
    b.progress();
    drop(b);
    drive_for(&mut [&mut a], Duration::from_millis(20));
    // What was sent wholly before can still be received, and the end comes after it.
    let mut target = [0; 10];
    a.receive(on_a, 1, 1, &mut target);
    drive(&mut [&mut a], |ranks| ranks[0].ended.len() == 2);
    assert_eq!(status(&a.ended.remove(0)), Status::Ok);
    assert_eq!(target, source.as_slice());
    check_failed(&a.ended, Status::PeerLost, vec![]);
}

#[test]
fn an_orderly_end_comes_after_all_sends_and_is_no_failure() {
    let Pair { mut a, mut b, on_a, on_b } = Pair::new(&with_settings(&[("sockets_per_peer", "2")]));
    let source = pattern(1, 700_000);
    let mut target = vec![0; source.len()];
    b.send(on_b, 1, 1, &source);
    b.send(on_b, 2, 1, &[]);
    a.receive(on_a, 1, 1, &mut target);
    drive(&mut [&mut a, &mut b], |ranks| ranks[1].ended.len() == 2);
    b.domain.channel_close(on_b).unwrap();
    assert!(
        b.domain.channel_state(on_b).is_err_and(|error| error.status == Status::InvalidArgument)
    );
    drop(b);
    a.receive(on_a, 2, 1, &mut []);
    drive(&mut [&mut a], |ranks| ranks[0].ended.len() == 2);
    assert!(target == source);
    drive_for(&mut [&mut a], Duration::from_millis(20));
    assert!(a.ended.iter().all(|ended| status(ended) == Status::Ok), "{:?}", a.ended);
    assert_eq!(a.ended.len(), 2);
    // Nothing more can be posted, and the reason is said.
    let error = a.try_receive(on_a, 3, 1, &[]).unwrap_err();
    assert_eq!(error.status, Status::PeerLost);
    assert!(error.message.contains("has closed it"), "{error}");
}

#[test]
fn an_end_while_receives_wait_is_a_failure() {
    let Pair { mut a, mut b, on_a, on_b } = Pair::new(&Options::default());
    let mut target = vec![0; 10];
    a.receive(on_a, 1, 1, &mut target);
    b.domain.channel_close(on_b).unwrap();
    drive(&mut [&mut a, &mut b], |ranks| ranks[0].ended.len() == 2);
    check_failed(&a.ended, Status::PeerLost, vec![1]);
}

#[test]
fn both_sides_may_close_at_once_and_open_again() {
    let mut pair = Pair::new(&Options::default());
    for round in 0..20 {
        let (source, mut target) = (pattern(round, 1000), vec![0; 1000]);
        pair.a.receive(pair.on_a, 1, 1, &mut target);
        pair.b.send(pair.on_b, 1, 1, &source);
        pair.drive(|a, b| !a.ended.is_empty() && !b.ended.is_empty());
        assert!(target == source);
        pair.a.domain.channel_close(pair.on_a).unwrap();
        pair.b.domain.channel_close(pair.on_b).unwrap();
        for rank in [&mut pair.a, &mut pair.b] {
            assert_eq!(status(&rank.take(1).unwrap()[0]), Status::Ok);
        }
        let address = pair.a.domain.address().unwrap();
        pair.on_a = pair.a.await_peer(1, 5, 1);
        pair.on_b = pair.b.dial(0, 5, 1, &address);
        let (on_a, on_b) = (pair.on_a, pair.on_b);
        pair.drive(|a, b| a.is_open(on_a) && b.is_open(on_b));
    }
}

#[test]
fn quiesce_gives_back_all_memory_at_once() {
    let Pair { mut a, mut b, on_a, on_b } = Pair::new(&Options::default());
    let source = vec![7; 64 << 20];
    let mut target = vec![0; source.len()];
    a.receive(on_a, 1, 1, &mut target);
    a.send(on_a, 2, 1, &[]);
    b.send(on_b, 3, 1, &source);
    for _ in 0..3 {
        b.progress();
        a.progress();
    }
    a.ended.clear();
    a.domain.quiesce(on_a, LONG).unwrap();
    let before = target.clone();
    drive_for(&mut [&mut a, &mut b], Duration::from_millis(20));
    assert!(target == before, "memory was written to after quiesce");
    assert_eq!(a.ended.len(), 1, "{:?}", a.ended);
    assert_eq!((a.ended[0].token, status(&a.ended[0])), (1, Status::Aborted));
    check_failed(&b.ended, Status::PeerLost, vec![3]);
    assert_eq!(a.failure(on_a).unwrap().status, Status::Aborted);
    // A channel that failed already, and one that is not open yet.
    b.domain.quiesce(on_b, LONG).unwrap();
    let unopened = a.await_peer(1, 6, 1);
    a.domain.quiesce(unopened, LONG).unwrap();
    assert_eq!(a.failure(unopened).unwrap().status, Status::Aborted);
    a.domain.channel_close(on_a).unwrap();
    assert_eq!(a.domain.quiesce(on_a, LONG).unwrap_err().status, Status::InvalidArgument);
}

#[test]
fn different_digests_are_a_mismatch_on_both_sides() {
    for opens_first in [true, false] {
        let options = Options::default();
        let (mut a, mut b) = (options.open(0), options.open(1));
        let address = a.domain.address().unwrap();
        let mut on_a = opens_first.then(|| a.await_peer(1, 5, 0xaaaa));
        let on_b = b.dial(0, 5, 0xbbbb, &address);
        drive_for(&mut [&mut a, &mut b], Duration::from_millis(20));
        let on_a = *on_a.get_or_insert_with(|| a.await_peer(1, 5, 0xaaaa));
        drive(&mut [&mut a, &mut b], |ranks| ranks.iter().all(|rank| !rank.ended.is_empty()));
        for (rank, channel) in [(&a, on_a), (&b, on_b)] {
            check_failed(&rank.ended, Status::Mismatch, vec![]);
            let text = rank.failure(channel).unwrap().message;
            assert!(text.contains("aaaa") && text.contains("bbbb") && text.contains("digest"));
        }
    }
}

#[test]
fn b064_a_peer_without_the_key_is_told_apart_and_the_true_one_still_comes() {
    let options = Options { handshake_timeout: Duration::from_secs(20), ..Options::default() };
    let mut a = options.open(0);
    let mut impostor = Options { key: [1; 32], ..options.clone() }.open(1);
    let mut b = options.open(1);
    let address = a.domain.address().unwrap();
    let on_a = a.await_peer(1, 5, 1);
    let on_impostor = impostor.dial(0, 5, 1, &address);
    drive(&mut [&mut a, &mut impostor], |ranks| !ranks[1].ended.is_empty());
    check_failed(&impostor.ended, Status::Unauthenticated, vec![]);
    let error = impostor.failure(on_impostor).unwrap();
    assert!(error.message.contains("job secret"), "{error}");
    assert!(!a.is_open(on_a) && a.ended.is_empty());
    let on_b = b.dial(0, 5, 1, &address);
    drive(&mut [&mut a, &mut b], |ranks| ranks[0].is_open(on_a) && ranks[1].is_open(on_b));
}

#[test]
fn b058_dialing_before_the_peer_listens() {
    let placeholder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = placeholder.local_addr().unwrap().port();
    drop(placeholder);
    let options = Options { connect_timeout: Duration::from_millis(300), ..Options::default() };
    let mut b = options.open(1);
    let mut address = vec![1, 1, 4];
    address.extend_from_slice(&port.to_le_bytes());
    address.extend_from_slice(&[127, 0, 0, 1]);
    let start = Instant::now();
    let on_b = b.dial(0, 5, 1, &address);
    let mut target = [0; 4];
    b.receive(on_b, 1, 1, &mut target);
    // Nothing but the domain's own timer may end the sleep.
    while b.ended.is_empty() {
        b.domain.wait(LONG).unwrap();
        b.progress();
    }
    assert!(start.elapsed() >= Duration::from_millis(300) && start.elapsed() < LONG);
    check_failed(&b.ended, Status::Timeout, vec![1]);
    let error = b.failure(on_b).unwrap();
    assert_eq!(error.vendor_code, i64::from(libc::ECONNREFUSED));
    let attempts: u32 = error
        .message
        .split("attempt ")
        .nth(1)
        .and_then(|rest| rest.split(':').next())
        .and_then(|number| number.parse().ok())
        .unwrap();
    assert!(attempts > 3, "{error}");
    for part in [format!("rank 0 at 127.0.0.1:{port}"), "Connection refused".to_owned()] {
        assert!(error.message.contains(&part), "{error}");
    }
}

#[test]
fn b058_a_peer_that_listens_late_is_reached() {
    // A domain's port is not known before it listens, so a plain listener plays the late one.
    let placeholder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = placeholder.local_addr().unwrap().port();
    drop(placeholder);
    let mut b = Options::default().open(1);
    let mut address = vec![1, 1, 4];
    address.extend_from_slice(&port.to_le_bytes());
    address.extend_from_slice(&[127, 0, 0, 1]);
    b.dial(0, 5, 1, &address);
    drive_for(&mut [&mut b], Duration::from_millis(50));
    let late = TcpListener::bind(("127.0.0.1", port)).unwrap();
    late.set_nonblocking(true).unwrap();
    let mut arrived = None;
    drive(&mut [&mut b], |_| {
        arrived = late.accept().ok();
        arrived.is_some()
    });
}

#[test]
fn a_peer_that_never_dials_is_named_in_time() {
    let options = Options { connect_timeout: Duration::from_millis(100), ..Options::default() };
    let mut a = options.open(0);
    let on_a = a.await_peer(1, 5, 1);
    let mut target = [0; 4];
    a.receive(on_a, 1, 1, &mut target);
    while a.ended.is_empty() {
        a.domain.wait(LONG).unwrap();
        a.progress();
    }
    check_failed(&a.ended, Status::Timeout, vec![1]);
    let error = a.failure(on_a).unwrap();
    assert!(error.message.starts_with("rank 1, channel 5"), "{error}");
}

#[test]
fn a_busy_peer_is_not_taken_for_a_lost_one() {
    // Linux ends a connection whose window stays closed for longer than the user time-out, even if
    // the peer answers; here it only means that no receive is posted.
    let options = with_settings(&[("user_timeout", "1000000")]);
    let Pair { mut a, mut b, on_a, on_b } = Pair::new(&options);
    let source = vec![7; 64 << 20];
    b.send(on_b, 1, 1, &source);
    drive_for(&mut [&mut a, &mut b], Duration::from_secs(5));
    assert!(b.ended.is_empty(), "{:?}", b.failure(on_b));
    let mut target = vec![0; source.len()];
    a.receive(on_a, 1, 1, &mut target);
    drive(&mut [&mut a, &mut b], |ranks| ranks.iter().all(|rank| !rank.ended.is_empty()));
    assert!(target == source);
    assert_eq!(status(&b.ended[0]), Status::Ok);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut a = Options::default().open(0);
    let request =
        ChannelRequest { peer: 1, dial: true, channel: 1, link_digest: 0, address: b"nonsense" };
    let refused = |error: iccl_plugin_api::sdk::PluginError| {
        assert_eq!(error.status, Status::InvalidArgument, "{error}");
    };
    refused(a.domain.channel_open(&request).unwrap_err());
    let request = ChannelRequest { peer: 2, dial: false, ..request };
    refused(a.domain.channel_open(&request).unwrap_err());
    let request = ChannelRequest { peer: 1, ..request };
    let channel = a.domain.channel_open(&request).unwrap();
    refused(a.domain.channel_open(&request).unwrap_err());
    a.domain.channel_close(channel).unwrap();
    refused(a.domain.channel_close(channel).unwrap_err());
    // The place is used again, the handle is not.
    let again = a.domain.channel_open(&request).unwrap();
    assert_ne!(channel, again);
    refused(a.try_send(channel, 1, 1, &[]).unwrap_err());
    a.try_send(again, 1, 1, &[]).unwrap();
}

#[test]
fn b060_a_forked_child_that_drops_the_domain_disturbs_nobody() {
    let mut pair = Pair::new(&Options::default());
    // SAFETY: the child only drops the domain, which makes no call that is unsafe after a fork in a
    // program with threads except freeing memory, which glibc allows; then it ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(pair);
        // SAFETY: ends the process without running anything else.
        unsafe { libc::_exit(0) };
    }
    let mut status_word = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status_word, 0) }, child);
    assert_eq!(status_word, 0);
    let (source, mut target) = (pattern(1, 100_000), vec![0; 100_000]);
    pair.a.receive(pair.on_a, 1, 1, &mut target);
    pair.b.send(pair.on_b, 1, 1, &source);
    pair.drive(|a, b| !a.ended.is_empty() && !b.ended.is_empty());
    assert!(target == source);
    assert_eq!(status(&pair.a.ended[0]), Status::Ok);
}

#[test]
fn b060_a_forked_child_that_holds_the_sockets_does_not_hide_the_end() {
    let Pair { mut a, mut b, on_a, on_b } = Pair::new(&Options::default());
    // SAFETY: the child only sleeps until it is ended.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: takes no argument and touches no memory.
            unsafe { libc::pause() };
        }
    }
    let mut target = [0; 10];
    b.receive(on_b, 1, 1, &mut target);
    a.domain.quiesce(on_a, LONG).unwrap();
    let start = Instant::now();
    while b.ended.len() < 2 && start.elapsed() < LONG / 4 {
        b.progress();
    }
    // SAFETY: ends the child made above and waits for it.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    check_failed(&b.ended, Status::PeerLost, vec![1]);
}

/// How many sockets connected to `port` are still held by a process, closed on one side.
fn half_closed(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    let is_half_closed = |state: &str| state == "04" || state == "05";
    rows.filter(|row| row[2].ends_with(&format!(":{port:04X}")))
        .filter(|row| is_half_closed(row[3]) && row[9] != "0")
        .count()
}

#[test]
fn a_peer_that_never_closes_its_side_is_not_waited_for_for_ever() {
    // Without a user time-out there is no other reason to wake up.
    let Pair { a, mut b, on_b, .. } = Pair::new(&with_settings(&[("user_timeout", "0")]));
    let port = a.domain.listens_on().port();
    b.domain.channel_close(on_b).unwrap();
    assert_eq!(half_closed(port), 1);
    // Nothing but the domain's own deadline ends the sleep.
    let start = Instant::now();
    while half_closed(port) > 0 {
        b.domain.wait(LONG).unwrap();
        b.progress();
    }
    assert!(start.elapsed() < LONG / 2);
}

#[test]
fn the_end_is_seen_behind_the_last_bytes_on_many_channels() {
    // With so many channels nothing is read without news, and the news of the bytes and of the end
    // may be one.
    let options = Options::default();
    let (mut a, mut b) = (options.open(0), options.open(1));
    let address = a.domain.address().unwrap();
    let on_a: Vec<_> = (0..5).map(|number| a.await_peer(1, number, 1)).collect();
    let on_b: Vec<_> = (0..5).map(|number| b.dial(0, number, 1, &address)).collect();
    drive(&mut [&mut a, &mut b], |ranks| {
        on_a.iter().all(|&channel| ranks[0].is_open(channel))
            && on_b.iter().all(|&channel| ranks[1].is_open(channel))
    });
    let source = pattern(1, 100);
    let mut targets = vec![[0; 100]; 10];
    for (&channel, targets) in on_a.iter().zip(targets.chunks_mut(2)) {
        a.receive(channel, 1, 1, &mut targets[0]);
        a.receive(channel, 2, 1, &mut targets[1]);
    }
    for &channel in &on_b {
        b.send(channel, 1, 1, &source);
        b.receive(channel, 2, 2, &mut []);
    }
    drive(&mut [&mut b], |ranks| ranks[0].ended.len() == 5);
    drop(b);
    // A message, the one that never comes, and the failure, on each.
    drive(&mut [&mut a], |ranks| ranks[0].ended.len() == 15);
    let whole = a.ended.iter().filter(|ended| status(ended) == Status::Ok).count();
    assert_eq!(whole, 5);
}
