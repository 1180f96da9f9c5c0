//! A channel: how it is opened over the control connection, and how it ends.

use std::collections::VecDeque;
use std::time::Instant;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{Envelope, PluginError, PluginResult, PostedMessage, TransportDomain};
use iccl_plugin_api::tables::{Completion, ENVELOPE_BYTES, Segment, completion_kind};
use iccl_tcp::TcpDomain;

use crate::device::Rail;
use crate::flow::{BLOCK_TOTAL, Flow, SHAPE, Tools, Trouble, failure};
use crate::memory::{Block, Message};
use crate::regions::Regions;
use crate::verbs::{Device, Ended};
use crate::wire::{OFFER_BYTES, Offer};

/// What the messages of the control connection are for; also their tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Note {
    Offer = 1,
    Answer = 2,
    Ready = 3,
    Farewell = 4,
}

impl Note {
    fn envelope(self) -> Envelope {
        [self as u8; ENVELOPE_BYTES]
    }
}

#[derive(Debug)]
enum State {
    /// Waits for the peer's part of the exchange.
    Opening,
    Open,
    /// Parted with the peer; waits until its device has all that was sent, and the farewell is said.
    Parting {
        until: Instant,
        is_said: bool,
    },
    /// The peer has closed it in order, and all was received.
    Ended,
    Failed(PluginError),
}

#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) handle: u64,
    pub(crate) peer: u32,
    pub(crate) number: u64,
    /// Whether it is on the domain's list of those with something to do.
    pub(crate) is_active: bool,
    /// The channel of the control connection.
    pub(crate) control: u64,
    state: State,
    flow: Option<Flow>,
    /// Posted before there is a queue pair.
    early: Vec<(u32, Message)>,
    /// How many messages the peer had sent when it said farewell.
    farewell: Option<u32>,
    /// What is on its way over the control connection, and where the next word goes.
    #[allow(clippy::vec_box, reason = "what is on its way must not move")]
    said: Vec<Box<[u8; OFFER_BYTES]>>,
    heard: Box<[u8; OFFER_BYTES]>,
    /// Whether the control connection may still read and write those.
    is_lent: bool,
    psn: u32,
}

/// What channels of a domain share.
pub(crate) struct Shared<'a> {
    pub(crate) rail: &'a mut Rail,
    pub(crate) regions: &'a Regions,
    pub(crate) control: &'a mut TcpDomain,
    pub(crate) completions: &'a mut VecDeque<Completion>,
}

/// What a channel is called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) handle: u64,
    pub(crate) peer: u32,
    pub(crate) number: u64,
    pub(crate) is_dialer: bool,
    pub(crate) control: u64,
}

impl Channel {
    /// Begins to open: makes the queue pair, with receives posted, and says or awaits the offer.
    ///
    /// # Errors
    /// What the device or the control connection refuses.
    pub(crate) fn open(names: Names, mark: u64, shared: &mut Shared<'_>) -> PluginResult<Self> {
        let Names { handle, peer, number, is_dialer, control } = names;
        let mut channel = Self {
            handle,
            peer,
            number,
            is_active: false,
            control,
            state: State::Opening,
            flow: None,
            early: Vec::new(),
            farewell: None,
            said: Vec::new(),
            heard: Box::new([0; OFFER_BYTES]),
            is_lent: false,
            psn: (handle as u32).wrapping_mul(0x9e37_79b1) >> 8,
        };
        let Rail { device, limits, port, settings, .. } = &mut *shared.rail;
        let who = channel.who();
        let refused = |device: &dyn Device, error| failure(&who, device, &Trouble::Verbs(error));
        let block = Block::new(&mut **device, limits.max_mr_bytes, BLOCK_TOTAL)?;
        let made = match device.create(SHAPE) {
            Ok(made) => made,
            Err(error) => {
                block.free(&mut **device);
                return Err(refused(&**device, error));
            }
        };
        let mut flow = Flow::new(handle, mark, made.number, made.inline_bytes, block);
        let ready = device
            .initialise(made.number, *port, settings.pkey_index)
            .map_err(Trouble::Verbs)
            .and_then(|()| flow.repost(&mut **device));
        let ready = ready.map_err(|trouble| failure(&who, &**device, &trouble));
        channel.flow = Some(flow);
        let begun = ready.and_then(|()| {
            if is_dialer {
                channel.say_offer(Note::Offer, shared)?;
                channel.listen(Note::Answer, shared.control)
            } else {
                channel.listen(Note::Offer, shared.control)
            }
        });
        if let Err(error) = begun {
            channel.let_go(shared.rail);
            channel.hang_up(shared.control);
            return Err(error);
        }
        Ok(channel)
    }

