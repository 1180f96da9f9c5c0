//! A domain: one communicator's device, control connections and channels in this process.

use std::collections::{HashMap, VecDeque};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{
    ChannelRequest, CompletionSink, DomainRequest, PluginError, PluginResult, PostedMessage,
    Progress, Settings, TransportDomain, Waker,
};
use iccl_plugin_api::tables::{Completion, MemoryRegion, completion_kind, region_form};
use iccl_tcp::{TcpDomain, TcpSettings};
use iccl_wire::Key;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use crate::channel::{Channel, Names, Shared};
use crate::device::{self, Rail};
use crate::memory::Message;
use crate::regions::Regions;
use crate::settings::RdmaSettings;
use crate::verbs::{Ended, Library, News};

/// So many calls of `progress` pass between two looks at the control connections and at news of the
/// device, while no channel is being opened or closed.
const CALLS_BETWEEN_LOOKS: u32 = 64;

/// How long a closed channel waits for the peer's device to have all that was sent.
const PATIENCE: Duration = Duration::from_secs(1);

/// Bits of the id of work: place and generation of its channel.
const PLACE_SHIFT: u32 = 48;
const GENERATION_SHIFT: u32 = 32;
const MOST_CHANNELS: usize = 1 << 16;

/// A domain of the RDMA transport.
#[derive(Debug)]
pub struct RdmaDomain {
    ranks: u32,
    rail: ManuallyDrop<Rail>,
    regions: Regions,
    control: TcpDomain,
    completions: VecDeque<Completion>,
    channels: Vec<Option<Box<Channel>>>,
    /// How often a place was given away.
    generations: Vec<u16>,
    free: Vec<usize>,
    /// Places by the control connection's channel.
    by_control: HashMap<u64, usize>,
    active: Vec<usize>,
    /// Channels that are being opened or closed.
    changing: usize,
    parting: Vec<usize>,
    ended: Vec<Ended>,
    calls_since_look: u32,
    epoll: OwnedFd,
    waker: Arc<OwnedFd>,
    process: rustix::process::Pid,
}

impl RdmaDomain {
    pub(crate) fn open(
        request: &DomainRequest<'_>,
        library: &Arc<dyn Library>,
        settings: &RdmaSettings,
    ) -> PluginResult<Self> {
        let rail = device::open(library, settings)?;
        // The control connections prove themselves by a key of their own: a peer's TCP transport is not
        // taken for its RDMA transport.
        let key = Key::from_bytes(*request.job_key)
            .derive("iccl rdma control", &request.communicator.to_le_bytes());
        let control = DomainRequest { job_key: key.expose(), ..*request };
        let one_socket = Settings::new(vec![("sockets_per_peer", "1")]);
        let control = TcpDomain::open(&control, &TcpSettings::from(&one_socket)?)?;
        let system = |what: &'static str| {
            move |error: rustix::io::Errno| {
                PluginError::system(Status::TransportError, what, &error.into())
            }
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll"))?;
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(system("eventfd"))?;
        let sources = [
            control.event_descriptor(),
            rail.device.completion_descriptor(),
            rail.device.news_descriptor(),
            waker.as_raw_fd(),
        ];
        for (index, source) in (0_u64..).zip(sources) {
            // SAFETY: each is open as long as what it belongs to, which lives in the domain.
            let source = unsafe { BorrowedFd::borrow_raw(source) };
            let data = epoll::EventData::new_u64(index);
            epoll::add(&epoll, source, data, epoll::EventFlags::IN).map_err(system("epoll"))?;
        }
        Ok(Self {
            ranks: request.ranks,
            rail: ManuallyDrop::new(rail),
            regions: Regions::default(),
            control,
            completions: VecDeque::new(),
            channels: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            by_control: HashMap::new(),
            active: Vec::new(),
            changing: 0,
            parting: Vec::new(),
            ended: Vec::new(),
            calls_since_look: 0,
            epoll,
            waker: Arc::new(waker),
            process: rustix::process::getpid(),
        })
    }

    /// As if the device registered no more at a time.
    #[cfg(test)]
    pub(crate) fn limit_regions(&mut self, bytes: u64) {
        self.rail.limits.max_mr_bytes = bytes;
    }

    // --- The table of channels -------------------------------------------------------------------

    fn place_of(&self, handle: u64) -> PluginResult<usize> {
        let place = (handle as u32).wrapping_sub(1) as usize;
        let is_live =
            self.channels.get(place).is_some_and(|channel| {
                channel.as_deref().is_some_and(|channel| !channel.is_parting())
            }) && u64::from(self.generations[place]) == handle >> 32;
        is_live
            .then_some(place)
            .ok_or_else(|| PluginError::invalid(format!("{handle} is no channel")))
    }

