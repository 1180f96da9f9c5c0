//! How the processes of one host wake each other.
//!
//! Every domain owns one doorbell, a shared word that any peer rings after it has published
//! something. The owner compares the word with what it saw last: a domain with many idle channels
//! reads one word, not all its rings.
//!
//! The word is a counter with the owner's way of sleeping in its two lowest bits. One word, so that
//! "nothing has happened since" and "I sleep now" are one compare-and-exchange, and "something has
//! happened" and "do you sleep?" are one addition; there is nothing in between to be lost. Whoever
//! clears the bits has changed the word, so an owner that is on its way into `FUTEX_WAIT` with the
//! old value does not fall asleep; and whoever clears them wakes.

use crate::sync::{AtomicU32, Ordering};

/// The owner waits for the word itself (`FUTEX_WAIT`).
pub const SLEEPS_ON_FUTEX: u32 = 1;
/// The owner waits for its event descriptor to become readable.
pub const SLEEPS_ON_EVENT: u32 = 2;
const SLEEP_BITS: u32 = SLEEPS_ON_FUTEX | SLEEPS_ON_EVENT;
const ONE_RING: u32 = SLEEP_BITS + 1;

/// The shared word. All zero is a bell that was never rung.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Doorbell {
    word: AtomicU32,
}

impl Doorbell {
    /// The word, for the futex.
    pub fn word(&self) -> &AtomicU32 {
        &self.word
    }

    /// How often the bell was rung, in a unit of its own. What was published before a ring is
    /// visible to whoever reads that ring's count.
    pub fn count(&self) -> u32 {
        self.word.load(Ordering::Acquire) & !SLEEP_BITS
    }

    /// Rings, and says how the owner is to be woken: 0 if it is awake, else the bits.
    #[must_use = "the owner may sleep"]
    pub fn ring(&self) -> u32 {
        let before = self.word.fetch_add(ONE_RING, Ordering::AcqRel);
        if before & SLEEP_BITS == 0 {
            return 0;
        }
        // Of several that ring at once, one wakes.
        self.word.fetch_and(!SLEEP_BITS, Ordering::AcqRel) & SLEEP_BITS
    }

    /// The owner is about to sleep in the given way. Gives the word's value to sleep on, or `None`
    /// if the bell was rung since it read `seen`.
    pub fn prepare(&self, seen: u32, sleep: u32) -> Option<u32> {
        self.word
            .compare_exchange(seen, seen | sleep, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
            .then_some(seen | sleep)
    }

    /// The owner is awake again.
    pub fn awake(&self) {
        self.word.fetch_and(!SLEEP_BITS, Ordering::AcqRel);
    }
}
