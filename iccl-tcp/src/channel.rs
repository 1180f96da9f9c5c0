//! A channel: its sockets, its two halves of framing, and what it is in.

use std::io;
use std::time::Instant;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_plugin_api::tables::{Completion, completion_kind};

use crate::core::Core;
use crate::framing::{IoList, Message, Mismatched, Receiver, Sender};
use crate::newcomers::Arrival;
use crate::opening::{Opened, Opening};
use crate::poller::{Owner, Poller};
use crate::socket::{Connection, failure, vitals};

/// Most system calls in one direction of one socket before the others have their turn.
const TURNS: usize = 4;

#[derive(Debug)]
pub(crate) struct Channel {
    /// Its place in the domain's table.
    pub(crate) place: usize,
    pub(crate) handle: u64,
    pub(crate) peer: u32,
    pub(crate) number: u64,
    pub(crate) is_dialer: bool,
    /// Whether the domain has it on its list of those with something to do.
    pub(crate) is_active: bool,
    link_digest: u64,
    state: State,
    lanes: Vec<Lane>,
    sender: Sender,
    receiver: Receiver,
}

#[derive(Debug)]
enum State {
    Opening(Opening),
    Open,
    /// The peer has said that it will send no more, and has gone.
    Ended,
    Failed(PluginError),
}

/// One socket of a channel.
#[derive(Debug)]
struct Lane {
    connection: Connection,
    /// Whether the limit of unacknowledged time is suspended; see `Channel::look_after`.
    is_patient: bool,
}

/// Why a channel cannot go on.
enum Trouble {
    Error(PluginError),
    Mismatch(Box<Mismatched>),
}

impl From<Box<Mismatched>> for Trouble {
    fn from(mismatched: Box<Mismatched>) -> Self {
        Self::Mismatch(mismatched)
    }
}

/// What a channel is called by the domain, by the runtime and by both peers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names {
    pub(crate) place: usize,
    pub(crate) handle: u64,
    pub(crate) peer: u32,
    pub(crate) number: u64,
    pub(crate) link_digest: u64,
}

impl Channel {
    pub(crate) fn new(names: Names, opening: Opening) -> Self {
        let Names { place, handle, peer, number, link_digest } = names;
        Self {
            place,
            handle,
            peer,
            number,
            is_dialer: matches!(opening, Opening::Dialing { .. }),
            is_active: false,
            link_digest,
            state: State::Opening(opening),
            lanes: Vec::new(),
            sender: Sender::new(),
            receiver: Receiver::new(),
        }
    }

    fn who(&self) -> String {
        format!("rank {}, channel {}", self.peer, self.number)
    }

    // --- Opening -------------------------------------------------------------------------------

    /// The channel while it is not open yet.
    pub(crate) fn opening(&self) -> Option<&Opening> {
        match &self.state {
            State::Opening(opening) => Some(opening),
            _ => None,
        }
    }

    /// Moves the opening on; see [`Opening::step`].
    pub(crate) fn step_opening(
        &mut self,
        core: &mut Core,
        now: Instant,
        last_dropped: Option<&str>,
    ) {
        let (who, owner) = (self.who(), Owner::Channel(self.place));
        if let State::Opening(opening) = &mut self.state {
            let opened = opening.step(&who, owner, core, now, last_dropped);
            self.be_opened(opened, core);
        }
    }

    /// Takes a connection of the peer; see [`Opening::attach`].
    pub(crate) fn attach(
        &mut self,
        arrival: Arrival,
        core: &mut Core,
    ) -> Result<(), (Connection, String)> {
        let (who, owner) = (self.who(), Owner::Channel(self.place));
        let State::Opening(opening) = &mut self.state else {
            let reason = "the channel is connected already or has failed".to_owned();
            return Err((arrival.connection, reason));
        };
        let opened = opening.attach(&who, owner, self.link_digest, arrival, core)?;
        self.be_opened(opened, core);
        Ok(())
    }

