//! Every interleaving of the ring and the doorbell, under `loom`:
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p iccl-plugin-transport-shm --test loom --release`
//!
//! A lost wake-up shows as a deadlock, bytes that are read before they are published as a data
//! race. The futex and the event descriptor are modelled by a mutex and a condition variable, which
//! is what they are to their users: a comparison and a sleep that nothing comes between.
#![cfg(loom)]

use iccl_plugin_api::tables::Segment;
use iccl_plugin_transport_shm::doorbell::{Doorbell, SLEEPS_ON_EVENT, SLEEPS_ON_FUTEX};
use iccl_plugin_transport_shm::ring::{Consumer, Cursor, Producer, RingControl, RingMemory};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

const CAPACITY: usize = 2;

struct Cells([UnsafeCell<u8>; CAPACITY]);

#[derive(Clone)]
struct Memory(Arc<Cells>);

impl Memory {
    fn new() -> Self {
        Self(Arc::new(Cells(std::array::from_fn(|_| UnsafeCell::new(0)))))
    }
}

impl RingMemory for Memory {
    unsafe fn write(&self, offset: usize, source: *const u8, bytes: usize) {
        for at in 0..bytes {
            // SAFETY: the caller's promise; loom checks that nobody else is at this cell.
            self.0.0[offset + at].with_mut(|cell| unsafe { *cell = *source.add(at) });
        }
    }

    unsafe fn read(&self, offset: usize, destination: *mut u8, bytes: usize) {
        for at in 0..bytes {
            // SAFETY: as above.
            self.0.0[offset + at].with(|cell| unsafe { *destination.add(at) = *cell });
        }
    }
}

/// A doorbell with the kernel's part of sleeping.
struct Bell {
    doorbell: Doorbell,
    readable: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn new() -> Self {
        Self { doorbell: Doorbell::default(), readable: Mutex::new(false), changed: Condvar::new() }
    }

    fn ring(&self) {
        let sleeps = self.doorbell.ring();
        if sleeps != 0 {
            let mut readable = self.readable.lock().unwrap();
            *readable |= sleeps & SLEEPS_ON_EVENT != 0;
            self.changed.notify_all();
        }
    }

    fn sleep(&self, seen: u32, how: u32) {
        if let Some(value) = self.doorbell.prepare(seen, how) {
            let mut readable = self.readable.lock().unwrap();
            if how == SLEEPS_ON_EVENT {
                while !*readable {
                    readable = self.changed.wait(readable).unwrap();
                }
                *readable = false;
            } else if self.doorbell.word().load(Ordering::Relaxed) == value {
                drop(self.changed.wait(readable).unwrap());
            }
        }
        self.doorbell.awake();
    }
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

fn cursor(bytes: &mut [u8]) -> Cursor {
    let length = bytes.len() as u64;
    let whole = Segment { address: bytes.as_mut_ptr().cast(), length, key: 0 };
    // SAFETY: every caller keeps its bytes until the cursor is gone.
    unsafe { Cursor::new(&[whole]) }
}

/// A payload that is larger than the ring, both sides sleeping whenever there is nothing to do.
fn stream_through_a_small_ring(producer_sleeps: u32, consumer_sleeps: u32) {
    model(move || {
        let control = Arc::new(RingControl::default());
        let memory = Memory::new();
        let (producer_bell, consumer_bell) = (Arc::new(Bell::new()), Arc::new(Bell::new()));
        let mut producer = Producer::new(Arc::clone(&control), memory.clone(), CAPACITY);
        let bells = (Arc::clone(&producer_bell), Arc::clone(&consumer_bell));
        let writer = thread::spawn(move || {
            let (own, peer) = bells;
            let mut payload = [1, 2, 3];
            let mut cursor = cursor(&mut payload);
            while cursor.remaining_bytes() > 0 {
                let seen = own.doorbell.count();
                let pushed = producer.push_from(&mut cursor, CAPACITY).unwrap();
                if producer.publish() {
                    peer.ring();
                }
                if pushed == 0 && !producer.ask_for_room().unwrap() {
                    own.sleep(seen, producer_sleeps);
                }
            }
        });
        let mut consumer = Consumer::new(control, memory, CAPACITY);
        let mut payload = [0; 3];
        let mut cursor = cursor(&mut payload);
        while cursor.remaining_bytes() > 0 {
            let seen = consumer_bell.doorbell.count();
            if consumer.pull_into(&mut cursor, CAPACITY).unwrap() > 0 {
                consumer.release();
                if consumer.wants_room() {
                    producer_bell.ring();
                }
            } else {
                consumer_bell.sleep(seen, consumer_sleeps);
            }
        }
        assert_eq!(payload, [1, 2, 3]);
        writer.join().unwrap();
    });
}

#[test]
fn streams_with_futexes() {
    stream_through_a_small_ring(SLEEPS_ON_FUTEX, SLEEPS_ON_FUTEX);
}

#[test]
fn streams_with_events() {
    stream_through_a_small_ring(SLEEPS_ON_EVENT, SLEEPS_ON_EVENT);
}

/// Two peers ring the same owner, which changes its way of sleeping from time to time. Of the two,
/// one may be late with clearing the owner's flag.
#[test]
fn an_owner_hears_every_peer() {
    model(|| {
        let bell = Arc::new(Bell::new());
        let news = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let peers: Vec<_> = (0..2)
            .map(|peer| {
                let (bell, news) = (Arc::clone(&bell), Arc::clone(&news));
                thread::spawn(move || {
                    news[peer].store(1, Ordering::Relaxed);
                    bell.ring();
                })
            })
            .collect();
        let mut how = SLEEPS_ON_FUTEX;
        loop {
            let seen = bell.doorbell.count();
            if news.iter().all(|news| news.load(Ordering::Relaxed) == 1) {
                break;
            }
            bell.sleep(seen, how);
            how ^= SLEEPS_ON_FUTEX | SLEEPS_ON_EVENT;
        }
        for peer in peers {
            peer.join().unwrap();
        }
    });
}

/// What was published before a side closed is found by whoever saw it closed first.
#[test]
fn nothing_is_lost_at_the_end() {
    model(|| {
        let control = Arc::new(RingControl::default());
        let memory = Memory::new();
        let mut producer = Producer::new(Arc::clone(&control), memory.clone(), CAPACITY);
        let writer = thread::spawn(move || {
            assert!(producer.push(&[7, 8]).unwrap());
            producer.publish();
            producer.close(1);
        });
        let mut consumer = Consumer::new(control, memory, CAPACITY);
        let closed = consumer.closed();
        let mut bytes = [0; 2];
        let found = consumer.peek(&mut bytes).unwrap();
        assert!(closed == 0 || (found && bytes == [7, 8]));
        writer.join().unwrap();
    });
}
