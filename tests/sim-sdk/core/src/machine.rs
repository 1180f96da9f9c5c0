//! The cards of one maker in this process, and all that was made on them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::device::Device;
use crate::event::{Event, EventHandle, EventKind};
use crate::faults::Faults;
use crate::memory::{Memory, MemoryHandle, Span};
use crate::settings::Settings;
use crate::stream::{Action, Point, Stream, StreamKind};
use crate::{Refusal, stream};

/// What differs from vendor to vendor in the machine itself.
#[derive(Clone, Copy, Debug)]
pub struct Vendor {
    /// In lower case, as settings name it.
    pub name: &'static str,
    /// The environment variable that lists the visible cards, if the vendor has one.
    pub visible: Option<&'static str>,
}

/// What the machine keeps for each thread.
#[derive(Debug, Default)]
pub struct ThreadState {
    /// The current card; the first one, unless another was chosen.
    pub device: Cell<u32>,
    /// Whether a card was ever chosen, which some vendors ask for.
    pub has_chosen: Cell<bool>,
    /// Whether a host function runs on this thread.
    pub in_callback: Cell<bool>,
    /// Its own default streams, by card.
    pub default_streams: RefCell<BTreeMap<u32, u64>>,
}

type OnThread = fn(&mut dyn FnMut(&ThreadState));

/// The cards of one maker in this process.
pub struct Machine {
    settings: Settings,
    faults: Faults,
    memory: Memory,
    devices: Vec<Device>,
    host: String,
    is_initialised: AtomicBool,
    next_handle: AtomicU64,
    streams: Mutex<BTreeMap<u64, Arc<Stream>>>,
    events: Mutex<BTreeMap<u64, Arc<Event>>>,
    on_thread: OnThread,
}

