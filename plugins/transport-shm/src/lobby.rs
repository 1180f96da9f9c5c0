//! Connections that were accepted and that no channel has yet: strangers that must prove
//! themselves in time, and peers that dialed before this side opened the channel.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_wire::Claim;

use crate::address::Address;
use crate::connect::{Answer, Connection, Identity, Listener, Offer, receive, send};
use crate::domain::after;
use crate::events::{Events, Source};

/// Most connections that have not proved themselves. More wait in the kernel's queue.
const UNPROVEN_LIMIT: usize = 128;
/// How long nothing is accepted after the process ran out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A peer that has proved itself and made its offer.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) claim: Claim,
    pub(crate) offer: Offer,
    pub(crate) socket: OwnedFd,
    pub(crate) process: Option<OwnedFd>,
    /// The descriptors of its doorbell.
    pub(crate) bell: (OwnedFd, OwnedFd),
}

#[derive(Debug)]
enum Guest {
    Proving(Connection, Instant),
    Offering(Claim, OwnedFd, Option<OwnedFd>, Instant),
    Waiting(Caller),
}

impl AsFd for Guest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Proving(connection, _) => connection.as_fd(),
            Self::Offering(_, socket, ..) | Self::Waiting(Caller { socket, .. }) => socket.as_fd(),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Lobby {
    listener: Listener,
    guests: BTreeMap<u64, Guest>,
    arrivals: u64,
    /// Nothing is accepted before then.
    paused: Option<Instant>,
    /// The lobby is full of strangers.
    full: bool,
    handshake_timeout: Duration,
}

impl Lobby {
    pub(crate) fn open(
        address: &Address,
        handshake_timeout: Duration,
        events: &Events,
    ) -> PluginResult<Self> {
        let listener = Listener::bind(address)?;
        events.watch(listener.as_fd(), Source::Listener)?;
        Ok(Self {
            listener,
            guests: BTreeMap::new(),
            arrivals: 0,
            paused: None,
            full: false,
            handshake_timeout,
        })
    }

