//! An operation in flight: how far its steps are, and whom it waits for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use iccl_plugin_api::Collective;

use super::operation::Operation;
use super::pool::CardBlock;
use super::program::Program;
use super::scratch::Block;
use super::staging::StagedRun;
use super::turn::Turn;
use crate::schedule::{Buffer, Schedule, Slice, StepKind};
use crate::{Error, ErrorKind};

/// Memory of the engine's that a schedule uses.
pub(super) enum Scratch {
    /// One block for both kinds, where the device's memory is the host's.
    Host(Block),
    /// Pinned memory, memory of the card, and that of operands that are no natural ones.
    Card { pinned: Option<CardBlock>, on_card: Option<CardBlock>, natural: Option<CardBlock> },
}

/// An operation in flight.
pub(super) struct Run {
    pub(super) operation: Arc<Operation>,
    pub(super) program: Arc<Program>,
    pub(super) serial: u32,
    pub(super) scratch: Scratch,
    pub(super) staged: StagedRun,
    pub(super) turn: Turn,
    /// Native calls that were issued, and those that are done.
    pub(super) native_issued: u32,
    pub(super) native_done: u32,
    /// Dependencies that each step still waits for.
    pub(super) waiting_for: Vec<u32>,
    /// Message steps whose dependencies are met but that wait for their turn in the queue.
    pub(super) released: Vec<bool>,
    /// How far each queue has been posted.
    pub(super) posted: Vec<u32>,
    /// Copies and reductions that may be done now.
    pub(super) work: VecDeque<u32>,
    /// Messages posted and not completed, by queue.
    pub(super) in_flight: Vec<u32>,
    pub(super) left: usize,
    pub(super) started: Instant,
    pub(super) stall_told: bool,
}

/// How much scratch a schedule needs where the device's memory is the host's: one block for both kinds.
pub(super) fn scratch_bytes(schedule: &Schedule) -> u64 {
    match schedule.device_scratch_bytes {
        0 => schedule.scratch_bytes,
        bytes => (device_scratch_at(schedule) as u64).saturating_add(bytes),
    }
}

/// Where the device's part of that block starts.
fn device_scratch_at(schedule: &Schedule) -> usize {
    schedule.scratch_bytes.next_multiple_of(64) as usize
}

impl Run {
    /// Where a slice lies in this process, or on its card.
    pub(super) fn address(&self, slice: Slice) -> *mut u8 {
        let pointer = |block: &Option<CardBlock>| {
            block.as_ref().map_or(std::ptr::null_mut(), CardBlock::pointer)
        };
        let base = match (slice.buffer, &self.scratch) {
            (Buffer::Send, _) => self.operation.send.cast_mut(),
            (Buffer::Recv, _) => self.operation.receive,
            (Buffer::Scratch, Scratch::Host(block)) => block.pointer(),
            (Buffer::Scratch, Scratch::Card { pinned, .. }) => pointer(pinned),
            (Buffer::DeviceScratch, Scratch::Host(block)) => {
                block.pointer().wrapping_add(device_scratch_at(self.program.schedule()))
            }
            (Buffer::DeviceScratch, Scratch::Card { on_card, .. }) => pointer(on_card),
        };
        base.wrapping_add(slice.offset as usize)
    }

    /// Where copies of operands go that lie elsewhere than a native library wants.
    pub(super) fn natural(&self) -> Option<*mut u8> {
        match &self.scratch {
            Scratch::Card { natural, .. } => natural.as_ref().map(CardBlock::pointer),
            Scratch::Host(_) => None,
        }
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        now.duration_since(self.started) >= self.operation.timeout
    }

    pub(super) fn timeout(&self, last_seen: &[Option<u64>]) -> Error {
        let (peers, text) = self.waits_for(last_seen);
        let operation = &self.operation;
        let error = Error::new(
            ErrorKind::Timeout,
            format!("{operation} took longer than {:?}: {text}", operation.timeout),
        )
        .with_hint("look at what the named ranks are doing; `engine.op_timeout` sets the limit");
        match peers[..] {
            [peer] => error.with_rank(peer),
            _ => error,
        }
    }

