//! The matrix: every operation on every type, by every algorithm, over every transport, in ranks that
//! are processes.
//!
//! A [`Cell`] is one operation with everything that is told to it; [`product`] and [`covering`] choose
//! cells, [`coordinator`] starts the ranks, and each rank runs every cell ([`rank`]): it makes its
//! buffers ([`memory`]), fills them, calls, and compares all of its memory, what lies around it
//! included, with what [`expect`] says. Nothing here asks iccl what is right. A cell that is refused
//! must be one that [`declared`] says cannot be carried, and must leave every byte as it was.

pub mod cell;
pub mod coordinator;
pub mod covering;
pub mod declared;
pub mod expect;
pub mod image;
pub mod memory;
pub mod product;
pub mod rank;
pub mod soak;
pub mod values;

pub use cell::{Alignment, Cell};
