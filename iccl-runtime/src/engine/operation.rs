//! One operation: what was asked, whether its stream has reached it, and how it ended.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use smallvec::SmallVec;

use super::envelope::{Fingerprint, Lane};
use super::outcome::Outcome;
use super::program::Program;
use crate::lock::lock;
use crate::{Error, Result};

/// Called once when an operation is over.
pub type OnComplete = Box<dyn FnOnce() + Send>;

/// Memory of a device whose end the engine hears of before it comes: where an operation's buffer lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Allocation {
    /// A number that no other allocation of the process has or had.
    pub number: u64,
    /// Its first byte.
    pub begin: usize,
    /// Its length.
    pub bytes: u64,
}

impl Allocation {
    /// From its first address to behind its last.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.begin..self.begin.saturating_add(self.bytes as usize)
    }
}

/// What keeps an operation's memory: nearly always two buffers at most.
pub type Keep = SmallVec<[Arc<dyn Any + Send + Sync>; 2]>;

/// What the communicator asks the engine to do.
pub struct OperationRequest {
    /// The compiled schedule.
    pub program: Arc<Program>,
    /// What all ranks must have asked.
    pub fingerprint: Fingerprint,
    /// Which stream of messages carries it.
    pub lane: Lane,
    /// The user's send buffer; may be null if the schedule reads none of it.
    pub send: *const u8,
    /// The user's receive buffer; may be null if the schedule writes none of it.
    pub receive: *mut u8,
    /// The scalar that this rank multiplies its contribution by: one element, read when the
    /// operation has started. May be null if the schedule multiplies nothing.
    pub scalar: *const u8,
    /// Whether the scalar lies in the device's memory, as the buffers do, and not in the host's.
    pub scalar_is_on_device: bool,
    /// What the send and the receive buffer are parts of. Without it nobody says when the memory is freed,
    /// and no NIC is given it.
    pub allocations: [Option<Allocation>; 2],
    /// What keeps the buffers alive until the operation is over.
    pub keep: Keep,
    /// How long the operation may take from the moment its stream reached it.
    pub timeout: Duration,
    /// Whether its stream has reached it already.
    pub ready: bool,
    /// Lets the stream go on; called once, whether the operation succeeded or not.
    pub on_complete: Option<OnComplete>,
}

/// An operation that the engine has accepted.
pub struct Operation {
    pub(super) program: Arc<Program>,
    pub(super) fingerprint: Fingerprint,
    pub(super) lane: Lane,
    pub(super) send: *const u8,
    pub(super) receive: *mut u8,
    pub(super) scalar: *const u8,
    pub(super) scalar_is_on_device: bool,
    pub(super) allocations: [Option<Allocation>; 2],
    pub(super) timeout: Duration,
    /// Its number in the flight recorder.
    flight: AtomicU64,
    keep: Mutex<Keep>,
    outcome: Outcome<Error>,
    on_complete: Mutex<Option<OnComplete>>,
}

// SAFETY: the pointers are only used by the thread that drives the engine, under its lock; whoever
// made the request promised that the memory stays valid until the operation is over.
unsafe impl Send for Operation {}
// SAFETY: as above.
unsafe impl Sync for Operation {}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operation({self})")
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fingerprint.fmt(f)
    }
}

impl Operation {
    /// An operation that is not submitted yet.
    pub fn new(request: OperationRequest) -> Self {
        Self {
            program: request.program,
            fingerprint: request.fingerprint,
            lane: request.lane,
            send: request.send,
            receive: request.receive,
            scalar: request.scalar,
            scalar_is_on_device: request.scalar_is_on_device,
            allocations: request.allocations,
            timeout: request.timeout,
            flight: AtomicU64::new(u64::MAX),
            keep: Mutex::new(request.keep),
            outcome: Outcome::new(request.ready),
            on_complete: Mutex::new(request.on_complete),
        }
    }

    /// Whether the stream has reached it.
    pub fn is_ready(&self) -> bool {
        self.outcome.is_ready()
    }

    pub(super) fn set_ready(&self) {
        self.outcome.set_ready();
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.outcome.is_over()
    }

    /// How it ended, or `None` while it runs.
    pub fn outcome(&self) -> Option<Result<()>> {
        self.outcome.get()
    }

    /// How long it may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What was asked, as in messages.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// What a message of this step says that was asked: in the vector forms whose counts only pairs of
    /// ranks know, the count is that of the block between the two.
    pub(super) fn fingerprint_of(&self, step: u32) -> Fingerprint {
        let schedule = self.program.schedule();
        let kind = schedule.steps.get(step as usize).map(|step| &step.kind);
        let count = kind.and_then(|kind| schedule.block_count(kind));
        Fingerprint { count: count.unwrap_or(self.fingerprint.count), ..self.fingerprint }
    }

    pub(super) fn set_flight(&self, number: u64) {
        self.flight.store(number, Ordering::Relaxed);
    }

    pub(super) fn flight(&self) -> u64 {
        self.flight.load(Ordering::Relaxed)
    }

    /// Never lets go of what keeps the buffers alive: a transport may still write to them.
    pub(super) fn leak_buffers(&self) {
        let mut keep = lock(&self.keep);
        std::mem::take(&mut *keep).into_iter().for_each(std::mem::forget);
    }

    /// Ends the operation. For whoever has it in hand: the driver, or who could not submit it.
    pub(super) fn finish(&self, result: Result<()>) {
        self.outcome.end(result, || {
            lock(&self.keep).clear();
            // Whoever has waited finds the stream past the operation.
            let on_complete = lock(&self.on_complete).take();
            if let Some(on_complete) = on_complete {
                on_complete();
            }
        });
    }
}
