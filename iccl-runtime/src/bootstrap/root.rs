//! The root: one thread that listens on one address, lets in who proves to know the job secret, and
//! tells everyone where to find their neighbours in the tree. It closes its listener as soon as
//! everyone is there, and ends when everyone is wired.
//!
//! Strangers cost it one descriptor and less than 1 KiB each, a bounded number at a time, until the
//! handshake's deadline.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use iccl_wire::{Context, Handshake, HandshakeError, Key};
use rustix::event::PollFlags;

use super::channel::{Channel, ChannelError};
use super::lineage::Venue;
use super::message::{Failure, FromRoot, ROOT_FRAME_LIMIT_BYTES, ToRoot};
use super::net::{Endpoint, Listener, Waker, is_same_user, wait_for};
use super::probes::Probes;
use super::rendezvous::Target;
use super::roster::{Arrival, ConnectionId, Roster};
use super::strangers::Strangers;
use super::tree;
use super::{fork, unique_id::UniqueId};
use crate::limits::{open_files_hint, system_error};
use crate::{Error, ErrorKind, Result};

/// The id by which ranks address the root in the handshake.
pub(super) const ROOT_ID: u64 = u64::MAX - 1;
/// What a connection to the root is for.
pub(super) const ROOT_PURPOSE: &str = "iccl-bootstrap/1";

/// Connections at once that have not proved themselves.
const PENDING_LIMIT: usize = 512;
/// A pending connection younger than this is not closed to make room for others.
const PENDING_GRACE: Duration = Duration::from_secs(1);
/// How long to leave the listener alone when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How a root behaves.
#[derive(Clone, Debug)]
pub(super) struct RootOptions {
    pub(super) target: Target,
    /// Handed to every rank, for rendezvous that have no secret of their own.
    pub(super) session_key: Option<Key>,
    /// How long a connection may take to prove itself.
    pub(super) handshake_timeout: Duration,
    /// How long to wait for the first rank.
    pub(super) lifetime: Duration,
    /// How long to go on telling late ranks that the job has failed.
    pub(super) linger: Duration,
    pub(super) wire_version: u32,
    /// Where and for whom it works, if ranks of a job form a new one.
    pub(super) venue: Option<Venue>,
}

/// A running root. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Root {
    endpoint: Endpoint,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
    process: fork::Owner,
}

impl Root {
    pub(super) fn start(options: RootOptions) -> Result<Self> {
        let listener = match &options.venue {
            Some(venue) => Arc::clone(&venue.listener),
            None => Arc::new(listen(&options.target.endpoint)?),
        };
        let endpoint = listener.endpoint().clone();
        let stop = Arc::new(AtomicBool::new(false));
        let waker = Arc::new(Waker::new().map_err(resources)?);
        let members = options.venue.as_ref().map(|venue| venue.members.clone());
        let others = options.venue.iter().flat_map(|venue| venue.others.iter().copied());
        let service = Service {
            listener: Some(listener),
            stop: Arc::clone(&stop),
            waker: Arc::clone(&waker),
            expires: Instant::now() + options.lifetime,
            accept_after: None,
            pending: VecDeque::new(),
            ranks: BTreeMap::new(),
            probes: Probes::new(others),
            roster: Roster::new(members),
            is_complete: false,
            told_failure_at: None,
            strangers: Strangers::default(),
            next_connection: 0,
            options,
        };
        let thread = std::thread::Builder::new()
            .name("iccl-root".into())
            .spawn(move || service.run())
            .map_err(resources)?;
        let process = fork::Owner::current();
        Ok(Self { endpoint, stop, waker, thread: Some(thread), process })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Lets it run on until the job is complete or its time is over.
    pub(super) fn detach(mut self) {
        self.thread = None;
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.process.is_current() {
            // After a fork it is the parent's; its number may be that of a thread of this process.
            std::mem::forget(thread);
            return;
        }
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        let _ = thread.join();
    }
}

fn listen(endpoint: &Endpoint) -> Result<Listener> {
    Listener::bind(endpoint).map_err(|error| {
        if open_files_hint(&error).is_some() {
            return resources(error);
        }
        let hint = match error.raw_os_error() {
            Some(libc::EADDRNOTAVAIL) => {
                "no interface of this host has that address; rank 0 \
                 has to run on the host that it belongs to"
            }
            Some(libc::EADDRINUSE) => "something else listens there: choose another port",
            Some(libc::EACCES) => "ports below 1024 need privileges: choose another port",
            _ => "choose another interface or port",
        };
        Error::new(ErrorKind::TransportError, format!("bootstrap: cannot listen on {endpoint}"))
            .with_source(error)
            .with_hint(hint)
    })
}

fn resources(error: std::io::Error) -> Error {
    system_error(ErrorKind::OutOfResources, "bootstrap: the root cannot start", error)
}

/// What a unique id's root needs to know.
#[derive(Clone, Debug)]
pub struct UniqueIdOptions {
    /// The interface to listen on.
    pub interface: super::InterfaceChoice,
    /// Whether every rank is known to run on this host: then `Auto` means loopback.
    pub is_one_host: bool,
    /// The port; 0 lets the kernel choose.
    pub port: u16,
    /// How long to wait for the first rank; after it the ranks' own timeouts hold.
    pub lifetime: Duration,
    /// How long a connection may take to prove itself.
    pub handshake_timeout: Duration,
}

impl Default for UniqueIdOptions {
    fn default() -> Self {
        Self {
            interface: super::InterfaceChoice::Auto,
            is_one_host: false,
            port: 0,
            lifetime: Duration::from_secs(1) * 1800,
            handshake_timeout: super::DEFAULT_HANDSHAKE_TIMEOUT,
        }
    }
}

impl UniqueId {
    /// Makes a unique id and starts the service behind it in this process, which may or may not
    /// become a rank itself but must live until every rank has joined. The service listens on the
    /// chosen interface only and ends by itself when every rank has joined, when ranks are missing at
    /// their deadline, or when none came within `lifetime`. An id serves one job.
    ///
    /// # Errors
    ///
    /// `InvalidConfig`: there is no such interface. `TransportError`: the address cannot be used.
    /// `OutOfResources`: no randomness, no thread, no descriptors.
    pub fn generate(options: &UniqueIdOptions) -> Result<Self> {
        let (id, root) = Self::generate_with_handle(options)?;
        root.detach();
        Ok(id)
    }

