//! The Unix socket of a channel: how two processes find each other, prove that they belong to the
//! same job, and pass each other the descriptors of the shared memory.
//!
//! ```text
//! dialer                                       acceptor
//!   connect to the abstract name          ──▶    accept; same user? else closed unread
//!   handshake of iccl-wire               ◀──▶    (nothing else is parsed before it is complete)
//!   Offer + its doorbell                  ──▶    kept until `channel_open` asks for it
//!                                        ◀──     Answer + segment + its doorbell, or a refusal
//! ```
//!
//! Afterwards the socket carries nothing. It stays open because its end tells that the peer is gone.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_wire::{Claim, Context, FieldError, Handshake, HandshakeError, Key, Reader, Writer};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags};

use crate::address::Address;

const PURPOSE: &str = "shm-channel/1";
const MESSAGE_LIMIT_BYTES: usize = 512;
const REASON_LIMIT_BYTES: usize = 256;
/// Most descriptors in one message: segment, doorbell page, doorbell event.
const DESCRIPTORS: usize = 3;

/// Who this domain is to its peers.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) key: Key,
    pub(crate) communicator: u64,
    pub(crate) rank: u32,
}

fn system(what: impl std::fmt::Display, errno: Errno) -> PluginError {
    let status = match errno {
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS => Status::OutOfResources,
        Errno::ACCESS | Errno::PERM => Status::PermissionDenied,
        _ => Status::TransportError,
    };
    PluginError::system(status, what, &errno.into())
}

fn new_socket() -> PluginResult<OwnedFd> {
    // Packets, so that descriptors arrive with the message that they belong to.
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|errno| system("unix socket", errno))
}

/// The socket under which a domain is found.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
}

impl Listener {
    pub(crate) fn bind(address: &Address) -> PluginResult<Self> {
        let socket = new_socket()?;
        rustix::net::bind(&socket, &address.socket_address()?)
            .and_then(|()| rustix::net::listen(&socket, 4096))
            .map_err(|errno| system("listening on an abstract unix socket", errno))?;
        Ok(Self { socket })
    }

    /// The next connection, if one waits.
    pub(crate) fn accept(&self) -> PluginResult<Option<OwnedFd>> {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.socket, flags) {
                Ok(socket) => return Ok(Some(socket)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(system("accept", errno)),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// How an attempt to connect ended.
pub(crate) enum Dialed {
    /// Connected; the handshake can begin.
    Connected(Connection),
    /// The peer has more connections than it can take up just now.
    Busy,
}

/// A connection on which the two sides prove themselves to each other.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    handshake: Box<Handshake>,
    /// The peer's process, if this process can see it.
    process: Option<Pid>,
}

impl Connection {
    /// Connects to a domain's listener.
    pub(crate) fn dial(
        address: &Address,
        identity: &Identity,
        claim: Claim,
    ) -> PluginResult<Dialed> {
        let socket = new_socket()?;
        loop {
            match rustix::net::connect(&socket, &address.socket_address()?) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Dialed::Busy),
                Err(errno) => {
                    let why = address.why_unreachable();
                    let what = format!("attach failed: rank {}: {why}", claim.acceptor);
                    return Err(system(what, errno));
                }
            }
        }
        let job = identity.communicator.to_le_bytes();
        let context = Context { purpose: PURPOSE, job: &job };
        let handshake = Handshake::dial(&identity.key, context, claim).map_err(|error| {
            PluginError::system(Status::TransportError, "random numbers", &error)
        })?;
        Self::new(socket, handshake).map(Dialed::Connected)
    }

    /// Takes up a connection that was accepted.
    pub(crate) fn accepted(socket: OwnedFd, identity: &Identity) -> PluginResult<Self> {
        let job = identity.communicator.to_le_bytes();
        let context = Context { purpose: PURPOSE, job: &job };
        let handshake = Handshake::accept(&identity.key, context, u64::from(identity.rank));
        Self::new(socket, handshake)
    }

    /// Refuses other users before a byte is read.
    fn new(socket: OwnedFd, handshake: Handshake) -> PluginResult<Self> {
        let credentials =
            peer_credentials(socket.as_fd()).map_err(|errno| system("SO_PEERCRED", errno))?;
        let own = rustix::process::geteuid().as_raw();
        if credentials.uid != own {
            return Err(PluginError::new(
                Status::Unauthenticated,
                format!(
                    "attach failed: the peer runs as user {}, this rank as {own}",
                    credentials.uid
                ),
            ));
        }
        // 0 is a process in a namespace that this one cannot see into.
        let process = (credentials.pid > 0).then(|| Pid::from_raw(credentials.pid)).flatten();
        Ok(Self { socket, handshake: Box::new(handshake), process })
    }

