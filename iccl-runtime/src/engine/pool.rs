//! Memory of one kind that a card gives: pinned host memory, between its own memory and the transports,
//! or its own. Taken and given back, and never allocated per call once it is warm. The pinned memory is
//! shared by the communicators of the card.
//!
//! A block is either a **right** (each queue of messages and each local work has a right to one, so that
//! it can always go on) or taken from the **shared** part, which is bounded and optional.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use iccl_plugin_api::MemoryKind;

use super::device::Card;
use super::fork::ForkGuard;
use super::operation::Allocation;
use crate::Result;
use crate::lock::lock;

/// Idle blocks that are kept for later use, in bytes altogether.
const KEPT_BYTES: u64 = 256 << 20;
/// The smallest block.
const LEAST_BYTES: u64 = 4 << 10;
/// Blocks up to this length are powers of two, longer ones multiples of it.
const COARSE_BYTES: u64 = 1 << 20;

/// Memory of one kind of one card.
pub struct CardPool {
    card: Arc<dyn Card>,
    kind: MemoryKind,
    state: Mutex<State>,
    fork: ForkGuard,
}

#[derive(Default)]
struct State {
    /// Blocks that nobody uses, by their length.
    idle: BTreeMap<u64, Vec<Address>>,
    idle_bytes: u64,
    /// Bytes of the shared part that are in use.
    shared_bytes: u64,
    /// Blocks that were ever allocated.
    allocations: u64,
}

/// Memory that was allocated.
struct Address {
    pointer: *mut u8,
    /// Others hold it too as long as a NIC knows the memory.
    mark: Arc<()>,
}

// SAFETY: only an address here; whoever takes the block uses the memory.
unsafe impl Send for Address {}

/// Memory that is in use. Dropping it gives it back: nothing touches it any more then.
pub struct CardBlock {
    pool: Arc<CardPool>,
    address: Address,
    bytes: u64,
    is_shared: bool,
}

impl CardPool {
    /// An empty pool.
    pub fn new(card: Arc<dyn Card>, kind: MemoryKind) -> Arc<Self> {
        Arc::new(Self { card, kind, state: Mutex::default(), fork: ForkGuard::new() })
    }

    /// The card.
    pub fn card(&self) -> &Arc<dyn Card> {
        &self.card
    }

    /// How many blocks were allocated so far, in use or not.
    pub fn allocations(&self) -> u64 {
        lock(&self.state).allocations
    }

    /// A block of at least `bytes` that the taker has a right to.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Result<CardBlock> {
        let length = block_bytes(bytes);
        let mut state = lock(&self.state);
        let idle = state.idle.get_mut(&length).and_then(Vec::pop);
        let address = if let Some(address) = idle {
            state.idle_bytes -= length;
            address
        } else {
            state.allocations += 1;
            drop(state);
            Address { pointer: self.card.allocate(length, self.kind)?, mark: Arc::default() }
        };
        Ok(CardBlock { pool: Arc::clone(self), address, bytes: length, is_shared: false })
    }

    /// A block of at least `bytes` out of the shared part, if no more than `limit` bytes of that are in
    /// use then.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn take_shared(self: &Arc<Self>, bytes: u64, limit: u64) -> Result<Option<CardBlock>> {
        if !self.count_in(block_bytes(bytes), limit) {
            return Ok(None);
        }
        let mut block = self.take(bytes).inspect_err(|_| self.count_out(block_bytes(bytes)))?;
        block.is_shared = true;
        Ok(Some(block))
    }

    /// Makes sure that so many blocks of at least so many bytes can be taken without an allocation, all of
    /// them together, and frees other idle ones that are too many. A driver's allocations may wait for all
    /// work of the card, so this is called by threads on which nothing depends.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn prepare(self: &Arc<Self>, wanted: impl IntoIterator<Item = (u64, u64)>) -> Result<()> {
        let each = wanted.into_iter().flat_map(|(bytes, count)| (0..count).map(move |_| bytes));
        let blocks: Vec<_> = each.map(|bytes| self.take(bytes)).collect::<Result<_>>()?;
        // While these are in use: none of them is too many.
        let surplus = lock(&self.state).surplus();
        drop(blocks);
        for Address { pointer, .. } in surplus {
            // SAFETY: it came from `allocate`, and was idle, so nothing uses it.
            unsafe { self.free(pointer) };
        }
        Ok(())
    }

    /// # Safety
    /// It came from `allocate`, and nothing uses it.
    unsafe fn free(&self, pointer: *mut u8) {
        // SAFETY: the caller promises it.
        if let Err(error) = unsafe { self.card.free(pointer) } {
            tracing::warn!(%error, "memory could not be freed");
        }
    }

    fn count_in(&self, bytes: u64, limit: u64) -> bool {
        let mut state = lock(&self.state);
        let fits = state.shared_bytes + bytes <= limit;
        if fits {
            state.shared_bytes += bytes;
        }
        fits
    }

    fn count_out(&self, bytes: u64) {
        lock(&self.state).shared_bytes -= bytes;
    }
}