    pub(super) fn generate_with_handle(options: &UniqueIdOptions) -> Result<(Self, Root)> {
        let available = super::interfaces()?;
        let mut address =
            super::interface::choose(&available, &options.interface, options.is_one_host)?;
        address.set_port(options.port);
        let secret = Key::generate().map_err(resources)?;
        let mut job = [0; 16];
        job.copy_from_slice(&Key::generate().map_err(resources)?.expose()[..16]);
        let root = Root::start(RootOptions {
            target: Target {
                endpoint: Endpoint::Tcp(address),
                key: secret.clone(),
                job: job.to_vec(),
            },
            session_key: None,
            handshake_timeout: options.handshake_timeout,
            lifetime: options.lifetime,
            linger: options.lifetime,
            wire_version: iccl_wire::WIRE_VERSION,
            venue: None,
        })?;
        if let Endpoint::Tcp(bound) = root.endpoint() {
            address.set_port(bound.port());
        }
        Ok((Self::new(address, secret, job), root))
    }
}

/// What has become ready.
#[derive(Clone, Copy)]
enum Ready {
    Waker,
    Listener,
    Pending(ConnectionId),
    Rank(u32),
    Probe(u32),
}

/// A connection that has not checked in.
struct Pending {
    id: ConnectionId,
    channel: Channel,
}

struct Service {
    options: RootOptions,
    /// `None` once everyone has come: whoever connects to it then wants another rendezvous.
    listener: Option<Arc<Listener>>,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    expires: Instant,
    accept_after: Option<Instant>,
    /// Oldest first.
    pending: VecDeque<Pending>,
    ranks: BTreeMap<u32, (ConnectionId, Channel)>,
    /// Of the ranks of a new job that have not come.
    probes: Probes,
    roster: Roster,
    is_complete: bool,
    told_failure_at: Option<Instant>,
    strangers: Strangers,
    next_connection: ConnectionId,
}

impl Service {
    fn run(mut self) {
        while !self.is_over() {
            if let Err(error) = self.turn() {
                tracing::error!(%error, "bootstrap: the root cannot wait for its sockets");
                return;
            }
        }
        self.strangers.report();
    }

    fn is_over(&self) -> bool {
        let now = Instant::now();
        if self.stop.load(Ordering::Acquire) {
            return true;
        }
        if let Some(told) = self.told_failure_at {
            let is_flushed = !self.ranks.values().any(|(_, channel)| channel.has_output());
            let late =
                self.roster.deadline().unwrap_or(self.expires).min(told + self.options.linger);
            return now >= late && (is_flushed || now >= told + self.options.handshake_timeout);
        }
        if self.is_complete {
            return self.ranks.is_empty() && self.pending.is_empty();
        }
        self.roster.entries().is_empty() && now >= self.expires
    }

