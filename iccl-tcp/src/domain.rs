//! A domain: one communicator's listener, channels and readiness in this process.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{
    ChannelRequest, CompletionSink, DomainRequest, PluginError, PluginResult, PostedMessage,
    Progress, TransportDomain, Waker,
};
use iccl_wire::{Claim, Key};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::address;
use crate::channel::{Channel, Names};
use crate::core::{Core, Identity};
use crate::dialer::Dialer;
use crate::framing::Message;
use crate::greeting::Terms;
use crate::newcomers::{Arrival, Newcomers};
use crate::opening::Opening;
use crate::parting::Parting;
use crate::poller::{Owner, Poller};
use crate::settings::TcpSettings;
use crate::socket::listen;

/// With so few channels that have something to do, their sockets are tried directly, which is
/// faster than to ask the kernel first.
const FEW_CHANNELS: usize = 2;

/// Then the kernel is asked for other news only every so many calls of `progress`.
const CALLS_BETWEEN_NEWS: u32 = 32;

/// A domain of the TCP transport.
#[derive(Debug)]
pub struct TcpDomain {
    core: Core,
    newcomers: Newcomers,
    waker: Arc<OwnedFd>,
    timer: OwnedFd,
    channels: Vec<Option<Box<Channel>>>,
    /// How often a place of `channels` was given away; part of the handle.
    generations: Vec<u32>,
    free: Vec<usize>,
    /// Places by peer, number and whether this side dials.
    by_name: HashMap<(u32, u64, bool), usize>,
    /// Connections for channels that are not open here yet, by peer and number.
    parked: HashMap<(u32, u64), Vec<Arrival>>,
    opening: Vec<usize>,
    active: Vec<usize>,
    parting: Vec<Parting>,
    next_checkup: Option<Instant>,
    calls_since_news: u32,
    /// The process that opened it: a forked child must not disturb the peers.
    process: rustix::process::Pid,
}

