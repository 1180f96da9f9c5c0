//! Broadcast down a binomial tree (Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective
//! Communication Operations in MPICH", section 3.2), chunk by chunk, so that a rank passes on one
//! chunk while it gets the next.
//!
//! Ranks are numbered from the root. Number v hears from v with its lowest one-bit cleared, and
//! sends to v + 2^k for each 2^k below that bit, the largest subtree first. No rank is more
//! than ⌊log₂ n⌋ messages away (the most one-bits a number below n has); the root sends ⌈log₂ n⌉·V
//! bytes.

use super::super::builder::Builder;
use super::super::cost::{Cost, log2_ceil};
use super::super::cuts::{Cut, chunk_elements};
use super::super::types::{Buffer, Request};

pub(in super::super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let ranks = u64::from(request.ranks);
    let number = (u64::from(request.rank) + ranks - u64::from(request.root)) % ranks;
    let rank_of = |number: u64| ((number + u64::from(request.root)) % ranks) as u32;
    let reach = match number {
        0 => ranks.next_power_of_two(),
        _ => number & number.wrapping_neg(),
    };
    let children: Vec<u32> = std::iter::successors(Some(reach / 2), |step| Some(step / 2))
        .take_while(|step| *step > 0)
        .map(|step| number + step)
        .filter(|child| *child < ranks)
        .map(rank_of)
        .collect();

    let whole = Cut::whole(request.count);
    let chunk = chunk(request);
    builder.gate();
    for index in 0..whole.chunks(chunk) {
        let cut = whole.chunk(chunk, index);
        let held = match number {
            0 => builder.slice(Buffer::Send, cut),
            _ => builder.slice(Buffer::Recv, cut),
        };
        if number != 0 {
            builder.recv(rank_of(number & (number - 1)), held, cut);
        }
        for child in &children {
            builder.send(*child, held, cut);
        }
        if number == 0 {
            builder.copy_own(cut);
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
    Cost {
        rounds: u64::from(request.ranks.ilog2()),
        messages: children * Cut::whole(request.count).chunks(chunk(request)),
        bytes: request.count.saturating_mul(request.element_bytes()).saturating_mul(children),
        ..Cost::default()
    }
}
