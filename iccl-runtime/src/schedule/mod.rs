//! Collectives compiled to per-rank step lists.
