//! Clusters that are described in a file: planned without devices, or played by this machine with
//! simulated SDKs.
//!
//! [`file`](mod@file) reads them, [`known`] has what their libraries can do, [`start`] makes what their ranks need, in a [`folder`] of
//! their own, [`network`] gives each node a network namespace. Which makers there are is one list here; nothing else knows them by name.

mod file;
mod folder;
mod known;
pub(crate) mod network;
mod start;

pub(crate) use start::ClusterArguments;

use std::path::Path;

use iccl_runtime::comm::{DryCard, DryLibrary, DryRank};

use crate::failure::Result;

/// The makers of cards that a node may have, by their plugins' names.
pub(crate) const VENDORS: &[&str] = &["host", "nvidia", "ascend", "cambricon", "kunlun"];

/// The vendor whose nodes have no cards: ranks work on the host's memory.
pub(crate) const HOST: &str = "host";

/// The native library of a node that has none.
pub(crate) const NO_LIBRARY: &str = "none";

/// Which host a simulated SDK plays; every rank of a cluster that this command started has it.
pub(crate) const SIMULATED_HOST: &str = "ICCL_SIM_HOST";

/// Nodes, and which rank sits where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    /// The seat of each rank, by rank.
    pub(crate) seats: Vec<Seat>,
}

/// A host of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Also its host id.
    pub(crate) name: String,
    pub(crate) vendor: String,
    /// The simulated SDK, where a maker has several.
    pub(crate) sdk: String,
    /// Its native library in a plan, by its name in `docs/vendors.md`, or [`NO_LIBRARY`].
    pub(crate) library: Option<String>,
    pub(crate) cards: u32,
    pub(crate) nics: Vec<Nic>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nic {
    pub(crate) name: String,
    pub(crate) bytes_per_second: u64,
}

/// A card of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) node: usize,
    pub(crate) card: u32,
}

/// How ranks are dealt to cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// All of a node, then all of the next.
    ByNode,
    /// The first card of each node, then the second of each that has one.
    Interleaved,
    /// As by node, from the last rank to the first.
    Reversed,
}

impl Order {
    const ALL: [(&'static str, Self); 3] = [
        ("by-node", Self::ByNode),
        ("interleaved", Self::Interleaved),
        ("reversed", Self::Reversed),
    ];
}

impl Cluster {
    /// Reads a cluster file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        file::read(path)
    }

    /// The nodes with their ranks in an order.
    pub(crate) fn new(nodes: Vec<Node>, order: Order) -> Self {
        let mut seats: Vec<Seat> = nodes
            .iter()
            .enumerate()
            .flat_map(|(node, one)| (0..one.cards).map(move |card| Seat { node, card }))
            .collect();
        match order {
            Order::ByNode => {}
            Order::Interleaved => seats.sort_by_key(|seat| (seat.card, seat.node)),
            Order::Reversed => seats.reverse(),
        }
        Self { nodes, seats }
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.seats.len() as u32
    }

    /// What a plan has to know of its ranks.
    pub(crate) fn dry_ranks(&self) -> Vec<DryRank> {
        let seat = |seat: &Seat| {
            let node = &self.nodes[seat.node];
            DryRank {
                host: Some(node.name.clone()),
                card: Some(DryCard {
                    vendor: node.vendor.clone(),
                    index: seat.card,
                    library: node.dry_library(),
                }),
                network_bytes_per_us: node.network().map(|nic| {
                    u32::try_from(nic.bytes_per_second / 1_000_000).unwrap_or(u32::MAX).max(1)
                }),
            }
        };
        self.seats.iter().map(seat).collect()
    }

    /// One line: `2 nodes, 4 ranks: a 2 nvidia, b 2 ascend`.
    pub(crate) fn summary(&self) -> String {
        let nodes: Vec<String> = self
            .nodes
            .iter()
            .map(|node| format!("{} {} {}", node.name, node.cards, node.vendor))
            .collect();
        format!("{} nodes, {} ranks: {}", nodes.len(), self.ranks(), nodes.join(", "))
    }
}

impl Node {
    /// What a plan takes for its native library.
    fn dry_library(&self) -> DryLibrary {
        let mut known = known::libraries(&self.vendor).into_iter();
        match self.library.as_deref() {
            None => DryLibrary::Found { or_else: known.next() },
            Some(name) => DryLibrary::Given(known.find(|one| one.id == name)),
        }
    }

    /// The NIC that the ranks use: the fastest, the first of equals.
    pub(crate) fn network(&self) -> Option<&Nic> {
        self.nics.iter().rev().max_by_key(|nic| nic.bytes_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn node(name: &str, cards: u32) -> Node {
        let vendor = "nvidia".to_owned();
        Node {
            name: name.to_owned(),
            sdk: vendor.clone(),
            vendor,
            library: None,
            cards,
            nics: Vec::new(),
        }
    }

    #[test]
    fn ranks_are_dealt_in_the_order_that_is_asked_for() {
        let dealt = |order| {
            let cluster = Cluster::new(vec![node("a", 2), node("b", 1), node("c", 2)], order);
            let seats = cluster.seats.iter();
            seats.map(|seat| format!("{}{}", seat.node, seat.card)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(dealt(Order::ByNode), "00 01 10 20 21");
        assert_eq!(dealt(Order::Interleaved), "00 10 20 01 21");
        assert_eq!(dealt(Order::Reversed), "21 20 10 01 00");
    }

    #[test]
    fn the_fastest_nic_is_used_and_the_first_of_equals() {
        let nic = |name: &str, bytes_per_second| Nic { name: name.to_owned(), bytes_per_second };
        let mut one = node("a", 1);
        assert_eq!(one.network(), None);
        one.nics = vec![nic("slow", 1), nic("fast", 2), nic("other", 2)];
        assert_eq!(one.network().map(|nic| nic.name.as_str()), Some("fast"));
    }
}
