//! A card in this process whose memory nothing may follow a pointer into, and whose streams land late,
//! one piece of work at a time, in any order between streams.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::Progress;
use iccl_plugin_api::tables::{MemoryRegion, region_form};

use crate::engine::device::Card;
use crate::{Error, ErrorKind, Result};

/// Added to the address of the card's memory: no process has anything mapped there.
pub(super) const FAR_AWAY: usize = 1 << 50;

enum Work {
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    Event(u64),
    Call(unsafe extern "C" fn(*mut c_void), usize),
    /// A call of a library: the stream goes on when it says that it is done.
    Native {
        is_done: Box<dyn FnMut() -> bool + Send>,
        to: Range<usize>,
        from: Range<usize>,
    },
}

impl Work {
    /// What a copy writes and reads of this process's memory.
    fn touches(&self) -> Option<[Range<usize>; 2]> {
        match self {
            Self::Copy { to, from, bytes } => Some([*to..to + bytes, *from..from + bytes]),
            Self::Native { to, from, .. } => Some([to.clone(), from.clone()]),
            _ => None,
        }
    }
}

#[derive(Default)]
struct State {
    streams: BTreeMap<u64, VecDeque<Work>>,
    /// Whether each event was reached since it was last recorded.
    events: BTreeMap<u64, bool>,
    allocations: BTreeMap<usize, Layout>,
    /// What NICs know: where it begins, and its length.
    exported: BTreeMap<u64, u64>,
    last_handle: u64,
    random: u64,
    violations: Vec<String>,
    /// Every copy from this one on is refused, or every question is answered with an error.
    fail_copies_from: Option<u64>,
    copies: u64,
}

pub(super) struct LateCard {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    has_events: bool,
    is_reached: bool,
}

struct Shared {
    state: Mutex<State>,
    /// Between one piece of work and the next.
    pause: Duration,
    stuck: AtomicBool,
    broken: AtomicBool,
    ended: AtomicBool,
    calls: AtomicU64,
    allocated_by_drivers: AtomicU64,
    flushes: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the card")
    }

    /// Lands what one stream, drawn by lot, has to do next; a call with what is before it.
    fn land_one(&self) {
        let mut state = self.lock();
        let busy: Vec<u64> = state
            .streams
            .iter()
            .filter(|(_, work)| !work.is_empty())
            .map(|(handle, _)| *handle)
            .collect();
        if busy.is_empty() {
            return;
        }
        state.random ^= state.random << 13;
        state.random ^= state.random >> 7;
        state.random ^= state.random << 17;
        let drawn = busy[state.random as usize % busy.len()];
        let work = state.streams.get_mut(&drawn).and_then(VecDeque::pop_front);
        match work.expect("it is busy") {
            // SAFETY: the engine promised both sides to stay until this has landed; `copy` moves them
            // as the card's driver would.
            Work::Copy { to, from, bytes } => unsafe {
                std::ptr::copy(
                    std::ptr::with_exposed_provenance::<u8>(from),
                    std::ptr::with_exposed_provenance_mut::<u8>(to),
                    bytes,
                );
            },
            Work::Event(event) => {
                state.events.insert(event, true);
            }
            Work::Call(function, user) => return self.call(state, function, user),
            Work::Native { mut is_done, to, from } => {
                if !is_done() {
                    let works = state.streams.get_mut(&drawn).expect("it is there");
                    works.push_front(Work::Native { is_done, to, from });
                    return;
                }
            }
        }
        let works = state.streams.get_mut(&drawn).expect("it is there");
        if let Some(Work::Call(function, user)) =
            works.pop_front_if(|next| matches!(next, Work::Call(..)))
        {
            self.call(state, function, user);
        }
    }

    fn call(
        &self,
        state: MutexGuard<'_, State>,
        function: unsafe extern "C" fn(*mut c_void),
        user: usize,
    ) {
        drop(state);
        self.calls.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the engine promised that it may be called once.
        unsafe { function(std::ptr::with_exposed_provenance_mut(user)) };
    }
}

