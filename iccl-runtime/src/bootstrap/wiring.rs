//! Builds this rank's edges of the tree: one up, up to four down, each proved on both sides. The
//! root is listened to meanwhile, since it knows first when somebody is gone.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use iccl_wire::{Claim, Context, Handshake, Key};
use rustix::event::PollFlags;

use super::CANCEL_CHECK;
use super::backoff::Backoff;
use super::channel::Channel;
use super::message::{Failure, FromRoot, Notice, ToRoot, TreeMessage, tree_frame_limit_bytes};
use super::net::{Endpoint, Listener, start_connect, wait_for};
use super::root_link::RootLink;
use super::tree;
use crate::{Error, ErrorKind, Result};

const TREE_PURPOSE: &str = "iccl-tree/1";
/// Connections at once that have not proved themselves; beyond it the oldest gives way.
const PENDING_LIMIT: usize = 64;

/// An edge of the tree, with what arrived on it before anyone listened.
#[derive(Debug)]
pub(super) struct Edge {
    pub(super) channel: Channel,
    pub(super) early_frames: Vec<Vec<u8>>,
}

pub(super) struct Wiring<'a> {
    pub(super) rank: u32,
    pub(super) world_size: u32,
    pub(super) key: Key,
    pub(super) job: &'a [u8],
    pub(super) wire_version: u32,
    /// Where the children connect.
    pub(super) listener: Option<Arc<Listener>>,
    /// What the ranks are called in messages, where that is not their number: the members of a job
    /// that is made out of another are known by their ranks in that one until it stands.
    pub(super) names: Option<Arc<[u32]>>,
    /// What the rank is called that the root runs on, if it runs on one.
    pub(super) root_rank: Option<u32>,
    /// Where the parent listens; `None` for rank 0.
    pub(super) parent: Option<SocketAddr>,
    pub(super) root: RootLink,
    pub(super) deadline: Instant,
    pub(super) handshake_timeout: Duration,
    pub(super) cancel: Option<&'a AtomicBool>,
}

/// What has become ready.
#[derive(Clone, Copy)]
enum Ready {
    Root,
    Uplink,
    Listener,
    Pending(usize),
}

