//! What the parts of a domain share.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use iccl_plugin_api::tables::Completion;
use iccl_wire::Key;

use crate::poller::Poller;
use crate::settings::TcpSettings;

/// Who this domain is.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) key: Key,
    pub(crate) communicator: u64,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// Where it listens.
    pub(crate) here: SocketAddr,
    pub(crate) settings: TcpSettings,
    pub(crate) handshake_timeout: Duration,
    pub(crate) connect_timeout: Duration,
}

impl Identity {
    /// Whether an address is one of this host, as far as this domain can know.
    pub(crate) fn is_same_host(&self, peer: SocketAddr) -> bool {
        peer.ip().is_loopback() || peer.ip() == self.here.ip()
    }
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) identity: Identity,
    pub(crate) poller: Poller,
    /// What has ended and was not told yet.
    pub(crate) completions: VecDeque<Completion>,
}
