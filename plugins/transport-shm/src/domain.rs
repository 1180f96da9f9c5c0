//! A domain: the transport's functions, and what drives the channels.
//!
//! `progress` reads the own doorbell and goes through the channels only if it was rung, if
//! something was posted since, or if a send waits for room. The sockets are looked at now and then
//! (they only tell of new connections and of peers that ended), and always before sleeping.

use std::collections::VecDeque;
use std::os::fd::{AsFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{
    ChannelRequest, CompletionSink, DomainRequest, PluginError, PluginResult, PostedMessage,
    Progress, TransportDomain,
};
use iccl_plugin_api::tables::{Completion, completion_kind};
use iccl_wire::Key;

use crate::address::Address;
use crate::channel::{Channel, Dialing, Phase, Surroundings};
use crate::connect::Identity;
use crate::events::{Events, Source};
use crate::link::{End, Posted, Stop, closed};
use crate::lobby::Lobby;
use crate::ring::Cursor;
use crate::wake::{OwnBell, ShmWaker};

/// The longest sleep on the doorbell between two looks at the sockets: a peer that was killed
/// cannot ring.
const SLICE: Duration = Duration::from_millis(25);
/// How often a domain that is driven without sleeping looks at its sockets: while channels are
/// being connected, and otherwise.
const LOOK_WHILE_CONNECTING: Duration = Duration::from_micros(20);
const LOOK: Duration = Duration::from_millis(5);
/// Calls of `progress` between two looks at the clock.
const CALLS_PER_LOOK_AT_CLOCK: u32 = 32;
/// Sockets looked at in one go.
const SOURCES: usize = 64;
/// Sends of at most this many bytes are written by `post_send` itself.
const SEND_NOW_BYTES: u64 = 8192;

/// One communicator's use of shared memory in one process.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent reasons to do something")]
pub struct ShmDomain {
    identity: Identity,
    ranks: u32,
    address: Address,
    ring_bytes: u64,
    connect_timeout: Duration,
    events: Events,
    lobby: Lobby,
    bell: Arc<OwnBell>,
    /// The doorbell's count when the channels were last gone through.
    seen: u32,
    slots: Vec<Slot>,
    /// Channels that are not open yet.
    setting_up: usize,
    /// Completions that found no room yet.
    ready: VecDeque<Completion>,
    /// The channels are to be gone through whatever the doorbell says.
    dirty: bool,
    /// A send waits for room.
    blocked: bool,
    /// The sockets are to be looked at.
    look: bool,
    /// `arm` has announced that the runtime polls the descriptor.
    armed: bool,
    calls: u32,
    looked: Instant,
    /// The process that opened it; a forked child must not speak for it.
    process: u32,
}

/// A place for a channel. The generation makes handles of earlier tenants invalid.
#[derive(Debug)]
struct Slot {
    generation: u32,
    channel: Option<Box<Channel>>,
}

const GENERATIONS: u32 = (1 << 24) - 1;

impl ShmDomain {
    pub(crate) fn open(request: &DomainRequest<'_>, ring_bytes: u64) -> PluginResult<Self> {
        let address = Address::generate()?;
        let events = Events::new()?;
        let lobby = Lobby::open(&address, request.handshake_timeout, &events)?;
        let bell = Arc::new(OwnBell::new()?);
        events.watch(bell.event(), Source::Bell)?;
        let key = Key::from_bytes(*request.job_key)
            .derive("shm channels", &request.communicator.to_le_bytes());
        Ok(Self {
            identity: Identity { key, communicator: request.communicator, rank: request.rank },
            ranks: request.ranks,
            address,
            ring_bytes,
            connect_timeout: request.connect_timeout,
            events,
            lobby,
            seen: bell.count(),
            bell,
            slots: Vec::new(),
            setting_up: 0,
            ready: VecDeque::new(),
            dirty: false,
            blocked: false,
            look: false,
            armed: false,
            calls: 0,
            looked: Instant::now(),
            process: std::process::id(),
        })
    }

    fn find(&self, handle: u64) -> PluginResult<usize> {
        let index = (handle & u64::from(u32::MAX)) as usize;
        match self.slots.get(index) {
            Some(Slot { channel: Some(channel), .. }) if channel.handle == handle => Ok(index),
            _ => Err(PluginError::invalid(format!("{handle:#x} is no channel of this domain"))),
        }
    }

    fn free_slot(&mut self) -> usize {
        self.slots.iter().position(|slot| slot.channel.is_none()).unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, channel: None });
            self.slots.len() - 1
        })
    }

    /// Runs `step` on a channel that is being connected, and fails the channel if that fails.
    fn set_up(
        &mut self,
        index: usize,
        step: impl FnOnce(&mut Channel, &Surroundings<'_>) -> PluginResult<()>,
    ) {
        let surroundings = Surroundings {
            identity: &self.identity,
            events: &self.events,
            bell: &self.bell,
            ring_bytes: self.ring_bytes,
        };
        let Some(channel) = self.slots[index].channel.as_deref_mut() else { return };
        if !channel.is_setting_up() {
            return;
        }
        if let Err(error) = step(channel, &surroundings) {
            self.fail(index, &error, closed::ABORTED);
        } else if !channel.is_setting_up() {
            self.setting_up -= 1;
            // The peer could not ring before, and messages may have been posted.
            self.dirty = true;
        }
    }

    /// Ends a channel and tells so once.
    fn fail(&mut self, index: usize, error: &PluginError, reason: u32) {
        let Some(channel) = self.slots[index].channel.as_deref_mut() else { return };
        tracing::debug!(peer = channel.peer, channel = channel.number, %error, "channel failed");
        let failure = Completion::failed(channel.handle, 0, completion_kind::CHANNEL_FAILED, error);
        self.setting_up -= usize::from(channel.is_setting_up());
        channel.end(error, reason, &self.events, &mut self.ready);
        self.ready.push_back(failure);
    }

    /// Accepts, listens to handshakes, notices who has ended and what is late.
    fn look_at_sockets(&mut self) -> PluginResult<()> {
        let sources = self.events.readable(SOURCES)?;
        self.look = sources.len() == SOURCES;
        for source in sources {
            match source {
                Source::Listener => self.lobby.accept(&self.identity, &self.events)?,
                Source::Bell => self.bell.drain_event(),
                Source::Timer => self.events.clear_alarm(),
                Source::Guest(guest) => {
                    if self.lobby.hear(guest, &self.events)? {
                        self.introduce(guest);
                    }
                }
                Source::Socket(handle) | Source::Process(handle) => self.hear(handle),
            }
        }
        let now = Instant::now();
        self.looked = now;
        for index in 0..self.slots.len() {
            if let Some(channel) = &self.slots[index].channel
                && let Phase::Dialing(dialing) = &channel.phase
                && dialing.due() <= now
            {
                self.set_up(index, Channel::dial);
            }
        }
        let late_guest = self.lobby.tidy(now, &self.events)?;
        let dialers = self.slots.iter().filter_map(|slot| match &slot.channel.as_ref()?.phase {
            Phase::Dialing(dialing) => Some(dialing.due()),
            _ => None,
        });
        let alarm = dialers.chain(late_guest).min();
        self.events.set_alarm(alarm)
    }

    /// Joins a peer that waits in the lobby with the channel that waits for it.
    fn introduce(&mut self, guest: u64) {
        let Some((peer, number)) = self.lobby.wish(guest) else { return };
        let index = self.slots.iter().position(|slot| {
            slot.channel.as_ref().is_some_and(|channel| {
                matches!(channel.phase, Phase::Accepting)
                    && (channel.peer, channel.number) == (peer, number)
            })
        });
        if let Some(index) = index {
            self.welcome(index);
        }
    }

    /// If the peer of an accepting channel waits in the lobby, the two are joined.
    fn welcome(&mut self, index: usize) {
        let Some(channel) = &self.slots[index].channel else { return };
        if let Some(caller) = self.lobby.take(channel.peer, channel.number, &self.events) {
            self.set_up(index, |channel, surroundings| channel.accept(caller, surroundings));
        }
    }

    /// Something came from, or the end came to, a channel's socket or its peer's process.
    fn hear(&mut self, handle: u64) {
        let Ok(index) = self.find(handle) else { return };
        let Some(channel) = self.slots[index].channel.as_deref_mut() else { return };
        if let Phase::Open(link) = &mut channel.phase {
            // An open channel's socket carries nothing, so it is the end.
            link.vanished = true;
            self.events.forget(link.socket.as_fd());
            if let Some(process) = &link.process {
                self.events.forget(process.as_fd());
            }
            self.dirty = true;
        } else {
            self.set_up(index, Channel::dial);
        }
    }

    /// Goes through the channels and moves what can be moved.
    fn advance_channels(&mut self) {
        (self.dirty, self.blocked) = (false, false);
        for index in 0..self.slots.len() {
            let Some(channel) = self.slots[index].channel.as_deref_mut() else { continue };
            let Phase::Open(link) = &mut channel.phase else { continue };
            if channel.queues.is_empty() && !link.peer_has_ended() {
                continue;
            }
            match link.advance(channel.handle, &mut channel.queues, &mut self.ready) {
                Ok(advanced) => {
                    self.dirty |= advanced.more;
                    self.blocked |= advanced.blocked;
                    if let Some(end) = advanced.ended {
                        self.peer_ended(index, end);
                    }
                }
                Err(Stop::Failed(error)) => self.fail(index, &error, closed::ABORTED),
                Err(Stop::Unexpected(came)) => {
                    if let Some(expected) = channel.queues.receives.pop_front() {
                        self.ready.push_back(Completion::mismatch(
                            channel.handle,
                            expected.token,
                            &came.envelope,
                            came.length,
                        ));
                    }
                    let message = format!("another message came from rank {}", channel.peer);
                    let error = PluginError::new(Status::Mismatch, message);
                    self.fail(index, &error, closed::MISMATCH);
                }
            }
        }
    }

    fn peer_ended(&mut self, index: usize, end: End) {
        let Some(channel) = self.slots[index].channel.as_deref_mut() else { return };
        let peer = channel.peer;
        let (status, message) = match end {
            End::Said(closed::ORDERLY) => {
                (Status::PeerLost, format!("rank {peer} has closed the channel"))
            }
            End::Said(closed::MISMATCH) => {
                (Status::Mismatch, format!("rank {peer} expected another message"))
            }
            End::Said(_) => (Status::PeerLost, format!("rank {peer} has aborted the channel")),
            End::Vanished => (
                Status::PeerLost,
                format!("rank {peer} is gone: it ended without closing the channel"),
            ),
        };
        let error = PluginError::new(status, message);
        if end == End::Said(closed::ORDERLY) && channel.queues.is_empty() {
            channel.end(&error, closed::ORDERLY, &self.events, &mut self.ready);
        } else {
            self.fail(index, &error, closed::ABORTED);
        }
    }

    fn deliver(&mut self, completions: &mut CompletionSink<'_>) {
        while !completions.is_full()
            && let Some(completion) = self.ready.pop_front()
        {
            completions.put(completion);
        }
    }

    /// Whether `progress` has something to do now.
    fn has_work(&self) -> bool {
        self.dirty || self.look || !self.ready.is_empty() || self.bell.count() != self.seen
    }

    /// Before sleeping: asks peers for room where sends wait for it. Whether there is some now.
    fn ask_for_room(&mut self) -> bool {
        if !self.blocked {
            return false;
        }
        let mut room = false;
        for slot in &mut self.slots {
            if let Some(channel) = slot.channel.as_deref_mut()
                && let Phase::Open(link) = &mut channel.phase
                && !channel.queues.sends.is_empty()
            {
                // What is corrupted is told by the next `progress`.
                room |= link.ask_for_room().unwrap_or(true);
            }
        }
        self.dirty |= room;
        room
    }

    /// Whether the runtime polled until now.
    fn disarm(&mut self) -> bool {
        if self.armed {
            self.bell.awake();
        }
        std::mem::take(&mut self.armed)
    }
}

