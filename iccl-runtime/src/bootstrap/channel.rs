//! One non-blocking connection: the handshake first, frames after it. Used by the root, by the
//! wiring of the tree and by the control thread, each in its own poll loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use iccl_wire::{Claim, FrameDecoder, FrameTooLong, Handshake, HandshakeError, encode_frame};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt::socket_error};

use super::fork::CloseInChild;

/// Why a connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChannelError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("the other side closed the connection")]
    Closed,
    #[error(transparent)]
    Frame(#[from] FrameTooLong),
    #[error("a message cannot be understood: {0}")]
    Message(#[from] iccl_wire::FieldError),
    #[error(transparent)]
    Os(#[from] io::Error),
}

/// Unsent bytes that a channel holds at most for a peer that does not read; beyond the largest
/// table this means that the peer has stopped.
const OUTPUT_SLACK_BYTES: usize = 1024 * 1024;

#[derive(Debug)]
pub(super) struct Channel {
    /// Before the socket, so that it is dropped first.
    _close_in_child: CloseInChild,
    socket: OwnedFd,
    is_connecting: bool,
    handshake: Option<Box<Handshake>>,
    claim: Option<Claim>,
    decoder: FrameDecoder,
    frame_limit_bytes: usize,
    output: Vec<u8>,
    output_sent_bytes: usize,
    pub(super) opened: Instant,
    /// Who is at the other end, for messages.
    pub(super) peer: String,
}

impl Channel {
    /// A channel over a socket that is connected or, with `is_connecting`, about to be.
    pub(super) fn new(
        socket: OwnedFd,
        is_connecting: bool,
        handshake: Handshake,
        frame_limit_bytes: usize,
        peer: String,
    ) -> Self {
        Self {
            _close_in_child: CloseInChild::new(&socket),
            socket,
            is_connecting,
            handshake: Some(Box::new(handshake)),
            claim: None,
            decoder: FrameDecoder::new(frame_limit_bytes),
            frame_limit_bytes,
            output: Vec::new(),
            output_sent_bytes: 0,
            opened: Instant::now(),
            peer,
        }
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Who the peer has proved to be.
    pub(super) fn claim(&self) -> Option<Claim> {
        self.claim
    }

    pub(super) fn interest(&self) -> PollFlags {
        if self.is_connecting {
            return PollFlags::OUT;
        }
        let wants_output = match &self.handshake {
            Some(handshake) => !handshake.output().is_empty(),
            None => self.has_output(),
        };
        if wants_output { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    /// Whether something waits to be sent.
    pub(super) fn has_output(&self) -> bool {
        self.output_sent_bytes < self.output.len()
    }

    /// Queues a frame and sends as much as the socket takes.
    pub(super) fn send(&mut self, payload: &[u8]) -> Result<(), ChannelError> {
        if self.output.len() - self.output_sent_bytes
            > self.frame_limit_bytes.saturating_add(OUTPUT_SLACK_BYTES)
        {
            return Err(io::Error::other("the other side has stopped reading").into());
        }
        encode_frame(payload, self.frame_limit_bytes, &mut self.output)?;
        // A broken connection shows in the next `pump`, which reads what arrived before it broke.
        let _ = self.flush();
        Ok(())
    }

    /// Sends and receives what is possible now and appends complete frames to `frames`. Frames that
    /// arrived before an error or an end-of-file are appended first.
    pub(super) fn pump(&mut self, frames: &mut Vec<Vec<u8>>) -> Result<(), ChannelError> {
        if self.is_connecting {
            match socket_error(&self.socket) {
                Ok(Ok(())) => self.is_connecting = false,
                Ok(Err(errno)) | Err(errno) => return Err(ChannelError::Os(errno.into())),
            }
        }
        self.drive_handshake()?;
        if self.handshake.is_some() {
            return Ok(());
        }
        // Reading comes first: a peer that closed may have said why before.
        let read = self.read_frames(frames);
        read.and(self.flush())
    }

    fn drive_handshake(&mut self) -> Result<(), ChannelError> {
        let Some(handshake) = &mut self.handshake else { return Ok(()) };
        let mut buffer = [0; 256];
        loop {
            while !handshake.output().is_empty() {
                let Some(count) = send_some(&self.socket, handshake.output())? else {
                    return Ok(());
                };
                handshake.output_sent(count);
            }
            if let Some(claim) = handshake.claim() {
                self.claim = Some(claim);
                self.handshake = None;
                return Ok(());
            }
            let wanted = handshake.wanted_bytes().min(buffer.len());
            let Some(count) = receive_some(&self.socket, &mut buffer[..wanted])? else {
                return Ok(());
            };
            if let Err(error) = handshake.input(&buffer[..count]) {
                // The peer may be told why; if it does not listen that is its loss.
                let _ = send_some(&self.socket, handshake.output());
                return Err(error.into());
            }
        }
    }

    fn read_frames(&mut self, frames: &mut Vec<Vec<u8>>) -> Result<(), ChannelError> {
        let mut buffer = [0; 16 * 1024];
        // Bounded, so that one talkative peer does not starve the others of this loop.
        for _ in 0..16 {
            let Some(count) = receive_some(&self.socket, &mut buffer)? else { return Ok(()) };
            let mut bytes = &buffer[..count];
            while let Some(frame) = self.decoder.next(&mut bytes)? {
                frames.push(frame);
            }
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), ChannelError> {
        if self.is_connecting || self.handshake.is_some() {
            return Ok(());
        }
        while self.has_output() {
            match send_some(&self.socket, &self.output[self.output_sent_bytes..])? {
                Some(count) => self.output_sent_bytes += count,
                None => return Ok(()),
            }
        }
        self.output.clear();
        self.output_sent_bytes = 0;
        Ok(())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn send_some(socket: &OwnedFd, bytes: &[u8]) -> Result<Option<usize>, ChannelError> {
    loop {
        match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => return Ok(Some(count)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::PIPE) => return Err(ChannelError::Closed),
            Err(errno) => return Err(ChannelError::Os(errno.into())),
        }
    }
}

fn receive_some(socket: &OwnedFd, buffer: &mut [u8]) -> Result<Option<usize>, ChannelError> {
    loop {
        match recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(ChannelError::Closed),
            Ok((_, count)) => return Ok(Some(count)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(ChannelError::Os(errno.into())),
        }
    }
}
