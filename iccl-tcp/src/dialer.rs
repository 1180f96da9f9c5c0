//! Opens one socket to a peer, and tries again while trying makes sense.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_wire::Claim;

use crate::address::source_for;
use crate::core::{Core, Identity};
use crate::greet::{Rejection, greet};
use crate::greeting::{Greeting, Terms};
use crate::poller::{Owner, Poller};
use crate::socket::{Connection, connect, is_transient};

const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct Dialer {
    addresses: Vec<SocketAddr>,
    claim: Claim,
    terms: Terms,
    stage: Stage,
    attempts: u32,
    pause: Duration,
    deadline: Instant,
    /// The last failure and its number.
    last: (String, i64),
}

#[derive(Debug)]
enum Stage {
    Pausing(Instant),
    Connecting(Connection),
    Greeting(Connection, Box<Greeting>),
    Over,
}

impl Dialer {
    /// `addresses` is not empty.
    pub(crate) fn new(
        addresses: Vec<SocketAddr>,
        claim: Claim,
        terms: Terms,
        now: Instant,
        timeout: Duration,
    ) -> Self {
        Self {
            addresses,
            claim,
            terms,
            stage: Stage::Pausing(now),
            attempts: 0,
            pause: SHORTEST_PAUSE,
            deadline: now + timeout,
            last: ("nothing was tried".to_owned(), 0),
        }
    }

    /// When `step` is to be called at the latest.
    pub(crate) fn next_deadline(&self) -> Instant {
        match self.stage {
            Stage::Pausing(until) => until.min(self.deadline),
            _ => self.deadline,
        }
    }

    pub(crate) fn is_ready(&self, poller: &Poller) -> bool {
        match &self.stage {
            Stage::Pausing(_) | Stage::Over => false,
            Stage::Connecting(connection) => poller.is_writable(connection.token),
            Stage::Greeting(connection, greeting) => {
                (greeting.wanted_bytes() > 0 && poller.is_readable(connection.token))
                    || (!greeting.output().is_empty() && poller.is_writable(connection.token))
            }
        }
    }

