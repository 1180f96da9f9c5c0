//! One decision: candidates, filters with reasons, score, choice.

use iccl_plugin_api::MemoryKind;
use iccl_wire::Writer;
use semver::Version;

use super::PlanConfig;
use super::class::{RankShape, TransportShape};
use super::cost::Cost;
use super::evidence::{LinkFact, RankFact};
use super::figures::{Figures, measured, settle};
use super::reason::{Reason, Refusal};
use super::rule::{Rule, RuleRef, speaks_of};
use super::tier::{Access, RegionForm, Side, Tier};
use crate::config::RuleAction;
use crate::topology::{TransportState, reach};

/// One way that a link can take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The tier.
    pub tier: Tier,
    /// The transport; `None` for a rank's link with itself.
    pub transport: Option<String>,
    /// How the sending side's buffers meet the transport.
    pub src: Access,
    /// How the receiving side's buffers meet the transport.
    pub dst: Access,
    /// In what form the sending side's device memory was registered when that was tried; `None` where it is
    /// not used, or was not tried.
    pub src_form: Option<RegionForm>,
    /// The same of the receiving side.
    pub dst_form: Option<RegionForm>,
    /// What it costs.
    pub cost: Cost,
}

impl Way {
    /// The same seen from the other end of the link.
    #[must_use]
    pub fn flipped(&self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            src_form: self.dst_form,
            dst_form: self.src_form,
            ..self.clone()
        }
    }

    fn write(&self, out: &mut Writer) {
        out.u8(self.tier.code()).str(self.transport.as_deref().unwrap_or(""));
        out.u8(u8::from(self.src == Access::Staged)).u8(u8::from(self.dst == Access::Staged));
        out.u64(self.cost.alpha_ns).u64(self.cost.bytes_per_us);
        out.u8(self.cost.alpha_source.code()).u8(self.cost.beta_source.code());
    }
}

/// What was decided for a class of links, seen from its low end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) chosen: Way,
    /// Best first.
    pub(super) runners_up: Vec<Way>,
    pub(super) refused: Vec<Refusal>,
    /// The `prefer` rule that decided, if one did.
    pub(super) preferred_by: Option<RuleRef>,
}

impl Decision {
    /// The same bytes for the same decision, for digests.
    pub(super) fn write(&self, out: &mut Writer) {
        self.chosen.write(out);
        out.u32(self.runners_up.len() as u32);
        self.runners_up.iter().for_each(|way| way.write(out));
    }
}

/// Nothing is left for a class of links.
#[derive(Clone, Debug)]
pub(super) struct NoWay {
    pub(super) refused: Vec<Refusal>,
    /// The first `require` rule that matches the link.
    pub(super) required_by: Option<RuleRef>,
}

/// The decision for a rank's link with itself.
pub(super) fn decide_self(config: &PlanConfig) -> Decision {
    let chosen = Way {
        tier: Tier::SelfCopy,
        transport: None,
        src: Access::Direct,
        dst: Access::Direct,
        src_form: None,
        dst_form: None,
        cost: settle(config, Tier::SelfCopy, "", Figures::of_table(Tier::SelfCopy)),
    };
    Decision { chosen, runners_up: Vec::new(), refused: Vec::new(), preferred_by: None }
}

/// The situation of one class of links.
pub(super) struct Situation<'a> {
    pub(super) src: &'a RankShape,
    pub(super) dst: &'a RankShape,
    pub(super) same_host: bool,
    pub(super) facts: &'a [LinkFact],
    pub(super) config: &'a PlanConfig,
}

