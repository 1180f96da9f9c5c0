//! `libiccl.so`: the runtime for programs in C and C++, in NCCL's shape.
//!
//! What lives here: handles, numbers and texts as C has them, and checks of everything that a caller
//! can get wrong. What may not: behaviour of its own. `include/iccl.h` is made from this source by
//! `cargo xtask generate`, doc comments included, so they are written for readers of C;
//! `docs/api-c.md` is the reference.
//!
//! * No handle is ever followed as a pointer: [`handles`] looks it up, so one that was destroyed, is
//!   null or garbage is `icclInvalidHandle`.
//! * Nothing unwinds into the caller: every function runs in [`failure::guard`].

// C's names, so that they are the symbols and the header's.
#![allow(non_snake_case)]
// What a caller must keep is told in each function's documentation, which is the header's.
#![allow(clippy::missing_safety_doc)]
// It is read in a C header, where backticks are only noise.
#![allow(clippy::doc_markdown)]
// NCCL's and MPI's, in their order.
#![allow(clippy::too_many_arguments)]

// Plugins that are linked in register themselves, if something names their crates.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

pub mod collectives;
pub mod communicators;
pub mod config;
mod entry;
pub mod errors;
mod failure;
pub mod groups;
mod handles;
pub mod memory;
mod numbers;
pub mod point_to_point;
mod process;
pub mod reductions;
pub mod splits;
pub mod streams;
pub mod types;
pub mod vectors;

pub use numbers::{Outcome, results};
