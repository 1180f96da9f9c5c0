//! Broadcast as scatter and all-gather (van de Geijn; Thakur, Rabenseifner, Gropp 2005,
//! "Optimization of Collective Communication Operations in MPICH", section 3.2), for long vectors:
//! the root sends each other rank one slice, and these pass their slices on to one another.
//!
//! The root keeps no slice of its own, so it sends the vector exactly once; every other rank sends
//! (n − 2)/(n − 1)·V bytes. Rounds 2: slices are passed on to all peers directly and chunk by chunk,
//! so that scattering and gathering overlap.

use super::super::builder::Builder;
use super::super::cost::Cost;
use super::super::cuts::{Cut, chunk_elements};
use super::super::types::{Buffer, Request};

pub(in super::super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let (ranks, root) = (request.ranks, request.root);
    let others = u64::from(ranks) - 1;
    // Ranks are numbered from the root; slice s belongs to number s + 1.
    let number = (request.rank + ranks - root) % ranks;
    let rank_of = |number: u32| (root + number) % ranks;
    let slice_of = |number: u32| Cut::whole(request.count).part(others, u64::from(number) - 1);
    let longest = slice_of(1);
    let chunk = chunk(request);
    let chunk_of = |number: u32, index: u64| {
        let slice = slice_of(number);
        (index < slice.chunks(chunk)).then(|| slice.chunk(chunk, index))
    };

    builder.gate();
    for index in 0..longest.chunks(chunk) {
        if number == 0 {
            for helper in 1..ranks {
                if let Some(cut) = chunk_of(helper, index) {
                    builder.send(rank_of(helper), builder.slice(Buffer::Send, cut), cut);
                    builder.copy_own(cut);
                }
            }
            continue;
        }
        // The other helpers, starting after this one, so that they are not all served in one order.
        let helper_at = |distance: u64| ((u64::from(number) - 1 + distance) % others) as u32 + 1;
        if let Some(cut) = chunk_of(number, index) {
            let held = builder.slice(Buffer::Recv, cut);
            builder.recv(root, held, cut);
            for helper in (1..others).map(helper_at) {
                builder.send(rank_of(helper), held, cut);
            }
        }
        for helper in (1..others).map(|distance| helper_at(others - distance)) {
            if let Some(cut) = chunk_of(helper, index) {
                builder.recv(rank_of(helper), builder.slice(Buffer::Recv, cut), cut);
            }
        }
    }
}

/// Elements in a chunk.
fn chunk(request: &Request) -> u64 {
    let others = u64::from(request.ranks) - 1;
    let longest = request.count.div_ceil(others);
    chunk_elements(request.chunk_bytes, request.element_bytes(), longest, 2 * others)
}

/// The root sends the vector once, everyone else receives it once. When the root is done, the last
/// chunk of a slice has yet to be passed on.
pub(in super::super) fn cost(request: &Request) -> Cost {
    let others = u64::from(request.ranks) - 1;
    let whole = Cut::whole(request.count);
    let longest = whole.part(others, 0);
    let chunk = chunk(request);
    let passed_on = longest.elements.saturating_mul(others - 1);
    Cost {
        rounds: 1 + u64::from(others > 1),
        messages: whole.chunks_of_parts(others, chunk).max(longest.chunks(chunk) * (others - 1)),
        bytes: request.count.max(passed_on).saturating_mul(request.element_bytes()),
        fill_bytes: (chunk.min(longest.elements) * request.element_bytes())
            .saturating_mul(others - 1),
        ..Cost::default()
    }
}