impl Situation<'_> {
    /// Goes through every candidate; what the filters leave is ordered by rule, score, tier, name.
    pub(super) fn decide(&self) -> Result<Decision, NoWay> {
        let mut ways: Vec<Way> = Vec::new();
        let mut refused = Vec::new();
        for tier in Tier::ALL.into_iter().filter(|tier| *tier != Tier::SelfCopy) {
            if let Some(reason) = self.precondition(tier) {
                refused.push(Refusal { tier, transport: None, reason });
                continue;
            }
            let names = self.transports_for(tier);
            if names.is_empty() {
                let reason = Reason::PluginAbsent(Side::Both);
                refused.push(Refusal { tier, transport: None, reason });
            }
            for name in names {
                match self.candidate(tier, name) {
                    Ok(way) => ways.push(way),
                    Err(reason) => {
                        refused.push(Refusal { tier, transport: Some(name.to_owned()), reason });
                    }
                }
            }
        }
        ways.sort_by_cached_key(|way| {
            let preferred = self.preference(way.tier).map_or(usize::MAX, |(index, _)| index);
            (preferred, way.cost.score_ns(), way.tier, way.transport.clone())
        });
        let mut ways = ways.into_iter();
        let Some(chosen) = ways.next() else {
            let required_by =
                self.rules().find(|rule| rule.action == RuleAction::Require).map(Rule::reference);
            return Err(NoWay { refused, required_by });
        };
        let preferred_by = self.preference(chosen.tier).map(|(_, rule)| rule.reference());
        Ok(Decision { chosen, runners_up: ways.collect(), refused, preferred_by })
    }

    /// The rules that speak of this link, in either orientation.
    fn rules(&self) -> impl Iterator<Item = &Rule> {
        let ends = self.src.rules.iter().zip(&self.dst.rules);
        let matching = self.config.rules.iter().zip(ends);
        matching.filter(|(_, (src, dst))| speaks_of(**src, **dst)).map(|(rule, _)| rule)
    }

    /// The first `prefer` rule for a tier and its place among the rules that match.
    fn preference(&self, tier: Tier) -> Option<(usize, &Rule)> {
        let wanted = |rule: &Rule| rule.action == RuleAction::Prefer && rule.tier == tier;
        self.rules().enumerate().find(|(_, rule)| wanted(rule))
    }

    /// What rules a tier out whatever the transports can do.
    fn precondition(&self, tier: Tier) -> Option<Reason> {
        let lacking = Side::of(!self.src.has_device_memory, !self.dst.has_device_memory);
        match tier {
            Tier::Ipc | Tier::Shm if !self.same_host => Some(Reason::NotSameHost),
            Tier::Ipc if lacking.is_some() => lacking.map(Reason::NoDeviceMemory),
            Tier::Ipc if self.src.vendor != self.dst.vendor => Some(Reason::VendorsDiffer),
            // With nothing to stage on either side, RDMA is `direct`.
            Tier::Staged
                if lacking == Some(Side::Both) && !self.transports_for(tier).is_empty() =>
            {
                Some(Reason::NoDeviceMemory(Side::Both))
            }
            _ => None,
        }
    }

    /// The transports that either side has for a tier, by name.
    fn transports_for(&self, tier: Tier) -> Vec<&str> {
        let mut names: Vec<&str> = [self.src, self.dst]
            .into_iter()
            .flat_map(|shape| &shape.transports)
            .filter(|(_, transport)| serves(tier, transport.reach))
            .map(|(name, _)| name.as_str())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// One candidate through all filters, the hardest facts first: a rule is the reason only where
    /// nothing else is.
    fn candidate(&self, tier: Tier, name: &str) -> Result<Way, Reason> {
        let (src, dst) = match (self.src.serving(tier, name), self.dst.serving(tier, name)) {
            (Some(src), Some(dst)) => (src, dst),
            (src, dst) => {
                let side = Side::of(src.is_none(), dst.is_none()).unwrap_or(Side::Both);
                return Err(Reason::PluginAbsent(side));
            }
        };
        let ends = Ends { src: (src, self.src), dst: (dst, self.dst), name };
        ends.usable()?;
        if !compatible(&src.version, &dst.version) {
            let (src, dst) = (src.version.to_string(), dst.version.to_string());
            return Err(Reason::VersionIncompatible { src, dst });
        }
        let needed = if self.same_host { reach::SAME_HOST } else { reach::OTHER_HOSTS };
        let in_reach = src.reach & dst.reach & needed != 0;
        if !in_reach || !share_fabric(&src.fabrics, &dst.fabrics) {
            return Err(Reason::NoCommonFabric);
        }
        ends.memory(tier)?;
        for fact in self.facts {
            match fact {
                LinkFact::ConnectFailed { transport, errno } if transport == name => {
                    return Err(Reason::ConnectFailed { errno: *errno });
                }
                LinkFact::AttachFailed { transport, cause } if transport == name => {
                    return Err(Reason::AttachFailed { cause: cause.clone() });
                }
                _ => {}
            }
        }
        let denied = |rule: &&Rule| match rule.action {
            RuleAction::Forbid => rule.tier == tier,
            RuleAction::Require => rule.tier != tier,
            RuleAction::Prefer => false,
        };
        if let Some(rule) = self.rules().find(denied) {
            return Err(Reason::DeniedByRule(rule.reference()));
        }
        let (src_access, dst_access) = ends.access(tier);
        let form =
            |end: &End<'_>, access| ends.form(tier, end).filter(|_| access == Access::Direct);
        Ok(Way {
            tier,
            transport: Some(name.to_owned()),
            src: src_access,
            dst: dst_access,
            src_form: form(&ends.src, src_access),
            dst_form: form(&ends.dst, dst_access),
            cost: settle(self.config, tier, name, ends.figures(self.config, tier)),
        })
    }
}

