//! Which input differs between ranks, and where.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use iccl_wire::{Reader, Writer};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::{Evidence, PLANNER_VERSION, PlanConfig};
use crate::config::RuleAction;
use crate::topology::codec::{read_text, write_text};
use crate::topology::{DecodeError, RankDescriptor, RankSet, in_rank_order};

/// The first input on which ranks do not agree: each value and who has it, the value of most ranks
/// first.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub struct Divergence {
    /// The input: a setting's key, one of [`SECTIONS`], or a fact of the descriptors.
    pub input: String,
    /// The values, and the ranks that have each.
    pub values: Vec<(String, RankSet)>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ranks disagree on {}", self.input)?;
        for (index, (value, ranks)) in self.values.iter().enumerate() {
            let separator = if index == 0 { ": " } else { "; " };
            write!(f, "{separator}{value} on {}", ranks.phrase())?;
        }
        Ok(())
    }
}

impl Divergence {
    /// Groups the ranks by value; `None` if all have the same.
    pub(super) fn of(input: &str, values: impl Iterator<Item = (u32, String)>) -> Option<Self> {
        let mut groups: BTreeMap<String, RankSet> = BTreeMap::new();
        for (rank, value) in values {
            groups.entry(value).or_default().insert(rank);
        }
        let mut values: Vec<(String, RankSet)> = groups.into_iter().collect();
        values.sort_by_key(|(_, ranks)| (std::cmp::Reverse(ranks.len()), ranks.first()));
        (values.len() > 1).then(|| Self { input: input.to_owned(), values })
    }

    /// The one rank that differs from all others, where there is such a one.
    pub fn odd_one_out(&self) -> Option<u32> {
        match self.values.as_slice() {
            [(_, most), (_, odd)] if most.len() > 1 && odd.len() == 1 => odd.first(),
            _ => None,
        }
    }
}

/// The inputs of a plan in the order in which they are compared.
pub const SECTIONS: [&str; 6] =
    ["planner version", "agreed settings", "rules", "costs", "descriptors", "evidence"];

/// A digest of each input of a plan, in the order of [`SECTIONS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputDigests(pub [[u8; 32]; SECTIONS.len()]);

impl InputDigests {
    /// The digests of what this rank would plan from.
    ///
    /// # Errors
    /// A descriptor or evidence does not fit its format, or the ranks are not those of one job.
    pub fn of(
        descriptors: &[RankDescriptor],
        config: &PlanConfig,
        evidence: &Evidence,
    ) -> Result<Self, super::PlanError> {
        let mut table = Sha256::new();
        for descriptor in in_rank_order(descriptors)? {
            let bytes = descriptor.encode()?;
            table.update((bytes.len() as u64).to_le_bytes());
            table.update(&bytes);
        }
        Ok(Self([
            Sha256::digest(PLANNER_VERSION.to_le_bytes()).into(),
            Sha256::digest(settings_bytes(&config.agreed)).into(),
            Sha256::digest(rules_bytes(config)).into(),
            Sha256::digest(costs_bytes(config)).into(),
            table.finalize().into(),
            Sha256::digest(evidence.encode()?).into(),
        ]))
    }

    /// One digest over all.
    pub fn combined(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(b"iccl plan inputs 1\0");
        self.0.iter().for_each(|digest| hash.update(digest));
        hash.finalize().into()
    }
}

/// What one rank sends so that a difference can be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankInputs {
    /// The rank.
    pub rank: u32,
    /// The digests of its inputs.
    pub digests: InputDigests,
    /// The settings on which ranks have to agree, by key.
    pub settings: Vec<(String, String)>,
}

const MAX_SETTINGS: usize = 1024;
const MAX_SETTING_BYTES: usize = 255;

impl RankInputs {
    /// The inputs as bytes. A value too long to send is cut; its digest still tells it apart.
    ///
    /// # Errors
    /// A key does not fit.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        let mut out = Writer::new();
        out.u32(self.rank);
        self.digests.0.iter().for_each(|digest| {
            out.raw(digest);
        });
        let settings = &self.settings[..self.settings.len().min(MAX_SETTINGS)];
        out.u32(settings.len() as u32);
        for (key, value) in settings {
            write_text(&mut out, "setting", MAX_SETTING_BYTES, key)?;
            let limit = value.len().min(MAX_SETTING_BYTES);
            let end = (0..=limit).rev().find(|end| value.is_char_boundary(*end)).unwrap_or(0);
            let shown: String =
                value[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            write_text(&mut out, "value", MAX_SETTING_BYTES, &shown)?;
        }
        Ok(out.finish())
    }

