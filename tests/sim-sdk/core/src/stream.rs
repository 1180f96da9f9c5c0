//! Streams: a queue of work and a thread that does it, late by a settable delay.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How a stream stands to its card's default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// The default stream: waits for all blocking streams, and they for it.
    Default,
    /// Ordered with the default stream.
    Blocking,
    /// Not ordered with the default stream.
    NonBlocking,
}

/// What a stream does at a place in it.
pub type Action = Box<dyn FnOnce() + Send>;

/// A stream of a card.
pub struct Stream {
    pub(crate) handle: u64,
    pub(crate) device: u32,
    pub(crate) kind: StreamKind,
    state: Mutex<State>,
    changed: Condvar,
    is_aborted: AtomicBool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Work>,
    issued: u64,
    finished: u64,
    has_thread: bool,
    is_closed: bool,
}

struct Work {
    after: Vec<Point>,
    delay: Duration,
    action: Action,
}

/// A place in a stream: reached when all that was put in before it is done.
#[derive(Clone)]
pub struct Point {
    stream: Arc<Stream>,
    number: u64,
}

impl Point {
    /// Whether the stream has got there.
    pub fn is_reached(&self) -> bool {
        self.stream.lock().finished >= self.number
    }

    /// Waits until the stream has got there.
    pub fn wait(&self) {
        let mut state = self.stream.lock();
        while state.finished < self.number {
            state = self.stream.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Stream {
    pub(crate) fn new(handle: u64, device: u32, kind: StreamKind) -> Arc<Self> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Arc::new(Self { handle, device, kind, state, changed, is_aborted: AtomicBool::new(false) })
    }

    /// What C knows it by.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// Its card.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// The place behind all that is in it now.
    pub fn end(self: &Arc<Self>) -> Point {
        Point { stream: Arc::clone(self), number: self.lock().issued }
    }

    /// Puts work at its end: it waits for the points, then for the delay, then acts.
    pub(crate) fn push(
        self: &Arc<Self>,
        after: Vec<Point>,
        delay: Duration,
        action: Action,
    ) -> Point {
        let mut state = self.lock();
        state.queue.push_back(Work { after, delay, action });
        state.issued += 1;
        let number = state.issued;
        if !state.has_thread {
            state.has_thread = true;
            let stream = Arc::clone(self);
            let name = format!("sim-stream-{:x}", self.handle & 0xffff);
            let thread = std::thread::Builder::new().name(name).spawn(move || stream.work());
            drop(thread.expect("a stream's thread can be started"));
        }
        self.changed.notify_all();
        drop(state);
        Point { stream: Arc::clone(self), number }
    }

    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Release);
    }

    /// Whether it was torn down.
    pub fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Acquire)
    }

    /// Its thread ends when what is in it is done.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn work(&self) {
        loop {
            let mut state = self.lock();
            let work = loop {
                if let Some(work) = state.queue.pop_front() {
                    break work;
                }
                if state.is_closed {
                    state.has_thread = false;
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            for point in &work.after {
                point.wait();
            }
            if !work.delay.is_zero() {
                std::thread::sleep(work.delay);
            }
            // A stream that stood still for ever would look like a slow card.
            if catch_unwind(AssertUnwindSafe(work.action)).is_err() {
                std::process::abort();
            }
            self.lock().finished += 1;
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
