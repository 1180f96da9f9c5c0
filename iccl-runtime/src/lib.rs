//! The iccl runtime: everything between the plugins and the application.
//!
//! Data flows one way through the rooms, and a room imports only from rooms to its left:
//!
//! ```text
//! config → plugins → bootstrap → topology → plan → schedule → engine → comm
//!                                                         observe (called by all, calls none)
//! ```
//!
//! A test in `tests/` reads the imports and fails on an arrow that points the other way.

mod error;
mod limits;
mod lock;
mod sync;

pub mod bootstrap;
pub mod comm;
pub mod config;
pub mod engine;
pub mod observe;
pub mod plan;
pub mod plugins;
pub mod schedule;
pub mod topology;

pub use error::{Error, ErrorKind, Result};
