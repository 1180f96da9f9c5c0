//! An engine without time, links and schedules: around the real hand-over it does what
//! `engine/mod.rs` and `engine/thread.rs` do, step for step.

use std::sync::atomic::AtomicUsize as Untracked;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread::yield_now;

use crate::inbox::Inbox;
use crate::outcome::Outcome;
use crate::seat::{Bells, Seat};

/// Runs `body` in every interleaving with at most `preemptions` switches that no thread asked for.
pub(crate) fn check(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

/// Memory that only one may use at a time, as a user's buffer is.
pub(crate) struct Memory(UnsafeCell<u32>);

// SAFETY: loom reports two that use it at a time.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    pub(crate) fn touch(&self) {
        // SAFETY: loom checks that nobody else does.
        self.0.with_mut(|value| unsafe { *value += 1 });
    }

    pub(crate) fn touches(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|value| unsafe { *value })
    }
}

/// An event descriptor, or several of them and a thread that polls: what is signalled stays so.
#[derive(Default)]
pub(crate) struct Events {
    readable: Mutex<[bool; 3]>,
    changed: Condvar,
}

const OF_DRIVER: usize = 0;
const OF_THREAD: usize = 1;
const OF_TRANSPORT: usize = 2;

impl Events {
    fn signal(&self, which: usize) {
        self.readable.lock().unwrap()[which] = true;
        self.changed.notify_all();
    }

    fn clear(&self, which: usize) {
        self.readable.lock().unwrap()[which] = false;
    }

    /// Polls an event and the transport's, then reads the event.
    fn poll(&self, event: usize) {
        let mut readable = self.readable.lock().unwrap();
        while !readable[event] && !readable[OF_TRANSPORT] {
            readable = self.changed.wait(readable).unwrap();
        }
        readable[event] = false;
    }
}

impl Bells for Events {
    fn wake_driver(&self) {
        self.signal(OF_DRIVER);
    }

    fn wake_thread(&self) {
        self.signal(OF_THREAD);
    }
}

/// A transport that signals its descriptor only while it is armed.
struct Transport {
    arrived: AtomicBool,
    armed: AtomicBool,
}

impl Transport {
    /// Says whether there is nothing to do now.
    fn arm(&self, state: &State) -> bool {
        self.armed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        state.has_message || !self.arrived.load(Ordering::Acquire)
    }

    fn progress(&self, events: &Events) -> bool {
        if self.armed.load(Ordering::Relaxed) {
            self.armed.store(false, Ordering::Relaxed);
            events.clear(OF_TRANSPORT);
        }
        self.arrived.load(Ordering::Acquire)
    }
}

/// What the driver does not do at once.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Needs {
    /// One round after it was started, an operation is over.
    Nothing,
    /// The message of a peer.
    Message,
}

pub(crate) struct Operation {
    pub(crate) outcome: Outcome<&'static str>,
    /// The user's buffer, and what keeps it.
    pub(crate) memory: Memory,
    needs: Needs,
    is_over: Mutex<bool>,
    stream: Condvar,
}

impl Operation {
    pub(crate) fn new(ready: bool, needs: Needs) -> Arc<Self> {
        Arc::new(Self {
            outcome: Outcome::new(ready),
            memory: Memory::new(),
            needs,
            is_over: Mutex::new(false),
            stream: Condvar::new(),
        })
    }

    pub(crate) fn finish(&self, result: Result<(), &'static str>) {
        self.outcome.end(result, || {
            self.memory.touch();
            let mut is_over = self.is_over.lock().unwrap();
            assert!(!*is_over, "ended twice");
            *is_over = true;
            self.stream.notify_all();
        });
    }

    /// Waits as a stream of a device does: it drives nothing.
    pub(crate) fn hold_the_stream(&self) {
        let mut is_over = self.is_over.lock().unwrap();
        while !*is_over {
            is_over = self.stream.wait(is_over).unwrap();
        }
    }
}

#[derive(Default)]
struct State {
    waiting: Vec<Arc<Operation>>,
    started: Vec<Arc<Operation>>,
    has_message: bool,
}

impl State {
    fn has_work(&self) -> bool {
        !self.started.is_empty() || self.waiting.iter().any(|one| one.outcome.is_ready())
    }
}

pub(crate) struct Engine {
    seat: Seat<State, Events>,
    submissions: Inbox<Arc<Operation>>,
    transport: Transport,
    failed: AtomicBool,
    shutdown: AtomicBool,
    /// Only drivers come at it, so it needs no interleavings of its own.
    over: Untracked,
}