/// The first handle. No address that anything is mapped at.
const FIRST_HANDLE: u64 = 0x51d0_0000_0000_0000;
const HANDLE_STEP: u64 = 0x40;
const DEFAULT_DEVICES: u32 = 4;
const DEFAULT_MEMORY_BYTES: u64 = 16 << 30;
const DEFAULT_DELAY_MICROSECONDS: u64 = 50;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    /// The machine that the settings describe. `on_thread` shows the calling thread's state; it lies
    /// with whoever owns the machine, so that all objects of a vendor see the same.
    ///
    /// # Panics
    /// If a setting can't be understood.
    pub fn new(vendor: Vendor, on_thread: OnThread) -> Self {
        let settings = Settings::new(vendor.name);
        let count = settings.number("devices", DEFAULT_DEVICES);
        let physical: Vec<u32> = match vendor.visible.and_then(|name| std::env::var(name).ok()) {
            // The first entry that names no card ends the list.
            Some(list) => list
                .split(',')
                .map_while(|word| word.trim().parse().ok().filter(|index| *index < count))
                .collect(),
            None => (0..count).collect(),
        };
        let host = settings.text("host").unwrap_or_default();
        let memory = Memory::new(settings.number("memory", DEFAULT_MEMORY_BYTES), hash(&host));
        let faults = Faults::new(&settings);
        let next_handle = AtomicU64::new(FIRST_HANDLE);
        let devices = physical.iter().enumerate().map(|(index, physical)| {
            let handle = next_handle.fetch_add(HANDLE_STEP, Ordering::Relaxed);
            Device::new(index as u32, *physical, handle)
        });
        let devices = devices.collect();
        Self {
            settings,
            faults,
            memory,
            devices,
            host,
            is_initialised: AtomicBool::new(false),
            next_handle,
            streams: Mutex::default(),
            events: Mutex::default(),
            on_thread,
        }
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Its faults.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Its cards, as far as they are visible.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// A card.
    pub fn device(&self, index: u32) -> Result<&Device, Refusal> {
        self.devices.get(index as usize).ok_or(Refusal::InvalidDevice)
    }

    /// The simulated host on which this process runs; empty for the machine itself.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// What tells a card from all others, on all hosts.
    pub fn identity(&self, index: u32) -> Result<u64, Refusal> {
        Ok(hash(&self.host).wrapping_add(u64::from(self.device(index)?.physical)))
    }

    /// Whether the vendor's initialisation was called, or something that implies it.
    pub fn is_initialised(&self) -> bool {
        self.is_initialised.load(Ordering::Acquire)
    }

    /// From now on it is.
    pub fn initialise(&self) {
        self.is_initialised.store(true, Ordering::Release);
    }

    /// Shows the calling thread's state.
    pub fn on_thread<T>(&self, look: impl FnOnce(&ThreadState) -> T) -> Option<T> {
        let mut look = Some(look);
        let mut seen = None;
        (self.on_thread)(&mut |state| seen = look.take().map(|look| look(state)));
        seen
    }

    /// The calling thread's card.
    pub fn current_device(&self) -> u32 {
        self.on_thread(|state| state.device.get()).unwrap_or(0)
    }

    /// The card that the calling thread has chosen, if it has.
    pub fn chosen_device(&self) -> Option<u32> {
        self.on_thread(|state| state.has_chosen.get().then(|| state.device.get())).flatten()
    }

    /// Chooses the calling thread's card.
    pub fn set_current_device(&self, index: u32) -> Result<(), Refusal> {
        self.device(index)?;
        self.on_thread(|state| {
            state.device.set(index);
            state.has_chosen.set(true);
        });
        Ok(())
    }

    /// Whether a host function is calling.
    pub fn in_callback(&self) -> bool {
        self.on_thread(|state| state.in_callback.get()).unwrap_or(false)
    }

    // Memory.

    /// Memory of a card.
    pub fn allocate(&self, device: u32, bytes: u64) -> Result<u64, Refusal> {
        self.device(device)?;
        self.memory.allocate(device, bytes)
    }

    /// Frees memory of a card.
    pub fn free(&self, address: u64) -> Result<(), Refusal> {
        self.memory.free(address)
    }

    /// Free and all bytes of a card.
    pub fn room(&self, device: u32) -> (u64, u64) {
        self.memory.room(device)
    }

    /// Host memory that cards reach.
    pub fn allocate_pinned(&self, bytes: u64) -> Result<u64, Refusal> {
        self.memory.allocate_pinned(bytes)
    }

    /// Frees what [`Machine::allocate_pinned`] gave.
    pub fn free_pinned(&self, address: u64) -> Result<(), Refusal> {
        self.memory.free_pinned(address)
    }

    /// Makes host memory reachable for cards.
    pub fn register(&self, address: u64, bytes: u64) -> Result<(), Refusal> {
        self.memory.register(address, bytes)
    }

    /// Undoes [`Machine::register`].
    pub fn unregister(&self, address: u64) -> Result<(), Refusal> {
        self.memory.unregister(address)
    }

    /// What lies at an address.
    pub fn span(&self, address: u64, bytes: u64) -> Result<Span, Refusal> {
        self.memory.span(address, bytes)
    }

    /// Start and length of the allocation around a device address.
    pub fn allocation(&self, address: u64) -> Result<(u64, u64), Refusal> {
        self.memory.allocation(address)
    }

    /// The name of the allocation around an address, for other processes of the host.
    pub fn export(&self, address: u64) -> Result<MemoryHandle, Refusal> {
        self.memory.export(address)
    }

    /// Opens another process's allocation for the current card.
    pub fn open(&self, handle: MemoryHandle) -> Result<u64, Refusal> {
        self.memory.open(handle, self.current_device())
    }

    /// Closes what [`Machine::open`] gave.
    pub fn close(&self, address: u64) -> Result<(), Refusal> {
        self.memory.close(address)
    }

    /// A descriptor by which device memory is mapped, from the start of an allocation. Refused unless
    /// the setting `dma_buf` is on.
    pub fn descriptor(&self, address: u64) -> Result<OwnedFd, Refusal> {
        if !self.settings.is_on("dma_buf") {
            return Err(Refusal::NotSupported);
        }
        self.memory.file(address)
    }

    /// A host address of device memory. Refused unless the setting `host_alias` is on.
    pub fn host_alias(&self, address: u64, bytes: u64) -> Result<*mut u8, Refusal> {
        if !self.settings.is_on("host_alias") {
            return Err(Refusal::NotSupported);
        }
        Ok(self.memory.span(address, bytes)?.view())
    }

    // Streams and events.

    /// A new stream of a card.
    pub fn create_stream(&self, device: u32, kind: StreamKind) -> Result<u64, Refusal> {
        self.device(device)?;
        let handle = self.next_handle.fetch_add(HANDLE_STEP, Ordering::Relaxed);
        lock(&self.streams).insert(handle, Stream::new(handle, device, kind));
        Ok(handle)
    }

    /// The stream with a handle.
    pub fn stream(&self, handle: u64) -> Result<Arc<Stream>, Refusal> {
        lock(&self.streams).get(&handle).cloned().ok_or(Refusal::InvalidHandle)
    }

    /// A card's default stream.
    pub fn default_stream(&self, device: u32) -> Result<Arc<Stream>, Refusal> {
        Ok(Arc::clone(&self.device(device)?.default_stream))
    }

    /// The calling thread's own default stream on its card, made when it is first asked for.
    pub fn thread_stream(&self) -> Result<Arc<Stream>, Refusal> {
        let device = self.current_device();
        let known = |state: &ThreadState| state.default_streams.borrow().get(&device).copied();
        if let Some(handle) = self.on_thread(known).flatten() {
            return self.stream(handle);
        }
        let handle = self.create_stream(device, StreamKind::Blocking)?;
        self.on_thread(|state| state.default_streams.borrow_mut().insert(device, handle));
        self.stream(handle)
    }

    /// Forgets a stream; what is in it is still done.
    pub fn destroy_stream(&self, handle: u64) -> Result<(), Refusal> {
        let stream = lock(&self.streams).remove(&handle).ok_or(Refusal::InvalidHandle)?;
        stream.close();
        Ok(())
    }

    /// Puts work that takes its time into a stream. Nothing is done any more once the card is in error.
    pub fn enqueue(&'static self, stream: &Arc<Stream>, action: Action) -> Point {
        self.push(stream, Vec::new(), self.delay(), unless_aborted(stream, action))
    }

    /// The same, done also when the stream was torn down.
    pub(crate) fn enqueue_always(&'static self, stream: &Arc<Stream>, action: Action) -> Point {
        self.push(stream, Vec::new(), self.delay(), action)
    }

    fn delay(&self) -> Duration {
        Duration::from_micros(self.settings.number("delay_us", DEFAULT_DELAY_MICROSECONDS))
    }

    /// The same without delay, and behind places in other streams.
    pub fn enqueue_after(
        &'static self,
        stream: &Arc<Stream>,
        after: Vec<Point>,
        action: Action,
    ) -> Point {
        self.push(stream, after, Duration::ZERO, unless_aborted(stream, action))
    }

    fn push(
        &'static self,
        stream: &Arc<Stream>,
        mut after: Vec<Point>,
        delay: Duration,
        action: Action,
    ) -> Point {
        let device = &self.devices[stream.device as usize];
        let _order = lock(&device.order);
        match stream.kind {
            StreamKind::Default => after.extend(self.blocking_ends(stream.device)),
            StreamKind::Blocking => after.push(device.default_stream.end()),
            StreamKind::NonBlocking => {}
        }
        let action = move || {
            if device.error() == 0 {
                action();
            }
        };
        stream.push(after, delay, Box::new(action))
    }

    /// Runs a function of the host's at a place in a stream.
    pub fn call_host(&'static self, stream: &Arc<Stream>, function: Action) {
        let device = &self.devices[stream.device as usize];
        let index = stream.device;
        self.enqueue(
            stream,
            Box::new(move || {
                // A setting, since vendors leave it open whether streams share the thread.
                let is_shared = self.settings.is_on("shared_host_thread");
                let _turn = is_shared.then(|| lock(&device.host_thread));
                self.on_thread(|state| {
                    state.device.set(index);
                    state.in_callback.set(true);
                });
                function();
                self.on_thread(|state| state.in_callback.set(false));
            }),
        );
    }

    /// Makes a stream wait for an event's last record.
    pub fn wait_for_event(&'static self, stream: &Arc<Stream>, event: &Event) {
        if let Some(waiter) = event.waiter() {
            self.enqueue_after(stream, Vec::new(), waiter);
        }
    }

    /// Tears a stream down: nothing that is in it is done any more, and what is under way of a
    /// communicator ends.
    pub fn abort_stream(&self, stream: &Stream) {
        stream.abort();
    }

    /// Whether all that is in a stream is done.
    pub fn is_idle(&self, stream: &Arc<Stream>) -> bool {
        let others = match stream.kind {
            StreamKind::Default => self.blocking_ends(stream.device),
            _ => Vec::new(),
        };
        stream.end().is_reached() && others.iter().all(Point::is_reached)
    }

    /// Waits for all that is in a stream. The error of its card, if it is in one.
    pub fn synchronize(&self, stream: &Arc<Stream>) -> Result<(), Refusal> {
        if stream.kind == StreamKind::Default {
            self.blocking_ends(stream.device).iter().for_each(Point::wait);
        }
        stream.end().wait();
        self.health(stream.device)
    }

    /// Waits for all streams of a card.
    pub fn synchronize_device(&self, index: u32) -> Result<(), Refusal> {
        let mut ends = vec![self.device(index)?.default_stream.end()];
        let streams: Vec<_> = lock(&self.streams).values().cloned().collect();
        ends.extend(streams.iter().filter(|one| one.device == index).map(stream::Stream::end));
        ends.iter().for_each(Point::wait);
        self.health(index)
    }

    /// The error of a card, if it is in one.
    pub fn health(&self, index: u32) -> Result<(), Refusal> {
        match self.device(index)?.error() {
            0 => Ok(()),
            code => Err(Refusal::Broken(code)),
        }
    }

    fn blocking_ends(&self, device: u32) -> Vec<Point> {
        let streams = lock(&self.streams);
        let of_device = streams.values().filter(|one| one.device == device);
        of_device.filter(|one| one.kind == StreamKind::Blocking).map(stream::Stream::end).collect()
    }

    /// A new event on a card.
    pub fn create_event(&self, device: u32, kind: EventKind) -> Result<u64, Refusal> {
        self.device(device)?;
        Ok(self.keep_event(Event::new(device, kind)?))
    }

    /// Another process's event, on the current card.
    pub fn open_event(&self, handle: EventHandle) -> Result<u64, Refusal> {
        Ok(self.keep_event(Event::open(self.current_device(), handle)?))
    }

    fn keep_event(&self, event: Event) -> u64 {
        let handle = self.next_handle.fetch_add(HANDLE_STEP, Ordering::Relaxed);
        lock(&self.events).insert(handle, Arc::new(event));
        handle
    }

    /// The event with a handle.
    pub fn event(&self, handle: u64) -> Result<Arc<Event>, Refusal> {
        lock(&self.events).get(&handle).cloned().ok_or(Refusal::InvalidHandle)
    }

    /// Forgets an event.
    pub fn destroy_event(&self, handle: u64) -> Result<(), Refusal> {
        lock(&self.events).remove(&handle).map(|_| ()).ok_or(Refusal::InvalidHandle)
    }

    /// The name of an event for other processes.
    pub fn export_event(&self, event: &Event) -> Result<EventHandle, Refusal> {
        event.export()
    }

    /// Records an event. It must be of the stream's card.
    pub fn record(&'static self, event: &Event, stream: &Arc<Stream>) -> Result<(), Refusal> {
        if event.device != stream.device {
            return Err(Refusal::InvalidHandle);
        }
        event.record(|action| self.enqueue_after(stream, Vec::new(), action));
        Ok(())
    }

    /// Waits for an event's last record.
    pub fn synchronize_event(&self, event: &Event) -> Result<(), Refusal> {
        if let Some(waiter) = event.waiter() {
            waiter();
        }
        self.health(event.device)
    }

    /// Milliseconds from one event to another.
    pub fn elapsed(&self, from: &Event, to: &Event) -> Result<f32, Refusal> {
        from.until(to)
    }

    /// The card of a peer may be reached directly from now on. False if it was already.
    pub fn enable_peer(&self, device: u32, peer: u32) -> Result<bool, Refusal> {
        self.device(peer)?;
        Ok(lock(&self.device(device)?.peers).insert(peer))
    }

    /// Undoes [`Machine::enable_peer`]. False if it was not enabled.
    pub fn disable_peer(&self, device: u32, peer: u32) -> Result<bool, Refusal> {
        self.device(peer)?;
        Ok(lock(&self.device(device)?.peers).remove(&peer))
    }
}

/// Does nothing once the stream was torn down.
fn unless_aborted(stream: &Arc<Stream>, action: Action) -> Action {
    let own = Arc::clone(stream);
    Box::new(move || {
        if !own.is_aborted() {
            action();
        }
    })
}

/// FNV-1a, the same in all processes.
pub(crate) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
