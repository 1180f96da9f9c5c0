//! Staging: what lies in a card's memory goes through pinned host memory, since neither transports nor
//! the kernels of the host can read it there.
//!
//! Schedules do not know of it. Their two user buffers lie on the card, their scratch in pinned memory.
//! `messages` moves what is sent and received, `work` what is copied, reduced and multiplied; `forwards`
//! finds what need not be copied from the card because it was in pinned memory a moment ago.
//!
//! # Why nothing waits for ever
//!
//! Blocks of pinned memory are bounded, and a message waits for its peer with a block in its hand. So each
//! queue (a peer and a direction) has a **right** to one block that no other can take, and gives blocks to
//! its messages in their order, which is the peer's order too. The earliest transfer that is not
//! complete on both sides is the first of its queue on both; so it has the right on both, and goes on.
//! Everything beyond (the next messages of a queue, blocks kept for messages to come) is taken from a
//! shared part, which may be used up: it makes things faster and is never waited for. Local work
//! has such a right too, and holds it for a time that depends on no peer.

mod forwards;
mod messages;
mod prepare;
mod work;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use iccl_plugin_api::MemoryKind;

use super::EngineOptions;
use super::counters::Counters;
use super::device::{Card, CardStream};
use super::pool::{CardBlock, CardPool};
use super::program::Program;
use super::run::{Run, Scratch};
use super::state::State;
use crate::Result;
use crate::schedule::{Buffer, Slice};

pub(super) use forwards::Forwards;
pub(super) use messages::Staged;
use messages::{Message, QueueStage};
pub(super) use prepare::prepare;
use work::Piece;

/// How many messages of one queue may have a block.
const DEPTH: u32 = 4;
/// How many pieces of local work may be under way.
const MOST_PIECES: usize = 4;
/// How long a driver naps while copies are under way.
const NAP: Duration = Duration::from_micros(50);
/// After how many naps in vain the driver has itself woken by the card, if that can call the host. Not at
/// once: a call holds up the copies behind it.
const NAPS: u32 = 20;

/// Wakes a sleeping driver; called by a thread of the card's driver.
pub(super) type Bell = Arc<dyn Fn() + Send + Sync>;

/// Where an engine takes memory from.
#[derive(Clone)]
pub(super) struct CardMemory {
    /// Shared by the engines of the card.
    pinned: Arc<CardPool>,
    /// Scratch on the card.
    own: Arc<CardPool>,
}

impl CardMemory {
    pub(super) fn new(pinned: Arc<CardPool>) -> Self {
        let own = CardPool::new(Arc::clone(pinned.card()), MemoryKind::Device);
        Self { pinned, own }
    }

    pub(super) fn card(&self) -> &Arc<dyn Card> {
        self.pinned.card()
    }

    /// Makes sure that the card's own memory is there for a run: for its scratch and for its operands.
    ///
    /// # Errors
    /// What the plugin says.
    pub(super) fn prepare_own(&self, program: &Program, natural_bytes: u64) -> Result<()> {
        let both = [program.schedule().device_scratch_bytes, natural_bytes];
        self.own.prepare(both.into_iter().filter(|bytes| *bytes > 0).map(|bytes| (bytes, 1)))
    }
}

/// The engine's part in the work of its card.
pub(super) struct Staging {
    memory: CardMemory,
    counters: Arc<Counters>,
    /// Most bytes of the shared part of pinned memory that may be in use when this engine takes of it.
    limit: u64,
    /// The length of a piece of local work. Most chunks are shorter, and come one by one anyway.
    piece_bytes: u64,
    to_host: CardStream<After>,
    to_card: CardStream<After>,
    on_card: CardStream<After>,
    /// Pieces whose operands lie in host memory: to be computed.
    loaded: VecDeque<Piece>,
    /// Pieces that are under way, and whether one of them has the right.
    pieces: usize,
    piece_has_right: bool,
    /// Queues, by the serial of their run, that could go on if the shared part had room.
    starved: Vec<(u32, u32)>,
    /// Whether blocks came back since the starved were looked at.
    has_freed: bool,
    naps: u32,
    bell: Option<Bell>,
    /// Whether each stream is to ring.
    rings: [Arc<AtomicBool>; 3],
}

/// What follows when work of the card has landed. Steps are named with the serial of their run.
enum After {
    /// What a message sends is in its block.
    Filled { serial: u32, step: u32 },
    /// What a message brought is on the card.
    Received { serial: u32, step: u32 },
    /// A copy is done.
    Copied { serial: u32, step: u32 },
    /// What a piece reads is in host memory.
    Loaded(Piece),
    /// What a piece made is on the card.
    Stored(Piece),
}