    /// Waits for something to happen and deals with it.
    fn turn(&mut self) -> std::io::Result<()> {
        let now = Instant::now();
        if let Some(rank) = self.probes.begin(now) {
            self.roster.refused(rank);
        }
        let accepts = self.accept_after.is_none_or(|after| now >= after) && self.has_room(now);
        let mut fds = vec![(Ready::Waker, self.waker.as_fd(), PollFlags::IN)];
        if let (Some(listener), true) = (&self.listener, accepts) {
            fds.push((Ready::Listener, listener.as_fd(), PollFlags::IN));
        }
        fds.extend(self.pending.iter().map(|Pending { id, channel }| {
            (Ready::Pending(*id), channel.as_fd(), channel.interest())
        }));
        fds.extend(
            self.ranks.iter().map(|(rank, (_, channel))| {
                (Ready::Rank(*rank), channel.as_fd(), channel.interest())
            }),
        );
        fds.extend(
            self.probes.sockets().map(|(rank, fd, interest)| (Ready::Probe(rank), fd, interest)),
        );
        for ready in wait_for(&fds, self.next_wake(now))? {
            match ready {
                Ready::Waker => self.waker.clear(),
                Ready::Listener => self.accept(),
                Ready::Pending(id) => self.serve_pending(id),
                Ready::Rank(rank) => self.serve_rank(rank),
                Ready::Probe(rank) => {
                    if self.probes.is_gone(rank) {
                        self.roster.refused(rank);
                    }
                }
            }
        }
        self.drop_late();
        if !self.is_complete && self.roster.failure().is_none() {
            let seen = |rank| self.probes.describe(rank);
            self.roster.expire(Instant::now(), self.options.wire_version, seen);
        }
        self.tell_failure();
        Ok(())
    }

    /// The next moment at which something is due without any socket being ready.
    fn next_wake(&self, now: Instant) -> Duration {
        let mut next = now + Duration::from_secs(1);
        let handshake = self.options.handshake_timeout;
        let oldest = self.pending.front().map(|pending| pending.channel.opened + handshake);
        let probes = self.probes.next();
        for due in [oldest, self.roster.next(), self.accept_after, probes, Some(self.expires)]
            .into_iter()
            .flatten()
            .filter(|due| *due > now)
        {
            next = next.min(due);
        }
        next.saturating_duration_since(now).max(Duration::from_millis(1))
    }

    /// Makes room by closing the oldest pending connection, unless even that one is young: then
    /// newcomers wait in the kernel's queue.
    fn has_room(&mut self, now: Instant) -> bool {
        if self.pending.len() < PENDING_LIMIT {
            return true;
        }
        if self.pending.front().is_some_and(|p| now < p.channel.opened + PENDING_GRACE) {
            return false;
        }
        self.drop_oldest("it made room for others");
        true
    }

    fn drop_oldest(&mut self, why: &str) {
        if let Some(oldest) = self.pending.pop_front() {
            self.strangers.count(&oldest.channel.peer, why);
        }
    }

