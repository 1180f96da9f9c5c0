//! Events: a place in a stream, with the time at which it was reached.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::Refusal;
use crate::peer::{FileAddress, View, anonymous_file};
use crate::stream::Point;

const PAGE_BYTES: usize = 4096;

/// What an event is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventKind {
    /// It has no time.
    pub without_time: bool,
    /// Other processes may wait for it.
    pub shared: bool,
}

/// An event.
pub struct Event {
    pub(crate) device: u32,
    pub(crate) kind: EventKind,
    record: Mutex<Option<Record>>,
    shared: Option<Arc<Shared>>,
}

#[derive(Clone)]
struct Record {
    point: Point,
    time: Arc<OnceLock<Instant>>,
}

/// What other processes see of an event: how often it was recorded, and which record was reached.
pub(crate) struct Shared {
    file: OwnedFd,
    view: View,
}

/// An event's name for other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventHandle(FileAddress);

impl EventHandle {
    /// Its length in bytes.
    pub const BYTES: usize = FileAddress::BYTES;

    /// As bytes.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0.to_bytes()
    }

    /// From bytes.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(FileAddress::from_bytes(bytes))
    }
}

impl Shared {
    #[allow(clippy::cast_ptr_alignment, reason = "a view starts at a page")]
    fn counter(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the first 16 bytes of the view are two counters, used as nothing else by any process.
        unsafe { AtomicU64::from_ptr(self.view.address().cast::<u64>().add(index)) }
    }

    fn recorded(&self) -> &AtomicU64 {
        self.counter(0)
    }

    fn reached(&self) -> &AtomicU64 {
        self.counter(1)
    }
}

impl Event {
    pub(crate) fn new(device: u32, kind: EventKind) -> Result<Self, Refusal> {
        let shared = if kind.shared {
            let file = anonymous_file("sim-event", PAGE_BYTES as u64);
            let file = file.map_err(|_| Refusal::System)?;
            let view = View::new(file.as_fd(), PAGE_BYTES).map_err(|_| Refusal::System)?;
            Some(Arc::new(Shared { file, view }))
        } else {
            None
        };
        Ok(Self { device, kind, record: Mutex::new(None), shared })
    }

    /// Another process's event.
    pub(crate) fn open(device: u32, handle: EventHandle) -> Result<Self, Refusal> {
        let file = handle.0.open().map_err(|_| Refusal::InvalidHandle)?;
        let view = View::new(file.as_fd(), PAGE_BYTES).map_err(|_| Refusal::System)?;
        let kind = EventKind { without_time: true, shared: true };
        let shared = Some(Arc::new(Shared { file, view }));
        Ok(Self { device, kind, record: Mutex::new(None), shared })
    }

    pub(crate) fn export(&self) -> Result<EventHandle, Refusal> {
        let shared = self.shared.as_ref().ok_or(Refusal::InvalidHandle)?;
        FileAddress::of(&shared.file).map(EventHandle).map_err(|_| Refusal::System)
    }

    /// Makes the record: `place` puts the given action into a stream.
    pub(crate) fn record(&self, place: impl FnOnce(crate::Action) -> Point) {
        let time = Arc::new(OnceLock::new());
        let reached = Arc::clone(&time);
        let shared = self.shared.clone();
        let number =
            shared.as_ref().map_or(0, |one| one.recorded().fetch_add(1, Ordering::AcqRel) + 1);
        let point = place(Box::new(move || {
            let _ = reached.set(Instant::now());
            if let Some(shared) = shared {
                shared.reached().fetch_max(number, Ordering::AcqRel);
            }
        }));
        *self.record.lock().unwrap_or_else(PoisonError::into_inner) = Some(Record { point, time });
    }

    /// Whether its last record was reached; true if there is none.
    pub fn is_reached(&self) -> bool {
        match (self.last(), &self.shared) {
            (Some(record), None) => record.point.is_reached(),
            (_, Some(shared)) => {
                shared.reached().load(Ordering::Acquire)
                    >= shared.recorded().load(Ordering::Acquire)
            }
            (None, None) => true,
        }
    }

    /// Something that waits for its last record as it is now.
    pub(crate) fn waiter(&self) -> Option<Box<dyn FnOnce() + Send>> {
        if let Some(shared) = self.shared.clone() {
            let number = shared.recorded().load(Ordering::Acquire);
            return Some(Box::new(move || {
                while shared.reached().load(Ordering::Acquire) < number {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }));
        }
        let record = self.last()?;
        Some(Box::new(move || record.point.wait()))
    }

    /// The time from this event to a later one.
    pub(crate) fn until(&self, end: &Self) -> Result<f32, Refusal> {
        let (Some(from), Some(to)) = (self.last(), end.last()) else {
            return Err(Refusal::InvalidHandle);
        };
        if self.kind.without_time || end.kind.without_time {
            return Err(Refusal::InvalidHandle);
        }
        let (Some(from), Some(to)) = (from.time.get(), to.time.get()) else {
            return Err(Refusal::NotReady);
        };
        let later = to.saturating_duration_since(*from).as_secs_f32();
        let earlier = from.saturating_duration_since(*to).as_secs_f32();
        Ok((later - earlier) * 1000.0)
    }

    fn last(&self) -> Option<Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