/// The time after `duration`; one beyond the clock's end is a year, nearly.
pub(crate) fn after(duration: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(duration).unwrap_or_else(|| now + Duration::from_secs(1 << 25))
}

/// # Safety
/// As [`Cursor::new`].
unsafe fn posted(message: &PostedMessage<'_>) -> Posted {
    Posted {
        token: message.token,
        length: message.length(),
        envelope: *message.envelope,
        // SAFETY: the caller's promise.
        cursor: unsafe { Cursor::new(message.segments) },
    }
}

impl TransportDomain for ShmDomain {
    type Waker = ShmWaker;

    fn address(&self) -> PluginResult<Vec<u8>> {
        Ok(self.address.encode())
    }

    fn channel_open(&mut self, request: &ChannelRequest<'_>) -> PluginResult<u64> {
        if request.peer >= self.ranks {
            return Err(PluginError::invalid(format!(
                "rank {} of {} ranks does not exist",
                request.peer, self.ranks
            )));
        }
        let phase = if request.dial {
            let address = Address::decode(request.address)?;
            let deadline = after(self.connect_timeout);
            Phase::Dialing(Dialing::new(address, deadline))
        } else {
            Phase::Accepting
        };
        let taken = self.slots.iter().filter_map(|slot| slot.channel.as_ref()).any(|channel| {
            (channel.peer, channel.number, channel.dials)
                == (request.peer, request.channel, request.dial)
                && !matches!(channel.phase, Phase::Over(_))
        });
        if taken {
            return Err(PluginError::invalid(format!(
                "channel {} with rank {} is open already",
                request.channel, request.peer
            )));
        }
        let index = self.free_slot();
        let slot = &mut self.slots[index];
        slot.generation = slot.generation % GENERATIONS + 1;
        let handle = u64::from(slot.generation) << 32 | index as u64;
        slot.channel = Some(Box::new(Channel {
            handle,
            peer: request.peer,
            number: request.channel,
            dials: request.dial,
            link_digest: request.link_digest,
            phase,
            queues: crate::link::Queues::default(),
        }));
        self.setting_up += 1;
        if request.dial {
            self.set_up(index, Channel::dial);
        } else {
            self.welcome(index);
        }
        self.look = true;
        Ok(handle)
    }

