//! What other threads leave for the driver.
//!
//! `tests/interleavings.rs` runs this file in every interleaving.

use crate::sync::{Mutex, lock};

/// Things that wait until a driver takes them.
pub(super) struct Inbox<T> {
    waiting: Mutex<Waiting<T>>,
}

struct Waiting<T> {
    things: Vec<(u64, T)>,
    next_number: u64,
}

impl<T> Inbox<T> {
    pub(super) fn new() -> Self {
        Self { waiting: Mutex::new(Waiting { things: Vec::new(), next_number: 0 }) }
    }

    /// Leaves something for the driver; the news must be told after it.
    pub(super) fn put(&self, thing: T) {
        self.add(thing);
    }

    /// Leaves something for the driver, unless all is over: then it stays the caller's. `failure` tells
    /// that; whoever makes it tell so empties the inbox afterwards.
    ///
    /// Either the caller or a driver has it in the end, never both and never nobody.
    pub(super) fn offer<E>(&self, thing: T, failure: impl Fn() -> Option<E>) -> Result<(), E> {
        if let Some(error) = failure() {
            return Err(error);
        }
        let number = self.add(thing);
        match failure() {
            // The inbox may have been emptied for the last time before.
            Some(error) if self.take_back(number) => Err(error),
            _ => Ok(()),
        }
    }

    /// Takes everything, in the order in which it came.
    pub(super) fn empty(&self, mut take: impl FnMut(T)) {
        for (_, thing) in lock(&self.waiting).things.drain(..) {
            take(thing);
        }
    }

    fn add(&self, thing: T) -> u64 {
        let mut waiting = lock(&self.waiting);
        let number = waiting.next_number;
        waiting.next_number += 1;
        waiting.things.push((number, thing));
        number
    }

    fn take_back(&self, number: u64) -> bool {
        let mut waiting = lock(&self.waiting);
        let before = waiting.things.len();
        waiting.things.retain(|(one, _)| *one != number);
        waiting.things.len() < before
    }
}
