//! Sender and receiver joined by queues of bytes instead of sockets, in pieces of any size.

use std::collections::VecDeque;

use iccl_plugin_api::sdk::PostedMessage;
use iccl_plugin_api::tables::{ENVELOPE_BYTES, Segment};
use proptest::prelude::*;

use super::*;

/// A message over `memory`, cut into segments of about `segment` bytes, empty ones between them.
fn message(token: u64, envelope: u8, memory: &mut [u8], segment: usize) -> Message {
    let segment = segment.max(memory.len() / 7 + 1);
    let mut segments = Vec::new();
    for piece in memory.chunks_mut(segment) {
        let (address, length) = (piece.as_mut_ptr().cast(), piece.len() as u64);
        segments.push(Segment { address, length, key: 0 });
        segments.push(Segment { address: std::ptr::null_mut(), length: 0, key: 0 });
    }
    let envelope = [envelope; ENVELOPE_BYTES];
    Message::posted(&PostedMessage { token, segments: &segments, envelope: &envelope }).unwrap()
}

/// Plays the kernel: takes at most `most` bytes of what `lane` has to send.
fn send(sender: &mut Sender, lane: usize, most: usize, wire: &mut VecDeque<u8>) -> usize {
    let mut list = IoList::new();
    sender.gather(lane, &mut list);
    let mut left = most;
    for piece in list.pieces() {
        let take = piece.iov_len.min(left);
        // SAFETY: the piece is a header in the queue or memory of the test.
        wire.extend(unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), take) });
        left -= take;
    }
    sender.sent(lane, (most - left) as u64);
    most - left
}

/// Plays the kernel: gives at most `most` bytes to `lane`.
fn receive(
    receiver: &mut Receiver,
    lane: usize,
    most: usize,
    wire: &mut VecDeque<u8>,
) -> Result<usize, Box<Mismatched>> {
    if !receiver.wants(lane) {
        return Ok(0);
    }
    let mut list = IoList::new();
    receiver.room(lane, &mut list);
    let mut given = 0;
    for piece in list.pieces() {
        for index in 0..piece.iov_len {
            if given == most {
                break;
            }
            let Some(byte) = wire.pop_front() else { break };
            // SAFETY: the piece is the receiver's own buffer or memory of the test.
            unsafe { piece.iov_base.cast::<u8>().add(index).write(byte) };
            given += 1;
        }
    }
    receiver.received(lane, given as u64)?;
    Ok(given)
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|index| (seed * 101 + index * 7 + index / 251) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives_in_its_place_in_any_pieces(
        lengths in proptest::collection::vec(0_usize..40_000, 1..8),
        lanes in 1_u32..5,
        stripe_bytes in 1_u64..9000,
        segments in (1_usize..9000, 1_usize..9000),
        pieces in proptest::collection::vec((any::<bool>(), 0_usize..5, 1_usize..20_000), 1..60),
    ) {
        let layout = Layout { lanes, stripe_bytes };
        let (mut sender, mut receiver) = (Sender::new(), Receiver::new());
        sender.set_layout(layout);
        receiver.set_layout(layout);
        let mut sources: Vec<_> =
            lengths.iter().enumerate().map(|(seed, &length)| pattern(seed, length)).collect();
        let mut targets: Vec<_> = lengths.iter().map(|&length| vec![0xee; length]).collect();
        for (index, source) in sources.iter_mut().enumerate() {
            sender.post(message(index as u64, index as u8, source, segments.0));
        }
        sender.post_end();
        let mut wires = vec![VecDeque::new(); lanes as usize];
        let (mut posted, mut sent, mut arrived) = (0, 0, 0);
        let mut idle = 0;
        for &(is_send, lane, most) in pieces.iter().cycle() {
            let lane = lane % lanes as usize;
            // Receives are posted here and there, some ahead of the bytes and some late.
            if (idle > 8 || most % 3 == 0)
                && let Some(target) = targets.get_mut(posted)
            {
                receiver.post(message(posted as u64, posted as u8, target, segments.1));
                receiver.use_staging().unwrap();
                posted += 1;
                idle = 0;
            }
            let moved = if is_send {
                send(&mut sender, lane, most, &mut wires[lane])
            } else {
                receive(&mut receiver, lane, most, &mut wires[lane]).unwrap()
            };
            idle = if moved == 0 { idle + 1 } else { 0 };
            while let Some(message) = sender.pop_done() {
                prop_assert_eq!(message.token, sent);
                sent += 1;
            }
            while let Some(message) = receiver.pop_done() {
                prop_assert_eq!(message.token as usize, arrived);
                arrived += 1;
            }
            if arrived == lengths.len() && sender.is_idle() {
                break;
            }
            // Cycles that never do one of the two would not end.
            if idle > 200 {
                for (lane, wire) in wires.iter_mut().enumerate() {
                    send(&mut sender, lane, 977, wire);
                    receive(&mut receiver, lane, 977, wire).unwrap();
                }
            }
        }
        prop_assert_eq!(sent as usize, lengths.len());
        prop_assert_eq!(&targets, &sources);
        // The farewell is seen without a posted receive.
        let mut list = IoList::new();
        receiver.room(0, &mut list);
        let mut bytes: Vec<u8> = wires[0].drain(..).collect();
        // SAFETY: the piece is the receiver's own buffer, and larger than a header.
        unsafe {
            bytes.as_mut_ptr().copy_to_nonoverlapping(list.pieces()[0].iov_base.cast(), bytes.len());
        }
        receiver.received(0, bytes.len() as u64).unwrap();
        prop_assert!(receiver.has_ended());
        prop_assert!(!receiver.waits_in_vain());
    }
}

