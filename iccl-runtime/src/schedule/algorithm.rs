//! The algorithms and what each can carry, in one table.

use std::fmt;

use iccl_plugin_api::types::{Collective, RedOp};

use super::{Request, all_reduce, native};

/// A way to carry out a collective. What each one does is told in its own file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// One rank: nothing travels.
    Local,
    /// One round: every rank sends what concerns a rank straight to it. For all but broadcast, whose
    /// one round is [`Algorithm::Flat`].
    Direct,
    /// All-reduce and reduce: the owner of a slice reduces all contributions at once and hands out the
    /// result.
    Owner,
    /// All-reduce in log₂ n rounds of pairwise exchanges.
    RecursiveDoubling,
    /// All-reduce, all-gather and reduce-scatter around a ring.
    Ring,
    /// Broadcast in one round: the root sends to everyone.
    Flat,
    /// Broadcast down a binomial tree, reduce up one.
    Binomial,
    /// Broadcast: the root scatters slices and the others exchange them.
    ScatterAllGather,
    /// Barrier in ⌈log₂ n⌉ rounds: the gate alone.
    Dissemination,
    /// Send and recv.
    PointToPoint,
    /// All-gather in ⌈log₂ n⌉ rounds: what a rank has doubles in each.
    Bruck,
    /// One call of the native library that serves all ranks.
    Native,
    /// Native libraries inside islands, iccl between them.
    Islands,
}

/// What an algorithm can carry, and what it promises.
#[derive(Clone, Copy, Debug)]
// Each is a fact of its own, read by name; there is no state that they make up together.
#[allow(clippy::struct_excessive_bools)]
pub struct Facts {
    /// The name used in configuration and messages.
    pub name: &'static str,
    /// The collectives that it carries.
    pub collectives: &'static [Collective],
    /// The fewest ranks that it is for; on a single rank every algorithm comes down to a copy.
    pub min_ranks: u32,
    /// The most ranks that it is for.
    pub max_ranks: u32,
    /// Whether it carries AVG: the reduction that ends each element sees all contributions and
    /// divides once.
    pub carries_avg: bool,
    /// Whether all contributions to an element meet in one reduction, so that sums of 8- and 16-bit
    /// floats are rounded once.
    pub keeps_narrow_exact: bool,
    /// Whether the order in which contributions are combined is fixed by the request alone.
    pub deterministic: bool,
    /// Whether contributions are combined in the order of the ranks.
    pub rank_order: bool,
    /// Whether it is for ranks that a native library serves.
    pub needs_islands: bool,
}

