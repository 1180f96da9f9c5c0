//! One TCP socket: its options, and vectored reads and writes on lent memory.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::PluginError;
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use crate::framing::IoList;
use crate::poller::{Owner, Poller, Token};
use crate::settings::{Congestion, TcpSettings};

/// Connections that the kernel holds for us until we accept them. It cuts this to its own limit.
const BACKLOG: i32 = 4096;

/// A socket that is registered with the poller.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: Socket,
    pub(crate) token: Token,
}

impl Connection {
    pub(crate) fn register(socket: Socket, poller: &mut Poller, owner: Owner) -> io::Result<Self> {
        let token = poller.add(socket.as_fd(), owner)?;
        Ok(Self { socket, token })
    }

    /// Forgets and closes the socket.
    pub(crate) fn close(self, poller: &mut Poller) {
        poller.remove(self.token, self.socket.as_fd());
    }

    /// Sends what it can of `list`. `None`: nothing now, and the poller will tell when.
    ///
    /// # Safety
    /// The pieces are readable and unchanged during the call.
    ///
    /// # Errors
    /// What the operating system says.
    pub(crate) unsafe fn send(
        &self,
        list: &IoList,
        poller: &mut Poller,
    ) -> io::Result<Option<u64>> {
        let pieces = list.pieces();
        // SAFETY: all-zero is a valid `msghdr`: null pointers and zero lengths.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.as_ptr().cast_mut();
        message.msg_iovlen = pieces.len() as _;
        let sent = retry(|| {
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            // SAFETY: header and pieces live through the call, and the kernel only reads what the
            // pieces point to, which the caller vouches for.
            unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, flags) }
        })?;
        if sent.is_none_or(|sent| sent < list.bytes()) {
            poller.is_full(self.token);
        }
        Ok(sent)
    }

    /// Reads into `list`. `None`: nothing now, and the poller will tell when. Zero: the end.
    ///
    /// # Safety
    /// The pieces are writable and nobody else uses them during the call.
    ///
    /// # Errors
    /// What the operating system says.
    pub(crate) unsafe fn receive(
        &self,
        list: &IoList,
        poller: &mut Poller,
    ) -> io::Result<Option<u64>> {
        let pieces = list.pieces();
        let descriptor = self.socket.as_raw_fd();
        let received = retry(|| match pieces {
            // SAFETY: the piece is writable, which the caller vouches for.
            [piece] => unsafe {
                libc::recv(descriptor, piece.iov_base, piece.iov_len, libc::MSG_DONTWAIT)
            },
            // SAFETY: as above, for each piece. The socket is in non-blocking mode.
            _ => unsafe { libc::readv(descriptor, pieces.as_ptr(), pieces.len() as _) },
        })?;
        if received.is_none_or(|received| received < list.bytes()) {
            poller.is_drained(self.token);
        }
        Ok(received)
    }

    /// Sends from a slice; as `send`.
    pub(crate) fn send_bytes(&self, bytes: &[u8], poller: &mut Poller) -> io::Result<Option<u64>> {
        let mut list = IoList::new();
        list.push(bytes.as_ptr().cast_mut(), bytes.len());
        // SAFETY: the only piece is a borrowed slice.
        unsafe { self.send(&list, poller) }
    }

    /// Reads into a slice; as `receive`.
    pub(crate) fn receive_bytes(
        &self,
        bytes: &mut [u8],
        poller: &mut Poller,
    ) -> io::Result<Option<u64>> {
        let mut list = IoList::new();
        list.push(bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the only piece is a slice that is borrowed mutably.
        unsafe { self.receive(&list, poller) }
    }
}

/// Repeats a call that a signal interrupted; `None` if it would block.
fn retry(mut call: impl FnMut() -> isize) -> io::Result<Option<u64>> {
    loop {
        let result = call();
        if let Ok(bytes) = u64::try_from(result) {
            return Ok(Some(bytes));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(None),
            _ => return Err(error),
        }
    }
}

/// A socket that listens on `address`, in non-blocking mode.
pub(crate) fn listen(address: SocketAddr, settings: &TcpSettings) -> io::Result<Socket> {
    let socket = new_socket(address)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    set_buffers(&socket, settings)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// A socket that begins to connect from `source` to `peer`.
pub(crate) fn connect(
    source: Option<SocketAddr>,
    peer: SocketAddr,
    is_same_host: bool,
    settings: &TcpSettings,
) -> io::Result<Socket> {
    let socket = new_socket(peer)?;
    prepare(&socket, is_same_host, settings)?;
    if let Some(mut source) = source {
        source.set_port(0);
        socket.bind(&SockAddr::from(source))?;
    }
    match socket.connect(&SockAddr::from(peer)) {
        Ok(()) => Ok(socket),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
        // A signal does not undo a connect that has begun.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(socket),
        Err(error) => Err(error),
    }
}

fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    // `Socket::new` sets close-on-exec.
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    Ok(socket)
}

