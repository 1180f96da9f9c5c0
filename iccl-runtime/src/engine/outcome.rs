//! How an operation stands: whether its stream has reached it, whether it is over, and how it ended.
//!
//! `tests/interleavings.rs` runs this file in every interleaving.

use crate::sync::{AtomicBool, AtomicU8, OnceLock, Ordering};

const PENDING: u8 = 0;
const DONE: u8 = 1;
const FAILED: u8 = 2;

pub(super) struct Outcome<E> {
    ready: AtomicBool,
    state: AtomicU8,
    error: OnceLock<E>,
}

impl<E: Clone> Outcome<E> {
    pub(super) fn new(ready: bool) -> Self {
        Self {
            ready: AtomicBool::new(ready),
            state: AtomicU8::new(PENDING),
            error: OnceLock::new(),
        }
    }

    /// Whether the stream has reached it; if so, what the stream did before is visible.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    pub(super) fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// Whether it is over; if so, what it did is visible.
    pub(super) fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) != PENDING
    }

    /// How it ended, or `None` while it runs.
    pub(super) fn get(&self) -> Option<Result<(), E>> {
        match self.state.load(Ordering::Acquire) {
            DONE => Some(Ok(())),
            FAILED => Some(Err(self.error.get().cloned().unwrap_or_else(|| {
                unreachable!("an operation is marked as failed after its error was stored")
            }))),
            _ => None,
        }
    }

    /// Ends it, after `last` was done. Whoever has the operation in hand calls this, once.
    pub(super) fn end(&self, result: Result<(), E>, last: impl FnOnce()) {
        let state = match result {
            Ok(()) => DONE,
            Err(error) => {
                let _ = self.error.set(error);
                FAILED
            }
        };
        // Before a waiter learns of it.
        last();
        self.state.store(state, Ordering::Release);
    }
}