    fn be_opened(&mut self, opened: Opened, core: &mut Core) {
        match opened {
            Opened::NotYet => {}
            Opened::Failed(error) => self.fail(core, error),
            Opened::Open(connections, layout) => {
                let lane = |connection| Lane { connection, is_patient: false };
                self.lanes = connections.into_iter().map(lane).collect();
                self.sender.set_layout(layout);
                self.receiver.set_layout(layout);
                self.state = State::Open;
                // The peer may have gone meanwhile, of which there will be no more news.
                self.move_bytes(core, false);
            }
        }
    }

    /// # Errors
    /// Why the channel is of no use.
    pub(crate) fn state(&self) -> PluginResult<bool> {
        match &self.state {
            State::Opening(_) => Ok(false),
            State::Open => Ok(true),
            State::Ended => Err(self.peer_has_closed()),
            State::Failed(error) => Err(error.clone()),
        }
    }

    // --- Messages ------------------------------------------------------------------------------

    pub(crate) fn post_send(&mut self, message: Message) -> PluginResult<()> {
        self.state()?;
        self.sender.post(message);
        Ok(())
    }

    pub(crate) fn post_receive(&mut self, message: Message) -> PluginResult<()> {
        self.state()?;
        self.receiver.post(message);
        Ok(())
    }

    /// Whether messages are posted.
    pub(crate) fn has_messages(&self) -> bool {
        !self.sender.is_idle() || !self.receiver.is_idle()
    }

    /// Whether a send waits for room in a socket.
    pub(crate) fn is_blocked(&self, poller: &Poller) -> bool {
        self.lanes.iter().enumerate().any(|(index, lane)| {
            self.sender.has_output(index) && !poller.is_writable(lane.connection.token)
        })
    }

    /// Whether `move_bytes` has something to do.
    pub(crate) fn is_ready(&self, poller: &Poller) -> bool {
        matches!(self.state, State::Open)
            && self.lanes.iter().enumerate().any(|(index, lane)| {
                let token = lane.connection.token;
                (self.sender.has_output(index) && poller.is_writable(token))
                    || (self.receiver.wants(index) && poller.is_readable(token))
                    || (index == 0 && self.receiver.wants(0) && self.receiver.has_next_message())
            })
    }

    /// Sends and receives what can be moved now. `is_eager` tries to read without being told that
    /// there is something.
    pub(crate) fn move_bytes(&mut self, core: &mut Core, is_eager: bool) {
        if !matches!(self.state, State::Open) {
            return;
        }
        // What a peer said before it went is heard before a send to it fails.
        let moved = if self.is_hung_up(&core.poller) {
            self.receive(core, is_eager).and_then(|()| self.send(core))
        } else {
            self.send(core).and_then(|()| self.receive(core, is_eager))
        };
        // What is complete counts, whatever happened after it.
        self.tell_what_is_done(core);
        let moved = moved.and_then(|()| self.look_for_the_end(core));
        if let Err(trouble) = moved {
            self.end_in_trouble(core, trouble);
        }
    }

    /// Whether the peer has closed or broken a socket.
    fn is_hung_up(&self, poller: &Poller) -> bool {
        self.lanes.iter().any(|lane| poller.is_hung_up(lane.connection.token))
    }

    fn tell_what_is_done(&mut self, core: &mut Core) {
        let (sender, receiver, channel) = (&mut self.sender, &mut self.receiver, self.handle);
        let sends = std::iter::from_fn(|| sender.pop_done())
            .map(|Message { token, length, .. }| (token, completion_kind::SEND, length));
        let receives = std::iter::from_fn(|| receiver.pop_done())
            .map(|Message { token, length, .. }| (token, completion_kind::RECEIVE, length));
        let done = sends.chain(receives);
        core.completions.extend(
            done.map(|(token, kind, length)| Completion::done(channel, token, kind, length)),
        );
    }