/// What a run on a card has beside its steps.
#[derive(Default)]
pub(super) struct StagedRun {
    queues: Vec<QueueStage>,
    /// Messages that have a block, by their step.
    messages: HashMap<u32, Message>,
    /// What was made or received and is still to be sent, by the step that made it.
    kept: HashMap<u32, Kept>,
    /// Pieces of a step that are not done.
    pieces_left: HashMap<u32, u64>,
    /// How much of the first work to do is begun, in bytes.
    begun_bytes: u64,
    /// The scalar, where it lies on the card.
    scalar: Option<CardBlock>,
}

/// A block that outlives the step that filled it.
struct Kept {
    block: CardBlock,
    /// Messages that are still to be sent from it.
    readers: u32,
}

impl StagedRun {
    pub(super) fn new(queues: usize) -> Self {
        Self { queues: vec![QueueStage::default(); queues], ..Self::default() }
    }
}

impl Staging {
    /// Staging of an engine, with streams of its own.
    ///
    /// # Errors
    /// What the plugin says.
    pub(super) fn new(
        memory: CardMemory,
        options: &EngineOptions,
        counters: &Arc<Counters>,
    ) -> Result<Self> {
        let card = memory.card();
        Ok(Self {
            to_host: CardStream::new(card)?,
            to_card: CardStream::new(card)?,
            on_card: CardStream::new(card)?,
            memory,
            counters: Arc::clone(counters),
            limit: options.staging_bytes,
            piece_bytes: options.piece_bytes,
            loaded: VecDeque::new(),
            pieces: 0,
            piece_has_right: false,
            starved: Vec::new(),
            has_freed: false,
            naps: 0,
            bell: None,
            rings: Default::default(),
        })
    }

    pub(super) fn set_bell(&mut self, bell: Bell) {
        self.bell = Some(bell);
    }

    pub(super) fn card(&self) -> &Arc<dyn Card> {
        self.memory.card()
    }

    /// Scratch of a run: so much of the host's, so much of the card's, so much for its operands.
    pub(super) fn scratch(
        &self,
        bytes: u64,
        bytes_on_card: u64,
        natural_bytes: u64,
    ) -> Result<Scratch> {
        let take = |pool: &Arc<CardPool>, bytes| (bytes > 0).then(|| pool.take(bytes)).transpose();
        Ok(Scratch::Card {
            pinned: take(&self.memory.pinned, bytes)?,
            on_card: take(&self.memory.own, bytes_on_card)?,
            natural: take(&self.memory.own, natural_bytes)?,
        })
    }

    /// Enqueues a copy from the card; `after` follows when it and all before it have landed.
    ///
    /// # Safety
    /// As [`Card::copy`].
    unsafe fn copy_to_host(&mut self, to: *mut u8, from: *const u8, bytes: u64) -> Result<()> {
        self.counters.copied_to_host(bytes);
        let (to, from) = ((to, MemoryKind::PinnedHost), (from, MemoryKind::Device));
        // SAFETY: the caller promises it.
        unsafe { self.card().copy(self.to_host.handle(), to, from, bytes) }
    }

    /// Enqueues a copy to the card.
    ///
    /// # Safety
    /// As [`Card::copy`].
    unsafe fn copy_to_card(&mut self, to: *mut u8, from: *const u8, bytes: u64) -> Result<()> {
        self.counters.copied_to_card(bytes);
        let (to, from) = ((to, MemoryKind::Device), (from, MemoryKind::PinnedHost));
        // SAFETY: the caller promises it.
        unsafe { self.card().copy(self.to_card.handle(), to, from, bytes) }
    }

    /// Enqueues a copy on the card.
    ///
    /// # Safety
    /// As [`Card::copy`].
    unsafe fn copy_on_card(&mut self, to: *mut u8, from: *const u8, bytes: u64) -> Result<()> {
        self.counters.copied_on_card(bytes);
        let (to, from) = ((to, MemoryKind::Device), (from, MemoryKind::Device));
        // SAFETY: the caller promises it.
        unsafe { self.card().copy(self.on_card.handle(), to, from, bytes) }
    }

    fn streams(&self) -> [&CardStream<After>; 3] {
        [&self.to_host, &self.to_card, &self.on_card]
    }

    fn streams_mut(&mut self) -> [&mut CardStream<After>; 3] {
        [&mut self.to_host, &mut self.to_card, &mut self.on_card]
    }

    fn next_landed(&mut self) -> Result<Option<After>> {
        let mut landed = None;
        for stream in self.streams_mut() {
            landed = stream.next_landed()?;
            if landed.is_some() {
                break;
            }
        }
        if landed.is_some() {
            self.naps = 0;
        }
        Ok(landed)
    }

    /// Whether there is something to do now.
    pub(super) fn has_landed(&self) -> Result<bool> {
        for stream in self.streams() {
            if stream.has_landed()? {
                return Ok(true);
            }
        }
        Ok(!self.loaded.is_empty())
    }

