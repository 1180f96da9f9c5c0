//! Reduce-scatter and its vector form in one round: every rank sends its contribution to each block to
//! the block's owner, which reduces all n contributions at once, in rank order.
//!
//! n − 1 messages a rank and chunk, n − 1 blocks sent and received, n blocks reduced: what the pairwise
//! exchange of Thakur, Rabenseifner, Gropp 2005 ("Optimization of Collective Communication Operations
//! in MPICH", section 4.1, long messages) moves, but contributions are kept apart until all are there,
//! so that narrow floats are rounded once and AVG divides once.
//!
//! No gate: every rank hears from every other, contributions land in scratch, and the user's buffer is
//! written only by reductions, which wait for a message from each rank. For the same reason an empty
//! block is one empty message.
//!
//! Chunks flow through a window of scratch, as in the all-reduce of this kind.

use super::super::builder::Builder;
use super::super::cost::Cost;
use super::super::cuts::{Cut, aligned, chunk_elements};
use super::super::types::{Buffer, Request, Slice};

/// How many chunks of scratch each contributor has at the owner.
const WINDOW: u64 = 4;
/// How many stages a chunk's reduction comes after its contributions.
const LAG: u64 = WINDOW - 1;

pub(in super::super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let (rank, ranks) = (request.rank, request.ranks);
    let others = u64::from(ranks) - 1;
    let element_bytes = builder.element_bytes;
    let own_block = request.send_block(rank);
    let own_chunk = chunk(request, own_block.elements);
    let own_chunks = chunks(request, own_block.elements);
    let slot = aligned(own_chunk.min(own_block.elements) * element_bytes);
    builder.reserve_scratch(slot * others * WINDOW.min(own_chunks));

    // Where the contribution of `from` to `cut`, chunk `number` of the own block, lies.
    let contribution = |from: u32, number: u64, cut: Cut| {
        if from == rank {
            return cut.inside(own_block).within(Buffer::Send, element_bytes);
        }
        let contributor = u64::from(from - u32::from(from > rank));
        Slice {
            buffer: Buffer::Scratch,
            offset: slot * (number % WINDOW * others + contributor),
            bytes: cut.elements * element_bytes,
        }
    };
    // Ranks take different peers first, so that no one is everyone's first target.
    let to: Vec<(u32, Cut)> = (1..ranks)
        .map(|distance| (rank + distance) % ranks)
        .map(|peer| (peer, request.send_block(peer)))
        .collect();
    let from = move |distance: u32| (rank + ranks - distance) % ranks;

    let most = to.iter().map(|(_, block)| chunks(request, block.elements)).max();
    let stages = most.unwrap_or(0).max(own_chunks) + LAG;
    for stage in 0..stages {
        if stage < own_chunks {
            let cut = Cut::whole(own_block.elements).chunk(own_chunk, stage);
            for peer in (1..ranks).map(from) {
                builder.recv(peer, contribution(peer, stage, cut), cut);
            }
        }
        for (peer, block) in &to {
            if stage < chunks(request, block.elements) {
                let chunk = chunk(request, block.elements);
                let cut = Cut::whole(block.elements).chunk(chunk, stage);
                builder.send(*peer, builder.slice(Buffer::Send, cut.inside(*block)), cut);
            }
        }
        let Some(number) = stage.checked_sub(LAG).filter(|number| *number < own_chunks) else {
            continue;
        };
        let cut = Cut::whole(own_block.elements).chunk(own_chunk, number);
        if cut.elements > 0 {
            let result = builder.slice(Buffer::Recv, cut);
            builder.reduce((0..ranks).map(|from| contribution(from, number, cut)), result, true);
        }
    }
}

/// Elements in a chunk of a block.
fn chunk(request: &Request, elements: u64) -> u64 {
    let steps = 2 * u64::from(request.ranks);
    chunk_elements(request.chunk_bytes, request.element_bytes(), elements, steps)
}

/// Messages that a block takes.
fn chunks(request: &Request, elements: u64) -> u64 {
    Cut::whole(elements).chunks(chunk(request, elements)).max(1)
}

/// What this rank sends or receives, whichever is more.
pub(in super::super) fn cost(request: &Request) -> Cost {
    let others = u64::from(request.ranks) - 1;
    let own = request.send_block(request.rank).elements;
    let received = (others * chunks(request, own), own.saturating_mul(others));
    let sent = match request.counts {
        None => received,
        Some(_) => (0..request.ranks)
            .filter(|peer| *peer != request.rank)
            .map(|peer| request.send_block(peer).elements)
            .fold((0, 0_u64), |(messages, elements), block| {
                (messages + chunks(request, block), elements.saturating_add(block))
            }),
    };
    let element_bytes = request.element_bytes();
    Cost {
        rounds: 1,
        messages: sent.0.max(received.0),
        bytes: sent.1.max(received.1).saturating_mul(element_bytes),
        reduced_bytes: own.saturating_mul(element_bytes).saturating_mul(others + 1),
        ..Cost::default()
    }
}
