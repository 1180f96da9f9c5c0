//! Why there is no plan.

use std::fmt;

use thiserror::Error;

use super::divergence::Divergence;
use super::reason::Refusal;
use super::rule::RuleRef;
use crate::error::{Error as RuntimeError, ErrorKind};
use crate::topology::{DecodeError, RankSet, TopologyError};

/// Why there is no plan. Every rank that plans from the same inputs gets the same text.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// The descriptors are not those of the ranks of one job.
    #[error(transparent)]
    Ranks(#[from] TopologyError),
    /// Ranks run wire versions of iccl that cannot work together.
    #[error("wire versions of iccl differ: {0}")]
    Versions(Divergence),
    /// Ranks do not agree on an input.
    #[error(transparent)]
    Diverged(#[from] Divergence),
    /// A rule says something that no rule can.
    #[error("rule `{rule}`: {problem}")]
    BadRule {
        /// The rule.
        rule: RuleRef,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Evidence speaks of a rank that is not in the job, or a link of a rank with itself.
    #[error("evidence about the link {a}-{b} in a job of {world_size} ranks")]
    BadEvidence {
        /// The one rank.
        a: u32,
        /// The other, or the same for evidence about a rank.
        b: u32,
        /// The size of the job.
        world_size: usize,
    },
    /// Nothing is left for a link.
    #[error(transparent)]
    Unsatisfiable(Box<Unsatisfiable>),
    /// A descriptor or evidence does not fit its format.
    #[error(transparent)]
    Format(#[from] DecodeError),
}

/// A link for which no way is left.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub struct Unsatisfiable {
    /// The lower rank, and the name of its host.
    pub src: (u32, String),
    /// The higher rank, and the name of its host.
    pub dst: (u32, String),
    /// How many links of the job have no way.
    pub links: u64,
    /// Each candidate and why it was refused.
    pub refused: Vec<Refusal>,
    /// The `require` rule that the link cannot meet, if one matches it.
    pub required_by: Option<RuleRef>,
    /// Plugins that would serve the link, and the ranks of the job that lack them.
    pub missing: Vec<(String, RankSet)>,
}

impl fmt::Display for Unsatisfiable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((src, src_host), (dst, dst_host)) = (&self.src, &self.dst);
        if let Some(rule) = &self.required_by {
            write!(f, "rule `{rule}` cannot be met: ")?;
        }
        write!(f, "no way between rank {src} (host {src_host}) and rank {dst} (host {dst_host})")?;
        for (index, refusal) in self.refused.iter().enumerate() {
            write!(f, "{}{refusal}", if index == 0 { ": " } else { "; " })?;
        }
        for (index, (library, ranks)) in self.missing.iter().enumerate() {
            let lead = if index == 0 { "; not loaded: " } else { ", " };
            write!(f, "{lead}{library} on {}", ranks.phrase())?;
        }
        if self.links > 1 {
            write!(f, "; {} links in all have none", self.links)?;
        }
        Ok(())
    }
}

impl PlanError {
    /// The runtime's kind for this error.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Ranks(_) => ErrorKind::Rendezvous,
            Self::Versions(_) => ErrorKind::VersionMismatch,
            Self::Diverged(_) => ErrorKind::PlanDiverged,
            Self::BadRule { .. } => ErrorKind::InvalidConfig,
            Self::BadEvidence { .. } => ErrorKind::Internal,
            Self::Unsatisfiable(_) => ErrorKind::PlanUnsatisfiable,
            Self::Format(_) => ErrorKind::InvalidArgument,
        }
    }
}

impl From<PlanError> for RuntimeError {
    fn from(error: PlanError) -> Self {
        let runtime = Self::new(error.kind(), error.to_string());
        match &error {
            PlanError::Unsatisfiable(link) if link.required_by.is_some() => {
                runtime.with_hint("change the rule, or make the tier possible on that link")
            }
            PlanError::Unsatisfiable(link) if !link.missing.is_empty() => runtime
                .with_hint("`iccl plugins` shows where plugins were looked for and what was found"),
            PlanError::Unsatisfiable(_) => runtime.with_hint(
                "`iccl plugins` shows the transports, `iccl config transport` which are enabled; docs/plan.md explains each reason",
            ),
            PlanError::Versions(divergence) | PlanError::Diverged(divergence) => {
                match divergence.odd_one_out() {
                    Some(rank) => runtime.with_rank(rank),
                    None => runtime,
                }
            }
            _ => runtime,
        }
    }
}
