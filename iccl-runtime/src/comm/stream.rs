//! Streams: in which order a device does its work, operations of iccl among it.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use iccl_plugin_api::sdk::Progress;

use super::device::Device;
use crate::engine::{Engine, ForkGuard, Operation};
use crate::lock::lock;
use crate::{Error, ErrorKind, Result};

/// A queue of a device's work. Work of one stream is done in the order in which it was enqueued;
/// work of different streams in any. Cheap to clone: clones are the same stream.
#[derive(Clone)]
pub struct Stream {
    pub(super) inner: Arc<StreamInner>,
}

pub(super) struct StreamInner {
    pub(super) device: Device,
    pub(super) handle: u64,
    /// A word of the device that counts the places of this stream whose operations are over.
    pub(super) word: Arc<Word>,
    /// A word of the device that counts the places of this stream that others wait for.
    mark: Arc<Word>,
    /// A word of the device that counts the holds of this stream that are released.
    released: Arc<Word>,
    pub(super) issue: Mutex<Issue>,
    fork: ForkGuard,
}

/// What is under way, guarded together so that the stream and the word count alike.
#[derive(Default)]
pub(super) struct Issue {
    /// Places where operations begin; see [`super::enqueue`].
    pub(super) enqueued: u64,
    pub(super) pending: VecDeque<(Arc<Engine>, Arc<Operation>)>,
    /// The first failure that nobody was told.
    untold: Option<Error>,
    marks: u64,
    holds: u64,
    /// Marks of other streams that this one waits for; they live as long as it does.
    waited_for: Vec<Arc<Word>>,
}

pub(super) struct Word {
    device: Device,
    pub(super) pointer: *mut u64,
    ended: Mutex<Ended>,
    fork: ForkGuard,
}

/// Which places (or marks) of a stream are over.
#[derive(Default)]
struct Ended {
    /// All up to this one.
    all_up_to: u64,
    /// And these beyond it.
    beyond: BTreeSet<u64>,
}

// SAFETY: the word is only written by the device's function for it, from any thread.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    fn new(device: &Device) -> Result<Arc<Self>> {
        let pointer = device.inner.take_word()?;
        // SAFETY: 8 bytes of host memory, aligned to 64, that nobody else knows yet.
        unsafe { pointer.write(0) };
        Ok(Arc::new(Self {
            device: device.clone(),
            pointer,
            ended: Mutex::default(),
            fork: ForkGuard::new(),
        }))
    }

    /// Place `number` is over: lets the stream pass the waits for it and for those before it. One
    /// that ends early (because its communicator failed, while operations of others go on) does not
    /// let the stream past those before it.
    pub(super) fn end(&self, number: u64) {
        let mut ended = lock(&self.ended);
        if number != ended.all_up_to + 1 {
            ended.beyond.insert(number);
            return;
        }
        let mut last = number;
        while ended.beyond.remove(&(last + 1)) {
            last += 1;
        }
        ended.all_up_to = last;
        if !self.device.inner.waits_for_host() {
            return;
        }
        // SAFETY: taken in `new`, given back when the last holder is gone.
        if let Err(error) = unsafe { self.device.inner.open.write_value(self.pointer, last) } {
            tracing::error!(%error, device = %self.device, "a stream could not be let go on");
        }
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        if self.fork.check().is_err() {
            return;
        }
        // The stream that waited for it is destroyed.
        self.device.inner.give_word_back(self.pointer);
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({} of {})", self.inner.handle, self.inner.device)
    }
}

/// Keeps a stream from going on, see [`Stream::hold`]. Dropping it lets the stream go on.
#[must_use = "the stream goes on as soon as this is dropped"]
pub struct Hold {
    released: Arc<Word>,
    number: u64,
}

impl Hold {
    /// Lets the stream go on.
    pub fn release(self) {}
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.released.end(self.number);
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hold({} of a stream of {})", self.number, self.released.device)
    }
}

/// What a stream tells when it reaches a mark.
struct Marked {
    word: Arc<Word>,
    number: u64,
}

unsafe extern "C" fn marked(user: *mut c_void) {
    // SAFETY: `wait_for` leaked it for this one call.
    let marked = unsafe { Box::from_raw(user.cast::<Marked>()) };
    marked.word.end(marked.number);
}

