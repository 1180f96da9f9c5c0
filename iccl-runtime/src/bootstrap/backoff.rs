//! How long to wait between attempts to connect.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(500);

/// Counts attempts and spaces them: doubling up to half a second, and spread by rank, so that a
/// thousand ranks that were refused together do not come back together.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    attempts: u32,
    pause: Duration,
    spread: u32,
    next: Instant,
}

impl Backoff {
    pub(super) fn new(rank: u32) -> Self {
        Self { attempts: 0, pause: FIRST, spread: rank % 16, next: Instant::now() }
    }

    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// When the next attempt is due.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Notes that an attempt begins.
    pub(super) fn begin(&mut self) {
        self.attempts += 1;
    }

    /// Notes that it failed.
    pub(super) fn failed(&mut self) {
        self.next = Instant::now() + self.pause + self.pause * self.spread / 16;
        self.pause = (self.pause * 2).min(LONGEST);
    }
}
