//! Algorithms for broadcast, one file each. The root reads its send buffer; the others use only
//! their receive buffer.

pub(super) mod binomial;
pub(super) mod flat;
pub(super) mod scatter_all_gather;
