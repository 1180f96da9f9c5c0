//! Where a candidate's α and β come from.

use std::cmp::Ordering;

use super::class::{RankShape, TransportShape};
use super::cost::{Cost, CostSource, lookup, table};
use super::evidence::RankFact;
use super::tier::Tier;
use super::{CostEntry, PlanConfig};

/// α and β of one side, or of both, with where each comes from.
#[derive(Clone, Copy)]
pub(super) struct Figures {
    alpha: (u64, CostSource),
    beta: (u64, CostSource),
}

impl Figures {
    /// iccl's own table.
    pub(super) fn of_table(tier: Tier) -> Self {
        let (alpha, beta) = table(tier);
        Self { alpha: (alpha, CostSource::Table), beta: (beta, CostSource::Table) }
    }

    /// The table, with what the plugin says of itself in its place.
    pub(super) fn claimed(tier: Tier, transport: &TransportShape) -> Self {
        let mut figures = Self::of_table(tier);
        let claim = |figure: u32| (figure != 0).then_some(u64::from(figure));
        let (alpha, beta) = (claim(transport.latency_ns), claim(transport.bytes_per_us));
        match tier {
            // A transport speaks of host memory; mapping device memory is another matter.
            Tier::SelfCopy | Tier::Ipc => {}
            Tier::Shm | Tier::Direct | Tier::Tcp => {
                figures.alpha.0 = alpha.unwrap_or(figures.alpha.0);
                figures.beta.0 = beta.unwrap_or(figures.beta.0);
            }
            // And says nothing about the copies before and after.
            Tier::Staged => {
                let copies_ns = figures.alpha.0 - table(Tier::Direct).0;
                figures.alpha.0 = alpha.map_or(figures.alpha.0, |alpha| alpha + copies_ns);
                figures.beta.0 = beta.unwrap_or(figures.beta.0).min(figures.beta.0);
            }
        }
        figures
    }

    /// With copies between device memory and pinned host memory on so many sides, where what is known is of
    /// host memory only. They overlap with each other and with the transport, chunk by chunk, so the
    /// slowest of them all is what a long message takes.
    pub(super) fn with_copies(mut self, sides: u64) -> Self {
        let copy_ns = (table(Tier::Staged).0 - table(Tier::Direct).0) / 2;
        if sides > 0 && self.alpha.1 == CostSource::Table {
            self.alpha.0 += sides * copy_ns;
        }
        if sides > 0 && self.beta.1 == CostSource::Table {
            self.beta.0 = self.beta.0.min(table(Tier::SelfCopy).1);
        }
        self
    }

    /// The longer α and the smaller β; of two equal ones, the more trusted.
    pub(super) fn slower(self, other: Self) -> Self {
        let trusted = |a: (u64, CostSource), b: (u64, CostSource)| if a.1 <= b.1 { a } else { b };
        let larger = |a: (u64, CostSource), b: (u64, CostSource)| match a.0.cmp(&b.0) {
            Ordering::Greater => a,
            Ordering::Less => b,
            Ordering::Equal => trusted(a, b),
        };
        let smaller = |a: (u64, CostSource), b: (u64, CostSource)| match a.0.cmp(&b.0) {
            Ordering::Less => a,
            Ordering::Greater => b,
            Ordering::Equal => trusted(a, b),
        };
        Self { alpha: larger(self.alpha, other.alpha), beta: smaller(self.beta, other.beta) }
    }
}

/// What a probe measured on a rank's side.
pub(super) fn measured(rank: &RankShape, of: Tier, over: &str) -> Option<Figures> {
    rank.facts.iter().find_map(|fact| match fact {
        RankFact::Speed { tier, transport, alpha_ns, bytes_per_us }
            if *tier == of && transport == over =>
        {
            let source = CostSource::Probe;
            Some(Figures { alpha: (*alpha_ns, source), beta: (*bytes_per_us, source) })
        }
        _ => None,
    })
}

/// The cost of a candidate: what settings and calibration say, over what was found otherwise. What
/// was measured does not count where the same bits have to come out of every run.
pub(super) fn settle(config: &PlanConfig, tier: Tier, transport: &str, found: Figures) -> Cost {
    let mut sources = vec![(&config.costs, CostSource::Configuration)];
    if !config.deterministic {
        sources.push((&config.calibration, CostSource::Calibration));
    }
    let pick = |figure: fn(&CostEntry) -> Option<u64>, found: (u64, CostSource)| {
        let given = sources.iter().find_map(|(entries, source)| {
            lookup(entries, tier, transport, figure).map(|value| (value, *source))
        });
        given.unwrap_or(found)
    };
    let (alpha_ns, alpha_source) = pick(|entry| entry.alpha_ns, found.alpha);
    let (bytes_per_us, beta_source) = pick(|entry| entry.bytes_per_us, found.beta);
    Cost { alpha_ns, bytes_per_us: bytes_per_us.max(1), alpha_source, beta_source }
}