impl Stream {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let (word, mark, released) = (Word::new(device)?, Word::new(device)?, Word::new(device)?);
        let handle =
            device.inner.open.stream_create().map_err(|error| device.inner.error(error))?;
        Ok(Self {
            inner: Arc::new(StreamInner {
                device: device.clone(),
                handle,
                word,
                mark,
                released,
                issue: Mutex::default(),
                fork: ForkGuard::new(),
            }),
        })
    }

    /// The device whose stream it is.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The plugin's own handle, for libraries that take one.
    pub fn raw(&self) -> u64 {
        self.inner.handle
    }

    /// Whether all work of the stream is done.
    ///
    /// # Errors
    /// What the driver says.
    pub fn is_done(&self) -> Result<bool> {
        let inner = &self.inner;
        inner.fork.check()?;
        let answer = inner.device.inner.open.stream_query(inner.handle);
        Ok(answer.map_err(|error| inner.device.inner.error(error))? == Progress::Done)
    }

    /// Makes later work of this stream wait until the host lets it go on, by releasing or dropping what this
    /// gives. Returns at once.
    ///
    /// Whatever waits for the stream waits as well: [`Stream::synchronize`] without a limit, and the end
    /// of the stream, on the thread that holds it wait for ever.
    ///
    /// # Errors
    /// `NotSupported` if the device cannot make a stream wait for the host; what the driver says.
    pub fn hold(&self) -> Result<Hold> {
        self.inner.fork.check()?;
        let device = &self.inner.device.inner;
        if !device.waits_for_host() {
            return Err(Error::new(
                ErrorKind::NotSupported,
                format!("a stream of {} cannot wait for the host", self.inner.device),
            ));
        }
        let released = &self.inner.released;
        let mut issue = lock(&self.inner.issue);
        let number = issue.holds + 1;
        // SAFETY: the word is the device's, aligned, and outlives the stream.
        unsafe { device.open.stream_wait_value(self.inner.handle, released.pointer, number) }
            .map_err(|error| device.error(error))?;
        issue.holds = number;
        Ok(Hold { released: Arc::clone(released), number })
    }

    /// Makes later work of this stream wait until the work that `other` has now is done, operations of
    /// iccl included (whether they succeed or fail). Returns at once, unless the device cannot make a
    /// stream wait: then it waits here.
    ///
    /// # Errors
    /// `InvalidArgument` if `other` is of another device; what the driver says.
    pub fn wait_for(&self, other: &Self) -> Result<()> {
        self.inner.fork.check()?;
        other.must_be_of(&self.inner.device)?;
        if Arc::ptr_eq(&self.inner, &other.inner) {
            return Ok(());
        }
        let device = &self.inner.device.inner;
        if !device.calls_host() || !device.waits_for_host() {
            return device.synchronize(other.inner.handle, Duration::MAX);
        }
        let word = &other.inner.mark;
        let number = {
            let mut issue = lock(&other.inner.issue);
            let number = issue.marks + 1;
            let user = Box::into_raw(Box::new(Marked { word: Arc::clone(word), number }));
            let asked =
                // SAFETY: `marked` may be called once on any thread with what was leaked for it.
                unsafe { device.open.host_function(other.inner.handle, marked, user.cast()) };
            if let Err(error) = asked {
                // SAFETY: a refused call is never made, so the box is still this function's.
                drop(unsafe { Box::from_raw(user) });
                return Err(device.error(error));
            }
            issue.marks = number;
            number
        };
        let mut issue = lock(&self.inner.issue);
        if !issue.waited_for.iter().any(|known| Arc::ptr_eq(known, word)) {
            issue.waited_for.push(Arc::clone(word));
        }
        // SAFETY: the word is the device's, aligned, and kept until this stream is destroyed.
        unsafe { device.open.stream_wait_value(self.inner.handle, word.pointer, number) }
            .map_err(|error| device.error(error))
    }

    /// Waits until all work of the stream is done.
    ///
    /// # Errors
    /// The error of the first operation on it that failed; what the driver says.
    pub fn synchronize(&self) -> Result<()> {
        self.synchronize_until(None)
    }

    /// Waits until all work of the stream is done, at most `timeout`.
    ///
    /// # Errors
    /// As [`Stream::synchronize`]; `Timeout`.
    pub fn synchronize_for(&self, timeout: Duration) -> Result<()> {
        self.synchronize_until(Instant::now().checked_add(timeout))
    }

    fn synchronize_until(&self, deadline: Option<Instant>) -> Result<()> {
        self.inner.fork.check()?;
        let mut outcome = lock(&self.inner.issue).untold.take().map_or(Ok(()), Err);
        loop {
            // Operations are driven by whoever waits for them, which the device cannot do.
            let front = lock(&self.inner.issue).pending.front().cloned();
            let Some((engine, operation)) = front else { break };
            let ended = engine.wait(&operation, deadline);
            if !operation.is_over() {
                if let Err(error) = outcome {
                    lock(&self.inner.issue).untold.get_or_insert(error);
                }
                return ended;
            }
            outcome = outcome.and(ended);
            let mut issue = lock(&self.inner.issue);
            if issue.pending.front().is_some_and(|(_, front)| Arc::ptr_eq(front, &operation)) {
                issue.pending.pop_front();
            }
        }
        let left = deadline
            .map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        outcome.and(self.inner.device.inner.synchronize(self.inner.handle, left))
    }

    /// Tells this stream from others.
    pub(super) fn address(&self) -> usize {
        Arc::as_ptr(&self.inner) as usize
    }

    /// The stream for the caller alone, if all its work is done; whoever else enqueues operations waits until
    /// it is dropped.
    pub(super) fn idle_place(&self) -> Option<MutexGuard<'_, Issue>> {
        let inner = &self.inner;
        let mut issue = lock(&inner.issue);
        issue.forget_ended();
        let is_done = || inner.device.inner.open.stream_query(inner.handle);
        (issue.pending.is_empty() && matches!(is_done(), Ok(Progress::Done))).then_some(issue)
    }

    pub(super) fn must_be_of(&self, device: &Device) -> Result<()> {
        self.inner.fork.check()?;
        if Arc::ptr_eq(&self.inner.device.inner, &device.inner) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("the stream is of {}, not of {device}", self.inner.device),
        ))
    }
}

