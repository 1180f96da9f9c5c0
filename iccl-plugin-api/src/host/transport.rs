//! The view of a plugin's transport family, and an opened domain.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::device::microseconds;
use super::error::must_be_done;
use super::plugin::static_text;
use super::{CallError, call, missing};
use crate::sdk::{ChannelRequest, DomainRequest, Progress, TransportFacts};
use crate::tables::{
    Bytes, ChannelOptions, Completion, DomainOptions, ErrorInfo, Growing, LONGEST_ADDRESS,
    MemoryRegion, Message, TransportCapabilities, TransportTable,
};

/// A plugin's transport family. Free to copy.
#[derive(Clone, Copy, Debug)]
pub struct TransportView(pub(super) &'static TransportTable);

impl TransportView {
    /// The mandatory functions that a table lacks.
    pub(super) fn missing(table: &TransportTable) -> Vec<&'static str> {
        let mut missing = missing!(
            table,
            "transport.",
            [
                capabilities,
                open,
                address,
                channel_open,
                channel_state,
                post_send,
                post_receive,
                progress,
                arm,
                event_descriptor,
                quiesce,
                channel_close,
                close,
            ]
        );
        if table.wait.is_some() && table.wake.is_none() {
            missing.push("transport.wake");
        }
        if table.register_region.is_some() && table.deregister_region.is_none() {
            missing.push("transport.deregister_region");
        }
        missing
    }

    /// What the transport can do on this machine.
    ///
    /// # Errors
    /// What the plugin says; `Internal` if the answer makes no sense.
    pub fn facts(self) -> Result<TransportFacts, CallError> {
        const CALL: &str = "transport.capabilities";
        let mut value = TransportCapabilities::absent();
        let size = size_of::<TransportCapabilities>() as u64;
        let answer =
            call!(self.0, &mut ErrorInfo::new(), "transport.", capabilities(&raw mut value, size));
        must_be_done(CALL, answer)?;
        let name = static_text(CALL, value.name)?;
        if name.is_empty() {
            return Err(CallError::rules(CALL, "the tier has no name"));
        }
        Ok(TransportFacts {
            name,
            reach: value.reach,
            memory_kinds: value.memory_kinds,
            latency: Duration::from_nanos(value.latency_ns),
            bytes_per_us: value.bytes_per_us,
            largest_message: (value.largest_message > 0).then_some(value.largest_message),
        })
    }

    /// Whether domains can [`wait`](OpenDomain::wait).
    pub fn has_wait(self) -> bool {
        self.0.wait.is_some()
    }

    /// Whether domains can [`register`](OpenDomain::register) memory.
    pub fn has_register(self) -> bool {
        self.0.register_region.is_some()
    }

    /// Opens a domain and begins to listen.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn open(self, request: &DomainRequest<'_>) -> Result<OpenDomain, CallError> {
        let options = DomainOptions {
            communicator: request.communicator,
            rank: request.rank,
            ranks: request.ranks,
            local_ranks: request.local_ranks,
            reserved: 0,
            job_key: Bytes::borrow(request.job_key),
            interface: Bytes::borrow(request.interface.as_bytes()),
            handshake_timeout_us: microseconds(request.handshake_timeout),
            connect_timeout_us: microseconds(request.connect_timeout),
        };
        let mut handle = 0;
        let answer = call!(
            self.0,
            &mut ErrorInfo::new(),
            "transport.",
            open(&raw const options, size_of::<DomainOptions>() as u64, &raw mut handle)
        );
        must_be_done("transport.open", answer)?;
        Ok(OpenDomain {
            table: self.0,
            handle,
            open: Arc::new(Mutex::new(true)),
            error: ErrorInfo::new(),
        })
    }
}

/// An opened domain. Dropping it closes it and everything in it.
#[derive(Debug)]
pub struct OpenDomain {
    table: &'static TransportTable,
    handle: u64,
    /// False once the domain is closed. A waker holds it while it wakes.
    open: Arc<Mutex<bool>>,
    /// Where calls write what went wrong; kept, so that a call need not clear one.
    error: ErrorInfo,
}

