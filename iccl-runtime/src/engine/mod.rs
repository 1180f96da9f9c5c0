//! Runs schedules over links and devices.
//!
//! One [`Engine`] serves one communicator on one rank. It contains no algorithm: it posts messages,
//! copies and reduces as a [`Schedule`](crate::schedule::Schedule) says, in the order that its
//! dependencies allow.
//!
//! # Who drives
//!
//! All work is done under one lock, by whoever holds it: a caller that waits for its operation (so a
//! small blocking operation pays no hand-over to another thread), or the engine's own thread, which
//! drives what nobody waits for. That thread looks up every 200 µs while the communicator is in use;
//! after 10 ms without news it sleeps: in `poll` on the transports, so that an idle communicator costs
//! no CPU, yet accepts connections, or until whoever drives leaves.
//!
//! # How it ends
//!
//! Every operation has a deadline. The first failure ends the communicator: all channels are brought
//! to rest (no memory of an operation is touched any more), then every operation ends with the same
//! error, and the other ranks are told through the control plane.

mod arithmetic;
mod bells;
pub mod counters;
pub mod device;
pub mod domain;
pub mod envelope;
mod flight;
mod fork;
mod inbox;
mod inquiry;
mod links;
mod native;
mod native_operands;
mod natural;
mod operation;
mod outcome;
mod plugin_card;
mod plugin_domain;
mod pool;
mod program;
mod regions;
mod run;
mod scratch;
mod seat;
mod staging;
mod state;
mod thread;
mod turn;
mod turns;

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use iccl_plugin_api::sdk::Progress;

use self::bells::EventBells;
use self::counters::Counters;
use self::domain::Domain;
use self::flight::Flights;
use self::inbox::Inbox;
use self::links::Links;
use self::native::Native;
use self::regions::{Regions, Registered};
use self::seat::Seat;
use self::staging::{CardMemory, Staging};
use self::state::State;
use crate::lock::lock;
use crate::{Error, ErrorKind, Result};

pub use flight::FlightFolder;
pub use fork::ForkGuard;
pub use links::Link;
pub use native::NativeIsland;
pub use native_operands::{Operand, Operands};
pub use operation::{Allocation, Keep, OnComplete, Operation, OperationRequest};
pub use plugin_card::PluginCard;
pub use plugin_domain::PluginDomain;
pub use pool::{CardBlock, CardPool};
pub use program::Program;
pub use regions::CardRegion;
pub use turns::NativeDevice;

/// Rounds of a driver that finds nothing, and of one that does, between two looks at the clock.
const IDLE_ROUNDS_PER_CLOCK: u32 = 16;
const BUSY_ROUNDS_PER_CLOCK: u32 = 64;
/// How long a driver looks for work without giving up its core.
const SPIN: Duration = Duration::from_micros(2);
/// The longest sleep of a driver; every event ends it early.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);
/// The longest wait of a caller while somebody else drives; it is told of what it waits for.
const LONGEST_STAND_BY: Duration = Duration::from_millis(20);

/// How long a driver may take to notice that memory is to be forgotten.
const LONGEST_FORGETTING: Duration = Duration::from_secs(10);

/// How an engine behaves.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// When an operation that does not move is reported.
    pub stall_warn: Duration,
    /// How long a driver looks for work (giving way to other threads) before it sleeps.
    pub spin: Duration,
    /// Most bytes of pinned memory that messages and reductions on a card may use beyond what each of them
    /// must have.
    pub staging_bytes: u64,
    /// Reductions of what lies on a card are done in pieces of this length, a multiple of every element's,
    /// so that copies of the next overlap the arithmetic of this one.
    pub piece_bytes: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            stall_warn: Duration::from_secs(10),
            spin: Duration::from_micros(50),
            staging_bytes: 32 << 20,
            piece_bytes: 1 << 20,
        }
    }
}

