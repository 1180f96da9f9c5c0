//! The request that is compiled and the schedule that comes out.

use std::fmt;
use std::ops::Range;

use iccl_plugin_api::types::{Collective, DataType, RedOp};

use super::Algorithm;

/// One rank's call, with the algorithm that carries it. All ranks of an operation compile equal
/// requests but for `rank` and `in_place` (and, for send and recv, the collective and the peer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What is to be done.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: DataType,
    /// How contributions are combined; [`RedOp::Sum`] for collectives that do not reduce.
    pub op: RedOp,
    /// Number of elements: of the whole vector for all-reduce and broadcast, of the message for
    /// send and recv, ignored by barrier.
    pub count: u64,
    /// The root; for send and recv the peer; otherwise ignored.
    pub root: u32,
    /// The rank whose part is compiled.
    pub rank: u32,
    /// Number of ranks of the communicator.
    pub ranks: u32,
    /// Whether the send buffer and the receive buffer of this rank are the same memory.
    pub in_place: bool,
    /// The algorithm, the same on all ranks.
    pub algorithm: Algorithm,
    /// The preferred length of one message in bytes. At least one element travels in each, and
    /// messages grow where the schedule would otherwise have too many steps. The same on all ranks.
    pub chunk_bytes: u64,
}

impl Request {
    /// Size of one element in bytes.
    pub const fn element_bytes(&self) -> u64 {
        self.dtype.size_bytes() as u64
    }

    /// Length of `count` elements in bytes, or `None` if no buffer can be that long.
    pub fn vector_bytes(&self) -> Option<u64> {
        self.count.checked_mul(self.element_bytes()).filter(|bytes| i64::try_from(*bytes).is_ok())
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.collective)?;
        if self.collective.reduces() {
            write!(f, " {}", self.op)?;
        }
        write!(f, " of {} {} on {} ranks", self.count, self.dtype, self.ranks)
    }
}

/// Which memory a slice lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The user's send buffer. Never written, unless in place.
    Send,
    /// The user's receive buffer.
    Recv,
    /// Memory that the engine owns, of [`Schedule::scratch_bytes`], with any content at the start.
    Scratch,
}

/// A run of bytes in one of the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// Which memory.
    pub buffer: Buffer,
    /// Where it starts, in bytes from the start of the buffer.
    pub offset: u64,
    /// How long it is, in bytes.
    pub bytes: u64,
}

impl Slice {
    /// The first byte after the slice.
    pub const fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// What is done to a reduced element before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// Nothing.
    None,
    /// The sum, still in its wider form, is divided by this number of ranks (AVG).
    DivideByRanks(u32),
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Sends one message. Its length may be 0 where only the envelope is wanted.
    Send {
        /// To whom.
        peer: u32,
        /// This is the `index`-th data message from this rank to `peer` in the operation, from 0.
        index: u32,
        /// What is sent.
        source: Slice,
        /// Where the bytes belong in the operation's vector; equal on both sides.
        offset: u64,
    },
    /// Receives one message.
    Recv {
        /// From whom.
        peer: u32,
        /// This is the `index`-th data message from `peer` to this rank in the operation, from 0.
        index: u32,
        /// Where it is put.
        destination: Slice,
        /// Where the bytes belong in the operation's vector; equal on both sides.
        offset: u64,
    },
    /// Copies bytes; the slices do not overlap.
    Copy {
        /// From where.
        source: Slice,
        /// To where; of equal length.
        destination: Slice,
    },
    /// Combines slices of equal length, element by element, with the schedule's dtype and
    /// [`Schedule::combine_op`]: `sources[0] ∘ sources[1] ∘ …`, in that order. The destination may be
    /// one of the sources exactly; it never overlaps one in part.
    Reduce {
        /// Which slices of [`Schedule::slices`], in the order of the ranks that contributed them.
        sources: Range<u32>,
        /// Where the result is put.
        destination: Slice,
        /// What is done to each element in the end, before it is rounded.
        finish: Finish,
    },
    /// Sends the fingerprints that this rank knows so far. Shares the peer's queue with data
    /// messages but is not counted in their `index`; at most one per peer.
    GateSend {
        /// To whom.
        peer: u32,
        /// The round, from 0.
        round: u32,
    },
    /// Receives and compares fingerprints.
    GateRecv {
        /// From whom.
        peer: u32,
        /// The round, from 0.
        round: u32,
    },
}