impl LateCard {
    pub(super) fn new(seed: u64, pause: Duration) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
                ..State::default()
            }),
            pause,
            stuck: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            allocated_by_drivers: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
        });
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            while !for_thread.ended.load(Ordering::Relaxed) {
                if !for_thread.stuck.load(Ordering::Relaxed) {
                    for_thread.land_one();
                }
                std::thread::sleep(for_thread.pause);
            }
        });
        Self { shared, thread: Some(thread), has_events: true, is_reached: false }
    }

    pub(super) fn without_events(mut self) -> Self {
        self.has_events = false;
        self
    }

    /// NICs reach its memory.
    pub(super) fn reached(mut self) -> Self {
        self.is_reached = true;
        self
    }

    pub(super) fn is_reached(&self) -> bool {
        self.is_reached
    }

    /// How often it was told that a NIC wrote to its memory.
    pub(super) fn flushes(&self) -> u64 {
        self.shared.flushes.load(Ordering::SeqCst)
    }

    /// Nothing lands any more.
    pub(super) fn stick(&self) {
        self.shared.stuck.store(true, Ordering::Relaxed);
    }

    /// It has met an error of its own.
    pub(super) fn break_down(&self) {
        self.shared.broken.store(true, Ordering::Relaxed);
    }

    /// The copies from now on are refused, after some more.
    pub(super) fn refuse_copies_after(&self, more: u64) {
        let mut state = self.shared.lock();
        state.fail_copies_from = Some(state.copies + more);
    }

    /// How often a stream called the host.
    pub(super) fn calls(&self) -> u64 {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// How many allocations were made by threads that drove an engine, or issued its native calls.
    pub(super) fn allocated_by_drivers(&self) -> u64 {
        self.shared.allocated_by_drivers.load(Ordering::SeqCst)
    }

    /// How many streams and events were ever made.
    pub(super) fn handles_made(&self) -> u64 {
        self.shared.lock().last_handle
    }

    /// How much memory of all kinds is in use.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.shared.lock().allocations.values().map(Layout::size).sum()
    }

    /// What was done that no card allows.
    pub(super) fn violations(&self) -> Vec<String> {
        self.shared.lock().violations.clone()
    }

    /// Enqueues a call of a library that reads and writes memory of the card.
    pub(super) fn native(
        &self,
        stream: u64,
        to: Range<usize>,
        from: Range<usize>,
        is_done: impl FnMut() -> bool + Send + 'static,
    ) {
        self.push(stream, Work::Native { is_done: Box::new(is_done), to, from });
    }

    /// Memory of the card that holds `elements`.
    pub(super) fn memory(&self, elements: &[i64]) -> *mut u8 {
        let bytes = size_of_val(elements).max(1) as u64;
        let pointer = self.allocate(bytes, MemoryKind::Device).expect("memory");
        let view = pointer.wrapping_sub(FAR_AWAY);
        // SAFETY: allocated with this length a moment ago; nobody else knows it.
        unsafe { view.copy_from_nonoverlapping(elements.as_ptr().cast(), size_of_val(elements)) };
        pointer
    }

    /// What lies in memory of the card.
    pub(super) fn read(&self, pointer: *mut u8, count: usize) -> Vec<i64> {
        let view = pointer.wrapping_sub(FAR_AWAY).cast::<[u8; 8]>();
        let allocated = self.shared.lock().allocations[&view.addr()].size();
        assert!(count * 8 <= allocated);
        // SAFETY: allocated, and no operation uses it when the tests read it.
        (0..count).map(|at| i64::from_ne_bytes(unsafe { view.add(at).read() })).collect()
    }

    fn check(&self, call: &str) -> Result<()> {
        if self.shared.broken.load(Ordering::Relaxed) {
            let text = format!("plugin late: device.{call}: the card fell off the bus (79)");
            return Err(Error::new(ErrorKind::DeviceError, text).with("device", self.name()));
        }
        Ok(())
    }

    fn push(&self, stream: u64, work: Work) {
        let mut state = self.shared.lock();
        if let Some([written, read]) = work.touches() {
            let others = state.streams.iter().filter(|(handle, _)| **handle != stream);
            let touched = others.flat_map(|(_, works)| works).filter_map(Work::touches);
            let meets = |a: &Range<usize>, b: &Range<usize>| a.start < b.end && b.start < a.end;
            let conflicts = touched.filter(|[theirs, their_read]| {
                meets(theirs, &written) || meets(theirs, &read) || meets(their_read, &written)
            });
            let count = conflicts.count();
            if count > 0 {
                state.violations.push(format!(
                    "a copy meets {count} others that are under way on other streams"
                ));
            }
            if !written.is_empty()
                && state
                    .allocations
                    .range(..=written.start)
                    .next_back()
                    .is_none_or(|(start, layout)| written.end > start + layout.size())
            {
                state.violations.push("a copy writes beyond an allocation".to_owned());
            }
        }
        match state.streams.get_mut(&stream) {
            Some(works) => works.push_back(work),
            None => state.violations.push(format!("there is no stream {stream}")),
        }
    }
}

