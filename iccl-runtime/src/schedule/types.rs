//! The request that is compiled and the schedule that comes out.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use iccl_plugin_api::types::{Collective, DataType, RedOp};

use super::{Algorithm, Counts, Islands, blocks};

/// One rank's call, with the algorithm that carries it. All ranks of an operation compile equal
/// requests but for `rank` and `in_place` (and, for send and recv, the collective and the peer; for
/// the vector forms, what [`Counts`] says that each rank knows for itself).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What is to be done.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: DataType,
    /// How contributions are combined; [`RedOp::Sum`] for collectives that do not reduce.
    pub op: RedOp,
    /// Number of elements: of the whole vector for all-reduce, reduce and broadcast; of one rank's
    /// block for all-gather, reduce-scatter, gather, scatter and all-to-all, as in NCCL; of the
    /// message for send and recv; ignored by barrier. For the vector forms [`Counts::total`] where all
    /// ranks know all counts, else 0.
    pub count: u64,
    /// The root; for send and recv the peer; otherwise ignored.
    pub root: u32,
    /// The rank whose part is compiled.
    pub rank: u32,
    /// Number of ranks of the communicator.
    pub ranks: u32,
    /// Whether this rank's send and receive buffers are one memory, by NCCL's rules: the shorter of
    /// the two is this rank's block of the longer one ([`Request::in_place_origins`]). Means nothing on
    /// ranks that use only one of them.
    pub in_place: bool,
    /// The algorithm, the same on all ranks.
    pub algorithm: Algorithm,
    /// The preferred length of one message in bytes. At least one element travels in each, and
    /// messages grow where the schedule would otherwise have too many steps. The same on all ranks.
    pub chunk_bytes: u64,
    /// The blocks of a vector form; nothing for all others.
    pub counts: Option<Arc<Counts>>,
    /// Where native libraries serve ranks together; nothing if nowhere. The same on all ranks.
    pub islands: Option<Arc<Islands>>,
}

impl Request {
    /// Size of one element in bytes.
    pub const fn element_bytes(&self) -> u64 {
        self.dtype.size_bytes() as u64
    }

    /// Length of the longer buffer of any rank in bytes as far as this rank knows it, or `None` if no
    /// buffer can be that long.
    pub fn vector_bytes(&self) -> Option<u64> {
        let elements = match (&self.counts, blocks::per_rank(self.collective)) {
            (Some(counts), _) => counts.longest_buffer()?,
            (None, true) => self.count.checked_mul(self.ranks.into())?,
            (None, false) => self.count,
        };
        elements.checked_mul(self.element_bytes()).filter(|bytes| i64::try_from(*bytes).is_ok())
    }

    /// Length of the longer buffer in bytes without gaps, which all ranks know alike; where each rank knows
    /// only its own counts, as much as any.
    pub fn agreed_bytes(&self) -> u64 {
        let elements = match (&self.counts, blocks::per_rank(self.collective)) {
            (Some(_), _) if blocks::pairwise(self.collective) => return u64::MAX,
            (None, true) => self.count.saturating_mul(self.ranks.into()),
            _ => self.count,
        };
        elements.saturating_mul(self.element_bytes())
    }

    /// The same call with another algorithm.
    #[must_use]
    pub fn with_algorithm(&self, algorithm: Algorithm) -> Self {
        Self { algorithm, ..self.clone() }
    }

    /// Whether the ranks agree on a turn before they begin: see [`Schedule::turn_round`].
    pub(super) fn takes_turns(&self) -> bool {
        let is_empty = self.count == 0 && self.counts.is_none();
        self.ranks > 1 && !is_empty && self.algorithm.facts().needs_islands
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.collective)?;
        if self.collective.reduces() {
            write!(f, " {}", self.op)?;
        }
        match &self.counts {
            Some(counts) => write!(f, " of {counts} {}", self.dtype)?,
            None => write!(f, " of {} {}", self.count, self.dtype)?,
        }
        write!(f, " on {} ranks", self.ranks)
    }
}

