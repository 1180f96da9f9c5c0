//! A plugin's transport as the engine sees it. Nothing here allocates on the way of a message.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use iccl_plugin_api::host::{CallError, OpenDomain};
use iccl_plugin_api::sdk::{ChannelRequest, DomainRequest, Envelope, Progress};
use iccl_plugin_api::tables::{Completion, MemoryRegion, Message, Segment, reach};

use super::domain::{Domain, Wake};
use crate::plugins::{TransportPlugin, call_error};
use crate::{Error, Result};

/// Completions that one call of the plugin can give.
const ROOM: usize = 64;

/// A domain of a transport plugin.
#[derive(Debug)]
pub struct PluginDomain {
    plugin: &'static str,
    tier: &'static str,
    domain: OpenDomain,
    /// Kept, since the plugin writes into it and it must hold valid completions before.
    room: Box<[Completion; ROOM]>,
    event_descriptor: RawFd,
    has_wait: bool,
    registers: bool,
}

impl PluginDomain {
    /// Opens a domain of `transport` and begins to listen.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn open(transport: &TransportPlugin, request: &DomainRequest<'_>) -> Result<Self> {
        let plugin = transport.plugin().name();
        let mut domain = transport.open(request)?;
        let event_descriptor =
            domain.event_descriptor().map_err(|error| call_error(plugin, error))?;
        Ok(Self {
            plugin,
            tier: transport.tier(),
            domain,
            room: Box::new([Completion::EMPTY; ROOM]),
            event_descriptor,
            has_wait: transport.view().has_wait(),
            registers: transport.facts().reach & reach::FABRIC != 0
                && transport.view().has_register(),
        })
    }

    #[cold]
    fn error(&self, error: CallError) -> Error {
        call_error(self.plugin, error)
    }
}

/// The plugin's form of a message; it copies the segments before the call returns.
#[inline]
fn message(token: u64, segments: &[Segment], envelope: &Envelope) -> Message {
    Message {
        token,
        segments: if segments.is_empty() { std::ptr::null() } else { segments.as_ptr() },
        segment_count: segments.len() as u64,
        envelope: *envelope,
    }
}

impl Domain for PluginDomain {
    fn name(&self) -> &str {
        self.tier
    }

    fn address(&mut self) -> Result<Vec<u8>> {
        self.domain.address().map_err(|error| call_error(self.plugin, error))
    }

    fn channel_open(&mut self, request: &ChannelRequest<'_>) -> Result<u64> {
        self.domain.channel_open(request).map_err(|error| self.error(error))
    }

    fn channel_state(&mut self, channel: u64) -> Result<Progress> {
        self.domain.channel_state(channel).map_err(|error| self.error(error))
    }

    unsafe fn post_send(
        &mut self,
        channel: u64,
        token: u64,
        segments: &[Segment],
        envelope: &Envelope,
    ) -> Result<()> {
        let message = message(token, segments, envelope);
        // SAFETY: the caller promises what the plugin asks for; the segments outlive the call.
        unsafe { self.domain.post_send(channel, &message) }.map_err(|error| self.error(error))
    }

    unsafe fn post_receive(
        &mut self,
        channel: u64,
        token: u64,
        segments: &[Segment],
        envelope: &Envelope,
    ) -> Result<()> {
        let message = message(token, segments, envelope);
        // SAFETY: as for a send.
        unsafe { self.domain.post_receive(channel, &message) }.map_err(|error| self.error(error))
    }

    fn progress(&mut self, completions: &mut Vec<Completion>) -> Result<()> {
        loop {
            let count = match self.domain.progress(self.room.as_mut_slice()) {
                Ok(ended) => {
                    completions.extend_from_slice(ended);
                    ended.len()
                }
                Err(error) => return Err(call_error(self.plugin, error)),
            };
            // A full room may have left some behind.
            if count < ROOM {
                return Ok(());
            }
        }
    }

    fn arm(&mut self) -> Result<Progress> {
        self.domain.arm().map_err(|error| self.error(error))
    }

    fn event_descriptor(&self) -> RawFd {
        self.event_descriptor
    }

    fn has_wait(&self) -> bool {
        self.has_wait
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.domain.wait(timeout).map_err(|error| self.error(error))
    }

    fn waker(&self) -> Option<Wake> {
        if !self.has_wait {
            return None;
        }
        let (waker, plugin) = (self.domain.waker(), self.plugin);
        Some(Arc::new(move || {
            if let Err(error) = waker.wake() {
                tracing::warn!(plugin, %error, "a sleeping domain could not be woken");
            }
        }))
    }

    fn quiesce(&mut self, channel: u64, timeout: Duration) -> Result<()> {
        self.domain.quiesce(channel, timeout).map_err(|error| self.error(error))
    }

    fn channel_close(&mut self, channel: u64) -> Result<()> {
        self.domain.channel_close(channel).map_err(|error| self.error(error))
    }

    fn registers(&self) -> bool {
        self.registers
    }

    unsafe fn register(&mut self, region: &MemoryRegion) -> Result<u64> {
        // SAFETY: the caller promises what the plugin asks for.
        unsafe { self.domain.register(region) }.map_err(|error| self.error(error))
    }

    fn deregister(&mut self, key: u64) -> Result<()> {
        self.domain.deregister(key).map_err(|error| self.error(error))
    }
}