impl TcpDomain {
    /// Opens a domain and begins to listen.
    ///
    /// # Errors
    /// `InvalidArgument` for an interface that is none; what the operating system says.
    pub fn open(request: &DomainRequest<'_>, settings: &TcpSettings) -> PluginResult<Self> {
        let is_one_host = request.local_ranks == request.ranks;
        let wanted = address::choose(request.interface, is_one_host)?;
        let system = |what: &'static str| {
            move |error: io::Error| PluginError::system(Status::TransportError, what, &error)
        };
        let listener = listen(wanted, settings).map_err(|error| {
            let what = format!("listening on {}", wanted.ip());
            PluginError::system(Status::TransportError, what, &error)
        })?;
        let local = listener.local_addr().map_err(system("getsockname"))?;
        let here = local.as_socket().unwrap_or(wanted);
        let mut poller = Poller::new().map_err(system("epoll"))?;
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| system("eventfd")(error.into()))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|error| system("timerfd")(error.into()))?;
        let token = poller.add(listener.as_fd(), Owner::Listener).map_err(system("epoll"))?;
        poller.add(waker.as_fd(), Owner::Waker).map_err(system("epoll"))?;
        poller.add(timer.as_fd(), Owner::Timer).map_err(system("epoll"))?;
        let identity = Identity {
            key: Key::from_bytes(*request.job_key)
                .derive("iccl tcp data", &request.communicator.to_le_bytes()),
            communicator: request.communicator,
            rank: request.rank,
            ranks: request.ranks,
            here,
            settings: settings.clone(),
            handshake_timeout: request.handshake_timeout,
            connect_timeout: request.connect_timeout,
        };
        Ok(Self {
            core: Core { identity, poller, completions: VecDeque::new() },
            newcomers: Newcomers::new(listener, token),
            waker: Arc::new(waker),
            timer,
            channels: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            by_name: HashMap::new(),
            parked: HashMap::new(),
            opening: Vec::new(),
            active: Vec::new(),
            parting: Vec::new(),
            next_checkup: None,
            calls_since_news: 0,
            process: rustix::process::getpid(),
        })
    }

    /// Where it listens.
    pub fn listens_on(&self) -> SocketAddr {
        self.core.identity.here
    }

    // --- The table of channels -----------------------------------------------------------------

    fn place_of(&self, handle: u64) -> PluginResult<usize> {
        let place = (handle as u32).wrapping_sub(1) as usize;
        let is_live = self.channels.get(place).is_some_and(Option::is_some)
            && self.generations[place] == (handle >> 32) as u32;
        is_live
            .then_some(place)
            .ok_or_else(|| PluginError::invalid(format!("{handle} is no channel")))
    }

    fn channel(&self, handle: u64) -> PluginResult<&Channel> {
        let place = self.place_of(handle)?;
        self.channels[place].as_deref().ok_or_else(|| PluginError::invalid("no channel"))
    }

    fn channel_mut(&mut self, handle: u64) -> PluginResult<&mut Channel> {
        let place = self.place_of(handle)?;
        self.channels[place].as_deref_mut().ok_or_else(|| PluginError::invalid("no channel"))
    }

    fn new_place(&mut self) -> (usize, u64) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.channels.push(None);
            self.generations.push(0);
            self.channels.len() - 1
        });
        (place, u64::from(self.generations[place]) << 32 | (place as u64 + 1))
    }

    fn activate(&mut self, handle: u64) -> PluginResult<()> {
        let channel = self.channel_mut(handle)?;
        if !std::mem::replace(&mut channel.is_active, true) {
            let place = channel.place;
            self.active.push(place);
        }
        Ok(())
    }

    // --- News ----------------------------------------------------------------------------------

    /// Does what the kernel's news and the clock ask for, beside moving payloads.
    fn serve(&mut self) {
        let now = Instant::now();
        let mut arrivals = Vec::new();
        self.newcomers.step(&mut self.core, now, &mut arrivals);
        for arrival in arrivals {
            self.take_in(arrival, now);
        }
        if !self.opening.is_empty() {
            self.step_opening(now);
        }
        let poller = &mut self.core.poller;
        self.parting.retain_mut(|parting| !parting.step(poller, now));
        while let Some(place) = self.core.poller.next_hung_up() {
            if let Some(channel) = self.channels.get_mut(place).and_then(Option::as_deref_mut) {
                channel.move_bytes(&mut self.core, true);
            }
        }
        if self.next_checkup.is_some_and(|checkup| now >= checkup) {
            for channel in self.channels.iter_mut().flatten() {
                channel.look_after(&mut self.core);
            }
            self.next_checkup = Some(now + self.core.identity.settings.user_timeout / 4);
        }
    }

    fn step_opening(&mut self, now: Instant) {
        let Self { opening, channels, core, newcomers, .. } = self;
        opening.retain(|&place| {
            let Some(channel) = channels[place].as_deref_mut() else { return false };
            channel.step_opening(core, now, newcomers.last_dropped());
            channel.opening().is_some()
        });
    }

    /// Gives a proven connection to its channel, or keeps it until the channel is opened.
    fn take_in(&mut self, arrival: Arrival, now: Instant) {
        let (peer, number) = (arrival.claim.dialer as u32, arrival.claim.channel);
        let Some(&place) = self.by_name.get(&(peer, number, false)) else {
            let parked = self.parked.entry((peer, number)).or_default();
            // A second one for the same socket means that the peer gave the first one up.
            let lane = arrival.terms.lane;
            let same = parked.iter().position(|parked| parked.terms.lane == lane);
            if let Some(index) = same {
                parked.swap_remove(index).connection.close(&mut self.core.poller);
            }
            parked.push(arrival);
            return;
        };
        let Some(channel) = self.channels[place].as_deref_mut() else { return };
        if let Err((connection, reason)) = channel.attach(arrival, &mut self.core) {
            let from = connection.socket.peer_addr().ok().and_then(|from| from.as_socket());
            let reason = format!("rank {peer}, channel {number}: {reason}");
            self.newcomers.complain(from, &reason, now);
            connection.close(&mut self.core.poller);
        }
    }

    /// Whether `progress` has something to do without waiting, by what the kernel has said so far.
    fn is_ready(&self) -> bool {
        let poller = &self.core.poller;
        let channel = |place: &usize| self.channels[*place].as_deref();
        !self.core.completions.is_empty()
            || poller.has_hung_up()
            || self.newcomers.is_ready(poller)
            || self.parting.iter().any(|parting| parting.is_ready(poller))
            || self.active.iter().filter_map(channel).any(|channel| channel.is_ready(poller))
            || self
                .opening
                .iter()
                .filter_map(channel)
                .filter_map(Channel::opening)
                .any(|opening| opening.is_ready(poller))
    }

    /// When `progress` is to be called at the latest.
    fn next_deadline(&self) -> Option<Instant> {
        let opening = self.opening.iter().filter_map(|&place| self.channels[place].as_deref());
        opening
            .filter_map(Channel::opening)
            .filter_map(Opening::next_deadline)
            .chain(self.parting.iter().map(Parting::deadline))
            .chain(self.newcomers.next_deadline())
            .chain(self.next_checkup)
            .min()
    }

    /// Takes the kernel's news and says whether `progress` has something to do; if not, until when
    /// it may be left alone.
    fn prepare_to_sleep(&mut self) -> PluginResult<Result<(), Option<Duration>>> {
        // What the next call of `progress` finds is to be found at once.
        self.calls_since_news = CALLS_BETWEEN_NEWS;
        self.harvest(Duration::ZERO)?;
        if self.is_ready() {
            return Ok(Ok(()));
        }
        let now = Instant::now();
        let left = self.next_deadline().map(|deadline| deadline.saturating_duration_since(now));
        Ok(if left.is_some_and(|left| left.is_zero()) { Ok(()) } else { Err(left) })
    }

    fn harvest(&mut self, timeout: Duration) -> PluginResult<()> {
        let news = self.core.poller.harvest(timeout);
        news.map_err(|error| PluginError::system(Status::TransportError, "epoll", &error))
    }

    fn deliver(&mut self, sink: &mut CompletionSink<'_>) {
        while !sink.is_full() {
            let Some(completion) = self.core.completions.pop_front() else { return };
            sink.put(completion);
        }
    }
}

