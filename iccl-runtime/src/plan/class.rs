//! Classes: ranks that no decision can tell apart, and the links between them.
//!
//! Eight ranks on each of 12,500 hosts make 100,000 ranks and five thousand million links, but only
//! a handful of different situations. A decision is made for each of those.

use std::collections::BTreeMap;

use iccl_wire::Writer;
use semver::Version;

use super::evidence::{LinkFact, RankFact};
use super::rule::Rule;
use crate::topology::{DecodeError, RankDescriptor, Topology, TransportState};

/// All that a decision may depend on, of one rank. Which host it is on is not part of it, only
/// whether two ranks share one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RankShape {
    pub(super) vendor: String,
    pub(super) has_device_memory: bool,
    /// By name.
    pub(super) transports: BTreeMap<String, TransportShape>,
    pub(super) facts: Vec<RankFact>,
    /// [`Rule::ends`] of each rule.
    pub(super) rules: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TransportShape {
    pub(super) version: Version,
    pub(super) state: TransportState,
    pub(super) reach: u32,
    pub(super) memory_kinds: u32,
    pub(super) latency_ns: u32,
    pub(super) bytes_per_us: u32,
    /// Sorted.
    pub(super) fabrics: Vec<String>,
}

impl RankShape {
    pub(super) fn of(
        descriptor: &RankDescriptor,
        host_name: &str,
        rules: &[Rule],
        facts: &[RankFact],
    ) -> Self {
        let vendor = &descriptor.device.vendor;
        let mut transports = BTreeMap::new();
        for transport in &descriptor.transports {
            let mut fabrics = transport.fabrics.clone();
            fabrics.sort();
            fabrics.dedup();
            transports.entry(transport.name.clone()).or_insert(TransportShape {
                version: transport.plugin_version.clone(),
                state: transport.state,
                reach: transport.reach,
                memory_kinds: transport.memory_kinds,
                latency_ns: transport.latency_ns,
                bytes_per_us: transport.bytes_per_us,
                fabrics,
            });
        }
        let ends = |rule: &Rule| rule.ends(descriptor.rank, vendor, host_name);
        Self {
            vendor: vendor.clone(),
            has_device_memory: descriptor.device.has_device_memory(),
            transports,
            facts: facts.to_vec(),
            rules: rules.iter().map(ends).collect(),
        }
    }

    /// The same bytes for the same shape, for digests.
    pub(super) fn write(&self, out: &mut Writer) -> Result<(), DecodeError> {
        out.str(&self.vendor).u8(u8::from(self.has_device_memory));
        out.u32(self.transports.len() as u32);
        for (name, transport) in &self.transports {
            out.str(name).str(&transport.version.to_string()).u8(transport.state.code());
            out.u32(transport.reach).u32(transport.memory_kinds);
            out.u32(transport.latency_ns).u32(transport.bytes_per_us);
            out.u32(transport.fabrics.len() as u32);
            for fabric in &transport.fabrics {
                out.str(fabric);
            }
        }
        out.u32(self.facts.len() as u32);
        self.facts.iter().try_for_each(|fact| fact.encode(out))?;
        out.bytes(&self.rules);
        Ok(())
    }
}

/// The links that one decision covers. `low` and `high` are numbers of rank classes, `low ≤ high`;
/// they are the two ends in the order in which decisions are made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinkKey {
    pub(super) low: u32,
    pub(super) high: u32,
    pub(super) same_host: bool,
    pub(super) facts: Vec<LinkFact>,
}

/// Which class each rank is of, and which links are a case of their own.
pub(super) struct Classes<'a> {
    pub(super) topology: &'a Topology,
    /// By rank.
    pub(super) class_of: &'a [u32],
    /// Evidence on single links, the lower rank first.
    pub(super) special: &'a BTreeMap<(u32, u32), Vec<LinkFact>>,
}

/// How many links a key covers, and the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Census {
    pub(super) links: u64,
    pub(super) example: (u32, u32),
}

