#![doc = include_str!("../README.md")]
#![warn(missing_docs)]
// `abi_stable`'s derive makes all of these; they are harmless and appear in this crate only.
#![allow(non_local_definitions, non_camel_case_types, clippy::expl_impl_clone_on_copy)]

#[doc(hidden)]
pub mod adaptor;
pub mod door;
mod export;
pub mod host;
mod log;
pub mod note;
pub mod registry;
pub mod sdk;
pub mod tables;
pub mod types;

#[doc(hidden)]
pub use inventory;

pub use types::{Collective, DataType, LogLevel, MemoryKind, RedOp, Status};
