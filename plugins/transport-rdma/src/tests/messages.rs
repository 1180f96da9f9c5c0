//! Messages arrive whole, in order and in their places.

use iccl_plugin_api::sdk::Waker;
use iccl_plugin_api::tables::{MemoryRegion, completion_kind, region_form};

use super::*;
use crate::wire::EAGER_BYTES;

#[test]
fn every_length_around_a_boundary() {
    let mut pair = Pair::new(&devices());
    for length in [
        0,
        1,
        8,
        123,
        124,
        125,
        4096,
        EAGER_BYTES,
        EAGER_BYTES + 1,
        128 << 10,
        (128 << 10) + 1,
        (1 << 20) + 3,
    ] {
        let source = pattern(length as u64, length);
        let mut target = vec![0xee; length];
        pair.send(&[from(&source)], &[into(&mut target)]);
        assert!(target == source, "{length} bytes");
    }
}

#[test]
fn segments_of_any_size_on_both_sides() {
    let mut pair = Pair::new(&devices());
    let source = pattern(1, 300_000);
    let mut target = vec![0xee; source.len()];
    let (first, rest) = source.split_at(77);
    let (second, third) = rest.split_at(200_000);
    let (one, two) = target.split_at_mut(150_001);
    pair.send(&[from(first), from(&[]), from(second), from(third)], &[into(one), into(two)]);
    assert!(target == source);
    let seventeen = [from(&source[..1]); 17];
    let error = pair.a.try_send(pair.on_a, 1, 1, &seventeen).unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument);
}

#[test]
fn many_messages_at_once_in_both_directions_keep_their_order() {
    let mut pair = Pair::new(&devices());
    let lengths: Vec<_> = (0..200_usize).map(|index| index * index * 7 % 30_011).collect();
    let sources: Vec<_> =
        (0..).zip(&lengths).map(|(seed, &length)| pattern(seed, length)).collect();
    let empty = || lengths.iter().map(|&length| vec![0; length]).collect::<Vec<_>>();
    let (mut at_a, mut at_b) = (empty(), empty());
    for (index, source) in sources.iter().enumerate() {
        let (token, envelope) = (index as u64, index as u8);
        pair.a.send(pair.on_a, token, envelope, &[from(source)]);
        pair.b.send(pair.on_b, token, envelope, &[from(source)]);
    }
    // Both have said more than the other may hold before a receive is posted.
    for _ in 0..200 {
        pair.a.progress();
        pair.b.progress();
    }
    for index in 0..sources.len() {
        let (token, envelope) = (1000 + index as u64, index as u8);
        pair.a.receive(pair.on_a, token, envelope, &[into(&mut at_a[index])]);
        pair.b.receive(pair.on_b, token, envelope, &[into(&mut at_b[index])]);
    }
    pair.drive(|a, b| a.ended.len() == 400 && b.ended.len() == 400);
    assert!(at_a == sources && at_b == sources);
    for rank in [&pair.a, &pair.b] {
        assert!(rank.ended.iter().all(|ended| status(ended) == Status::Ok));
        for kind in [completion_kind::SEND, completion_kind::RECEIVE] {
            let ended = rank.ended.iter().filter(|ended| ended.kind == kind);
            let tokens: Vec<_> = ended.map(|ended| ended.token % 1000).collect();
            assert!(tokens.is_sorted() && tokens.len() == 200);
        }
    }
}

#[test]
fn one_way_traffic_never_finds_a_peer_without_a_receive() {
    let mock = Mock::new(2);
    let library: Arc<dyn Library> = Arc::new(mock.clone());
    let mut pair = Pair::new(&library);
    let source = pattern(1, 64);
    for round in 0..500 {
        let mut target = vec![0; 64];
        pair.send(&[from(&source)], &[into(&mut target)]);
        assert!(target == source, "{round}");
    }
    assert_eq!(mock.faults().not_ready, 0);
}

fn alias(memory: &[u8]) -> MemoryRegion {
    MemoryRegion {
        form: region_form::HOST_ALIAS,
        descriptor: -1,
        address: memory.as_ptr() as u64,
        offset: 0,
        length: memory.len() as u64,
        cookie: 0,
    }
}

