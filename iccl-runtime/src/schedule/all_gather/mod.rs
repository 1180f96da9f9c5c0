//! Algorithms for all-gather that pass blocks on, one file each. The one-round exchange is
//! [`exchange`](super::exchange).

pub(super) mod bruck;
pub(super) mod ring;
