//! What a rank asks of its plan: one link, the cost of a set of links.

use sha2::{Digest, Sha256};

use super::cost::Cost;
use super::decide::{Decision, Way};
use super::divergence::first_u64;
use super::planner::Plan;
use super::reason::{Reason, Refusal};
use super::rule::RuleRef;

/// What was decided for the link from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkDecision {
    /// The sending rank.
    pub src: u32,
    /// The receiving rank.
    pub dst: u32,
    /// The class of links that the decision was made for; `None` for a rank with itself.
    pub class: Option<u32>,
    /// The way that the link takes.
    pub chosen: Way,
    /// The ways it can take when that one fails, best first.
    pub runners_up: Vec<Way>,
    /// The ways that were refused, and why; the best tier first.
    pub refused: Vec<Refusal>,
    /// The `prefer` rule that decided, if one did.
    pub preferred_by: Option<RuleRef>,
}

impl LinkDecision {
    /// Why the link takes none of the tiers before the chosen one, in the order of tiers: those
    /// that were refused, and those that lost to a rule or by their score.
    pub fn refused_better(&self) -> Vec<Refusal> {
        let better = |refusal: &&Refusal| refusal.tier < self.chosen.tier;
        let mut refusals: Vec<Refusal> = self.refused.iter().filter(better).cloned().collect();
        for way in self.runners_up.iter().filter(|way| way.tier < self.chosen.tier) {
            let reason = match &self.preferred_by {
                Some(rule) => Reason::OutrankedByRule(rule.clone()),
                None => Reason::Slower {
                    score_ns: way.cost.score_ns(),
                    chosen_ns: self.chosen.cost.score_ns(),
                },
            };
            refusals.push(Refusal { tier: way.tier, transport: way.transport.clone(), reason });
        }
        refusals.sort_by(|a, b| (a.tier, &a.transport).cmp(&(b.tier, &b.transport)));
        refusals
    }

    pub(super) fn of(
        (src, dst): (u32, u32),
        class: Option<u32>,
        decision: &Decision,
        flip: bool,
    ) -> Self {
        let way = |way: &Way| if flip { way.flipped() } else { way.clone() };
        let refusal = |r: &Refusal| if flip { r.flipped() } else { r.clone() };
        Self {
            src,
            dst,
            class,
            chosen: way(&decision.chosen),
            runners_up: decision.runners_up.iter().map(way).collect(),
            refused: decision.refused.iter().map(refusal).collect(),
            preferred_by: decision.preferred_by.clone(),
        }
    }
}

/// What the links among some ranks cost, for the choice of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// The longest latency of any link, in nanoseconds.
    pub alpha_ns: u64,
    /// The smallest bandwidth of any link, in bytes per microsecond.
    pub bytes_per_us: u64,
    /// The same over links inside hosts, where there are any.
    pub inside_hosts: Option<(u64, u64)>,
    /// The same over links between hosts, where there are any.
    pub between_hosts: Option<(u64, u64)>,
    /// How many hosts the ranks are on.
    pub hosts: usize,
    /// The fewest of the ranks that any of these hosts has.
    pub fewest_ranks_per_host: usize,
    /// The most of the ranks that any of these hosts has; they share its NICs.
    pub most_ranks_per_host: usize,
}

impl Plan {
    /// The decision for the link from one rank to another; `None` if one is not in the job. From
    /// the other end it is the same, with the sides exchanged.
    pub fn link(&self, src: u32, dst: u32) -> Option<LinkDecision> {
        if !self.has(src) || !self.has(dst) {
            return None;
        }
        if src == dst {
            return Some(LinkDecision::of((src, dst), None, &self.self_decision, false));
        }
        let (key, flip) = self.lookup().key(src, dst);
        let class = self.classes.get(&key)?;
        Some(LinkDecision::of((src, dst), Some(class.number), &class.decision, flip))
    }

    /// What both ends of a link compare when they connect: the same from both ends, different for
    /// every pair of ranks and every different decision. `None` if one is not in the job.
    pub fn link_digest(&self, a: u32, b: u32) -> Option<u64> {
        if !self.has(a) || !self.has(b) {
            return None;
        }
        let mut hash = Sha256::new();
        hash.update(b"iccl link 1\0");
        hash.update(self.epoch.to_le_bytes());
        hash.update(a.min(b).to_le_bytes());
        hash.update(a.max(b).to_le_bytes());
        if a != b {
            hash.update(self.classes.get(&self.lookup().key(a, b).0)?.digest);
        }
        Some(first_u64(&hash.finalize().into()))
    }

    /// What the links among these ranks cost, the slowest counting; `None` if there is no rank or one
    /// is not in the job.
    pub fn cost_model(&self, ranks: &[u32]) -> Option<CostModel> {
        let mut ranks = ranks.to_vec();
        ranks.sort_unstable();
        ranks.dedup();
        if ranks.is_empty() || !ranks.iter().all(|rank| self.has(*rank)) {
            return None;
        }
        let slower = |found: Option<(u64, u64)>, cost: &Cost| match found {
            Some((alpha, beta)) => Some((alpha.max(cost.alpha_ns), beta.min(cost.bytes_per_us))),
            None => Some((cost.alpha_ns, cost.bytes_per_us)),
        };
        let (mut inside, mut between) = (None, None);
        let mut worst = None;
        for key in self.lookup().census(&ranks).keys() {
            let cost = &self.classes.get(key)?.decision.chosen.cost;
            let place = if key.same_host { &mut inside } else { &mut between };
            *place = slower(*place, cost);
            worst = slower(worst, cost);
        }
        let own = &self.self_decision.chosen.cost;
        let (alpha_ns, bytes_per_us) = worst.unwrap_or((own.alpha_ns, own.bytes_per_us));
        let mut per_host = std::collections::BTreeMap::new();
        for rank in ranks {
            *per_host.entry(self.topology.host_of(rank)).or_insert(0) += 1;
        }
        Some(CostModel {
            alpha_ns,
            bytes_per_us,
            inside_hosts: inside,
            between_hosts: between,
            hosts: per_host.len(),
            fewest_ranks_per_host: per_host.values().copied().min().unwrap_or(0),
            most_ranks_per_host: per_host.values().copied().max().unwrap_or(0),
        })
    }

    fn has(&self, rank: u32) -> bool {
        (rank as usize) < self.world_size()
    }
}
