//! Sockets of the bootstrap: non-blocking, closed on exec, polled (so that descriptor numbers above
//! 1023 are fine), never used without a deadline.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, socket_with,
};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use super::fork::{CloseInChild, Owner};

/// Enough for a burst of ranks; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Unacknowledged data for this long means that the host behind the connection is gone.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Where a socket listens or connects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Endpoint {
    Tcp(SocketAddr),
    /// A name in the abstract namespace of Unix sockets: gone with its owner, nothing on disk.
    Local(String),
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Local(name) => write!(f, "local socket {name}"),
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    /// Before the socket, so that it is dropped first.
    _close_in_child: CloseInChild,
    /// `None` only while it is dropped.
    socket: Option<OwnedFd>,
    endpoint: Endpoint,
    owner: Owner,
}

impl Listener {
    fn new(socket: OwnedFd, endpoint: Endpoint) -> Self {
        Self {
            _close_in_child: CloseInChild::new(&socket),
            socket: Some(socket),
            endpoint,
            owner: Owner::current(),
        }
    }

    pub(super) fn bind(endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Tcp(address) => {
                let socket = Socket::new(
                    Domain::for_address(*address),
                    Type::STREAM.nonblocking(),
                    Some(Protocol::TCP),
                )?;
                // A job restarted on the same port must not wait for the old one's TIME_WAIT.
                socket.set_reuse_address(true)?;
                if address.is_ipv6() {
                    socket.set_only_v6(true)?;
                }
                socket.bind(&(*address).into())?;
                socket.listen(BACKLOG)?;
                let bound = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
                Ok(Self::new(socket.into(), Endpoint::Tcp(bound)))
            }
            Endpoint::Local(name) => {
                let socket = unix_socket()?;
                rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
                rustix::net::listen(&socket, BACKLOG)?;
                Ok(Self::new(socket, endpoint.clone()))
            }
        }
    }

    /// Where it listens, with the port that the kernel chose.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The next connection and a description of its other end; `None` when there is none.
    pub(super) fn accept(&self) -> io::Result<Option<(OwnedFd, String)>> {
        loop {
            match accept_with(self.as_fd(), SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    let peer = match &self.endpoint {
                        Endpoint::Tcp(_) => {
                            let peer = socket2::SockRef::from(&socket).peer_addr();
                            let peer = peer.ok().and_then(|peer| peer.as_socket());
                            peer.map_or_else(|| "a closed connection".into(), |p| p.to_string())
                        }
                        Endpoint::Local(_) => "a local process".into(),
                    };
                    if let Endpoint::Tcp(address) = &self.endpoint {
                        tune(&socket, address.ip())?;
                    }
                    return Ok(Some((socket, peer)));
                }
                // The peer gave up between the kernel's queue and here.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let socket = self.socket.as_ref();
        socket.unwrap_or_else(|| unreachable!("taken only when dropped")).as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A forked child has closed its copy, and the number may mean something else there.
        if !self.owner.is_current() {
            std::mem::forget(self.socket.take());
        }
    }
}

/// Starts to connect a new socket. The connection stands, or has failed, when it can be written.
pub(super) fn start_connect(endpoint: &Endpoint) -> io::Result<OwnedFd> {
    match endpoint {
        Endpoint::Tcp(address) => {
            let domain = Domain::for_address(*address);
            let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
            match socket.connect(&(*address).into()) {
                Ok(()) => {}
                Err(error)
                    if error.raw_os_error() == Some(libc::EINPROGRESS)
                        || error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            let socket = OwnedFd::from(socket);
            tune(&socket, address.ip())?;
            Ok(socket)
        }
        Endpoint::Local(name) => {
            let socket = unix_socket()?;
            rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
            Ok(socket)
        }
    }
}

fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Small messages leave at once, and a host that vanishes is noticed.
fn tune(socket: &OwnedFd, address: IpAddr) -> io::Result<()> {
    let socket = socket2::SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    if !address.is_loopback() {
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(10))
            .with_interval(Duration::from_secs(5))
            .with_retries(4);
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    }
    Ok(())
}

/// This end's IP address.
pub(super) fn local_ip(socket: &OwnedFd) -> io::Result<IpAddr> {
    let address = socket2::SockRef::from(socket).local_addr()?;
    address.as_socket().map(|address| address.ip()).ok_or(io::ErrorKind::Unsupported.into())
}

/// Whether the process at the other end of a Unix socket belongs to the same user.
pub(super) fn is_same_user(socket: &OwnedFd) -> bool {
    rustix::net::sockopt::socket_peercred(socket)
        .is_ok_and(|credentials| credentials.uid == rustix::process::geteuid())
}

/// Wakes a poll loop from another thread.
#[derive(Debug)]
pub(super) struct Waker(OwnedFd);

impl Waker {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(super) fn wake(&self) {
        // Fails only when the counter is full, and then the loop is awake anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits for one of `fds` at most `timeout` and returns the names of those that are ready. A signal
/// ends the wait early, with none.
pub(super) fn wait_for<Name: Copy>(
    fds: &[(Name, BorrowedFd<'_>, PollFlags)],
    timeout: Duration,
) -> io::Result<Vec<Name>> {
    let mut poll_fds: Vec<PollFd<'_>> =
        fds.iter().map(|(_, fd, interest)| PollFd::from_borrowed_fd(*fd, *interest)).collect();
    let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
    match poll(&mut poll_fds, Some(&timeout)) {
        Ok(_) => {
            let ready = fds.iter().zip(&poll_fds).filter(|(_, fd)| !fd.revents().is_empty());
            Ok(ready.map(|((name, _, _), _)| *name).collect())
        }
        Err(Errno::INTR) => Ok(Vec::new()),
        Err(errno) => Err(errno.into()),
    }
}
