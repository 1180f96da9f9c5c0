//! All-reduce around a ring (Patarasuk, Yuan 2009, "Bandwidth optimal all-reduce algorithms for
//! clusters of workstations"): a block of the vector is cut into one slice a rank; in n − 1 rounds of
//! reduce-scatter each rank adds its contribution to the partial sum that its predecessor sends and
//! passes it on, until slice r is complete on rank r; in n − 1 rounds of all-gather the complete
//! slices go around.
//!
//! Rounds 2(n − 1), as many messages a rank and chunk, 2(n − 1)/n·V bytes sent and received,
//! 2(n − 1)/n·V bytes reduced. Partial sums travel, so no narrow float is summed this way and AVG is
//! not carried. The order of the contributions starts at a different rank for each slice; every
//! slice is reduced once and copied, so all ranks get the same bits.
//!
//! A slice travels as up to `DEPTH` chunks, so that receiving, reducing and sending overlap, and a
//! vector of more than n·DEPTH chunks is done block after block. A partial sum waits in scratch until
//! it is passed on. There are two sets of slots, used in turn by even and odd rounds: with one, the
//! receive of a round would wait for a send of the same round, all around the ring.

use super::super::builder::Builder;
use super::super::cost::Cost;
use super::super::cuts::{Cut, aligned, chunk_elements};
use super::super::types::{Buffer, Request, Slice};

/// Into how many chunks a slice is cut at most.
const DEPTH: u64 = 4;

pub(in super::super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let (rank, ranks) = (u64::from(request.rank), u64::from(request.ranks));
    let whole = Cut::whole(request.count);
    let rounds = ranks - 1;
    let chunk = chunk(request);
    let blocks = blocks(request);
    let next = ((rank + 1) % ranks) as u32;
    let previous = ((rank + rounds) % ranks) as u32;
    // The slice `back` places before the own one.
    let place = |back: u64| (rank + 2 * ranks - back) % ranks;

    let slot = aligned(chunk.min(request.count.div_ceil(ranks)) * builder.element_bytes);
    let element_bytes = builder.element_bytes;
    let partial = |round: u64, piece: u64, cut: Cut| Slice {
        buffer: Buffer::Scratch,
        offset: slot * (round % 2 * DEPTH + piece),
        bytes: cut.elements * element_bytes,
    };
    if blocks > 0 {
        builder.reserve_scratch(slot * 2 * DEPTH);
    }

    builder.gate();
    for block in 0..blocks {
        let block = whole.part(blocks, block);
        let pieces = |place: u64| {
            let slice = block.part(ranks, place);
            (0..slice.chunks(chunk)).map(move |piece| (piece, slice.chunk(chunk, piece)))
        };
        for round in 0..rounds {
            for (piece, cut) in pieces(place(round + 1)) {
                let source = match round {
                    0 => builder.slice(Buffer::Send, cut),
                    _ => partial(round - 1, piece, cut),
                };
                builder.send(next, source, cut);
            }
            for (piece, cut) in pieces(place(round + 2)) {
                let received = partial(round, piece, cut);
                builder.recv(previous, received, cut);
                let last = round + 1 == rounds;
                let destination = if last { builder.slice(Buffer::Recv, cut) } else { received };
                builder.reduce([received, builder.slice(Buffer::Send, cut)], destination, false);
            }
        }
        for round in 0..rounds {
            for (_, cut) in pieces(place(round)) {
                builder.send(next, builder.slice(Buffer::Recv, cut), cut);
            }
            for (_, cut) in pieces(place(round + 1)) {
                builder.recv(previous, builder.slice(Buffer::Recv, cut), cut);
            }
        }
    }
}

/// Elements in a chunk.
fn chunk(request: &Request) -> u64 {
    let ranks = u64::from(request.ranks);
    let slice = request.count.div_ceil(ranks);
    chunk_elements(request.chunk_bytes, request.element_bytes(), slice, 5 * (ranks - 1))
}

/// How many blocks the vector has, each of up to [`DEPTH`] chunks a slice.
fn blocks(request: &Request) -> u64 {
    let slice = request.count.div_ceil(u64::from(request.ranks));
    slice.div_ceil(chunk(request).saturating_mul(DEPTH))
}

/// Every rank passes on all slices of each block but one, twice. The busiest leave out the shortest,
/// which are the last two of each block.
pub(in super::super) fn cost(request: &Request) -> Cost {
    let ranks = u64::from(request.ranks);
    let whole = Cut::whole(request.count);
    let (blocks, chunk) = (blocks(request), chunk(request));
    let (mut messages, mut sent, mut reduced) = (0, 0, 0);
    // Blocks have two lengths; the longer ones come first.
    let longer = whole.elements % blocks;
    for (block, number) in
        [(whole.part(blocks, 0), longer), (whole.part(blocks, longer), blocks - longer)]
    {
        let left_out = [block.part(ranks, ranks - 2), block.part(ranks, ranks - 1)];
        let all = 2 * block.chunks_of_parts(ranks, chunk);
        messages += number * (all - left_out[0].chunks(chunk) - left_out[1].chunks(chunk));
        sent += number * (2 * block.elements - left_out[0].elements - left_out[1].elements);
        reduced += number * 2 * (block.elements - left_out[1].elements);
    }
    Cost {
        rounds: 2 * (ranks - 1),
        rounds_beside_gate: ranks - 1,
        messages,
        bytes: sent.saturating_mul(request.element_bytes()),
        reduced_bytes: reduced.saturating_mul(request.element_bytes()),
        ..Cost::default()
    }
}