impl RankShape {
    fn serving(&self, tier: Tier, name: &str) -> Option<&TransportShape> {
        self.transports.get(name).filter(|found| serves(tier, found.reach))
    }
}

/// Which tiers a transport serves follows from how it reaches its peers.
fn serves(tier: Tier, reaches: u32) -> bool {
    let fabric = reaches & reach::FABRIC != 0;
    let remote = reaches & reach::OTHER_HOSTS != 0;
    match tier {
        Tier::SelfCopy => false,
        Tier::Ipc | Tier::Shm => reaches & reach::SAME_HOST != 0 && !remote && !fabric,
        Tier::Direct | Tier::Staged => fabric,
        Tier::Tcp => remote && !fabric,
    }
}

/// Semver's rule for two versions of one protocol.
fn compatible(a: &Version, b: &Version) -> bool {
    a.major == b.major && (a.major > 0 || a.minor == b.minor)
}

/// Whether two sorted lists of fabrics meet; an empty one means any.
fn share_fabric(a: &[String], b: &[String]) -> bool {
    a.is_empty() || b.is_empty() || a.iter().any(|fabric| b.binary_search(fabric).is_ok())
}

/// The two ends of a candidate: each side's transport and rank.
struct Ends<'a> {
    src: (&'a TransportShape, &'a RankShape),
    dst: (&'a TransportShape, &'a RankShape),
    name: &'a str,
}

type End<'a> = (&'a TransportShape, &'a RankShape);

