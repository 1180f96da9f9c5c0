//! Locking whatever happened: what mutexes guard in this crate stays whole between statements, so a
//! panic elsewhere says nothing of it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whoever panicked before.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