    fn channel_state(&self, channel: u64) -> PluginResult<Progress> {
        let index = self.find(channel)?;
        match self.slots[index].channel.as_ref().map(|channel| &channel.phase) {
            Some(Phase::Open(_)) => Ok(Progress::Done),
            Some(Phase::Over(error)) => Err(error.clone()),
            _ => Ok(Progress::Pending),
        }
    }

    unsafe fn post_send(&mut self, channel: u64, message: PostedMessage<'_>) -> PluginResult<()> {
        let index = self.find(channel)?;
        message.checked_length()?;
        let Some(channel) = self.slots[index].channel.as_deref_mut() else { return Ok(()) };
        if let Phase::Over(error) = &channel.phase {
            return Err(error.clone());
        }
        let first = channel.queues.sends.is_empty();
        // SAFETY: the segments are as the caller promised, and the queue forgets the cursor before
        // it completes the message.
        channel.queues.sends.push_back(unsafe { posted(&message) });
        if first
            && message.length() <= SEND_NOW_BYTES
            && let Phase::Open(link) = &mut channel.phase
            && !link.peer_has_ended()
            && let Err(error) =
                link.send_now(channel.handle, &mut channel.queues.sends, &mut self.ready)
        {
            // The completion tells.
            self.fail(index, &error, closed::ABORTED);
        } else {
            self.dirty |= !channel.queues.sends.is_empty();
        }
        Ok(())
    }

