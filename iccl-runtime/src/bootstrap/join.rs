//! Joining a job: check in at the root, wire the tree, exchange descriptors.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use iccl_wire::{FieldError, Key, Reader, WIRE_VERSION, Writer};

use super::control::{Callback, Control};
use super::interface::{InterfaceChoice, choose, interfaces, loopback};
use super::lineage::{Child, Lineage};
use super::message::{
    CONTRIBUTION_LIMIT_BYTES, CheckIn, Failure, FromRoot, Notice, ToRoot, read_address,
    write_address,
};
use super::net::{Endpoint, Listener};
use super::rendezvous::{Meeting, Rendezvous, Target, local_target, use_once};
use super::root::{Root, RootOptions, UniqueIdOptions};
use super::root_link::{RootDialer, RootLink};
use super::secret::write_private;
use super::unique_id::UniqueId;
use super::wiring::Wiring;
use super::{DEFAULT_HANDSHAKE_TIMEOUT, tree};
use crate::lock::lock;
use crate::{Error, ErrorKind, Result};

/// What to do when ranks of a job that a launcher started did not all meet.
const EVERY_RANK: &str = "start every rank once, with the same number of ranks, within bootstrap.init_timeout; see what those that are missing say";

/// The tag of the first all-gather: the table of descriptors.
const DESCRIPTORS_TAG: u32 = u32::from_le_bytes(*b"desc");
/// The tag of [`Bootstrap::barrier`].
const BARRIER_TAG: u32 = u32::from_le_bytes(*b"barr");
/// How long a root goes on telling late ranks that a job at a fixed address has failed. Short, so
/// that the address is free for the next attempt.
const ADDRESS_LINGER: Duration = Duration::from_secs(1);
/// The longest descriptor: it travels behind the rank's address.
const DESCRIPTOR_LIMIT_BYTES: usize = CONTRIBUTION_LIMIT_BYTES - 32;
/// How long a dropped bootstrap waits for the ranks below it to leave.
const DROP_LINGER: Duration = Duration::from_secs(1);

/// How a rank joins a job.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// Where the job meets.
    pub rendezvous: Rendezvous,
    /// This rank.
    pub rank: u32,
    /// How many ranks the job has.
    pub world_size: u32,
    /// Whether all ranks are known to run on this host.
    pub is_one_host: bool,
    /// The interface that others reach this rank on. `Auto`: the one that reaches the root.
    pub interface: InterfaceChoice,
    /// When to give up.
    pub init_timeout: Duration,
    /// How long a connection may take to prove itself.
    pub handshake_timeout: Duration,
    /// Must be the same on every rank: the version of what they say to each other beyond the
    /// bootstrap, such as the planner's.
    pub protocol_version: u32,
    /// Name and version of the software, for messages.
    pub software: String,
    /// What the other ranks have to know about this one; at most 64 KiB, and 256 bytes is good.
    pub descriptor: Vec<u8>,
    /// Set it from another thread to end the join; looked at every 25 ms.
    pub cancel: Option<Arc<AtomicBool>>,
    /// The wire version to speak; anything but the default is for tests of version skew.
    #[doc(hidden)]
    pub wire_version: u32,
}

impl JoinOptions {
    /// Options with the usual timeouts: five minutes to meet, five seconds for a handshake.
    pub fn new(rendezvous: Rendezvous, rank: u32, world_size: u32) -> Self {
        Self {
            rendezvous,
            rank,
            world_size,
            is_one_host: false,
            interface: InterfaceChoice::Auto,
            init_timeout: Duration::from_secs(1) * 300,
            handshake_timeout: DEFAULT_HANDSHAKE_TIMEOUT,
            protocol_version: 0,
            software: concat!("iccl ", env!("CARGO_PKG_VERSION")).into(),
            descriptor: Vec::new(),
            cancel: None,
            wire_version: WIRE_VERSION,
        }
    }
}

/// A rank's place in a job: who the others are, and the control plane that connects them.
///
/// One thread (`iccl-control`) serves the control plane; it sleeps unless something arrives.
/// Dropping the bootstrap says goodbye to the neighbours, waits at most a second for the ranks below
/// this one in the tree to leave as well, closes every connection and ends the thread. After a
/// `fork` the child's calls fail with `Forked`, and its drop leaves the parent's connections alone.
pub struct Bootstrap {
    rank: u32,
    world_size: u32,
    key: Key,
    local_ip: IpAddr,
    descriptors: Vec<Vec<u8>>,
    control: Control,
    lineage: Arc<Lineage>,
}

