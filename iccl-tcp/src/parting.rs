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

/// Most bytes thrown away by one call, and most calls in one go.
const SCRATCH_BYTES: usize = 64 * 1024;
const TURNS: usize = 16;

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
        if self.has_shut_down {
            self.connections.iter().any(|connection| poller.is_readable(connection.token))
        } else {
            poller.is_writable(self.connections[0].token)
        }
    }

    /// Moves on; true when all is over and the sockets are closed.
    pub(crate) fn step(&mut self, poller: &mut Poller, now: Instant) -> bool {
        let is_broken = self.say_farewell(poller).is_err();
        if self.has_shut_down {
            self.hear_out(poller);
        }
        if is_broken || now >= self.deadline {
            self.close(poller);
        }
        self.connections.is_empty()
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

    /// Throws away what the peer still says, and closes the sockets that it has closed.
    fn hear_out(&mut self, poller: &mut Poller) {
        let mut scratch = vec![0; SCRATCH_BYTES];
        for connection in std::mem::take(&mut self.connections) {
            let is_over =
                (0..TURNS).find_map(|_| match connection.receive_bytes(&mut scratch, poller) {
                    Ok(Some(0)) | Err(_) => Some(true),
                    Ok(Some(_)) => None,
                    Ok(None) => Some(false),
                });
            if is_over == Some(true) {
                connection.close(poller);
            } else {
                self.connections.push(connection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A parting with a farewell to say, and its peer.
    fn parting(poller: &mut Poller, now: Instant) -> (Parting, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let connection = Connection::register(socket.into(), poller, Owner::Newcomer).unwrap();
        let mut sender = Sender::new();
        sender.post_end();
        (Parting::new(vec![connection], sender, poller, now), peer)
    }

    #[test]
    fn it_is_over_when_the_peer_has_closed_too_and_what_it_said_is_thrown_away() {
        let (mut poller, now) = (Poller::new().unwrap(), Instant::now());
        let (mut parting, mut peer) = parting(&mut poller, now);
        // More than the kernel holds for us.
        std::thread::scope(|scope| {
            let talk = scope.spawn(|| peer.write_all(&vec![7; 64 << 20]));
            let give_up = Instant::now() + Duration::from_secs(90);
            while !talk.is_finished() {
                assert!(!parting.step(&mut poller, now));
                if Instant::now() > give_up {
                    // Ends the thread, so that the failure is seen.
                    parting.close(&mut poller);
                }
            }
            talk.join().unwrap().unwrap();
        });
        let mut heard = Vec::new();
        // The farewell and the end come, not a reset.
        peer.read_to_end(&mut heard).unwrap();
        assert!(heard.starts_with(&u64::MAX.to_le_bytes()));
        drop(peer);
        // The clock stands still, so this is not the deadline.
        assert!((0..1000).any(|_| {
            poller.harvest(Duration::from_millis(10)).unwrap();
            parting.step(&mut poller, now)
        }));
    }

    #[test]
    fn a_peer_that_does_not_close_has_its_time() {
        let (mut poller, now) = (Poller::new().unwrap(), Instant::now());
        let (mut parting, _peer) = parting(&mut poller, now);
        assert!(!parting.step(&mut poller, now));
        assert!(!parting.step(&mut poller, now + PATIENCE / 2));
        assert!(parting.step(&mut poller, now + PATIENCE));
    }
}
