//! The driver's seat: who does the engine's work, who sleeps meanwhile, and who wakes whom.
//!
//! Whoever sits in the seat drives. Others bring news, or wait for the seat. The engine's thread takes
//! the seat when nobody else does, and sleeps cold when nothing is under way. Nobody sleeps through what
//! concerns them:
//!
//! | who sleeps | says so in | is woken by | before sleeping looks again at |
//! |---|---|---|---|
//! | the driver | `asleep` | news; a wish for the seat | the news, its own reasons to stop |
//! | a bystander | `wanted` | a driver that leaves, or that ended something | its own condition, the seat |
//! | the thread | `cold` | news; a driver that leaves | the news, the seat |
//!
//! Each line is the same agreement: one side says that it sleeps and then looks, the other changes what
//! is looked at and then asks who sleeps, and both have a full fence between the two. So at least one of
//! them sees the other.
//!
//! `tests/interleavings.rs` runs this file in every interleaving.

use std::time::Duration;

use crate::sync::{
    AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, Ordering, TryMutex, TryMutexGuard, fence,
    lock, wait_timeout,
};

/// What wakes those that sleep outside of this file. A ring is kept until the sleeper has heard it.
pub(super) trait Bells {
    /// Wakes a driver from what [`Seat::sleep`] makes it do.
    fn wake_driver(&self);
    /// Wakes the engine's thread from what [`Seat::sleep_cold`] makes it do.
    fn wake_thread(&self);
}

/// Who sits in it works on the state.
pub(super) struct Seat<S, B> {
    state: TryMutex<S>,
    bells: B,
    /// Counts what nobody may sleep through.
    news: AtomicU64,
    /// Whether the driver sleeps, or is about to.
    asleep: AtomicBool,
    /// Whether the engine's thread sleeps until something happens, or is about to.
    cold: AtomicBool,
    /// Callers that want to drive; the engine's thread leaves for them.
    wanted: AtomicU32,
    /// Guards nothing: callers that cannot drive wait here.
    bystanders: Mutex<()>,
    changed: Condvar,
}

impl<S, B: Bells> Seat<S, B> {
    pub(super) fn new(state: S, bells: B) -> Self {
        Self {
            state: TryMutex::new(state),
            bells,
            news: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            cold: AtomicBool::new(false),
            wanted: AtomicU32::new(0),
            bystanders: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    pub(super) fn bells(&self) -> &B {
        &self.bells
    }

    /// Whether a driver panicked since this was last asked. Nothing that it left can be trusted.
    pub(super) fn was_left_in_panic(&self) -> bool {
        self.state.take_poison()
    }

    /// How much news there has been. All that was told before is to be seen by whoever has called this.
    pub(super) fn news(&self) -> u64 {
        self.news.load(Ordering::Acquire)
    }

    /// Something happened that a sleeping driver, or the sleeping thread, must look at.
    pub(super) fn tell_news(&self) {
        self.news.fetch_add(1, Ordering::Release);
        self.wake_driver();
        self.wake_thread();
    }

    /// Whether callers want the seat.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// Sits down if the seat is free.
    pub(super) fn try_take(&self) -> Option<TryMutexGuard<'_, S>> {
        self.state.try_lock()
    }

    /// Sits down as soon as whoever sits there leaves. The engine's thread leaves at once; a caller that
    /// waits for its operation leaves when that is over or the communicator has failed.
    pub(super) fn take(&self) -> TryMutexGuard<'_, S> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        self.wake_driver();
        let state = self.state.lock();
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Sits down if the seat is free; if not, waits until it may be, until something has ended, or for
    /// `longest`. Does not wait if `stop` says so.
    pub(super) fn take_or_stand_by(
        &self,
        stop: &dyn Fn() -> bool,
        longest: Duration,
    ) -> Option<TryMutexGuard<'_, S>> {
        if let Some(state) = self.try_take() {
            return Some(state);
        }
        let bystanders = lock(&self.bystanders);
        self.wanted.fetch_add(1, Ordering::Relaxed);
        self.wake_driver();
        let stops = stop();
        let state = if stops { None } else { self.try_take() };
        if state.is_none() && !stops {
            wait_timeout(&self.changed, bystanders, longest);
        }
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Gets up. What is left to do is the thread's now, if nobody else's.
    pub(super) fn leave(&self, state: TryMutexGuard<'_, S>) {
        self.free(state);
        self.wake_thread();
    }

    /// Something has ended that a bystander may wait for. The driver calls this often, so it is cheap,
    /// and may overlook one that is only just about to wait; [`Seat::sleep`] makes up for that.
    pub(super) fn tell_bystanders(&self) {
        if self.is_wanted() {
            // Not between a bystander's look and its sleep.
            drop(lock(&self.bystanders));
            self.changed.notify_all();
        }
    }

    /// The driver sleeps, by `sleep`, unless there has been more news than `seen` or `stop` says so.
    /// `has_ended` says whether something may have ended since the driver slept last.
    pub(super) fn sleep<R>(
        &self,
        seen: u64,
        has_ended: bool,
        stop: &dyn Fn() -> bool,
        sleep: impl FnOnce() -> R,
    ) -> Option<R> {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if has_ended {
            self.tell_bystanders();
        }
        let slept = (self.news() == seen && !stop()).then(sleep);
        self.asleep.store(false, Ordering::Relaxed);
        slept
    }

    /// The engine's thread sleeps, by `poll`, until there is more news than `seen`, whoever drives
    /// leaves, or what `arm` has armed has something. If somebody else drives, nothing is armed.
    ///
    /// Says whether it slept: not if there was news already, if `arm` gave nothing, or if the seat was
    /// about to change hands.
    pub(super) fn sleep_cold<P: Default>(
        &self,
        seen: u64,
        arm: impl FnOnce(&mut S) -> Option<P>,
        poll: impl FnOnce(P),
    ) -> bool {
        let seat = if self.is_wanted() { None } else { self.try_take() };
        // Before the seat is free: whoever drives next disarms what is armed, and must wake the thread.
        self.cold.store(true, Ordering::Relaxed);
        let armed = if let Some(mut state) = seat {
            let armed = arm(&mut state);
            self.free(state);
            armed
        } else {
            fence(Ordering::SeqCst);
            match self.try_take() {
                // Whoever drove has left and may not have seen that the thread sleeps.
                Some(state) => {
                    self.free(state);
                    None
                }
                None => Some(P::default()),
            }
        };
        let slept = armed.filter(|_| self.news() == seen).map(poll);
        self.cold.store(false, Ordering::Relaxed);
        slept.is_some()
    }

    /// Frees the seat for the bystanders.
    fn free(&self, state: TryMutexGuard<'_, S>) {
        drop(state);
        fence(Ordering::SeqCst);
        self.tell_bystanders();
    }

    fn wake_driver(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            self.bells.wake_driver();
        }
    }

    /// After a fence.
    fn wake_thread(&self) {
        if self.cold.load(Ordering::Relaxed) {
            self.bells.wake_thread();
        }
    }
}
