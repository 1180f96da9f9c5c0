//! Send and recv: the message goes chunk by chunk, each with the fingerprint in its envelope. A
//! message of no elements is one empty chunk, so that the receiver hears of it.

use iccl_plugin_api::types::Collective;

use super::builder::Builder;
use super::cost::Cost;
use super::cuts::{Cut, chunk_elements};
use super::types::{Buffer, Request};

pub(super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let whole = Cut::whole(request.count);
    let chunk = chunk(request);
    for index in 0..whole.chunks(chunk).max(1) {
        let cut = whole.chunk(chunk, index);
        match request.collective {
            Collective::Send => builder.send(request.root, builder.slice(Buffer::Send, cut), cut),
            _ => builder.recv(request.root, builder.slice(Buffer::Recv, cut), cut),
        }
    }
}

/// Elements in a chunk.
fn chunk(request: &Request) -> u64 {
    chunk_elements(request.chunk_bytes, request.element_bytes(), request.count, 1)
}

pub(super) fn cost(request: &Request) -> Cost {
    Cost {
        rounds: 1,
        messages: Cut::whole(request.count).chunks(chunk(request)).max(1),
        bytes: request.count.saturating_mul(request.element_bytes()),
        ..Cost::default()
    }
}