    /// A channel and what it works with; notes when it is not being opened any more.
    fn with<T>(
        &mut self,
        place: usize,
        action: impl FnOnce(&mut Channel, &mut Shared<'_>) -> T,
    ) -> Option<T> {
        let Self { rail, regions, control, completions, channels, changing, .. } = self;
        let channel = channels.get_mut(place)?.as_deref_mut()?;
        let was_opening = channel.is_opening();
        let answer = action(channel, &mut Shared { rail, regions, control, completions });
        *changing -= usize::from(was_opening && !channel.is_opening());
        Some(answer)
    }

    fn activate(&mut self, place: usize) {
        if let Some(channel) = self.channels.get_mut(place).and_then(Option::as_deref_mut)
            && !std::mem::replace(&mut channel.is_active, true)
        {
            self.active.push(place);
        }
    }

    fn give_place_back(&mut self, place: usize) {
        let Some(mut channel) = self.channels[place].take() else { return };
        self.by_control.remove(&channel.control);
        channel.hang_up(&mut self.control);
        let _ = self.control.channel_close(channel.control);
        self.active.retain(|&other| other != place);
        self.generations[place] = self.generations[place].wrapping_add(1);
        self.free.push(place);
    }

    /// Parts with the peer, which may take a while.
    fn close(&mut self, place: usize) {
        self.changing -= usize::from(self.is_opening(place));
        let until = Instant::now() + PATIENCE;
        if self.with(place, |channel, shared| channel.part(until, shared)) == Some(true) {
            self.parting.push(place);
            self.changing += 1;
        } else {
            self.give_place_back(place);
        }
    }

    // --- News ------------------------------------------------------------------------------------

    /// Takes what the device has done; whether it had done anything.
    fn poll(&mut self) -> PluginResult<bool> {
        let mut is_any = false;
        loop {
            let mut ended = std::mem::take(&mut self.ended);
            let more = self.rail.device.poll(&mut ended).map_err(|error| {
                let text = format!("{}: {error}", self.rail.device.name());
                PluginError::new(Status::DeviceError, text).with_vendor_code(error.number().into())
            });
            is_any |= !ended.is_empty();
            for ended in ended.drain(..) {
                let place = (ended.id >> PLACE_SHIFT) as usize;
                let generation = (ended.id >> GENERATION_SHIFT) as u16;
                // Work of a channel that is gone is nobody's.
                if self.generations.get(place) == Some(&generation) {
                    self.with(place, |channel, shared| channel.ended(ended, shared));
                    self.activate(place);
                }
            }
            self.ended = ended;
            if !more? {
                return Ok(is_any);
            }
        }
    }

    /// Looks at the control connections, the device's news and what is being closed.
    fn look(&mut self) -> PluginResult<()> {
        self.calls_since_look = 0;
        let mut room = [MaybeUninit::uninit(); 32];
        loop {
            let mut sink = CompletionSink::new(&mut room);
            self.control.progress(&mut sink)?;
            let used = sink.used();
            for ended in &room[..used] {
                // SAFETY: the sink has written the first `used` ones.
                let ended: Completion = unsafe { ended.assume_init() };
                let Some(&place) = self.by_control.get(&ended.channel) else { continue };
                if ended.kind == completion_kind::CHANNEL_FAILED {
                    // What the peer sent before it went counts.
                    self.poll()?;
                    self.with(place, Channel::advance);
                }
                self.with(place, |channel, shared| channel.control_ended(&ended, shared));
                self.activate(place);
            }
            if used < room.len() {
                break;
            }
        }
        while let Some(news) = self.rail.device.next_news() {
            let device = self.rail.device.name();
            match news {
                News::Port(port) => tracing::info!(device, port, "a port has changed"),
                News::Addresses => tracing::debug!(device, "addresses have changed"),
                News::Other(words) => tracing::debug!(device, words, "news of the device"),
                News::Fatal(words) => {
                    let text = format!("{device}: {words}");
                    return Err(PluginError::new(Status::DeviceError, text));
                }
            }
        }
        let now = Instant::now();
        let mut index = 0;
        while let Some(&place) = self.parting.get(index) {
            let parted = self.with(place, |channel, shared| channel.has_parted(now, shared.rail));
            if parted == Some(false) {
                index += 1;
                continue;
            }
            self.parting.swap_remove(index);
            self.changing -= 1;
            self.give_place_back(place);
        }
        Ok(())
    }

    fn is_opening(&self, place: usize) -> bool {
        self.channels[place].as_deref().is_some_and(Channel::is_opening)
    }

    fn deliver(&mut self, sink: &mut CompletionSink<'_>) {
        while !sink.is_full() {
            let Some(completion) = self.completions.pop_front() else { return };
            sink.put(completion);
        }
    }

    fn advance(&mut self) {
        while let Some(place) = self.active.pop() {
            if let Some(channel) = self.channels[place].as_deref_mut() {
                channel.is_active = false;
            }
            self.with(place, Channel::advance);
        }
    }

    fn post(&mut self, handle: u64, kind: u32, message: &PostedMessage<'_>) -> PluginResult<()> {
        let place = self.place_of(handle)?;
        let message = Message::posted(message)?;
        for segment in message.segments().iter().filter(|segment| segment.key != 0) {
            if !self.regions.holds(segment.key, segment.address as u64, segment.length) {
                let key = segment.key;
                let text = format!("a segment does not lie in the region of its key {key}");
                return Err(PluginError::invalid(text));
            }
        }
        let posted = self.with(place, |channel, _| channel.post(kind, message));
        posted.unwrap_or_else(|| Err(PluginError::invalid("no channel")))?;
        self.activate(place);
        Ok(())
    }
}

impl TransportDomain for RdmaDomain {
    type Waker = RdmaWaker;