    /// Moves on. Gives the connection when the peer has proved itself and agrees.
    ///
    /// # Errors
    /// Why there will be no connection.
    pub(crate) fn step(
        &mut self,
        core: &mut Core,
        now: Instant,
    ) -> PluginResult<Option<Connection>> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Over => return Ok(None),
                stage if now >= self.deadline => {
                    self.stage = stage;
                    self.hang_up(&mut core.poller);
                    return Err(self.timed_out(&core.identity));
                }
                Stage::Pausing(until) if now < until => {
                    self.stage = Stage::Pausing(until);
                    return Ok(None);
                }
                Stage::Pausing(_) => self.connect(core, now)?,
                Stage::Connecting(connection) => {
                    if !core.poller.is_writable(connection.token) {
                        self.stage = Stage::Connecting(connection);
                        return Ok(None);
                    }
                    self.connected(connection, core, now)?;
                }
                Stage::Greeting(connection, greeting) => {
                    return self.greet(connection, greeting, core, now);
                }
            }
        }
    }

    /// Closes what is open.
    pub(crate) fn hang_up(&mut self, poller: &mut Poller) {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Connecting(connection) | Stage::Greeting(connection, _) => {
                connection.close(poller);
            }
            Stage::Pausing(_) | Stage::Over => {}
        }
    }

    fn address(&self) -> SocketAddr {
        let index = self.attempts.saturating_sub(1) as usize % self.addresses.len();
        self.addresses[index]
    }

    fn connect(&mut self, core: &mut Core, now: Instant) -> PluginResult<()> {
        self.attempts += 1;
        let address = self.address();
        let source = source_for(core.identity.here, address);
        let is_same_host = core.identity.is_same_host(address);
        let connection = connect(source, address, is_same_host, &core.identity.settings)
            .and_then(|socket| Connection::register(socket, &mut core.poller, Owner::Newcomer));
        match connection {
            Ok(connection) => {
                self.last = ("no answer".to_owned(), 0);
                self.stage = Stage::Connecting(connection);
            }
            Err(error) => self.try_again(&error, core, now)?,
        }
        Ok(())
    }

    fn connected(
        &mut self,
        connection: Connection,
        core: &mut Core,
        now: Instant,
    ) -> PluginResult<()> {
        let failure = match connection.socket.take_error() {
            Ok(None) => {
                // A port of ours may have been given to this very socket: then it is connected to
                // itself, and nobody listens there.
                let is_own_end =
                    match (connection.socket.local_addr(), connection.socket.peer_addr()) {
                        (Ok(local), Ok(peer)) => local.as_socket() == peer.as_socket(),
                        _ => false,
                    };
                is_own_end.then(|| io::Error::from_raw_os_error(libc::ECONNREFUSED))
            }
            Ok(Some(error)) | Err(error) => Some(error),
        };
        if let Some(error) = failure {
            connection.close(&mut core.poller);
            return self.try_again(&error, core, now);
        }
        let Identity { key, communicator, .. } = &core.identity;
        let greeting = Greeting::dial(key, *communicator, self.claim, self.terms);
        let greeting = greeting.map_err(|error| {
            PluginError::system(Status::TransportError, "the kernel's random numbers", &error)
        })?;
        self.last = ("connected, but the peer has not opened the channel".to_owned(), 0);
        self.stage = Stage::Greeting(connection, Box::new(greeting));
        Ok(())
    }

    fn greet(
        &mut self,
        connection: Connection,
        mut greeting: Box<Greeting>,
        core: &mut Core,
        now: Instant,
    ) -> PluginResult<Option<Connection>> {
        let rejection = match greet(&mut greeting, &connection, &mut core.poller) {
            Ok(()) => {
                let Some((_, theirs)) = greeting.peer() else {
                    self.stage = Stage::Greeting(connection, greeting);
                    return Ok(None);
                };
                return match self.check(theirs) {
                    Ok(()) => Ok(Some(connection)),
                    Err(error) => {
                        connection.close(&mut core.poller);
                        Err(error)
                    }
                };
            }
            Err(rejection) => rejection,
        };
        connection.close(&mut core.poller);
        let error = match rejection {
            Rejection::Greeting(error) => return Err(error.into_plugin_error(&self.who())),
            // The peer may have been crowded out by strangers at the peer's door.
            Rejection::Closed => io::Error::from_raw_os_error(libc::ECONNRESET),
            Rejection::System(error) => error,
        };
        self.try_again(&error, core, now)?;
        Ok(None)
    }

    fn check(&self, theirs: Terms) -> PluginResult<()> {
        let ours = self.terms;
        if ours.link_digest != theirs.link_digest {
            return Err(digests_differ(&self.who(), ours.link_digest, theirs.link_digest));
        }
        if ours != theirs {
            let text = format!("{}: it answered {theirs:?} to {ours:?}", self.who());
            return Err(PluginError::new(Status::Mismatch, text));
        }
        Ok(())
    }

    fn try_again(&mut self, error: &io::Error, core: &mut Core, now: Instant) -> PluginResult<()> {
        self.last = (error.to_string(), i64::from(error.raw_os_error().unwrap_or(0)));
        if !is_transient(error) {
            let tried = self.tried(&core.identity);
            return Err(PluginError::system(Status::TransportError, tried, error));
        }
        self.stage = Stage::Pausing(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    fn who(&self) -> String {
        format!("rank {} at {}", self.claim.acceptor, self.address())
    }

    fn tried(&self, identity: &Identity) -> String {
        let from = identity.here.ip();
        format!("connecting to {} from {from}, attempt {}", self.who(), self.attempts)
    }

    fn timed_out(&self, identity: &Identity) -> PluginError {
        let (last, number) = &self.last;
        let within = identity.connect_timeout;
        let text =
            format!("{}: no channel within {within:?}, last error: {last}", self.tried(identity));
        PluginError::new(Status::Timeout, text).with_vendor_code(*number)
    }
}

/// The two ends of a link were planned differently.
pub(crate) fn digests_differ(who: &str, ours: u64, theirs: u64) -> PluginError {
    PluginError::new(
        Status::Mismatch,
        format!("{who}: the link's digests differ, ours is {ours:016x}, theirs {theirs:016x}"),
    )
}