    /// How long a driver may sleep at most; `None` if it is woken when something has landed.
    pub(super) fn longest_nap(&mut self) -> Result<Option<Duration>> {
        if self.streams().iter().all(|stream| stream.is_idle()) {
            return Ok(None);
        }
        self.naps += 1;
        match self.bell.clone() {
            Some(bell) if self.naps > NAPS && self.card().calls_host() => {
                self.ring(&bell)?;
                Ok(None)
            }
            _ => Ok(Some(NAP * self.naps.min(NAPS))),
        }
    }

    /// Has the driver woken when what is under way on any stream has landed.
    fn ring(&self, bell: &Bell) -> Result<()> {
        for (stream, rings) in self.streams().into_iter().zip(&self.rings) {
            if stream.is_idle() || rings.swap(true, Ordering::SeqCst) {
                continue;
            }
            let call = Ring { bell: Arc::clone(bell), rings: Arc::clone(rings) };
            let user = Box::into_raw(Box::new(call)).cast();
            // SAFETY: `ring` may be called once on any thread with what was leaked for it.
            let asked = unsafe { self.card().host_function(stream.handle(), ring, user) };
            asked.inspect_err(|_| {
                // SAFETY: a refused call is never made, so the box is still this function's.
                drop(unsafe { Box::from_raw(user.cast::<Ring>()) });
            })?;
        }
        Ok(())
    }

    /// Waits until the card touches no memory of the engine any more, at most `timeout`. Says whether
    /// it is so.
    #[must_use]
    pub(super) fn rest(&mut self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut all_rest = true;
        for stream in self.streams_mut() {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Err(error) = stream.rest(left) {
                tracing::warn!(%error, "a stream of a card did not come to rest");
                all_rest = false;
            }
        }
        if all_rest {
            self.loaded.clear();
        }
        all_rest
    }
}

/// What a card calls to wake a driver.
struct Ring {
    bell: Bell,
    rings: Arc<AtomicBool>,
}

unsafe extern "C" fn ring(user: *mut std::ffi::c_void) {
    // SAFETY: `Staging::ring` leaked it for this one call.
    let ring = unsafe { Box::from_raw(user.cast::<Ring>()) };
    ring.rings.store(false, Ordering::SeqCst);
    (ring.bell)();
}

impl Run {
    /// Whether the slice lies in the card's memory.
    fn is_on_card(slice: Slice) -> bool {
        slice.buffer != Buffer::Scratch
    }
}

impl State {
    /// Does what follows the copies that have landed. Says whether anything did.
    pub(super) fn land(&mut self) -> Result<bool> {
        let mut moved = false;
        loop {
            let Some(staging) = &mut self.staging else { return Ok(false) };
            let Some(after) = staging.next_landed()? else { break };
            moved = true;
            match after {
                After::Filled { serial, step } => self.filled(serial, step)?,
                After::Received { serial, step } => self.received(serial, step)?,
                After::Copied { serial, step } => {
                    self.complete_step(self.index_of(serial), step)?;
                }
                After::Loaded(piece) => staging.loaded.push_back(piece),
                After::Stored(piece) => self.piece_done(piece)?,
            }
        }
        self.feed_the_starved()?;
        Ok(moved)
    }

    /// How long the driver may sleep, at most `longest`; `None` if there is something to do now.
    pub(super) fn may_sleep(&mut self, longest: Duration) -> Result<Option<Duration>> {
        let Some(staging) = &mut self.staging else { return Ok(Some(longest)) };
        let nap = staging.longest_nap()?;
        // After the card was asked to ring: whatever lands from now on wakes the driver.
        if staging.has_landed()? {
            return Ok(None);
        }
        Ok(Some(nap.map_or(longest, |nap| nap.min(longest))))
    }

    /// Brings the card to rest. Says whether it is; else everything that it may still touch is left to it
    /// for ever.
    #[must_use]
    pub(super) fn rest_card(&mut self, timeout: Duration) -> bool {
        let at_rest = self.staging.as_mut().is_none_or(|staging| staging.rest(timeout));
        if !at_rest {
            std::mem::forget(self.staging.take());
        }
        at_rest
    }

    /// The error that the card met by itself, if any.
    pub(super) fn check_card(&self) -> Result<()> {
        self.staging.as_ref().map_or(Ok(()), |staging| staging.card().async_error())
    }

    /// Lets queues go on that wait for pinned memory, if some came back.
    fn feed_the_starved(&mut self) -> Result<()> {
        let Some(staging) = &mut self.staging else { return Ok(()) };
        if !std::mem::take(&mut staging.has_freed) {
            return Ok(());
        }
        for (serial, queue) in std::mem::take(&mut staging.starved) {
            if let Some(index) = self.runs.iter().position(|run| run.serial == serial) {
                self.post_queue(index, queue)?;
            }
        }
        Ok(())
    }

    /// The run that a step belongs to; it is there as long as one of its steps is not complete.
    fn index_of(&self, serial: u32) -> usize {
        self.runs
            .iter()
            .position(|run| run.serial == serial)
            .unwrap_or_else(|| unreachable!("a run ends after the last of its steps"))
    }
}
