//! All-gather, all-to-all and their vector forms in one round: every rank sends each other rank its
//! block. (Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in
//! MPICH", section 3.3, for all-to-all: long messages pairwise. Here all pairs are posted at once.)
//!
//! n − 1 messages a rank and chunk, every block travels once.
//!
//! No gate: every rank hears from every other, so the fingerprint (and, in all-to-all-v, the length of
//! the block) rides on the messages. The first one of each pair carries at most [`EAGER_BYTES`], may be
//! empty, and lands in scratch; once all of them have come, they are copied to the user's buffer, and
//! what is left of the blocks is received straight into it. So a short exchange is one round, and
//! nothing of the user's is written before all ranks are known to agree.
//!
//! All-to-all in place: what a block is replaced by must wait until the block was sent, so all chunks
//! land in scratch, in a window of `WINDOW` chunks a peer.

use iccl_plugin_api::types::Collective;

use super::builder::Builder;
use super::cost::Cost;
use super::cuts::{Chunks, Cut, aligned, chunk_elements};
use super::types::{Buffer, Request, Slice};

/// How much of a block the first message of a pair carries at most.
const EAGER_BYTES: u64 = 8 << 10;
/// In place: how many chunks from each peer may wait in scratch.
const WINDOW: u64 = 4;

/// How a block is cut: what the first message carries, and the chunks of the rest.
struct Pieces {
    first: Cut,
    rest: Chunks,
}

impl Pieces {
    fn new(request: &Request, elements: u64) -> Self {
        let element_bytes = request.element_bytes();
        let eager = (EAGER_BYTES.min(request.chunk_bytes) / element_bytes).max(1);
        let rest = Cut::whole(elements).after(eager);
        let steps = 3 * u64::from(request.ranks);
        let chunk = chunk_elements(request.chunk_bytes, element_bytes, rest.elements, steps);
        Self { first: Cut::whole(eager.min(elements)), rest: Chunks::new(rest, chunk) }
    }
}

pub(super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let (rank, ranks) = (request.rank, request.ranks);
    // Ranks take different peers first, so that no one is everyone's first target.
    let to: Vec<u32> = (1..ranks).map(|distance| (rank + distance) % ranks).collect();
    let from: Vec<u32> = (1..ranks).map(|distance| (rank + ranks - distance) % ranks).collect();
    let sent: Vec<(Cut, Pieces)> = pieces(request, &to, Request::send_block);
    let received: Vec<(Cut, Pieces)> = pieces(request, &from, Request::recv_block);

    let mut scratch = 0;
    let mut reserve = |elements: u64| {
        let bytes = elements * request.element_bytes();
        let slice = Slice { buffer: Buffer::Scratch, offset: scratch, bytes };
        scratch += aligned(bytes);
        slice
    };
    let firsts: Vec<Slice> =
        received.iter().map(|(_, pieces)| reserve(pieces.first.elements)).collect();
    let replaces = builder.in_place() && request.collective == Collective::AllToAll;
    let windows: Vec<Slice> = if replaces {
        let slots = received.iter().flat_map(|(_, pieces)| {
            std::iter::repeat_n(pieces.rest.longest(), WINDOW.min(pieces.rest.count()) as usize)
        });
        slots.map(reserve).collect()
    } else {
        Vec::new()
    };
    builder.reserve_scratch(scratch);

    for ((peer, (_, pieces)), slice) in from.iter().zip(&received).zip(&firsts) {
        builder.hear(*peer, *slice, pieces.first);
    }
    for (peer, (block, pieces)) in to.iter().zip(&sent) {
        let source = builder.slice(Buffer::Send, pieces.first.inside(*block));
        builder.send(*peer, source, pieces.first);
    }
    for ((block, pieces), slice) in received.iter().zip(&firsts) {
        if slice.bytes > 0 {
            let destination = builder.slice(Buffer::Recv, pieces.first.inside(*block));
            builder.copy(*slice, destination);
        }
    }
    builder.copy_own_block();

    let chunks = sent.iter().chain(&received).map(|(_, pieces)| pieces.rest.count());
    for index in 0..chunks.max().unwrap_or(0) {
        let mut copies = Vec::new();
        for (place, (peer, (block, pieces))) in from.iter().zip(&received).enumerate() {
            let Some(cut) = pieces.rest.get(index) else { continue };
            let destination = builder.slice(Buffer::Recv, cut.inside(*block));
            if replaces {
                let slots = WINDOW.min(pieces.rest.count());
                let slot = windows[place * slots as usize + (index % slots) as usize];
                let slot = Slice { bytes: destination.bytes, ..slot };
                builder.recv(*peer, slot, cut);
                copies.push((slot, destination));
            } else {
                builder.recv(*peer, destination, cut);
            }
        }
        for (peer, (block, pieces)) in to.iter().zip(&sent) {
            if let Some(cut) = pieces.rest.get(index) {
                builder.send(*peer, builder.slice(Buffer::Send, cut.inside(*block)), cut);
            }
        }
        for (slot, destination) in copies {
            builder.copy(slot, destination);
        }
    }
}

/// The blocks exchanged with `peers`, and how they are cut.
fn pieces(request: &Request, peers: &[u32], block: fn(&Request, u32) -> Cut) -> Vec<(Cut, Pieces)> {
    let cut = |peer: &u32| {
        let block = block(request, *peer);
        (block, Pieces::new(request, block.elements))
    };
    peers.iter().map(cut).collect()
}

/// What this rank sends or receives, whichever is more.
pub(super) fn cost(request: &Request) -> Cost {
    let equal = request.counts.is_none();
    let load = |block: fn(&Request, u32) -> Cut| {
        // Equal blocks need not be counted one by one.
        let peers = if equal { 1 } else { request.ranks };
        let times = if equal { u64::from(request.ranks) - 1 } else { 1 };
        let (mut messages, mut elements, mut rest) = (0, 0_u64, false);
        for peer in (0..peers).filter(|peer| equal || *peer != request.rank) {
            let block = block(request, peer);
            let pieces = Pieces::new(request, block.elements);
            messages += times * (1 + pieces.rest.count());
            elements = elements.saturating_add(block.elements.saturating_mul(times));
            rest |= pieces.rest.count() > 0;
        }
        (messages, elements, rest)
    };
    let (sent, received) = (load(Request::send_block), load(Request::recv_block));
    Cost {
        rounds: 1 + u64::from(sent.2 || received.2),
        messages: sent.0.max(received.0),
        bytes: sent.1.max(received.1).saturating_mul(request.element_bytes()),
        ..Cost::default()
    }
}
