//! Gather and scatter in one round: the root exchanges each rank's block with that rank, chunk by
//! chunk, all ranks at once.
//!
//! n − 1 messages a chunk and n − 1 blocks at the root.
//!
//! In the vector forms each rank first tells the root how long it takes its block to be: an empty
//! message, whose envelope carries the count. The root enters the gate only after it has heard that
//! from everyone, so whoever has passed the gate knows that all counts agree, pair by pair.

use iccl_plugin_api::types::Collective;

use super::super::builder::Builder;
use super::super::cost::Cost;
use super::super::cuts::{Chunks, Cut, chunk_elements};
use super::super::types::{Buffer, Request, Slice};

pub(in super::super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let Request { rank, ranks, root, collective, .. } = *request;
    let others: Vec<u32> = (1..ranks).map(|distance| (root + distance) % ranks).collect();
    let gathers = matches!(collective, Collective::Gather | Collective::GatherV);

    if request.counts.is_some() {
        let nothing = Slice { buffer: Buffer::Scratch, offset: 0, bytes: 0 };
        if rank == root {
            for peer in &others {
                builder.hear(*peer, nothing, Cut::whole(0));
            }
        } else {
            builder.send(root, nothing, Cut::whole(0));
        }
    }
    builder.gate();
    if rank != root {
        let block = if gathers { request.send_block(root) } else { request.recv_block(root) };
        let chunks = chunks(request, block);
        for cut in (0..chunks.count()).filter_map(|number| chunks.get(number)) {
            if gathers {
                builder.send(root, builder.slice(Buffer::Send, cut.inside(block)), cut);
            } else {
                builder.recv(root, builder.slice(Buffer::Recv, cut.inside(block)), cut);
            }
        }
        return;
    }
    let blocks: Vec<(u32, Cut, Chunks)> = others
        .into_iter()
        .map(|peer| {
            let block = if gathers { request.recv_block(peer) } else { request.send_block(peer) };
            (peer, block, chunks(request, block))
        })
        .collect();
    let most = blocks.iter().map(|(_, _, chunks)| chunks.count()).max();
    for number in 0..most.unwrap_or(0) {
        for (peer, block, chunks) in &blocks {
            let Some(cut) = chunks.get(number) else { continue };
            if gathers {
                builder.recv(*peer, builder.slice(Buffer::Recv, cut.inside(*block)), cut);
            } else {
                builder.send(*peer, builder.slice(Buffer::Send, cut.inside(*block)), cut);
            }
        }
    }
    builder.copy_own_block();
}

fn chunks(request: &Request, block: Cut) -> Chunks {
    let (chunk_bytes, element_bytes) = (request.chunk_bytes, request.element_bytes());
    let steps = u64::from(request.ranks);
    let chunk = chunk_elements(chunk_bytes, element_bytes, block.elements, steps);
    Chunks::new(Cut::whole(block.elements), chunk)
}

/// The busiest rank is the root. In the vector forms only the root knows all blocks, and others count
/// themselves.
pub(in super::super) fn cost(request: &Request) -> Cost {
    let others = u64::from(request.ranks) - 1;
    let gathers = matches!(request.collective, Collective::Gather | Collective::GatherV);
    let block = |peer| if gathers { request.recv_block(peer) } else { request.send_block(peer) };
    let load = |block: Cut| (chunks(request, block).count(), block.elements);
    let (messages, elements) = if request.counts.is_none() {
        let (messages, elements) = load(Cut::whole(request.count));
        (messages * others, elements.saturating_mul(others))
    } else if request.rank == request.root {
        let blocks = (0..request.ranks).filter(|peer| *peer != request.root).map(block);
        blocks.map(load).fold((0, 0_u64), |sum, one| (sum.0 + one.0, sum.1.saturating_add(one.1)))
    } else {
        let own = if gathers { request.send_block(request.root) } else { request.recv_block(0) };
        load(own)
    };
    let told = match request.counts {
        None => 0,
        Some(_) if request.rank == request.root => others,
        Some(_) => 1,
    };
    Cost {
        rounds: 1 + told.min(1),
        rounds_beside_gate: told.min(1),
        messages: if gathers { messages + told } else { messages.max(told) },
        bytes: elements.saturating_mul(request.element_bytes()),
        ..Cost::default()
    }
}
