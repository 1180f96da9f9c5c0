//! The choice of an algorithm: a pure function of the request and a cost model, with its reasons.

use iccl_plugin_api::types::Collective;

use super::cost::{CostModel, cost};
use super::{Algorithm, Request};
use crate::error::{Error, ErrorKind, Result};

/// What became of one candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It can carry the request, and this is its cost in nanoseconds.
    Costs(u64),
    /// It is out, and this is why.
    Refused(String),
}

/// The chosen algorithm, and why it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// One line: why this one.
    pub reason: String,
    /// All candidates with what became of them, in the order of [`Algorithm::ALL`].
    pub considered: Vec<(Algorithm, Verdict)>,
}

/// The algorithms that there are for a collective.
pub fn candidates(collective: Collective) -> impl Iterator<Item = Algorithm> {
    let carries = move |one: &Algorithm| one.facts().collectives.contains(&collective);
    Algorithm::ALL.iter().copied().filter(carries)
}

/// Chooses the algorithm for a request (whatever `request.algorithm` and `request.rank` say): the
/// forced one if there is one, else the cheapest by `model` that can carry the request, the first in
/// the order of [`Algorithm::ALL`] where two cost the same. With `deterministic`, only those that
/// combine in a fixed order; for runs that repeat bit by bit the model must not come from
/// measurements, either.
///
/// # Errors
///
/// [`ErrorKind::NotSupported`] if the forced algorithm cannot carry the request (names both and why)
/// or no algorithm can (names each and why).
pub fn select(
    request: &Request,
    forced: Option<Algorithm>,
    deterministic: bool,
    model: &CostModel,
) -> Result<Choice> {
    let busiest = &busiest(request);
    let considered: Vec<(Algorithm, Verdict)> = candidates(request.collective)
        .map(|one| {
            let verdict = match refusal(one, request, deterministic) {
                Some(why) => Verdict::Refused(why),
                None => Verdict::Costs(cost(one, busiest).time_ns(model)),
            };
            (one, verdict)
        })
        .collect();
    if let Some(algorithm) = forced {
        // Anyone may be forced on a single rank, where all come down to a copy.
        let refusal = match request.ranks {
            1 => algorithm.refusal(request),
            _ => refusal(algorithm, request, deterministic),
        };
        return match refusal {
            None => Ok(Choice { algorithm, reason: "forced by configuration".into(), considered }),
            Some(why) => Err(Error::new(
                ErrorKind::NotSupported,
                format!("the forced algorithm {algorithm} cannot carry {request}: {why}"),
            )
            .with_hint("force another algorithm, or none")),
        };
    }
    let cheapest = considered
        .iter()
        .filter_map(|(one, verdict)| match verdict {
            Verdict::Costs(ns) => Some((*ns, *one)),
            Verdict::Refused(_) => None,
        })
        // The order of the enum is that of the table, so it decides between equals.
        .min();
    if let Some((ns, algorithm)) = cheapest {
        let reason = reason(ns, algorithm, &considered);
        return Ok(Choice { algorithm, reason, considered });
    }
    let why: Vec<String> = considered
        .iter()
        .map(|(one, verdict)| match verdict {
            Verdict::Refused(why) => format!("{one}: {why}"),
            Verdict::Costs(_) => unreachable!("{one} would have been chosen"),
        })
        .collect();
    Err(Error::new(
        ErrorKind::NotSupported,
        format!("no algorithm can carry {request}: {}", why.join("; ")),
    ))
}

/// The request of the rank with the longest block, if all know who that is: costs of vector forms are a
/// rank's own, and all must come to the same choice.
fn busiest(request: &Request) -> Request {
    let longest = request.agreed_counts();
    let rank = (0..request.ranks)
        .max_by_key(|rank| (longest.get(*rank as usize).copied(), std::cmp::Reverse(*rank)));
    match rank.filter(|_| !longest.is_empty()) {
        Some(rank) => Request { rank, ..request.clone() },
        None => request.clone(),
    }
}

fn refusal(algorithm: Algorithm, request: &Request, deterministic: bool) -> Option<String> {
    let facts = algorithm.facts();
    if let Some(why) = algorithm.refusal(request) {
        return Some(why);
    }
    if request.ranks < facts.min_ranks {
        return Some(format!("it is for at least {} ranks", facts.min_ranks));
    }
    if deterministic && !facts.deterministic {
        return Some("it does not declare a fixed order".into());
    }
    None
}

fn reason(ns: u64, chosen: Algorithm, considered: &[(Algorithm, Verdict)]) -> String {
    let others = considered.iter().filter(|(one, _)| *one != chosen);
    let others = others.map(|(one, verdict)| match verdict {
        Verdict::Costs(ns) => format!("{one} {ns} ns"),
        Verdict::Refused(why) => format!("{one} not, as {why}"),
    });
    let others = others.collect::<Vec<_>>().join(", ");
    format!("cheapest at {ns} ns ({others})")
}
