//! What the kernels promise, at every level that this processor has.

// Results are compared exactly: that is the promise.
#![allow(clippy::float_cmp)]

mod cases;
mod common;
mod properties;
