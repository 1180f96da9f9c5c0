//! Streams: queues whose items are done in order.
//!
//! An item is a copy, a callback, an event, or a wait until a word has a value. Whatever can be done
//! at once and is short (a callback, an event, a small copy on an idle stream) is done by the caller
//! that enqueues it, so a stream that only ever holds operations of iccl needs no thread. Once there
//! is something to do *later* (behind a wait, or a large copy), the stream's own worker does it; it is
//! started when first needed. A caller that synchronises does the items itself instead of waiting
//! for the worker to be scheduled.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{HostCallback, PluginError, PluginResult, Progress};

/// Copies up to this many bytes are done by the caller if the stream is idle.
const INLINE_COPY_BYTES: u64 = 16 << 10;
/// The longest sleep of a waiter; a wake ends it early.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// What wakes those who wait for a word: one place for the whole device.
#[derive(Debug, Default)]
pub(crate) struct Words {
    sleepers: AtomicUsize,
    gate: Mutex<()>,
    written: Condvar,
}

impl Words {
    /// Stores `value` and wakes whoever waits for a word.
    pub(crate) fn write(&self, word: &AtomicU64, value: u64) {
        word.store(value, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            drop(lock(&self.gate));
            self.written.notify_all();
        }
    }

    /// Wakes every sleeper, without a word: a stream has changed.
    fn stir(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            drop(lock(&self.gate));
            self.written.notify_all();
        }
    }

    /// Sleeps until a word is written or something stirs, unless `over` says that there is nothing
    /// to sleep for; at most `timeout`.
    fn sleep(&self, timeout: Duration, over: impl Fn() -> bool) {
        let gate = lock(&self.gate);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !over() {
            let slept = self.written.wait_timeout(gate, timeout.min(LONGEST_SLEEP));
            drop(slept.unwrap_or_else(PoisonError::into_inner));
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A word that a stream waits for. Kept as an address: the word lives in memory of the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word(*const AtomicU64);

// SAFETY: the word is only read, atomically; whoever enqueued the wait keeps it alive.
unsafe impl Send for Word {}

impl Word {
    /// # Safety
    /// `pointer` is 8-byte aligned and stays valid until the stream is past the wait.
    pub(crate) unsafe fn new(pointer: *const u64) -> Self {
        Self(pointer.cast())
    }

    fn has(self, value: u64) -> bool {
        // SAFETY: `new` promises that the word lives.
        unsafe { &*self.0 }.load(Ordering::Acquire) >= value
    }
}

/// A copy that was enqueued.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) destination: *mut u8,
    pub(crate) source: *const u8,
    pub(crate) bytes: u64,
}

// SAFETY: whoever enqueued the copy keeps both sides alive and untouched until it is done.
unsafe impl Send for Copy {}

impl Copy {
    /// # Safety
    /// Both sides are valid for `bytes` and do not overlap.
    pub(crate) unsafe fn run(&self) {
        // SAFETY: the caller promises it.
        unsafe {
            std::ptr::copy_nonoverlapping(self.source, self.destination, self.bytes as usize);
        }
    }
}

/// An event: how often it was recorded, and how many of these records streams have passed.
#[derive(Debug, Default)]
pub(crate) struct Event {
    recorded: AtomicU64,
    passed: AtomicU64,
}

impl Event {
    pub(crate) fn query(&self) -> Progress {
        let recorded = self.recorded.load(Ordering::Acquire);
        if self.passed.load(Ordering::Acquire) >= recorded {
            Progress::Done
        } else {
            Progress::Pending
        }
    }
}

pub(crate) enum Item {
    Copy(Copy),
    Callback(HostCallback),
    Record(Arc<Event>, u64),
    Wait(Word, u64),
}

impl Item {
    fn run(self) {
        match self {
            // SAFETY: enqueueing promised that both sides are valid until the copy is done.
            Self::Copy(copy) => unsafe { copy.run() },
            Self::Callback(callback) => callback.call(),
            Self::Record(event, number) => {
                event.passed.fetch_max(number, Ordering::AcqRel);
            }
            Self::Wait(..) => unreachable!("a wait is passed, not run"),
        }
    }

    /// Whether an idle stream does it on the caller's thread.
    fn is_short(&self) -> bool {
        match self {
            Self::Copy(copy) => copy.bytes <= INLINE_COPY_BYTES,
            Self::Callback(_) | Self::Record(..) => true,
            Self::Wait(..) => false,
        }
    }
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    /// Somebody runs an item that was taken from the front.
    running: bool,
    /// The stream is being destroyed.
    closing: bool,
    worker: Option<std::thread::JoinHandle<()>>,
}

impl Queue {
    /// Passes the waits at the front whose word has its value.
    fn pass_waits(&mut self) {
        while let Some(Item::Wait(word, value)) = self.items.front() {
            if !word.has(*value) {
                return;
            }
            self.items.pop_front();
        }
    }

    fn is_idle(&mut self) -> bool {
        self.pass_waits();
        self.items.is_empty() && !self.running
    }

    /// Takes the next item that may be run now.
    fn take(&mut self) -> Option<Item> {
        self.pass_waits();
        if self.running {
            return None;
        }
        let item = self.items.pop_front_if(|item| !matches!(item, Item::Wait(..)))?;
        self.running = true;
        Some(item)
    }
}

/// A stream and its queue.
pub(crate) struct Stream {
    queue: Mutex<Queue>,
    words: Arc<Words>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

impl Stream {
    pub(crate) fn new(words: Arc<Words>) -> Self {
        Self { queue: Mutex::default(), words }
    }

    /// Adds an item; does it at once if the stream is idle and it is short.
    pub(crate) fn enqueue(self: &Arc<Self>, item: Item) -> PluginResult<()> {
        let mut queue = lock(&self.queue);
        if queue.is_idle() && item.is_short() {
            queue.running = true;
            drop(queue);
            self.run(item);
            return Ok(());
        }
        let needs_worker = !matches!(item, Item::Wait(..));
        queue.items.push_back(item);
        if needs_worker && queue.worker.is_none() {
            let stream = Arc::clone(self);
            let worker = std::thread::Builder::new()
                .name("iccl-host-stream".into())
                .spawn(move || stream.work())
                .map_err(|error| {
                    queue.items.pop_back();
                    PluginError::system(Status::OutOfResources, "no thread for a stream", &error)
                })?;
            queue.worker = Some(worker);
        }
        drop(queue);
        if needs_worker {
            self.words.stir();
        }
        Ok(())
    }

    pub(crate) fn record(self: &Arc<Self>, event: Arc<Event>) -> PluginResult<()> {
        let number = event.recorded.fetch_add(1, Ordering::AcqRel) + 1;
        self.enqueue(Item::Record(event, number))
    }

    /// Runs an item that was taken; `running` is set.
    fn run(&self, item: Item) {
        item.run();
        lock(&self.queue).running = false;
        self.words.stir();
    }

    pub(crate) fn query(&self) -> Progress {
        if lock(&self.queue).is_idle() { Progress::Done } else { Progress::Pending }
    }

    /// Does what is left on this thread, waits for what is not ready yet.
    pub(crate) fn synchronize(&self, timeout: Duration) -> PluginResult<()> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let mut queue = lock(&self.queue);
            if let Some(item) = queue.take() {
                drop(queue);
                self.run(item);
                continue;
            }
            if queue.is_idle() {
                return Ok(());
            }
            drop(queue);
            let left = deadline.map_or(LONGEST_SLEEP, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return Err(PluginError::new(
                    Status::Timeout,
                    format!("the stream is not done after {timeout:?}"),
                ));
            }
            self.words.sleep(left, || self.can_move());
        }
    }

    /// Whether an item could be run, or none is left.
    fn can_move(&self) -> bool {
        let mut queue = lock(&self.queue);
        queue.pass_waits();
        !queue.running && !matches!(queue.items.front(), Some(Item::Wait(..)))
    }

    /// The worker: runs what nobody else does.
    fn work(&self) {
        loop {
            let mut queue = lock(&self.queue);
            if let Some(item) = queue.take() {
                drop(queue);
                self.run(item);
                continue;
            }
            if queue.closing && queue.is_idle() {
                return;
            }
            drop(queue);
            self.words.sleep(LONGEST_SLEEP, || {
                let mut queue = lock(&self.queue);
                queue.pass_waits();
                let runnable =
                    matches!(queue.items.front(), Some(item) if !matches!(item, Item::Wait(..)));
                (runnable && !queue.running) || queue.closing
            });
        }
    }

    /// Lets the worker finish what is left, and ends it.
    pub(crate) fn destroy(&self) -> PluginResult<()> {
        self.synchronize(Duration::MAX)?;
        let worker = {
            let mut queue = lock(&self.queue);
            queue.closing = true;
            queue.worker.take()
        };
        self.words.stir();
        match worker.map(std::thread::JoinHandle::join) {
            Some(Err(_)) => Err(PluginError::new(Status::Panic, "the stream's worker panicked")),
            _ => Ok(()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