    /// Does what can be done of the handshake without waiting; gives the claim once it is complete.
    pub(crate) fn handshake(&mut self) -> PluginResult<Option<Claim>> {
        loop {
            if !self.handshake.output().is_empty() {
                let sent = send(self.socket.as_fd(), self.handshake.output(), &[])?;
                self.handshake.output_sent(sent);
            }
            if let Some(claim) = self.handshake.claim() {
                return Ok(Some(claim));
            }
            let mut buffer = [0; MESSAGE_LIMIT_BYTES];
            let wanted = self.handshake.wanted_bytes().min(buffer.len());
            // Without room for descriptors: a stranger's are closed by the kernel.
            match rustix::net::recv(&self.socket, &mut buffer[..wanted], RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => return Err(closed_early()),
                Ok((_, count)) => {
                    if let Err(error) = self.handshake.input(&buffer[..count]) {
                        // The peer may be told why; if it does not listen that is its loss.
                        let _ = send(self.socket.as_fd(), self.handshake.output(), &[]);
                        return Err(unauthenticated(&error));
                    }
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(system("receiving during the handshake", errno)),
            }
        }
    }

    /// The socket, and a descriptor that tells when the peer's process ends (a forked child of the
    /// peer may keep the socket open). To be called while the peer must be alive: between its
    /// proof and the next message that is expected of it.
    pub(crate) fn into_parts(self) -> (OwnedFd, Option<OwnedFd>) {
        let process = self.process.and_then(|pid| {
            // A kernel or sandbox without it: the socket alone has to do.
            rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
        });
        (self.socket, process)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn closed_early() -> PluginError {
    PluginError::new(
        Status::PeerLost,
        "attach failed: the peer closed the connection before the channel was agreed on",
    )
}

fn unauthenticated(error: &HandshakeError) -> PluginError {
    PluginError::new(Status::Unauthenticated, format!("attach failed: {error}"))
}

fn peer_credentials(socket: BorrowedFd<'_>) -> Result<libc::ucred, Errno> {
    // Not rustix's: it gives the process as a number that cannot be 0, which this one can.
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the two pointers are to a `ucred` and to its length, both valid during the call.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if answer == 0 {
        Ok(credentials)
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

/// What the dialer says after the handshake. Comes with its doorbell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) link_digest: u64,
    pub(crate) ring_bytes: u64,
}

/// What the acceptor answers. If it agrees it comes with the segment and its doorbell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Why not.
    pub(crate) refusal: Option<(Status, String)>,
    pub(crate) link_digest: u64,
    pub(crate) ring_bytes: u64,
}

impl Offer {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u64(self.link_digest).u64(self.ring_bytes);
        writer.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FieldError> {
        let mut reader = Reader::new(bytes);
        let offer =
            Self { link_digest: reader.u64("link digest")?, ring_bytes: reader.u64("ring bytes")? };
        reader.finish()?;
        Ok(offer)
    }
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        let (status, reason) =
            self.refusal.as_ref().map_or((Status::Ok, ""), |(status, reason)| (*status, reason));
        let mut end = reason.len().min(REASON_LIMIT_BYTES);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        writer.u32(status.code() as u32).str(&reason[..end]);
        writer.u64(self.link_digest).u64(self.ring_bytes);
        writer.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FieldError> {
        let mut reader = Reader::new(bytes);
        let code = reader.u32("status")?;
        let status = Status::from_code(code as i32)
            .ok_or(FieldError::Unknown { field: "status", value: u64::from(code) })?;
        let reason = reader.str("reason", REASON_LIMIT_BYTES)?.to_owned();
        let answer = Self {
            refusal: (status != Status::Ok).then_some((status, reason)),
            link_digest: reader.u64("link digest")?,
            ring_bytes: reader.u64("ring bytes")?,
        };
        reader.finish()?;
        Ok(answer)
    }
}

/// Sends one message with descriptors. The socket's buffer holds all that is ever sent on it, so
/// one that is full is an error.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> PluginResult<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(PluginError::new(Status::Internal, "too many descriptors for one message"));
    }
    loop {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(closed_early()),
            Err(errno) => return Err(system("sending on the channel's socket", errno)),
        }
    }
}

/// A message with the descriptors that came with it, or `None` if there is none yet.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> PluginResult<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE_LIMIT_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let buffer = &mut [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, buffer, &mut control, flags) {
            Ok(received) => break received,
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Err(closed_early()),
            Err(errno) => return Err(system("receiving on the channel's socket", errno)),
        }
    };
    if received.bytes == 0 {
        return Err(closed_early());
    }
    bytes.truncate(received.bytes);
    let descriptors = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    Ok(Some((bytes, descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offer_and_answer_survive_the_journey() {
        let offer = Offer { link_digest: 7, ring_bytes: 4096 };
        assert_eq!(Offer::decode(&offer.encode()).unwrap(), offer);
        assert!(Offer::decode(&offer.encode()[1..]).is_err());
        let agreed = Answer { refusal: None, link_digest: 7, ring_bytes: 4096 };
        assert_eq!(Answer::decode(&agreed.encode()).unwrap(), agreed);
        let refusal = Some((Status::OutOfResources, "é".repeat(1000)));
        let refused = Answer { refusal, ..agreed };
        let (status, reason) = Answer::decode(&refused.encode()).unwrap().refusal.unwrap();
        assert_eq!((status, reason), (Status::OutOfResources, "é".repeat(128)));
    }

    #[test]
    fn descriptors_travel_with_their_message() {
        let (left, right) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        assert!(receive(right.as_fd()).unwrap().is_none());
        send(left.as_fd(), b"one", &[left.as_fd(), right.as_fd()]).unwrap();
        send(left.as_fd(), b"two", &[]).unwrap();
        let (bytes, descriptors) = receive(right.as_fd()).unwrap().unwrap();
        assert_eq!((bytes.as_slice(), descriptors.len()), (b"one".as_slice(), 2));
        drop(descriptors);
        let (bytes, descriptors) = receive(right.as_fd()).unwrap().unwrap();
        assert_eq!((bytes.as_slice(), descriptors.len()), (b"two".as_slice(), 0));
        drop(left);
        assert_eq!(receive(right.as_fd()).unwrap_err().status, Status::PeerLost);
    }
}