impl Bootstrap {
    /// Meets the other ranks. Blocks until everyone is wired and has everyone's descriptor, until
    /// something is wrong, or until the timeout; every wait looks at the cancel flag.
    ///
    /// # Errors
    ///
    /// On every rank that has arrived, within the timeout and naming the culprit: `Rendezvous`
    /// (missing, twice, out of range, another world size), `VersionMismatch`, `PeerLost`,
    /// `Timeout`. On this rank: `InvalidArgument`, `InvalidConfig`, `Authentication` (another
    /// secret), `TransportError`, `OutOfResources`, `Aborted` (cancelled).
    pub fn join(options: JoinOptions) -> Result<Self> {
        let deadline = Instant::now() + options.init_timeout;
        if options.world_size == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "bootstrap: the world size is 0"));
        }
        let (bytes, limit) = (options.descriptor.len(), DESCRIPTOR_LIMIT_BYTES);
        if bytes > limit {
            let message =
                format!("bootstrap: a descriptor of {bytes} bytes, at most {limit} are allowed");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let is_unique_id = matches!(options.rendezvous, Rendezvous::UniqueId(_));
        if matches!(options.rendezvous, Rendezvous::Alone)
            || (!is_unique_id && options.world_size == 1)
        {
            return Self::alone(options);
        }
        if let Rendezvous::UniqueId(id) = &options.rendezvous {
            use_once(id, options.rank)?;
        }
        if let Some(child) = options.rendezvous.child() {
            child.check(options.rank, options.world_size)?;
            child.lineage.end_lingering();
        }
        let mut root = if options.rank == 0 && !is_unique_id {
            let lingering = std::mem::take(&mut *lock_lingering());
            // A failed attempt of this process may still hold the address.
            drop(lingering);
            Some(start_root(&options)?)
        } else {
            None
        };
        let joined = Join { options: &options, deadline }.run();
        if let Some(root) = root.take() {
            if let Rendezvous::File(path) = &options.rendezvous {
                // It serves one job, and it holds a secret.
                let _ = std::fs::remove_file(path);
            }
            // Whoever is late hears how it ended.
            match &joined {
                Ok(_) => root.detach(),
                Err(error) => match options.rendezvous.child() {
                    Some(child) => child.lineage.linger(root),
                    None if error.kind() == ErrorKind::Aborted => drop(root),
                    None => lock_lingering().push(root),
                },
            }
        }
        joined
    }

    /// A job of one rank.
    fn alone(options: JoinOptions) -> Result<Self> {
        if options.rank != 0 || options.world_size != 1 {
            let (rank, size) = (options.rank, options.world_size);
            let message =
                format!("bootstrap: rank {rank} of {size} has nowhere to meet the others");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let key = Key::generate().map_err(no_randomness)?;
        Ok(Self {
            lineage: Arc::new(Lineage::new(0, &key, None, vec![None])),
            rank: 0,
            world_size: 1,
            key,
            local_ip: loopback(&interfaces()?),
            descriptors: vec![options.descriptor],
            control: Control::start(0, 1, std::collections::BTreeMap::new())?,
        })
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks the job has.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// The key that every rank of this job has and nobody else; derive from it what connections
    /// between ranks prove.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// This host's address that the others reach: listen for them here and nowhere else.
    pub fn local_ip(&self) -> IpAddr {
        self.local_ip
    }

    /// Every rank's descriptor, by rank.
    pub fn descriptors(&self) -> &[Vec<u8>] {
        &self.descriptors
    }

    /// What it takes to make jobs out of this one, even when this one is in pieces.
    pub fn lineage(&self) -> &Arc<Lineage> {
        &self.lineage
    }

    /// Gives every rank the `bytes` of every rank, by rank. All ranks call it in the same order
    /// with the same `tag`; one at a time. At most 64 KiB a rank.
    ///
    /// # Errors
    ///
    /// `Mismatch`: ranks called with different tags (both are named). `Timeout`: ranks are missing
    /// (they are named; ranks but 0 wait half a second longer for the names). `PeerLost`, at once:
    /// a rank is gone. `ConcurrentUse`, `InvalidArgument`, `Forked`.
    pub fn all_gather(&self, tag: u32, bytes: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        self.control.all_gather(tag, bytes, timeout, None)
    }

    /// As [`all_gather`](Self::all_gather), ended early with `Aborted` when the flag is set.
    ///
    /// # Errors
    ///
    /// As [`all_gather`](Self::all_gather), and `Aborted`. The job's rounds are out of step then:
    /// only dropping the bootstrap is of use.
    pub fn all_gather_cancellable(
        &self,
        tag: u32,
        bytes: &[u8],
        timeout: Duration,
        cancel: &AtomicBool,
    ) -> Result<Vec<Vec<u8>>> {
        self.control.all_gather(tag, bytes, timeout, Some(cancel))
    }

    /// Waits until every rank is here.
    ///
    /// # Errors
    ///
    /// As [`all_gather`](Self::all_gather).
    pub fn barrier(&self, timeout: Duration) -> Result<()> {
        self.all_gather(BARRIER_TAG, &[], timeout).map(drop)
    }

    /// Tells every other rank that a communicator has failed. Returns at once.
    ///
    /// # Errors
    ///
    /// `Forked`.
    pub fn notify_failure(
        &self,
        communicator: u64,
        culprit: Option<u32>,
        kind: ErrorKind,
        message: impl Into<String>,
    ) -> Result<()> {
        let (origin, message) = (self.rank, message.into());
        self.control.notify(Notice { communicator, origin, culprit, kind, message })
    }

    /// Calls `callback` for every notice of another rank and for every lost rank, those that have
    /// already arrived first. It runs on the control thread (the earlier ones on this one) and must
    /// neither block nor fork: it wakes whoever waits.
    pub fn on_notice(&self, callback: impl Fn(&Notice) + Send + Sync + 'static) {
        let callback: Callback = Arc::new(callback);
        self.control.on_notice(&callback);
    }

    /// The notices so far, at most the first 64.
    pub fn notices(&self) -> Vec<Notice> {
        self.control.notices()
    }

    /// Leaves the job: waits until the ranks below this one in the tree have left too, at most
    /// `linger`, so that news still reaches everyone, then closes the connections.
    pub fn goodbye(mut self, linger: Duration) {
        self.control.close(linger);
    }
}

impl Drop for Bootstrap {
    fn drop(&mut self) {
        self.control.close(DROP_LINGER);
    }
}

impl std::fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bootstrap")
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .field("local_ip", &self.local_ip)
            .finish_non_exhaustive()
    }
}

