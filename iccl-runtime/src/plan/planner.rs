//! From inputs to a plan.

use std::collections::BTreeMap;

use iccl_wire::Writer;
use sha2::{Digest, Sha256};

use super::class::{Census, Classes, LinkKey, RankShape};
use super::decide::{Decision, NoWay, Situation, decide_self};
use super::divergence::{Divergence, InputDigests};
use super::error::{PlanError, Unsatisfiable};
use super::evidence::{Evidence, LinkFact, RankFact};
use super::islands::{PlannedIsland, islands};
use super::reason::Reason;
use super::rule::{Rule, speaks_of};
use super::tier::Tier;
use super::{CostEntry, PLANNER_VERSION};
use crate::config::Config;
use crate::topology::{RankDescriptor, RankSet, Topology, in_rank_order};

/// The configuration's part in a plan; the same on every rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanConfig {
    /// The rules, in the order in which they are written.
    pub rules: Vec<Rule>,
    /// Figures from the user's settings.
    pub costs: Vec<CostEntry>,
    /// Figures from a calibration file.
    pub calibration: Vec<CostEntry>,
    /// Whether the same inputs have to lead to the same bits on every run: then what was measured
    /// (probes and calibration) does not count.
    pub deterministic: bool,
    /// The settings, by key, on which all ranks have to agree ([`Config::agreed`]).
    pub agreed: Vec<(String, String)>,
}

impl PlanConfig {
    /// The plan's part of a configuration. The calibration file is for the caller to read
    /// ([`super::read_calibration`]).
    pub fn from_settings(settings: &Config) -> Self {
        let given = |tier: &Tier| {
            let alpha = settings.plan.latency.get(tier.name());
            let beta = settings.plan.bandwidth.get(tier.name());
            (alpha.is_some() || beta.is_some()).then(|| CostEntry {
                tier: *tier,
                transport: None,
                alpha_ns: alpha.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
                bytes_per_us: beta.map(|bytes_per_s| (bytes_per_s / 1_000_000).max(1)),
            })
        };
        Self {
            rules: settings.plan.rule.iter().filter_map(Rule::from_setting).collect(),
            costs: Tier::ALL.iter().filter_map(given).collect(),
            calibration: Vec::new(),
            deterministic: settings.engine.deterministic,
            agreed: settings.agreed(),
        }
    }
}

/// Which way every link of a job takes, and why.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) topology: Topology,
    /// The class of each rank.
    pub(super) class_of: Vec<u32>,
    pub(super) special: BTreeMap<(u32, u32), Vec<LinkFact>>,
    /// The decisions; the place in this map is the number of a class of links.
    pub(super) classes: BTreeMap<LinkKey, LinkClass>,
    pub(super) self_decision: Decision,
    pub(super) digests: InputDigests,
    pub(super) epoch: u32,
    pub(super) islands: Vec<PlannedIsland>,
    pub(super) warnings: Vec<String>,
}

/// The decision for one class of links.
#[derive(Clone, Debug)]
pub(super) struct LinkClass {
    pub(super) number: u32,
    pub(super) census: Census,
    pub(super) decision: Decision,
    /// Over the shapes of both ends and the decision.
    pub(super) digest: [u8; 32],
}

/// Plans every link of a job.
///
/// Pure: the same descriptors (in any order), configuration and evidence give the same plan, on
/// every rank, with the same hash; and the same error, with the same text, where there is none.
///
/// # Errors
/// [`PlanError`] says what is wrong: ranks missing or twice, versions or settings that differ, a rule
/// that cannot be met, a link for which no way is left.
pub fn plan(
    descriptors: &[RankDescriptor],
    config: &PlanConfig,
    evidence: &Evidence,
) -> Result<Plan, PlanError> {
    let topology = Topology::new(descriptors)?;
    let ordered = in_rank_order(descriptors)?;
    check_agreement(&ordered)?;
    check_rules(config)?;
    let special = links_with_evidence(evidence, ordered.len())?;

    let (shapes, class_of) = classify(&ordered, &topology, config, evidence);
    let everyone: Vec<u32> = (0..ordered.len() as u32).collect();
    let classes = Classes { topology: &topology, class_of: &class_of, special: &special };
    let census = classes.census(&everyone);

    let mut decided = BTreeMap::new();
    let mut without: Vec<(Census, NoWay)> = Vec::new();
    for (key, census) in census {
        let situation = Situation {
            src: &shapes[key.low as usize],
            dst: &shapes[key.high as usize],
            same_host: key.same_host,
            facts: &key.facts,
            config,
        };
        match situation.decide() {
            Ok(decision) => {
                let digest = class_digest(&situation, &decision)?;
                let number = decided.len() as u32;
                decided.insert(key, LinkClass { number, census, decision, digest });
            }
            Err(no_way) => without.push((census, no_way)),
        }
    }
    let links = without.iter().map(|(census, _)| census.links).sum();
    // The first in the order of ranks, so that all ranks name the same one.
    if let Some(first) = without.into_iter().min_by_key(|(census, _)| census.example) {
        return Err(unsatisfiable(&ordered, &topology, first, links));
    }
    let mut plan = Plan {
        digests: InputDigests::of(descriptors, config, evidence)?,
        islands: islands(&ordered, &topology, evidence),
        topology,
        class_of,
        special,
        classes: decided,
        self_decision: decide_self(config),
        epoch: evidence.epoch,
        warnings: Vec::new(),
    };
    plan.warnings = warnings(&plan, &shapes, config, evidence);
    Ok(plan)
}

