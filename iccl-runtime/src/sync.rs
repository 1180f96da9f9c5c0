//! What threads meet by, for the files whose every interleaving is tested: those take it from here and
//! from nowhere else, so that `tests/interleavings.rs` can put loom's counterparts in its place and run
//! the very same files.

pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};

use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

pub(crate) use crate::lock::lock;

/// Locks if nobody else has, whoever panicked before.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Whether whoever held the lock panicked. Asked again, it is forgotten.
pub(crate) fn take_poison<T>(mutex: &Mutex<T>) -> bool {
    let poisoned = mutex.is_poisoned();
    if poisoned {
        mutex.clear_poison();
    }
    poisoned
}

/// Waits for a notification, at most `timeout`.
pub(crate) fn wait_timeout<T>(condvar: &Condvar, guard: MutexGuard<'_, T>, timeout: Duration) {
    drop(condvar.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner));
}