/// Which memory a slice lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The user's send buffer. Never written, unless in place.
    Send,
    /// The user's receive buffer.
    Recv,
    /// Host memory that the engine owns, of [`Schedule::scratch_bytes`], with any content at the start.
    Scratch,
    /// Memory of the rank's device that the engine owns, of [`Schedule::device_scratch_bytes`], with
    /// any content at the start: what a native library reads and writes besides the user's buffers.
    DeviceScratch,
}

/// Where the two buffers of an operation in place start in the one memory, in bytes from its start. One
/// of the two is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origins {
    /// Where the send buffer starts.
    pub send: u64,
    /// Where the receive buffer starts.
    pub recv: u64,
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

/// One call of the native library that serves the rank's island. All ranks of the island issue the
/// same calls, in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IslandCall {
    /// What is asked for, among the ranks of the island.
    pub collective: Collective,
    /// The type of the elements: the operation's, or `u8` where a library that lacks it moves bytes.
    pub dtype: DataType,
    /// How contributions are combined, if they are.
    pub op: Option<RedOp>,
    /// Number of elements, by NCCL's meaning for the collective; 0 in the vector forms.
    pub count: u64,
    /// The root, as a place in [`Schedule::island`]; 0 where there is none.
    pub root: u32,
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
        /// Where the bytes belong in the operation's vector or, where ranks exchange blocks, in the
        /// block; equal on both sides.
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
        /// Where the bytes belong in the operation's vector or, where ranks exchange blocks, in the
        /// block; equal on both sides.
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
    /// Multiplies each element by the scalar that this rank gave, and rounds the product to the
    /// element's type. Of equal length; the slices do not overlap.
    Scale {
        /// From where.
        source: Slice,
        /// To where.
        destination: Slice,
    },
    /// A call of the native library. Like messages to one peer, native calls are issued in the order
    /// of their steps; one that is issued may wait for the island's other ranks to issue theirs.
    /// The slices, of [`Schedule::slices`], are what the call reads and writes on this rank: one that
    /// may be empty, or, on the side where a vector form has a block for each rank of the island, one for
    /// each, in the order of their places, all in one buffer. They are memory of the device, and lie apart
    /// or in place by NCCL's rules.
    Native {
        /// What is asked for.
        call: IslandCall,
        /// What is read.
        sources: Range<u32>,
        /// What is written.
        destinations: Range<u32>,
    },
    /// Sends the fingerprints that this rank knows so far or, from [`Schedule::turn_round`] on, the
    /// latest turn that it knows of. Shares the peer's queue with data messages but is not counted in
    /// their `index`; at most one of each sort per peer.
    GateSend {
        /// To whom.
        peer: u32,
        /// The round, from 0.
        round: u32,
    },
    /// Receives and compares fingerprints; from [`Schedule::turn_round`] on, hears of turns.
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
            Self::Copy { .. } | Self::Reduce { .. } | Self::Scale { .. } | Self::Native { .. } => {
                None
            }
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
    /// The sources of all reductions, and what native calls read and write.
    pub slices: Vec<Slice>,
    /// The dependencies of all steps, one list after the other.
    pub(super) dependency_list: Vec<u32>,
    /// How much of the user's send buffer is used, in bytes (0: it may be null). Gaps between the
    /// blocks of a vector form count, and are not touched.
    pub send_bytes: u64,
    /// How much of the user's receive buffer is used, in bytes (0: it may be null). Gaps as above.
    pub recv_bytes: u64,
    /// How much scratch memory the engine must provide, in bytes. Where it matters to kernels,
    /// slices of it start at multiples of 64 bytes.
    pub scratch_bytes: u64,
    /// How much memory of the device the engine must provide, in bytes. Native calls use slices of it
    /// that start at any element, as they do in the user's buffers.
    pub device_scratch_bytes: u64,
    /// The ranks that native calls are made together with, ascending, this one among them; none if
    /// there are no native calls.
    pub island: Option<Arc<[u32]>>,
    /// Whether fingerprints are exchanged by gate steps, so that no byte of the receive buffer is
    /// written before all ranks are known to agree. Otherwise every message carries the
    /// fingerprint.
    pub gated: bool,
    /// From which round on the gate's messages carry turns: all ranks are known to have begun the
    /// operation, and agree on the latest turn that one of them can offer. That is the operation's
    /// place among those of all communicators that call native libraries on the same devices. `None`
    /// where nothing native is called.
    pub turn_round: Option<u32>,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// What is done.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: DataType,
    /// The operation as it was asked for, AVG and pre-multiplied sums included; kernels take [`Schedule::combine_op`].
    pub op: RedOp,
    /// Number of elements, as in the request.
    pub count: u64,
    /// Root or peer, as in the request.
    pub root: u32,
    /// The rank whose part this is.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Whether [`Buffer::Send`] and [`Buffer::Recv`] are one memory.
    pub in_place: bool,
    /// In place, where in the one memory the two buffers start, in bytes: as
    /// [`Request::in_place_origins`].
    pub origins: Origins,
    /// The blocks of a vector form.
    pub counts: Option<Arc<Counts>>,
}

