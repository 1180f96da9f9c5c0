//! Reduce in one round: every rank sends its vector to the root, which reduces all n contributions at
//! once, in rank order, so that narrow floats are rounded once and AVG divides once.
//!
//! n − 1 messages a chunk and (n − 1)·V bytes received by the root, n·V bytes reduced. Chunks flow
//! through a window of scratch.

use super::super::builder::Builder;
use super::super::cost::Cost;
use super::super::cuts::{Cut, aligned, chunk_elements};
use super::super::types::{Buffer, Request, Slice};

/// How many chunks of scratch each contributor has at the root.
const WINDOW: u64 = 4;
/// How many chunks a reduction comes after its contributions.
const LAG: u64 = WINDOW - 1;

pub(in super::super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let (rank, ranks, root) = (request.rank, request.ranks, request.root);
    let others = u64::from(ranks) - 1;
    let element_bytes = builder.element_bytes;
    let whole = Cut::whole(request.count);
    let chunk = chunk(request);
    let chunks = whole.chunks(chunk);

    builder.gate();
    if rank != root {
        for cut in (0..chunks).map(|number| whole.chunk(chunk, number)) {
            builder.send(root, builder.slice(Buffer::Send, cut), cut);
        }
        return;
    }
    let slot = aligned(chunk.min(request.count) * element_bytes);
    builder.reserve_scratch(slot * others * WINDOW.min(chunks));
    let contribution = |from: u32, number: u64, cut: Cut| {
        if from == root {
            return cut.within(Buffer::Send, element_bytes);
        }
        let contributor = u64::from(from - u32::from(from > root));
        Slice {
            buffer: Buffer::Scratch,
            offset: slot * (number % WINDOW * others + contributor),
            bytes: cut.elements * element_bytes,
        }
    };
    for stage in 0..chunks + LAG {
        if stage < chunks {
            let cut = whole.chunk(chunk, stage);
            for peer in (1..ranks).map(|distance| (root + distance) % ranks) {
                builder.recv(peer, contribution(peer, stage, cut), cut);
            }
        }
        if let Some(number) = stage.checked_sub(LAG)
            && number < chunks
        {
            let cut = whole.chunk(chunk, number);
            let result = builder.slice(Buffer::Recv, cut);
            builder.reduce((0..ranks).map(|from| contribution(from, number, cut)), result, true);
        }
    }
}

/// Elements in a chunk.
fn chunk(request: &Request) -> u64 {
    let steps = u64::from(request.ranks);
    chunk_elements(request.chunk_bytes, request.element_bytes(), request.count, steps)
}

/// The busiest rank is the root.
pub(in super::super) fn cost(request: &Request) -> Cost {
    let others = u64::from(request.ranks) - 1;
    let vector = request.count.saturating_mul(request.element_bytes());
    Cost {
        rounds: 1,
        rounds_beside_gate: 1,
        messages: others * Cut::whole(request.count).chunks(chunk(request)),
        bytes: vector.saturating_mul(others),
        reduced_bytes: vector.saturating_mul(others + 1),
        ..Cost::default()
    }
}
