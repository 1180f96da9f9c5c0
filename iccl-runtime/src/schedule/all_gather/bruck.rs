//! All-gather in ⌈log₂ n⌉ rounds for any number of ranks (Bruck, Ho, Kipnis, Upfal, Weathersby 1997,
//! "Efficient algorithms for all-to-all communications in multiport message-passing systems",
//! section 4): in the round that starts with h blocks on each rank, rank r sends its blocks
//! r … r + h − 1 to rank r − h and receives the next h from rank r + h; in the last round only what is
//! still missing.
//!
//! Blocks go straight to their places, so nothing is rotated in the end; for it, what wraps around the
//! end of the vector travels as two messages. ⌈log₂ n⌉ rounds, up to two messages each, and n − 1
//! blocks sent and received.

use super::super::builder::Builder;
use super::super::cost::{Cost, log2_ceil};
use super::super::cuts::{Cut, chunk_elements};
use super::super::types::{Buffer, Request};

pub(in super::super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let (rank, ranks) = (u64::from(request.rank), u64::from(request.ranks));
    let count = request.count;
    let chunk = chunk(request);
    // The chunks of `blocks` blocks from block `first` on, around the end of the vector.
    let chunks = |first: u64, blocks: u64| {
        let before_end = blocks.min(ranks - first);
        let runs = [
            Cut { first: first * count, elements: before_end * count },
            Cut { first: 0, elements: (blocks - before_end) * count },
        ];
        runs.into_iter()
            .flat_map(move |run| (0..run.chunks(chunk)).map(move |index| run.chunk(chunk, index)))
    };

    builder.gate();
    builder.copy_own_block();
    let mut held = 1;
    while held < ranks {
        let blocks = held.min(ranks - held);
        let lower = ((rank + ranks - held) % ranks) as u32;
        let upper = (rank + held) % ranks;
        for cut in chunks(rank, blocks) {
            // The own block need not be in the receive buffer yet.
            let source = match held {
                1 => Cut { first: cut.first - rank * count, ..cut }
                    .within(Buffer::Send, builder.element_bytes),
                _ => builder.slice(Buffer::Recv, cut),
            };
            builder.send(lower, source, cut);
        }
        for cut in chunks(upper, blocks) {
            builder.recv(upper as u32, builder.slice(Buffer::Recv, cut), cut);
        }
        held *= 2;
    }
}

/// Elements in a chunk.
fn chunk(request: &Request) -> u64 {
    let others = u64::from(request.ranks) - 1;
    chunk_elements(request.chunk_bytes, request.element_bytes(), request.count * others, 2)
}

/// Messages are counted as on a rank whose blocks wrap around in every round.
pub(in super::super) fn cost(request: &Request) -> Cost {
    let ranks = u64::from(request.ranks);
    let rounds = log2_ceil(request.ranks);
    let messages = (0..rounds).map(|round| {
        let held = 1 << round;
        let blocks = held.min(ranks - held);
        let run = Cut::whole(blocks * request.count);
        run.chunks(chunk(request)) + u64::from(blocks > 1)
    });
    Cost {
        rounds: rounds.into(),
        messages: messages.sum(),
        bytes: (request.count * (ranks - 1)).saturating_mul(request.element_bytes()),
        ..Cost::default()
    }
}
