//! One operation of iccl as calls of a maker's library.
//!
//! A plugin describes its library ([`Repertoire`]); [`plan`] makes a list of its primitive calls from
//! an operation, without the library, and refuses all that can be refused. The plugin issues the list.
//!
//! No call, number or name of one maker may live here.

mod blocks;
mod planner;
#[cfg(test)]
mod tests;

use std::ffi::{c_int, c_void};

use iccl_plugin_api::sdk::{NativeCall, PluginError, PluginResult};
use iccl_plugin_api::tables::CollectiveSupport;
use iccl_plugin_api::{Collective, DataType, RedOp};

pub use blocks::Block;
use planner::Planner;

use crate::is_offered;

/// What is sent from.
pub type Source = *const c_void;
/// What is received into.
pub type Destination = *mut c_void;

/// What a maker's library has, and how it wants to be called.
#[derive(Clone, Copy, Debug)]
pub struct Repertoire {
    /// Its name, for messages.
    pub library: &'static str,
    /// The combinations that are offered: those of which its result is iccl's.
    pub support: &'static [CollectiveSupport],
    /// Its number of a type that it reduces.
    pub reduced_type: fn(DataType) -> Option<c_int>,
    /// Its number of the type as which elements are moved, and how many of these an element is.
    pub moved_type: fn(DataType) -> (c_int, usize),
    /// Its number of an operation on elements of a type.
    pub reduction: fn(DataType, RedOp) -> Option<c_int>,
    /// Functions that not every library has. What is missing is made of messages.
    pub functions: Functions,
    /// Whether a broadcast has one buffer, of which the root's is sent: then the root copies first.
    pub broadcasts_in_one_buffer: bool,
    /// Whether a rank may send to itself. Otherwise its own block is a copy.
    pub sends_to_itself: bool,
    /// How blocks of different length get from all to all.
    pub all_gather_v: AllGatherV,
}

/// Functions that not every library has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a function of its own")]
pub struct Functions {
    /// Blocks to a root.
    pub gather: bool,
    /// Blocks from a root.
    pub scatter: bool,
    /// Whether gather and scatter leave the root's own block alone where it lies in the right place.
    pub roots_in_place: bool,
    /// Equal blocks from each to each.
    pub all_to_all: bool,
    /// Blocks of any length from each to each.
    pub all_to_all_v: bool,
    /// Nothing but waiting for all.
    pub barrier: bool,
}

/// How blocks of different length get from all to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllGatherV {
    /// A broadcast of each.
    Broadcasts,
    /// A message from each to each.
    Messages,
}

/// One call of the library. Counts are in elements of the type that the library is told; a result that
/// is null is not wanted here, and must be written nowhere that anybody looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what every library calls them")]
pub enum Primitive {
    AllReduce {
        send: Source,
        receive: Destination,
        count: usize,
        op: c_int,
    },
    /// `receive` is null on all ranks but the root.
    Reduce {
        send: Source,
        receive: Destination,
        count: usize,
        op: c_int,
        root: u32,
    },
    ReduceScatter {
        send: Source,
        receive: Destination,
        count: usize,
        op: c_int,
    },
    /// Where the library has one buffer, it is `receive`.
    Broadcast {
        send: Source,
        receive: Destination,
        count: usize,
        root: u32,
    },
    AllGather {
        send: Source,
        receive: Destination,
        count: usize,
    },
    AllToAll {
        send: Source,
        receive: Destination,
        count: usize,
    },
    AllToAllV {
        send: Source,
        receive: Destination,
        sent: Vec<Block>,
        received: Vec<Block>,
    },
    Gather {
        send: Source,
        receive: Destination,
        count: usize,
        root: u32,
    },
    /// `receive` is null on a root whose own block is there already, unless the library leaves it alone.
    Scatter {
        send: Source,
        receive: Destination,
        count: usize,
        root: u32,
    },
    Send {
        send: Source,
        count: usize,
        peer: u32,
    },
    Recv {
        receive: Destination,
        count: usize,
        peer: u32,
    },
    /// On the same stream, between two places of the card that do not overlap.
    Copy {
        from: Source,
        to: Destination,
        bytes: usize,
    },
    Barrier,
}

/// What is to be called.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// The library's number of the element type.
    pub dtype: c_int,
    /// The calls. Sends and receives of one plan are one group.
    pub primitives: Vec<Primitive>,
}

/// Plans a call of rank `rank` of `ranks`.
///
/// # Errors
/// `NotSupported` for what is not offered, `InvalidArgument` for what is wrong with the call.
pub fn plan(
    library: &Repertoire,
    call: &NativeCall<'_>,
    ranks: u32,
    rank: u32,
) -> PluginResult<Plan> {
    let NativeCall { collective, dtype, op, root, .. } = *call;
    let not_offered = || {
        let op = op.map_or_else(String::new, |op| format!(" {op}"));
        let library = library.library;
        PluginError::not_supported(format!("{library} is not used for {collective} {dtype}{op}"))
    };
    if !is_offered(library.support, collective, dtype, op) || (collective.reduces() && op.is_none())
    {
        return Err(not_offered());
    }
    let names_a_rank =
        collective.has_root() || matches!(collective, Collective::Send | Collective::Recv);
    if names_a_rank && root >= ranks {
        return Err(PluginError::invalid(format!("{collective}: there is no rank {root}")));
    }
    let planner = Planner { library, call, ranks, rank };
    if let Some(op) = op.filter(|_| collective.reduces()) {
        let number = (library.reduced_type)(dtype).zip((library.reduction)(dtype, op));
        let (dtype, op) = number.ok_or_else(not_offered)?;
        return Ok(Plan { dtype, primitives: planner.reductions(op)? });
    }
    let (dtype, factor) = (library.moved_type)(dtype);
    Ok(Plan { dtype, primitives: planner.moves(factor)? })
}
