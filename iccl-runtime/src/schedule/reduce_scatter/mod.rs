//! Algorithms for reduce-scatter, one file each.

pub(super) mod direct;
pub(super) mod ring;
