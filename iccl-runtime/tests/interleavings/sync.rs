//! `loom`'s counterparts of `src/sync.rs`.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use loom::cell::{MutPtr, UnsafeCell};
use loom::thread::yield_now;

pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// Never runs out of time: whoever relies on that shows as a deadlock.
pub(crate) fn wait_timeout<T>(condvar: &Condvar, guard: MutexGuard<'_, T>, _timeout: Duration) {
    drop(condvar.wait(guard).unwrap());
}

/// As weak as the standard one: a try that fails tells nothing of what the holder does. (`loom`'s own
/// mutex makes a thread that is about to try wait as if it were about to lock.)
pub(crate) struct TryMutex<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only whoever has locked it comes at the value; loom checks that.
unsafe impl<T: Send> Sync for TryMutex<T> {}

impl<T> TryMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    pub(crate) fn lock(&self) -> TryMutexGuard<'_, T> {
        loop {
            match self.try_lock() {
                Some(guard) => return guard,
                None => yield_now(),
            }
        }
    }

    pub(crate) fn try_lock(&self) -> Option<TryMutexGuard<'_, T>> {
        let taken = self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.ok().map(|_| TryMutexGuard { mutex: self, value: Some(self.value.get_mut()) })
    }

    /// Nobody panics in a model that goes on.
    #[expect(clippy::unused_self, reason = "as that of the runtime")]
    pub(crate) fn take_poison(&self) -> bool {
        false
    }
}

pub(crate) struct TryMutexGuard<'a, T> {
    mutex: &'a TryMutex<T>,
    value: Option<MutPtr<T>>,
}

impl<T> Deref for TryMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the mutex is locked, and the guard is borrowed as long as the value.
        unsafe { self.value.as_ref().expect("there until it is dropped").deref() }
    }
}

impl<T> DerefMut for TryMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.value.as_ref().expect("there until it is dropped").deref() }
    }
}

impl<T> Drop for TryMutexGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        self.mutex.locked.store(false, Ordering::Release);
    }
}

/// Stricter than the standard one, which publishes what it holds by itself: here, whoever looks must
/// know from elsewhere that it was set.
pub(crate) struct OnceLock<T>(UnsafeCell<Option<T>>);

// SAFETY: loom checks that nobody looks while it is set.
unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new(None))
    }

    pub(crate) fn get(&self) -> Option<&T> {
        // SAFETY: it is set once, before anyone looks; loom checks that.
        self.0.with(|value| unsafe { (*value).as_ref() })
    }

    #[expect(clippy::unnecessary_wraps, reason = "as that of the standard one")]
    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        // SAFETY: as above.
        self.0.with_mut(|place| unsafe { *place = Some(value) });
        Ok(())
    }
}