    pub(crate) fn who(&self) -> String {
        format!("rank {}, channel {}", self.peer, self.number)
    }

    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.state, State::Opening)
    }

    pub(crate) fn is_parting(&self) -> bool {
        matches!(self.state, State::Parting { .. })
    }

    /// # Errors
    /// Why the channel is of no use.
    pub(crate) fn state(&self) -> PluginResult<bool> {
        match &self.state {
            State::Opening => Ok(false),
            State::Open => Ok(true),
            State::Parting { .. } => Err(PluginError::invalid("the channel is closed")),
            State::Ended => Err(self.peer_has_closed()),
            State::Failed(error) => Err(error.clone()),
        }
    }

    fn peer_has_closed(&self) -> PluginError {
        PluginError::new(Status::PeerLost, format!("{}: the peer has closed it", self.who()))
    }

    // --- The control connection ------------------------------------------------------------------

    fn say(
        &mut self,
        note: Note,
        words: [u8; OFFER_BYTES],
        control: &mut TcpDomain,
    ) -> PluginResult<()> {
        self.said.push(Box::new(words));
        let Some(words) = self.said.last() else { return Ok(()) };
        let address = words.as_ptr().cast_mut().cast();
        let segments = [Segment { address, length: OFFER_BYTES as u64, key: 0 }];
        let envelope = note.envelope();
        let message =
            PostedMessage { token: note as u64, segments: &segments, envelope: &envelope };
        self.is_lent = true;
        // SAFETY: the bytes stay in `said` until the control channel is at rest.
        unsafe { control.post_send(self.control, message) }
    }

    fn listen(&mut self, note: Note, control: &mut TcpDomain) -> PluginResult<()> {
        let address = self.heard.as_mut_ptr().cast();
        let segments = [Segment { address, length: OFFER_BYTES as u64, key: 0 }];
        let envelope = note.envelope();
        let message =
            PostedMessage { token: note as u64, segments: &segments, envelope: &envelope };
        self.is_lent = true;
        // SAFETY: the bytes stay until the control channel is at rest, and only one word is awaited at a
        // time.
        unsafe { control.post_receive(self.control, message) }
    }

    fn say_offer(&mut self, note: Note, shared: &mut Shared<'_>) -> PluginResult<()> {
        let Some(flow) = &self.flow else { return Ok(()) };
        let offer = shared.rail.offer(flow.number(), self.psn)?;
        self.say(note, offer.encode(), shared.control)
    }

    /// Hears a word of the peer.
    fn heard(&mut self, note: u64, shared: &mut Shared<'_>) -> PluginResult<()> {
        if note == Note::Farewell as u64 {
            let count = [self.heard[0], self.heard[1], self.heard[2], self.heard[3]];
            self.farewell = Some(u32::from_le_bytes(count));
            return Ok(());
        }
        if note == Note::Ready as u64 {
            self.listen(Note::Farewell, shared.control)?;
            self.be_open();
            return Ok(());
        }
        let offer = Offer::parse(&self.heard);
        let nonsense = || {
            let text = format!("{}: the peer's offer makes no sense", self.who());
            PluginError::new(Status::TransportError, text)
        };
        let offer = offer.ok_or_else(nonsense)?;
        let number = self.flow.as_ref().map_or(0, Flow::number);
        shared.rail.connect(&self.who(), number, self.psn, &offer)?;
        if note == Note::Offer as u64 {
            self.say_offer(Note::Answer, shared)?;
            return self.listen(Note::Ready, shared.control);
        }
        self.say(Note::Ready, [0; OFFER_BYTES], shared.control)?;
        self.listen(Note::Farewell, shared.control)?;
        self.be_open();
        Ok(())
    }

    fn be_open(&mut self) {
        self.state = State::Open;
        let Some(flow) = &mut self.flow else { return };
        for (kind, message) in self.early.drain(..) {
            match kind {
                completion_kind::SEND => flow.post_send(message),
                _ => flow.post_receive(message),
            }
        }
    }

    /// Takes a completion of the control channel.
    pub(crate) fn control_ended(&mut self, ended: &Completion, shared: &mut Shared<'_>) {
        let is_well = ended.outcome() == Status::Ok;
        match (ended.kind, is_well) {
            (completion_kind::RECEIVE, true) => {
                if let Err(error) = self.heard(ended.token, shared) {
                    self.fail(error, shared);
                }
            }
            (completion_kind::SEND, true) if ended.token == Note::Farewell as u64 => {
                if let State::Parting { is_said, .. } = &mut self.state {
                    *is_said = true;
                }
            }
            (completion_kind::CHANNEL_FAILED, _) => {
                if self.farewell.is_some() {
                    return;
                }
                if let State::Parting { until, .. } = &mut self.state {
                    // The peer is gone, or has parted as well.
                    *until = Instant::now();
                    return;
                }
                if !matches!(self.state, State::Opening | State::Open) {
                    return;
                }
                let why = shared.control.channel_state(self.control).err();
                let error = why.unwrap_or_else(|| {
                    PluginError::new(Status::PeerLost, format!("{}: the peer is gone", self.who()))
                });
                self.fail(error, shared);
            }
            _ => {}
        }
    }

    // --- Messages --------------------------------------------------------------------------------

    pub(crate) fn post(&mut self, kind: u32, message: Message) -> PluginResult<()> {
        let is_open = self.state()?;
        match &mut self.flow {
            Some(flow) if is_open && kind == completion_kind::SEND => flow.post_send(message),
            Some(flow) if is_open => flow.post_receive(message),
            _ => self.early.push((kind, message)),
        }
        Ok(())
    }

    /// Takes note of work that has ended.
    pub(crate) fn ended(&mut self, ended: Ended, shared: &mut Shared<'_>) {
        if matches!(self.state, State::Failed(_) | State::Ended) {
            // Its queue pair did not go.
            return;
        }
        let Some(flow) = &mut self.flow else { return };
        if let Err(trouble) = flow.ended(ended) {
            self.end_in_trouble(&trouble, shared);
        }
    }

    /// Moves on what can be moved.
    pub(crate) fn advance(&mut self, shared: &mut Shared<'_>) {
        if !matches!(self.state, State::Open) {
            return;
        }
        let Some(flow) = &mut self.flow else { return };
        let Shared { rail, regions, completions, .. } = &mut *shared;
        let mut tools = Tools { device: &mut *rail.device, regions, completions };
        if let Err(trouble) = flow.advance(&mut tools) {
            self.end_in_trouble(&trouble, shared);
            return;
        }
        let Some(said) = self.farewell.filter(|said| flow.heard == *said) else { return };
        debug_assert_eq!(said, flow.heard);
        if flow.has_arrived() {
            // The receives for the rest are still to come.
            return;
        }
        if flow.has_sends() || flow.has_receives() {
            let error = self.peer_has_closed();
            self.fail(error, shared);
        } else {
            self.let_go(shared.rail);
            self.state = State::Ended;
        }
    }

    // --- The end ---------------------------------------------------------------------------------

    fn end_in_trouble(&mut self, trouble: &Trouble, shared: &mut Shared<'_>) {
        if self.is_parting() {
            self.state = State::Parting { until: Instant::now(), is_said: true };
            return;
        }
        if let &Trouble::Mismatch { token, ref envelope, length, .. } = trouble {
            let completion = Completion::mismatch(self.handle, token, envelope, length);
            // It has its completion.
            self.fail_with(
                failure(&self.who(), &*shared.rail.device, trouble),
                Some(completion),
                shared,
            );
            return;
        }
        let error = failure(&self.who(), &*shared.rail.device, trouble);
        self.fail(error, shared);
    }

    fn fail(&mut self, error: PluginError, shared: &mut Shared<'_>) {
        self.fail_with(error, None, shared);
    }

    fn fail_with(
        &mut self,
        error: PluginError,
        mismatch: Option<Completion>,
        shared: &mut Shared<'_>,
    ) {
        if let Err(stays) = self.stop(&error, mismatch, shared) {
            let device = shared.rail.device.name();
            tracing::warn!(device, %stays, "a queue pair does not go, and keeps its messages");
        }
        let kind = completion_kind::CHANNEL_FAILED;
        shared.completions.push_back(Completion::failed(self.handle, 0, kind, &error));
        self.state = State::Failed(error);
    }

    /// Ends everything; posted memory is not touched any more.
    ///
    /// # Errors
    /// That the queue pair does not go: the device may still touch what is posted, which is not given back.
    /// It is tried again at the next call.
    pub(crate) fn quiesce(&mut self, shared: &mut Shared<'_>) -> PluginResult<()> {
        let error = match &self.state {
            State::Failed(error) => error.clone(),
            _ => PluginError::new(Status::Aborted, format!("{}: stopped", self.who())),
        };
        let stopped = self.stop(&error, None, shared);
        self.state = State::Failed(error);
        stopped
    }

    /// Gives back what was posted. See [`quiesce`](Self::quiesce).
    fn stop(
        &mut self,
        error: &PluginError,
        mismatch: Option<Completion>,
        shared: &mut Shared<'_>,
    ) -> PluginResult<()> {
        let released = self.release(shared.rail);
        self.hang_up(shared.control);
        let messages = released?;
        let skip = mismatch.as_ref().map(|mismatch| mismatch.token);
        shared.completions.extend(mismatch);
        for (kind, message) in messages {
            if kind == completion_kind::RECEIVE && skip == Some(message.token) {
                continue;
            }
            let completion = Completion::failed(self.handle, message.token, kind, error);
            shared.completions.push_back(completion);
        }
        Ok(())
    }

    /// Ends the control connection: the peer sees it, and no word is read or written any more.
    pub(crate) fn hang_up(&mut self, control: &mut TcpDomain) {
        // It refuses a channel that it does not know, and then does nothing for it either.
        let _ = control.quiesce(self.control, std::time::Duration::ZERO);
        self.is_lent = false;
    }

    /// Takes the queue pair away: after that no device touches memory for this channel. Gives what was
    /// posted and is not over.
    ///
    /// # Errors
    /// What the driver says; then the queue pair stays, and all that it may touch.
    fn release(&mut self, rail: &mut Rail) -> PluginResult<Vec<(u32, Message)>> {
        if let Some(number) = self.flow.as_ref().map(Flow::number) {
            if let Err(error) = rail.device.stop(number) {
                // It can go without that.
                tracing::debug!(device = rail.device.name(), %error, "a queue pair does not stop");
            }
            rail.device
                .destroy(number)
                .map_err(|error| failure(&self.who(), &*rail.device, &Trouble::Verbs(error)))?;
        }
        let mut messages = std::mem::take(&mut self.early);
        if let Some(flow) = self.flow.take() {
            let (block, posted) = flow.take_apart();
            messages.extend(posted);
            block.free(&mut *rail.device);
        }
        Ok(messages)
    }

    /// Takes away the queue pair of a channel that nobody asks for messages any more. If it does not go,
    /// what it may touch of the channel's own stays where it is.
    fn let_go(&mut self, rail: &mut Rail) {
        if let Err(error) = self.release(rail) {
            tracing::warn!(device = rail.device.name(), %error, "a queue pair does not go");
        }
    }

    /// Parts with the peer; whether something is left to do.
    pub(crate) fn part(&mut self, until: Instant, shared: &mut Shared<'_>) -> bool {
        let is_idle = self.early.is_empty()
            && self.flow.as_ref().is_some_and(|flow| !flow.has_sends() && !flow.has_receives());
        if !matches!(self.state, State::Open) || !is_idle {
            self.let_go(shared.rail);
            return false;
        }
        let Some(flow) = &mut self.flow else { return false };
        let mut words = [0; OFFER_BYTES];
        words[..4].copy_from_slice(&flow.said().to_le_bytes());
        // Its completion says that all before it has come.
        let asked = flow.return_credit(&mut *shared.rail.device).is_ok();
        if !asked || self.say(Note::Farewell, words, shared.control).is_err() {
            self.let_go(shared.rail);
            return false;
        }
        self.state = State::Parting { until, is_said: false };
        true
    }

    /// Whether parting is over; then the queue pair is gone.
    pub(crate) fn has_parted(&mut self, now: Instant, rail: &mut Rail) -> bool {
        let State::Parting { until, is_said } = self.state else { return true };
        let is_drained = self.flow.as_ref().is_none_or(Flow::is_drained);
        let is_over = (is_drained && is_said) || now >= until;
        if is_over {
            self.let_go(rail);
        }
        is_over
    }

    pub(crate) fn parting_deadline(&self) -> Option<Instant> {
        match self.state {
            State::Parting { until, .. } => Some(until),
            _ => None,
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.is_lent {
            return;
        }
        // A word that comes now would be written into somebody else's memory.
        std::mem::forget(std::mem::take(&mut self.said));
        std::mem::forget(std::mem::replace(&mut self.heard, Box::new([0; OFFER_BYTES])));
        debug_assert!(std::thread::panicking(), "{}: its control connection lives", self.who());
    }
}
