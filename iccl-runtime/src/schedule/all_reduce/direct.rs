//! All-reduce in one round: every rank sends its whole vector to every other, and each reduces all
//! contributions at once, in rank order.
//!
//! Rounds 1, messages n − 1 a rank, (n − 1)·V bytes sent and received, n·V bytes reduced, (n − 1)·V
//! bytes of scratch. Right for small vectors, where latency is all: this is the all-gather of the
//! operands followed by a local reduction (Chan, Heimlich, Purkayastha, van de Geijn 2007,
//! "Collective communication: theory, practice, and experience", the building blocks), without a
//! tree.
//!
//! No gate: every rank hears from every other, so the fingerprint rides on each message. All of them
//! land in scratch, and the one step that writes the user's buffer waits for all. For the same
//! reason messages are sent even for a vector of no elements.

use super::super::builder::Builder;
use super::super::cost::Cost;
use super::super::cuts::{Cut, aligned};
use super::super::types::{Buffer, Request, Slice};
use crate::error::{Error, ErrorKind, Result};

pub(in super::super) fn compile(builder: &mut Builder<'_>) -> Result<()> {
    let request = builder.request;
    let (rank, ranks) = (request.rank, request.ranks);
    let whole = Cut::whole(request.count);
    let own = builder.slice(Buffer::Send, whole);
    let slot = aligned(own.bytes);
    let scratch =
        slot.checked_mul(u64::from(ranks - 1)).filter(|bytes| i64::try_from(*bytes).is_ok());
    builder.reserve_scratch(scratch.ok_or_else(|| {
        Error::new(
            ErrorKind::OutOfResources,
            format!("algorithm direct would need {slot} bytes of scratch for each rank: {request}"),
        )
        .with_hint("choose algorithm owner, or let iccl choose")
    })?);

    // Where the contribution of `from` lies.
    let contribution = |from: u32| match from {
        from if from == rank => own,
        from => Slice {
            buffer: Buffer::Scratch,
            offset: slot * u64::from(from - u32::from(from > rank)),
            bytes: own.bytes,
        },
    };
    for distance in 1..ranks {
        let from = (rank + ranks - distance) % ranks;
        builder.recv(from, contribution(from), whole);
    }
    for distance in 1..ranks {
        builder.send((rank + distance) % ranks, own, whole);
    }
    if request.count > 0 {
        let result = builder.slice(Buffer::Recv, whole);
        builder.reduce((0..ranks).map(contribution), result, true);
    }
    Ok(())
}

pub(in super::super) fn cost(request: &Request) -> Cost {
    let others = u64::from(request.ranks) - 1;
    let vector = request.count.saturating_mul(request.element_bytes());
    Cost {
        rounds: 1,
        messages: others,
        bytes: vector.saturating_mul(others),
        reduced_bytes: vector.saturating_mul(others + 1),
        ..Cost::default()
    }
}
