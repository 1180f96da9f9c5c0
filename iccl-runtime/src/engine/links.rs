//! The channels to the peers: which domain carries a link, opened when first used.

use std::collections::HashMap;
use std::time::Duration;

use iccl_plugin_api::sdk::ChannelRequest;

use super::domain::Domain;
use super::envelope::Lane;
use crate::plan::Access;
use crate::{Error, ErrorKind, Result};

/// How one peer is reached, as the plan decided.
#[derive(Clone, Debug)]
pub struct Link {
    /// Index of the domain among those given to the engine.
    pub domain: usize,
    /// The peer's address in that transport.
    pub address: Vec<u8>,
    /// What both ends must agree on about this link.
    pub digest: u64,
    /// Whether the transport works on this rank's buffers where they are.
    pub access: Access,
    /// The channel for collectives, if it is open already.
    pub channel: Option<u64>,
}

/// All links of one rank.
pub(super) struct Links {
    rank: u32,
    decided: Vec<Option<Link>>,
    open: HashMap<(u32, Lane), (usize, u64)>,
    peers: HashMap<(usize, u64), (u32, Lane)>,
}

impl Links {
    pub(super) fn new(rank: u32, links: Vec<Option<Link>>) -> Self {
        let open: HashMap<_, _> = (0..)
            .zip(&links)
            .filter_map(|(peer, link)| {
                let link = link.as_ref()?;
                Some(((peer, Lane::Collective), (link.domain, link.channel?)))
            })
            .collect();
        let peers = open.iter().map(|(peer, channel)| (*channel, *peer)).collect();
        Self { rank, decided: links, open, peers }
    }

    /// The domain and channel to `peer`, opened if this is the first use.
    pub(super) fn channel(
        &mut self,
        domains: &mut [Box<dyn Domain>],
        peer: u32,
        lane: Lane,
    ) -> Result<(usize, u64)> {
        if let Some(found) = self.open.get(&(peer, lane)) {
            return Ok(*found);
        }
        let link = self.decided.get(peer as usize).and_then(Option::as_ref).ok_or_else(|| {
            Error::new(
                ErrorKind::Internal,
                format!("the plan has no link from rank {} to rank {peer}", self.rank),
            )
        })?;
        let domain = &mut domains[link.domain];
        let channel = domain
            .channel_open(&ChannelRequest {
                peer,
                dial: self.rank < peer,
                channel: lane.channel(),
                link_digest: link.digest,
                address: &link.address,
            })
            .map_err(|error| {
                Error::new(error.kind(), format!("cannot open the link to rank {peer}"))
                    .with("tier", domain.name())
                    .with_rank(peer)
                    .with_source(error)
            })?;
        self.open.insert((peer, lane), (link.domain, channel));
        self.peers.insert((link.domain, channel), (peer, lane));
        Ok((link.domain, channel))
    }

    /// The transport of a link whose NIC reaches this rank's card.
    pub(super) fn reaches_card(&self, peer: u32) -> Option<usize> {
        let link = self.decided.get(peer as usize)?.as_ref()?;
        (link.access == Access::Direct).then_some(link.domain)
    }

    /// Who is at the other end of a channel.
    pub(super) fn peer(&self, domain: usize, channel: u64) -> Option<(u32, Lane)> {
        self.peers.get(&(domain, channel)).copied()
    }

    /// Stops every channel. Says whether all came to rest, so that no memory of an operation is
    /// touched any more.
    #[must_use]
    pub(super) fn quiesce(&mut self, domains: &mut [Box<dyn Domain>], timeout: Duration) -> bool {
        let mut all_rest = true;
        for ((peer, _), (domain, channel)) in &self.open {
            let domain = &mut domains[*domain];
            if let Err(error) = domain.quiesce(*channel, timeout) {
                tracing::warn!(tier = domain.name(), peer, %error, "a channel did not come to rest");
                all_rest = false;
            }
        }
        all_rest
    }

    /// Ends every channel in good order.
    pub(super) fn close(&mut self, domains: &mut [Box<dyn Domain>]) {
        for ((peer, _), (domain, channel)) in self.open.drain() {
            let domain = &mut domains[domain];
            if let Err(error) = domain.channel_close(channel) {
                tracing::debug!(tier = domain.name(), peer, %error, "closing a channel");
            }
        }
        self.peers.clear();
    }
}
