//! Drives a [`Handshake`] over a connected socket.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::handshake::{Claim, Handshake, HandshakeError};

/// Why [`authenticate`] gave up. The socket is to be closed.
#[derive(Debug, thiserror::Error)]
pub enum AuthenticateError {
    /// The peer is not who it should be.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The peer was silent or too slow.
    #[error("the handshake was not complete at its deadline")]
    Deadline,
    /// The peer closed the connection, as it does when it finds our proof wrong.
    #[error("the peer closed the connection during the handshake")]
    Closed,
    /// The caller's flag was set.
    #[error("cancelled during the handshake")]
    Cancelled,
    /// The operating system reported an error.
    #[error("the handshake failed: {0}")]
    Os(#[from] std::io::Error),
}

/// How often the caller's flag is looked at.
const CANCEL_CHECK: Duration = Duration::from_millis(50);

/// Runs `handshake` over `socket` (stream, connected, in blocking mode or not) until it is complete
/// or `deadline`, which a peer that drips bytes cannot extend. Reads no byte beyond the handshake.
/// Blocks the calling thread; `cancel` is looked at every 50 ms.
///
/// # Errors
///
/// See [`AuthenticateError`]; the socket is to be closed.
pub fn authenticate(
    socket: impl AsFd,
    handshake: &mut Handshake,
    deadline: Instant,
    cancel: Option<&AtomicBool>,
) -> Result<Claim, AuthenticateError> {
    let socket = socket.as_fd();
    let mut buffer = [0; 256];
    loop {
        while !handshake.output().is_empty() {
            match send(socket, handshake.output(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => handshake.output_sent(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(AuthenticateError::Closed),
                Err(errno) => return Err(AuthenticateError::Os(errno.into())),
            }
        }
        if handshake.output().is_empty()
            && let Some(claim) = handshake.claim()
        {
            return Ok(claim);
        }
        wait(socket, handshake, deadline, cancel)?;
        let wanted = handshake.wanted_bytes().min(buffer.len());
        if wanted == 0 {
            continue;
        }
        match recv(socket, &mut buffer[..wanted], RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Err(AuthenticateError::Closed),
            Ok((_, count)) => {
                if let Err(error) = handshake.input(&buffer[..count]) {
                    // The peer may be told why; if it does not listen that is its loss.
                    let last_words = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    let _ = send(socket, handshake.output(), last_words);
                    return Err(error.into());
                }
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(AuthenticateError::Os(errno.into())),
        }
    }
}

/// Waits until the socket can do what the handshake wants next.
fn wait(
    socket: std::os::fd::BorrowedFd<'_>,
    handshake: &Handshake,
    deadline: Instant,
    cancel: Option<&AtomicBool>,
) -> Result<(), AuthenticateError> {
    let mut interest = PollFlags::empty();
    if handshake.wanted_bytes() > 0 {
        interest |= PollFlags::IN;
    }
    if !handshake.output().is_empty() {
        interest |= PollFlags::OUT;
    }
    loop {
        if cancel.is_some_and(|flag| flag.load(Ordering::Relaxed)) {
            return Err(AuthenticateError::Cancelled);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(AuthenticateError::Deadline);
        }
        let pause = if cancel.is_some() { left.min(CANCEL_CHECK) } else { left };
        let timeout = Timespec::try_from(pause).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
        match poll(&mut [PollFd::from_borrowed_fd(socket, interest)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(AuthenticateError::Os(errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::handshake::Context;
    use crate::key::Key;

    const CONTEXT: Context<'static> = Context { purpose: "test/1", job: b"job" };
    const CLAIM: Claim = Claim { dialer: 1, acceptor: 0, channel: 9 };

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    fn dialer(key: u8) -> Handshake {
        Handshake::dial(&Key::from_bytes([key; 32]), CONTEXT, CLAIM).unwrap()
    }

    fn acceptor(key: u8) -> Handshake {
        Handshake::accept(&Key::from_bytes([key; 32]), CONTEXT, 0)
    }

    #[test]
    fn two_threads_prove_themselves_over_both_kinds_of_socket() {
        let (left, right) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp_left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (tcp_right, _) = listener.accept().unwrap();
        tcp_right.set_nonblocking(true).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || authenticate(left, &mut dialer(1), soon(), None).unwrap());
            scope.spawn(move || authenticate(tcp_left, &mut dialer(1), soon(), None).unwrap());
            assert_eq!(authenticate(right, &mut acceptor(1), soon(), None).unwrap(), CLAIM);
            assert_eq!(authenticate(tcp_right, &mut acceptor(1), soon(), None).unwrap(), CLAIM);
        });
    }

    #[test]
    fn the_payload_behind_the_proof_stays_in_the_socket() {
        let (left, mut right) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                authenticate(&left, &mut dialer(1), soon(), None).unwrap();
                (&left).write_all(b"payload").unwrap();
            });
            authenticate(&right, &mut acceptor(1), soon(), None).unwrap();
            let mut payload = Vec::new();
            right.read_to_end(&mut payload).unwrap();
            assert_eq!(payload, b"payload");
        });
    }

    #[test]
    fn wrong_keys_end_on_both_sides() {
        let (left, right) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let error = authenticate(left, &mut dialer(1), soon(), None).unwrap_err();
                let expected = HandshakeError::WrongProof;
                assert!(matches!(error, AuthenticateError::Handshake(e) if e == expected));
            });
            let error = authenticate(right, &mut acceptor(2), soon(), None).unwrap_err();
            assert!(matches!(error, AuthenticateError::Closed), "{error}");
        });
    }

    #[test]
    fn b040_a_peer_that_drips_bytes_cannot_extend_the_deadline() {
        let (left, right) = UnixStream::pair().unwrap();
        let started = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let hello = dialer(1).output().to_vec();
                for byte in hello {
                    if (&left).write_all(&[byte]).is_err() {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(40));
                }
            });
            let deadline = started + Duration::from_millis(200);
            let error = authenticate(&right, &mut acceptor(1), deadline, None).unwrap_err();
            assert!(matches!(error, AuthenticateError::Deadline), "{error}");
            right.shutdown(Shutdown::Both).unwrap();
        });
        assert!(started.elapsed() >= Duration::from_millis(200));
    }

    #[test]
    fn a_set_flag_ends_the_wait() {
        let (_left, right) = UnixStream::pair().unwrap();
        let cancel = AtomicBool::new(true);
        let error = authenticate(right, &mut acceptor(1), soon(), Some(&cancel)).unwrap_err();
        assert!(matches!(error, AuthenticateError::Cancelled), "{error}");
    }
}