    /// Lets in who waits outside.
    pub(crate) fn accept(&mut self, identity: &Identity, events: &Events) -> PluginResult<()> {
        loop {
            if self.unproven() >= UNPROVEN_LIMIT {
                self.full = true;
                events.forget(self.listener.as_fd());
                return Ok(());
            }
            let socket = match self.listener.accept() {
                Ok(None) => return Ok(()),
                Ok(Some(socket)) => socket,
                // Peers keep their places in the kernel's queue until there are descriptors again.
                Err(error) if error.status == Status::OutOfResources => {
                    tracing::warn!(%error, "no connection can be accepted for a while");
                    self.paused = Some(Instant::now() + PAUSE);
                    events.forget(self.listener.as_fd());
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            match Connection::accepted(socket, identity) {
                Ok(connection) => {
                    self.arrivals += 1;
                    events.watch(connection.as_fd(), Source::Guest(self.arrivals))?;
                    let deadline = after(self.handshake_timeout);
                    self.guests.insert(self.arrivals, Guest::Proving(connection, deadline));
                }
                Err(error) => tracing::debug!(%error, "a connection was dropped"),
            }
        }
    }

    fn unproven(&self) -> usize {
        self.guests.values().filter(|guest| !matches!(guest, Guest::Waiting(_))).count()
    }

    /// Hears what a guest has to say. True if it is a peer that waits for its channel now.
    pub(crate) fn hear(&mut self, number: u64, events: &Events) -> PluginResult<bool> {
        let Some(guest) = self.guests.remove(&number) else { return Ok(false) };
        events.forget(guest.as_fd());
        match Self::next(guest) {
            Ok(guest) => {
                events.watch(guest.as_fd(), Source::Guest(number))?;
                let waits = matches!(guest, Guest::Waiting(_));
                self.guests.insert(number, guest);
                Ok(waits)
            }
            Err(error) => {
                tracing::debug!(%error, "a connection was dropped");
                Ok(false)
            }
        }
    }

    fn next(guest: Guest) -> PluginResult<Guest> {
        let guest = match guest {
            Guest::Proving(mut connection, deadline) => match connection.handshake()? {
                None => return Ok(Guest::Proving(connection, deadline)),
                Some(claim) => {
                    let (socket, process) = connection.into_parts();
                    Guest::Offering(claim, socket, process, deadline)
                }
            },
            guest => guest,
        };
        match guest {
            Guest::Offering(claim, socket, process, deadline) => {
                let Some((bytes, descriptors)) = receive(socket.as_fd())? else {
                    return Ok(Guest::Offering(claim, socket, process, deadline));
                };
                let offer = Offer::decode(&bytes).map_err(|error| {
                    PluginError::new(Status::TransportError, format!("the peer's offer: {error}"))
                })?;
                let [page, event] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| {
                    PluginError::new(Status::TransportError, "the peer's offer: no doorbell")
                })?;
                Ok(Guest::Waiting(Caller { claim, offer, socket, process, bell: (page, event) }))
            }
            // It should be silent until it is answered: this is its end, or an error.
            Guest::Waiting(caller) => match receive(caller.socket.as_fd())? {
                None => Ok(Guest::Waiting(caller)),
                Some(_) => Err(PluginError::new(Status::TransportError, "the peer spoke early")),
            },
            proving @ Guest::Proving(..) => Ok(proving),
        }
    }

    /// The peer that dialed this channel, if it is here. It is watched no more.
    pub(crate) fn take(&mut self, peer: u32, channel: u64, events: &Events) -> Option<Caller> {
        // The last one first: earlier ones are attempts that the peer may have given up.
        while let Some(number) =
            self.guests.keys().rev().copied().find(|at| self.wish(*at) == Some((peer, channel)))
        {
            let Some(Guest::Waiting(caller)) = self.guests.remove(&number) else { break };
            events.forget(caller.socket.as_fd());
            if let Ok(None) = receive(caller.socket.as_fd()) {
                return Some(caller);
            }
            tracing::debug!(peer, channel, "a peer had gone before its channel was opened");
        }
        None
    }

    /// The channel that a waiting guest wants: the peer and the number.
    pub(crate) fn wish(&self, number: u64) -> Option<(u32, u64)> {
        match self.guests.get(&number)? {
            Guest::Waiting(caller) => {
                Some((u32::try_from(caller.claim.dialer).ok()?, caller.claim.channel))
            }
            _ => None,
        }
    }

    /// Lets nobody in any more, even if a forked child still has the listener.
    pub(crate) fn close(&self) {
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        for guest in self.guests.values() {
            let _ = rustix::net::shutdown(guest, rustix::net::Shutdown::Both);
        }
    }

    /// Drops who took too long, and accepts again after a pause. When to come back.
    pub(crate) fn tidy(&mut self, now: Instant, events: &Events) -> PluginResult<Option<Instant>> {
        self.guests.retain(|_, guest| {
            let late = deadline(guest).is_some_and(|deadline| deadline <= now);
            if late {
                tracing::debug!("a connection was dropped: it did not prove itself in time");
                events.forget(guest.as_fd());
            }
            !late
        });
        let pause_over = self.paused.is_some_and(|until| until <= now);
        let room_again = self.full && self.unproven() < UNPROVEN_LIMIT;
        if pause_over || room_again {
            (self.paused, self.full) = (None, false);
            events.watch(self.listener.as_fd(), Source::Listener)?;
        }
        Ok(self.guests.values().filter_map(deadline).chain(self.paused).min())
    }
}

fn deadline(guest: &Guest) -> Option<Instant> {
    match guest {
        Guest::Proving(_, deadline) | Guest::Offering(.., deadline) => Some(*deadline),
        Guest::Waiting(_) => None,
    }
}

/// Tells a peer that it does not get its channel, and why. Whether it hears is its own affair.
pub(crate) fn refuse(socket: BorrowedFd<'_>, link_digest: u64, error: &PluginError) {
    let refusal = Some((error.status, error.message.clone()));
    let _ = send(socket, &Answer { refusal, link_digest, ring_bytes: 0 }.encode(), &[]);
}
