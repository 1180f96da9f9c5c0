//! Puts operations into their streams: several at once, all or none.

use std::ffi::c_void;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use smallvec::SmallVec;

use super::countdown::Countdown;
use super::stream::{Issue, Stream, Word};
use crate::engine::{Engine, Operation, OperationRequest};
use crate::lock::lock;
use crate::{Error, ErrorKind, Result};

/// A list that nearly always has one element: a call without a group.
pub(super) type Few<T> = SmallVec<[T; 1]>;

/// An operation that was enqueued, and the engine that does it.
pub(super) type Begun = (Arc<Engine>, Arc<Operation>);

/// An operation that is to be enqueued.
pub(super) struct Entry {
    pub(super) engine: Arc<Engine>,
    pub(super) request: OperationRequest,
    pub(super) stream: Stream,
    /// A second stream that must have come before it begins, and that waits for its end: a message to
    /// this rank itself may be sent on one stream and received on another.
    pub(super) also: Option<Stream>,
}

impl Entry {
    fn streams(&self) -> impl Iterator<Item = &Stream> {
        std::iter::once(&self.stream).chain(&self.also)
    }
}

/// Enqueues operations. Those of one stream begin together, when it reaches them, and it goes on when
/// all of them are over; of one communicator, they begin in the order in which they are given, as far as
/// that says anything. Returns at once, unless a device's streams cannot wait for the host.
///
/// # Safety
/// What each request promises, see [`Engine::submit`].
///
/// # Errors
/// What a driver says; then none of them takes place, and every stream goes on.
pub(super) unsafe fn enqueue(entries: Few<Entry>) -> Result<Few<Begun>> {
    let mut streams: Few<Stream> = entries.iter().flat_map(Entry::streams).cloned().collect();
    // Everyone who locks several streams does so in this order.
    streams.sort_by_key(Stream::address);
    streams.dedup_by_key(|stream| stream.address());
    let mut places: Few<Place<'_>> = streams.iter().map(Place::new).collect();
    let operations: Few<Begun> =
        entries.into_iter().map(|entry| take_in(entry, &streams, &mut places)).collect();
    for index in 0..places.len() {
        if let Err(error) = places[index].begin() {
            for (at, place) in places.iter_mut().enumerate() {
                place.give_up(at < index);
            }
            return Err(error);
        }
    }
    for (engine, operation) in &operations {
        // SAFETY: the caller promises it; each was made a moment ago, for this engine.
        unsafe { engine.submit(operation) };
    }
    let streams_wait = places.iter().all(Place::stream_waits);
    drop(places);
    if !streams_wait {
        for (engine, operation) in &operations {
            // A stream cannot be made to wait, so whoever enqueues does; the outcome is the handle's.
            let _ = engine.wait(operation, None);
        }
    }
    Ok(operations)
}

/// Makes an operation, and makes it known to the places of its streams.
fn take_in(entry: Entry, streams: &[Stream], places: &mut [Place<'_>]) -> Begun {
    let of = |stream: &Stream| {
        streams
            .binary_search_by_key(&stream.address(), Stream::address)
            .unwrap_or_else(|_| unreachable!("every stream of an entry has a place"))
    };
    let first = of(&entry.stream);
    let second = entry.also.as_ref().map(of).filter(|second| *second != first);
    let ends = [Some(first), second].map(|at| at.map(|at| Arc::clone(&places[at].end)));
    let operation = Arc::new(Operation::new(OperationRequest {
        on_complete: Some(Box::new(move || {
            ends.iter().flatten().for_each(|end| end.one_is_over());
        })),
        ..entry.request
    }));
    let to_come = second.map(|_| Arc::new(Countdown::new(2)));
    for at in [Some(first), second].into_iter().flatten() {
        places[at].add(Start {
            engine: Arc::clone(&entry.engine),
            operation: Arc::clone(&operation),
            to_come: to_come.clone(),
        });
    }
    (entry.engine, operation)
}

/// What lets a stream go on: the end of the last operation that began there.
struct End {
    left: Countdown,
    word: Arc<Word>,
    number: u64,
}

impl End {
    fn one_is_over(&self) {
        if self.left.one_has_come() {
            self.word.end(self.number);
        }
    }
}

/// An operation that begins when its stream (or both) has come.
struct Start {
    engine: Arc<Engine>,
    operation: Arc<Operation>,
    /// How many streams have not come yet, if there is more than one.
    to_come: Option<Arc<Countdown>>,
}

impl Start {
    fn stream_has_come(&self) {
        if self.to_come.as_ref().is_none_or(|to_come| to_come.one_has_come()) {
            self.engine.set_ready(&self.operation);
        }
    }
}

/// What a stream tells when it reaches operations.
unsafe extern "C" fn reached(user: *mut c_void) {
    // SAFETY: `begin` leaked it for this one call.
    let starts = unsafe { Box::from_raw(user.cast::<Few<Start>>()) };
    starts.iter().for_each(Start::stream_has_come);
}

/// The place in one stream where operations begin together. The stream is locked as long as it lives.
struct Place<'a> {
    stream: &'a Stream,
    issue: MutexGuard<'a, Issue>,
    pending_before: usize,
    starts: Few<Start>,
    end: Arc<End>,
}

