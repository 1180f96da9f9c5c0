//! Whether ranks that have not come are still there. Every rank of a job listens as long as it lives,
//! so a connection to it that is refused means that it is gone; one that stands and is not answered
//! means nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv, sockopt::socket_error};

use super::net::{Endpoint, start_connect};

/// How long to wait for a rank before it is looked for.
const FIRST_AFTER: Duration = Duration::from_millis(300);
/// How long to leave a rank alone whose connection has ended.
const PAUSE: Duration = Duration::from_millis(500);
/// The same, where it may have closed but that one connection.
const SHORT_PAUSE: Duration = Duration::from_millis(20);
/// Connections at once.
const LIMIT: usize = 64;

/// One connection to each rank that is looked for.
#[derive(Debug)]
pub(super) struct Probes {
    probes: BTreeMap<u32, Probe>,
}

#[derive(Debug)]
struct Probe {
    address: SocketAddr,
    next: Instant,
    connection: Option<Connection>,
    /// Why the last attempt to connect failed, if that says nothing of the rank.
    failure: Option<Errno>,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    is_connecting: bool,
}

impl Probes {
    /// Probes of these ranks, a moment from now.
    pub(super) fn new(ranks: impl IntoIterator<Item = (u32, SocketAddr)>) -> Self {
        let next = Instant::now() + FIRST_AFTER;
        let probe = |address| Probe { address, next, connection: None, failure: None };
        Self { probes: ranks.into_iter().map(|(rank, address)| (rank, probe(address))).collect() }
    }

    /// The rank has come, or need not come any more.
    pub(super) fn forget(&mut self, rank: u32) {
        self.probes.remove(&rank);
    }

    pub(super) fn forget_all(&mut self) {
        self.probes.clear();
    }

    /// Opens the connections that are due. Returns a rank that is gone.
    pub(super) fn begin(&mut self, now: Instant) -> Option<u32> {
        for (rank, probe) in self.probes.iter_mut().take(LIMIT) {
            if probe.connection.is_some() || now < probe.next {
                continue;
            }
            match start_connect(&Endpoint::Tcp(probe.address)) {
                Ok(socket) => {
                    probe.connection = Some(Connection { socket, is_connecting: true });
                }
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                    return Some(*rank);
                }
                // Says something of this host or of the network, nothing of the rank.
                Err(error) => {
                    probe.next = now + PAUSE;
                    probe.failure = Errno::from_io_error(&error);
                }
            }
        }
        None
    }

    /// The rank that listened at `address`, where another listens now: it is gone, and its port was free.
    pub(super) fn replaced_at(&self, address: SocketAddr) -> Option<u32> {
        self.probes.iter().find(|(_, probe)| probe.address == address).map(|(rank, _)| *rank)
    }

    /// What is known of a rank that has not come.
    pub(super) fn describe(&self, rank: u32) -> Option<String> {
        let Probe { address, connection, failure, .. } = self.probes.get(&rank)?;
        match (connection, failure) {
            (Some(Connection { is_connecting: false, .. }), _) => {
                Some(format!("rank {rank} listens at {address} and does not come"))
            }
            (_, Some(errno)) => {
                Some(format!("rank {rank} cannot be reached at {address}: {errno}"))
            }
            _ => Some(format!("no answer from rank {rank} at {address}")),
        }
    }

    /// When the next connection is due.
    pub(super) fn next(&self) -> Option<Instant> {
        let waiting = self.probes.values().take(LIMIT).filter(|probe| probe.connection.is_none());
        waiting.map(|probe| probe.next).min()
    }

    /// The connections, to be polled.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>, PollFlags)> {
        self.probes.iter().filter_map(|(rank, probe)| {
            let connection = probe.connection.as_ref()?;
            let interest = if connection.is_connecting { PollFlags::OUT } else { PollFlags::IN };
            Some((*rank, connection.socket.as_fd(), interest))
        })
    }

    /// The connection to `rank` is ready. Says whether the rank is gone.
    pub(super) fn is_gone(&mut self, rank: u32) -> bool {
        let Some(probe) = self.probes.get_mut(&rank) else { return false };
        let Some(connection) = &mut probe.connection else { return false };
        let ended = if connection.is_connecting {
            match socket_error(&connection.socket) {
                // Where nobody listens, a connection may reach its own other end.
                Ok(Ok(())) if is_own_end(&connection.socket) => Errno::CONNREFUSED,
                Ok(Ok(())) => {
                    connection.is_connecting = false;
                    probe.failure = None;
                    return false;
                }
                Ok(Err(errno)) | Err(errno) => errno,
            }
        } else {
            match recv(&connection.socket, &mut [0; 1], RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN | Errno::INTR) => return false,
                // Perhaps only this one was closed; another connection will tell.
                Ok(_) => Errno::CONNRESET,
                Err(errno) => errno,
            }
        };
        probe.connection = None;
        probe.failure = Some(ended);
        let pause = if ended == Errno::CONNRESET { SHORT_PAUSE } else { PAUSE };
        probe.next = Instant::now() + pause;
        ended == Errno::CONNREFUSED
    }
}

fn is_own_end(socket: &OwnedFd) -> bool {
    let socket = socket2::SockRef::from(socket);
    match (socket.local_addr(), socket.peer_addr()) {
        (Ok(own), Ok(peer)) => own.as_socket() == peer.as_socket(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::net::wait_for;
    use super::*;

    /// Drives probes until one says that its rank is gone, at most this long.
    fn gone_within(probes: &mut Probes, limit: Duration) -> Option<u32> {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            if let Some(gone) = probes.begin(Instant::now()) {
                return Some(gone);
            }
            let sockets: Vec<_> = probes.sockets().collect();
            for rank in wait_for(&sockets, Duration::from_millis(5)).expect("a wait") {
                if probes.is_gone(rank) {
                    return Some(rank);
                }
            }
        }
        None
    }

    #[test]
    fn a_connection_to_itself_is_none() {
        let socket = |address: SocketAddr| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
                .expect("a socket");
            socket.bind(&address.into()).expect("bound");
            socket
        };
        let own = socket("127.0.0.1:0".parse().expect("an address"));
        let address = own.local_addr().expect("an address");
        own.connect(&address).expect("TCP lets a socket connect to itself");
        assert!(is_own_end(&own.into()));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let other = socket("127.0.0.1:0".parse().expect("an address"));
        other.connect(&listener.local_addr().expect("an address").into()).expect("connected");
        assert!(!is_own_end(&other.into()));
    }

    #[test]
    fn who_listens_is_there_and_who_stops_is_gone() {
        let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a listener"));
        let address = |index: usize| listeners[index].local_addr().expect("an address");
        let mut probes = Probes::new([(4, address(0)), (7, address(1))]);
        assert_eq!(gone_within(&mut probes, Duration::from_millis(900)), None);
        assert_eq!(probes.sockets().count(), 2, "one connection each, and no more");
        let told = probes.describe(4).expect("words");
        assert_eq!(told, format!("rank 4 listens at {} and does not come", address(0)));
        assert_eq!(probes.describe(5), None);
        assert_eq!(probes.replaced_at(address(1)), Some(7));
        assert_eq!(probes.replaced_at("127.0.0.1:1".parse().expect("an address")), None);
        let [first, second] = listeners;
        // What is in its queue is closed with it.
        drop(second);
        assert_eq!(gone_within(&mut probes, Duration::from_secs(20)), Some(7));
        probes.forget(7);
        drop(first);
        assert_eq!(gone_within(&mut probes, Duration::from_secs(20)), Some(4));
    }
}
