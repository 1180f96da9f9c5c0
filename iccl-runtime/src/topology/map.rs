//! The map of the job: which ranks share a host, which share a native library.

use std::collections::BTreeMap;

use thiserror::Error;

use super::abilities::NativeAbilities;
use super::descriptor::{RankDescriptor, reach};
use super::host::HostKey;
use super::ranks::RankSet;

/// Hosts, local ranks and islands of all ranks of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    hosts: Vec<Host>,
    places: Vec<Place>,
    islands: Vec<Island>,
}

/// One host and its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The host's key.
    pub key: HostKey,
    /// The name that its lowest rank gives it.
    pub name: String,
    /// Its ranks, ascending.
    pub ranks: Vec<u32>,
    /// The NUMA nodes that its ranks are on, ascending, where known.
    pub numa_nodes: Vec<u16>,
}

/// The largest set of ranks that one native collective library can serve: same vendor, same library
/// and version, with the same abilities, in each other's reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Island {
    /// The vendor of the devices.
    pub vendor: String,
    /// Name and version of the library.
    pub library: String,
    /// What the library can do.
    pub abilities: NativeAbilities,
    /// Its ranks, ascending.
    pub ranks: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    host: u32,
    local_rank: u32,
    numa_node: Option<u16>,
    island: Option<u32>,
}

/// Why descriptors do not make a job.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopologyError {
    /// There is no descriptor at all.
    #[error("no rank published a descriptor")]
    Empty,
    /// Two descriptors claim one rank.
    #[error("{} came twice", .0.phrase())]
    Twice(RankSet),
    /// Ranks below the highest one are missing.
    #[error("{} of {world_size} published no descriptor", missing.phrase())]
    Missing {
        /// The ranks that are missing.
        missing: RankSet,
        /// The size of the job.
        world_size: usize,
    },
}

impl Topology {
    /// The map of a job whose ranks are `0..descriptors.len()`, given in any order.
    ///
    /// # Errors
    /// Names the ranks that are missing or came twice.
    pub fn new(descriptors: &[RankDescriptor]) -> Result<Self, TopologyError> {
        let sorted = in_rank_order(descriptors)?;
        let mut hosts: Vec<Host> = Vec::new();
        let mut host_index = BTreeMap::new();
        let mut islands: Vec<Island> = Vec::new();
        let mut island_index = BTreeMap::new();
        let mut places = Vec::with_capacity(sorted.len());
        for descriptor in sorted {
            let facts = &descriptor.host;
            let host = *host_index.entry(facts.key).or_insert_with(|| {
                hosts.push(Host {
                    key: facts.key,
                    name: facts.name.clone(),
                    ranks: Vec::new(),
                    numa_nodes: Vec::new(),
                });
                hosts.len() - 1
            });
            let island = descriptor.native_library.as_ref().map(|library| {
                let vendor = descriptor.device.vendor.as_str();
                let within = (library.reach & reach::OTHER_HOSTS == 0).then_some(host);
                let abilities = &library.abilities;
                let key = (vendor, library.id.as_str(), library.reach, abilities, within);
                let index = *island_index.entry(key).or_insert_with(|| {
                    islands.push(Island {
                        vendor: vendor.to_owned(),
                        library: library.id.clone(),
                        abilities: abilities.clone(),
                        ranks: Vec::new(),
                    });
                    islands.len() - 1
                });
                islands[index].ranks.push(descriptor.rank);
                index as u32
            });
            let entry = &mut hosts[host];
            places.push(Place {
                host: host as u32,
                local_rank: entry.ranks.len() as u32,
                numa_node: facts.numa_node,
                island,
            });
            entry.ranks.push(descriptor.rank);
            if let Some(node) = facts.numa_node
                && let Err(place) = entry.numa_nodes.binary_search(&node)
            {
                entry.numa_nodes.insert(place, node);
            }
        }
        Ok(Self { hosts, places, islands })
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.places.len()
    }

    /// The hosts, in the order of their lowest ranks.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The islands, in the order of their lowest ranks. A rank without a native library is on none.
    pub fn islands(&self) -> &[Island] {
        &self.islands
    }

    /// The index in [`Topology::hosts`] of a rank's host; `None` for a rank outside the job.
    pub fn host_of(&self, rank: u32) -> Option<usize> {
        self.place(rank).map(|place| place.host as usize)
    }

    /// A rank's place among the ranks of its host, from 0.
    pub fn local_rank(&self, rank: u32) -> Option<u32> {
        self.place(rank).map(|place| place.local_rank)
    }

    /// The NUMA node of a rank, where known.
    pub fn numa_node(&self, rank: u32) -> Option<u16> {
        self.place(rank)?.numa_node
    }

    /// The index in [`Topology::islands`] of a rank's island, if it is on one.
    pub fn island_of(&self, rank: u32) -> Option<usize> {
        self.place(rank)?.island.map(|island| island as usize)
    }

    /// Whether two ranks are on one host.
    pub fn same_host(&self, a: u32, b: u32) -> bool {
        self.host_of(a).is_some() && self.host_of(a) == self.host_of(b)
    }

    fn place(&self, rank: u32) -> Option<&Place> {
        self.places.get(rank as usize)
    }
}

/// The descriptors in the order of their ranks, which are exactly `0..len`.
pub(crate) fn in_rank_order(
    descriptors: &[RankDescriptor],
) -> Result<Vec<&RankDescriptor>, TopologyError> {
    let mut sorted: Vec<&RankDescriptor> = descriptors.iter().collect();
    sorted.sort_by_key(|descriptor| descriptor.rank);
    let Some(highest) = sorted.last().map(|descriptor| descriptor.rank) else {
        return Err(TopologyError::Empty);
    };
    let twice: RankSet = sorted
        .windows(2)
        .filter(|pair| pair[0].rank == pair[1].rank)
        .map(|pair| pair[0].rank)
        .collect();
    if !twice.is_empty() {
        return Err(TopologyError::Twice(twice));
    }
    if highest as usize >= sorted.len() {
        let present: RankSet = sorted.iter().map(|descriptor| descriptor.rank).collect();
        // A wild rank number must not make this walk four billion numbers.
        let world_size = highest as usize + 1;
        let mut missing = RankSet::default();
        let mut next = 0;
        for rank in present.iter() {
            (next..rank).take(64).for_each(|absent| missing.insert(absent));
            next = rank.saturating_add(1);
        }
        return Err(TopologyError::Missing { missing, world_size });
    }
    Ok(sorted)
}