impl Classes<'_> {
    fn class(&self, rank: u32) -> u32 {
        self.class_of[rank as usize]
    }

    /// The key of the link between two different ranks, and whether `a` is its high end.
    pub(super) fn key(&self, a: u32, b: u32) -> (LinkKey, bool) {
        let facts = self.special.get(&(a.min(b), a.max(b))).cloned().unwrap_or_default();
        let (class_a, class_b) = (self.class(a), self.class(b));
        let key = LinkKey {
            low: class_a.min(class_b),
            high: class_a.max(class_b),
            same_host: self.topology.same_host(a, b),
            facts,
        };
        (key, class_a > class_b)
    }

    /// Every key that occurs among these ranks (ascending, each once, all in the job).
    pub(super) fn census(&self, ranks: &[u32]) -> BTreeMap<LinkKey, Census> {
        let by_host = self.group(ranks);
        let mut counts = count_links(&by_host);
        let mut census = BTreeMap::new();
        let inside = |rank: &u32| ranks.binary_search(rank).is_ok();
        for pair in self.special.keys().filter(|(a, b)| inside(a) && inside(b)) {
            let (key, _) = self.key(pair.0, pair.1);
            let plain = LinkKey { facts: Vec::new(), ..key.clone() };
            if let Some(count) = counts.get_mut(&plain) {
                *count -= 1;
            }
            census.entry(key).or_insert(Census { links: 0, example: *pair }).links += 1;
        }
        let mut by_class: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for rank in ranks {
            by_class.entry(self.class(*rank)).or_default().push(*rank);
        }
        for (key, links) in counts.into_iter().filter(|(_, links)| *links > 0) {
            if let Some(example) = self.first_link(&key, &by_class, &by_host) {
                census.insert(key, Census { links, example });
            }
        }
        census
    }

    /// The ranks by host and class, ascending.
    fn group(&self, ranks: &[u32]) -> BTreeMap<usize, BTreeMap<u32, Vec<u32>>> {
        let mut by_host: BTreeMap<usize, BTreeMap<u32, Vec<u32>>> = BTreeMap::new();
        for rank in ranks {
            let host = self.topology.host_of(*rank).unwrap_or(usize::MAX);
            let classes = by_host.entry(host).or_default();
            classes.entry(self.class(*rank)).or_default().push(*rank);
        }
        by_host
    }

    /// The lowest pair of ranks that a plain key covers, in lexicographic order.
    fn first_link(
        &self,
        key: &LinkKey,
        by_class: &BTreeMap<u32, Vec<u32>>,
        by_host: &BTreeMap<usize, BTreeMap<u32, Vec<u32>>>,
    ) -> Option<(u32, u32)> {
        let none = Vec::new();
        let of = |class: u32| by_class.get(&class).unwrap_or(&none);
        let high = if key.low == key.high { &none } else { of(key.high) };
        merged(of(key.low), high).find_map(|a| {
            let counterpart = if self.class(a) == key.low { key.high } else { key.low };
            let partners = if key.same_host {
                self.topology
                    .host_of(a)
                    .and_then(|host| by_host.get(&host)?.get(&counterpart))
                    .unwrap_or(&none)
            } else {
                of(counterpart)
            };
            let above = &partners[partners.partition_point(|b| *b <= a)..];
            let covered = |b: &&u32| {
                self.topology.same_host(a, **b) == key.same_host
                    && !self.special.contains_key(&(a, **b))
            };
            above.iter().find(covered).map(|b| (a, *b))
        })
    }
}

/// Two ascending lists as one.
fn merged<'a>(a: &'a [u32], b: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
    let (mut a, mut b) = (a.iter().copied().peekable(), b.iter().copied().peekable());
    std::iter::from_fn(move || match (a.peek(), b.peek()) {
        (Some(x), Some(y)) if x > y => b.next(),
        (None, _) => b.next(),
        _ => a.next(),
    })
}

/// How many links of each plain key there are, evidence on single links aside.
fn count_links(by_host: &BTreeMap<usize, BTreeMap<u32, Vec<u32>>>) -> BTreeMap<LinkKey, u64> {
    let mut totals: BTreeMap<u32, u64> = BTreeMap::new();
    let mut counts = BTreeMap::new();
    for classes in by_host.values() {
        let sizes: Vec<(u32, u64)> =
            classes.iter().map(|(class, ranks)| (*class, ranks.len() as u64)).collect();
        for (pair, links) in pairs(&sizes) {
            *counts.entry(plain(pair, true)).or_insert(0) += links;
        }
        for (class, size) in sizes {
            *totals.entry(class).or_insert(0) += size;
        }
    }
    let totals: Vec<(u32, u64)> = totals.into_iter().collect();
    for (pair, links) in pairs(&totals) {
        let local = counts.get(&plain(pair, true)).copied().unwrap_or(0);
        counts.insert(plain(pair, false), links - local);
    }
    counts
}

fn plain((low, high): (u32, u32), same_host: bool) -> LinkKey {
    LinkKey { low, high, same_host, facts: Vec::new() }
}

/// Every pair of classes and how many pairs of members it has.
fn pairs(sizes: &[(u32, u64)]) -> impl Iterator<Item = ((u32, u32), u64)> + '_ {
    sizes.iter().enumerate().flat_map(move |(index, (low, size))| {
        sizes[index..].iter().map(move |(high, other)| {
            let links = if low == high { size * size.saturating_sub(1) / 2 } else { size * other };
            ((*low, *high), links)
        })
    })
}
