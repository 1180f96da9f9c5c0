//! Which native libraries are used, for which ranks.

use super::evidence::{Evidence, RankFact};
use crate::topology::{NativeAbilities, RankSet, Topology};

/// An island, and whether its native library is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedIsland {
    /// The vendor of the devices.
    pub vendor: String,
    /// Name and version of the library.
    pub library: String,
    /// What the library can do.
    pub abilities: NativeAbilities,
    /// Its ranks, ascending.
    pub ranks: Vec<u32>,
    /// Why the library is not used; nothing if it is.
    pub unused: Option<Unused>,
}

/// Why a native library is not used on an island.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unused {
    /// There is one rank only.
    OneRank,
    /// A rank could not join the native communicator.
    Failed {
        /// Which.
        rank: u32,
        /// What happened.
        cause: String,
    },
}

impl PlannedIsland {
    /// Whether the library serves its ranks together.
    pub fn is_used(&self) -> bool {
        self.unused.is_none()
    }

    /// Why not, in words.
    pub fn why_unused(&self) -> Option<String> {
        Some(match self.unused.as_ref()? {
            Unused::OneRank => "there is one rank only".to_owned(),
            Unused::Failed { rank, cause } => format!("rank {rank}: {cause}"),
        })
    }

    /// What an operator should know.
    pub(super) fn warning(&self) -> Option<String> {
        let Some(Unused::Failed { rank, cause }) = &self.unused else { return None };
        let ranks: RankSet = self.ranks.iter().copied().collect();
        let (library, ranks) = (&self.library, ranks.phrase());
        Some(format!("{library} is not used for {ranks}: rank {rank}: {cause}"))
    }
}

/// The islands of a job. A rank that could not join turns its island's library off, and no other.
pub(super) fn islands(topology: &Topology, evidence: &Evidence) -> Vec<PlannedIsland> {
    let failed = |ranks: &[u32]| {
        let failed = evidence.ranks.iter().filter_map(|(rank, fact)| match fact {
            RankFact::NativeFailed { is_late, cause } if ranks.contains(rank) => {
                Some((*is_late, *rank, cause.clone()))
            }
            _ => None,
        });
        failed.min().map(|(_, rank, cause)| Unused::Failed { rank, cause })
    };
    topology
        .islands()
        .iter()
        .map(|island| PlannedIsland {
            vendor: island.vendor.clone(),
            library: island.library.clone(),
            abilities: island.abilities.clone(),
            ranks: island.ranks.clone(),
            unused: match island.ranks[..] {
                [_] => Some(Unused::OneRank),
                _ => failed(&island.ranks),
            },
        })
        .collect()
}
