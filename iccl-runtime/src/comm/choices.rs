//! Which algorithms carry which calls, and who does what of them, told without making a call. It is
//! the communicator's own choice that is asked, and its own compiler, so nothing is repeated here.

use std::collections::BTreeSet;

use iccl_plugin_api::{Collective, DataType, RedOp};

use super::algorithms::Algorithms;
use crate::plan::Plan;
use crate::schedule::{Choice, Counts, Finish, IslandCall, Request, Schedule, StepKind, Verdict};
use crate::{Error, ErrorKind, Result};

/// The choices among the ranks of a plan.
#[derive(Clone, Debug)]
pub struct Choices {
    algorithms: Algorithms,
    ranks: u32,
    chunk_bytes: u64,
    /// A rank of each island whose library is used, and one that is on none; the lowest of each, with
    /// the library's name.
    samples: Vec<(u32, Option<String>)>,
}

/// How a call is carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The algorithm, why it is this one, and what became of the others.
    pub choice: Choice,
    /// What it is expected to take, in nanoseconds.
    pub expected_ns: u64,
    /// What native libraries are asked for: the library, and the call. What differs in count and root
    /// alone is listed once, with both 0.
    pub native: Vec<(String, IslandCall)>,
    /// What iccl itself does, in the order of [`OwnWork`].
    pub own: BTreeSet<OwnWork>,
}

/// What iccl does of a call, on some rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnWork {
    /// Moves elements between ranks.
    Moves,
    /// Multiplies elements by the scalars of a pre-multiplied sum.
    Multiplies,
    /// Combines contributions.
    Combines,
    /// Divides by the number of ranks.
    Divides,
}

impl OwnWork {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Moves => "moves",
            Self::Multiplies => "multiplies",
            Self::Combines => "combines",
            Self::Divides => "divides",
        }
    }
}

impl Choices {
    pub(super) fn new(algorithms: Algorithms, plan: &Plan, chunk_bytes: u64) -> Self {
        let ranks = plan.world_size() as u32;
        let used = || plan.islands().iter().filter(|island| island.is_used());
        let mut samples: Vec<(u32, Option<String>)> =
            used().map(|island| (island.ranks[0], Some(island.library.clone()))).collect();
        let mut on_islands: Vec<u32> =
            used().flat_map(|island| island.ranks.iter().copied()).collect();
        on_islands.sort_unstable();
        let alone = (0..ranks).find(|rank| on_islands.binary_search(rank).is_err());
        samples.extend(alone.map(|rank| (rank, None)));
        Self { algorithms, ranks, chunk_bytes, samples }
    }

    /// How a call is carried whose longer buffer has about so many bytes: at least one element for
    /// each block, and blocks of one length in the vector forms. The root is rank 0; a message goes
    /// between ranks 0 and 1. Both buffers lie apart.
    ///
    /// # Errors
    /// `NotSupported` if no algorithm can carry it, naming each and why; `InvalidArgument` for a
    /// message where there is one rank.
    pub fn of(
        &self,
        collective: Collective,
        dtype: DataType,
        op: Option<RedOp>,
        bytes: u64,
    ) -> Result<Carried> {
        let is_message = matches!(collective, Collective::Send | Collective::Recv);
        if is_message && self.ranks == 1 {
            return Err(Error::new(ErrorKind::InvalidArgument, "a message needs two ranks"));
        }
        let mut first = self.request(collective, dtype, op, bytes, 0);
        let (choice, schedule) = self.algorithms.compile(&mut first)?;
        let costs = choice.considered.iter().find_map(|(one, verdict)| match verdict {
            Verdict::Costs(ns) if *one == choice.algorithm => Some(*ns),
            _ => None,
        });
        let mut carried = Carried {
            expected_ns: costs.unwrap_or_default(),
            choice,
            native: Vec::new(),
            own: BTreeSet::new(),
        };
        if is_message {
            carried.add(&schedule, None);
            return Ok(carried);
        }
        for (rank, library) in &self.samples {
            let mut request = self.request(collective, dtype, op, bytes, *rank);
            let (_, schedule) = self.algorithms.compile(&mut request)?;
            carried.add(&schedule, library.as_deref());
        }
        Ok(carried)
    }

    fn request(
        &self,
        collective: Collective,
        dtype: DataType,
        op: Option<RedOp>,
        bytes: u64,
        rank: u32,
    ) -> Request {
        use Collective::{
            AllGather, AllGatherV, AllToAll, AllToAllV, Barrier, Gather, GatherV, Recv,
            ReduceScatter, ReduceScatterV, Scatter, ScatterV, Send,
        };
        let elements = bytes / dtype.size_bytes() as u64;
        let block = (elements / u64::from(self.ranks)).max(1);
        let blocks = || Counts::packed(&vec![block; self.ranks as usize]);
        let of_root = || if rank == 0 { blocks() } else { Vec::new() };
        let counts = match collective {
            AllGatherV => Some(Counts::all_gather_v(blocks())),
            ReduceScatterV => Some(Counts::reduce_scatter_v(blocks())),
            GatherV => Some(Counts::gather_v(block, of_root())),
            ScatterV => Some(Counts::scatter_v(of_root(), block)),
            AllToAllV => Some(Counts::all_to_all_v(blocks(), blocks())),
            _ => None,
        };
        let count = match collective {
            Barrier | GatherV | ScatterV | AllToAllV => 0,
            AllGatherV | ReduceScatterV => block * u64::from(self.ranks),
            AllGather | ReduceScatter | Gather | Scatter | AllToAll => block,
            _ => elements.max(1),
        };
        Request {
            collective,
            dtype,
            op: op.unwrap_or(RedOp::Sum),
            count,
            root: u32::from(matches!(collective, Send | Recv)),
            rank,
            ranks: self.ranks,
            in_place: false,
            algorithm: Algorithms::placeholder(collective),
            chunk_bytes: self.chunk_bytes,
            counts: counts.map(Into::into),
            islands: None,
        }
    }
}

impl Carried {
    /// Adds what one rank does.
    fn add(&mut self, schedule: &Schedule, library: Option<&str>) {
        for step in &schedule.steps {
            match &step.kind {
                StepKind::Send { .. } | StepKind::Recv { .. } => {
                    self.own.insert(OwnWork::Moves);
                }
                StepKind::Reduce { sources, finish, .. } => {
                    self.own.extend((sources.len() > 1).then_some(OwnWork::Combines));
                    self.own.extend((*finish != Finish::None).then_some(OwnWork::Divides));
                }
                StepKind::Scale { .. } => {
                    self.own.insert(OwnWork::Multiplies);
                }
                StepKind::Native { call, .. } => {
                    let call = IslandCall { count: 0, root: 0, ..*call };
                    let entry = (library.unwrap_or_default().to_owned(), call);
                    if !self.native.contains(&entry) {
                        self.native.push(entry);
                    }
                }
                StepKind::Copy { .. } | StepKind::GateSend { .. } | StepKind::GateRecv { .. } => {}
            }
        }
    }
}
