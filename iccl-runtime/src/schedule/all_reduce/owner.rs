//! All-reduce and reduce where the owner of a slice reduces it: the vector is cut into one slice a
//! rank, every rank sends its contribution to each slice to the slice's owner, the owner reduces all n
//! contributions at once in rank order and sends the result to everyone, or to the root.
//!
//! Rounds 2, messages 2(n − 1) a rank and chunk, 2(n − 1)/n·V bytes sent and received (as a ring),
//! V bytes reduced; in a reduce only the root receives as much. It is reduce-scatter by pairwise exchange followed by all-gather (Thakur,
//! Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in MPICH",
//! sections 4.1, 4.3 and 4.4), with the difference that contributions are kept apart until all are there,
//! so that narrow floats are rounded once and AVG divides once.
//!
//! Chunks flow through a window of scratch: while chunk t travels, chunk t − LAG is reduced and
//! handed out. In the sequence, stage t is: all contributions to chunk t of every slice, then all
//! reductions of chunk t − LAG, then the results of chunk t − LAG to whoever gets them.

use iccl_plugin_api::types::Collective;

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
    let gets_result =
        |peer: u32| request.collective == Collective::AllReduce || peer == request.root;

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
            let result = if gets_result(rank) {
                builder.slice(Buffer::Recv, cut)
            } else {
                // Where someone's contribution was.
                contribution(from(1), number, cut)
            };
            builder.reduce((0..ranks).map(|from| contribution(from, number, cut)), result, true);
            for peer in (1..ranks).map(to).filter(|peer| gets_result(*peer)) {
                builder.send(peer, result, cut);
            }
        }
        for peer in (1..ranks).map(from).filter(|_| gets_result(rank)) {
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

/// Of the ranks that do the same, the busiest is 0, whose slice is the longest; in a reduce, the root
/// does something else.
pub(in super::super) fn cost(request: &Request) -> Cost {
    let ranks = u64::from(request.ranks);
    let whole = Cut::whole(request.count);
    let chunk = chunk(request);
    let all_chunks = whole.chunks_of_parts(ranks, chunk);
    let root = (request.collective == Collective::Reduce).then_some(request.root);
    // Messages and elements of a rank, sent or received, whichever are more.
    let load = |rank: u32| {
        let own = whole.part(ranks, rank.into());
        let own_chunks = own.chunks(chunk);
        let receivers = root.map_or(ranks - 1, |root| u64::from(rank != root));
        let others = (all_chunks - own_chunks, request.count - own.elements);
        let gathered = if root.is_none_or(|root| rank == root) { others } else { (0, 0) };
        let received = (ranks - 1) * own_chunks + gathered.0;
        let sent = others.0 + receivers * own_chunks;
        let bytes_received = own.elements.saturating_mul(ranks - 1).saturating_add(gathered.1);
        let bytes_sent = own.elements.saturating_mul(receivers).saturating_add(others.1);
        (sent.max(received), bytes_sent.max(bytes_received))
    };
    let loads: Vec<(u64, u64)> = std::iter::once(0).chain(root).map(load).collect();
    let busiest = |pick: fn(&(u64, u64)) -> u64| loads.iter().map(pick).max().unwrap_or(0);
    let longest = whole.part(ranks, 0).elements.saturating_mul(request.element_bytes());
    Cost {
        rounds: 2,
        rounds_beside_gate: 1,
        messages: busiest(|load| load.0),
        bytes: busiest(|load| load.1).saturating_mul(request.element_bytes()),
        reduced_bytes: longest.saturating_mul(ranks),
        ..Cost::default()
    }
}
