//! Strangers, and peers that are not what they should be.

use std::fmt::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{ChannelRequest, DomainRequest, Progress, Transport, TransportDomain};
use iccl_plugin_api::tables::completion_kind;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recv, send,
};

use crate::child::play;
use crate::common::{LONG, Side, both, connect, request, transport};

/// A connection to a domain from somebody who knows where it is.
fn stranger(address: &[u8]) -> OwnedFd {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .unwrap();
    let mut name = "iccl-".to_owned();
    for byte in &address[1..17] {
        write!(name, "{byte:02x}").unwrap();
    }
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

fn was_dropped(socket: &OwnedFd) -> bool {
    let mut buffer = [0; 256];
    loop {
        match recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

#[test]
fn another_key_is_refused_and_the_right_peer_still_gets_in() {
    let other_job = DomainRequest { job_key: &[8; 32], ..request(0) };
    let mut intruder = Side::new(transport(4096).open(&other_job).unwrap());
    let mut side = Side::rank(1, 4096);
    let address = side.domain.address().unwrap();
    let acceptor = side.open(0, 1, None).unwrap();
    let wrong = intruder.open(1, 1, Some(&address)).unwrap();
    both(&mut intruder, &mut side, |intruder, _| intruder.state(wrong).is_err());
    assert_eq!(intruder.state(wrong).unwrap_err().status, Status::Unauthenticated);
    assert_eq!(intruder.done[0].kind, completion_kind::CHANNEL_FAILED);
    assert_eq!(side.state(acceptor), Ok(Progress::Pending));
    let mut peer = Side::rank(0, 4096);
    let right = peer.open(1, 1, Some(&address)).unwrap();
    both(&mut peer, &mut side, |peer, side| {
        peer.state(right).unwrap() == Progress::Done
            && side.state(acceptor).unwrap() == Progress::Done
    });
}

#[test]
fn another_communicator_or_another_rank_is_refused() {
    for other in
        [DomainRequest { communicator: 6, ..request(0) }, DomainRequest { rank: 0, ..request(0) }]
    {
        let mut intruder = Side::new(transport(4096).open(&other).unwrap());
        let mut side = Side::rank(1, 4096);
        let address = side.domain.address().unwrap();
        // The second one means to reach rank 2 and finds rank 1.
        let peer = if other.communicator == 6 { 1 } else { 2 };
        let wrong = intruder.open(peer, 1, Some(&address)).unwrap();
        both(&mut intruder, &mut side, |intruder, _| intruder.state(wrong).is_err());
        let error = intruder.state(wrong).unwrap_err();
        assert_eq!(error.status, Status::Unauthenticated);
        assert!(error.message.contains("refused"), "{error}");
    }
}

#[test]
fn plans_that_differ_are_refused_on_both_sides_with_both_digests() {
    let (mut left, mut right) = (Side::rank(0, 4096), Side::rank(1, 4096));
    let address = right.domain.address().unwrap();
    let open = |side: &mut Side, peer, link_digest, address: &[u8]| {
        let dial = !address.is_empty();
        let request = ChannelRequest { peer, dial, channel: 1, link_digest, address };
        side.domain.channel_open(&request).unwrap()
    };
    let dialer = open(&mut left, 1, 0xaaaa, &address);
    let acceptor = open(&mut right, 0, 0xbbbb, &[]);
    both(&mut left, &mut right, |left, right| {
        left.state(dialer).is_err() && right.state(acceptor).is_err()
    });
    for error in [left.state(dialer).unwrap_err(), right.state(acceptor).unwrap_err()] {
        assert_eq!(error.status, Status::Mismatch);
        assert!(error.message.contains("aaaa") && error.message.contains("bbbb"), "{error}");
    }
}

#[test]
fn garbage_is_dropped_at_once_and_silence_at_the_deadline() {
    let brief = DomainRequest { handshake_timeout: Duration::from_millis(300), ..request(1) };
    let mut side = Side::new(transport(4096).open(&brief).unwrap());
    let address = side.domain.address().unwrap();
    let began = Instant::now();
    let silent = stranger(&address);
    let garbage: Vec<_> = [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 200], &[0xff; 1], b"ICCLwireXXXX"]
        .into_iter()
        .map(|bytes| {
            let socket = stranger(&address);
            send(&socket, bytes, SendFlags::NOSIGNAL).unwrap();
            socket
        })
        .collect();
    side.until("garbage dropped", |_| garbage.iter().all(was_dropped));
    if began.elapsed() < Duration::from_millis(250) {
        assert!(!was_dropped(&silent), "dropped before its time");
    }
    side.until("silence dropped", |_| was_dropped(&silent));
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert!(side.done.is_empty());
}

#[test]
fn descriptors_of_a_stranger_are_not_kept() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
    let mut side = Side::rank(1, 4096);
    let socket = stranger(&side.domain.address().unwrap());
    let flags = rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK;
    let (reader, writer) = rustix::pipe::pipe_with(flags).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [writer.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let hello = [std::io::IoSlice::new(b"ICCLwire")];
    sendmsg(&socket, &hello, &mut control, SendFlags::NOSIGNAL).unwrap();
    drop(writer);
    let read = || rustix::io::read(&reader, &mut [0; 1]);
    assert_eq!(read(), Err(rustix::io::Errno::AGAIN), "the message holds the writing end");
    side.until("the writing end closed", |_| read() == Ok(0));
    assert!(!was_dropped(&socket), "it was closed with the stranger only");
}

#[test]
fn a_crowd_of_silent_strangers_delays_a_peer_but_does_not_keep_it_out() {
    let brief = DomainRequest { handshake_timeout: Duration::from_millis(200), ..request(1) };
    let mut side = Side::new(transport(4096).open(&brief).unwrap());
    let address = side.domain.address().unwrap();
    let crowd: Vec<_> = (0..300).map(|_| stranger(&address)).collect();
    let mut peer = Side::rank(0, 4096);
    let (dialer, _) = connect(&mut peer, &mut side, 1);
    assert_eq!(peer.state(dialer), Ok(Progress::Done));
    drop(crowd);
}

#[test]
fn b057_a_domain_that_cannot_be_reached_says_that_attaching_failed() {
    let mut side = Side::rank(0, 4096);
    let gone = Side::rank(1, 4096).domain.address().unwrap();
    let channel = side.open(1, 1, Some(&gone)).unwrap();
    let error = side.state(channel).unwrap_err();
    assert_eq!(error.status, Status::TransportError);
    assert!(error.message.starts_with("attach failed: rank 1: "), "{error}");
    assert!(error.message.contains("does not listen any more"), "{error}");
    assert_eq!(error.vendor_code, i64::from(libc::ECONNREFUSED));
    side.step();
    assert_eq!(side.done[0].kind, completion_kind::CHANNEL_FAILED);
}

/// Needs the right to make a network namespace; without it there is nothing to try.
#[test]
fn b057_another_network_namespace_is_named_as_the_reason() {
    let other = std::thread::spawn(|| {
        // SAFETY: a namespace of its own for this thread, which has nothing open.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return None;
        }
        Some(Side::rank(1, 4096))
    });
    let Some(other) = other.join().unwrap() else {
        println!("not permitted to make a network namespace");
        return;
    };
    let mut side = Side::rank(0, 4096);
    let channel = side.open(1, 1, Some(&other.domain.address().unwrap())).unwrap();
    let error = side.state(channel).unwrap_err();
    assert!(error.message.contains("attach failed"), "{error}");
    assert!(error.message.contains("another network namespace"), "{error}");
}

#[test]
fn a_peer_that_never_opens_the_channel_is_given_up_at_the_deadline() {
    let brief = DomainRequest { connect_timeout: Duration::from_millis(200), ..request(0) };
    let mut left = Side::new(transport(4096).open(&brief).unwrap());
    let mut right = Side::rank(1, 4096);
    let address = right.domain.address().unwrap();
    let began = Instant::now();
    let dialer = left.open(1, 1, Some(&address)).unwrap();
    // Without a timeout of its own: the deadline itself must wake it.
    while left.state(dialer).is_ok() {
        left.domain.wait(LONG).unwrap();
        left.step();
        right.step();
    }
    assert!(began.elapsed() >= Duration::from_millis(200) && began.elapsed() < LONG);
    let error = left.state(dialer).unwrap_err();
    assert_eq!(error.status, Status::Timeout);
    assert!(error.message.contains("rank 1"), "{error}");
    // What it left in the other's lobby does not stand in the way of a new attempt.
    let again = left.open(1, 1, Some(&address)).unwrap();
    let acceptor = right.open(0, 1, None).unwrap();
    both(&mut left, &mut right, |left, right| {
        left.state(again) == Ok(Progress::Done) && right.state(acceptor) == Ok(Progress::Done)
    });
}

#[test]
fn many_peers_that_dial_at_once_before_anybody_listens_all_get_in() {
    let mut side = Side::rank(0, 4096);
    let address = side.domain.address().unwrap();
    let mut peers: Vec<_> = (1..16).map(|rank| Side::rank(rank, 4096)).collect();
    let mut dialed = Vec::new();
    for peer in &mut peers {
        for number in 0..4 {
            dialed.push(peer.open(0, number, Some(&address)).unwrap());
        }
    }
    for _ in 0..20 {
        side.step();
        peers.iter_mut().for_each(Side::step);
    }
    let opened: Vec<_> = (1..16)
        .flat_map(|rank| (0..4).map(move |number| (rank, number)))
        .map(|(rank, number)| side.open(rank, number, None).unwrap())
        .collect();
    let end = Instant::now() + LONG;
    let ready = |side: &Side, channel: u64| side.state(channel).unwrap() == Progress::Done;
    loop {
        side.step();
        peers.iter_mut().for_each(Side::step);
        let dialers = peers.iter().zip(dialed.chunks(4));
        if opened.iter().all(|channel| ready(&side, *channel))
            && dialers
                .flat_map(|(peer, own)| own.iter().map(move |own| (peer, *own)))
                .all(|(peer, channel)| ready(peer, channel))
        {
            break;
        }
        assert!(Instant::now() < end, "not all connected");
    }
}

#[test]
fn shared_words_that_make_no_sense_end_the_channel() {
    play("corrupted");
}

#[test]
fn whatever_a_peer_writes_into_the_shared_memory_touches_nothing_else() {
    play("scribbled");
}
