//! Messages from and to the card, queue by queue: a block of pinned memory for each, filled from the card
//! before it is sent, emptied to the card after it was received.

use std::sync::Arc;

use super::{After, DEPTH, Kept, Staging};
use crate::Result;
use crate::engine::pool::CardBlock;
use crate::engine::run::Run;
use crate::engine::state::State;
use crate::schedule::{Slice, StepKind};

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

/// A message that is posted from or to pinned memory.
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
}

impl Staging {
    /// Gives a message of a queue what it needs to be posted. Says whether it could.
    fn begin_message(&mut self, run: &mut Run, queue: u32, step: u32) -> Result<bool> {
        let Some((slice, sends)) = on_card(&run.program.schedule().steps[step as usize].kind)
        else {
            return Ok(true);
        };
        let address = run.address(slice);
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

    /// Where a message is, if that is pinned memory.
    pub(in crate::engine) fn staged_address(&self, step: u32) -> Option<*mut u8> {
        match &self.staged.messages.get(&step)?.place {
            Place::Block { block, .. } => Some(block.pointer()),
            Place::Kept(producer) => Some(self.staged.kept[producer].block.pointer()),
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
            Place::Kept(producer) => {
                let kept = self.staged.kept.get_mut(&producer)?;
                kept.readers -= 1;
                if kept.readers > 0 {
                    return None;
                }
                self.staged.kept.remove(&producer).map(|kept| kept.block)
            }
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

impl State {
    /// Begins the messages of a queue whose dependencies are met, in their order, as far as there is
    /// pinned memory for them.
    pub(in crate::engine) fn stage_queue(&mut self, index: usize, queue: u32) -> Result<()> {
        let Some(staging) = &mut self.staging else { return Ok(()) };
        let run = &mut self.runs[index];
        let program = Arc::clone(&run.program);
        let steps = &program.queues[queue as usize].steps;
        while let Some(step) = steps.get(run.staged.queues[queue as usize].begun as usize)
            && run.released[*step as usize]
            && staging.begin_message(run, queue, *step)?
        {
            run.staged.queues[queue as usize].begun += 1;
        }
        Ok(())
    }

    /// The transport is done with a message. Says whether its step is complete; else it is when what
    /// was received is on the card.
    pub(in crate::engine) fn end_transfer(&mut self, index: usize, step: u32) -> Result<bool> {
        let Some(staging) = &mut self.staging else { return Ok(true) };
        let run = &mut self.runs[index];
        let Some(pointer) = run.staged_address(step) else { return Ok(true) };
        if let StepKind::Recv { destination, .. } = run.program.schedule().steps[step as usize].kind
        {
            let address = run.address(destination);
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
