//! What is sent is what arrives.

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{Progress, TransportDomain};
use iccl_plugin_api::tables::completion_kind;

use crate::common::{Side, both, connect, envelope, pair, pattern, segment};

#[test]
fn every_size_arrives_whole_and_nothing_beyond_it_is_written() {
    const RING: usize = 4096;
    let (mut left, mut right, dialer, acceptor) = pair(RING);
    let sizes =
        [0, 1, 63, 64, 65, RING - 80, RING - 1, RING, RING + 1, 3 * RING + 17, 32 << 20, 5, 0];
    for (tag, size) in sizes.into_iter().enumerate() {
        let sent = pattern(tag as u64, size);
        let mut back = vec![0xee_u8; size + 64];
        right.receive(acceptor, tag as u64, &mut back[32..32 + size]).unwrap();
        left.send(dialer, tag as u64, &sent).unwrap();
        both(&mut left, &mut right, |_, right| right.done.len() > tag);
        assert!(back[32..32 + size] == sent, "size {size}");
        assert!(back[..32].iter().chain(&back[32 + size..]).all(|byte| *byte == 0xee));
        let done = right.done[tag];
        assert_eq!((done.token, done.length), (tag as u64, size as u64));
        assert_eq!((done.channel, done.kind), (acceptor, completion_kind::RECEIVE));
    }
    left.assert_all_done(sizes.len());
    right.assert_all_done(sizes.len());
}

#[test]
fn segments_are_gathered_and_scattered() {
    let (mut left, mut right, dialer, acceptor) = pair(4096);
    // Cut differently on both sides, with empty segments in between.
    let mut sent = pattern(1, 50_000);
    let mut back = vec![0; 50_000];
    let cut = |bytes: &mut Vec<u8>, lengths: &[usize]| {
        let mut at = 0;
        lengths
            .iter()
            .map(|length| {
                let part = segment(bytes[at..].as_mut_ptr(), *length);
                at += length;
                part
            })
            .collect::<Vec<_>>()
    };
    let mut source = cut(&mut sent, &[0, 1, 4095, 0, 30_000, 15_904, 0]);
    source.insert(3, segment(std::ptr::null_mut(), 0));
    let mut many = vec![1000; 15];
    many.push(35_000);
    let destination = cut(&mut back, &many);
    right.post(false, acceptor, 1, &destination).unwrap();
    left.post(true, dialer, 1, &source).unwrap();
    both(&mut left, &mut right, |left, right| left.done.len() + right.done.len() == 2);
    assert!(back == sent);
}

#[test]
fn messages_arrive_in_the_order_of_posting_whichever_side_posts_first() {
    const COUNT: usize = 300;
    let (mut left, mut right, dialer, acceptor) = pair(8192);
    let sizes = |tag: usize| (tag * 37) % 3000;
    let sent: Vec<Vec<u8>> = (0..COUNT).map(|tag| pattern(tag as u64, sizes(tag))).collect();
    let echo: Vec<Vec<u8>> = (0..COUNT).map(|tag| pattern(7000 + tag as u64, sizes(tag))).collect();
    let mut back: Vec<Vec<u8>> = (0..COUNT).map(|tag| vec![0; sizes(tag)]).collect();
    let mut there: Vec<Vec<u8>> = back.clone();
    // One direction posts its receives first, the other its sends.
    for tag in 0..COUNT {
        left.receive(dialer, tag as u64, &mut back[tag]).unwrap();
        left.send(dialer, tag as u64, &sent[tag]).unwrap();
        right.send(acceptor, tag as u64, &echo[tag]).unwrap();
    }
    for _ in 0..50 {
        left.step();
        right.step();
    }
    assert!(left.done.iter().filter(|done| done.kind == completion_kind::SEND).count() < COUNT);
    for (tag, there) in there.iter_mut().enumerate() {
        right.receive(acceptor, tag as u64, there).unwrap();
    }
    both(&mut left, &mut right, |left, right| {
        left.done.len() == 2 * COUNT && right.done.len() == 2 * COUNT
    });
    assert!(there == sent && back == echo);
    for side in [&left, &right] {
        side.assert_all_done(2 * COUNT);
        for kind in [completion_kind::SEND, completion_kind::RECEIVE] {
            let tokens = side.done.iter().filter(|done| done.kind == kind).map(|done| done.token);
            assert!(tokens.eq(0..COUNT as u64), "completions out of order");
        }
    }
}

#[test]
fn messages_may_be_posted_before_the_channel_is_connected() {
    let (mut left, mut right) = (Side::rank(0, 4096), Side::rank(1, 4096));
    let address = right.domain.address().unwrap();
    let (sent, mut back) = (pattern(1, 10_000), vec![0; 10_000]);
    let dialer = left.open(1, 1, Some(&address)).unwrap();
    left.send(dialer, 1, &sent).unwrap();
    let acceptor = right.open(0, 1, None).unwrap();
    right.receive(acceptor, 1, &mut back).unwrap();
    assert_eq!(right.state(acceptor), Ok(Progress::Pending));
    both(&mut left, &mut right, |_, right| right.done.len() == 1);
    assert!(back == sent);
}

#[test]
fn a_full_channel_does_not_hold_up_another() {
    let (mut left, mut right, full, _never_received) = pair(4096);
    let (free, acceptor) = connect(&mut left, &mut right, 4);
    let large = pattern(9, 1 << 20);
    left.send(full, 9, &large).unwrap();
    for tag in 0..100 {
        let (sent, mut back) = (pattern(tag, 3000), vec![0; 3000]);
        left.send(free, tag, &sent).unwrap();
        right.receive(acceptor, tag, &mut back).unwrap();
        both(&mut left, &mut right, |_, right| right.done.len() > tag as usize);
        assert!(back == sent);
    }
    assert!(left.done.iter().all(|done| done.channel == free));
}