impl Ends<'_> {
    fn side(&self, holds: impl Fn(&End<'_>) -> bool) -> Option<Side> {
        Side::of(holds(&self.src), holds(&self.dst))
    }

    /// Each side is willing and able to use the transport at all.
    fn usable(&self) -> Result<(), Reason> {
        let disabled = |(transport, _): &End<'_>| transport.state == TransportState::Disabled;
        if let Some(side) = self.side(disabled) {
            return Err(Reason::TransportDisabled(side));
        }
        let quarantined = |(transport, rank): &End<'_>| {
            let named = |fact: &RankFact| matches!(fact, RankFact::Quarantined { transport } if transport == self.name);
            transport.state != TransportState::Active || rank.facts.iter().any(named)
        };
        self.side(quarantined).map_or(Ok(()), |side| Err(Reason::Quarantined(side)))
    }

    /// The transport works on the memory that the tier hands it.
    fn memory(&self, tier: Tier) -> Result<(), Reason> {
        let host = MemoryKind::Host.mask() | MemoryKind::PinnedHost.mask();
        let lacks = |(transport, _): &End<'_>, kinds: u32| transport.memory_kinds & kinds == 0;
        let unsupported = |kinds: u32, kind: &'static str| {
            let side = self.side(|end| lacks(end, kinds));
            side.map_or(Ok(()), |side| Err(Reason::MemoryKindUnsupported { side, kind }))
        };
        match tier {
            Tier::Ipc => unsupported(MemoryKind::Device.mask(), MemoryKind::Device.name()),
            Tier::Direct => {
                let no_gdr = |end: &End<'_>| {
                    let device = end.1.has_device_memory;
                    lacks(end, if device { MemoryKind::Device.mask() } else { host })
                };
                if let Some(side) = self.side(no_gdr) {
                    return Err(Reason::NoGdr(side));
                }
                let (src, dst) =
                    (self.register_failure(&self.src), self.register_failure(&self.dst));
                let side = Side::of(src.is_some(), dst.is_some());
                let cause = src.or(dst);
                side.zip(cause).map_or(Ok(()), |(side, cause)| {
                    Err(Reason::RegisterFailed { side, cause: cause.to_owned() })
                })
            }
            Tier::SelfCopy | Tier::Shm | Tier::Staged | Tier::Tcp => {
                unsupported(host, MemoryKind::Host.name())
            }
        }
    }

    /// Why a side's device memory could not be registered, if that was tried in vain.
    fn register_failure<'a>(&self, (_, rank): &End<'a>) -> Option<&'a str> {
        rank.facts.iter().filter(|_| rank.has_device_memory).find_map(|fact| match fact {
            RankFact::RegisterFailed { transport, cause } if transport == self.name => {
                Some(cause.as_str())
            }
            _ => None,
        })
    }

    /// In what form a side's device memory was registered, if that was tried.
    fn form(&self, tier: Tier, (_, rank): &End<'_>) -> Option<RegionForm> {
        let registers = rank.has_device_memory && matches!(tier, Tier::Direct | Tier::Staged);
        rank.facts.iter().filter(|_| registers).find_map(|fact| match fact {
            RankFact::Registered { transport, form } if transport == self.name => Some(*form),
            _ => None,
        })
    }

    /// How each side's buffers meet the transport.
    fn access(&self, tier: Tier) -> (Access, Access) {
        let reaches_device = |end: &End<'_>| {
            let (transport, rank) = end;
            !rank.has_device_memory
                || (transport.memory_kinds & MemoryKind::Device.mask() != 0
                    && self.register_failure(end).is_none())
        };
        let access = |direct: bool| if direct { Access::Direct } else { Access::Staged };
        let (src, dst) = (reaches_device(&self.src), reaches_device(&self.dst));
        // `staged` beside a possible `direct` is the way to fall back to: it stages on every side
        // that has device memory.
        if tier == Tier::Staged && src && dst {
            let host_only = |(_, rank): &End<'_>| !rank.has_device_memory;
            return (access(host_only(&self.src)), access(host_only(&self.dst)));
        }
        (access(src), access(dst))
    }

    /// Probe and table: the slower of both sides decides.
    fn figures(&self, config: &PlanConfig, tier: Tier) -> Figures {
        let of = |(transport, rank): &End<'_>| {
            let measured =
                if config.deterministic { None } else { measured(rank, tier, self.name) };
            measured.unwrap_or_else(|| Figures::claimed(tier, transport))
        };
        let figures = of(&self.src).slower(of(&self.dst));
        // The figures of `staged` have the copies in them.
        if !matches!(tier, Tier::Shm | Tier::Tcp) {
            return figures;
        }
        let (src, dst) = self.access(tier);
        figures
            .with_copies([src, dst].iter().filter(|side| **side == Access::Staged).count() as u64)
    }
}
