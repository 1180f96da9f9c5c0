//! All-gather around a ring (Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective
//! Communication Operations in MPICH", section 3.1): in each of n − 1 rounds a rank passes on the block
//! that it got in the round before.
//!
//! n − 1 messages a rank and chunk, n − 1 blocks sent and received, and each rank talks to its two
//! neighbours only. A chunk is passed on as soon as it is there, so rounds overlap.

use super::super::builder::Builder;
use super::super::cost::Cost;
use super::super::cuts::{Cut, chunk_elements};
use super::super::types::{Buffer, Request};

pub(in super::super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let (rank, ranks) = (request.rank, request.ranks);
    let chunk = chunk(request);
    let next = (rank + 1) % ranks;
    let previous = (rank + ranks - 1) % ranks;
    let block = Cut::whole(request.count);
    // The chunks of the block of the rank `back` places before this one.
    let chunks_of = |back: u32| {
        let place = request.block_at((rank + ranks - back) % ranks);
        (0..block.chunks(chunk)).map(move |index| (index, place.chunk(chunk, index)))
    };

    builder.gate();
    builder.copy_own_block();
    for round in 0..ranks - 1 {
        for (index, cut) in chunks_of(round) {
            // The own block need not be in the receive buffer yet.
            let source = match round {
                0 => builder.slice(Buffer::Send, block.chunk(chunk, index)),
                _ => builder.slice(Buffer::Recv, cut),
            };
            builder.send(next, source, cut);
        }
        for (_, cut) in chunks_of(round + 1) {
            builder.recv(previous, builder.slice(Buffer::Recv, cut), cut);
        }
    }
}

/// Elements in a chunk.
fn chunk(request: &Request) -> u64 {
    let steps = 2 * (u64::from(request.ranks) - 1);
    chunk_elements(request.chunk_bytes, request.element_bytes(), request.count, steps)
}

pub(in super::super) fn cost(request: &Request) -> Cost {
    let others = u64::from(request.ranks) - 1;
    Cost {
        rounds: others,
        messages: others * Cut::whole(request.count).chunks(chunk(request)),
        bytes: (request.count * others).saturating_mul(request.element_bytes()),
        ..Cost::default()
    }
}
