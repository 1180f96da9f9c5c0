//! One channel of a domain: how it comes to be connected, and the messages that wait on it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_plugin_api::tables::{Completion, completion_kind};
use iccl_wire::Claim;

use crate::address::Address;
use crate::connect::{Answer, Connection, Dialed, Identity, Offer, receive, send};
use crate::events::{Events, Source};
use crate::link::{Link, Queues, closed};
use crate::lobby::{Caller, refuse};
use crate::segment::Segment;
use crate::wake::{Bell, OwnBell};

/// How long a dialer waits when the peer's queue of connections is full.
const RETRY: Duration = Duration::from_millis(2);

/// See the module.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) handle: u64,
    pub(crate) peer: u32,
    pub(crate) number: u64,
    pub(crate) dials: bool,
    pub(crate) link_digest: u64,
    pub(crate) phase: Phase,
    pub(crate) queues: Queues,
}

#[derive(Debug)]
pub(crate) enum Phase {
    Dialing(Dialing),
    Accepting,
    Open(Box<Link>),
    /// Unusable, and why.
    Over(PluginError),
}

/// A dialer's way to an open channel.
#[derive(Debug)]
pub(crate) struct Dialing {
    address: Address,
    deadline: Instant,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// Connects (again) at this time.
    Connecting(Instant),
    Proving(Connection),
    /// The offer has been made.
    Offered(OwnedFd, Option<OwnedFd>),
}

/// What a channel needs of its domain to get connected.
pub(crate) struct Surroundings<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) events: &'a Events,
    pub(crate) bell: &'a OwnBell,
    pub(crate) ring_bytes: u64,
}

impl Dialing {
    pub(crate) fn new(address: Address, deadline: Instant) -> Self {
        Self { address, deadline, step: Step::Connecting(Instant::now()) }
    }

    /// When to come back if nothing happens.
    pub(crate) fn due(&self) -> Instant {
        match self.step {
            Step::Connecting(retry) => retry.min(self.deadline),
            _ => self.deadline,
        }
    }
}

impl Channel {
    /// Whether it is still on its way to being open.
    pub(crate) fn is_setting_up(&self) -> bool {
        matches!(self.phase, Phase::Dialing(_) | Phase::Accepting)
    }

    fn offer(&self, surroundings: &Surroundings<'_>) -> Offer {
        Offer { link_digest: self.link_digest, ring_bytes: surroundings.ring_bytes }
    }

    /// Moves a dialing channel on as far as it goes without waiting.
    pub(crate) fn dial(&mut self, surroundings: &Surroundings<'_>) -> PluginResult<()> {
        let offer = self.offer(surroundings);
        let claim = Claim {
            dialer: u64::from(surroundings.identity.rank),
            acceptor: u64::from(self.peer),
            channel: self.number,
        };
        let source = Source::Socket(self.handle);
        loop {
            let Phase::Dialing(dialing) = &mut self.phase else { return Ok(()) };
            let now = Instant::now();
            match &mut dialing.step {
                Step::Connecting(retry) => {
                    if now >= dialing.deadline {
                        return Err(PluginError::new(
                            Status::Timeout,
                            format!("attach failed: rank {} takes up no connections", self.peer),
                        ));
                    }
                    if now < *retry {
                        return Ok(());
                    }
                    match Connection::dial(&dialing.address, surroundings.identity, claim)? {
                        Dialed::Busy => *retry = now + RETRY,
                        Dialed::Connected(connection) => {
                            surroundings.events.watch(connection.as_fd(), source)?;
                            dialing.step = Step::Proving(connection);
                        }
                    }
                }
                Step::Proving(connection) => {
                    if connection.handshake()?.is_none() {
                        return self.check_deadline(now);
                    }
                    let Step::Proving(connection) =
                        std::mem::replace(&mut dialing.step, Step::Connecting(now))
                    else {
                        unreachable!("matched above")
                    };
                    let (socket, process) = connection.into_parts();
                    let bell = surroundings.bell.descriptors();
                    let sent = send(socket.as_fd(), &offer.encode(), &bell);
                    dialing.step = Step::Offered(socket, process);
                    sent?;
                }
                Step::Offered(socket, _) => {
                    let Some((bytes, descriptors)) = receive(socket.as_fd())? else {
                        return self.check_deadline(now);
                    };
                    let answer = Answer::decode(&bytes).map_err(|error| {
                        let what = format!("rank {}'s answer: {error}", self.peer);
                        PluginError::new(Status::TransportError, what)
                    })?;
                    return self.take_answer(answer, descriptors, surroundings.events);
                }
            }
        }
    }

    fn check_deadline(&self, now: Instant) -> PluginResult<()> {
        match &self.phase {
            Phase::Dialing(dialing) if now >= dialing.deadline => Err(PluginError::new(
                Status::Timeout,
                format!("attach failed: rank {} did not open the channel in time", self.peer),
            )),
            _ => Ok(()),
        }
    }

