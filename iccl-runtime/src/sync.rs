//! What threads meet by, for the files whose every interleaving is tested: those take it from here and
//! from nowhere else, so that `tests/interleavings.rs` can put loom's counterparts in its place and run
//! the very same files.

use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, MutexGuard as TryMutexGuard, OnceLock};

pub(crate) use crate::lock::lock;

/// A mutex that some only try to lock.
pub(crate) struct TryMutex<T>(Mutex<T>);

impl<T> TryMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Locks, whoever panicked before.
    pub(crate) fn lock(&self) -> TryMutexGuard<'_, T> {
        lock(&self.0)
    }

    /// Locks if nobody else has, whoever panicked before.
    pub(crate) fn try_lock(&self) -> Option<TryMutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether someone panicked who had locked it, since this was last asked.
    pub(crate) fn take_poison(&self) -> bool {
        let poisoned = self.0.is_poisoned();
        if poisoned {
            self.0.clear_poison();
        }
        poisoned
    }
}

/// Waits for a notification, at most `timeout`.
pub(crate) fn wait_timeout<T>(condvar: &Condvar, guard: MutexGuard<'_, T>, timeout: Duration) {
    drop(condvar.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner));
}