impl Card for LateCard {
    fn name(&self) -> &'static str {
        "late:0 (a late card)"
    }
    fn allocate(&self, bytes: u64, kind: MemoryKind) -> Result<*mut u8> {
        // What is under way waits for those who issue native calls as for those who drive.
        let thread = std::thread::current();
        let issues = thread.name().is_some_and(|name| name.starts_with("iccl-native"));
        let by_driver = u64::from(crate::engine::is_driving() || issues);
        self.shared.allocated_by_drivers.fetch_add(by_driver, Ordering::SeqCst);
        let layout = Layout::from_size_align(bytes as usize, 64).expect("a layout");
        // SAFETY: nobody asks for 0 bytes.
        let pointer = unsafe { alloc(layout) };
        assert!(!pointer.is_null());
        // SAFETY: allocated with this length.
        unsafe { pointer.write_bytes(0xa5, bytes as usize) };
        self.shared.lock().allocations.insert(pointer.expose_provenance(), layout);
        Ok(if kind == MemoryKind::Device { pointer.wrapping_add(FAR_AWAY) } else { pointer })
    }
    unsafe fn free(&self, pointer: *mut u8) -> Result<()> {
        let address = pointer.addr() & (FAR_AWAY - 1);
        let mut state = self.shared.lock();
        let layout = state.allocations.remove(&address).expect("allocated and not freed");
        let range = address..address + layout.size();
        let in_use = state.streams.values().flatten().filter_map(Work::touches).any(|touched| {
            touched.iter().any(|one| one.start < range.end && range.start < one.end)
        });
        if in_use {
            state.violations.push("memory was freed that a copy uses".to_owned());
        }
        let is_inside = |begin: &u64| range.contains(&(*begin as usize));
        if state.exported.keys().any(is_inside) {
            state.violations.push("memory was freed that a NIC knows".to_owned());
        }
        // SAFETY: allocated with this layout, and forgotten now.
        unsafe { dealloc(std::ptr::with_exposed_provenance_mut(address), layout) };
        Ok(())
    }
    fn stream_create(&self) -> Result<u64> {
        let mut state = self.shared.lock();
        state.last_handle += 1;
        let handle = state.last_handle;
        state.streams.insert(handle, VecDeque::new());
        Ok(handle)
    }
    fn stream_destroy(&self, stream: u64) -> Result<()> {
        let mut state = self.shared.lock();
        if state.streams.remove(&stream).is_none_or(|work| !work.is_empty()) {
            state.violations.push("a stream was destroyed that has work or is none".to_owned());
        }
        Ok(())
    }
    fn stream_query(&self, stream: u64) -> Result<Progress> {
        self.check("stream_query")?;
        let state = self.shared.lock();
        let is_empty = state.streams.get(&stream).is_none_or(VecDeque::is_empty);
        Ok(if is_empty { Progress::Done } else { Progress::Pending })
    }
    fn stream_synchronize(&self, stream: u64, timeout: Duration) -> Result<()> {
        let began = Instant::now();
        while self.stream_query(stream)? == Progress::Pending {
            if began.elapsed() >= timeout {
                return Err(Error::new(ErrorKind::Timeout, "the stream is not done"));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
    unsafe fn copy(
        &self,
        stream: u64,
        (to, to_kind): (*mut u8, MemoryKind),
        (from, from_kind): (*const u8, MemoryKind),
        bytes: u64,
    ) -> Result<()> {
        self.check("copy")?;
        let refused = {
            let mut state = self.shared.lock();
            state.copies += 1;
            for (address, kind) in [(to.addr(), to_kind), (from.addr(), from_kind)] {
                if (address & FAR_AWAY != 0) != (kind == MemoryKind::Device) {
                    state.violations.push(format!("{address:x} is no {kind} memory"));
                }
            }
            state.fail_copies_from.is_some_and(|first| state.copies > first)
        };
        if refused {
            let text = "plugin late: device.copy: device error: no copy today (46)";
            return Err(Error::new(ErrorKind::DeviceError, text).with("device", self.name()));
        }
        let place = |address: usize| address & (FAR_AWAY - 1);
        let (to, from) = (place(to.expose_provenance()), place(from.expose_provenance()));
        self.push(stream, Work::Copy { to, from, bytes: bytes as usize });
        Ok(())
    }
    fn has_events(&self) -> bool {
        self.has_events
    }
    fn event_create(&self) -> Result<u64> {
        assert!(self.has_events);
        let mut state = self.shared.lock();
        state.last_handle += 1;
        let handle = state.last_handle;
        state.events.insert(handle, true);
        Ok(handle)
    }
    fn event_destroy(&self, event: u64) -> Result<()> {
        let mut state = self.shared.lock();
        if state.events.remove(&event) != Some(true) {
            state.violations.push("an event was destroyed that is awaited or is none".to_owned());
        }
        Ok(())
    }
    fn event_record(&self, event: u64, stream: u64) -> Result<()> {
        self.check("event_record")?;
        self.shared.lock().events.insert(event, false);
        self.push(stream, Work::Event(event));
        Ok(())
    }
    fn event_query(&self, event: u64) -> Result<Progress> {
        self.check("event_query")?;
        let reached = self.shared.lock().events[&event];
        Ok(if reached { Progress::Done } else { Progress::Pending })
    }
    fn region_alignment(&self) -> Option<u64> {
        self.is_reached.then_some(8)
    }
    fn export_region(&self, pointer: *mut u8, bytes: u64) -> Result<MemoryRegion> {
        let address = pointer.wrapping_sub(FAR_AWAY).addr() as u64;
        let other = self.shared.lock().exported.insert(address, bytes);
        assert_eq!(other, None, "exported twice");
        let (form, descriptor) = (region_form::HOST_ALIAS, -1);
        Ok(MemoryRegion { form, descriptor, address, offset: 0, length: bytes, cookie: 1 })
    }
    fn release_region(&self, region: &MemoryRegion) -> Result<()> {
        let known = self.shared.lock().exported.remove(&region.address);
        assert_eq!(known, Some(region.length), "it was exported");
        Ok(())
    }
    fn flush(&self, pointer: *mut u8, _bytes: u64) -> Result<()> {
        assert!(pointer.addr() >= FAR_AWAY, "an address of the card");
        self.shared.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn calls_host(&self) -> bool {
        true
    }
    unsafe fn host_function(
        &self,
        stream: u64,
        function: unsafe extern "C" fn(user: *mut c_void),
        user: *mut c_void,
    ) -> Result<()> {
        self.push(stream, Work::Call(function, user.expose_provenance()));
        Ok(())
    }
    fn async_error(&self) -> Result<()> {
        self.check("async_error")
    }
}

impl Drop for LateCard {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
