//! Send and recv: the message goes chunk by chunk, each with the fingerprint in its envelope. A
//! message of no elements is one empty chunk, so that the receiver hears of it.

use iccl_plugin_api::types::Collective;

use super::builder::Builder;
use super::cuts::{Cut, chunk_elements};
use super::types::Buffer;

pub(super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let whole = Cut::whole(request.count);
    let chunk = chunk_elements(request.chunk_bytes, builder.element_bytes, request.count, 1);
    for index in 0..whole.chunks(chunk).max(1) {
        let cut = whole.chunk(chunk, index);
        match request.collective {
            Collective::Send => builder.send(request.root, builder.slice(Buffer::Send, cut), cut),
            _ => builder.recv(request.root, builder.slice(Buffer::Recv, cut), cut),
        }
    }
}
