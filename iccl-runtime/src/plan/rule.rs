//! `require`, `prefer` and `forbid`: what a user says about links.
//!
//! A rule speaks of the links between the ranks of two selectors, whichever of the two sends. A
//! rank's link with itself always takes `self`, and no rule speaks of it. All `require` and
//! `forbid` rules that match a link hold together; if that leaves nothing, it is an error that names
//! the rule and the link. Of the `prefer` rules that match and can be met, the first wins over the
//! score.

use std::fmt;

use super::tier::Tier;

/// What a rule does with its tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// The link takes this tier or there is no plan.
    Require,
    /// The link takes this tier if it can.
    Prefer,
    /// The link never takes this tier.
    Forbid,
}

impl Verb {
    /// The name in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Require => "require",
            Self::Prefer => "prefer",
            Self::Forbid => "forbid",
        }
    }

    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Require => 0,
            Self::Prefer => 1,
            Self::Forbid => 2,
        }
    }
}

/// A set of ranks, as configuration writes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Selector {
    /// `*`: every rank.
    Any,
    /// `vendor:NAME`: ranks whose device is of this maker.
    Vendor(String),
    /// `host:NAME`: ranks on the host with this whole name.
    Host(String),
    /// `rank:3` or `rank:0-3`: ranks by number, both ends included.
    Ranks {
        /// The lowest rank.
        first: u32,
        /// The highest rank.
        last: u32,
    },
}

/// Why a text is not a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a selector (expected *, vendor:NAME, host:NAME, rank:N or rank:N-M)")]
pub struct SelectorError(String);

impl std::str::FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            if text == "*" {
                return Some(Self::Any);
            }
            match text.split_once(':')? {
                (_, "") => None,
                ("vendor", name) => Some(Self::Vendor(name.to_owned())),
                ("host", name) => Some(Self::Host(name.to_owned())),
                ("rank", ranks) => {
                    let (first, last) = ranks.split_once('-').unwrap_or((ranks, ranks));
                    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
                    (first <= last).then_some(Self::Ranks { first, last })
                }
                _ => None,
            }
        };
        parse().ok_or_else(|| SelectorError(text.to_owned()))
    }
}

impl Selector {
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

/// What the user says about the links between the ranks of `a` and those of `b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Require, prefer or forbid.
    pub verb: Verb,
    /// The tier it is about; not [`Tier::SelfCopy`].
    pub tier: Tier,
    /// One end of the links.
    pub a: Selector,
    /// The other end.
    pub b: Selector,
    /// Where it is written (`iccl.toml:12`), for messages only: ranks may read the same rules from
    /// different files.
    pub origin: String,
}

impl Rule {
    pub(super) fn reference(&self) -> RuleRef {
        RuleRef { text: self.to_string(), origin: self.origin.clone() }
    }
}

/// `forbid shm between host:a and *`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} between {} and {}", self.verb.name(), self.tier, self.a, self.b)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_read_and_written_the_same() {
        for text in ["*", "vendor:nvidia", "host:n.a", "rank:3", "rank:0-3"] {
            assert_eq!(text.parse::<Selector>().unwrap().to_string(), text);
        }
        assert_eq!("rank:3-3".parse::<Selector>().unwrap().to_string(), "rank:3");
        for text in ["", "vendor:", "card:3", "rank:3-1", "rank:x", "rank:-1", "nvidia"] {
            let error = text.parse::<Selector>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn a_host_is_matched_by_its_whole_name() {
        let selector: Selector = "host:n.a".parse().unwrap();
        assert!(selector.matches(0, "host", "n.a"));
        assert!(!selector.matches(0, "host", "n.b"));
        assert!(!selector.matches(0, "host", "n"));
    }
}
