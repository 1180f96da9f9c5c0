//! Messages from and to the card, queue by queue: a block of pinned memory for each, filled from the card
//! before it is sent, emptied to the card after it was received. Where the link's NIC reaches the card's
//! memory by itself, there is no block and no copy.

use std::sync::Arc;

use super::{After, DEPTH, Kept, StagedRun, Staging};
use crate::Result;
use crate::engine::counters::Path;
use crate::engine::pool::CardBlock;
use crate::engine::regions::{self, Origin};
use crate::engine::run::{Run, Scratch};
use crate::engine::state::State;
use crate::schedule::{Buffer, Slice, StepKind};

/// How far a queue is.
#[derive(Clone, Copy, Default)]
pub(super) struct QueueStage {
    /// Steps that have what they need to be posted, or will when their copies have landed.
    begun: u32,
    /// Messages that have a block of the queue's.
    blocks: u32,
    /// Whether one of these is the one that the queue has a right to.
    right_is_used: bool,
}

/// A message from or to the card.
pub(super) struct Message {
    place: Place,
    /// Whether it may be posted: what it sends is there.
    is_ready: bool,
}

enum Place {
    Block {
        block: CardBlock,
        by_right: bool,
    },
    /// Where the step with this number left it.
    Kept(u32),
    /// In the card's memory, which the NIC reaches.
    OnCard(regions::Place),
}

/// Where the bytes of a posted message are.
pub(in crate::engine) enum Staged<'a> {
    Pinned(&'a CardBlock),
    OnCard(regions::Place),
}

impl Staging {
    /// Gives a message of a queue what it needs to be posted: nothing more if the NIC reaches the card's
    /// memory. Says whether it could.
    fn begin_message(
        &mut self,
        run: &mut Run,
        queue: u32,
        step: u32,
        reached: Option<regions::Place>,
    ) -> Result<bool> {
        let Some((slice, sends)) = on_card(&run.program.schedule().steps[step as usize].kind)
        else {
            return Ok(true);
        };
        let address = run.address(slice);
        if let Some(place) = reached {
            if sends && let Some(producer) = run.program.forwards().producer(step) {
                self.has_freed |= run.staged.end_kept(producer).is_some();
            }
            let message = Message { place: Place::OnCard(place), is_ready: true };
            run.staged.messages.insert(step, message);
            return Ok(true);
        }
        let staged = &mut run.staged;
        if let Some(producer) = run.program.forwards().producer(step)
            && staged.kept.contains_key(&producer)
        {
            self.counters.sent_from_kept(slice.bytes);
            staged.messages.insert(step, Message { place: Place::Kept(producer), is_ready: true });
            return Ok(true);
        }
        let stage = &mut staged.queues[queue as usize];
        let by_right = !stage.right_is_used;
        let block = if by_right {
            Some(self.memory.pinned.take(slice.bytes)?)
        } else if stage.blocks < DEPTH {
            self.memory.pinned.take_shared(slice.bytes, self.limit)?
        } else {
            return Ok(false);
        };
        let Some(block) = block else {
            if !self.starved.contains(&(run.serial, queue)) {
                self.starved.push((run.serial, queue));
            }
            return Ok(false);
        };
        stage.blocks += 1;
        stage.right_is_used = true;
        let pointer = block.pointer();
        // Before the copy: a block is never given back while one may be under way.
        let place = Place::Block { block, by_right };
        staged.messages.insert(step, Message { place, is_ready: !sends });
        if sends {
            // SAFETY: the slice lies in the user's send or receive buffer on the card, which whoever asked
            // for the operation keeps valid until it is over, and the schedule orders every write to it
            // after this step; the block is this message's until the copy has landed.
            unsafe { self.copy_to_host(pointer, address, slice.bytes) }?;
            self.to_host.then(After::Filled { serial: run.serial, step })?;
        }
        Ok(true)
    }
}

/// What a message moves from or to the card, and whether it sends.
pub(super) fn on_card(kind: &StepKind) -> Option<(Slice, bool)> {
    let (slice, sends) = match kind {
        StepKind::Send { source, .. } => (*source, true),
        StepKind::Recv { destination, .. } => (*destination, false),
        _ => return None,
    };
    (Run::is_on_card(slice) && slice.bytes > 0).then_some((slice, sends))
}

impl Run {
    /// Whether a message whose dependencies are met has what it needs to be posted.
    pub(in crate::engine) fn is_staged(&self, queue: u32, step: u32) -> bool {
        self.staged.queues[queue as usize].begun > self.posted[queue as usize]
            && self.staged.messages.get(&step).is_none_or(|message| message.is_ready)
    }

