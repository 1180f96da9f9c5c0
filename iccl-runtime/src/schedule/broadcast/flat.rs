//! Broadcast in one round: the root sends the vector to everyone, chunk by chunk, so that all get
//! the first chunk before anyone gets the second.
//!
//! Rounds 1, n − 1 messages a chunk and (n − 1)·V bytes sent by the root. The least latency for few
//! ranks.

use super::super::builder::Builder;
use super::super::cuts::{Cut, chunk_elements};
use super::super::types::Buffer;

pub(in super::super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let (rank, ranks, root) = (request.rank, request.ranks, request.root);
    let whole = Cut::whole(request.count);
    let chunk =
        chunk_elements(request.chunk_bytes, builder.element_bytes, request.count, u64::from(ranks));
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