impl OpenDomain {
    /// The bytes by which peers reach this domain.
    ///
    /// # Errors
    /// What the plugin says; `Internal` if it answers more than fit.
    pub fn address(&mut self) -> Result<Vec<u8>, CallError> {
        const CALL: &str = "transport.address";
        let mut bytes = vec![0; LONGEST_ADDRESS];
        let mut length = 0;
        let answer = call!(
            self.table,
            &mut self.error,
            "transport.",
            address(self.handle, bytes.as_mut_ptr(), LONGEST_ADDRESS as u64, &raw mut length)
        );
        must_be_done(CALL, answer)?;
        if length > LONGEST_ADDRESS as u64 {
            return Err(CallError::rules(CALL, format!("an address of {length} bytes")));
        }
        bytes.truncate(length as usize);
        Ok(bytes)
    }

    /// Begins to open a channel and gives its handle. Does not wait for the peer.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn channel_open(&mut self, request: &ChannelRequest<'_>) -> Result<u64, CallError> {
        let options = ChannelOptions {
            peer: request.peer,
            dial: u32::from(request.dial),
            channel: request.channel,
            link_digest: request.link_digest,
            address: Bytes::borrow(request.address),
        };
        let mut channel = 0;
        let answer = call!(
            self.table,
            &mut self.error,
            "transport.",
            channel_open(
                self.handle,
                &raw const options,
                size_of::<ChannelOptions>() as u64,
                &raw mut channel,
            )
        );
        must_be_done("transport.channel_open", answer)?;
        Ok(channel)
    }

    /// Whether the channel is connected and the peer authenticated.
    ///
    /// # Errors
    /// Why it failed.
    pub fn channel_state(&mut self, channel: u64) -> Result<Progress, CallError> {
        call!(self.table, &mut self.error, "transport.", channel_state(self.handle, channel))
    }

    /// Posts a send.
    ///
    /// # Safety
    /// The message's segments are valid during the call; what they point to is readable and
    /// unchanged until the completion, or until a `quiesce` of the channel succeeded.
    ///
    /// # Errors
    /// Why the channel failed; no completion follows then.
    #[inline]
    pub unsafe fn post_send(&mut self, channel: u64, message: &Message) -> Result<(), CallError> {
        let answer = call!(
            self.table,
            &mut self.error,
            "transport.",
            post_send(self.handle, channel, message)
        );
        must_be_done("transport.post_send", answer)
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// As for [`OpenDomain::post_send`], but what the segments point to is writable, and read or
    /// written by nobody else.
    ///
    /// # Errors
    /// Why the channel failed; no completion follows then.
    #[inline]
    pub unsafe fn post_receive(
        &mut self,
        channel: u64,
        message: &Message,
    ) -> Result<(), CallError> {
        let answer = call!(
            self.table,
            &mut self.error,
            "transport.",
            post_receive(self.handle, channel, message)
        );
        must_be_done("transport.post_receive", answer)
    }

    /// Moves what can be moved without waiting, and gives the completions written to the front of
    /// `room`.
    ///
    /// # Errors
    /// What ended the whole domain.
    #[inline]
    pub fn progress<'a>(
        &mut self,
        room: &'a mut [Completion],
    ) -> Result<&'a [Completion], CallError> {
        const CALL: &str = "transport.progress";
        let capacity = u32::try_from(room.len()).unwrap_or(u32::MAX);
        let mut count = 0;
        let answer = call!(
            self.table,
            &mut self.error,
            "transport.",
            progress(self.handle, room.as_mut_ptr(), capacity, &raw mut count)
        );
        must_be_done(CALL, answer)?;
        room.get(..count as usize).ok_or_else(|| {
            CallError::rules(CALL, format!("{count} completions where {capacity} have room"))
        })
    }

    /// Prepares to sleep: `Done` if `progress` has something to do now, else `Pending`, after which
    /// the descriptor becomes readable when it has.
    ///
    /// # Errors
    /// What ended the whole domain.
    pub fn arm(&mut self) -> Result<Progress, CallError> {
        call!(self.table, &mut self.error, "transport.", arm(self.handle))
    }

    /// A descriptor for `poll`, valid as long as the domain.
    ///
    /// # Errors
    /// What the plugin says; `Internal` if it answers none.
    pub fn event_descriptor(&mut self) -> Result<RawFd, CallError> {
        const CALL: &str = "transport.event_descriptor";
        let mut descriptor = -1;
        let answer = call!(
            self.table,
            &mut self.error,
            "transport.",
            event_descriptor(self.handle, &raw mut descriptor)
        );
        must_be_done(CALL, answer)?;
        if descriptor < 0 {
            return Err(CallError::rules(CALL, format!("answered the descriptor {descriptor}")));
        }
        Ok(descriptor)
    }

    /// Waits until `progress` has something to do, the waker is used, or `timeout` has passed.
    ///
    /// # Errors
    /// What ended the whole domain; `NotSupported` if the plugin has no such function.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), CallError> {
        let answer = call!(
            self.table,
            &mut self.error,
            "transport.",
            wait(self.handle, microseconds(timeout))
        );
        must_be_done("transport.wait", answer)
    }

    /// A waker for [`OpenDomain::wait`], for any thread. It outlives the domain harmlessly.
    pub fn waker(&self) -> DomainWaker {
        DomainWaker { table: self.table, handle: self.handle, open: Arc::clone(&self.open) }
    }

    /// Registers memory for the NIC and gives a key for segments.
    ///
    /// # Safety
    /// The region is memory as its fields say, and stays so until `deregister` of the key.
    ///
    /// # Errors
    /// What the plugin says; `NotSupported` if it has no such function; `Internal` for the key 0.
    pub unsafe fn register(&mut self, region: &MemoryRegion) -> Result<u64, CallError> {
        let mut key = 0;
        let size = size_of::<MemoryRegion>() as u64;
        let answer = call!(
            self.table,
            &mut self.error,
            "transport.",
            register_region(self.handle, region, size, &raw mut key)
        );
        must_be_done("transport.register_region", answer)?;
        if key == 0 {
            return Err(CallError::rules("transport.register_region", "answered the key 0"));
        }
        Ok(key)
    }

    /// Takes back what `register` gave.
    ///
    /// # Errors
    /// What the plugin says; `NotSupported` if it has no such function.
    pub fn deregister(&mut self, key: u64) -> Result<(), CallError> {
        let answer =
            call!(self.table, &mut self.error, "transport.", deregister_region(self.handle, key));
        must_be_done("transport.deregister_region", answer)
    }

    /// Stops a channel: after `Ok` no posted memory is touched any more.
    ///
    /// # Errors
    /// `Timeout` if that cannot be proven in time. The memory may still be touched then.
    pub fn quiesce(&mut self, channel: u64, timeout: Duration) -> Result<(), CallError> {
        let answer = call!(
            self.table,
            &mut self.error,
            "transport.",
            quiesce(self.handle, channel, microseconds(timeout))
        );
        must_be_done("transport.quiesce", answer)
    }

    /// Frees a channel; the peer sees an orderly end after all completed sends.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn channel_close(&mut self, channel: u64) -> Result<(), CallError> {
        let answer =
            call!(self.table, &mut self.error, "transport.", channel_close(self.handle, channel));
        must_be_done("transport.channel_close", answer)
    }

    /// Closes the domain and says what went wrong, which dropping can't.
    ///
    /// # Errors
    /// What the plugin says; the domain is gone all the same.
    pub fn close(mut self) -> Result<(), CallError> {
        self.close_once()
    }

    /// Closes the domain unless it is closed.
    fn close_once(&mut self) -> Result<(), CallError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *open, false) {
            return Ok(());
        }
        let answer = call!(self.table, &mut self.error, "transport.", close(self.handle));
        must_be_done("transport.close", answer)
    }
}

impl Drop for OpenDomain {
    fn drop(&mut self) {
        if let Err(error) = self.close_once() {
            tracing::warn!(%error, "a transport domain could not be closed");
        }
    }
}

/// Wakes a domain that waits, from any thread.
#[derive(Debug, Clone)]
pub struct DomainWaker {
    table: &'static TransportTable,
    handle: u64,
    open: Arc<Mutex<bool>>,
}

impl DomainWaker {
    /// Makes a wait that runs now, or the next one, return. Does nothing once the domain is closed.
    ///
    /// # Errors
    /// What the plugin says; `NotSupported` if it has no such function.
    pub fn wake(&self) -> Result<(), CallError> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if !*open {
            return Ok(());
        }
        let answer = call!(self.table, &mut ErrorInfo::new(), "transport.", wake(self.handle));
        must_be_done("transport.wake", answer)
    }
}