/// Roots of attempts that failed here, which still tell late ranks why.
static LINGERING: Mutex<Vec<Root>> = Mutex::new(Vec::new());

fn lock_lingering() -> std::sync::MutexGuard<'static, Vec<Root>> {
    lock(&LINGERING)
}

/// Listens where the job meets, since this is rank 0.
fn start_root(options: &JoinOptions) -> Result<Root> {
    match &options.rendezvous {
        Rendezvous::Address(meeting) => start_root_at(options, meeting),
        Rendezvous::LocalSocket { job } => {
            let session_key = Key::generate().map_err(no_randomness)?;
            Root::start(root_options(options, local_target(job), Some(session_key)))
        }
        Rendezvous::File(path) => {
            let (id, root) = UniqueId::generate_with_handle(&UniqueIdOptions {
                interface: options.interface.clone(),
                is_one_host: options.is_one_host,
                port: 0,
                lifetime: options.init_timeout,
                handshake_timeout: options.handshake_timeout,
            })?;
            write_private(path, id.to_text().as_bytes()).map_err(|error| {
                let message = format!("bootstrap: cannot write {}", path.display());
                Error::new(ErrorKind::InvalidConfig, message).with_source(error)
            })?;
            Ok(root)
        }
        Rendezvous::Child(child) => {
            // Fresh for each attempt, so that what is left of an earlier one fits nowhere.
            let session_key = Key::generate().map_err(no_randomness)?;
            let root = root_options(options, child.target()?, Some(session_key));
            Root::start(RootOptions {
                linger: options.init_timeout,
                venue: Some(child.venue()?),
                ..root
            })
        }
        Rendezvous::UniqueId(_) | Rendezvous::Alone => {
            Err(Error::new(ErrorKind::Internal, "bootstrap: this rendezvous has its own root"))
        }
    }
}

fn root_options(options: &JoinOptions, target: Target, session_key: Option<Key>) -> RootOptions {
    RootOptions {
        target,
        session_key,
        handshake_timeout: options.handshake_timeout,
        lifetime: options.init_timeout,
        linger: ADDRESS_LINGER,
        wire_version: options.wire_version,
        venue: None,
    }
}

