//! Native calls on buffers that lie at no multiple of their elements' size: libraries refuse them, or fail on
//! the card. Such an operand is copied to memory of the engine's own before the call, and back after it.
//!
//! All of it goes on the stream of the native calls, so one piece of memory serves one call after the other.

use std::sync::Arc;

use iccl_plugin_api::MemoryKind;

use super::device::Card;
use super::native_operands::{Operand, Operands};
use crate::Result;
use crate::schedule::IslandCall;

/// What every element type divides.
const ALIGNMENT: u64 = 64;

/// Memory for operands that lie elsewhere than a library wants.
pub(super) struct Natural {
    card: Arc<dyn Card>,
    /// The last one is in use; those before it may still be read by what is on the stream.
    memories: Vec<(*mut u8, u64)>,
}

// SAFETY: the memory is the card's; only the thread that has this uses it.
unsafe impl Send for Natural {}

impl Natural {
    pub(super) fn new(card: &Arc<dyn Card>) -> Self {
        Self { card: Arc::clone(card), memories: Vec::new() }
    }

    /// Where a call is to find its operands, unless it is where they are. What it reads is on its way there.
    ///
    /// # Safety
    /// The operands stay as they are until `stream` is past the call.
    ///
    /// # Errors
    /// What the card says.
    pub(super) unsafe fn begin(
        &mut self,
        call: &IslandCall,
        given: &Operands,
        stream: u64,
    ) -> Result<Option<Operands>> {
        let size = call.dtype.size_bytes();
        let is_natural = |operand: &Operand| operand.address.addr().is_multiple_of(size);
        let (reads, writes) = (is_natural(&given.sent), is_natural(&given.received));
        if reads && writes {
            return Ok(None);
        }
        let first = if reads { 0 } else { given.sent.bytes.next_multiple_of(ALIGNMENT) };
        let memory = self.memory(first + if writes { 0 } else { given.received.bytes })?;
        let mut moved = given.clone();
        if !reads {
            moved.sent.address = memory;
            // SAFETY: the memory is as long, and not the caller's.
            unsafe { self.copy(stream, &moved.sent, &given.sent, size)? };
        }
        if !writes {
            moved.received.address = memory.wrapping_add(first as usize);
        }
        Ok(Some(moved))
    }

    /// After the call on `moved`: what it wrote is on its way to where it belongs.
    ///
    /// # Safety
    /// As [`Natural::begin`], which gave `moved`.
    ///
    /// # Errors
    /// What the card says.
    pub(super) unsafe fn end(
        &self,
        call: &IslandCall,
        moved: &Operands,
        given: &Operands,
        stream: u64,
    ) -> Result<()> {
        if moved.received.address == given.received.address {
            return Ok(());
        }
        // SAFETY: both are as long, and one is the engine's own.
        unsafe { self.copy(stream, &given.received, &moved.received, call.dtype.size_bytes()) }
    }

    /// Block by block: what lies between the blocks of a vector form stays as it is.
    unsafe fn copy(&self, stream: u64, to: &Operand, from: &Operand, size: usize) -> Result<()> {
        for (offset, bytes) in from.blocks(size as u64) {
            let to = to.address.wrapping_add(offset as usize);
            let from = from.address.wrapping_add(offset as usize).cast_const();
            let kind = MemoryKind::Device;
            // SAFETY: the caller says that both have room.
            unsafe { self.card.copy(stream, (to, kind), (from, kind), bytes)? };
        }
        Ok(())
    }

    fn memory(&mut self, bytes: u64) -> Result<*mut u8> {
        if let Some((memory, has)) = self.memories.last()
            && *has >= bytes
        {
            return Ok(*memory);
        }
        let memory = self.card.allocate(bytes, MemoryKind::Device)?;
        self.memories.push((memory, bytes));
        Ok(memory)
    }

    /// Gives the memory back.
    ///
    /// # Safety
    /// Nothing that was begun uses it any more.
    pub(super) unsafe fn free(self) {
        for (memory, _) in self.memories {
            // SAFETY: allocated here, and the caller says that nothing uses it.
            if let Err(error) = unsafe { self.card.free(memory) } {
                tracing::warn!(%error, "memory for native calls could not be freed");
            }
        }
    }
}
