//! Who of several comes last.
//!
//! `tests/interleavings.rs` runs this file in every interleaving.

use crate::sync::{AtomicUsize, Ordering};

/// Counts those that have not come yet.
pub(super) struct Countdown {
    left: AtomicUsize,
}

impl Countdown {
    pub(super) fn new(left: usize) -> Self {
        Self { left: AtomicUsize::new(left) }
    }

    /// One more will come. Not once the last may have.
    pub(super) fn add_one(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    /// One has come. Says whether it was the last: exactly one is told so, and sees what all the others
    /// did before they came.
    pub(super) fn one_has_come(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