impl TransportDomain for TcpDomain {
    type Waker = TcpWaker;

    fn address(&self) -> PluginResult<Vec<u8>> {
        Ok(address::encode(&[self.core.identity.here]))
    }

    fn channel_open(&mut self, request: &ChannelRequest<'_>) -> PluginResult<u64> {
        let &ChannelRequest { peer, dial, channel: number, link_digest, address } = request;
        let identity = &self.core.identity;
        if peer >= identity.ranks {
            return Err(PluginError::invalid(format!(
                "there is no rank {peer} among {}",
                identity.ranks
            )));
        }
        let name = (peer, number, dial);
        if self.by_name.contains_key(&name) {
            return Err(PluginError::invalid(format!(
                "channel {number} to rank {peer} is open already"
            )));
        }
        let now = Instant::now();
        let timeout = identity.connect_timeout;
        let addresses = if dial { address::decode(address, identity.here)? } else { Vec::new() };
        let is_same_host = addresses.iter().all(|&peer| identity.is_same_host(peer));
        let layout = identity.settings.layout(is_same_host);
        let dialers: Vec<_> = if dial {
            let (dialer, acceptor) = (u64::from(identity.rank), u64::from(peer));
            let claim = Claim { dialer, acceptor, channel: number };
            (0..layout.lanes)
                .map(|lane| {
                    let terms = Terms { link_digest, layout, lane };
                    Dialer::new(addresses.clone(), claim, terms, now, timeout)
                })
                .collect()
        } else {
            Vec::new()
        };
        if !identity.settings.user_timeout.is_zero() && self.next_checkup.is_none() {
            self.next_checkup = Some(now + identity.settings.user_timeout / 4);
        }
        let (place, handle) = self.new_place();
        let names = Names { place, handle, peer, number, link_digest };
        let opening =
            if dial { Opening::dial(layout, dialers) } else { Opening::await_peer(now + timeout) };
        self.channels[place] = Some(Box::new(Channel::new(names, opening)));
        self.by_name.insert(name, place);
        self.opening.push(place);
        if !dial {
            for arrival in self.parked.remove(&(peer, number)).unwrap_or_default() {
                self.take_in(arrival, now);
            }
        }
        Ok(handle)
    }

    fn channel_state(&self, channel: u64) -> PluginResult<Progress> {
        let is_open = self.channel(channel)?.state()?;
        Ok(if is_open { Progress::Done } else { Progress::Pending })
    }

    unsafe fn post_send(&mut self, channel: u64, message: PostedMessage<'_>) -> PluginResult<()> {
        let message = Message::posted(&message)?;
        self.channel_mut(channel)?.post_send(message)?;
        self.activate(channel)
    }

    unsafe fn post_receive(
        &mut self,
        channel: u64,
        message: PostedMessage<'_>,
    ) -> PluginResult<()> {
        let message = Message::posted(&message)?;
        self.channel_mut(channel)?.post_receive(message)?;
        self.activate(channel)
    }

