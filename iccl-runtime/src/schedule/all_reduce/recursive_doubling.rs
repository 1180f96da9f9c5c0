//! All-reduce by recursive doubling (Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective
//! Communication Operations in MPICH", section 4.4): in round k each rank exchanges its partial
//! result with the rank whose number differs in bit k, and both reduce.
//!
//! With n no power of two, let p be the largest one below and x = n − p: of the first 2x ranks the
//! even ones hand their vector to the odd one above them, sit out, and get the result in the end.
//!
//! Rounds log₂ p (+ 2 when folding), as many messages a rank, V bytes each, 2V bytes reduced a round.
//! Partial sums travel, so no narrow float is summed this way and AVG is not carried.
//!
//! The operand of the group with the lower ranks always comes first. Groups are runs of neighbouring
//! ranks, so contributions are combined in rank order, and all ranks evaluate the same expression:
//! they get the same bits.
//!
//! Long vectors go chunk by chunk; the sequence is that of the first chunk, then the second, and so
//! on. A chunk's scratch is used again `WINDOW` chunks later.

use super::super::builder::Builder;
use super::super::cost::Cost;
use super::super::cuts::{Cut, aligned, chunk_elements};
use super::super::types::{Buffer, Request, Slice};

/// How many chunks may be under way at once.
const WINDOW: u64 = 4;

pub(in super::super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let (rank, ranks) = (request.rank, request.ranks);
    let rounds = ranks.ilog2();
    let folded = ranks - (1 << rounds);
    let whole = Cut::whole(request.count);
    let chunk = chunk(request);
    let chunks = whole.chunks(chunk);

    let sits_out = rank < 2 * folded && rank.is_multiple_of(2);
    let stands_for_two = rank < 2 * folded && !rank.is_multiple_of(2);
    // The number among the ranks that take part in the doubling, and back.
    let number = if rank < 2 * folded { rank / 2 } else { rank - folded };
    let rank_of = |number: u32| if number < folded { 2 * number + 1 } else { number + folded };

    let slot = aligned(chunk.min(request.count) * builder.element_bytes);
    let slots = u64::from(rounds) + u64::from(stands_for_two);
    if !sits_out {
        builder.reserve_scratch(slot * slots * WINDOW.min(chunks));
    }

    builder.gate();
    for piece in 0..chunks {
        let cut = whole.chunk(chunk, piece);
        let own = builder.slice(Buffer::Send, cut);
        let result = builder.slice(Buffer::Recv, cut);
        if sits_out {
            builder.send(rank + 1, own, cut);
            builder.recv(rank + 1, result, cut);
            continue;
        }
        let scratch = |index: u32| Slice {
            buffer: Buffer::Scratch,
            offset: slot * (piece % WINDOW * slots + u64::from(index)),
            bytes: own.bytes,
        };
        let mut partial = own;
        if stands_for_two {
            let received = scratch(rounds);
            builder.recv(rank - 1, received, cut);
            builder.reduce([received, own], received, false);
            partial = received;
        }
        for round in 0..rounds {
            let bit = 1 << round;
            let partner = rank_of(number ^ bit);
            let received = scratch(round);
            builder.recv(partner, received, cut);
            builder.send(partner, partial, cut);
            let operands =
                if number & bit == 0 { [partial, received] } else { [received, partial] };
            let destination = if round + 1 == rounds { result } else { received };
            builder.reduce(operands, destination, false);
            partial = destination;
        }
        if stands_for_two {
            builder.send(rank - 1, result, cut);
        }
    }
}

/// Elements in a chunk.
fn chunk(request: &Request) -> u64 {
    let steps = 3 * u64::from(request.ranks.ilog2()) + 3;
    chunk_elements(request.chunk_bytes, request.element_bytes(), request.count, steps)
}

/// The busiest rank is one that stands for two, if there are such.
pub(in super::super) fn cost(request: &Request) -> Cost {
    let doublings = u64::from(request.ranks.ilog2());
    let folds = u64::from(!request.ranks.is_power_of_two());
    let vector = request.count.saturating_mul(request.element_bytes());
    Cost {
        rounds: doublings + 2 * folds,
        rounds_beside_gate: doublings + folds,
        messages: (doublings + folds) * Cut::whole(request.count).chunks(chunk(request)),
        bytes: vector.saturating_mul(doublings + folds),
        reduced_bytes: vector.saturating_mul(2 * (doublings + folds)),
        ..Cost::default()
    }
}