impl State {
    /// Takes out idle blocks until no more than [`KEPT_BYTES`] are left, the longest first. Not those that a
    /// NIC knows.
    fn surplus(&mut self) -> Vec<Address> {
        let mut surplus = Vec::new();
        for (length, blocks) in self.idle.iter_mut().rev() {
            let idle_bytes = &mut self.idle_bytes;
            surplus.extend(blocks.extract_if(.., |address| {
                let is_one = *idle_bytes > KEPT_BYTES && Arc::strong_count(&address.mark) == 1;
                *idle_bytes -= if is_one { *length } else { 0 };
                is_one
            }));
        }
        self.idle.retain(|_, blocks| !blocks.is_empty());
        surplus
    }
}

impl Drop for CardPool {
    fn drop(&mut self) {
        // In a child of a fork the card is left alone.
        if self.fork.check().is_err() {
            return;
        }
        let idle = std::mem::take(&mut lock(&self.state).idle);
        for Address { pointer, .. } in idle.into_values().flatten() {
            // SAFETY: it came from `allocate`, and is idle: blocks in use keep the pool.
            unsafe { self.free(pointer) };
        }
    }
}

impl CardBlock {
    /// Its first byte; any content.
    pub fn pointer(&self) -> *mut u8 {
        self.address.pointer
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The block as an allocation, which has its number among the blocks of the pool.
    pub(super) fn allocation(&self) -> Allocation {
        let begin = self.pointer().addr();
        Allocation { number: begin as u64, begin, bytes: self.bytes }
    }

    /// As long as this is held, the pool does not free the memory.
    pub(super) fn mark(&self) -> Arc<()> {
        Arc::clone(&self.address.mark)
    }

    /// Counts a block that somebody had a right to as one of the shared part, so that the right can be
    /// used again. Says whether that has room, as [`CardPool::take_shared`].
    pub fn share(&mut self, limit: u64) -> bool {
        self.is_shared = self.is_shared || self.pool.count_in(self.bytes, limit);
        self.is_shared
    }
}

impl Drop for CardBlock {
    fn drop(&mut self) {
        let mut state = lock(&self.pool.state);
        if self.is_shared {
            state.shared_bytes -= self.bytes;
        }
        state.idle_bytes += self.bytes;
        let Address { pointer, ref mark } = self.address;
        let address = Address { pointer, mark: Arc::clone(mark) };
        state.idle.entry(self.bytes).or_default().push(address);
    }
}

/// How long a block for `bytes` is: few lengths, so that blocks are used again.
pub(super) fn block_bytes(bytes: u64) -> u64 {
    if bytes <= COARSE_BYTES {
        bytes.next_power_of_two().max(LEAST_BYTES)
    } else {
        bytes.checked_next_multiple_of(COARSE_BYTES).unwrap_or(bytes)
    }
}
