//! Channels that were closed in order: the farewell is sent, and what the peer still says is thrown
//! away until it closes as well. Closing at once would reset the connection if unread bytes were
//! left, and a reset can overtake what was sent before it.

use std::io;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use crate::framing::{IoList, Sender};
use crate::poller::{Owner, Poller};
use crate::socket::Connection;

/// How long a peer has to close its side.
const PATIENCE: Duration = Duration::from_secs(1);

/// Most bytes thrown away in one go.
const SCRATCH_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Parting {
    connections: Vec<Connection>,
    sender: Sender,
    has_shut_down: bool,
    deadline: Instant,
}

impl Parting {
    pub(crate) fn new(
        connections: Vec<Connection>,
        sender: Sender,
        poller: &mut Poller,
        now: Instant,
    ) -> Self {
        for connection in &connections {
            poller.set_owner(connection.token, Owner::Newcomer);
        }
        Self { connections, sender, has_shut_down: false, deadline: now + PATIENCE }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(crate) fn is_ready(&self, poller: &Poller) -> bool {
        self.connections.iter().any(|connection| poller.is_readable(connection.token))
            || (!self.has_shut_down && poller.is_writable(self.connections[0].token))
    }

    /// Moves on; true when all is over and the sockets are closed.
    pub(crate) fn step(&mut self, poller: &mut Poller, now: Instant) -> bool {
        let is_over = match self.say_farewell(poller).and_then(|()| self.hear_out(poller)) {
            Ok(has_closed) => has_closed && self.has_shut_down,
            Err(_) => true,
        };
        if is_over || now >= self.deadline {
            self.close(poller);
            return true;
        }
        false
    }

    pub(crate) fn close(&mut self, poller: &mut Poller) {
        for connection in self.connections.drain(..) {
            connection.close(poller);
        }
    }

    fn say_farewell(&mut self, poller: &mut Poller) -> io::Result<()> {
        if self.has_shut_down {
            return Ok(());
        }
        while self.sender.has_output(0) {
            let mut list = IoList::new();
            self.sender.gather(0, &mut list);
            // SAFETY: the only piece is the farewell's header in the sender's queue.
            let sent = unsafe { self.connections[0].send(&list, poller) }?;
            let Some(bytes) = sent else { return Ok(()) };
            self.sender.sent(0, bytes);
        }
        self.has_shut_down = true;
        for connection in &self.connections {
            connection.socket.shutdown(Shutdown::Write)?;
        }
        Ok(())
    }

    /// Whether the peer has closed all of its side.
    fn hear_out(&mut self, poller: &mut Poller) -> io::Result<bool> {
        let mut scratch = vec![0; SCRATCH_BYTES];
        let mut open = 0;
        for connection in &self.connections {
            for turn in 0.. {
                match connection.receive_bytes(&mut scratch, poller)? {
                    Some(0) => break,
                    Some(_) if turn < 16 => {}
                    Some(_) | None => {
                        open += 1;
                        break;
                    }
                }
            }
        }
        Ok(open == 0)
    }
}