impl Schedule {
    /// The steps that must have completed before `step` may start; all have smaller indices.
    pub fn dependencies(&self, step: &Step) -> &[u32] {
        &self.dependency_list[step.dependencies.start as usize..step.dependencies.end as usize]
    }

    /// Whether the step belongs to the exchange of turns.
    pub fn is_of_turn(&self, kind: &StepKind) -> bool {
        match kind {
            StepKind::GateSend { round, .. } | StepKind::GateRecv { round, .. } => {
                self.turn_round.is_some_and(|first| *round >= first)
            }
            _ => false,
        }
    }

    /// The slices that a reduction reads, in the order in which they are combined, or that a native call
    /// reads or writes.
    pub fn sources(&self, sources: &Range<u32>) -> &[Slice] {
        &self.slices[sources.start as usize..sources.end as usize]
    }

    /// The bytes that a step reads.
    pub fn reads<'a>(&'a self, kind: &'a StepKind) -> &'a [Slice] {
        match kind {
            StepKind::Send { source, .. }
            | StepKind::Copy { source, .. }
            | StepKind::Scale { source, .. } => std::slice::from_ref(source),
            StepKind::Reduce { sources, .. } | StepKind::Native { sources, .. } => {
                self.sources(sources)
            }
            StepKind::Recv { .. } | StepKind::GateSend { .. } | StepKind::GateRecv { .. } => &[],
        }
    }

    /// The bytes that a step writes.
    pub fn writes<'a>(&'a self, kind: &'a StepKind) -> &'a [Slice] {
        match kind {
            StepKind::Recv { destination, .. }
            | StepKind::Copy { destination, .. }
            | StepKind::Scale { destination, .. }
            | StepKind::Reduce { destination, .. } => std::slice::from_ref(destination),
            StepKind::Native { destinations, .. } => self.sources(destinations),
            StepKind::Send { .. } | StepKind::GateSend { .. } | StepKind::GateRecv { .. } => &[],
        }
    }

    /// The number of elements that the envelope of a message names in place of the operation's count:
    /// in the vector forms where each rank knows only its own counts, that of the block between the
    /// two ranks, so that they hear of a difference before a byte is written. `None` elsewhere.
    pub fn block_count(&self, kind: &StepKind) -> Option<u64> {
        let counts = self.counts.as_ref().filter(|_| blocks::pairwise(self.collective))?;
        match kind {
            StepKind::Send { peer, .. } => Some(match self.collective {
                // What a rank tells the root before the gate is what it is going to receive.
                Collective::ScatterV if self.rank != self.root => counts.received(*peer).count,
                _ => counts.sent(*peer).count,
            }),
            StepKind::Recv { peer, .. } => Some(match self.collective {
                Collective::ScatterV if self.rank == self.root => counts.sent(*peer).count,
                _ => counts.received(*peer).count,
            }),
            _ => None,
        }
    }

    /// The operation that reductions apply: AVG is a sum with a [`Finish`], a pre-multiplied sum one
    /// after [`StepKind::Scale`].
    pub const fn combine_op(&self) -> RedOp {
        match self.op {
            RedOp::Avg | RedOp::PreMulSum => RedOp::Sum,
            other => other,
        }
    }
}