impl Facts {
    const fn moves(name: &'static str, collectives: &'static [Collective]) -> Self {
        Self {
            name,
            collectives,
            min_ranks: 2,
            max_ranks: u32::MAX,
            carries_avg: false,
            keeps_narrow_exact: false,
            deterministic: true,
            rank_order: true,
            needs_islands: false,
        }
    }
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: &'static [Self] = &[
        Self::Local,
        Self::Direct,
        Self::Owner,
        Self::RecursiveDoubling,
        Self::Ring,
        Self::Flat,
        Self::Binomial,
        Self::ScatterAllGather,
        Self::Dissemination,
        Self::PointToPoint,
        Self::Bruck,
        Self::Native,
        Self::Islands,
    ];

    /// What this algorithm can carry. The one place where that is written.
    pub const fn facts(self) -> Facts {
        use Collective::{
            AllGather, AllGatherV, AllReduce, AllToAll, AllToAllV, Barrier, Broadcast, Gather,
            GatherV, Recv, Reduce, ReduceScatter, ReduceScatterV, Scatter, ScatterV, Send,
        };
        match self {
            Self::Local => Facts {
                min_ranks: 1,
                max_ranks: 1,
                carries_avg: true,
                keeps_narrow_exact: true,
                ..Facts::moves(
                    "local",
                    &[
                        AllReduce,
                        Reduce,
                        Broadcast,
                        AllGather,
                        ReduceScatter,
                        Gather,
                        Scatter,
                        AllToAll,
                        AllGatherV,
                        ReduceScatterV,
                        GatherV,
                        ScatterV,
                        AllToAllV,
                        Barrier,
                    ],
                )
            },
            Self::Direct => Facts {
                carries_avg: true,
                keeps_narrow_exact: true,
                ..Facts::moves(
                    "direct",
                    &[
                        AllReduce,
                        Reduce,
                        AllGather,
                        ReduceScatter,
                        Gather,
                        Scatter,
                        AllToAll,
                        AllGatherV,
                        ReduceScatterV,
                        GatherV,
                        ScatterV,
                        AllToAllV,
                    ],
                )
            },
            Self::Owner => Facts {
                carries_avg: true,
                keeps_narrow_exact: true,
                ..Facts::moves("owner", &[AllReduce, Reduce])
            },
            Self::RecursiveDoubling => Facts::moves("recursive_doubling", &[AllReduce]),
            Self::Ring => Facts {
                rank_order: false,
                ..Facts::moves("ring", &[AllReduce, AllGather, ReduceScatter])
            },
            Self::Flat => Facts::moves("flat", &[Broadcast]),
            // The order of a reduce starts at the root.
            Self::Binomial => {
                Facts { rank_order: false, ..Facts::moves("binomial", &[Broadcast, Reduce]) }
            }
            Self::ScatterAllGather => Facts::moves("scatter_all_gather", &[Broadcast]),
            Self::Dissemination => Facts::moves("dissemination", &[Barrier]),
            // That a rank is no peer of itself is told by the check of the request.
            Self::PointToPoint => {
                Facts { min_ranks: 1, ..Facts::moves("point_to_point", &[Send, Recv]) }
            }
            Self::Bruck => Facts::moves("bruck", &[AllGather]),
            Self::Islands => Facts {
                carries_avg: true,
                rank_order: false,
                needs_islands: true,
                ..Facts::moves(
                    "islands",
                    &[
                        AllReduce,
                        Reduce,
                        Broadcast,
                        AllGather,
                        ReduceScatter,
                        AllGatherV,
                        ReduceScatterV,
                    ],
                )
            },
            // What it can reduce, how it rounds and in which order is for the library to declare.
            Self::Native => Facts {
                carries_avg: true,
                rank_order: false,
                needs_islands: true,
                ..Facts::moves(
                    "native",
                    &[
                        AllReduce,
                        Reduce,
                        Broadcast,
                        AllGather,
                        ReduceScatter,
                        Gather,
                        Scatter,
                        AllToAll,
                        AllGatherV,
                        ReduceScatterV,
                    ],
                )
            },
        }
    }

    /// Whether the collective by this algorithm begins with a gate. It need not where every rank hears
    /// from every other directly before it writes to the user's buffer: then the fingerprint rides on
    /// the payload.
    pub const fn gates(self, collective: Collective) -> bool {
        use Collective::{Gather, GatherV, Reduce, Scatter, ScatterV};
        match self {
            Self::Local | Self::PointToPoint => false,
            // Only the root hears from everyone.
            Self::Direct => matches!(collective, Reduce | Gather | Scatter | GatherV | ScatterV),
            _ => true,
        }
    }

    /// The number that stands for it in wire envelopes: its place in [`Self::ALL`], which is only
    /// ever appended to.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The algorithm with this number, or `None`.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The name used in configuration and messages.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// The algorithm with this name, or `None`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|algorithm| algorithm.name() == name)
    }

    /// Why this algorithm cannot carry the request (whatever `request.algorithm` says), or `None`
    /// if it can.
    pub fn refusal(self, request: &Request) -> Option<String> {
        let facts = self.facts();
        if !facts.collectives.contains(&request.collective) {
            let carried: Vec<_> = facts.collectives.iter().map(|one| one.name()).collect();
            return Some(format!("it is an algorithm for {}", carried.join(", ")));
        }
        if request.ranks == 1 {
            return None;
        }
        if request.ranks > facts.max_ranks {
            return Some(format!("it is for at most {} rank", facts.max_ranks));
        }
        match self {
            Self::Native => return native::refusal(request),
            Self::Islands => return all_reduce::islands::refusal(request),
            _ => {}
        }
        if !request.collective.reduces() {
            return None;
        }
        if request.op == RedOp::Avg && !facts.carries_avg {
            return Some("it does not declare avg".into());
        }
        let rounds = !matches!(request.op, RedOp::Min | RedOp::Max);
        if request.dtype.is_narrow_float() && rounds && !facts.keeps_narrow_exact {
            return Some(format!("it would round {} more than once", request.dtype));
        }
        None
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_read_back() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::from_name(algorithm.name()), Some(*algorithm));
            assert_eq!(Algorithm::from_code(algorithm.code()), Some(*algorithm));
        }
        assert_eq!(Algorithm::from_name("tree"), None);
    }
}
