//! All-reduce where the owner of a slice reduces it: the vector is cut into one slice a rank, every
//! rank sends its contribution to each slice to the slice's owner, the owner reduces all n
//! contributions at once in rank order and sends the result to everyone.
//!
//! Rounds 2, messages 2(n − 1) a rank and chunk, 2(n − 1)/n·V bytes sent and received (as a ring),
//! V bytes reduced. It is reduce-scatter by pairwise exchange followed by all-gather (Thakur,
//! Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in MPICH",
//! sections 4.1 and 4.4), with the difference that contributions are kept apart until all are there,
//! so that narrow floats are rounded once and AVG divides once.
//!
//! Chunks flow through a window of scratch: while chunk t travels, chunk t − LAG is reduced and
//! handed out. In the sequence, stage t is: all contributions to chunk t of every slice, then all
//! reductions of chunk t − LAG, then the results of chunk t − LAG to everyone.

use super::super::builder::Builder;
use super::super::cost::Cost;
use super::super::cuts::{Cut, aligned, chunk_elements};
use super::super::types::{Buffer, Request, Slice};

/// How many chunks of scratch each contributor has at the owner.
const WINDOW: u64 = 4;
/// How many stages a chunk's reduction comes after its contributions. Less than the window, so that
/// a slot's last reader stands before its next writer in the sequence.
const LAG: u64 = WINDOW - 1;

pub(in super::super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let (rank, ranks) = (request.rank, request.ranks);
    let others = u64::from(ranks) - 1;
    let slice_of = |owner: u32| Cut::whole(request.count).part(u64::from(ranks), u64::from(owner));
    let longest = slice_of(0);
    let chunk = chunk(request);
    // The chunk with this number of an owner's slice, if the slice has that many.
    let chunk_of = |owner: u32, number: u64| {
        let slice = slice_of(owner);
        (number < slice.chunks(chunk)).then(|| slice.chunk(chunk, number))
    };
    let element_bytes = builder.element_bytes;
    let own_slice = slice_of(rank);
    let slot = aligned(chunk.min(own_slice.elements) * element_bytes);
    builder.reserve_scratch(slot * others * WINDOW.min(own_slice.chunks(chunk)));

    // Where the contribution of `from` to chunk `number` of the own slice lies.
    let contribution = |from: u32, number: u64, cut: Cut| {
        if from == rank {
            return cut.within(Buffer::Send, element_bytes);
        }
        let contributor = u64::from(from - u32::from(from > rank));
        Slice {
            buffer: Buffer::Scratch,
            offset: slot * (number % WINDOW * others + contributor),
            bytes: cut.elements * element_bytes,
        }
    };
    // Ranks take different peers first, so that no one is everyone's first target.
    let to = move |distance: u32| (rank + distance) % ranks;
    let from = move |distance: u32| (rank + ranks - distance) % ranks;

    builder.gate();
    let stages = match longest.chunks(chunk) {
        0 => 0,
        chunks => chunks + LAG,
    };
    for stage in 0..stages {
        if let Some(cut) = chunk_of(rank, stage) {
            for peer in (1..ranks).map(from) {
                builder.recv(peer, contribution(peer, stage, cut), cut);
            }
        }
        for peer in (1..ranks).map(to) {
            if let Some(cut) = chunk_of(peer, stage) {
                builder.send(peer, builder.slice(Buffer::Send, cut), cut);
            }
        }
        let Some(number) = stage.checked_sub(LAG) else { continue };
        if let Some(cut) = chunk_of(rank, number) {
            let result = builder.slice(Buffer::Recv, cut);
            builder.reduce((0..ranks).map(|from| contribution(from, number, cut)), result, true);
            for peer in (1..ranks).map(to) {
                builder.send(peer, result, cut);
            }
        }
        for peer in (1..ranks).map(from) {
            if let Some(cut) = chunk_of(peer, number) {
                builder.recv(peer, builder.slice(Buffer::Recv, cut), cut);
            }
        }
    }
}

/// Elements in a chunk.
fn chunk(request: &Request) -> u64 {
    let ranks = u64::from(request.ranks);
    let longest = request.count.div_ceil(ranks);
    chunk_elements(request.chunk_bytes, request.element_bytes(), longest, 4 * ranks - 3)
}

/// The busiest rank is 0, whose slice is the longest.
pub(in super::super) fn cost(request: &Request) -> Cost {
    let ranks = u64::from(request.ranks);
    let whole = Cut::whole(request.count);
    let own = whole.part(ranks, 0);
    let sent = request.count - own.elements + own.elements.saturating_mul(ranks - 1);
    let own_chunks = own.chunks(chunk(request));
    Cost {
        rounds: 2,
        rounds_beside_gate: 1,
        messages: whole.chunks_of_parts(ranks, chunk(request)) + own_chunks * (ranks - 1)
            - own_chunks,
        bytes: sent.saturating_mul(request.element_bytes()),
        reduced_bytes: (own.elements * request.element_bytes()).saturating_mul(ranks),
        ..Cost::default()
    }
}