    unsafe fn post_receive(
        &mut self,
        channel: u64,
        message: PostedMessage<'_>,
    ) -> PluginResult<()> {
        let index = self.find(channel)?;
        message.checked_length()?;
        let Some(channel) = self.slots[index].channel.as_deref_mut() else { return Ok(()) };
        if let Phase::Over(error) = &channel.phase {
            return Err(error.clone());
        }
        // SAFETY: as in `post_send`.
        channel.queues.receives.push_back(unsafe { posted(&message) });
        self.dirty = true;
        Ok(())
    }

    fn progress(&mut self, completions: &mut CompletionSink<'_>) -> PluginResult<()> {
        // What made the descriptor readable may be a socket.
        self.look |= self.disarm();
        self.calls = self.calls.wrapping_add(1);
        if self.setting_up > 0 || self.calls.is_multiple_of(CALLS_PER_LOOK_AT_CLOCK) {
            let pause = if self.setting_up > 0 { LOOK_WHILE_CONNECTING } else { LOOK };
            self.look |= self.looked.elapsed() >= pause;
        }
        if self.look {
            self.look_at_sockets()?;
        }
        let count = self.bell.count();
        if count != self.seen || self.dirty || self.blocked {
            self.seen = count;
            self.advance_channels();
        }
        self.deliver(completions);
        Ok(())
    }

