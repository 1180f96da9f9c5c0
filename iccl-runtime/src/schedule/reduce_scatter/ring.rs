//! Reduce-scatter around a ring: the first half of the all-reduce of this kind. In n − 1 rounds each
//! rank adds its contribution to the partial sum that its predecessor sends and passes it on, until
//! block r is complete on rank r.
//!
//! n − 1 messages a rank and chunk, n − 1 blocks sent and received, 2(n − 1) blocks reduced, and each
//! rank talks to its two neighbours only. Partial sums travel, so no narrow float is summed this way
//! and AVG is not carried. Scratch is used as in the all-reduce: two sets of `DEPTH` slots in turn, so
//! a block of more chunks is done part after part.

use super::super::builder::Builder;
use super::super::cost::Cost;
use super::super::cuts::{Cut, aligned, chunk_elements};
use super::super::types::{Buffer, Request, Slice};

/// How many chunks of a block are under way at once.
const DEPTH: u64 = 4;

pub(in super::super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let (rank, ranks) = (request.rank, request.ranks);
    let rounds = ranks - 1;
    let chunk = chunk(request);
    let next = (rank + 1) % ranks;
    let previous = (rank + rounds) % ranks;
    // The block of the rank `back` places before this one.
    let place = |back: u32| request.block_at((rank + ranks - back % ranks) % ranks);

    let element_bytes = builder.element_bytes;
    let slot = aligned(chunk.min(request.count) * element_bytes);
    let partial = |round: u32, piece: u64, cut: Cut| Slice {
        buffer: Buffer::Scratch,
        offset: slot * (u64::from(round % 2) * DEPTH + piece % DEPTH),
        bytes: cut.elements * element_bytes,
    };
    let pieces = Cut::whole(request.count).chunks(chunk);
    if pieces > 0 {
        builder.reserve_scratch(slot * 2 * DEPTH);
    }

    builder.gate();
    for part in 0..pieces.div_ceil(DEPTH) {
        let pieces = part * DEPTH..pieces.min((part + 1) * DEPTH);
        for round in 0..rounds {
            for piece in pieces.clone() {
                let cut = place(round + 1).chunk(chunk, piece);
                let source = match round {
                    0 => builder.slice(Buffer::Send, cut),
                    _ => partial(round - 1, piece, cut),
                };
                builder.send(next, source, cut);
            }
            for piece in pieces.clone() {
                let cut = place(round + 2).chunk(chunk, piece);
                let received = partial(round, piece, cut);
                builder.recv(previous, received, cut);
                let destination = if round + 1 == rounds {
                    builder.slice(Buffer::Recv, Cut::whole(request.count).chunk(chunk, piece))
                } else {
                    received
                };
                builder.reduce([received, builder.slice(Buffer::Send, cut)], destination, false);
            }
        }
    }
}

/// Elements in a chunk.
fn chunk(request: &Request) -> u64 {
    let steps = 3 * (u64::from(request.ranks) - 1);
    chunk_elements(request.chunk_bytes, request.element_bytes(), request.count, steps)
}

pub(in super::super) fn cost(request: &Request) -> Cost {
    let others = u64::from(request.ranks) - 1;
    let bytes = (request.count * others).saturating_mul(request.element_bytes());
    Cost {
        rounds: others,
        rounds_beside_gate: others,
        messages: others * Cut::whole(request.count).chunks(chunk(request)),
        bytes,
        reduced_bytes: bytes.saturating_mul(2),
        ..Cost::default()
    }
}