    fn accept(&mut self) {
        while self.pending.len() < PENDING_LIMIT {
            let Some(listener) = &self.listener else { return };
            match listener.accept() {
                Ok(Some((socket, peer))) => {
                    if matches!(self.options.target.endpoint, Endpoint::Local(_))
                        && !is_same_user(&socket)
                    {
                        self.strangers.count(&peer, "it belongs to another user");
                        continue;
                    }
                    let context = Context { purpose: ROOT_PURPOSE, job: &self.options.target.job };
                    let version = self.options.wire_version;
                    let handshake = Handshake::accept_with_version(
                        &self.options.target.key,
                        context,
                        ROOT_ID,
                        version,
                    );
                    let limit = ROOT_FRAME_LIMIT_BYTES;
                    let channel = Channel::new(socket, false, handshake, limit, peer);
                    self.next_connection += 1;
                    self.pending.push_back(Pending { id: self.next_connection, channel });
                }
                Ok(None) => return,
                Err(error) => {
                    // Descriptors or memory have run out: strangers go first.
                    if self.accept_after.is_none() {
                        tracing::warn!(%error, "bootstrap: the root cannot take more connections");
                    }
                    self.drop_oldest("descriptors have run out");
                    self.accept_after = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn serve_pending(&mut self, id: ConnectionId) {
        // Ids grow from front to back.
        let Ok(index) = self.pending.binary_search_by_key(&id, |pending| pending.id) else {
            return;
        };
        let mut frames = Vec::new();
        let outcome = self.pending[index].channel.pump(&mut frames);
        if frames.is_empty() && outcome.is_ok() {
            return;
        }
        let Some(entry) = self.pending.remove(index) else { return };
        match (frames.first(), outcome) {
            (Some(frame), _) => self.check_in(entry, frame),
            (None, Err(error)) => {
                let has_ended = matches!(error, ChannelError::Closed | ChannelError::Os(_));
                // One that had proved itself: it was killed, say.
                if let Some(claim) = entry.channel.claim().filter(|_| has_ended)
                    && let Ok(rank) = u32::try_from(claim.dialer)
                {
                    self.roster.note_went_away(rank, Instant::now());
                }
                if self.options.venue.is_some() && matches!(error, ChannelError::Closed) {
                    // A rank that had looked whether this one is still there, most likely.
                    return;
                }
                if let ChannelError::Handshake(HandshakeError::VersionMismatch { theirs, .. }) =
                    &error
                {
                    self.roster.note_version(*theirs, &entry.channel.peer);
                }
                self.strangers.count(&entry.channel.peer, &error.to_string());
            }
            (None, Ok(())) => {}
        }
    }

    fn check_in(&mut self, mut entry: Pending, frame: &[u8]) {
        let claimed = entry.channel.claim().map(|claim| claim.dialer);
        let check_in = match ToRoot::decode(frame) {
            Ok(ToRoot::CheckIn(check_in)) if claimed == Some(u64::from(check_in.rank)) => check_in,
            Ok(_) => {
                self.strangers.count(&entry.channel.peer, "it did not check in");
                return;
            }
            Err(error) => {
                self.strangers.count(&entry.channel.peer, &error.to_string());
                return;
            }
        };
        let rank = check_in.rank;
        let arrival = self.roster.arrive(entry.id, check_in, Instant::now());
        tracing::debug!(rank, peer = %entry.channel.peer, ?arrival, "bootstrap: checked in");
        let refusal = match &arrival {
            // It will find the next root here.
            Arrival::Early => return,
            Arrival::Failed => self.roster.failure(),
            Arrival::Outsider(failure) => Some(failure),
            Arrival::Waiting | Arrival::Replaced(_) | Arrival::Complete => None,
        };
        send(&mut entry.channel, &FromRoot::Welcome);
        if let Some(failure) = refusal {
            // Told at once; its connection replaces nobody's.
            send(&mut entry.channel, &FromRoot::Failed(failure.clone()));
            return;
        }
        self.probes.forget(rank);
        let own = self.roster.entries().get(&rank).and_then(|entry| entry.check_in.listener);
        if let Some(gone) = own.and_then(|address| self.probes.replaced_at(address)) {
            self.roster.refused(gone);
        }
        self.ranks.insert(rank, (entry.id, entry.channel));
        if arrival == Arrival::Complete {
            self.assign();
        }
    }

    /// Everyone is there: nobody else is let in, and each rank hears where its parent listens.
    fn assign(&mut self) {
        self.is_complete = true;
        self.listener = None;
        if self.options.venue.is_none() {
            self.pending.clear();
        }
        // Those who have come already hear whether they have a part in the new job.
        // By their ranks in the job that begins.
        let order: Vec<u32> = match &self.options.venue {
            Some(venue) => venue.members.ranks.to_vec(),
            None => self.ranks.keys().copied().collect(),
        };
        let places: BTreeMap<u32, u32> = order.iter().copied().zip(0..).collect();
        for (rank, (_, channel)) in self.ranks.iter_mut().rev() {
            let parent = places
                .get(rank)
                .and_then(|place| tree::parent(*place))
                .and_then(|parent| self.roster.entries().get(&order[parent as usize]))
                .and_then(|parent| parent.check_in.listener);
            let key = self.options.session_key.clone();
            send(channel, &FromRoot::Assigned { parent, key });
        }
    }

    fn serve_rank(&mut self, rank: u32) {
        let Some((_, channel)) = self.ranks.get_mut(&rank) else { return };
        let mut frames = Vec::new();
        let outcome = channel.pump(&mut frames);
        match frames.first().map(|frame| ToRoot::decode(frame)) {
            None if outcome.is_ok() => {}
            Some(Ok(ToRoot::Wired)) if self.is_complete => {
                self.ranks.remove(&rank);
            }
            Some(Ok(ToRoot::Failed(failure))) => {
                self.ranks.remove(&rank);
                self.roster.fail(failure);
            }
            _ => {
                self.ranks.remove(&rank);
                self.roster.lose(rank);
            }
        }
    }

    fn drop_late(&mut self) {
        let limit = self.options.handshake_timeout;
        let now = Instant::now();
        while self.pending.front().is_some_and(|p| now >= p.channel.opened + limit) {
            self.drop_oldest("it did not prove itself in time");
        }
    }

    /// Tells everyone once; rank 0 last, since this thread may live in its process.
    fn tell_failure(&mut self) {
        let (Some(failure), None) = (self.roster.failure(), self.told_failure_at) else { return };
        let message = FromRoot::Failed(Failure::clone(failure));
        self.probes.forget_all();
        for (_, channel) in self.ranks.values_mut().rev() {
            send(channel, &message);
        }
        self.told_failure_at = Some(Instant::now());
    }
}

fn send(channel: &mut Channel, message: &FromRoot) {
    // A broken connection is noticed when it is read.
    let _ = channel.send(&message.encode());
}