    /// Reads what another rank sent.
    ///
    /// # Errors
    /// Names the field that is cut short, too long, or not what it should be.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Reader::new(bytes);
        let rank = input.u32("rank")?;
        let mut digests = [[0; 32]; SECTIONS.len()];
        for digest in &mut digests {
            *digest = input.array("digest")?;
        }
        let count = input.count("settings", 2)?;
        let mut settings = Vec::with_capacity(count.min(MAX_SETTINGS));
        for _ in 0..count {
            let key = read_text(&mut input, "setting", MAX_SETTING_BYTES)?;
            settings.push((key, read_text(&mut input, "value", MAX_SETTING_BYTES)?));
        }
        input.finish()?;
        Ok(Self { rank, digests: InputDigests(digests), settings })
    }
}

/// The first input on which ranks do not agree: settings by key, then [`SECTIONS`]. `None` if they
/// agree on all.
pub fn diff(inputs: &[RankInputs]) -> Option<Divergence> {
    diff_settings(inputs).or_else(|| {
        SECTIONS.iter().enumerate().find_map(|(index, section)| {
            let digest = |input: &RankInputs| hex(&input.digests.0[index][..8]);
            Divergence::of(section, inputs.iter().map(|input| (input.rank, digest(input))))
        })
    })
}

fn diff_settings(inputs: &[RankInputs]) -> Option<Divergence> {
    let maps: Vec<(u32, BTreeMap<&str, &str>)> = inputs
        .iter()
        .map(|input| {
            let settings = input.settings.iter();
            (input.rank, settings.map(|(key, value)| (key.as_str(), value.as_str())).collect())
        })
        .collect();
    let keys: BTreeSet<&str> = maps.iter().flat_map(|(_, map)| map.keys().copied()).collect();
    keys.into_iter().find_map(|key| {
        let values = maps.iter().map(|(rank, map)| {
            let value = map.get(key).map_or("unset".to_owned(), |value| format!("`{value}`"));
            (*rank, value)
        });
        Divergence::of(&format!("the setting `{key}`"), values)
    })
}

/// The digest of the settings on which ranks have to agree, for [`RankDescriptor::agreed_digest`];
/// the order of the pairs does not matter.
pub fn agreed_digest(settings: &[(String, String)]) -> u64 {
    let digest: [u8; 32] = Sha256::digest(settings_bytes(settings)).into();
    first_u64(&digest)
}

pub(super) fn first_u64(digest: &[u8; 32]) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first)
}

fn settings_bytes(settings: &[(String, String)]) -> Vec<u8> {
    let sorted: BTreeSet<&(String, String)> = settings.iter().collect();
    let mut out = Writer::new();
    for (key, value) in sorted {
        out.str(key).str(value);
    }
    out.finish()
}

/// Without their origins: ranks may read the same rules from different files.
fn rules_bytes(config: &PlanConfig) -> Vec<u8> {
    let mut out = Writer::new();
    for rule in &config.rules {
        out.u8(rule_code(rule.action)).u8(rule.tier.code());
        out.str(&rule.a.to_string()).str(&rule.b.to_string());
    }
    out.finish()
}

/// A number for the canonical encoding; never changes.
const fn rule_code(action: RuleAction) -> u8 {
    match action {
        RuleAction::Require => 0,
        RuleAction::Prefer => 1,
        RuleAction::Forbid => 2,
    }
}

fn costs_bytes(config: &PlanConfig) -> Vec<u8> {
    let mut out = Writer::new();
    out.u8(u8::from(config.deterministic));
    for entries in [&config.costs, &config.calibration] {
        out.u32(entries.len() as u32);
        for entry in entries {
            out.u8(entry.tier.code()).str(entry.transport.as_deref().unwrap_or(""));
            // A figure that is not given is told apart from every figure.
            for figure in [entry.alpha_ns, entry.bytes_per_us] {
                out.u8(u8::from(figure.is_some())).u64(figure.unwrap_or(0));
            }
        }
    }
    out.finish()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