impl Wiring<'_> {
    /// Returns the edges by the rank at their other end, and lets the root go.
    pub(super) fn run(mut self) -> Result<BTreeMap<u32, Edge>> {
        let mut edges = BTreeMap::new();
        match self.wire(&mut edges) {
            Ok(()) => {
                self.root.send(&ToRoot::Wired);
                Ok(edges)
            }
            Err(error) => {
                self.spread(&error, &mut edges);
                Err(error)
            }
        }
    }

    /// What a rank is called in messages.
    fn name(&self, rank: u32) -> u32 {
        let named = self.names.as_ref().and_then(|names| names.get(rank as usize));
        named.copied().unwrap_or(rank)
    }

    /// The rank that is called so.
    fn named(&self, name: u32) -> u32 {
        let place = self.names.as_ref().and_then(|names| names.iter().position(|n| *n == name));
        place.map_or(name, |place| place as u32)
    }

    /// Tells the root and the neighbours why this rank gives up, before they see it vanish.
    fn spread(&mut self, error: &Error, edges: &mut BTreeMap<u32, Edge>) {
        let culprit = error.rank().or(Some(self.name(self.rank)));
        let notice = TreeMessage::Notice(Notice {
            communicator: 0,
            origin: self.rank,
            culprit: culprit.map(|name| self.named(name)),
            kind: error.kind(),
            message: error.message().to_owned(),
        });
        self.root.send(&ToRoot::Failed(Failure::new(error.kind(), culprit, error.message())));
        for edge in edges.values_mut() {
            // Last words; whoever does not hear them sees the connection end.
            let _ = edge.channel.send(&notice.encode());
        }
    }

    fn wire(&mut self, edges: &mut BTreeMap<u32, Edge>) -> Result<()> {
        let mut uplink = match (tree::parent(self.rank), self.parent) {
            (Some(rank), Some(address)) => Some(Uplink::new(self.rank, rank, address)),
            (None, _) => None,
            (Some(rank), None) => {
                let rank = self.name(rank);
                let message = format!("bootstrap: rank {rank} told no address for its children");
                return Err(Error::new(ErrorKind::Internal, message).with_rank(rank));
            }
        };
        let children = tree::children(self.rank, self.world_size);
        let mut pending: Vec<Channel> = Vec::new();
        // What came together with the assignment wakes nobody again.
        self.heed_root()?;
        loop {
            if uplink.is_none() && children.clone().all(|child| edges.contains_key(&child)) {
                return Ok(());
            }
            self.check_time(uplink.as_ref(), edges)?;
            if let Some(uplink) = &mut uplink {
                uplink.dial_if_due(self);
            }
            let ready = self.wait(uplink.as_ref(), &pending)?;
            for ready in ready.into_iter().rev() {
                match ready {
                    Ready::Root => self.hear_root()?,
                    Ready::Listener => self.accept(&mut pending),
                    // From the back, so that removing one leaves the places of the others.
                    Ready::Pending(index) => self.serve_pending(&mut pending, index, edges),
                    Ready::Uplink => {
                        if let Some(up) = &mut uplink
                            && let Some(edge) = up.pump()
                        {
                            edges.insert(up.rank, edge);
                            uplink = None;
                        }
                    }
                }
            }
            pending.retain(|channel| channel.opened.elapsed() < self.handshake_timeout);
        }
    }

    fn check_time(&self, uplink: Option<&Uplink>, edges: &BTreeMap<u32, Edge>) -> Result<()> {
        if self.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            return Err(super::cancelled());
        }
        if Instant::now() < self.deadline {
            return Ok(());
        }
        let rank = self.name(self.rank);
        let missing_child =
            tree::children(self.rank, self.world_size).find(|child| !edges.contains_key(child));
        let (culprit, what) = match (uplink, missing_child) {
            (Some(uplink), _) => {
                (self.name(uplink.rank), format!("rank {rank} cannot reach it at {uplink}"))
            }
            (None, Some(child)) => (self.name(child), format!("it did not connect to rank {rank}")),
            (None, None) => (rank, "its deadline passed".into()),
        };
        let message = format!("bootstrap: rank {culprit} is not wired: {what}");
        Err(Error::new(ErrorKind::Timeout, message).with_rank(culprit))
    }

    fn wait(&self, uplink: Option<&Uplink>, pending: &[Channel]) -> Result<Vec<Ready>> {
        let root = self.root.channel();
        let mut fds = Vec::with_capacity(pending.len() + 3);
        if !self.root.has_ended() {
            fds.push((Ready::Root, root.as_fd(), root.interest()));
        }
        if let Some(channel) = uplink.and_then(|uplink| uplink.channel.as_ref()) {
            fds.push((Ready::Uplink, channel.as_fd(), channel.interest()));
        }
        if let Some(listener) = &self.listener {
            fds.push((Ready::Listener, listener.as_fd(), PollFlags::IN));
        }
        for (index, channel) in pending.iter().enumerate() {
            fds.push((Ready::Pending(index), channel.as_fd(), channel.interest()));
        }
        let now = Instant::now();
        let mut timeout = CANCEL_CHECK.min(self.deadline.saturating_duration_since(now));
        if let Some(uplink) = uplink.filter(|uplink| uplink.channel.is_none()) {
            timeout = timeout.min(uplink.backoff.next().saturating_duration_since(now));
        }
        wait_for(&fds, timeout).map_err(|error| {
            Error::new(ErrorKind::OutOfResources, "bootstrap: cannot wait for sockets")
                .with_source(error)
        })
    }

    /// The root's only news now is that somebody failed. It goes when everyone is wired, so if it has
    /// gone before, its rank is lost. One that runs on no rank is not needed any more.
    fn hear_root(&mut self) -> Result<()> {
        self.root.pump_until_end();
        self.heed_root()
    }

    fn heed_root(&mut self) -> Result<()> {
        if let Some(FromRoot::Failed(failure)) = self.root.next() {
            return Err(failure.to_error());
        }
        match self.root_rank.filter(|_| self.root.has_ended()) {
            Some(rank) => {
                let message = format!("bootstrap: rank {rank} went away while ranks connected");
                Err(Error::new(ErrorKind::PeerLost, message).with_rank(rank))
            }
            None => Ok(()),
        }
    }

    fn accept(&mut self, pending: &mut Vec<Channel>) {
        let Some(listener) = &self.listener else { return };
        while let Ok(Some((socket, peer))) = listener.accept() {
            if pending.len() >= PENDING_LIMIT {
                pending.remove(0);
            }
            let context = Context { purpose: TREE_PURPOSE, job: self.job };
            let local = u64::from(self.rank);
            let version = self.wire_version;
            let handshake = Handshake::accept_with_version(&self.key, context, local, version);
            let limit = tree_frame_limit_bytes(self.world_size);
            pending.push(Channel::new(socket, false, handshake, limit, peer));
        }
    }

    fn serve_pending(
        &self,
        pending: &mut Vec<Channel>,
        index: usize,
        edges: &mut BTreeMap<u32, Edge>,
    ) {
        let mut early_frames = Vec::new();
        let outcome = pending[index].pump(&mut early_frames);
        let claim = pending[index].claim();
        if outcome.is_ok() && claim.is_none() {
            return;
        }
        let mut channel = pending.remove(index);
        let child = claim.and_then(|claim| u32::try_from(claim.dialer).ok()).filter(|child| {
            tree::children(self.rank, self.world_size).contains(child) && !edges.contains_key(child)
        });
        match child {
            Some(child) if outcome.is_ok() => {
                let _ = channel.send(&TreeMessage::Welcome.encode());
                edges.insert(child, Edge { channel, early_frames });
            }
            _ => {
                let peer = &channel.peer;
                tracing::debug!(rank = self.rank, %peer, ?outcome, "bootstrap: not a child");
            }
        }
    }
}