/// Listens on the first of the meeting's addresses that is free.
fn start_root_at(options: &JoinOptions, meeting: &Meeting) -> Result<Root> {
    let mut failure = None;
    for endpoint in meeting.own_endpoints(options.is_one_host)? {
        let target = meeting.target(endpoint.clone());
        match Root::start(root_options(options, target, None)) {
            Ok(root) => {
                if meeting.is_weak_at(&endpoint) {
                    tracing::warn!(
                        %endpoint,
                        "bootstrap: the job has no secret, so whoever reaches this address and \
                         guesses the job's name can join; set ICCL_JOB_SECRET_FILE on every rank"
                    );
                }
                return Ok(root);
            }
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.unwrap_or_else(|| {
        let message = format!("bootstrap: {} has no address", options.rendezvous);
        Error::new(ErrorKind::InvalidConfig, message)
    }))
}

fn no_randomness(error: std::io::Error) -> Error {
    Error::new(ErrorKind::OutOfResources, "bootstrap: no randomness").with_source(error)
}

/// What a rank has once the root knows it.
struct CheckedIn {
    link: RootLink,
    target: Target,
    local_ip: IpAddr,
    /// Where other ranks connect.
    listener: Option<Arc<Listener>>,
}

/// One attempt to join.
struct Join<'a> {
    options: &'a JoinOptions,
    deadline: Instant,
}

