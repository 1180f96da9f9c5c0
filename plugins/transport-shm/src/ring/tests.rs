use std::sync::Arc;

use super::*;

const CAPACITY: usize = 64;

/// The bytes of a ring, and a check that every access is inside it.
#[derive(Clone)]
struct Bytes(Arc<[std::sync::atomic::AtomicU8; CAPACITY]>);

impl RingMemory for Bytes {
    unsafe fn write(&self, offset: usize, source: *const u8, bytes: usize) {
        for at in 0..bytes {
            // SAFETY: the caller's promise; the index is checked.
            self.0[offset + at].store(unsafe { *source.add(at) }, Ordering::Relaxed);
        }
    }

    unsafe fn read(&self, offset: usize, destination: *mut u8, bytes: usize) {
        for at in 0..bytes {
            // SAFETY: the caller's promise; the index is checked.
            unsafe { *destination.add(at) = self.0[offset + at].load(Ordering::Relaxed) };
        }
    }
}

type Ends =
    (Producer<Arc<RingControl>, Bytes>, Consumer<Arc<RingControl>, Bytes>, Arc<RingControl>);

fn ring() -> Ends {
    let control = Arc::new(RingControl::default());
    let bytes = Bytes(Arc::new(std::array::from_fn(|_| 0.into())));
    let producer = Producer::new(Arc::clone(&control), bytes.clone(), CAPACITY);
    let consumer = Consumer::new(Arc::clone(&control), bytes, CAPACITY);
    (producer, consumer, control)
}

fn take(consumer: &mut Consumer<Arc<RingControl>, Bytes>, bytes: usize) -> Vec<u8> {
    let mut taken = vec![0; bytes];
    assert!(consumer.peek(&mut taken).unwrap());
    assert_eq!(consumer.skip(bytes).unwrap(), bytes);
    taken
}

#[test]
fn bytes_come_out_in_order_across_the_end_of_the_ring() {
    let (mut producer, mut consumer, _) = ring();
    let mut next = 0_u8;
    for size in (1..=CAPACITY).chain([CAPACITY, 1, CAPACITY - 1]) {
        let bytes: Vec<u8> = (0..size).map(|at| next.wrapping_add(at as u8)).collect();
        next = next.wrapping_add(size as u8);
        assert!(producer.push(&bytes).unwrap());
        assert_eq!(consumer.available(1).unwrap(), 0, "seen before it was published");
        assert!(producer.publish());
        assert!(!producer.publish());
        assert_eq!(take(&mut consumer, size), bytes);
        assert_eq!(producer.room(CAPACITY).unwrap(), CAPACITY - size, "room before the release");
        consumer.release();
        assert_eq!(producer.room(CAPACITY).unwrap(), CAPACITY);
    }
}

#[test]
fn a_full_ring_takes_no_more_and_asks_for_room_once() {
    let (mut producer, mut consumer, _) = ring();
    assert!(producer.push(&[1; CAPACITY]).unwrap());
    assert!(!producer.push(&[2]).unwrap());
    producer.publish();
    assert!(!producer.ask_for_room().unwrap());
    take(&mut consumer, 3);
    consumer.release();
    assert!(consumer.wants_room());
    assert!(!consumer.wants_room());
    assert_eq!(producer.room(CAPACITY).unwrap(), 3);
    assert!(!producer.ask_for_room().unwrap(), "nothing new since");
}

/// Whatever the peer writes into its word, this side refuses it or stays within the ring.
#[test]
fn control_words_that_make_no_sense_are_refused() {
    for head in [65, 1 << 20, u64::MAX, u64::MAX - 63] {
        let (_, mut consumer, control) = ring();
        control.head.0.store(head, Ordering::Relaxed);
        let error = consumer.available(1).unwrap_err();
        assert_eq!((error.word, error.value), ("head", head));
        assert!(consumer.peek(&mut [0; 4]).is_err());
        assert!(consumer.skip(1).is_err());
    }
    let (mut producer, mut consumer, control) = ring();
    producer.push(&[0; 10]).unwrap();
    producer.publish();
    take(&mut consumer, 10);
    consumer.release();
    control.head.0.store(9, Ordering::Relaxed);
    assert_eq!(consumer.available(1).unwrap_err().word, "head", "backwards");
    for tail in [11, u64::MAX] {
        control.tail.0.store(tail, Ordering::Relaxed);
        assert_eq!(producer.room(CAPACITY).unwrap_err().word, "tail", "beyond what was sent");
        assert!(producer.ask_for_room().is_err());
    }
    control.tail.0.store(10, Ordering::Relaxed);
    producer.room(CAPACITY).unwrap();
    control.tail.0.store(9, Ordering::Relaxed);
    assert_eq!(producer.room(CAPACITY + 1).unwrap_err().word, "tail", "backwards");
}

#[test]
fn a_cursor_walks_over_segments_of_any_size() {
    let mut bytes: Vec<u8> = (0..100).collect();
    // One pointer for all: each new borrow would end those before.
    let base = bytes.as_mut_ptr();
    let segments: Vec<Segment> = [(0, 0), (0, 30), (30, 0), (30, 1), (31, 69)]
        .into_iter()
        .map(|(at, length): (usize, u64)| Segment {
            address: base.wrapping_add(at).cast(),
            length,
            key: 0,
        })
        .collect();
    // SAFETY: `bytes` outlives the cursor.
    let mut source = unsafe { Cursor::new(&segments) };
    let (mut producer, mut consumer, _) = ring();
    let mut out = Vec::new();
    assert_eq!(source.remaining_bytes(), 100);
    while out.len() < 100 {
        let pushed = producer.push_from(&mut source, 17).unwrap();
        assert!(pushed > 0 && pushed <= 17);
        producer.publish();
        out.extend(take(&mut consumer, pushed));
        consumer.release();
    }
    assert_eq!(out, bytes);
    assert_eq!((source.remaining_bytes(), producer.push_from(&mut source, 17).unwrap()), (0, 0));
    // SAFETY: there is nothing to point to.
    assert_eq!(unsafe { Cursor::new(&[]) }.remaining_bytes(), 0);
}
