//! The two faces of Kunlun's runtime: libxpurt alone, and P800's libcudart over it.
//!
//! All functions but the first two are called with the card chosen on the thread.

use std::ffi::c_void;
use std::fmt::Debug;
use std::sync::Arc;

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{DeviceFacts, HostCallback, PluginResult, Progress};
use iccl_vendor_support::{Direction, Entered, ThreadState};

use crate::sys;

/// Both sides and the length of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) to: *mut c_void,
    pub(crate) from: *const c_void,
    pub(crate) bytes: usize,
    pub(crate) direction: Direction,
}

/// A way to the cards.
pub(crate) trait Face: Send + Sync + Debug {
    /// The card that the thread has chosen.
    fn chosen(&self) -> PluginResult<i32>;
    /// Chooses a card for the thread.
    fn choose(&self, ordinal: i32) -> PluginResult<()>;

    /// What is known of a card.
    fn facts(&self, ordinal: i32) -> PluginResult<DeviceFacts>;

    /// Memory of the card, or pinned memory of the host.
    fn allocate(&self, bytes: usize, kind: MemoryKind) -> PluginResult<*mut c_void>;
    /// Frees it.
    ///
    /// # Safety
    /// It came from `allocate` with this kind, and nothing uses it.
    unsafe fn free(&self, pointer: *mut c_void, kind: MemoryKind) -> PluginResult<()>;
    /// What memory is that was not allocated here.
    fn foreign_kind(&self, ordinal: i32, pointer: *const c_void) -> PluginResult<MemoryKind>;

    /// Copies in the order of a stream.
    ///
    /// # Safety
    /// Both sides are what the direction says, until the stream is past the copy.
    unsafe fn copy(&self, stream: sys::Stream, copy: Copy) -> PluginResult<()>;

    fn stream_create(&self) -> PluginResult<sys::Stream>;
    /// After its work.
    fn stream_destroy(&self, stream: sys::Stream) -> PluginResult<()>;
    /// Refuses a stream on which nothing may be enqueued now, and is told that something is about to be.
    fn enqueue_on(&self, stream: sys::Stream) -> PluginResult<()>;
    /// Whether it is done.
    fn stream_query(&self, ordinal: i32, stream: sys::Stream) -> PluginResult<Progress>;
    fn host_function(&self, stream: sys::Stream, callback: HostCallback) -> PluginResult<()>;

    fn event_create(&self) -> PluginResult<sys::Event>;
    fn event_destroy(&self, event: sys::Event) -> PluginResult<()>;
    fn event_record(&self, event: sys::Event, stream: sys::Stream) -> PluginResult<()>;
    fn event_query(&self, ordinal: i32, event: sys::Event) -> PluginResult<Progress>;

    /// What the card met, found out by a stream on which there is nothing.
    fn health(&self, idle: sys::Stream) -> PluginResult<()>;
    /// What the runtime says of this thread's last failure, if it says anything.
    fn last_words(&self) -> Option<String>;
}

/// A handle, for other threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub(crate) *mut c_void);

// SAFETY: Kunlun's handles may be used by any thread that has chosen their card.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Of a number.
    pub(crate) fn of(number: u64) -> PluginResult<Self> {
        iccl_vendor_support::handle(number).map(Self)
    }

    /// As C has it.
    pub(crate) fn pointer(self) -> *mut c_void {
        self.0
    }

    /// As a number.
    pub(crate) fn number(self) -> u64 {
        self.0.expose_provenance() as u64
    }
}

/// A card of a face.
#[derive(Clone, Debug)]
pub(crate) struct Chip {
    pub(crate) face: Arc<dyn Face>,
    pub(crate) ordinal: i32,
}

impl Chip {
    /// Chooses the card on this thread until the answer is dropped.
    pub(crate) fn enter(&self) -> PluginResult<Entered<'_, Self>> {
        Entered::new(self)
    }

    /// Copies before it returns.
    ///
    /// # Safety
    /// Both sides are what the direction says. The card is chosen.
    pub(crate) unsafe fn copy_now(&self, own: Handle, copy: Copy) -> PluginResult<()> {
        // SAFETY: the caller promises it.
        unsafe { self.face.copy(own.0, copy)? };
        let is_done = || self.face.stream_query(self.ordinal, own.0);
        iccl_vendor_support::wait_until_done(iccl_vendor_support::Pace::STREAM, None, is_done)?;
        Ok(())
    }
}

impl ThreadState for Chip {
    /// The card that the thread had, if it was another one.
    type Saved = Option<i32>;

    fn enter(&self) -> PluginResult<Option<i32>> {
        let before = self.face.chosen()?;
        if before == self.ordinal {
            return Ok(None);
        }
        self.face.choose(self.ordinal)?;
        Ok(Some(before))
    }

    fn leave(&self, saved: Option<i32>) {
        if let Some(before) = saved
            && let Err(error) = self.face.choose(before)
        {
            tracing::error!(%error, "a thread's card could not be restored");
        }
    }
}
