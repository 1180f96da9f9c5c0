//! Ordered messages over TCP between processes of one job that have proved themselves to each other.
//! The transport `tcp` sends its data by this, the transport `rdma` what its queue pairs need to find
//! each other. It is a crate of its own because a plugin must not depend on another plugin.
//!
//! * `domain`, `channel`: what the user of a [`TcpDomain`] sees.
//! * `framing`, `greeting`: what the bytes mean, without sockets. `greet` drives the latter.
//! * `opening`, `dialer`, `newcomers`, `parting`: how connections come and go.
//! * `socket`, `poller`, `address`: the operating system.
//!
//! See `plugins/transport-tcp/README.md` for what travels and why.

mod address;
mod channel;
mod core;
mod dialer;
mod domain;
mod framing;
mod greet;
mod greeting;
mod newcomers;
mod opening;
mod parting;
mod poller;
mod settings;
mod socket;

pub use domain::{TcpDomain, TcpWaker};
pub use settings::{SPECS, TcpSettings};
