//! Which messages send exactly what a step before them received or made, so that they may be sent from
//! the pinned memory in which it was, instead of from the card.

use crate::schedule::{Buffer, Schedule, Slice, StepKind};

/// A message that is sent from the card.
const NONE: u32 = u32::MAX;

/// Who makes what each message sends.
#[derive(Debug)]
pub(in crate::engine) struct Forwards {
    producers: Vec<u32>,
    readers: Vec<u32>,
}

impl Forwards {
    pub(in crate::engine) fn new(schedule: &Schedule) -> Self {
        let mut forwards = Self {
            producers: vec![NONE; schedule.steps.len()],
            readers: vec![0; schedule.steps.len()],
        };
        for (step, kind) in schedule.steps.iter().map(|step| &step.kind).enumerate() {
            if let StepKind::Send { source, .. } = kind
                && let Some(producer) = producer(schedule, step, *source)
            {
                forwards.producers[step] = producer;
                forwards.readers[producer as usize] += 1;
            }
        }
        forwards
    }

    /// The step that makes what `step` sends, and nothing else.
    pub(super) fn producer(&self, step: u32) -> Option<u32> {
        Some(self.producers[step as usize]).filter(|producer| *producer != NONE)
    }

    /// How many messages send exactly what `step` makes.
    pub(super) fn readers(&self, step: u32) -> u32 {
        self.readers[step as usize]
    }
}

/// Of the steps that a message waits for, the one that wrote all of its bytes, if only one wrote any. Who
/// wrote before that one was overwritten, and who writes later waits for the message.
fn producer(schedule: &Schedule, step: usize, source: Slice) -> Option<u32> {
    let sent = place(schedule, source)?;
    let mut writers = schedule.dependencies(&schedule.steps[step]).iter().filter_map(|other| {
        let kind = &schedule.steps[*other as usize].kind;
        let mut written = schedule.writes(kind).iter().filter_map(|slice| place(schedule, *slice));
        let written = written
            .find(|written| written.0 == sent.0 && written.1 < sent.2 && sent.1 < written.2)?;
        Some((*other, kind, written))
    });
    let (producer, kind, written) = writers.next()?;
    let in_host_memory = matches!(kind, StepKind::Recv { .. } | StepKind::Reduce { .. });
    (writers.next().is_none() && written == sent && in_host_memory).then_some(producer)
}

/// Where a slice of the card lies: in which memory, and from where to where.
fn place(schedule: &Schedule, slice: Slice) -> Option<(Buffer, u64, u64)> {
    let (buffer, origin) = match slice.buffer {
        Buffer::Scratch => return None,
        Buffer::Send if schedule.in_place => (Buffer::Recv, schedule.origins.send),
        Buffer::Recv if schedule.in_place => (Buffer::Recv, schedule.origins.recv),
        other => (other, 0),
    };
    let start = origin + slice.offset;
    (slice.bytes > 0).then_some((buffer, start, start + slice.bytes))
}
