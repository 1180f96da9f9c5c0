//! Algorithms for reduce, one file each; the one by owners is the all-reduce's
//! ([`owner`](super::all_reduce::owner)). Only the root uses its receive buffer.

pub(super) mod binomial;
pub(super) mod direct;