impl Issue {
    /// Forgets operations that have ended, but for the first failure, which `synchronize` tells.
    pub(super) fn forget_ended(&mut self) {
        while let Some(outcome) = self.pending.front().and_then(|(_, one)| one.outcome()) {
            self.pending.pop_front();
            if let Err(error) = outcome {
                self.untold.get_or_insert(error);
            }
        }
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        // The device works for the parent only, and what the stream waits for never comes here.
        if self.fork.check().is_err() {
            return;
        }
        let device = &self.device.inner;
        if let Err(error) = device.open.stream_destroy(self.handle) {
            tracing::warn!(%error, device = %self.device, "a stream could not be destroyed");
        }
    }
}

#[cfg(test)]
mod tests {
    use iccl_plugin_host as _;

    use super::*;
    use crate::comm::Runtime;
    use crate::config::{Config, Sources};

    #[test]
    fn b091_a_failure_that_nobody_asks_for_is_kept_and_not_what_comes_after_it() {
        let config = Config::load(&Sources::default()).expect("a configuration");
        let runtime = Runtime::with_config(config).expect("a runtime");
        let stream = runtime.device().expect("the host").stream().expect("a stream");
        let [failing, other] = [(); 2].map(|()| runtime.world().expect("alone"));
        let hold = stream.hold().expect("held");
        let failed = failing.barrier(&stream).expect("enqueued");
        failing.abort();
        hold.release();
        assert_eq!(failed.wait().expect_err("aborted").kind(), ErrorKind::Aborted);
        for _ in 0..100 {
            other.barrier(&stream).and_then(|handle| handle.wait()).expect("alone");
            assert!(lock(&stream.inner.issue).pending.len() <= 1);
        }
        // Who is too early hears nothing of it, and takes nothing away.
        let hold = stream.hold().expect("held");
        let last = other.barrier(&stream).expect("enqueued");
        let early = stream.synchronize_for(Duration::from_millis(1)).expect_err("held");
        assert_eq!(early.kind(), ErrorKind::Timeout);
        hold.release();
        assert_eq!(stream.synchronize().expect_err("told").kind(), ErrorKind::Aborted);
        last.wait().expect("alone");
        stream.synchronize().expect("told once");
    }
}
