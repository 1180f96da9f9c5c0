//! The engine's view of a device whose memory the host cannot read: a card. Whether a plugin stands
//! behind it or (in tests) a device in the same process.
//!
//! What lives here: the functions that the engine needs of a card ([`Card`]), and a stream of the engine's
//! own with what follows when its work has landed ([`CardStream`]). What is copied when is told in
//! `staging`.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::Progress;
use iccl_plugin_api::tables::MemoryRegion;

use super::fork::ForkGuard;
use crate::{Error, ErrorKind, Result};

/// A card as the engine uses it. Any thread may call; calls for one stream are made by one thread at a
/// time.
///
/// The contract of each function is that of the function of the same name in
/// [`iccl_plugin_api::tables::DeviceTable`]. Errors name the device, the plugin and the call.
#[allow(missing_docs, clippy::missing_errors_doc, reason = "documented once, in the plugin ABI")]
pub trait Card: Send + Sync {
    /// For messages: `nvidia:0 (NVIDIA H200)`.
    fn name(&self) -> &str;
    fn allocate(&self, bytes: u64, kind: MemoryKind) -> Result<*mut u8>;
    /// # Safety
    /// `pointer` came from `allocate`, is freed once, and nothing uses it.
    unsafe fn free(&self, pointer: *mut u8) -> Result<()>;
    fn stream_create(&self) -> Result<u64>;
    /// May block until the stream's work is done.
    fn stream_destroy(&self, stream: u64) -> Result<()>;
    fn stream_query(&self, stream: u64) -> Result<Progress>;
    fn stream_synchronize(&self, stream: u64, timeout: Duration) -> Result<()>;
    /// # Safety
    /// Both sides are memory of the given kinds, `bytes` long, that do not overlap, and stay valid until
    /// the stream is past the copy.
    unsafe fn copy(
        &self,
        stream: u64,
        destination: (*mut u8, MemoryKind),
        source: (*const u8, MemoryKind),
        bytes: u64,
    ) -> Result<()>;
    /// Whether there are events; where there are none, a stream is asked as a whole.
    fn has_events(&self) -> bool;
    fn event_create(&self) -> Result<u64>;
    fn event_destroy(&self, event: u64) -> Result<()>;
    fn event_record(&self, event: u64, stream: u64) -> Result<()>;
    fn event_query(&self, event: u64) -> Result<Progress>;
    /// At which addresses a region for a NIC begins and ends; `None` if it gives its memory to none.
    fn region_alignment(&self) -> Option<u64> {
        None
    }
    fn export_region(&self, pointer: *mut u8, bytes: u64) -> Result<MemoryRegion> {
        let text = format!("{}: {bytes} bytes at {pointer:p} are for no NIC", self.name());
        Err(Error::new(ErrorKind::NotSupported, text))
    }
    fn release_region(&self, region: &MemoryRegion) -> Result<()> {
        let text = format!("{} gave no region {}", self.name(), region.cookie);
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }
    /// Makes what a NIC wrote visible to the card.
    fn flush(&self, pointer: *mut u8, bytes: u64) -> Result<()> {
        let _ = (pointer, bytes);
        Ok(())
    }
    /// Whether a stream can call the host.
    fn calls_host(&self) -> bool;
    /// # Safety
    /// `function(user)` may be called once, on any thread, until the stream is past it.
    unsafe fn host_function(
        &self,
        stream: u64,
        function: unsafe extern "C" fn(user: *mut c_void),
        user: *mut c_void,
    ) -> Result<()>;
    /// The error that the card met by itself, if any.
    fn async_error(&self) -> Result<()>;
}

/// A stream of a card that only the engine uses, and what follows when its work has landed. Events are
/// made when they are first needed and used again.
pub struct CardStream<After> {
    card: Arc<dyn Card>,
    handle: u64,
    /// What follows, in the order of the stream, each with the event behind its work, if there is
    /// one.
    under_way: VecDeque<(Option<u64>, After)>,
    idle_events: Vec<u64>,
    /// Whether it is known that nothing of it touches memory any more.
    at_rest: bool,
    fork: ForkGuard,
}

impl<After> CardStream<After> {
    /// A stream without work.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn new(card: &Arc<dyn Card>) -> Result<Self> {
        let card = Arc::clone(card);
        let handle = card.stream_create()?;
        let (under_way, idle_events) = (VecDeque::new(), Vec::new());
        Ok(Self { card, handle, under_way, idle_events, at_rest: true, fork: ForkGuard::new() })
    }

    /// The plugin's handle, to enqueue work on.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// `after` follows when all that was enqueued until now has landed. It is kept in any case: what it
    /// holds is not let go while the card may use it.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn then(&mut self, after: After) -> Result<()> {
        self.at_rest = false;
        let recorded = self.record();
        let (event, outcome) = match recorded {
            Ok(event) => (event, Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.under_way.push_back((event, after));
        outcome
    }

    fn record(&mut self) -> Result<Option<u64>> {
        if !self.card.has_events() {
            return Ok(None);
        }
        let event = match self.idle_events.pop() {
            Some(event) => event,
            None => self.card.event_create()?,
        };
        match self.card.event_record(event, self.handle) {
            Ok(()) => Ok(Some(event)),
            Err(error) => {
                self.idle_events.push(event);
                Err(error)
            }
        }
    }

    /// Whether the oldest work that something follows has landed.
    ///
    /// # Errors
    /// What the plugin says: the copy failed, or the card.
    pub fn has_landed(&self) -> Result<bool> {
        let Some((event, _)) = self.under_way.front() else { return Ok(false) };
        let progress = match *event {
            None => self.card.stream_query(self.handle)?,
            Some(event) => self.card.event_query(event)?,
        };
        Ok(progress == Progress::Done)
    }

    /// What follows the oldest work, if that has landed.
    ///
    /// # Errors
    /// As [`CardStream::has_landed`].
    pub fn next_landed(&mut self) -> Result<Option<After>> {
        if !self.has_landed()? {
            return Ok(None);
        }
        let Some((event, after)) = self.under_way.pop_front() else { return Ok(None) };
        self.idle_events.extend(event);
        Ok(Some(after))
    }

    /// Whether something is to follow.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Waits until nothing of the stream touches memory any more, and forgets what would have followed.
    ///
    /// # Errors
    /// `Timeout`, or what the plugin says; then its work may still touch memory.
    pub fn rest(&mut self, timeout: Duration) -> Result<()> {
        self.card.stream_synchronize(self.handle, timeout)?;
        self.at_rest = true;
        self.idle_events.extend(self.under_way.drain(..).filter_map(|(event, _)| event));
        Ok(())
    }
}

impl<After> Drop for CardStream<After> {
    fn drop(&mut self) {
        // In a child of a fork the card is left alone.
        if self.fork.check().is_err() {
            return;
        }
        let card = &self.card;
        // A stream that did not come to rest may hold up whoever destroys it for ever.
        let undone = !self.under_way.is_empty();
        if undone && !self.at_rest && card.stream_query(self.handle).ok() != Some(Progress::Done) {
            tracing::warn!(device = card.name(), "a stream that does not come to rest is left");
            return;
        }
        let events = self.under_way.drain(..).filter_map(|(event, _)| event);
        for event in events.chain(self.idle_events.drain(..)) {
            if let Err(error) = card.event_destroy(event) {
                tracing::warn!(%error, "an event could not be destroyed");
            }
        }
        if let Err(error) = card.stream_destroy(self.handle) {
            tracing::warn!(%error, "a stream could not be destroyed");
        }
    }
}