impl Plan {
    /// The digest of everything that went into the plan: ranks with the same hash have the same
    /// plan.
    pub fn hash(&self) -> [u8; 32] {
        self.digests.combined()
    }

    /// The digest of each input, to name the one that differs.
    pub fn input_digests(&self) -> &InputDigests {
        &self.digests
    }

    /// The epoch of the evidence that the plan rests on.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Hosts, local ranks and islands.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The islands, in the order of their lowest ranks, and whether their native libraries are used.
    pub fn islands(&self) -> &[PlannedIsland] {
        &self.islands
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.topology.world_size()
    }

    /// How many different decisions the plan holds; grows with the kinds of ranks, not with their
    /// number.
    pub fn class_count(&self) -> usize {
        self.classes.len()
    }

    /// What an operator should know although it does not stop the job: ways that failed and which
    /// links they touch, rules that match nothing. One line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub(super) fn lookup(&self) -> Classes<'_> {
        Classes { topology: &self.topology, class_of: &self.class_of, special: &self.special }
    }
}

/// What the exchange itself should have found, checked again: a plan over ranks that do not agree
/// is worth nothing.
fn check_agreement(ordered: &[&RankDescriptor]) -> Result<(), PlanError> {
    let wire = ordered.iter().map(|rank| (rank.rank, rank.wire_version.to_string()));
    if let Some(divergence) = Divergence::of("the wire version", wire) {
        return Err(PlanError::Versions(divergence));
    }
    let digests = ordered.iter().map(|rank| (rank.rank, format!("{:016x}", rank.agreed_digest)));
    Divergence::of("agreed settings", digests).map_or(Ok(()), |divergence| Err(divergence.into()))
}

fn check_rules(config: &PlanConfig) -> Result<(), PlanError> {
    match config.rules.iter().find(|rule| rule.tier == Tier::SelfCopy) {
        Some(rule) => Err(PlanError::BadRule {
            rule: rule.reference(),
            problem: "a rank's link with itself always takes `self`, and no other link can",
        }),
        None => Ok(()),
    }
}

fn links_with_evidence(
    evidence: &Evidence,
    world_size: usize,
) -> Result<BTreeMap<(u32, u32), Vec<LinkFact>>, PlanError> {
    let inside = |rank: u32| (rank as usize) < world_size;
    if let Some((rank, _)) = evidence.ranks.iter().find(|(rank, _)| !inside(*rank)) {
        return Err(PlanError::BadEvidence { a: *rank, b: *rank, world_size });
    }
    let mut special: BTreeMap<(u32, u32), Vec<LinkFact>> = BTreeMap::new();
    for (a, b, fact) in &evidence.links {
        if a == b || !inside(*b) {
            return Err(PlanError::BadEvidence { a: *a, b: *b, world_size });
        }
        special.entry((*a, *b)).or_default().push(fact.clone());
    }
    Ok(special)
}

/// The different shapes, sorted, and the number of each rank's shape.
fn classify(
    ordered: &[&RankDescriptor],
    topology: &Topology,
    config: &PlanConfig,
    evidence: &Evidence,
) -> (Vec<RankShape>, Vec<u32>) {
    let mut facts: BTreeMap<u32, Vec<RankFact>> = BTreeMap::new();
    // Links do not depend on native libraries.
    let of_links = |fact: &RankFact| !matches!(fact, RankFact::NativeFailed { .. });
    for (rank, fact) in evidence.ranks.iter().filter(|(_, fact)| of_links(fact)) {
        facts.entry(*rank).or_default().push(fact.clone());
    }
    let mut members: BTreeMap<RankShape, Vec<usize>> = BTreeMap::new();
    for (rank, descriptor) in ordered.iter().enumerate() {
        let host = topology.host_of(descriptor.rank).map(|host| &topology.hosts()[host]);
        let host_name = host.map_or("", |host| host.name.as_str());
        let facts = facts.get(&descriptor.rank).map_or(&[][..], Vec::as_slice);
        let shape = RankShape::of(descriptor, host_name, &config.rules, facts);
        members.entry(shape).or_default().push(rank);
    }
    let mut class_of = vec![0; ordered.len()];
    let mut shapes = Vec::with_capacity(members.len());
    for (shape, ranks) in members {
        for rank in ranks {
            class_of[rank] = shapes.len() as u32;
        }
        shapes.push(shape);
    }
    (shapes, class_of)
}