    fn address(&self) -> PluginResult<Vec<u8>> {
        self.control.address()
    }

    fn channel_open(&mut self, request: &ChannelRequest<'_>) -> PluginResult<u64> {
        let &ChannelRequest { peer, dial, channel: number, .. } = request;
        if peer >= self.ranks {
            let text = format!("there is no rank {peer} among {}", self.ranks);
            return Err(PluginError::invalid(text));
        }
        let control = self.control.channel_open(request)?;
        let place = self.free.pop().unwrap_or_else(|| {
            self.channels.push(None);
            self.generations.push(0);
            self.channels.len() - 1
        });
        if place >= MOST_CHANNELS {
            let _ = self.control.channel_close(control);
            return Err(PluginError::new(Status::OutOfResources, "too many channels"));
        }
        let generation = self.generations[place];
        let handle = u64::from(generation) << 32 | (place as u64 + 1);
        let mark = (place as u64) << PLACE_SHIFT | u64::from(generation) << GENERATION_SHIFT;
        let names = Names { handle, peer, number, is_dialer: dial, control };
        let Self { rail, regions, control: connections, completions, .. } = self;
        let mut shared = Shared { rail, regions, control: connections, completions };
        match Channel::open(names, mark, &mut shared) {
            Ok(channel) => self.channels[place] = Some(Box::new(channel)),
            Err(error) => {
                let _ = self.control.channel_close(control);
                self.generations[place] = generation.wrapping_add(1);
                self.free.push(place);
                return Err(error);
            }
        }
        self.by_control.insert(control, place);
        self.changing += 1;
        Ok(handle)
    }

    fn channel_state(&self, channel: u64) -> PluginResult<Progress> {
        let place = self.place_of(channel)?;
        let channel = self.channels[place].as_deref();
        let is_open = channel.ok_or_else(|| PluginError::invalid("no channel"))?.state()?;
        Ok(if is_open { Progress::Done } else { Progress::Pending })
    }

    unsafe fn post_send(&mut self, channel: u64, message: PostedMessage<'_>) -> PluginResult<()> {
        self.post(channel, completion_kind::SEND, &message)
    }

    unsafe fn post_receive(
        &mut self,
        channel: u64,
        message: PostedMessage<'_>,
    ) -> PluginResult<()> {
        self.post(channel, completion_kind::RECEIVE, &message)
    }

    fn progress(&mut self, completions: &mut CompletionSink<'_>) -> PluginResult<()> {
        self.deliver(completions);
        if completions.is_full() {
            return Ok(());
        }
        self.poll()?;
        self.calls_since_look += 1;
        if self.changing > 0 || self.calls_since_look >= CALLS_BETWEEN_LOOKS {
            self.look()?;
        }
        self.advance();
        self.deliver(completions);
        Ok(())
    }

