//! Broadcast in one round: the root sends the vector to everyone, chunk by chunk, so that all get
//! the first chunk before anyone gets the second.
//!
//! Rounds 1, n − 1 messages a chunk and (n − 1)·V bytes sent by the root. The least latency for few
//! ranks.

use super::super::builder::Builder;
use super::super::cost::Cost;
use super::super::cuts::{Cut, chunk_elements};
use super::super::types::{Buffer, Request};

pub(in super::super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let (rank, ranks, root) = (request.rank, request.ranks, request.root);
    let whole = Cut::whole(request.count);
    let chunk = chunk(request);
    builder.gate();
    for number in 0..whole.chunks(chunk) {
        let cut = whole.chunk(chunk, number);
        if rank == root {
            for distance in 1..ranks {
                let source = builder.slice(Buffer::Send, cut);
                builder.send((root + distance) % ranks, source, cut);
            }
            builder.copy_own(cut);
        } else {
            builder.recv(root, builder.slice(Buffer::Recv, cut), cut);
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
    Cost {
        rounds: 1,
        messages: others * Cut::whole(request.count).chunks(chunk(request)),
        bytes: request.count.saturating_mul(request.element_bytes()).saturating_mul(others),
        ..Cost::default()
    }
}
