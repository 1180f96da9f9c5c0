//! The atomics that the shared words are made of: those of `loom` when its model checker runs the
//! ring and the doorbell (`--cfg loom`), the standard ones otherwise. Everything that two processes
//! share takes its atomics from here.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