/// What an engine is made of.
pub struct EngineParts {
    /// This rank.
    pub rank: u32,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// The communicator's number, the same on all ranks.
    pub communicator: u64,
    /// Epoch of the plan that the links come from.
    pub epoch: u32,
    /// How to behave.
    pub options: EngineOptions,
    /// Where the last operations are written when the communicator fails, if anywhere.
    pub flights: Option<FlightFolder>,
    /// The open transports.
    pub domains: Vec<Box<dyn Domain>>,
    /// How each rank is reached; none for this rank itself.
    pub links: Vec<Option<Link>>,
    /// The pinned memory of the rank's card, if the host cannot read the card's own.
    pub pinned: Option<Arc<CardPool>>,
    /// The native communicator of the rank's island, on that card.
    pub native: Option<Arc<dyn NativeIsland>>,
    /// Tells the other ranks: when this rank finds a failure, before anything else is done about it;
    /// and when its operation (or another rank's, of which it has heard) runs out of time, whom it
    /// waits for.
    pub on_failure: Box<dyn Fn(&Error) + Send + Sync>,
}

/// Runs the operations of one communicator on one rank.
pub struct Engine {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

struct Shared {
    rank: u32,
    seat: Seat<State, EventBells>,
    submissions: Inbox<Arc<Operation>>,
    /// Other ranks whose operations ran out of time, and whom they wait for.
    timeouts: Inbox<(u32, Option<u32>, Error)>,
    /// Allocations that are to be freed.
    forgets: Inbox<u64>,
    registered: Arc<Registered>,
    failure: OnceLock<Error>,
    on_failure: Box<dyn Fn(&Error) + Send + Sync>,
    /// Operations that were accepted.
    submitted: AtomicU64,
    counters: Arc<Counters>,
    options: EngineOptions,
    shutdown: AtomicBool,
    fork: ForkGuard,
    memory: Option<CardMemory>,
}

impl Engine {
    /// Starts an engine and its thread.
    ///
    /// # Errors
    /// `OutOfResources` if the operating system gives no descriptor or thread; what the plugin of a card
    /// says.
    pub fn start(mut parts: EngineParts) -> Result<Self> {
        let refuse = |what: &str, error: std::io::Error| {
            Error::new(ErrorKind::OutOfResources, format!("the engine cannot start: {what}"))
                .with_source(error)
        };
        let wake_transport = match &parts.domains[..] {
            [domain] if domain.has_wait() => domain.waker(),
            _ => None,
        };
        let bells = EventBells::new(wake_transport)
            .map_err(|errno| refuse("no event descriptor", errno.into()))?;
        let counters = Arc::new(Counters::new(parts.ranks));
        let links = Links::new(parts.rank, std::mem::take(&mut parts.links));
        let domains = std::mem::take(&mut parts.domains);
        let registered = Arc::<Registered>::default();
        let memory = parts.pinned.take().map(CardMemory::new);
        let staging = memory
            .clone()
            .map(|memory| Staging::new(memory, &parts.options, &counters))
            .transpose()?;
        let card = staging.as_ref().map(Staging::card);
        let registers = domains.iter().any(|domain| domain.registers());
        let regions = card.filter(|_| registers).map(|card| Regions::new(card, &registered));
        let on_card = (staging, regions);
        let mut state = State::new(&parts, links, domains, Arc::clone(&counters), on_card);
        let flights = parts.flights.take();
        state.flights =
            flights.map(|folder| Flights::new(folder, parts.communicator, parts.rank, parts.ranks));
        let shared = Arc::new(Shared {
            rank: parts.rank,
            seat: Seat::new(state, bells),
            submissions: Inbox::new(),
            timeouts: Inbox::new(),
            forgets: Inbox::new(),
            registered,
            failure: OnceLock::new(),
            on_failure: parts.on_failure,
            submitted: AtomicU64::new(0),
            counters,
            options: parts.options,
            shutdown: AtomicBool::new(false),
            fork: ForkGuard::new(),
            memory,
        });
        let weak = Arc::downgrade(&shared);
        if let Some(staging) = &mut shared.seat.take().staging {
            staging.set_bell(Arc::new(move || {
                if let Some(shared) = weak.upgrade() {
                    shared.seat.tell_news();
                }
            }));
        }
        if let (Some(island), Some(memory)) = (parts.native, &shared.memory) {
            let weak = Arc::downgrade(&shared);
            let bell = Box::new(move || {
                if let Some(shared) = weak.upgrade() {
                    shared.seat.tell_news();
                }
            });
            let native = Native::start(parts.rank, island, memory.card(), bell)?;
            shared.seat.take().native = Some(native);
        }
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(format!("iccl-engine-{}", parts.rank))
            .spawn(move || thread::run(&for_thread))
            .map_err(|error| refuse("no thread", error))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Whether operations are accepted.
    ///
    /// # Errors
    /// The error that ended the communicator, if it has ended; `Forked` in a child process.
    pub fn check(&self) -> Result<()> {
        self.shared.fork.check()?;
        self.failure().map_or(Ok(()), Err)
    }

    /// Accepts an operation. Returns at once. If the communicator has ended, the operation is over
    /// when this returns.
    ///
    /// # Safety
    /// The buffers of the operation's request are valid for what its schedule does with them, and
    /// are used by nobody else in a conflicting way, until the operation is over. It is submitted
    /// once, to one engine.
    pub unsafe fn submit(&self, operation: &Arc<Operation>) {
        let shared = &self.shared;
        shared.submitted.fetch_add(1, Ordering::SeqCst);
        match shared.submissions.offer(Arc::clone(operation), || self.check().err()) {
            Ok(()) => shared.seat.tell_news(),
            Err(error) => operation.finish(Err(error)),
        }
    }

    /// Does a short operation on this thread, now, if nothing else of the communicator is under way and the
    /// host reaches the memory. Says whether it did. Whoever calls keeps others from submitting meanwhile,
    /// and knows that the operation's stream has come.
    ///
    /// # Safety
    /// As [`Engine::submit`], for what `request` says.
    pub unsafe fn do_at_once(&self, request: &OperationRequest) -> bool {
        let shared = &self.shared;
        let is_idle = shared.counters.operations_over() == shared.submitted.load(Ordering::SeqCst);
        if !request.program.is_short() || shared.memory.is_some() || !is_idle {
            return false;
        }
        shared.submitted.fetch_add(1, Ordering::SeqCst);
        for (source, destination) in request.program.short_copies() {
            // SAFETY: both slices lie in the user's buffers, which the caller promises are valid and used by
            // nobody else in a conflicting way; they do not overlap, by the schedule's contract.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    request.send.add(source.offset as usize),
                    request.receive.add(destination.offset as usize),
                    source.bytes as usize,
                );
            }
        }
        shared.counters.operation_done(request.program.schedule().algorithm);
        shared.counters.operation_over();
        true
    }

