//! What cannot be carried, from what kernels and algorithms declare of themselves and from rules of the
//! API reference. Only these cells may be refused, and they must be.

use iccl_plugin_api::{Collective, RedOp};
use iccl_runtime::ErrorKind;
use iccl_runtime::schedule::{Algorithm, candidates};

use super::cell::Cell;

/// A refusal that is declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// With which error.
    pub kind: ErrorKind,
    /// Who declares it.
    pub reason: String,
}

/// The refusal that a cell must meet, or `None` if it must be carried. `forced` is the algorithm that
/// the configuration forces.
pub fn refusal(cell: &Cell, ranks: u32, forced: Option<Algorithm>) -> Option<Refusal> {
    let refuse = |kind, reason: String| Some(Refusal { kind, reason });
    let Cell { collective, dtype, op, .. } = *cell;
    if collective.reduces() && !iccl_kernels::supports(dtype, op) {
        return refuse(ErrorKind::NotSupported, format!("no kernel reduces {dtype} with {op}"));
    }
    if collective == Collective::Send && ranks == 1 && !cell.grouped {
        let reason = "a message to oneself needs a group";
        return refuse(ErrorKind::InvalidArgument, reason.into());
    }
    if collective == Collective::AllToAllV && cell.in_place && cell.count > 0 {
        return refuse(ErrorKind::InvalidArgument, "all_to_all_v has no form in place".into());
    }
    let algorithm =
        forced.filter(|one| ranks > 1 && collective.reduces() && carries(*one, cell))?;
    let facts = algorithm.facts();
    if op == RedOp::Avg && !facts.carries_avg {
        return refuse(ErrorKind::NotSupported, format!("{algorithm} does not declare avg"));
    }
    let rounds = !matches!(op, RedOp::Min | RedOp::Max);
    if dtype.is_narrow_float() && rounds && !facts.keeps_narrow_exact {
        return refuse(
            ErrorKind::NotSupported,
            format!("{algorithm} does not declare that it rounds 8- and 16-bit floats once"),
        );
    }
    None
}

/// Whether an algorithm declares the collective of a cell.
pub fn carries(algorithm: Algorithm, cell: &Cell) -> bool {
    algorithm.facts().collectives.contains(&cell.collective)
}

/// The algorithms between which there is a choice.
pub fn forcible() -> Vec<Algorithm> {
    let several = |one: &Algorithm| {
        is_by_itself(*one) && one.facts().collectives.iter().any(|c| choices(*c) > 1)
    };
    Algorithm::ALL.iter().copied().filter(several).collect()
}

/// How many algorithms there are for a collective on several ranks.
pub fn choices(collective: Collective) -> usize {
    candidates(collective).filter(|one| is_by_itself(*one)).count()
}

/// The algorithm that carries a collective on several ranks, if there is but one.
pub fn only(collective: Collective) -> Option<Algorithm> {
    let mut candidates = candidates(collective).filter(|one| is_by_itself(*one));
    candidates.next().filter(|_| candidates.next().is_none())
}

/// Whether an algorithm is for several ranks that have no native library, as those of the matrix.
fn is_by_itself(algorithm: Algorithm) -> bool {
    algorithm != Algorithm::Local && !algorithm.facts().needs_islands
}
