//! Algorithms for all-reduce, one file each.

pub(super) mod direct;
pub(super) mod islands;
pub(super) mod owner;
pub(super) mod recursive_doubling;
pub(super) mod ring;
