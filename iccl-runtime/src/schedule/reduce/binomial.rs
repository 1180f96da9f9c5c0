//! Reduce up a binomial tree (Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective
//! Communication Operations in MPICH", section 4.3, short messages), chunk by chunk: the broadcast of
//! this kind, backwards.
//!
//! Ranks are numbered from the root. Number v reduces what it gets from v + 2^k, for each 2^k below
//! its lowest one-bit, together with its own, and sends the result to v with that bit cleared. The
//! order of the contributions is that of the numbers: it starts at the root. Partial sums travel, so
//! no narrow float is summed this way and AVG is not carried.
//!
//! ⌊log₂ n⌋ rounds; the root receives ⌈log₂ n⌉ vectors. A chunk's scratch is used again `WINDOW`
//! chunks later.

use super::super::builder::Builder;
use super::super::cost::{Cost, log2_ceil};
use super::super::cuts::{Cut, aligned, chunk_elements};
use super::super::types::{Buffer, Request, Slice};

/// How many chunks may be under way at once.
const WINDOW: u64 = 4;

pub(in super::super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let ranks = u64::from(request.ranks);
    let number = (u64::from(request.rank) + ranks - u64::from(request.root)) % ranks;
    let rank_of = |number: u64| ((number + u64::from(request.root)) % ranks) as u32;
    let reach = match number {
        0 => ranks.next_power_of_two(),
        _ => number & number.wrapping_neg(),
    };
    // The smallest subtree first, so that contributions stand in the order of the numbers.
    let children: Vec<u32> = std::iter::successors(Some(1), |step| Some(step * 2))
        .take_while(|step| *step < reach)
        .map(|step| number + step)
        .filter(|child| *child < ranks)
        .map(rank_of)
        .collect();

    let element_bytes = builder.element_bytes;
    let whole = Cut::whole(request.count);
    let chunk = chunk(request);
    let chunks = whole.chunks(chunk);
    let slot = aligned(chunk.min(request.count) * element_bytes);
    builder.reserve_scratch(slot * children.len() as u64 * WINDOW.min(chunks));

    builder.gate();
    for piece in 0..chunks {
        let cut = whole.chunk(chunk, piece);
        let own = builder.slice(Buffer::Send, cut);
        let received: Vec<Slice> = (0..children.len() as u64)
            .map(|child| Slice {
                buffer: Buffer::Scratch,
                offset: slot * (piece % WINDOW * children.len() as u64 + child),
                bytes: own.bytes,
            })
            .collect();
        for (child, slice) in children.iter().zip(&received) {
            builder.recv(*child, *slice, cut);
        }
        let mut partial = own;
        if let Some(first) = received.first() {
            partial = if number == 0 { builder.slice(Buffer::Recv, cut) } else { *first };
            builder.reduce(std::iter::once(own).chain(received.iter().copied()), partial, false);
        }
        if number != 0 {
            builder.send(rank_of(number & (number - 1)), partial, cut);
        }
    }
}

/// Elements in a chunk. All ranks must cut alike, so the busiest one, the root, sets it.
fn chunk(request: &Request) -> u64 {
    let steps = 1 + u64::from(log2_ceil(request.ranks));
    chunk_elements(request.chunk_bytes, request.element_bytes(), request.count, steps)
}

/// The busiest rank is the root.
pub(in super::super) fn cost(request: &Request) -> Cost {
    let children = u64::from(log2_ceil(request.ranks));
    let vector = request.count.saturating_mul(request.element_bytes());
    let rounds = u64::from(request.ranks.ilog2());
    Cost {
        rounds,
        rounds_beside_gate: rounds,
        messages: children * Cut::whole(request.count).chunks(chunk(request)),
        bytes: vector.saturating_mul(children),
        reduced_bytes: vector.saturating_mul(children + 1),
        ..Cost::default()
    }
}
