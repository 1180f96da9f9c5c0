//! `[[plan.rule]]`: what the user requires, prefers or forbids, and between whom.

use std::fmt;

use super::codec::{Codec, Named, alternatives};
use super::collections::{collect, inline_table};
use super::node::{Node, Raw, Rejection, Rejections, quoted};
use super::provenance::Provenance;
use super::suggest::nearest;

/// The tiers of a link that a rule can name, best first.
pub const TIERS: [&str; 6] = ["self", "ipc", "shm", "direct", "staged", "tcp"];

/// What has a latency and a bandwidth: the tiers, and the calls of native libraries.
pub(super) const LEGS: [&str; 7] = ["self", "ipc", "shm", "direct", "staged", "tcp", "native"];

/// What a rule does with its tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleAction {
    /// No other tier will do.
    Require,
    /// Taken where it is possible.
    Prefer,
    /// Never taken.
    Forbid,
}

impl Named for RuleAction {
    const ALL: &'static [(Self, &'static str)] =
        &[(Self::Require, "require"), (Self::Prefer, "prefer"), (Self::Forbid, "forbid")];
}

impl RuleAction {
    /// The key that stands for it in a file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Require => "require",
            Self::Prefer => "prefer",
            Self::Forbid => "forbid",
        }
    }
}

/// Which ranks one side of a rule speaks of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// `*`: every rank.
    Any,
    /// `vendor:NAME`: ranks whose card is of this maker.
    Vendor(String),
    /// `host:NAME`: ranks on this host.
    Host(String),
    /// `rank:3` or `rank:0-3`: ranks by number, both ends included.
    Ranks {
        /// The lowest rank.
        first: u32,
        /// The highest rank.
        last: u32,
    },
}

impl Selector {
    const ACCEPTED: &str = "\"*\", \"vendor:NAME\", \"host:NAME\", \"rank:3\" or \"rank:0-3\"";

    /// The selector that a text stands for, or `None`.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Any);
        }
        let (kind, name) = text.split_once(':')?;
        if name.is_empty() {
            return None;
        }
        match kind {
            "vendor" => Some(Self::Vendor(name.to_owned())),
            "host" => Some(Self::Host(name.to_owned())),
            "rank" => {
                let (first, last) = name.split_once('-').unwrap_or((name, name));
                let (first, last) = (first.parse().ok()?, last.parse().ok()?);
                (first <= last).then_some(Self::Ranks { first, last })
            }
            _ => None,
        }
    }

    fn read(node: &Node) -> Result<Self, Rejection> {
        node.text()
            .and_then(Self::parse)
            .ok_or_else(|| node.reject(format!("expected {}", Self::ACCEPTED)))
    }

    /// Whether it speaks of this rank.
    pub fn matches(&self, rank: u32, vendor: &str, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Vendor(name) => name == vendor,
            Self::Host(name) => name == host,
            Self::Ranks { first, last } => (*first..=*last).contains(&rank),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Vendor(name) => write!(f, "vendor:{name}"),
            Self::Host(name) => write!(f, "host:{name}"),
            Self::Ranks { first, last } if first == last => write!(f, "rank:{first}"),
            Self::Ranks { first, last } => write!(f, "rank:{first}-{last}"),
        }
    }
}

/// One `[[plan.rule]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRule {
    /// What is done with the tier.
    pub action: RuleAction,
    /// One of [`TIERS`].
    pub tier: String,
    /// The sending side.
    pub from: Selector,
    /// The receiving side.
    pub to: Selector,
    /// Whether it holds in the other direction as well (`between`).
    pub both_directions: bool,
    /// Where it is written, for messages.
    pub origin: Provenance,
}

/// The rule in canonical TOML, without its origin: `{ forbid = "shm", between = ["*", "*"] }`.
impl fmt::Display for PlanRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = format!("{} = {}", self.action.name(), quoted(&self.tier));
        let (from, to) = (quoted(&self.from.to_string()), quoted(&self.to.to_string()));
        let sides = if self.both_directions {
            vec![format!("between = [{from}, {to}]")]
        } else {
            vec![format!("from = {from}"), format!("to = {to}")]
        };
        f.write_str(&inline_table(&[vec![action], sides].concat()))
    }
}

/// The list of rules.
pub(super) struct Rules;

impl Rules {
    const KEYS: [&str; 6] = ["require", "prefer", "forbid", "between", "from", "to"];

    fn rule(node: &Node) -> Result<PlanRule, Rejections> {
        let mut actions = Vec::new();
        let (mut between, mut from, mut to) = (None, None, None);
        for (key, value) in node.entries("a table, written [[plan.rule]]")? {
            match key.name.as_str() {
                "between" => {
                    let sides = value.list(',', "a list of two")?;
                    let [first, second] = sides.as_slice() else {
                        return Err(value.reject("expected a list of two selectors").into());
                    };
                    between = Some((Selector::read(first)?, Selector::read(second)?));
                }
                "from" => from = Some(Selector::read(&value)?),
                "to" => to = Some(Selector::read(&value)?),
                name => {
                    let action = RuleAction::ALL.iter().find(|(_, action)| *action == name);
                    let Some((action, _)) = action else {
                        let hint = nearest(name, Self::KEYS).map_or_else(
                            || format!("there are {}", Self::KEYS.join(", ")),
                            |near| format!("did you mean \"{near}\"?"),
                        );
                        return Err(key.complain(format!("unknown key \"{name}\"; {hint}")).into());
                    };
                    let tier = value
                        .text()
                        .filter(|text| TIERS.contains(text))
                        .ok_or_else(|| value.reject(format!("expected {}", alternatives(TIERS))))?;
                    actions.push((*action, tier.to_owned()));
                }
            }
        }
        let [(action, tier)] = actions.as_slice() else {
            return Err(node
                .complain("a rule says exactly one of \"require\", \"prefer\" and \"forbid\"")
                .into());
        };
        let both_directions = from.is_none() && to.is_none();
        if between.is_some() && !both_directions {
            return Err(node
                .complain("a rule has \"between\" (both directions) or \"from\" and \"to\" (one)")
                .into());
        }
        let (from, to) =
            between.unwrap_or_else(|| (from.unwrap_or(Selector::Any), to.unwrap_or(Selector::Any)));
        Ok(PlanRule {
            action: *action,
            tier: tier.clone(),
            from,
            to,
            both_directions,
            origin: node.origin.clone(),
        })
    }
}

impl Codec for Rules {
    type Value = Vec<PlanRule>;

    fn read(&self, node: &Node) -> Result<Vec<PlanRule>, Rejections> {
        if let Raw::Word(word) = &node.raw
            && !word.trim_start().starts_with('[')
        {
            return Err(self.refuse(node).into());
        }
        collect(node.list(',', &self.accepted())?.iter().map(Self::rule))
    }

    fn show(&self, value: &Vec<PlanRule>) -> Option<String> {
        let rules: Vec<String> = value.iter().map(ToString::to_string).collect();
        Some(format!("[{}]", rules.join(", ")))
    }

    fn toml(&self, value: &Vec<PlanRule>) -> Option<String> {
        self.show(value)
    }

    fn accepted(&self) -> String {
        "tables [[plan.rule]], or a list such as [{ forbid = \"shm\", between = [\"host:a\", \"*\"] }]"
            .to_owned()
    }
}