impl Engine {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            seat: Seat::new(State::default(), Events::default()),
            submissions: Inbox::new(),
            transport: Transport { arrived: AtomicBool::new(false), armed: AtomicBool::new(false) },
            failed: AtomicBool::new(false),
            shutdown: AtomicBool::new(false),
            over: Untracked::new(0),
        })
    }

    pub(crate) fn submit(&self, operation: &Arc<Operation>) {
        let failure = || self.has_failed().then_some("failed");
        match self.submissions.offer(Arc::clone(operation), failure) {
            Ok(()) => self.seat.tell_news(),
            Err(error) => operation.finish(Err(error)),
        }
    }

    pub(crate) fn set_ready(&self, operation: &Operation) {
        operation.outcome.set_ready();
        self.seat.tell_news();
    }

    pub(crate) fn wait(&self, operation: &Operation) -> Result<(), &'static str> {
        loop {
            if let Some(outcome) = operation.outcome.get() {
                return outcome;
            }
            let stop = || operation.outcome.is_over();
            if let Some(mut state) = self.seat.take_or_stand_by(&stop, Duration::ZERO) {
                self.drive(&mut state, &stop);
                self.seat.leave(state);
            }
        }
    }

    pub(crate) fn fail_soon(&self) {
        self.failed.store(true, Ordering::Release);
        self.seat.tell_news();
    }

    pub(crate) fn fail(&self) {
        self.fail_soon();
        let mut state = self.seat.take();
        self.end_all(&mut state);
        self.seat.leave(state);
    }

    /// Ends the engine, which has no thread any more.
    pub(crate) fn close(&self) {
        let mut state = self.seat.take();
        self.failed.store(true, Ordering::Release);
        self.end_all(&mut state);
        self.seat.leave(state);
    }

    /// Takes the seat for a moment, without news.
    pub(crate) fn sit_down_and_leave(&self) {
        self.seat.leave(self.seat.take());
    }

    /// Tells the engine's thread to end.
    pub(crate) fn shut_down(&self) {
        self.shutdown.store(true, Ordering::Release);
        self.seat.tell_news();
    }

    /// A peer's message comes.
    pub(crate) fn deliver(&self) {
        self.transport.arrived.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.transport.armed.load(Ordering::Relaxed) {
            self.seat.bells().signal(OF_TRANSPORT);
        }
    }

    /// The engine's thread, of an engine that is never in use for long enough to keep it warm.
    pub(crate) fn run_thread(&self) {
        while !self.is_shut_down() {
            let news = self.seat.news();
            self.serve();
            if self.is_shut_down() {
                return;
            }
            let arm_all = |state: &mut State| {
                let nothing = self.has_failed() || self.transport.arm(state);
                nothing.then_some(())
            };
            if !self.seat.sleep_cold(news, arm_all, |()| self.seat.bells().poll(OF_THREAD)) {
                yield_now();
            }
        }
    }

    fn serve(&self) {
        if self.seat.is_wanted() {
            return;
        }
        let Some(mut state) = self.seat.try_take() else { return };
        let stop = || self.seat.is_wanted() || self.is_shut_down();
        self.take_inbox(&mut state);
        while state.has_work() && !self.has_failed() && !stop() {
            let over = self.over.load(Relaxed);
            self.drive(&mut state, &|| stop() || self.over.load(Relaxed) != over);
            self.seat.tell_bystanders();
        }
        if self.has_failed() {
            self.end_all(&mut state);
        } else if !state.has_work() {
            self.drive(&mut state, &|| true);
        }
        self.seat.leave(state);
    }

    fn drive(&self, state: &mut State, stop: &dyn Fn() -> bool) {
        let mut taken = None;
        let mut has_ended = true;
        loop {
            let news = self.seat.news();
            if self.has_failed() {
                return self.end_all(state);
            }
            if taken != Some(news) {
                taken = Some(news);
                self.take_inbox(state);
            }
            let moved = self.advance(state);
            if stop() {
                return;
            }
            if moved {
                has_ended = true;
                self.seat.tell_bystanders();
                continue;
            }
            let sleep = || {
                if self.transport.arm(state) {
                    self.seat.bells().poll(OF_DRIVER);
                }
            };
            self.seat.sleep(news, has_ended, stop, sleep);
            has_ended = false;
        }
    }

    fn advance(&self, state: &mut State) -> bool {
        state.has_message = self.transport.progress(self.seat.bells());
        let has_message = state.has_message;
        let is_done = |one: &mut Arc<Operation>| one.needs == Needs::Nothing || has_message;
        let done: Vec<_> = state.started.extract_if(.., is_done).collect();
        let is_ready = |one: &mut Arc<Operation>| one.outcome.is_ready();
        let ready: Vec<_> = state.waiting.extract_if(.., is_ready).collect();
        let moved = !done.is_empty() || !ready.is_empty();
        for operation in done {
            self.over.fetch_add(1, Relaxed);
            operation.finish(Ok(()));
        }
        for operation in ready {
            operation.memory.touch();
            state.started.push(operation);
        }
        moved
    }

    fn take_inbox(&self, state: &mut State) {
        self.submissions.empty(|operation| state.waiting.push(operation));
    }

    fn end_all(&self, state: &mut State) {
        self.take_inbox(state);
        for operation in state.started.drain(..).chain(state.waiting.drain(..)) {
            operation.finish(Err("failed"));
        }
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    fn is_shut_down(&self) -> bool {
        self.shutdown.load(Ordering::Acquire)
    }
}