impl Join<'_> {
    fn run(&self) -> Result<Bootstrap> {
        let options = self.options;
        let (rank, world_size) = (options.rank, options.world_size);
        let CheckedIn { mut link, target, local_ip, listener } = self.check_in()?;
        let answer = link.receive(self.deadline, self.cancel()).inspect_err(|error| {
            if error.kind() == ErrorKind::Aborted {
                // So that the others need not guess why it went away.
                let name = self.name();
                let message = format!("rank {name} gave up while ranks met");
                link.send(&ToRoot::Failed(Failure::new(error.kind(), Some(name), message)));
            }
        })?;
        let (parent, session_key) = match answer {
            FromRoot::Assigned { parent, key } => (parent, key),
            FromRoot::Failed(failure) => {
                let error = failure.to_error();
                return Err(match options.rendezvous.child() {
                    // Whoever called knows better what to do.
                    Some(child) => {
                        child.note(&failure);
                        error
                    }
                    None if error.kind() == ErrorKind::Rendezvous => error.with_hint(EVERY_RANK),
                    None => error,
                });
            }
            FromRoot::Welcome => {
                let message = "bootstrap: the root welcomed this rank twice";
                return Err(Error::new(ErrorKind::Internal, message));
            }
        };
        let key = session_key.unwrap_or(target.key).derive("iccl job key", &target.job);
        tracing::debug!(rank, ?parent, "bootstrap: everyone has checked in");
        let has_children = !tree::children(rank, world_size).is_empty();
        let address = listener.as_deref().and_then(address_of);
        let edges = Wiring {
            rank,
            world_size,
            key: key.derive("tree", &[]),
            job: &target.job,
            wire_version: options.wire_version,
            listener: listener.clone().filter(|_| has_children),
            names: options.rendezvous.child().map(|child| Arc::clone(&child.members)),
            root_rank: options.rendezvous.root_rank(),
            parent,
            root: link,
            deadline: self.deadline,
            handshake_timeout: options.handshake_timeout,
            cancel: self.cancel(),
        }
        .run()?;
        let control = Control::start(rank, world_size, edges)?;
        let left = self.deadline.saturating_duration_since(Instant::now());
        let introduction = introduce(address, &options.descriptor);
        let gathered = control
            .all_gather(DESCRIPTORS_TAG, &introduction, left, self.cancel())
            .map_err(|error| options.rendezvous.in_old_ranks(error))?;
        let mut addresses = Vec::new();
        let mut descriptors = Vec::new();
        for (rank, introduction) in (0..).zip(gathered) {
            let (address, descriptor) = introduced(&introduction).map_err(|error| {
                let message = format!("bootstrap: what rank {rank} said of itself is unreadable");
                let error = Error::new(ErrorKind::Internal, message).with_source(error);
                options.rendezvous.in_old_ranks(error.with_rank(rank))
            })?;
            addresses.push(address);
            descriptors.push(descriptor);
        }
        tracing::debug!(rank, "bootstrap: joined");
        let lineage = Arc::new(Lineage::new(rank, &key, listener, addresses));
        Ok(Bootstrap { rank, world_size, key, local_ip, descriptors, control, lineage })
    }

    /// What this rank is called until the job stands.
    fn name(&self) -> u32 {
        self.options.rendezvous.child().map_or(self.options.rank, Child::own)
    }

    fn cancel(&self) -> Option<&AtomicBool> {
        self.options.cancel.as_deref()
    }

    /// Finds the root and checks in; opens this rank's listener on the way.
    fn check_in(&self) -> Result<CheckedIn> {
        let options = self.options;
        let child = options.rendezvous.child();
        let instance = random_number()?;
        let mut listener: Option<Arc<Listener>> = None;
        let mut local_ip = None;
        let mut check_in = |reached_from: Option<IpAddr>| {
            let ip = self.own_ip(reached_from)?;
            if local_ip != Some(ip) {
                local_ip = Some(ip);
                listener = self.listen(ip)?;
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            // The root speaks before this rank's own deadline, so that the answer still arrives.
            let patience = left.saturating_sub((left / 5).min(Duration::from_millis(500)));
            Ok(ToRoot::CheckIn(CheckIn {
                rank: self.name(),
                world_size: options.world_size,
                instance,
                protocol_version: options.protocol_version,
                software: options.software.clone(),
                process: process_name(),
                patience_milliseconds: u32::try_from(patience.as_millis()).unwrap_or(u32::MAX),
                listener: listener.as_deref().and_then(address_of),
                call: child.map(|child| child.call.clone()).unwrap_or_default(),
                left_out: child.map(|child| child.left_out.to_vec()).unwrap_or_default(),
            }))
        };
        let (link, target) = RootDialer {
            rank: self.name(),
            root_rank: options.rendezvous.root_rank().unwrap_or(0),
            is_kept: child.is_some(),
            wire_version: options.wire_version,
            deadline: self.deadline,
            cancel: self.cancel(),
            check_in: &mut check_in,
        }
        .connect(&options.rendezvous, options.is_one_host)?;
        let local_ip = local_ip.ok_or_else(|| {
            Error::new(ErrorKind::Internal, "bootstrap: welcomed before the check-in")
        })?;
        Ok(CheckedIn { link, target, local_ip, listener })
    }

    fn own_ip(&self, reached_from: Option<IpAddr>) -> Result<IpAddr> {
        match (&self.options.interface, reached_from) {
            (InterfaceChoice::Auto, Some(ip)) => Ok(ip),
            (InterfaceChoice::Auto, None) => Ok(loopback(&interfaces()?)),
            (chosen, _) => Ok(choose(&interfaces()?, chosen, self.options.is_one_host)?.ip()),
        }
    }

    /// Listens for this rank's children in the tree, and then for ranks that form a new job.
    fn listen(&self, ip: IpAddr) -> Result<Option<Arc<Listener>>> {
        if self.options.world_size == 1 {
            return Ok(None);
        }
        let own = interfaces()?.into_iter().find(|interface| interface.ip == ip);
        let address = own.map_or_else(|| (ip, 0).into(), |interface| interface.socket_address(0));
        let listener = Listener::bind(&Endpoint::Tcp(address)).map_err(|error| {
            let message = format!("bootstrap: cannot listen on {ip} for other ranks");
            Error::new(ErrorKind::TransportError, message).with_source(error)
        })?;
        Ok(Some(Arc::new(listener)))
    }
}

fn address_of(listener: &Listener) -> Option<SocketAddr> {
    match listener.endpoint() {
        Endpoint::Tcp(address) => Some(*address),
        Endpoint::Local(_) => None,
    }
}

/// A rank's part of the first all-gather: where it listens, then its descriptor.
fn introduce(address: Option<SocketAddr>, descriptor: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    write_address(&mut writer, address);
    writer.raw(descriptor);
    writer.finish()
}

fn introduced(bytes: &[u8]) -> Result<(Option<SocketAddr>, Vec<u8>), FieldError> {
    let mut reader = Reader::new(bytes);
    let address = read_address(&mut reader)?;
    let rest = bytes.len() - reader.remaining_bytes();
    Ok((address, bytes[rest..].to_vec()))
}

fn random_number() -> Result<u64> {
    let key = Key::generate().map_err(no_randomness)?;
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&key.expose()[..8]);
    Ok(u64::from_le_bytes(bytes))
}

/// `pid 123 on node7`.
fn process_name() -> String {
    let uname = rustix::system::uname();
    format!("pid {} on {}", std::process::id(), uname.nodename().to_string_lossy())
}