#[test]
fn completions_that_find_no_room_come_later() {
    use iccl_plugin_api::sdk::CompletionSink;
    let (mut left, mut right, dialer, acceptor) = pair(4096);
    let mut back = [[0_u8; 8]; 5];
    for (tag, back) in back.iter_mut().enumerate() {
        left.send(dialer, tag as u64, &[tag as u8; 8]).unwrap();
        right.receive(acceptor, tag as u64, back).unwrap();
    }
    let mut tokens = Vec::new();
    for _ in 0..10 {
        left.step();
        let mut room = [const { std::mem::MaybeUninit::uninit() }; 1];
        let mut sink = CompletionSink::new(&mut room);
        right.domain.progress(&mut sink).unwrap();
        if sink.used() == 1 {
            // SAFETY: the sink says that it has written one.
            tokens.push(unsafe { room[0].assume_init() }.token);
        }
    }
    assert_eq!(tokens, [0, 1, 2, 3, 4]);
}

#[test]
fn another_envelope_or_length_leaves_the_buffer_alone_and_ends_the_channel_on_both_sides() {
    for (tag, bytes) in [(2, 100), (1, 99), (1, 101), (1, 0)] {
        let (mut left, mut right, dialer, acceptor) = pair(4096);
        let mut back = [0xee_u8; 100];
        let mut later = [0xee_u8; 8];
        right.receive(acceptor, 1, &mut back).unwrap();
        right.receive(acceptor, 5, &mut later).unwrap();
        let sent = pattern(tag, bytes);
        left.send(dialer, tag, &sent).unwrap();
        let mut answer = [0_u8; 4];
        left.receive(dialer, 8, &mut answer).unwrap();
        both(&mut left, &mut right, |left, right| right.done.len() == 3 && left.done.len() == 3);
        let done = right.done[0];
        assert_eq!((done.token, done.kind), (1, completion_kind::RECEIVE));
        assert_eq!((done.status, done.length), (Status::Mismatch.code(), bytes as u64));
        assert_eq!(done.envelope, envelope(tag));
        assert_eq!((right.done[1].token, right.done[1].status), (5, Status::Mismatch.code()));
        assert_eq!(right.done[2].kind, completion_kind::CHANNEL_FAILED);
        assert!(back == [0xee; 100] && later == [0xee; 8]);
        assert_eq!(right.state(acceptor).unwrap_err().status, Status::Mismatch);
        assert_eq!(right.send(acceptor, 1, &sent).unwrap_err().status, Status::Mismatch);
        // The sender's message was complete; its receive is told that the other side refused.
        assert_eq!((left.done[0].kind, left.done[0].status), (completion_kind::SEND, 0));
        assert_eq!((left.done[1].token, left.done[1].status), (8, Status::Mismatch.code()));
        assert!(left.state(dialer).unwrap_err().message.contains("rank 1"));
    }
}

#[test]
fn b031_sizes_that_change_from_message_to_message() {
    const ROUNDS: u64 = 2000;
    let (mut left, mut right, dialer, acceptor) = pair(1 << 20);
    let sizes = [1_usize, 65_536, 3, 1 << 20];
    let patterns: Vec<Vec<u8>> = (0..4).map(|at| pattern(at as u64, sizes[at])).collect();
    let thread = std::thread::spawn(move || {
        let mut back: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
        let expected: Vec<Vec<u8>> = (0..4).map(|at| pattern(at as u64, sizes[at])).collect();
        for round in 0..ROUNDS {
            let at = (round % 4) as usize;
            back[at].fill(0xee);
            right.receive(acceptor, round, &mut back[at]).unwrap();
            right.complete(round as usize + 1);
            assert!(back[at] == expected[at], "round {round}");
        }
        right.assert_all_done(ROUNDS as usize);
        right
    });
    for round in 0..ROUNDS {
        left.send(dialer, round, &patterns[(round % 4) as usize]).unwrap();
        // Up to 16 are on their way.
        left.complete((round as usize + 1).saturating_sub(16));
    }
    left.complete(ROUNDS as usize);
    drop(thread.join().unwrap());
    left.assert_all_done(ROUNDS as usize);
}

#[test]
fn misuse_is_refused_with_a_reason() {
    let (mut left, _right, dialer, _) = pair(4096);
    let nobody = segment(std::ptr::null_mut(), 0);
    let too_many = left.post(true, dialer, 1, &[nobody; 17]).unwrap_err();
    let no_address = left.post(true, dialer, 1, &[segment(std::ptr::null_mut(), 1)]).unwrap_err();
    let no_channel = left.send(dialer + 1, 1, &[]).unwrap_err();
    let no_rank = left.open(16, 1, None).unwrap_err();
    let no_address_of_ours = left.open(1, 1, Some(b"127.0.0.1:80")).unwrap_err();
    let address = left.domain.address().unwrap();
    let twice = left.open(1, 3, Some(&address)).unwrap_err();
    for error in [too_many, no_address, no_channel, no_rank, no_address_of_ours, twice] {
        assert_eq!(error.status, Status::InvalidArgument, "{error}");
    }
    left.domain.channel_close(dialer).unwrap();
    assert_eq!(left.state(dialer).unwrap_err().status, Status::InvalidArgument);
}