    /// The dialer's last step.
    fn take_answer(
        &mut self,
        answer: Answer,
        descriptors: Vec<OwnedFd>,
        events: &Events,
    ) -> PluginResult<()> {
        if let Some((status, reason)) = answer.refusal {
            let status = if status.is_success() { Status::TransportError } else { status };
            let message = format!("attach failed: rank {} refused: {reason}", self.peer);
            return Err(PluginError::new(status, message));
        }
        self.check_digest(answer.link_digest)?;
        let [segment, page, event] = <[OwnedFd; 3]>::try_from(descriptors).map_err(|_| {
            let what = format!("rank {}'s answer: descriptors are missing", self.peer);
            PluginError::new(Status::TransportError, what)
        })?;
        let segment = Segment::attach(segment.as_fd(), answer.ring_bytes)?;
        let bell = Bell::attach(page.as_fd(), event)?;
        let over = || PluginError::new(Status::Internal, "the channel is not being dialed");
        let phase = std::mem::replace(&mut self.phase, Phase::Over(over()));
        let Phase::Dialing(Dialing { step: Step::Offered(socket, process), .. }) = phase else {
            self.phase = phase;
            return Err(over());
        };
        self.open(segment, answer.ring_bytes, bell, (socket, process), events)
    }

    /// Joins an accepting channel with the peer that dialed it.
    pub(crate) fn accept(
        &mut self,
        caller: Caller,
        surroundings: &Surroundings<'_>,
    ) -> PluginResult<()> {
        let socket = caller.socket.as_fd();
        if let Err(error) = self.check_digest(caller.offer.link_digest) {
            refuse(socket, self.link_digest, &error);
            return Err(error);
        }
        let ring_bytes = surroundings.ring_bytes.min(caller.offer.ring_bytes);
        let bell = Bell::attach(caller.bell.0.as_fd(), caller.bell.1)?;
        let (segment, file) = match Segment::create(ring_bytes) {
            Ok(created) => created,
            Err(error) => {
                refuse(socket, self.link_digest, &error);
                return Err(error);
            }
        };
        let answer = Answer { refusal: None, link_digest: self.link_digest, ring_bytes };
        let [page, event] = surroundings.bell.descriptors();
        send(socket, &answer.encode(), &[file.as_fd(), page, event])?;
        surroundings.events.watch(socket, Source::Socket(self.handle))?;
        let parts = (caller.socket, caller.process);
        self.open(segment, ring_bytes, bell, parts, surroundings.events)
    }

    fn check_digest(&self, theirs: u64) -> PluginResult<()> {
        if theirs == self.link_digest {
            return Ok(());
        }
        Err(PluginError::new(
            Status::Mismatch,
            format!(
                "the plans differ: this rank has {:#018x} for the link, rank {} has {theirs:#018x}",
                self.link_digest, self.peer
            ),
        ))
    }

    fn open(
        &mut self,
        segment: Segment,
        ring_bytes: u64,
        bell: Bell,
        (socket, process): (OwnedFd, Option<OwnedFd>),
        events: &Events,
    ) -> PluginResult<()> {
        if let Some(process) = &process {
            events.watch(process.as_fd(), Source::Process(self.handle))?;
        }
        let link = Link::new(segment.split(self.dials), ring_bytes, bell, (socket, process));
        self.phase = Phase::Open(Box::new(link));
        Ok(())
    }

    /// Ends the channel: nobody touches the memory of posted messages any more, each of them is
    /// completed with `error`, and the peer is told.
    pub(crate) fn end(
        &mut self,
        error: &PluginError,
        reason: u32,
        events: &Events,
        ready: &mut VecDeque<Completion>,
    ) {
        let phase = std::mem::replace(&mut self.phase, Phase::Over(error.clone()));
        match phase {
            Phase::Open(mut link) => {
                events.forget(link.socket.as_fd());
                if let Some(process) = &link.process {
                    events.forget(process.as_fd());
                }
                link.close(reason);
            }
            Phase::Dialing(Dialing { step, .. }) => match step {
                Step::Connecting(_) => {}
                Step::Proving(connection) => events.forget(connection.as_fd()),
                Step::Offered(socket, _) => events.forget(socket.as_fd()),
            },
            Phase::Accepting => {}
            // The first reason is the one that counts.
            Phase::Over(first) => self.phase = Phase::Over(first),
        }
        for (kind, queue) in [
            (completion_kind::SEND, &mut self.queues.sends),
            (completion_kind::RECEIVE, &mut self.queues.receives),
        ] {
            for posted in queue.drain(..) {
                ready.push_back(Completion::failed(self.handle, posted.token, kind, error));
            }
        }
    }

    /// What `closed` says to the peer at an orderly end of this side.
    pub(crate) fn closing_reason(&self) -> u32 {
        if self.queues.sends.is_empty() { closed::ORDERLY } else { closed::ABORTED }
    }
}