    fn send(&mut self, core: &mut Core) -> Result<(), Trouble> {
        for (index, lane) in self.lanes.iter().enumerate() {
            let connection = &lane.connection;
            for _ in 0..TURNS {
                if !self.sender.has_output(index) || !core.poller.is_writable(connection.token) {
                    break;
                }
                let mut list = IoList::new();
                self.sender.gather(index, &mut list);
                // SAFETY: the pieces are headers in the sender's queue, or memory that is lent to
                // us until the message's completion, which has not been given yet.
                match unsafe { connection.send(&list, &mut core.poller) } {
                    Ok(Some(bytes)) => self.sender.sent(index, bytes),
                    Ok(None) => break,
                    Err(error) => return Err(self.broken(&error)),
                }
            }
        }
        Ok(())
    }

    fn receive(&mut self, core: &mut Core, is_eager: bool) -> Result<(), Trouble> {
        self.receiver.use_staging()?;
        for (index, lane) in self.lanes.iter().enumerate() {
            let connection = &lane.connection;
            for turn in 0..TURNS {
                let is_due = core.poller.is_readable(connection.token) || (is_eager && turn == 0);
                if !self.receiver.wants(index) || !is_due {
                    break;
                }
                let mut list = IoList::new();
                self.receiver.room(index, &mut list);
                // SAFETY: the pieces are the receiver's own buffer, or memory that is lent to us
                // until the message's completion, which has not been given yet.
                match unsafe { connection.receive(&list, &mut core.poller) } {
                    Ok(Some(0)) => return Err(Trouble::Error(self.peer_is_gone())),
                    Ok(Some(bytes)) => self.receiver.received(index, bytes)?,
                    Ok(None) => break,
                    Err(error) => return Err(self.broken(&error)),
                }
            }
        }
        Ok(())
    }

    /// Finds out, once the peer has hung up, whether it said so before.
    fn look_for_the_end(&mut self, core: &mut Core) -> Result<(), Trouble> {
        while self.is_hung_up(&core.poller) && !self.receiver.has_ended() && !self.receiver.wants(0)
        {
            let mut list = IoList::new();
            self.receiver.room(0, &mut list);
            if list.is_empty() {
                // A message waits for a receive: what is behind it will be seen then.
                return Ok(());
            }
            // SAFETY: without a posted receive the only piece is the receiver's own buffer.
            match unsafe { self.lanes[0].connection.receive(&list, &mut core.poller) } {
                Ok(Some(0)) if self.receiver.has_next_message() => return Ok(()),
                Ok(Some(0)) => return Err(Trouble::Error(self.peer_is_gone())),
                Ok(Some(bytes)) => self.receiver.received(0, bytes)?,
                Ok(None) => return Ok(()),
                Err(error) => return Err(self.broken(&error)),
            }
        }
        if self.receiver.has_ended() {
            if self.receiver.waits_in_vain() || !self.sender.is_idle() {
                return Err(Trouble::Error(self.peer_has_closed()));
            }
            if self.receiver.is_idle() {
                self.state = State::Ended;
                self.close_sockets(&mut core.poller);
            }
        }
        Ok(())
    }

    fn peer_is_gone(&self) -> PluginError {
        let text = format!("{}: the peer closed the connection without a farewell", self.who());
        PluginError::new(Status::PeerLost, text)
    }

    fn peer_has_closed(&self) -> PluginError {
        PluginError::new(Status::PeerLost, format!("{}: the peer has closed it", self.who()))
    }

    fn broken(&self, error: &io::Error) -> Trouble {
        Trouble::Error(failure(&self.who(), error))
    }

    // --- Liveness ------------------------------------------------------------------------------

