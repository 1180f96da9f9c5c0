//! Runs the schedules of all ranks in one process, on symbols instead of numbers, and proves them.
//!
//! Memory holds, for every run of bytes, *which expression* it holds at *which place of the
//! contributions*: `own(3)`, `own(0) ∘ own(1)`, …. So a result is not merely plausible: it is shown to hold each
//! rank's contribution exactly once, in the promised order, at its place. Runs, not bytes, are kept,
//! so vectors of many gigabytes cost no more than short ones.
//!
//! Two kinds of fault are looked for. What one rank's schedule says about itself is checked first
//! ([`check`]): order, borders, races between steps that nothing orders, writes before the gate. Then
//! all ranks run ([`interpret`]) in a random order from a seed, with receives that write and sends
//! that read at the worst of times; deadlocks, messages that disagree and reads of bytes that nobody
//! wrote come to light. Last, [`Outcome::verify`] compares all memory with what the collective
//! promises: results at their places, and everything else as it was.
//!
//! Nothing here shares code with the compiler of schedules or with the kernels.

mod check;
mod fault;
mod memory;
mod native;
mod promise;
mod ranges;
mod run;
mod shapes;
mod verify;

#[cfg(test)]
mod mutants;

pub use check::check;
pub use fault::Fault;
pub use run::{Buffering, Options, Outcome, interpret};
