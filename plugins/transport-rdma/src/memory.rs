//! Memory of a channel's own: slots for what is received and sent, and blocks through which payloads
//! go whose own memory is not registered. One allocation, registered as a whole.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult, PostedMessage};
use iccl_plugin_api::tables::Segment;

use crate::regions::Region;
use crate::verbs::{Device, Run};

/// A block of bytes that begins at a page.
#[derive(Debug)]
pub(crate) struct Block {
    pointer: *mut u8,
    layout: Layout,
    region: Region,
}

// SAFETY: the memory belongs to the block, which one thread at a time uses.
unsafe impl Send for Block {}

impl Block {
    /// # Errors
    /// What the driver says.
    pub(crate) fn new(device: &mut dyn Device, limit: u64, bytes: usize) -> PluginResult<Self> {
        let refuse = || PluginError::new(Status::OutOfResources, format!("no {bytes} bytes"));
        let layout = Layout::from_size_align(bytes, 4096).map_err(|_| refuse())?;
        // SAFETY: the size is not 0.
        let pointer = unsafe { alloc_zeroed(layout) };
        if pointer.is_null() {
            return Err(refuse());
        }
        // SAFETY: the memory stays until the block is freed, which takes the region back before.
        match unsafe { Region::register(device, limit, pointer as u64, bytes as u64) } {
            Ok(region) => Ok(Self { pointer, layout, region }),
            Err(error) => {
                // SAFETY: allocated above, with this layout.
                unsafe { dealloc(pointer, layout) };
                Err(error)
            }
        }
    }

    /// The bytes from `at` on. The caller knows that nobody else uses them now.
    pub(crate) fn bytes(&mut self, at: usize, length: usize) -> &mut [u8] {
        assert!(at + length <= self.layout.size());
        // SAFETY: it lies in the block, and `self` is borrowed. A device writes only to bytes that were
        // posted, which nobody asks for until the work has ended.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(at), length) }
    }

    /// The bytes from `at` on as devices know them: key of this side, key of the peer's side. `None`
    /// where a cut of the registration lies between.
    pub(crate) fn run(&self, at: usize, length: usize) -> Option<(Run, u32)> {
        let address = self.pointer as u64 + at as u64;
        let (run, registered) = self.region.run(address, length as u64)?;
        let here = Run { address, length: length as u32, key: registered.local_key };
        (run == length as u64).then_some((here, registered.remote_key))
    }

    /// Takes the registration back and frees the memory. If the driver refuses, it keeps the memory.
    pub(crate) fn free(mut self, device: &mut dyn Device) {
        if let Err(error) = self.region.take_back(device) {
            tracing::warn!(%error, "memory stays registered, and is not freed");
            return;
        }
        // SAFETY: allocated with this layout, and no device knows it any more.
        unsafe { dealloc(self.pointer, self.layout) };
    }
}

/// A posted message. What its segments point to is lent until its completion.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) token: u64,
    pub(crate) length: u64,
    pub(crate) envelope: iccl_plugin_api::sdk::Envelope,
    segments: Vec<Segment>,
}

// SAFETY: the segments are lent to the domain, not to a thread.
unsafe impl Send for Message {}

impl Message {
    /// # Errors
    /// See [`PostedMessage::checked_length`].
    pub(crate) fn posted(message: &PostedMessage<'_>) -> PluginResult<Self> {
        let length = message.checked_length()?;
        let segments =
            message.segments.iter().copied().filter(|segment| segment.length > 0).collect();
        Ok(Self { token: message.token, length, envelope: *message.envelope, segments })
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Whether every byte has a key.
    pub(crate) fn is_registered(&self) -> bool {
        !self.segments.is_empty() && self.segments.iter().all(|segment| segment.key != 0)
    }

    /// The segment's run that begins at byte `offset` of the payload: address, bytes, key.
    pub(crate) fn at(&self, mut offset: u64) -> Option<(u64, u64, u64)> {
        for segment in &self.segments {
            if offset < segment.length {
                return Some((
                    segment.address as u64 + offset,
                    segment.length - offset,
                    segment.key,
                ));
            }
            offset -= segment.length;
        }
        None
    }

    /// Copies bytes of the payload from `offset` on.
    ///
    /// # Safety
    /// The message was posted as a send and is not over.
    pub(crate) unsafe fn read(&self, offset: u64, into: &mut [u8]) {
        let mut done = 0;
        while let Some((address, length, _)) =
            self.at(offset + done as u64).filter(|_| done < into.len())
        {
            let take = length.min((into.len() - done) as u64) as usize;
            // SAFETY: the segment is lent to us for reading, and `into` is another's memory.
            unsafe {
                let from = address as *const u8;
                std::ptr::copy_nonoverlapping(from, into[done..].as_mut_ptr(), take);
            }
            done += take;
        }
    }

    /// Copies to the payload from `offset` on.
    ///
    /// # Safety
    /// The message was posted as a receive and is not over.
    pub(crate) unsafe fn write(&self, offset: u64, from: &[u8]) {
        let mut done = 0;
        while let Some((address, length, _)) =
            self.at(offset + done as u64).filter(|_| done < from.len())
        {
            let take = length.min((from.len() - done) as u64) as usize;
            // SAFETY: the segment is lent to us for writing, and `from` is another's memory.
            unsafe {
                std::ptr::copy_nonoverlapping(from[done..].as_ptr(), address as *mut u8, take);
            }
            done += take;
        }
    }
}
