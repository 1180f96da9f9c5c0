//! The door: connections that were accepted and have not proved yet who they are.
//!
//! There are at most [`MOST`] of them. When one more comes the oldest goes; a true peer proves
//! itself in two round trips and dials again if it was crowded out. A connection is dropped at its
//! first wrong byte or when its time is over.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use iccl_wire::Claim;
use socket2::Socket;

use crate::core::{Core, Identity};
use crate::greet::greet;
use crate::greeting::{Greeting, Terms};
use crate::poller::{Owner, Poller, Token};
use crate::socket::{Connection, prepare};

/// Most connections that have not proved themselves.
const MOST: usize = 64;

/// Most connections accepted by one call of `progress`.
const ACCEPTS: usize = 64;

/// How long to wait when the process has no descriptors left.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Newcomers {
    listener: Socket,
    token: Token,
    /// Oldest first.
    waiting: VecDeque<Newcomer>,
    pause_until: Option<Instant>,
    complaints: Complaints,
}

#[derive(Debug)]
struct Newcomer {
    connection: Connection,
    from: Option<SocketAddr>,
    greeting: Greeting,
    deadline: Instant,
}

/// A connection whose peer has proved itself, and what it wants.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) connection: Connection,
    pub(crate) greeting: Greeting,
    pub(crate) claim: Claim,
    pub(crate) terms: Terms,
}

impl Newcomers {
    pub(crate) fn new(listener: Socket, token: Token) -> Self {
        let complaints = Complaints::default();
        Self { listener, token, waiting: VecDeque::new(), pause_until: None, complaints }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The last connection that was dropped, and why; for the text of a time-out.
    pub(crate) fn last_dropped(&self) -> Option<&str> {
        self.complaints.last.as_deref()
    }

    pub(crate) fn is_ready(&self, poller: &Poller) -> bool {
        (poller.is_readable(self.token) && self.pause_until.is_none())
            || self.waiting.iter().any(|newcomer| newcomer.is_ready(poller))
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let oldest = self.waiting.front().map(|newcomer| newcomer.deadline);
        oldest.into_iter().chain(self.pause_until).min()
    }

    /// Takes new connections, hears what they say, and gives those that have proved themselves.
    pub(crate) fn step(&mut self, core: &mut Core, now: Instant, arrivals: &mut Vec<Arrival>) {
        if self.pause_until.is_some_and(|until| now >= until) {
            self.pause_until = None;
        }
        if self.pause_until.is_none() && core.poller.is_readable(self.token) {
            self.accept(core, now);
        }
        let mut index = 0;
        while let Some(newcomer) = self.waiting.get_mut(index) {
            let verdict = newcomer.hear(core, now);
            if matches!(verdict, Ok(None)) {
                index += 1;
                continue;
            }
            let Some(newcomer) = self.waiting.remove(index) else { return };
            match verdict {
                Ok(Some((claim, terms))) => {
                    let Newcomer { connection, greeting, .. } = newcomer;
                    arrivals.push(Arrival { connection, greeting, claim, terms });
                }
                Ok(None) => {}
                Err(reason) => self.drop_newcomer(newcomer, &reason, core, now),
            }
        }
    }

    /// Logs why a connection was dropped that did prove itself.
    pub(crate) fn complain(&mut self, from: Option<SocketAddr>, reason: &str, now: Instant) {
        self.complaints.note(from, reason, now);
    }

    fn accept(&mut self, core: &mut Core, now: Instant) {
        for _ in 0..ACCEPTS {
            let (socket, from) = match self.listener.accept() {
                Ok((socket, from)) => (socket, from.as_socket()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    core.poller.is_drained(self.token);
                    return;
                }
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::EINTR)) =>
                {
                    continue;
                }
                Err(error) => {
                    self.complaints.note(None, &format!("accept: {error}"), now);
                    self.pause_until = Some(now + OUT_OF_DESCRIPTORS);
                    return;
                }
            };
            let is_same_host = from.is_some_and(|from| core.identity.is_same_host(from));
            // It fails for a connection that is already broken, which is its peer's affair.
            let ready = prepare(&socket, is_same_host, &core.identity.settings);
            let registered = ready
                .and_then(|()| Connection::register(socket, &mut core.poller, Owner::Newcomer));
            let connection = match registered {
                Ok(connection) => connection,
                Err(error) => {
                    self.complaints.note(from, &error.to_string(), now);
                    continue;
                }
            };
            if self.waiting.len() == MOST
                && let Some(oldest) = self.waiting.pop_front()
            {
                let reason = "others came, and it had not proved itself yet";
                self.drop_newcomer(oldest, reason, core, now);
            }
            let Identity { key, communicator, rank, handshake_timeout, .. } = &core.identity;
            let greeting = Greeting::accept(key, *communicator, *rank);
            let deadline = now + *handshake_timeout;
            self.waiting.push_back(Newcomer { connection, from, greeting, deadline });
        }
    }

    fn drop_newcomer(&mut self, newcomer: Newcomer, reason: &str, core: &mut Core, now: Instant) {
        self.complaints.note(newcomer.from, reason, now);
        newcomer.connection.close(&mut core.poller);
    }
}

impl Newcomer {
    fn is_ready(&self, poller: &Poller) -> bool {
        poller.is_readable(self.connection.token)
            || (!self.greeting.output().is_empty() && poller.is_writable(self.connection.token))
    }

    /// Who it is, once it is proven; or why it is to be dropped.
    fn hear(&mut self, core: &mut Core, now: Instant) -> Result<Option<(Claim, Terms)>, String> {
        if self.is_ready(&core.poller) {
            greet(&mut self.greeting, &self.connection, &mut core.poller)
                .map_err(|rejection| rejection.to_string())?;
        }
        if let Some((claim, terms)) = self.greeting.peer() {
            let is_rank = u32::try_from(claim.dialer).is_ok_and(|rank| rank < core.identity.ranks);
            if !is_rank {
                return Err(format!("it says that it is rank {}", claim.dialer));
            }
            return Ok(Some((claim, terms)));
        }
        if now >= self.deadline {
            return Err(format!(
                "it did not prove itself within {:?}",
                core.identity.handshake_timeout
            ));
        }
        Ok(None)
    }
}

/// One log line for many strangers.
#[derive(Debug, Default)]
struct Complaints {
    logged: Option<Instant>,
    unlogged: u64,
    last: Option<String>,
}

/// Shortest time between two log lines about dropped connections.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

impl Complaints {
    fn note(&mut self, from: Option<SocketAddr>, reason: &str, now: Instant) {
        let from = from.map_or_else(|| "an unknown address".to_owned(), |from| from.to_string());
        self.last = Some(format!("{from}: {reason}"));
        if self.logged.is_some_and(|logged| now < logged + BETWEEN_LINES) {
            self.unlogged += 1;
            return;
        }
        self.logged = Some(now);
        let others = std::mem::take(&mut self.unlogged);
        tracing::warn!("dropped a connection from {from}: {reason} ({others} others not shown)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b040_many_strangers_make_one_line() {
        let (start, mut complaints) = (Instant::now(), Complaints::default());
        complaints.note(None, "first", start);
        for _ in 0..100 {
            complaints.note(None, "later", start + Duration::from_secs(1));
        }
        assert_eq!((complaints.logged, complaints.unlogged), (Some(start), 100));
        complaints.note(None, "much later", start + BETWEEN_LINES);
        assert_eq!(complaints.unlogged, 0);
        assert_eq!(complaints.last.as_deref(), Some("an unknown address: much later"));
    }
}
