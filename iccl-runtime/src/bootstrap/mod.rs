//! The bootstrap: ranks find each other, prove that they belong to one job, exchange descriptors,
//! and keep a control plane over which failures reach everyone.
//!
//! * [`Identity`] reads rank, size and meeting point from what the launcher set.
//! * [`UniqueId`] is the invitation of a job that has no launcher, as in NCCL.
//! * [`Bootstrap::join`] meets the others at the root, builds the tree, exchanges descriptors.
//! * [`Bootstrap`] then carries all-gathers and notices over the tree, on one sleeping thread.
//! * [`Lineage`] is what it keeps so that some of its ranks can form a job of their own.
//!
//! Nothing here trusts a byte before the peer proved that it knows the job secret, waits without a
//! deadline, or decides anything about links and devices.

mod backoff;
mod channel;
mod control;
mod fork;
mod gather;
mod identity;
mod interface;
mod join;
mod lineage;
mod message;
mod net;
mod probes;
mod rendezvous;
mod root;
mod root_link;
mod roster;
mod secret;
mod strangers;
mod tree;
mod unique_id;
mod wiring;

use std::time::Duration;

pub use identity::{Identity, IdentitySettings, Launcher, RootSetting, near_misses};
pub use interface::{HostPort, Interface, InterfaceChoice, choose, interfaces, is_link_local};
pub use join::{Bootstrap, JoinOptions};
pub use lineage::{Child, Lineage};
pub use message::{CONTRIBUTION_LIMIT_BYTES, Notice};
pub use rendezvous::{Meeting, Rendezvous};
pub use root::UniqueIdOptions;
pub use tree::way;
pub use unique_id::UniqueId;

use crate::{Error, ErrorKind};

/// How long a connection may take to prove itself unless an option says otherwise.
pub const DEFAULT_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a waiting call looks at its cancel flag.
const CANCEL_CHECK: Duration = Duration::from_millis(25);

fn cancelled() -> Error {
    Error::new(ErrorKind::Aborted, "bootstrap: initialisation was aborted on this rank")
}
