//! Collectives compiled to per-rank step lists.
//!
//! Pure: no sockets, no devices, no clocks, and no idea which transport carries a step. What lives
//! here: the [`Request`] and the [`Schedule`] it compiles to, one file per algorithm, the table of
//! what each algorithm can do ([`Algorithm::facts`]), the choice between them ([`select`]) and an
//! interpreter ([`interpret`]) that runs the schedules of all ranks in one process and proves them.
//!
//! # How a schedule is meant
//!
//! * A step starts once all its dependencies have completed; nothing else orders two steps of one
//!   rank, except that the messages to (and from) one peer are posted in the order of the steps.
//! * The k-th message that rank a sends to rank b meets the k-th receive of b from a. `index`,
//!   `offset` and the length must agree on both sides.
//! * A receive may write its destination at any moment from its start to its completion, a send may
//!   read its source likewise, and a send may complete only after the peer has posted the receive.
//! * Native calls of one rank are issued in the order of the steps. The k-th call of every rank of an
//!   island is one collective among them: each must ask for the same. It may read its source and
//!   write its destination at any moment from its start to its completion, and may complete only after
//!   all have issued it.
//! * In place, `Buffer::Send` and `Buffer::Recv` lie in one memory, at [`Schedule::origins`].
//!
//! # Why schedules are right by construction
//!
//! Every algorithm is written as **one sequence** of transfers, native calls, copies and reductions over all
//! ranks, and a rank's schedule is what concerns that rank, in that order. The builder derives the
//! dependencies from the bytes that steps touch (read after write, write after read, write after
//! write), so a schedule means what its sequence means, whatever runs at once; and the earliest
//! unfinished transfer of the sequence can always go on, so there is no deadlock, even if every send
//! waits for its receiver. The interpreter does not rely on any of this: it checks it.

mod algorithm;
mod all_gather;
mod all_reduce;
mod blocks;
mod broadcast;
mod builder;
mod cost;
mod counts;
mod cuts;
mod exchange;
mod gather_scatter;
pub mod interpret;
mod island_blocks;
mod islands;
mod native;
mod point_to_point;
mod premultiply;
mod reduce;
mod reduce_scatter;
mod select;
mod types;

pub use algorithm::{Algorithm, Facts};
pub use cost::{Cost, CostModel, cost};
pub use counts::{Block, Counts};
pub use islands::{Island, Islands, NativeRules};
pub use select::{Choice, Verdict, candidates, select};
pub use types::{Buffer, Finish, IslandCall, Origins, Request, Schedule, Slice, Step, StepKind};

use builder::Builder;
use iccl_plugin_api::types::{Collective, RedOp};

use crate::error::{Error, ErrorKind, Result};

/// Compiles the part of rank `request.rank` in the operation.
///
/// # Errors
///
/// [`ErrorKind::InvalidArgument`] for ranks, roots or sizes that make no sense (a buffer longer than
/// `i64::MAX` bytes included), and for counts of a vector form that contradict each other;
/// [`ErrorKind::NotSupported`] where the algorithm cannot carry the request. Both name what and why.
pub fn compile(request: &Request) -> Result<Schedule> {
    validate(request)?;
    request.algorithm.refusal(request).map_or(Ok(()), |why| {
        Err(Error::new(
            ErrorKind::NotSupported,
            format!("algorithm {} cannot carry {request}: {why}", request.algorithm),
        ))
    })?;
    if request.op == RedOp::PreMulSum {
        return premultiply::compile(request);
    }
    let mut builder = Builder::new(request);
    let collective = request.collective;
    match (request.algorithm, collective) {
        (_, Collective::Barrier) if request.ranks == 1 => {}
        _ if request.ranks == 1 => builder.copy_own_block(),
        (Algorithm::Local, _) => unreachable!("refused above: it carries one rank only"),
        (Algorithm::Direct, Collective::AllReduce) => all_reduce::direct::compile(&mut builder)?,
        (Algorithm::Direct, Collective::Reduce) => reduce::direct::compile(&mut builder),
        (Algorithm::Direct, Collective::ReduceScatter | Collective::ReduceScatterV) => {
            reduce_scatter::direct::compile(&mut builder);
        }
        (
            Algorithm::Direct,
            Collective::Gather | Collective::GatherV | Collective::Scatter | Collective::ScatterV,
        ) => gather_scatter::direct::compile(&mut builder),
        (Algorithm::Direct, _) => exchange::compile(&mut builder),
        (Algorithm::Owner, _) => all_reduce::owner::compile(&mut builder),
        (Algorithm::RecursiveDoubling, _) => all_reduce::recursive_doubling::compile(&mut builder),
        (Algorithm::Ring, Collective::AllGather) => all_gather::ring::compile(&mut builder),
        (Algorithm::Ring, Collective::ReduceScatter) => reduce_scatter::ring::compile(&mut builder),
        (Algorithm::Ring, _) => all_reduce::ring::compile(&mut builder),
        (Algorithm::Flat, _) => broadcast::flat::compile(&mut builder),
        (Algorithm::Binomial, Collective::Reduce) => reduce::binomial::compile(&mut builder),
        (Algorithm::Binomial, _) => broadcast::binomial::compile(&mut builder),
        (Algorithm::ScatterAllGather, _) => broadcast::scatter_all_gather::compile(&mut builder),
        (Algorithm::Bruck, _) => all_gather::bruck::compile(&mut builder),
        (Algorithm::Dissemination, _) => builder.gate(),
        (Algorithm::PointToPoint, _) => point_to_point::compile(&mut builder),
        (Algorithm::Native, _) => native::compile(&mut builder),
        (Algorithm::Islands, Collective::AllReduce) => all_reduce::islands::compile(&mut builder),
        (Algorithm::Islands, _) => island_blocks::compile(&mut builder),
    }
    builder.finish()
}

fn validate(request: &Request) -> Result<()> {
    let refuse = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
    let Request { collective, rank, ranks, root, .. } = *request;
    if i32::try_from(ranks).is_err() {
        return refuse(format!("{collective}: {ranks} ranks are more than i32::MAX"));
    }
    if rank >= ranks {
        return refuse(format!("{collective}: rank {rank} is not one of {ranks} ranks"));
    }
    let point_to_point = matches!(collective, Collective::Send | Collective::Recv);
    if (collective.has_root() || point_to_point) && root >= ranks {
        let what = if point_to_point { "peer" } else { "root" };
        return refuse(format!("{collective}: {what} {root} is not one of {ranks} ranks"));
    }
    if point_to_point && root == rank {
        return refuse(format!("{collective}: rank {rank} cannot be its own peer"));
    }
    if !collective.reduces() && request.op != RedOp::Sum {
        return refuse(format!(
            "{collective} does not reduce, so it takes no op {} (sum stands for none)",
            request.op
        ));
    }
    if request.vector_bytes().is_none() {
        return refuse(match &request.counts {
            Some(counts) => format!(
                "{collective}: blocks of {counts} elements of {} reach further than any buffer can",
                request.dtype
            ),
            None => format!(
                "{collective}: {} elements of {} (on {ranks} ranks) are longer than any buffer can be",
                request.count, request.dtype
            ),
        });
    }
    blocks::validate(request)?;
    let (send, recv) = request.buffer_elements();
    if collective == Collective::AllToAllV && request.in_place && send > 0 && recv > 0 {
        return refuse(format!("{collective}: it cannot be done in place"));
    }
    Ok(())
}