fn mismatch(sent: (u8, usize), expected: (u8, usize)) -> Box<Mismatched> {
    let (mut sender, mut receiver) = (Sender::new(), Receiver::new());
    let (mut source, mut target) = (pattern(1, sent.1), vec![0xee; expected.1]);
    sender.post(message(1, sent.0, &mut source, 100));
    receiver.post(message(2, expected.0, &mut target, 100));
    let mut wire = VecDeque::new();
    while send(&mut sender, 0, 5000, &mut wire) > 0 {}
    let mismatched = receive(&mut receiver, 0, 5000, &mut wire).unwrap_err();
    assert!(target.iter().all(|&byte| byte == 0xee), "the buffer was written to");
    mismatched
}

#[test]
fn another_envelope_or_length_leaves_the_buffer_untouched() {
    for length in [0, 64, 1000, 100_000] {
        let mismatched = mismatch((7, length), (8, length));
        assert_eq!((mismatched.expected.token, mismatched.length), (2, length as u64));
        assert_eq!(mismatched.envelope, [7; ENVELOPE_BYTES]);
    }
    for (sent, expected) in [(1000, 999), (999, 1000), (0, 1), (1, 0)] {
        assert_eq!(mismatch((7, sent), (7, expected)).length, sent as u64);
    }
}

#[test]
fn nothing_is_read_for_other_lanes_before_the_header_was_compared() {
    let layout = Layout { lanes: 2, stripe_bytes: 100 };
    let (mut sender, mut receiver) = (Sender::new(), Receiver::new());
    sender.set_layout(layout);
    receiver.set_layout(layout);
    let (mut source, mut target) = (pattern(1, 1000), vec![0; 1000]);
    sender.post(message(1, 7, &mut source, 100));
    receiver.post(message(2, 7, &mut target, 100));
    assert!(!receiver.wants(1));
    let mut wire = VecDeque::new();
    send(&mut sender, 0, HEADER_BYTES, &mut wire);
    receive(&mut receiver, 0, HEADER_BYTES, &mut wire).unwrap();
    assert!(receiver.wants(1));
}

#[test]
fn small_messages_share_a_system_call() {
    let (mut sender, mut memory) = (Sender::new(), vec![0; 80]);
    for piece in memory.chunks_mut(8) {
        sender.post(message(0, 0, piece, 8));
    }
    let mut list = IoList::new();
    sender.gather(0, &mut list);
    assert_eq!(list.bytes(), 10 * (HEADER_BYTES as u64 + 8));
}