    /// Makes sure that a call with this program finds the pinned memory that it needs on a card, and the card's
    /// own, so that whoever drives allocates none: that may wait for streams, and these for whoever drives.
    /// Calls that are under way together may need more than is there. Blocks as the card's allocations do.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn prepare(&self, program: &Program) -> Result<()> {
        let Some(memory) = &self.shared.memory else { return Ok(()) };
        staging::prepare(program, memory, &self.shared.options)
    }

    /// As [`Engine::prepare`], for what one call needs because of where its buffers lie.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn prepare_buffers(
        &self,
        program: &Program,
        send: *const u8,
        receive: *mut u8,
    ) -> Result<()> {
        let Some(memory) = &self.shared.memory else { return Ok(()) };
        match natural::bytes(program, send, receive) {
            0 => Ok(()),
            bytes => memory.prepare_own(program, bytes),
        }
    }

    /// Takes an allocation back from every NIC, before it is freed: no operation uses it any more. Says
    /// whether that is done; if not, the memory must stay. Waits for whoever drives, so this thread is none of
    /// those.
    #[must_use]
    pub fn forget(&self, allocation: u64) -> bool {
        let shared = &self.shared;
        let is_forgotten = || !shared.registered.contains(allocation);
        if is_forgotten() || shared.fork.check().is_err() {
            return true;
        }
        shared.forgets.put(allocation);
        shared.seat.tell_news();
        let deadline = Instant::now() + LONGEST_FORGETTING;
        while !is_forgotten() {
            if Instant::now() >= deadline {
                return false;
            }
            shared.help(&is_forgotten, Some(deadline));
        }
        true
    }

    /// Says that the operation's stream has reached it. Any thread; does not block.
    pub fn set_ready(&self, operation: &Operation) {
        operation.set_ready();
        self.shared.seat.tell_news();
    }

    /// Waits until the operation is over, driving it on this thread where possible.
    ///
    /// # Errors
    /// How the operation ended; `Timeout` if it is not over at `deadline` (it goes on then).
    pub fn wait(&self, operation: &Operation, deadline: Option<Instant>) -> Result<()> {
        loop {
            if let Some(outcome) = operation.outcome() {
                return outcome;
            }
            self.shared.fork.check()?;
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!("{operation} is not over yet; it goes on"),
                ));
            }
            self.shared.help(&|| operation.is_over(), deadline);
        }
    }

    /// Waits until every operation that was submitted is over.
    ///
    /// # Errors
    /// The error that ended the communicator; `Timeout` if there are operations at `deadline`.
    pub fn drain(&self, deadline: Option<Instant>) -> Result<()> {
        let shared = &self.shared;
        // Without a failure, each ends well.
        let is_idle =
            || shared.counters.operations_over() >= shared.submitted.load(Ordering::SeqCst);
        loop {
            self.check()?;
            if is_idle() {
                return Ok(());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::new(ErrorKind::Timeout, "operations are not over yet"));
            }
            shared.help(&is_idle, deadline);
        }
    }

    /// The error that ended the communicator, if it has ended.
    pub fn failure(&self) -> Option<Error> {
        self.shared.failure.get().cloned()
    }

    /// Ends the communicator with `error`: every operation that is not over ends with it, now and
    /// later. Says whether this was the first failure; then nobody else is told.
    pub fn fail(&self, error: Error) -> bool {
        if self.shared.fork.check().is_err() {
            return false;
        }
        let first = self.shared.failure.set(error).is_ok();
        self.shared.seat.tell_news();
        let mut state = self.shared.seat.take();
        self.shared.end_all(&mut state);
        self.shared.seat.leave(state);
        first
    }

    /// As [`Engine::fail`], but does not wait until everything has ended: for callers that must not
    /// block.
    pub fn fail_soon(&self, error: Error) {
        if self.shared.fork.check().is_ok() && self.shared.failure.set(error).is_ok() {
            self.shared.seat.tell_news();
        }
    }

    /// Another rank's operation ran out of time. Does not block.
    pub fn hear_timeout(&self, origin: u32, waits_for: Option<u32>, told: Error) {
        if self.check().is_ok() {
            self.shared.timeouts.put((origin, waits_for, told));
            self.shared.seat.tell_news();
        }
    }

    /// Counters of what was moved.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Ends the engine in good order: channels are closed so that peers see no failure. Operations
    /// that are not over end with an error. Again, it does nothing.
    pub fn close(&self) {
        let Some(thread) = lock(&self.thread).take() else { return };
        if self.shared.fork.check().is_err() {
            // The thread lives in the parent only, and the parent still uses the connections. Its number
            // may be that of a thread of this process.
            std::mem::forget(thread);
            return;
        }
        self.shared.shutdown.store(true, Ordering::SeqCst);
        self.shared.seat.tell_news();
        if thread.join().is_err() {
            tracing::error!(rank = self.shared.rank, "the engine's thread panicked");
        }
        let ended = Error::new(ErrorKind::Aborted, "the communicator was destroyed on this rank");
        let mut state = self.shared.seat.take();
        let _ = self.shared.failure.set(ended);
        self.shared.take_inbox(&mut state);
        if state.has_operations() {
            self.shared.end_all(&mut state);
        }
        let State { links, domains, regions, .. } = &mut *state;
        links.close(domains);
        if let Some(regions) = regions {
            regions.end(domains);
        }
        domains.clear();
        state.staging = None;
        if let Some(native) = state.native.take() {
            native.leave();
        }
        self.shared.seat.leave(state);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// Drives until `stop` says so, or waits a while for it if somebody else drives.
    fn help(&self, stop: &dyn Fn() -> bool, deadline: Option<Instant>) {
        let longest = deadline.map_or(LONGEST_STAND_BY, |deadline| {
            deadline.saturating_duration_since(Instant::now()).min(LONGEST_STAND_BY)
        });
        if let Some(mut state) = self.seat.take_or_stand_by(stop, longest) {
            self.drive(&mut state, stop, deadline);
            self.seat.leave(state);
        }
    }

    /// If a driver panicked, the communicator cannot go on.
    fn notice_panic(&self) {
        if self.seat.was_left_in_panic() {
            let _ = self.failure.set(Error::new(
                ErrorKind::Internal,
                "the engine panicked; the communicator cannot go on",
            ));
        }
    }

    /// Drives until `stop` says so, the deadline passes, or the communicator fails.
    fn drive(&self, state: &mut State, stop: &dyn Fn() -> bool, deadline: Option<Instant>) {
        let _driving = Driving::begin();
        let mut idle_since: Option<Instant> = None;
        let mut rounds: u32 = 0;
        let mut taken = None;
        let mut has_ended = true;
        self.notice_panic();
        loop {
            // What is told from here on keeps the driver from sleeping.
            let news = self.seat.news();
            if self.failure.get().is_some() {
                self.end_all(state);
                return;
            }
            if taken != Some(news) {
                taken = Some(news);
                self.take_inbox(state);
            }
            let moved = match state.advance() {
                Ok(moved) => moved,
                Err(error) => return self.found_failure(state, &error),
            };
            if stop() {
                return;
            }
            rounds = rounds.wrapping_add(1);
            if moved {
                idle_since = None;
                has_ended = true;
                self.seat.tell_bystanders();
            }
            let between = if moved { BUSY_ROUNDS_PER_CLOCK } else { IDLE_ROUNDS_PER_CLOCK };
            if !rounds.is_multiple_of(between) {
                if !moved {
                    std::hint::spin_loop();
                }
                continue;
            }
            let now = Instant::now();
            if let Err(error) = state.check_deadlines(now) {
                return self.found_failure(state, &error);
            }
            if let Some(report) = state.take_report() {
                (self.on_failure)(&report);
            }
            if deadline.is_some_and(|deadline| now >= deadline) {
                return;
            }
            if moved {
                continue;
            }
            let idle = now.duration_since(*idle_since.get_or_insert(now));
            if idle < SPIN {
                std::hint::spin_loop();
            } else if idle < self.options.spin {
                std::thread::yield_now();
            } else {
                let until = [state.next_deadline(), deadline, Some(now + LONGEST_SLEEP)];
                let until = until.into_iter().flatten().min().unwrap_or(now);
                let timeout = until.saturating_duration_since(now);
                let sleep = || self.sleep(state, timeout);
                if let Some(Err(error)) = self.seat.sleep(news, has_ended, stop, sleep) {
                    return self.found_failure(state, &error);
                }
                idle_since = None;
                has_ended = false;
            }
        }
    }

    /// This rank found a failure: tells the others, then ends everything here.
    fn found_failure(&self, state: &mut State, error: &Error) {
        // Whatever a card does not do is its rank's.
        let is_of_card = error.rank().is_none() && error.context().any(|(key, _)| key == "device");
        let error = if is_of_card { error.clone().with_rank(self.rank) } else { error.clone() };
        if self.failure.set(error.clone()).is_ok() {
            (self.on_failure)(&error);
        }
        self.end_all(state);
    }

    fn end_all(&self, state: &mut State) {
        let Some(error) = self.failure.get() else { return };
        let _driving = Driving::begin();
        self.take_inbox(state);
        state.fail(error);
    }

    fn take_inbox(&self, state: &mut State) {
        self.submissions.empty(|operation| state.admit(operation));
        let mut has_forgotten = false;
        self.forgets.empty(|allocation| {
            has_forgotten = true;
            state.forget(allocation);
        });
        if has_forgotten {
            self.seat.tell_bystanders();
        }
        self.timeouts.empty(|(origin, waits_for, told)| state.hear(origin, waits_for, &told));
    }

    /// Sleeps until a transport has something, the driver is woken, or `timeout` has passed.
    fn sleep(&self, state: &mut State, timeout: Duration) -> Result<()> {
        let Some(timeout) = state.may_sleep(timeout)? else { return Ok(()) };
        let bells = self.seat.bells();
        if bells.driver_sleeps_in_transport() {
            return state.domains[0].wait(timeout);
        }
        if !arm(&mut state.domains)? {
            return Ok(());
        }
        bells.sleep_of_driver(&state.descriptors(), timeout)
    }
}

thread_local! {
    static DRIVES: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread drives an engine now. It must not free memory of a card then: that may wait for
/// streams which wait for this thread.
pub fn is_driving() -> bool {
    DRIVES.get()
}

/// Marks this thread as one that drives, as long as it lives.
struct Driving {
    before: bool,
}

impl Driving {
    fn begin() -> Self {
        Self { before: DRIVES.replace(true) }
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        DRIVES.set(self.before);
    }
}

/// Arms all domains; false if one has something to do now.
fn arm(domains: &mut [Box<dyn Domain>]) -> Result<bool> {
    for domain in domains {
        if domain.arm()? == Progress::Done {
            return Ok(false);
        }
    }
    Ok(true)
}
