//! A channel: its sockets, its two halves of framing, and what it is in.

use std::io;
use std::time::Instant;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_plugin_api::tables::{Completion, completion_kind};

use crate::core::Core;
use crate::dialer::{Dialer, digests_differ};
use crate::framing::{IoList, Layout, Message, Mismatched, Receiver, Sender};
use crate::greeting::Terms;
use crate::newcomers::Arrival;
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
    /// Whether the peer has closed or broken a socket.
    is_hung_up: bool,
}

#[derive(Debug)]
enum State {
    Dialing {
        layout: Layout,
        lanes: Vec<Dialing>,
    },
    Awaiting {
        deadline: Instant,
        arrived: Vec<Option<Lane>>,
    },
    Open,
    /// The peer has said that it will send no more, and has gone.
    Ended,
    Failed(PluginError),
}

#[derive(Debug)]
enum Dialing {
    Dialer(Box<Dialer>),
    Done(Lane),
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
    pub(crate) fn dial(names: Names, layout: Layout, dialers: Vec<Dialer>) -> Self {
        let lanes = dialers.into_iter().map(|dialer| Dialing::Dialer(Box::new(dialer))).collect();
        Self::new(names, true, State::Dialing { layout, lanes })
    }

    pub(crate) fn await_peer(names: Names, deadline: Instant) -> Self {
        Self::new(names, false, State::Awaiting { deadline, arrived: Vec::new() })
    }

    fn new(names: Names, is_dialer: bool, state: State) -> Self {
        let Names { place, handle, peer, number, link_digest } = names;
        Self {
            place,
            handle,
            peer,
            number,
            is_dialer,
            is_active: false,
            link_digest,
            state,
            lanes: Vec::new(),
            sender: Sender::new(),
            receiver: Receiver::new(),
            is_hung_up: false,
        }
    }

    fn who(&self) -> String {
        format!("rank {}, channel {}", self.peer, self.number)
    }