    /// Keeps the kernel from taking a busy peer for a lost one; to be called several times within
    /// the user time-out.
    ///
    /// With `TCP_USER_TIMEOUT` Linux also breaks a connection whose peer answers every probe but
    /// has no room for more bytes, which here only means that it has not posted its receives yet. So
    /// the limit is suspended while the window is closed and probes are answered.
    pub(crate) fn look_after(&mut self, core: &mut Core) {
        let limit = core.identity.settings.user_timeout;
        if !matches!(self.state, State::Open) || limit.is_zero() {
            return;
        }
        let mut lost = None;
        for lane in &mut self.lanes {
            let socket = &lane.connection.socket;
            let Ok(vitals) = vitals(socket) else { continue };
            if vitals.is_window_closed && vitals.unanswered_probes >= UNANSWERED_PROBES {
                lost = Some(io::Error::from_raw_os_error(libc::ETIMEDOUT));
            } else if vitals.is_window_closed != lane.is_patient {
                let limit = (!vitals.is_window_closed).then_some(limit);
                if socket.set_tcp_user_timeout(limit).is_ok() {
                    lane.is_patient = vitals.is_window_closed;
                }
            }
        }
        if let Some(error) = lost {
            let trouble = self.broken(&error);
            self.end_in_trouble(core, trouble);
        }
    }

    // --- The end -------------------------------------------------------------------------------

    fn end_in_trouble(&mut self, core: &mut Core, trouble: Trouble) {
        match trouble {
            Trouble::Error(error) => self.fail(core, error),
            Trouble::Mismatch(mismatched) => {
                let Mismatched { expected, envelope, length } = *mismatched;
                let text = format!(
                    "{}: a message of {length} bytes arrived that is not the one of {} bytes that \
                     was expected, or not for it",
                    self.who(),
                    expected.length
                );
                let completion =
                    Completion::mismatch(self.handle, expected.token, &envelope, length);
                core.completions.push_back(completion);
                self.fail(core, PluginError::new(Status::Mismatch, text));
            }
        }
    }

    fn fail(&mut self, core: &mut Core, error: PluginError) {
        self.stop(core, &error);
        let kind = completion_kind::CHANNEL_FAILED;
        core.completions.push_back(Completion::failed(self.handle, 0, kind, &error));
        self.state = State::Failed(error);
    }

    /// Ends everything; posted memory is not touched any more.
    pub(crate) fn quiesce(&mut self, core: &mut Core) {
        if matches!(self.state, State::Failed(_)) {
            return;
        }
        let error = PluginError::new(Status::Aborted, format!("{}: stopped", self.who()));
        self.stop(core, &error);
        self.state = State::Failed(error);
    }

    fn stop(&mut self, core: &mut Core, error: &PluginError) {
        self.close_sockets(&mut core.poller);
        let sends = self.sender.abandon().map(|message| (completion_kind::SEND, message));
        let receives = self.receiver.abandon().map(|message| (completion_kind::RECEIVE, message));
        for (kind, message) in sends.chain(receives) {
            let completion = Completion::failed(self.handle, message.token, kind, error);
            core.completions.push_back(completion);
        }
    }

    fn close_sockets(&mut self, poller: &mut Poller) {
        let lanes = std::mem::take(&mut self.lanes);
        let mut connections: Vec<_> = lanes.into_iter().map(|lane| lane.connection).collect();
        if let State::Opening(opening) = &mut self.state {
            connections.extend(opening.give_up(poller));
        }
        for connection in connections {
            // A forked child may hold the socket open as well: the peer is to see the end now.
            let _ = connection.socket.shutdown(std::net::Shutdown::Both);
            connection.close(poller);
        }
    }

    /// Parts with the peer. If nothing is half done the sockets come back, with a sender that holds
    /// the farewell; else they are closed.
    pub(crate) fn part(mut self, poller: &mut Poller) -> Option<(Vec<Connection>, Sender)> {
        if !matches!(self.state, State::Open) || self.has_messages() {
            self.close_sockets(poller);
            return None;
        }
        self.sender.post_end();
        let connections = self.lanes.into_iter().map(|lane| lane.connection).collect();
        Some((connections, self.sender))
    }
}

/// So many unanswered probes of a closed window mean that the peer is gone.
const UNANSWERED_PROBES: u8 = 4;