fn class_digest(situation: &Situation<'_>, decision: &Decision) -> Result<[u8; 32], PlanError> {
    let mut out = Writer::new();
    out.str("iccl link class 1").u32(PLANNER_VERSION);
    situation.src.write(&mut out)?;
    situation.dst.write(&mut out)?;
    out.u8(u8::from(situation.same_host)).u32(situation.facts.len() as u32);
    situation.facts.iter().try_for_each(|fact| fact.encode(&mut out))?;
    decision.write(&mut out);
    Ok(Sha256::digest(out.finish()).into())
}

fn unsatisfiable(
    ordered: &[&RankDescriptor],
    topology: &Topology,
    (census, no_way): (Census, NoWay),
    links: u64,
) -> PlanError {
    let (a, b) = census.example;
    let named = |rank: u32| {
        let host = topology.host_of(rank).map(|host| topology.hosts()[host].name.clone());
        (rank, host.unwrap_or_default())
    };
    let absent =
        no_way.refused.iter().filter(|refusal| matches!(refusal.reason, Reason::PluginAbsent(_)));
    let missing = absent
        .filter_map(|refusal| {
            let name = refusal.transport.as_deref().or(refusal.tier.usual_transport())?;
            let lacking = ordered.iter().filter(|rank| rank.transport(name).is_none());
            let ranks: RankSet = lacking.map(|rank| rank.rank).collect();
            Some((format!("libiccl_transport-{name}.so"), ranks))
        })
        .collect();
    PlanError::Unsatisfiable(Box::new(Unsatisfiable {
        src: named(a),
        dst: named(b),
        links,
        refused: no_way.refused,
        required_by: no_way.required_by,
        missing,
    }))
}

fn warnings(
    plan: &Plan,
    shapes: &[RankShape],
    config: &PlanConfig,
    evidence: &Evidence,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut failed: BTreeMap<&LinkFact, Vec<(u32, u32)>> = BTreeMap::new();
    for (a, b, fact) in &evidence.links {
        failed.entry(fact).or_default().push((*a, *b));
    }
    for (fact, links) in failed {
        let (transport, reason) = match fact {
            LinkFact::ConnectFailed { transport, errno } => {
                (transport, Reason::ConnectFailed { errno: *errno })
            }
            LinkFact::AttachFailed { transport, cause } => {
                (transport, Reason::AttachFailed { cause: cause.clone() })
            }
        };
        let shown: Vec<String> = links
            .iter()
            .take(8)
            .filter_map(|(a, b)| {
                let tier = plan.link(*a, *b)?.chosen.tier;
                Some(format!("{a}-{b} takes {tier}"))
            })
            .collect();
        let more = match links.len() - shown.len() {
            0 => String::new(),
            more => format!(" and {more} more links"),
        };
        warnings.push(format!("{transport}: {reason}: {}{more}", shown.join(", ")));
    }
    let mut lost: BTreeMap<(&str, String), RankSet> = BTreeMap::new();
    for (rank, fact) in &evidence.ranks {
        let (transport, what) = match fact {
            RankFact::Quarantined { transport } => (transport, "quarantined".to_owned()),
            RankFact::RegisterFailed { transport, cause } => {
                (transport, format!("registering device memory failed ({cause})"))
            }
            // Told island by island.
            RankFact::NativeFailed { .. }
            | RankFact::Registered { .. }
            | RankFact::Speed { .. } => continue,
        };
        lost.entry((transport, what)).or_default().insert(*rank);
    }
    for ((transport, what), ranks) in lost {
        warnings.push(format!("{transport}: {what} on {}", ranks.phrase()));
    }
    warnings.extend(plan.islands.iter().filter_map(PlannedIsland::warning));
    for (index, rule) in config.rules.iter().enumerate() {
        let ends = |class: u32| shapes[class as usize].rules[index];
        let matches = plan.classes.keys().any(|key| speaks_of(ends(key.low), ends(key.high)));
        if !matches {
            warnings.push(format!("the rule `{}` matches no link", rule.reference()));
        }
    }
    warnings
}
