//! Processes that form a communicator through a vendor's library.
//!
//! They meet in an anonymous file that one of them made ([`Invitation`]); all map it. Each ordered pair of
//! ranks has a channel in it, and what a rank waits for it is told by its bell. So groups reach across
//! simulated hosts and network namespaces, as long as one kernel runs them.

mod batch;
mod collectives;
mod communicator;
mod exchange;
mod file;

pub use batch::{Launch, launch};
pub use collectives::{BlocksAt, Call, Flaw, Operation};
pub use communicator::{Communicator, Health, InitError};
pub use file::Invitation;
