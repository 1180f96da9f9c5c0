//! The stable plugin ABI of iccl, and the SDK to write plugins in Rust.

pub mod types;

pub use types::{Collective, DataType, LogLevel, MemoryKind, RedOp, Status};
