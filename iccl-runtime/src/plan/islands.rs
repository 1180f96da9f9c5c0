//! Which native libraries are used, for which ranks.

use std::collections::BTreeMap;

use super::evidence::{Evidence, RankFact};
use crate::topology::{NativeAbilities, RankDescriptor, RankSet, Topology};

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
    /// Ranks share a device, which no library of collectives allows within a communicator.
    SharedDevice {
        /// One of the ranks.
        first: u32,
        /// Another on the same device.
        second: u32,
    },
    /// A rank's process does not use the library on its device any more: it did not come to rest once.
    GivenUp {
        /// Which.
        rank: u32,
    },
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
            Unused::SharedDevice { first, second } => {
                format!("ranks {first} and {second} share a device")
            }
            Unused::GivenUp { rank } => format!(
                "rank {rank}: it did not come to rest on this device once, so that this process does not \
                 use it there again"
            ),
            Unused::Failed { rank, cause } => format!("rank {rank}: {cause}"),
        })
    }

    /// What an operator should know.
    pub(super) fn warning(&self) -> Option<String> {
        let why = self.why_unused()?;
        if !matches!(self.unused, Some(Unused::GivenUp { .. } | Unused::Failed { .. })) {
            return None;
        }
        let ranks: RankSet = self.ranks.iter().copied().collect();
        Some(format!("{} is not used for {}: {why}", self.library, ranks.phrase()))
    }
}

/// The islands of a job. A rank that could not join turns its island's library off, and no other.
pub(super) fn islands(
    ordered: &[&RankDescriptor],
    topology: &Topology,
    evidence: &Evidence,
) -> Vec<PlannedIsland> {
    let shared = |ranks: &[u32]| {
        let mut devices = BTreeMap::new();
        ranks.iter().find_map(|rank| {
            let RankDescriptor { host, device, .. } = ordered[*rank as usize];
            let first = *devices.entry((host.key, &device.plugin, device.index)).or_insert(*rank);
            (first != *rank).then_some(Unused::SharedDevice { first, second: *rank })
        })
    };
    let given_up = |ranks: &[u32]| {
        let library = |rank: &&u32| ordered[**rank as usize].native_library.as_ref();
        let is_given_up = |rank: &&u32| library(rank).is_some_and(|library| library.is_given_up);
        ranks.iter().find(is_given_up).map(|rank| Unused::GivenUp { rank: *rank })
    };
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
                _ => shared(&island.ranks)
                    .or_else(|| given_up(&island.ranks))
                    .or_else(|| failed(&island.ranks)),
            },
        })
        .collect()
}