    fn arm(&mut self) -> PluginResult<Progress> {
        // What the next call of `progress` finds is to be found at once.
        self.calls_since_look = CALLS_BETWEEN_LOOKS;
        if !self.completions.is_empty() || !self.active.is_empty() {
            return Ok(Progress::Done);
        }
        if self.control.arm()? == Progress::Done {
            return Ok(Progress::Done);
        }
        self.rail.device.quiet();
        self.rail.device.arm().map_err(|error| {
            PluginError::new(Status::DeviceError, format!("{}: {error}", self.rail.device.name()))
        })?;
        let is_any = self.poll()?;
        let now = Instant::now();
        let parting = self.parting.iter().filter_map(|&place| self.channels[place].as_deref());
        let is_due = parting.filter_map(Channel::parting_deadline).any(|at| now >= at);
        let is_ready = is_any || is_due || !self.completions.is_empty() || !self.active.is_empty();
        Ok(if is_ready { Progress::Done } else { Progress::Pending })
    }

    fn event_descriptor(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn wait(&mut self, timeout: Duration) -> PluginResult<()> {
        if self.arm()? == Progress::Done {
            return Ok(());
        }
        let parting = self.parting.iter().filter_map(|&place| self.channels[place].as_deref());
        let deadline = parting.filter_map(Channel::parting_deadline).min();
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.min(left.unwrap_or(timeout));
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX).min(1 << 20),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut events = [const { MaybeUninit::uninit() }; 4];
        match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(PluginError::system(Status::TransportError, "epoll", &error.into()));
            }
        }
        let mut count = [0; 8];
        // It fails when nobody has woken.
        let _ = rustix::io::read(&*self.waker, &mut count);
        Ok(())
    }

    fn waker(&self) -> RdmaWaker {
        RdmaWaker { eventfd: Arc::clone(&self.waker) }
    }

    fn register(&mut self, region: &MemoryRegion) -> PluginResult<u64> {
        if region.form == region_form::ADDRESS {
            // The kernel says why it does not know the memory, so that the plan can.
            let Rail { device, limits, .. } = &mut *self.rail;
            let (address, length, most) = (region.address, region.length, limits.max_mr_bytes);
            // SAFETY: the runtime keeps the memory until it is taken back, here.
            let key = unsafe { self.regions.add(&mut **device, most, address, length) }?;
            self.regions.remove(&mut **device, key)?;
        }
        if region.form != region_form::HOST_ALIAS {
            return Err(PluginError::not_supported(
                "this version registers memory that the host can address too (its alias) and no other",
            ));
        }
        if region.length == 0 || region.address == 0 {
            return Err(PluginError::invalid("a region without bytes"));
        }
        let Rail { device, limits, .. } = &mut *self.rail;
        let (address, length) = (region.address, region.length);
        // SAFETY: the runtime keeps the memory until it deregisters it.
        unsafe { self.regions.add(&mut **device, limits.max_mr_bytes, address, length) }
    }

    fn deregister(&mut self, key: u64) -> PluginResult<()> {
        self.regions.remove(&mut *self.rail.device, key)
    }

    fn quiesce(&mut self, channel: u64, _timeout: Duration) -> PluginResult<()> {
        // The queue pair is put in error and destroyed, for which the driver waits until the device has
        // let go of it.
        let place = self.place_of(channel)?;
        self.with(place, Channel::quiesce).unwrap_or(Ok(()))
    }

    fn channel_close(&mut self, channel: u64) -> PluginResult<()> {
        let place = self.place_of(channel)?;
        self.close(place);
        Ok(())
    }
}

impl Drop for RdmaDomain {
    fn drop(&mut self) {
        // In a forked child the device is the parent's.
        if rustix::process::getpid() != self.process {
            // SAFETY: it is taken once, here.
            unsafe { ManuallyDrop::take(&mut self.rail) }.device.forget();
            std::mem::forget(std::mem::take(&mut self.channels));
            return;
        }
        // What was sent is to come, and farewells are to be said. Each has its deadline.
        for place in 0..self.channels.len() {
            if !self.channels[place].as_deref().is_some_and(Channel::is_parting) {
                self.close(place);
            }
        }
        while !self.parting.is_empty() && self.poll().and_then(|_| self.look()).is_ok() {}
        // Without the device's or the control connections' help they end as they are.
        for place in 0..self.channels.len() {
            if let Some(Err(error)) = self.with(place, Channel::quiesce) {
                tracing::warn!(%error, "a queue pair goes with its device");
            }
            self.give_place_back(place);
        }
        // SAFETY: it is taken once, here.
        drop(unsafe { ManuallyDrop::take(&mut self.rail) });
    }
}

/// Wakes an [`RdmaDomain`] that waits.
#[derive(Debug, Clone)]
pub struct RdmaWaker {
    eventfd: Arc<OwnedFd>,
}

impl Waker for RdmaWaker {
    fn wake(&self) {
        // It fails only when the counter is full, and then the domain has been woken often enough.
        let _ = rustix::io::write(&*self.eventfd, &1_u64.to_ne_bytes());
    }
}
