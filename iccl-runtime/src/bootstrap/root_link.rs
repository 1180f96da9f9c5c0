//! A rank's connection to the root: it is found with patience, since the root may start later, and
//! every attempt is remembered for the error if there is to be one.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use iccl_wire::{Claim, Context, Handshake, HandshakeError};

use super::CANCEL_CHECK;
use super::backoff::Backoff;
use super::channel::{Channel, ChannelError};
use super::message::{FromRoot, ROOT_FRAME_LIMIT_BYTES, ToRoot};
use super::net::{Endpoint, is_same_user, local_ip, start_connect, wait_for};
use super::rendezvous::{Rendezvous, Target};
use super::root::{ROOT_ID, ROOT_PURPOSE};
use crate::limits::open_files_hint;
use crate::{Error, ErrorKind, Result};

/// The longest that one attempt may take, connection and handshake together.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(10);

/// How to reach the root.
pub(super) struct RootDialer<'a> {
    pub(super) rank: u32,
    /// The rank that the root runs on, for messages.
    pub(super) root_rank: u32,
    /// Whether the root's address is there as long as its rank lives, so that being refused there
    /// is final.
    pub(super) is_kept: bool,
    pub(super) wire_version: u32,
    pub(super) deadline: Instant,
    pub(super) cancel: Option<&'a AtomicBool>,
    /// What to say once the connection stands, given its local address (`None`: a local socket).
    pub(super) check_in: &'a mut dyn FnMut(Option<IpAddr>) -> Result<ToRoot>,
}

/// Why an attempt failed.
enum Attempt {
    /// Worth another one.
    Again(String),
    /// Worth another one, when this process has closed something: what to do about that.
    Short(String),
    /// No attempt will end better.
    Never(Error),
}

impl RootDialer<'_> {
    /// Tries the targets of the rendezvous in turn, asking for them anew each round, until one of them
    /// lets this rank in; returns that one too.
    pub(super) fn connect(
        &mut self,
        rendezvous: &Rendezvous,
        is_one_host: bool,
    ) -> Result<(RootLink, Target)> {
        let mut backoff = Backoff::new(self.rank);
        let mut last = "no attempt was made".to_owned();
        let mut shortage = None;
        loop {
            match rendezvous.targets(is_one_host) {
                Ok(found) if found.is_empty() => "the name has no address".clone_into(&mut last),
                Ok(found) => {
                    for target in found {
                        backoff.begin();
                        shortage = None;
                        match self.attempt(&target) {
                            Ok(link) => return Ok((link, target)),
                            Err(Attempt::Never(error)) => return Err(error),
                            Err(Attempt::Again(why)) => {
                                last = format!("{}: {why}", target.endpoint);
                            }
                            Err(Attempt::Short(hint)) => shortage = Some(hint),
                        }
                    }
                }
                Err(error) => last = format!("the address is not known: {error}"),
            }
            backoff.failed();
            self.pause_until(backoff.next(), &|| {
                let (rank, root) = (self.rank, self.root_rank);
                if let Some(hint) = &shortage {
                    // The fault is not the root's.
                    let message = format!("bootstrap: rank {rank} cannot open a connection");
                    return Error::new(ErrorKind::OutOfResources, message)
                        .with("attempts", backoff.attempts())
                        .with_rank(rank)
                        .with_hint(hint);
                }
                let message = if self.is_kept {
                    format!("bootstrap: rank {rank} waits for rank {root} at {rendezvous}")
                } else {
                    format!("bootstrap: rank {rank} cannot reach the root at {rendezvous}")
                };
                Error::new(ErrorKind::Timeout, message)
                .with("attempts", backoff.attempts())
                .with("last", &last)
                .with_rank(self.root_rank)
                .with_hint(if self.is_kept {
                    "every rank that is to be part of the new communicator must make the same call"
                } else {
                    "rank 0 or the maker of the unique id must be running and reachable; \
                     a unique id serves one job only"
                })
            })?;
        }
    }

    fn pause_until(&self, next: Instant, timed_out: &dyn Fn() -> Error) -> Result<()> {
        loop {
            if self.is_cancelled() {
                return Err(super::cancelled());
            }
            let now = Instant::now();
            if now >= self.deadline {
                return Err(timed_out());
            }
            let left = next.min(self.deadline).saturating_duration_since(now);
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(CANCEL_CHECK));
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }

    fn attempt(&mut self, target: &Target) -> Result<RootLink, Attempt> {
        let endpoint = &target.endpoint;
        let deadline = self.deadline.min(Instant::now() + ATTEMPT_LIMIT);
        let socket = start_connect(endpoint).map_err(|error| self.judge_os(&error))?;
        let claim = Claim { dialer: u64::from(self.rank), acceptor: ROOT_ID, channel: 0 };
        let context = Context { purpose: ROOT_PURPOSE, job: &target.job };
        let handshake =
            Handshake::dial_with_version(&target.key, context, claim, self.wire_version)
                .map_err(|error| again(&error))?;
        let is_connecting = matches!(endpoint, Endpoint::Tcp(_));
        if matches!(endpoint, Endpoint::Local(_)) && !is_same_user(&socket) {
            return Err(Attempt::Never(Error::new(
                ErrorKind::Authentication,
                format!("bootstrap: the {endpoint} belongs to another user"),
            )));
        }
        let channel = Channel::new(
            socket,
            is_connecting,
            handshake,
            ROOT_FRAME_LIMIT_BYTES,
            endpoint.to_string(),
        );
        let mut link = RootLink {
            channel,
            root_rank: self.root_rank,
            inbox: VecDeque::new(),
            has_ended: false,
        };
        let mut has_checked_in = false;
        loop {
            if self.is_cancelled() {
                return Err(Attempt::Never(super::cancelled()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Attempt::Again("no answer".into()));
            }
            link.wait(left.min(CANCEL_CHECK)).map_err(|error| self.judge(endpoint, &error))?;
            if link.channel.claim().is_some() && !has_checked_in {
                has_checked_in = true;
                let local = match endpoint {
                    Endpoint::Tcp(_) => {
                        Some(local_ip(link.channel.socket()).map_err(|e| again(&e))?)
                    }
                    Endpoint::Local(_) => None,
                };
                let check_in = (self.check_in)(local).map_err(Attempt::Never)?;
                link.send(&check_in);
            }
            if link.inbox.front() == Some(&FromRoot::Welcome) {
                link.inbox.pop_front();
                return Ok(link);
            }
        }
    }

    fn judge(&self, endpoint: &Endpoint, error: &ChannelError) -> Attempt {
        match error {
            ChannelError::Handshake(HandshakeError::VersionMismatch { ours, theirs }) => {
                let rank = self.rank;
                Attempt::Never(
                    Error::new(
                        ErrorKind::VersionMismatch,
                        format!(
                            "bootstrap: wire versions differ: rank {rank} speaks {ours}, \
                             the root at {endpoint} speaks {theirs}"
                        ),
                    )
                    .with_hint("run the same version of iccl on every rank"),
                )
            }
            ChannelError::Handshake(HandshakeError::WrongProof) => Attempt::Never(
                Error::new(
                    ErrorKind::Authentication,
                    format!("bootstrap: the root at {endpoint} has another job secret"),
                )
                .with_hint("give every rank the same unique id or the same job secret"),
            ),
            ChannelError::Os(os) if os.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
                let message =
                    format!("bootstrap: this host cannot reach {endpoint}: no such address family");
                Attempt::Never(Error::new(ErrorKind::TransportError, message))
            }
            ChannelError::Os(os) => self.judge_os(os),
            other => Attempt::Again(other.to_string()),
        }
    }

    fn judge_os(&self, error: &std::io::Error) -> Attempt {
        if self.is_kept && error.kind() == std::io::ErrorKind::ConnectionRefused {
            let rank = self.root_rank;
            let message = format!(
                "bootstrap: rank {rank} is gone, or has destroyed the communicator: nobody listens \
                 where it did"
            );
            return Attempt::Never(Error::new(ErrorKind::PeerLost, message).with_rank(rank));
        }
        again(error)
    }
}