    /// Where a message from or to the card is.
    pub(in crate::engine) fn staged(&self, step: u32) -> Option<Staged<'_>> {
        Some(match &self.staged.messages.get(&step)?.place {
            Place::Block { block, .. } => Staged::Pinned(block),
            Place::Kept(producer) => Staged::Pinned(&self.staged.kept[producer].block),
            Place::OnCard(place) => Staged::OnCard(*place),
        })
    }

    /// By which path a message goes.
    pub(in crate::engine) fn path_of(&self, step: u32) -> Path {
        match self.staged(step) {
            None => Path::Host,
            Some(Staged::Pinned(_)) => Path::Staged,
            Some(Staged::OnCard(_)) => Path::Direct,
        }
    }

    /// Forgets a message that is done with its memory; gives its block, if that is its own.
    fn end_message(&mut self, step: u32) -> Option<CardBlock> {
        let queue = self.program.queue_of[step as usize];
        match self.staged.messages.remove(&step)?.place {
            Place::Block { block, by_right } => {
                let stage = &mut self.staged.queues[queue as usize];
                stage.blocks -= 1;
                stage.right_is_used &= !by_right;
                Some(block)
            }
            Place::Kept(producer) => self.staged.end_kept(producer),
            Place::OnCard(_) => None,
        }
    }

    /// Keeps what a step made or received in pinned memory for the messages that are to send it. Gives
    /// the block back if there are none, or no room: then they copy it from the card.
    pub(super) fn keep(
        &mut self,
        step: u32,
        mut block: CardBlock,
        limit: u64,
    ) -> Option<CardBlock> {
        let readers = self.program.forwards().readers(step);
        if readers == 0 || !block.share(limit) {
            return Some(block);
        }
        self.staged.kept.insert(step, Kept { block, readers });
        None
    }
}

impl StagedRun {
    /// One message fewer is to be sent from what a step left. Gives its block after the last.
    fn end_kept(&mut self, producer: u32) -> Option<CardBlock> {
        let kept = self.kept.get_mut(&producer)?;
        kept.readers -= 1;
        if kept.readers > 0 {
            return None;
        }
        self.kept.remove(&producer).map(|kept| kept.block)
    }
}

impl State {
    /// Where the NIC of a message's link reads or writes it on the card, if it reaches that memory.
    fn reach(&mut self, index: usize, queue: u32, step: u32) -> Option<regions::Place> {
        let run = &self.runs[index];
        let peer = run.program.queues[queue as usize].peer;
        let domain = self.links.reaches_card(peer)?;
        let (slice, _) = on_card(&run.program.schedule().steps[step as usize].kind)?;
        let (origin, block) = match (slice.buffer, &run.scratch) {
            (Buffer::Send, _) => (Origin::Allocation(run.operation.allocations[0]?), None),
            (Buffer::Recv, _) => (Origin::Allocation(run.operation.allocations[1]?), None),
            (_, Scratch::Card { on_card: Some(block), .. }) => {
                (Origin::Block(block.allocation()), Some(block))
            }
            _ => return None,
        };
        let begin = run.address(slice).addr();
        let range = begin..begin + slice.bytes as usize;
        self.regions.as_mut()?.place_of(&mut self.domains, domain, origin, block, &range)
    }

    /// Begins the messages of a queue whose dependencies are met, in their order, as far as there is
    /// pinned memory for them.
    pub(in crate::engine) fn stage_queue(&mut self, index: usize, queue: u32) -> Result<()> {
        if self.staging.is_none() {
            return Ok(());
        }
        let program = Arc::clone(&self.runs[index].program);
        let steps = &program.queues[queue as usize].steps;
        loop {
            let run = &self.runs[index];
            let begun = run.staged.queues[queue as usize].begun;
            let Some(step) = steps.get(begun as usize).copied() else { return Ok(()) };
            if !run.released[step as usize] {
                return Ok(());
            }
            let reached = self.reach(index, queue, step);
            let Some(staging) = &mut self.staging else { return Ok(()) };
            let run = &mut self.runs[index];
            if !staging.begin_message(run, queue, step, reached)? {
                return Ok(());
            }
            run.staged.queues[queue as usize].begun = begun + 1;
        }
    }

    /// The transport is done with a message. Says whether its step is complete; else it is when what
    /// was received is on the card.
    pub(in crate::engine) fn end_transfer(&mut self, index: usize, step: u32) -> Result<bool> {
        let Some(staging) = &mut self.staging else { return Ok(true) };
        let run = &mut self.runs[index];
        let place = match run.staged(step) {
            None => return Ok(true),
            Some(Staged::Pinned(block)) => Some(block.pointer()),
            Some(Staged::OnCard(_)) => None,
        };
        if let StepKind::Recv { destination, .. } = run.program.schedule().steps[step as usize].kind
        {
            let address = run.address(destination);
            let Some(pointer) = place else {
                run.end_message(step);
                // The NIC's word alone does not say that the card sees the bytes.
                return staging.card().flush(address, destination.bytes).map(|()| true);
            };
            // SAFETY: the slice lies in the user's receive buffer on the card, and the schedule orders
            // every other use of it before this step or after its end; the block stays until then.
            unsafe { staging.copy_to_card(address, pointer, destination.bytes) }?;
            staging.to_card.then(After::Received { serial: run.serial, step })?;
            return Ok(false);
        }
        staging.has_freed |= run.end_message(step).is_some();
        Ok(true)
    }

    /// What a message sends is in its block.
    pub(super) fn filled(&mut self, serial: u32, step: u32) -> Result<()> {
        let index = self.index_of(serial);
        let run = &mut self.runs[index];
        if let Some(message) = run.staged.messages.get_mut(&step) {
            message.is_ready = true;
        }
        let queue = run.program.queue_of[step as usize];
        self.post_queue(index, queue)
    }

    /// What a message brought is on the card.
    pub(super) fn received(&mut self, serial: u32, step: u32) -> Result<()> {
        let index = self.index_of(serial);
        let Some(staging) = &mut self.staging else { return Ok(()) };
        let run = &mut self.runs[index];
        if let Some(block) = run.end_message(step) {
            staging.has_freed |= run.keep(step, block, staging.limit).is_some();
        }
        let queue = run.program.queue_of[step as usize];
        self.complete_step(index, step)?;
        self.post_queue(index, queue)
    }
}