    /// The peer of the message or native call that must come next: the first in the order of the
    /// schedule, a send only if nothing else is outstanding.
    pub(super) fn waits_first_for(&self) -> Option<u32> {
        let schedule = self.program.schedule();
        let outstanding = self.program.queues.iter().enumerate().filter_map(|(index, queue)| {
            let in_flight = self.in_flight[index];
            let step = *queue.steps.get((self.posted[index] - in_flight) as usize)?;
            let kind = &schedule.steps[step as usize].kind;
            let sends = matches!(kind, StepKind::Send { .. } | StepKind::GateSend { .. });
            (in_flight > 0).then_some((sends, step, queue.peer))
        });
        let native = self.oldest_native().map(|step| (false, step));
        match (outstanding.min(), native) {
            (Some((sends, step, peer)), native) if native.is_none_or(|it| (sends, step) < it) => {
                Some(peer)
            }
            _ => self.waits_for_on_island(),
        }
    }

    /// The first native call that is issued and not done.
    fn oldest_native(&self) -> Option<u32> {
        let is_out = self.native_issued > self.native_done;
        is_out.then(|| self.program.native_calls()[self.native_done as usize])
    }

    /// A rank that waits inside the native library for the others of its island names the next of them:
    /// along this circle all come to the one whose call has not returned, which names nobody.
    fn waits_for_on_island(&self) -> Option<u32> {
        if self.turn.inside().is_some() {
            return None;
        }
        self.oldest_native()?;
        let schedule = self.program.schedule();
        let island = schedule.island.as_deref()?;
        let own = island.iter().position(|rank| *rank == schedule.rank)?;
        Some(island[(own + 1) % island.len()])
    }

    /// What the native library does not do, or whose turn it is there.
    fn waits_for_native(&self) -> Option<String> {
        let library = self.turn.library();
        if let Some(call) = self.turn.inside() {
            return Some(format!("{library} has not returned from {call}"));
        }
        let Some(oldest) = self.oldest_native() else { return self.turn.waits_for() };
        match &self.program.schedule().steps[oldest as usize].kind {
            StepKind::Native { call, .. } => {
                Some(format!("{library} is not done with {}", call.collective))
            }
            _ => unreachable!("only native calls are in the list of native calls"),
        }
    }

    /// The peers that messages are outstanding with, and a sentence about them.
    pub(super) fn waits_for(&self, last_seen: &[Option<u64>]) -> (Vec<u32>, String) {
        let mut peers: Vec<u32> = self
            .program
            .queues
            .iter()
            .zip(&self.in_flight)
            .filter(|(_, in_flight)| **in_flight > 0)
            .map(|(queue, _)| queue.peer)
            .collect();
        peers.sort_unstable();
        peers.dedup();
        let collective = self.program.schedule().collective;
        let text = match (collective, &peers[..]) {
            (Collective::Send, [peer]) => format!("unmatched send to rank {peer}"),
            (Collective::Recv, [peer]) => format!("unmatched receive from rank {peer}"),
            (_, []) => {
                let native = self.waits_for_native();
                native.unwrap_or_else(|| "waits for its own device".to_owned())
            }
            (_, peers) => {
                let told: Vec<_> = peers
                    .iter()
                    .map(|peer| match last_seen.get(*peer as usize).copied().flatten() {
                        Some(sequence) => format!("rank {peer} (last seen at seq {sequence})"),
                        None => format!("rank {peer} (not seen yet)"),
                    })
                    .collect();
                let native =
                    self.waits_for_native().map_or(String::new(), |text| format!("{text}; "));
                format!("{native}waits for {}", told.join(", "))
            }
        };
        (peers, text)
    }
}
