//! Memory for a call, made ready by whoever makes the call, so that whoever drives allocates none.

use std::collections::BTreeMap;

use super::work::Computation;
use super::{CardMemory, DEPTH, MOST_PIECES, messages};
use crate::Result;
use crate::engine::EngineOptions;
use crate::engine::pool::block_bytes;
use crate::engine::program::Program;
use crate::schedule::StepKind;

/// Blocks of pinned memory, by their length.
type Blocks = BTreeMap<u64, u64>;

/// Makes sure that there is idle memory for all that one call needs and, of the shared part, can use.
pub(in crate::engine) fn prepare(
    program: &Program,
    memory: &CardMemory,
    options: &EngineOptions,
) -> Result<()> {
    let schedule = program.schedule();
    let scratch = |bytes| (bytes > 0).then_some((bytes, 1));
    memory.prepare_own(program, 0)?;

    let mut wanted = Blocks::new();
    let queues = add_messages(program, &mut wanted);
    let in_a_piece = add_pieces(program, options.piece_bytes, &mut wanted);
    let rights = queues + in_a_piece;
    let in_all = wanted.into_iter().map(|(bytes, count)| {
        // Besides the rights, the shared part has room for no more.
        (bytes, count.min(rights + options.staging_bytes / bytes))
    });
    let multiplies = schedule.steps.iter().any(|step| matches!(step.kind, StepKind::Scale { .. }));
    let scalar = multiplies.then_some((schedule.dtype.size_bytes() as u64, 1));
    memory.pinned.prepare(in_all.chain(scratch(schedule.scratch_bytes)).chain(scalar))
}

/// Adds what messages may have at once, and what is kept for them. Gives the number of queues that need
/// any. Also those of links whose NIC reaches the card: a buffer may be one that it does not take.
fn add_messages(program: &Program, wanted: &mut Blocks) -> u64 {
    let steps = &program.schedule().steps;
    let mut queues = 0;
    for queue in &program.queues {
        let mut of_queue = Blocks::new();
        for step in &queue.steps {
            if let Some((slice, _)) = messages::on_card(&steps[*step as usize].kind) {
                *of_queue.entry(block_bytes(slice.bytes)).or_default() += 1;
            }
        }
        queues += u64::from(!of_queue.is_empty());
        for (bytes, count) in of_queue {
            *wanted.entry(bytes).or_default() += count.min(u64::from(DEPTH));
        }
    }
    for (number, step) in (0..).zip(steps) {
        if program.forwards().readers(number) > 0
            && let [slice] = program.schedule().writes(&step.kind)
        {
            *wanted.entry(block_bytes(slice.bytes)).or_default() += 1;
        }
    }
    queues
}

/// Adds what pieces of local work may have at once. Gives the number of blocks of one piece.
fn add_pieces(program: &Program, piece_bytes: u64, wanted: &mut Blocks) -> u64 {
    let schedule = program.schedule();
    let mut most = 0;
    let mut pieces = Blocks::new();
    for number in 0..schedule.steps.len() as u32 {
        let Some(computation) = Computation::of(schedule, number) else { continue };
        let blocks = computation.blocks() as u64;
        if blocks == 0 {
            continue;
        }
        most = most.max(blocks);
        let bytes = computation.destination.bytes;
        let (whole, rest) = (bytes / piece_bytes, bytes % piece_bytes);
        for (bytes, count) in [(piece_bytes, whole), (rest, u64::from(rest > 0))] {
            if count > 0 {
                *pieces.entry(block_bytes(bytes)).or_default() += count;
            }
        }
    }
    for (bytes, count) in pieces {
        // One is by right.
        *wanted.entry(bytes).or_default() += count.min(MOST_PIECES as u64 + 1) * most;
    }
    most
}
