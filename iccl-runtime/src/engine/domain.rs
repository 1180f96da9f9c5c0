//! The engine's view of a transport: what it needs of a domain, whether a plugin stands behind it or
//! (in tests) a transport in the same process.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use iccl_plugin_api::sdk::{ChannelRequest, Envelope, Progress};
use iccl_plugin_api::tables::{Completion, MemoryRegion, Segment};

use crate::{Error, ErrorKind, Result};

/// Wakes a sleeping domain from any thread.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// One communicator's use of one transport. Called by one thread at a time.
///
/// The contract of each function is that of the function of the same name in
/// [`iccl_plugin_api::tables::TransportTable`].
#[allow(missing_docs, clippy::missing_errors_doc, reason = "documented once, in the plugin ABI")]
pub trait Domain: Send {
    /// The tier's name: `shm`, `tcp`, …
    fn name(&self) -> &str;
    fn address(&mut self) -> Result<Vec<u8>>;
    fn channel_open(&mut self, request: &ChannelRequest<'_>) -> Result<u64>;
    fn channel_state(&mut self, channel: u64) -> Result<Progress>;
    /// # Safety
    /// What the segments point to is readable and unchanged until the completion.
    unsafe fn post_send(
        &mut self,
        channel: u64,
        token: u64,
        segments: &[Segment],
        envelope: &Envelope,
    ) -> Result<()>;
    /// # Safety
    /// What the segments point to is writable, and used by nobody else until the completion.
    unsafe fn post_receive(
        &mut self,
        channel: u64,
        token: u64,
        segments: &[Segment],
        envelope: &Envelope,
    ) -> Result<()>;
    /// Appends completions.
    fn progress(&mut self, completions: &mut Vec<Completion>) -> Result<()>;
    fn arm(&mut self) -> Result<Progress>;
    fn event_descriptor(&self) -> RawFd;
    /// Absent in a transport: the engine polls the descriptor instead.
    fn has_wait(&self) -> bool;
    fn wait(&mut self, timeout: Duration) -> Result<()>;
    fn waker(&self) -> Option<Wake>;
    fn quiesce(&mut self, channel: u64, timeout: Duration) -> Result<()>;
    fn channel_close(&mut self, channel: u64) -> Result<()>;
    /// Whether it moves bytes by NICs that reach registered memory by themselves.
    fn registers(&self) -> bool {
        false
    }
    /// # Safety
    /// The region is memory as its fields say, and stays so until `deregister` of the key.
    unsafe fn register(&mut self, region: &MemoryRegion) -> Result<u64> {
        let _ = region;
        Err(Error::new(ErrorKind::NotSupported, format!("{} registers no memory", self.name())))
    }
    fn deregister(&mut self, key: u64) -> Result<()> {
        Err(Error::new(ErrorKind::NotSupported, format!("{} gave no key {key}", self.name())))
    }
    /// What one more look may tell about a failed channel, in the transport's own words.
    fn failure(&mut self, channel: u64) -> Option<String> {
        self.channel_state(channel).err().map(|error| error.to_string())
    }
}