fn keyed(memory: &[u8], key: u64) -> Segment {
    Segment { key, ..from(memory) }
}

#[test]
fn b026_a_transfer_across_the_seam_of_a_split_region_is_split() {
    const MIB: usize = 1 << 20;
    let mock = Mock::new(2);
    let library: Arc<dyn Library> = Arc::new(mock.clone());
    // Channels have memory of their own, which is longer than that.
    let mut pair = Pair::new(&library);
    mock.faults().max_mr_bytes = MIB as u64;
    pair.a.domain.limit_regions(MIB as u64);
    pair.b.domain.limit_regions(MIB as u64);
    let before = mock.registered_bytes();
    let (source, target) = (pattern(3, 3 * MIB), vec![0; 3 * MIB]);
    let there = pair.b.domain.register(&alias(&source)).unwrap();
    let here = pair.a.domain.register(&alias(&target)).unwrap();
    assert_eq!(mock.registered_bytes() - before, 6 * MIB as u64);
    for (at, length) in [(5 * MIB / 2, 64 << 10), (2 * MIB - 5000, 64 << 10), (0, 3 * MIB)] {
        mock.faults().writes.clear();
        let (from, into) = (&source[at..at + length], &target[at..at + length]);
        pair.send(&[keyed(from, there)], &[keyed(into, here)]);
        assert!(from == into, "{length} bytes at {at}");
        let writes = mock.faults().writes.clone();
        assert_eq!(writes.iter().map(|&bytes| bytes as usize).sum::<usize>(), length);
        assert!(writes.iter().all(|&bytes| bytes as usize <= MIB));
    }
    assert!(mock.faults().writes.len() >= 3);
    // A segment beyond its region is refused, whatever its key.
    let beyond = Segment { length: 2, ..keyed(&source[3 * MIB - 1..], there) };
    let error = pair.b.try_send(pair.on_b, 1, 1, &[beyond]).unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument);
    pair.a.domain.deregister(here).unwrap();
    pair.b.domain.deregister(there).unwrap();
    assert_eq!(mock.registered_bytes(), before);
}

#[test]
fn registered_memory_is_written_without_a_copy_on_the_way() {
    let mut pair = Pair::new(&devices());
    let (source, mut target) = (pattern(3, 3_000_000), vec![0; 3_000_000]);
    let there = pair.b.domain.register(&alias(&source)).unwrap();
    let here = pair.a.domain.register(&alias(&target)).unwrap();
    pair.send(&[keyed(&source, there)], &[keyed(&target, here)]);
    assert!(target == source);
    // One side only.
    target.fill(0);
    pair.send(&[from(&source)], &[keyed(&target, here)]);
    assert!(target == source);
    target.fill(0);
    pair.send(&[keyed(&source, there)], &[into(&mut target)]);
    assert!(target == source);
    pair.send(&[keyed(&source[..100], there)], &[keyed(&target[5..105], here)]);
    assert!(target[5..105] == source[..100]);
}

#[test]
fn messages_posted_before_the_channel_is_open_are_sent_then() {
    let library = devices();
    let (mut a, mut b) = (Rank::open(&library, 0, 9), Rank::open(&library, 1, 9));
    let address = a.domain.address().unwrap();
    let (source, mut target) = (pattern(1, 50_000), vec![0; 50_000]);
    let on_b = b.channel(0, true, 1, &address);
    b.send(on_b, 1, 1, &[from(&source)]);
    for _ in 0..100 {
        a.progress();
        b.progress();
    }
    assert!(!b.is_open(on_b) && b.ended.is_empty());
    let on_a = a.channel(1, false, 1, &[]);
    a.receive(on_a, 2, 1, &[into(&mut target)]);
    drive(&mut [&mut a, &mut b], |ranks| !ranks[0].ended.is_empty());
    assert!(target == source);
}

#[test]
fn a_sleeping_domain_is_woken_by_its_waker() {
    let mut pair = Pair::new(&devices());
    let waker = pair.a.domain.waker();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            waker.wake();
        });
        while begin.elapsed() < Duration::from_millis(20) {
            pair.a.domain.wait(LONG).unwrap();
            pair.a.progress();
        }
    });
    assert!(begin.elapsed() < LONG);
}