    fn arm(&mut self) -> PluginResult<Progress> {
        self.disarm();
        if self.has_work() || self.ask_for_room() || !self.bell.prepare_event(self.seen) {
            return Ok(Progress::Done);
        }
        self.armed = true;
        Ok(Progress::Pending)
    }

    fn event_descriptor(&self) -> RawFd {
        self.events.descriptor()
    }

    fn wait(&mut self, timeout: Duration) -> PluginResult<()> {
        self.disarm();
        let end = Instant::now().checked_add(timeout);
        loop {
            if self.bell.take_woken() || self.has_work() || self.ask_for_room() {
                return Ok(());
            }
            let left = end.map_or(SLICE, |end| end.saturating_duration_since(Instant::now()));
            if self.setting_up > 0 {
                // Connections ring no doorbell, so wait for both.
                if !self.bell.prepare_event(self.seen) {
                    return Ok(());
                }
                self.look = self.events.wait(left.min(4 * SLICE))?;
                self.bell.awake();
            } else {
                self.bell.sleep(self.seen, left.min(SLICE));
                if self.bell.count() == self.seen {
                    self.look = self.events.wait(Duration::ZERO)?;
                }
            }
            if left.is_zero() {
                return Ok(());
            }
        }
    }

    fn waker(&self) -> ShmWaker {
        ShmWaker { bell: Arc::clone(&self.bell) }
    }

    fn quiesce(&mut self, channel: u64, _timeout: Duration) -> PluginResult<()> {
        // The peer writes to the ring only. The memory of posted messages is touched by this
        // domain's own functions alone, so having forgotten it is proof.
        let index = self.find(channel)?;
        let Some(channel) = self.slots[index].channel.as_deref_mut() else { return Ok(()) };
        self.setting_up -= usize::from(channel.is_setting_up());
        let error = PluginError::new(Status::Aborted, "the channel was stopped on this side");
        channel.end(&error, closed::ABORTED, &self.events, &mut self.ready);
        Ok(())
    }

    fn channel_close(&mut self, channel: u64) -> PluginResult<()> {
        let index = self.find(channel)?;
        let Some(mut channel) = self.slots[index].channel.take() else { return Ok(()) };
        self.setting_up -= usize::from(channel.is_setting_up());
        let error = PluginError::new(Status::Aborted, "the channel was closed on this side");
        let reason = channel.closing_reason();
        channel.end(&error, reason, &self.events, &mut self.ready);
        Ok(())
    }
}

impl Drop for ShmDomain {
    fn drop(&mut self) {
        // A forked child has copies of the descriptors and of the mappings, and lets go of those;
        // the channels are still its parent's.
        if std::process::id() != self.process {
            return;
        }
        self.lobby.close();
        for slot in &mut self.slots {
            if let Some(channel) = slot.channel.as_deref_mut() {
                let error = PluginError::new(Status::Aborted, "the domain was closed");
                let reason = channel.closing_reason();
                channel.end(&error, reason, &self.events, &mut self.ready);
            }
        }
    }
}
