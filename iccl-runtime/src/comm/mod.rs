//! The application's surface: runtime, communicators, streams, buffers, handles.
//!
//! What lives here: checks of what the application asks, the order of operations, and how a
//! communicator comes to be ([`Runtime`]) and goes. What may not: algorithms, transports, and calls
//! that block where they say that they return at once.

mod algorithms;
mod attach;
mod background;
mod begun;
mod buffer;
mod call;
mod calls;
mod choices;
mod communicator;
mod control;
mod countdown;
mod describe;
mod device;
mod dry_run;
mod element;
mod enqueue;
mod group;
mod handle;
mod initialise;
mod local_ranks;
mod native;
mod order;
mod own_messages;
mod point_to_point;
mod reduction;
mod runtime;
mod split;
mod stream;
mod turns;
mod vector_calls;

pub use background::Background;
pub use begun::PendingChild;
pub use buffer::Buffer;
pub use choices::{Carried, Choices, OwnWork};
pub use communicator::Communicator;
pub use device::Device;
pub use dry_run::{DryCard, DryLibrary, DryRank};
pub use element::Element;
pub use group::{Group, group_depth, group_end, group_start};
pub use handle::Handle;
pub use reduction::{Reduction, Scalar};
pub use runtime::{Pending, Runtime};
pub use stream::{Hold, Stream};

pub use crate::schedule::{Block, Counts};