impl<'a> Place<'a> {
    fn new(stream: &'a Stream) -> Self {
        let mut issue = lock(&stream.inner.issue);
        issue.forget_ended();
        let end = End {
            left: Countdown::new(0),
            word: Arc::clone(&stream.inner.word),
            number: issue.enqueued + 1,
        };
        let pending_before = issue.pending.len();
        Self { stream, issue, pending_before, starts: Few::new(), end: Arc::new(end) }
    }

    fn add(&mut self, start: Start) {
        self.end.left.add_one();
        self.issue.pending.push_back((Arc::clone(&start.engine), Arc::clone(&start.operation)));
        self.starts.push(start);
    }

    /// Asks the stream to say when it has come here, and to wait for the end.
    fn begin(&mut self) -> Result<()> {
        let inner = &self.stream.inner;
        let device = &inner.device.inner;
        let starts = std::mem::take(&mut self.starts);
        if device.calls_host() {
            let user = Box::into_raw(Box::new(starts));
            // SAFETY: `reached` may be called once on any thread with what was leaked for it.
            let asked = unsafe { device.open.host_function(inner.handle, reached, user.cast()) };
            if let Err(error) = asked {
                // SAFETY: a refused call is never made, so the box is still this function's.
                drop(unsafe { Box::from_raw(user) });
                return Err(device.error(error));
            }
        } else {
            self.wait_for_stream(&starts)?;
            starts.iter().for_each(Start::stream_has_come);
        }
        if device.waits_for_host() {
            // SAFETY: the word is the device's, aligned, and outlives the stream.
            unsafe {
                device.open.stream_wait_value(inner.handle, inner.word.pointer, self.end.number)
            }
            .map_err(|error| device.error(error))?;
        }
        self.issue.enqueued = self.end.number;
        Ok(())
    }

    /// Waits until the stream has come here: it cannot say so by itself. At most as long as the first of the
    /// operations may take.
    fn wait_for_stream(&self, starts: &[Start]) -> Result<()> {
        let inner = &self.stream.inner;
        let first = starts.iter().map(|start| &start.operation).min_by_key(|one| one.timeout());
        let timeout = first.map_or(Duration::MAX, |operation| operation.timeout());
        inner.device.inner.synchronize(inner.handle, timeout).map_err(|error| {
            let Some(operation) = first.filter(|_| error.kind() == ErrorKind::Timeout) else {
                return error;
            };
            Error::new(
                ErrorKind::Timeout,
                format!(
                    "{operation} waited longer than {timeout:?} for the work before it on its \
                     stream of {}, which cannot tell by itself when it gets there",
                    inner.device
                ),
            )
            .with_source(error)
        })
    }

    /// Forgets what would have taken place here. `begun` says that the stream waits for its end.
    fn give_up(&mut self, begun: bool) {
        self.issue.pending.truncate(self.pending_before);
        if begun {
            self.end.word.end(self.end.number);
        }
    }

    fn stream_waits(&self) -> bool {
        self.stream.inner.device.inner.waits_for_host()
    }
}