/// The connection to the parent, until the parent has taken it.
struct Uplink {
    rank: u32,
    address: SocketAddr,
    channel: Option<Channel>,
    backoff: Backoff,
    last: String,
}

impl Uplink {
    fn new(rank: u32, parent: u32, address: SocketAddr) -> Self {
        let last = "no attempt was made".into();
        Self { rank: parent, address, channel: None, backoff: Backoff::new(rank), last }
    }

    fn dial_if_due(&mut self, wiring: &Wiring<'_>) {
        if let Some(channel) = &self.channel {
            if channel.opened.elapsed() < wiring.handshake_timeout {
                return;
            }
            self.fail("no answer".into());
        }
        if Instant::now() < self.backoff.next() {
            return;
        }
        self.backoff.begin();
        let claim =
            Claim { dialer: u64::from(wiring.rank), acceptor: u64::from(self.rank), channel: 0 };
        let context = Context { purpose: TREE_PURPOSE, job: wiring.job };
        let version = wiring.wire_version;
        let attempt = Handshake::dial_with_version(&wiring.key, context, claim, version)
            .and_then(|handshake| Ok((start_connect(&Endpoint::Tcp(self.address))?, handshake)));
        match attempt {
            Ok((socket, handshake)) => {
                let limit = tree_frame_limit_bytes(wiring.world_size);
                let peer = self.address.to_string();
                self.channel = Some(Channel::new(socket, true, handshake, limit, peer));
            }
            Err(error) => self.fail(error.to_string()),
        }
    }

    fn fail(&mut self, why: String) {
        self.channel = None;
        self.last = why;
        self.backoff.failed();
    }

    /// The finished edge, once the parent has welcomed this rank.
    fn pump(&mut self) -> Option<Edge> {
        let mut frames = Vec::new();
        let outcome = self.channel.as_mut()?.pump(&mut frames);
        if frames.first().is_some_and(|f| TreeMessage::decode(f) == Ok(TreeMessage::Welcome)) {
            frames.remove(0);
            let channel = self.channel.take()?;
            return Some(Edge { channel, early_frames: frames });
        }
        if let Err(error) = outcome {
            self.fail(error.to_string());
        }
        None
    }
}

impl fmt::Display for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} attempts, last: {}", self.address, self.backoff.attempts(), self.last)
    }
}
