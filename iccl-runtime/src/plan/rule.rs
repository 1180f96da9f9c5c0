//! `require`, `prefer` and `forbid`: what a user says about links.
//!
//! A link takes the same way in both directions, so a rule speaks of the links between the ranks of
//! two selectors, whichever of the two sends. A rank's link with itself always takes `self`, and no
//! rule speaks of it. All `require` and `forbid` rules that match a link hold together; if that leaves
//! nothing, it is an error that names the rule and the link. Of the `prefer` rules that match and can
//! be met, the first wins over the score.

use std::fmt;

use super::tier::Tier;
use crate::config::{PlanRule, RuleAction, Selector};

/// What the user says about the links between the ranks of `a` and those of `b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Require, prefer or forbid.
    pub action: RuleAction,
    /// The tier it is about; not [`Tier::SelfCopy`].
    pub tier: Tier,
    /// One end of the links.
    pub a: Selector,
    /// The other end.
    pub b: Selector,
    /// Where it is written (`iccl.toml:12:1`), for messages only: ranks may read the same rules from
    /// different files.
    pub origin: String,
}

impl Rule {
    /// The rule of a configuration; `None` if it names no tier, which the configuration refuses.
    pub fn from_setting(setting: &PlanRule) -> Option<Self> {
        Some(Self {
            action: setting.action,
            tier: Tier::from_name(&setting.tier)?,
            a: setting.from.clone(),
            b: setting.to.clone(),
            origin: setting.origin.to_string(),
        })
    }

    pub(super) fn reference(&self) -> RuleRef {
        RuleRef { text: self.to_string(), origin: self.origin.clone() }
    }

    /// Which of its selectors speak of a rank: bit 0 for `a`, bit 1 for `b`.
    pub(super) fn ends(&self, rank: u32, vendor: &str, host: &str) -> u8 {
        let matches = |selector: &Selector| u8::from(selector.matches(rank, vendor, host));
        matches(&self.a) | matches(&self.b) << 1
    }
}

/// Whether a rule speaks of a link, given [`Rule::ends`] of both its ranks.
pub(super) const fn speaks_of(src: u8, dst: u8) -> bool {
    (src & 1 != 0 && dst & 2 != 0) || (src & 2 != 0 && dst & 1 != 0)
}

/// `forbid shm between host:a and *`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} between {} and {}", self.action.name(), self.tier, self.a, self.b)
    }
}

/// A rule as messages name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleRef {
    /// The rule in words.
    pub text: String,
    /// Where it is written.
    pub origin: String,
}

impl fmt::Display for RuleRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        if self.origin.is_empty() { Ok(()) } else { write!(f, " at {}", self.origin) }
    }
}