    fn progress(&mut self, completions: &mut CompletionSink<'_>) -> PluginResult<()> {
        self.deliver(completions);
        if completions.is_full() {
            return Ok(());
        }
        let is_eager = self.active.len() <= FEW_CHANNELS;
        let is_news_due = !is_eager
            || self.calls_since_news >= CALLS_BETWEEN_NEWS
            || !self.opening.is_empty()
            || !self.newcomers.is_empty()
            || !self.parting.is_empty();
        if is_news_due {
            self.calls_since_news = 0;
            self.harvest(Duration::ZERO)?;
            self.serve();
        }
        self.calls_since_news += 1;
        let Self { active, channels, core, calls_since_news, .. } = self;
        active.retain(|&place| {
            let Some(channel) = channels[place].as_deref_mut() else { return false };
            channel.move_bytes(core, is_eager);
            if channel.is_blocked(&core.poller) {
                *calls_since_news = CALLS_BETWEEN_NEWS;
            }
            channel.is_active = channel.has_messages();
            channel.is_active
        });
        self.deliver(completions);
        Ok(())
    }

    fn arm(&mut self) -> PluginResult<Progress> {
        let left = match self.prepare_to_sleep()? {
            Ok(()) => return Ok(Progress::Done),
            Err(left) => left.unwrap_or(Duration::ZERO),
        };
        // Zero switches the timer off.
        let it_value = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = Itimerspec { it_interval, it_value };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting).map_err(
            |error| PluginError::system(Status::TransportError, "timerfd", &error.into()),
        )?;
        Ok(Progress::Pending)
    }

    fn event_descriptor(&self) -> RawFd {
        self.core.poller.descriptor()
    }

    fn wait(&mut self, timeout: Duration) -> PluginResult<()> {
        let Err(left) = self.prepare_to_sleep()? else { return Ok(()) };
        if !self.core.poller.take_woken() {
            self.harvest(timeout.min(left.unwrap_or(timeout)))?;
            self.core.poller.take_woken();
        }
        Ok(())
    }

    fn waker(&self) -> TcpWaker {
        TcpWaker { eventfd: Arc::clone(&self.waker) }
    }

    fn quiesce(&mut self, channel: u64, _timeout: Duration) -> PluginResult<()> {
        // The kernel copies in and out of lent memory only during our calls, so nothing can be
        // under way and there is nothing to wait for.
        let place = self.place_of(channel)?;
        if let Some(channel) = self.channels[place].as_deref_mut() {
            channel.quiesce(&mut self.core);
        }
        Ok(())
    }

    fn channel_close(&mut self, channel: u64) -> PluginResult<()> {
        let place = self.place_of(channel)?;
        let Some(channel) = self.channels[place].take() else { return Ok(()) };
        self.by_name.remove(&(channel.peer, channel.number, channel.is_dialer));
        self.opening.retain(|&other| other != place);
        self.active.retain(|&other| other != place);
        self.generations[place] = self.generations[place].wrapping_add(1);
        self.free.push(place);
        let poller = &mut self.core.poller;
        if let Some((connections, sender)) = channel.part(poller) {
            let now = Instant::now();
            let mut parting = Parting::new(connections, sender, poller, now);
            if !parting.step(poller, now) {
                self.parting.push(parting);
            }
        }
        Ok(())
    }
}

impl Drop for TcpDomain {
    fn drop(&mut self) {
        // In a forked child the sockets and the epoll instance are the parent's as well: only this
        // process's descriptors are closed, which dropping the fields does.
        if rustix::process::getpid() != self.process {
            return;
        }
        let now = Instant::now();
        let poller = &mut self.core.poller;
        for channel in self.channels.drain(..).flatten() {
            if let Some((connections, sender)) = channel.part(poller) {
                self.parting.push(Parting::new(connections, sender, poller, now));
            }
        }
        for parting in &mut self.parting {
            if !parting.step(poller, now) {
                parting.close(poller);
            }
        }
    }
}

/// Wakes a [`TcpDomain`] that waits.
#[derive(Debug, Clone)]
pub struct TcpWaker {
    eventfd: Arc<OwnedFd>,
}

impl Waker for TcpWaker {
    fn wake(&self) {
        // It fails only when the counter is full, and then the domain has been woken often enough.
        let _ = rustix::io::write(&*self.eventfd, &1_u64.to_ne_bytes());
    }
}