impl StepKind {
    /// The peer of a message, sent or received.
    pub const fn peer(&self) -> Option<u32> {
        match self {
            Self::Send { peer, .. }
            | Self::Recv { peer, .. }
            | Self::GateSend { peer, .. }
            | Self::GateRecv { peer, .. } => Some(*peer),
            Self::Copy { .. } | Self::Reduce { .. } => None,
        }
    }

    /// The bytes that this step writes.
    pub const fn writes(&self) -> Option<Slice> {
        match self {
            Self::Recv { destination, .. }
            | Self::Copy { destination, .. }
            | Self::Reduce { destination, .. } => Some(*destination),
            Self::Send { .. } | Self::GateSend { .. } | Self::GateRecv { .. } => None,
        }
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it does.
    pub kind: StepKind,
    /// Which entries of the schedule's dependency list belong to this step; read them with
    /// [`Schedule::dependencies`].
    pub dependencies: Range<u32>,
}

/// One rank's part in an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The steps; each comes after all those it depends on.
    pub steps: Vec<Step>,
    /// The sources of all reductions.
    pub slices: Vec<Slice>,
    /// The dependencies of all steps, one list after the other.
    pub(super) dependency_list: Vec<u32>,
    /// How much of the user's send buffer is used, in bytes (0: it may be null).
    pub send_bytes: u64,
    /// How much of the user's receive buffer is used, in bytes (0: it may be null).
    pub recv_bytes: u64,
    /// How much scratch memory the engine must provide, in bytes. Where it matters to kernels,
    /// slices of it start at multiples of 64 bytes.
    pub scratch_bytes: u64,
    /// Whether fingerprints are exchanged by gate steps, so that no byte of the receive buffer is
    /// written before all ranks are known to agree. Otherwise every message carries the
    /// fingerprint.
    pub gated: bool,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// What is done.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: DataType,
    /// The operation as it was asked for, AVG included; kernels take [`Schedule::combine_op`].
    pub op: RedOp,
    /// Number of elements, as in the request.
    pub count: u64,
    /// Root or peer, as in the request.
    pub root: u32,
    /// The rank whose part this is.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Whether [`Buffer::Send`] and [`Buffer::Recv`] are the same memory.
    pub in_place: bool,
}

impl Schedule {
    /// The steps that must have completed before `step` may start; all have smaller indices.
    pub fn dependencies(&self, step: &Step) -> &[u32] {
        &self.dependency_list[step.dependencies.start as usize..step.dependencies.end as usize]
    }

    /// The slices that a reduction reads, in the order in which they are combined.
    pub fn sources(&self, sources: &Range<u32>) -> &[Slice] {
        &self.slices[sources.start as usize..sources.end as usize]
    }

    /// The bytes that a step reads.
    pub fn reads<'a>(&'a self, kind: &'a StepKind) -> &'a [Slice] {
        match kind {
            StepKind::Send { source, .. } | StepKind::Copy { source, .. } => {
                std::slice::from_ref(source)
            }
            StepKind::Reduce { sources, .. } => self.sources(sources),
            StepKind::Recv { .. } | StepKind::GateSend { .. } | StepKind::GateRecv { .. } => &[],
        }
    }

    /// The operation that reductions apply: AVG is a sum with a [`Finish`].
    pub const fn combine_op(&self) -> RedOp {
        match self.op {
            RedOp::Avg => RedOp::Sum,
            other => other,
        }
    }
}
