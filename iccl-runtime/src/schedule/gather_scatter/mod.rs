//! Algorithms for gather, scatter and their vector forms, one file each. Only the root uses the longer
//! of its two buffers.

pub(super) mod direct;