/// Sets what a data connection needs.
pub(crate) fn prepare(
    socket: &Socket,
    is_same_host: bool,
    settings: &TcpSettings,
) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    set_buffers(socket, settings)?;
    if !settings.keepalive.is_zero() {
        let idle = settings.keepalive.max(Duration::from_secs(1));
        let interval = (idle / 5).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(5);
        socket.set_tcp_keepalive(&keepalive)?;
    }
    if !settings.user_timeout.is_zero() {
        socket.set_tcp_user_timeout(Some(settings.user_timeout))?;
    }
    match &settings.congestion {
        Congestion::System => Ok(()),
        Congestion::Named(name) => socket.set_tcp_congestion(name.as_bytes()),
        Congestion::Auto => {
            if is_same_host {
                // Where there is no cubic, the system's choice is as good.
                let _ = socket.set_tcp_congestion(b"cubic");
            }
            Ok(())
        }
    }
}

fn set_buffers(socket: &Socket, settings: &TcpSettings) -> io::Result<()> {
    // Setting a size would switch the kernel's tuning off.
    if settings.send_buffer > 0 {
        socket.set_send_buffer_size(settings.send_buffer)?;
    }
    if settings.receive_buffer > 0 {
        socket.set_recv_buffer_size(settings.receive_buffer)?;
    }
    Ok(())
}

/// What the kernel knows about whether the peer is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vitals {
    /// Bytes are held back because the peer has no room, and nothing is on the way.
    pub(crate) is_window_closed: bool,
    /// Probes of the closed window that the peer has not answered.
    pub(crate) unanswered_probes: u8,
}

pub(crate) fn vitals(socket: &Socket) -> io::Result<Vitals> {
    // SAFETY: all-zero is a valid `tcp_info`: integers only.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut queued: libc::c_int = 0;
    // SAFETY: the request writes one integer.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut queued) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Vitals {
        is_window_closed: queued > 0 && info.tcpi_unacked == 0,
        unanswered_probes: info.tcpi_probes,
    })
}

/// What a connection's failure means. `who` names the peer.
pub(crate) fn failure(who: &str, error: &io::Error) -> PluginError {
    let status = match error.raw_os_error() {
        Some(
            libc::EPIPE
            | libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::ETIMEDOUT
            | libc::EHOSTUNREACH
            | libc::EHOSTDOWN
            | libc::ENETUNREACH
            | libc::ENETDOWN
            | libc::ENETRESET,
        ) => Status::PeerLost,
        Some(libc::ENOBUFS | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => Status::OutOfResources,
        _ => Status::TransportError,
    };
    PluginError::system(status, who, error)
}

/// Whether a connect that failed so may succeed later.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::ECONNRESET
                | libc::ECONNABORTED
                | libc::ETIMEDOUT
                | libc::EHOSTUNREACH
                | libc::EHOSTDOWN
                | libc::ENETUNREACH
                | libc::ENETDOWN
                | libc::EPIPE
                | libc::EAGAIN
                | libc::EADDRNOTAVAIL
                | libc::EADDRINUSE
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use iccl_plugin_api::sdk::Settings;

    #[test]
    fn options_are_set_as_the_settings_say() {
        let settings = Settings::new(vec![
            ("congestion", "reno"),
            ("send_buffer", "20000"),
            ("receive_buffer", "30000"),
            ("user_timeout", "7000000"),
            ("keepalive", "5000000"),
        ]);
        let settings = TcpSettings::from(&settings).unwrap();
        let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listener = listen(address, &settings).unwrap();
        let peer = listener.local_addr().unwrap().as_socket().unwrap();
        let socket = connect(Some(address), peer, true, &settings).unwrap();
        assert!(socket.tcp_nodelay().unwrap());
        assert!(socket.nonblocking().unwrap());
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(5));
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(7)));
        assert!(socket.tcp_congestion().unwrap().starts_with(b"reno"));
        // The kernel doubles what it is asked for.
        assert_eq!(socket.send_buffer_size().unwrap(), 40000);
        assert_eq!(socket.recv_buffer_size().unwrap(), 60000);
        let flags = rustix::io::fcntl_getfd(&socket).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let unknown = Settings::new(vec![("congestion", "no-such-thing")]);
        let unknown = TcpSettings::from(&unknown).unwrap();
        assert!(connect(None, peer, true, &unknown).is_err());
    }
}