    // --- Opening -------------------------------------------------------------------------------

    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.state, State::Dialing { .. } | State::Awaiting { .. })
    }

    pub(crate) fn is_ready_to_open(&self, poller: &Poller) -> bool {
        match &self.state {
            State::Dialing { lanes, .. } => lanes.iter().any(|dialing| match dialing {
                Dialing::Dialer(dialer) => dialer.is_ready(poller),
                Dialing::Done(_) => false,
            }),
            _ => false,
        }
    }

    /// When `step_opening` is to be called at the latest.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Dialing { lanes, .. } => lanes
                .iter()
                .filter_map(|dialing| match dialing {
                    Dialing::Dialer(dialer) => Some(dialer.next_deadline()),
                    Dialing::Done(_) => None,
                })
                .min(),
            State::Awaiting { deadline, .. } => Some(*deadline),
            _ => None,
        }
    }

    /// Moves the opening on. `last_dropped` helps to explain why a peer did not come.
    pub(crate) fn step_opening(
        &mut self,
        core: &mut Core,
        now: Instant,
        last_dropped: Option<&str>,
    ) {
        let who = self.who();
        let error = match &mut self.state {
            State::Dialing { lanes, .. } => {
                let mut failed = None;
                for slot in lanes.iter_mut() {
                    let Dialing::Dialer(dialer) = slot else { continue };
                    match dialer.step(core, now) {
                        Ok(None) => {}
                        Ok(Some(connection)) => {
                            core.poller.set_owner(connection.token, Owner::Channel(self.place));
                            *slot = Dialing::Done(Lane { connection, is_patient: false });
                        }
                        Err(error) => failed = failed.or(Some(error)),
                    }
                }
                if failed.is_none() {
                    self.open_if_all_dialed();
                }
                failed
            }
            State::Awaiting { deadline, arrived } if now >= *deadline => {
                let have = arrived.iter().flatten().count();
                let of = if arrived.is_empty() {
                    String::new()
                } else {
                    format!(" ({have} of {} sockets came)", arrived.len())
                };
                let dropped = last_dropped
                    .map(|text| format!("; the last connection that was dropped was {text}"))
                    .unwrap_or_default();
                let within = core.identity.connect_timeout;
                let text =
                    format!("{who}: the peer did not connect within {within:?}{of}{dropped}");
                Some(PluginError::new(Status::Timeout, text))
            }
            _ => None,
        };
        if let Some(error) = error {
            self.fail(core, error);
        } else if self.is_hung_up {
            self.move_bytes(core, true);
        }
    }

    fn open_if_all_dialed(&mut self) {
        let State::Dialing { layout, lanes } = &mut self.state else { return };
        if lanes.iter().all(|dialing| matches!(dialing, Dialing::Done(_))) {
            let layout = *layout;
            let done = lanes.drain(..).filter_map(|dialing| match dialing {
                Dialing::Done(lane) => Some(lane),
                Dialing::Dialer(_) => None,
            });
            self.lanes = done.collect();
            self.open(layout);
        }
    }

    /// Takes a connection of the peer that has proved itself, and answers it. Gives the connection
    /// back with a reason if there is no use for it.
    pub(crate) fn attach(
        &mut self,
        arrival: Arrival,
        core: &mut Core,
    ) -> Result<(), (Connection, String)> {
        let Arrival { connection, mut greeting, terms, .. } = arrival;
        let lane = terms.lane as usize;
        let State::Awaiting { arrived, .. } = &mut self.state else {
            return Err((connection, "the channel is connected already or has failed".to_owned()));
        };
        if arrived.is_empty() {
            arrived.resize_with(terms.layout.lanes as usize, || None);
        }
        if arrived.len() != terms.layout.lanes as usize {
            return Err((connection, "it counts the channel's sockets differently".to_owned()));
        }
        let ours = Terms { link_digest: self.link_digest, ..terms };
        greeting.answer(ours);
        let answer = greeting.output().to_vec();
        let told = match connection.send_bytes(&answer, &mut core.poller) {
            Ok(Some(bytes)) if bytes == answer.len() as u64 => Ok(()),
            // The socket is empty, so there is room for a few bytes.
            Ok(_) => Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
            Err(error) => Err(error),
        };
        core.poller.set_owner(connection.token, Owner::Channel(self.place));
        let before = arrived[lane].replace(Lane { connection, is_patient: false });
        if let Some(before) = before {
            // The peer gave that one up, else it would not have dialed again.
            before.connection.close(&mut core.poller);
        }
        if terms.link_digest != self.link_digest {
            let error = digests_differ(&self.who(), self.link_digest, terms.link_digest);
            self.fail(core, error);
        } else if let Err(error) = told {
            let error = failure(&self.who(), &error);
            self.fail(core, error);
        } else if arrived.iter().all(Option::is_some) {
            self.lanes = arrived.drain(..).flatten().collect();
            self.open(terms.layout);
            if self.is_hung_up {
                self.move_bytes(core, true);
            }
        }
        Ok(())
    }

    fn open(&mut self, layout: Layout) {
        self.sender.set_layout(layout);
        self.receiver.set_layout(layout);
        self.state = State::Open;
    }

    /// # Errors
    /// Why the channel is of no use.
    pub(crate) fn state(&self) -> PluginResult<bool> {
        match &self.state {
            State::Dialing { .. } | State::Awaiting { .. } => Ok(false),
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
        let moved = if self.is_hung_up {
            self.receive(core, is_eager).and_then(|()| self.send(core))
        } else {
            self.send(core).and_then(|()| self.receive(core, is_eager))
        };
        let moved = moved.and_then(|()| self.look_for_the_end(core));
        if let Err(trouble) = moved {
            self.end_in_trouble(core, trouble);
        }
    }

    /// Takes note that the peer has closed or broken a socket.
    pub(crate) fn hang_up(&mut self, core: &mut Core) {
        self.is_hung_up = true;
        self.move_bytes(core, true);
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
        while let Some(message) = self.sender.pop_done() {
            let Message { token, length, .. } = message;
            let kind = completion_kind::SEND;
            core.completions.push_back(Completion::done(self.handle, token, kind, length));
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
        while let Some(message) = self.receiver.pop_done() {
            let Message { token, length, .. } = message;
            let kind = completion_kind::RECEIVE;
            core.completions.push_back(Completion::done(self.handle, token, kind, length));
        }
        Ok(())
    }

    /// Finds out, once the peer has hung up, whether it said so before.
    fn look_for_the_end(&mut self, core: &mut Core) -> Result<(), Trouble> {
        while self.is_hung_up && !self.receiver.has_ended() && !self.receiver.wants(0) {
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
        let mut lanes = std::mem::take(&mut self.lanes);
        match &mut self.state {
            State::Dialing { lanes: dialing, .. } => {
                for dialing in dialing.drain(..) {
                    match dialing {
                        Dialing::Dialer(mut dialer) => dialer.hang_up(poller),
                        Dialing::Done(lane) => lanes.push(lane),
                    }
                }
            }
            State::Awaiting { arrived, .. } => lanes.extend(arrived.drain(..).flatten()),
            State::Open | State::Ended | State::Failed(_) => {}
        }
        for lane in lanes {
            // A forked child may hold the socket open as well: the peer is to see the end now.
            let _ = lane.connection.socket.shutdown(std::net::Shutdown::Both);
            lane.connection.close(poller);
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
