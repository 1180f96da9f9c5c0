//! One card.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

use crate::stream::{Stream, StreamKind};

/// One card, as this process sees it.
pub struct Device {
    /// Its number in the host; differs from its place in the list if only some cards are visible.
    pub(crate) physical: u32,
    /// Its default stream.
    pub(crate) default_stream: Arc<Stream>,
    /// Held while work is put into a stream, so that default and blocking streams agree on an order.
    pub(crate) order: Mutex<()>,
    /// Held while a host function runs, if all streams share a thread for them.
    pub(crate) host_thread: Mutex<()>,
    /// Cards that may be reached directly.
    pub(crate) peers: Mutex<BTreeSet<u32>>,
    /// Held by the call of a library that the card works on, where it works on one at a time.
    pub(crate) call: Mutex<()>,
    sticky: AtomicI32,
}

impl Device {
    pub(crate) fn new(index: u32, physical: u32, stream: u64) -> Self {
        Self {
            physical,
            default_stream: Stream::new(stream, index, StreamKind::Default),
            order: Mutex::new(()),
            host_thread: Mutex::new(()),
            peers: Mutex::default(),
            call: Mutex::new(()),
            sticky: AtomicI32::new(0),
        }
    }

    /// Its number in the host.
    pub fn physical(&self) -> u32 {
        self.physical
    }

    /// The error it is in, 0 if none. Nothing runs on it any more.
    pub fn error(&self) -> i32 {
        self.sticky.load(Ordering::Acquire)
    }

    /// Puts it into an error that stays. The first one counts.
    pub fn break_with(&self, code: i32) {
        let _ = self.sticky.compare_exchange(0, code, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// After a reset it works again.
    pub fn reset(&self) {
        self.sticky.store(0, Ordering::Release);
    }
}
