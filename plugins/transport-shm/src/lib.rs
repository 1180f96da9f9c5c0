//! Shared-memory transport: ordered messages between processes of one host.
//!
//! * A **domain** ([`ShmDomain`]) listens on a Unix socket with a random abstract name and owns a
//!   doorbell page. Both live in the kernel only: a process that is killed leaves nothing behind.
//! * A **channel** is one anonymous file with two rings of bytes, one per direction, passed over
//!   that socket after both sides have proved that they know the job's secret. Payloads are copied
//!   twice: into the ring and out of it, by chunks, so that both copies run at once.
//! * **Waiting** is a futex on the own doorbell, or the runtime's `poll` on a descriptor; nothing
//!   in here spins.
//!
//! The modules, from the bottom up: `sync` and [`ring`] and [`doorbell`] (the shared words and
//! their protocol, checked by `loom`), `budget` and `segment` (the memory), `wake` (futex and
//! event), `address` and `connect` (the socket), `events` (what is watched), `lobby` (connections
//! without a channel), `link` (messages on the rings), `channel`, `domain`.

pub mod doorbell;
pub mod ring;
pub mod sync;

#[cfg(not(loom))]
mod address;
#[cfg(not(loom))]
mod budget;
#[cfg(not(loom))]
mod channel;
#[cfg(not(loom))]
mod connect;
#[cfg(not(loom))]
mod domain;
#[cfg(not(loom))]
mod events;
#[cfg(not(loom))]
mod link;
#[cfg(not(loom))]
mod lobby;
#[cfg(not(loom))]
mod plugin;
#[cfg(not(loom))]
mod segment;
#[cfg(not(loom))]
mod wake;

#[cfg(not(loom))]
pub use domain::ShmDomain;
#[cfg(not(loom))]
pub use plugin::ShmTransport;
#[cfg(not(loom))]
pub use wake::ShmWaker;