fn again(error: &std::io::Error) -> Attempt {
    open_files_hint(error).map_or_else(|| Attempt::Again(error.to_string()), Attempt::Short)
}

/// A connection to the root that the root has acknowledged.
#[derive(Debug)]
pub(super) struct RootLink {
    channel: Channel,
    root_rank: u32,
    inbox: VecDeque<FromRoot>,
    has_ended: bool,
}

impl RootLink {
    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    pub(super) fn send(&mut self, message: &ToRoot) {
        // A broken connection is noticed when it is read.
        let _ = self.channel.send(&message.encode());
    }

    /// Waits until something happens, at most `timeout`.
    fn wait(&mut self, timeout: Duration) -> Result<(), ChannelError> {
        let interest = self.channel.interest();
        if wait_for(&[((), self.channel.as_fd(), interest)], timeout)?.is_empty() {
            return Ok(());
        }
        self.pump()
    }

    /// Takes what has arrived; that the connection ends is no error.
    pub(super) fn pump_until_end(&mut self) {
        self.has_ended |= self.pump().is_err();
    }

    /// Whether [`pump_until_end`](Self::pump_until_end) has seen the end.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Takes what has arrived.
    fn pump(&mut self) -> Result<(), ChannelError> {
        let mut frames = Vec::new();
        let outcome = self.channel.pump(&mut frames);
        let has_news = !frames.is_empty();
        for frame in frames {
            self.inbox.push_back(FromRoot::decode(&frame)?);
        }
        // What came before the end counts; the end shows again next time.
        if has_news { Ok(()) } else { outcome }
    }

    /// The next message that has arrived.
    pub(super) fn next(&mut self) -> Option<FromRoot> {
        self.inbox.pop_front()
    }

    /// Waits for the next message.
    pub(super) fn receive(
        &mut self,
        deadline: Instant,
        cancel: Option<&AtomicBool>,
    ) -> Result<FromRoot> {
        loop {
            if let Some(message) = self.inbox.pop_front() {
                return Ok(message);
            }
            if cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
                return Err(super::cancelled());
            }
            let (peer, root_rank) = (&self.channel.peer, self.root_rank);
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message = format!("bootstrap: the root at {peer} does not answer");
                return Err(Error::new(ErrorKind::Timeout, message).with_rank(self.root_rank));
            }
            let gone = format!("bootstrap: the root at {peer} went away during initialisation");
            self.wait(left.min(CANCEL_CHECK)).map_err(|error| {
                Error::new(ErrorKind::PeerLost, gone).with_rank(root_rank).with_source(error)
            })?;
        }
    }
}
