//! A schedule made ready to run: who waits for a step, and in which order messages are posted.
//!
//! Made once per distinct call and cached by the communicator, so that a repeated call compiles
//! nothing.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::staging::Forwards;
use crate::schedule::{Buffer, Schedule, Slice, StepKind};

/// Steps that are posted to one peer in one direction, in order.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) peer: u32,
    pub(super) steps: Vec<u32>,
}

/// A schedule with the indices that the engine needs to run it.
#[derive(Debug)]
pub struct Program {
    pub(super) schedule: Schedule,
    /// How many dependencies each step has.
    pub(super) dependency_counts: Vec<u32>,
    successor_starts: Vec<u32>,
    successor_list: Vec<u32>,
    pub(super) queues: Vec<Queue>,
    /// Which queue a step belongs to; `NO_QUEUE` for local work.
    pub(super) queue_of: Vec<u32>,
    forwards: OnceLock<Forwards>,
    native_calls: Vec<u32>,
    is_short: bool,
}

/// What an operation copies at most that is done at once, in bytes.
const SHORT_BYTES: u64 = 4 << 10;

/// A step that is local work, in no queue.
pub(super) const NO_QUEUE: u32 = u32::MAX;

/// Each step as a copy between the user's buffers, if it is one.
fn copies(schedule: &Schedule) -> impl Iterator<Item = Option<(Slice, Slice)>> {
    schedule.steps.iter().map(|step| match step.kind {
        StepKind::Copy { source, destination }
            if source.buffer == Buffer::Send && destination.buffer == Buffer::Recv =>
        {
            Some((source, destination))
        }
        _ => None,
    })
}

impl Program {
    /// Prepares a schedule.
    pub fn new(schedule: Schedule) -> Self {
        let steps = schedule.steps.len();
        let mut successor_starts = vec![0_u32; steps + 1];
        for step in &schedule.steps {
            for dependency in schedule.dependencies(step) {
                successor_starts[*dependency as usize + 1] += 1;
            }
        }
        for index in 0..steps {
            successor_starts[index + 1] += successor_starts[index];
        }
        let mut next = successor_starts.clone();
        let mut successor_list = vec![0; *successor_starts.last().unwrap_or(&0) as usize];
        let mut dependency_counts = Vec::with_capacity(steps);
        let mut queues: Vec<Queue> = Vec::new();
        let mut queue_of = Vec::with_capacity(steps);
        let mut queue_ids = HashMap::new();
        let mut native_calls = Vec::new();
        for (index, step) in schedule.steps.iter().enumerate() {
            let dependencies = schedule.dependencies(step);
            dependency_counts.push(dependencies.len() as u32);
            for dependency in dependencies {
                let slot = &mut next[*dependency as usize];
                successor_list[*slot as usize] = index as u32;
                *slot += 1;
            }
            if matches!(step.kind, StepKind::Native { .. }) {
                native_calls.push(index as u32);
            }
            let direction = match step.kind {
                StepKind::Send { peer, .. } | StepKind::GateSend { peer, .. } => Some((peer, true)),
                StepKind::Recv { peer, .. } | StepKind::GateRecv { peer, .. } => {
                    Some((peer, false))
                }
                StepKind::Copy { .. }
                | StepKind::Reduce { .. }
                | StepKind::Scale { .. }
                | StepKind::Native { .. } => None,
            };
            let queue = direction.map_or(NO_QUEUE, |(peer, sends)| {
                *queue_ids.entry((peer, sends)).or_insert_with(|| {
                    queues.push(Queue { peer, steps: Vec::new() });
                    queues.len() as u32 - 1
                })
            });
            if queue != NO_QUEUE {
                queues[queue as usize].steps.push(index as u32);
            }
            queue_of.push(queue);
        }
        let is_short = copies(&schedule).try_fold(0, |sum: u64, copied| {
            copied.and_then(|(source, _)| sum.checked_add(source.bytes))
        });
        let is_short = is_short.is_some_and(|bytes| bytes <= SHORT_BYTES);
        Self {
            schedule,
            dependency_counts,
            successor_starts,
            successor_list,
            queues,
            queue_of,
            forwards: OnceLock::new(),
            native_calls,
            is_short,
        }
    }

    /// The schedule that this runs.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Whether all that it does is to copy a little from the user's buffer to the user's buffer, as on a
    /// communicator of one rank.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// The copies of a program that is short.
    pub(super) fn short_copies(&self) -> impl Iterator<Item = (Slice, Slice)> {
        copies(&self.schedule).flatten()
    }

    /// The native calls, in the order in which they are issued.
    pub(super) fn native_calls(&self) -> &[u32] {
        &self.native_calls
    }

    /// Which messages send what a step before them received or made; found when it is first asked for,
    /// since only cards have a use for it.
    pub(super) fn forwards(&self) -> &Forwards {
        self.forwards.get_or_init(|| Forwards::new(&self.schedule))
    }

    /// The steps that wait for `step`.
    pub(super) fn successors(&self, step: u32) -> &[u32] {
        let start = self.successor_starts[step as usize] as usize;
        let end = self.successor_starts[step as usize + 1] as usize;
        &self.successor_list[start..end]
    }
}
