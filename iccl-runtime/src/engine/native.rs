//! Native calls: the engine's part in the work of a maker's library.
//!
//! A call into such a library may block (until its peers come, for instance), so no driver makes it. Each
//! engine has one thread that issues its calls, in the order in which the steps of the schedule stand and
//! the operations were called, on a stream that only it uses, and says when they are done. Number and
//! order of native calls thus depend on the plan alone.
//!
//! When the communicator fails, the library is told to abort, and the stream to come to rest. Past the
//! deadline nobody waits any longer: thread, stream and native communicator are left to the library for
//! ever, no memory that it may touch is used again, and the device's native library is not used again
//! in this process ([`NativeDevice::give_up`]). Native calls that others made on the device before may
//! never be done then either, so who waits for its turn there hears of it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use iccl_plugin_api::Collective;

use super::device::{Card, CardStream};
use super::native_operands::Operands;
use super::natural;
use super::state::State;
use super::turns::{NativeDevice, Ticket};
use crate::lock::lock;
use crate::schedule::{IslandCall, StepKind};
use crate::{Error, ErrorKind, Result};

/// Shortest and longest nap of the issuing thread while calls are under way.
const NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// How often an idle library is asked for its errors.
const ASK_IDLE: Duration = Duration::from_secs(1);
/// How often a busy one is.
const ASK_BUSY: Duration = Duration::from_millis(10);
/// How long the library may take to free its communicator when everything went well.
const LEAVE: Duration = Duration::from_secs(20);

/// A native communicator of this rank's island. Dropping it leaves it, which may block.
pub trait NativeIsland: Send + Sync {
    /// For messages: `NCCL 2.27.3 on ranks 0-3`.
    fn name(&self) -> &str;
    /// Enqueues one call on a stream of the card. May block; one thread at a time.
    ///
    /// # Safety
    /// The operands are the card's memory, as long as the call needs, and nobody else uses them
    /// until the stream is past it.
    ///
    /// # Errors
    /// What the library says.
    unsafe fn call(&self, call: &IslandCall, operands: &Operands, stream: u64) -> Result<()>;
    /// The error that the library met by itself. Any thread.
    ///
    /// # Errors
    /// That error.
    fn async_error(&self) -> Result<()>;
    /// Makes every call end. Any thread; may block.
    ///
    /// # Errors
    /// What the library says.
    fn abort(&self) -> Result<()>;
    /// What all communicators of this process share of the device that it is on.
    fn device(&self) -> &Arc<NativeDevice>;
}

/// What wakes the driver.
pub(super) type Bell = Box<dyn Fn() + Send + Sync>;

/// One call that is to be issued.
struct Job {
    serial: u32,
    step: u32,
    call: IslandCall,
    given: Operands,
    /// Where the library is to find them, if that is elsewhere.
    moved: Option<Operands>,
}

// SAFETY: the pointers are only given to the library; the run that the job belongs to keeps the memory until the
// call is done or the library is at rest.
unsafe impl Send for Job {}

/// How far the issuing thread is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Working,
    /// Nothing of the library touches memory any more.
    AtRest,
    /// The native communicator is left.
    Gone,
}

struct Shared {
    done: Mutex<Vec<Result<(u32, u32)>>>,
    stage: Mutex<Stage>,
    changed: Condvar,
    /// The call that the issuing thread is inside of.
    inside: Mutex<Option<Collective>>,
    bell: Bell,
}

impl Shared {
    fn tell(&self, done: Result<(u32, u32)>) {
        lock(&self.done).push(done);
        (self.bell)();
    }

    fn reach(&self, stage: Stage) {
        *lock(&self.stage) = stage;
        self.changed.notify_all();
    }

    /// Waits until the thread has reached `stage`. Says whether it has.
    fn await_stage(&self, stage: Stage, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut reached = lock(&self.stage);
        while *reached < stage {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(reached, left);
            reached = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// What is seen of a native communicator from outside.
pub(super) struct Witness {
    name: Arc<str>,
    shared: Arc<Shared>,
}

impl Witness {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The call that has not returned, if one has not.
    pub(super) fn inside(&self) -> Option<Collective> {
        *lock(&self.shared.inside)
    }
}

/// The native communicator of an engine.
pub(super) struct Native {
    name: Arc<str>,
    /// None once nothing more is issued.
    jobs: Option<Sender<Job>>,
    shared: Arc<Shared>,
    /// The issuing thread has the other, and leaves.
    island: Weak<dyn NativeIsland>,
    device: Arc<NativeDevice>,
}

impl Native {
    /// Starts the issuing thread.
    ///
    /// # Errors
    /// What the plugin says; `OutOfResources` if there is no thread.
    pub(super) fn start(
        rank: u32,
        island: Arc<dyn NativeIsland>,
        card: &Arc<dyn Card>,
        bell: Bell,
    ) -> Result<Self> {
        let (sender, receiver) = channel();
        let shared = Arc::new(Shared {
            done: Mutex::default(),
            stage: Mutex::new(Stage::Working),
            changed: Condvar::new(),
            inside: Mutex::new(None),
            bell,
        });
        let stream = CardStream::new(card)?;
        let native = Self {
            name: island.name().into(),
            jobs: Some(sender),
            shared: Arc::clone(&shared),
            device: Arc::clone(island.device()),
            island: Arc::downgrade(&island),
        };
        let card = Arc::clone(card);
        let issuer = Issuer { island, stream, card, jobs: receiver, shared };
        std::thread::Builder::new()
            .name(format!("iccl-native-{rank}"))
            .spawn(move || issuer.run())
            .map_err(|error| {
                Error::new(ErrorKind::OutOfResources, "no thread for native calls")
                    .with_source(error)
            })?;
        Ok(native)
    }

    /// For messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn witness(&self) -> Witness {
        Witness { name: Arc::clone(&self.name), shared: Arc::clone(&self.shared) }
    }

    /// A place in the order of the device, for an operation of this communicator.
    pub(super) fn ticket(&self, communicator: u64, what: String) -> Ticket {
        let shared = Arc::clone(&self.shared);
        self.device.ticket(communicator, what, Arc::new(move || (shared.bell)()))
    }

    fn issue(&self, job: Job) -> Result<()> {
        let gone = || Error::new(ErrorKind::Internal, format!("{} is given up", self.name));
        self.jobs.as_ref().ok_or_else(gone)?.send(job).map_err(|_| gone())
    }

    fn take_done(&self) -> Vec<Result<(u32, u32)>> {
        std::mem::take(&mut *lock(&self.shared.done))
    }

    /// Aborts what is under way, and waits until the library touches no memory any more. Says whether
    /// it is so; if not, it is never asked again.
    #[must_use]
    pub(super) fn rest(&mut self, timeout: Duration) -> bool {
        if self.jobs.take().is_none() {
            return self.shared.await_stage(Stage::AtRest, Duration::ZERO);
        }
        // An abort may block too.
        let island = self.island.clone();
        let aborting =
            std::thread::Builder::new().name("iccl-native-abort".into()).spawn(move || {
                if let Some(Err(error)) = island.upgrade().map(|island| island.abort()) {
                    tracing::warn!(%error, "a native communicator could not be aborted");
                }
            });
        if let Err(error) = aborting {
            tracing::warn!(%error, "no thread to abort a native communicator");
        }
        let at_rest = self.shared.await_stage(Stage::AtRest, timeout);
        if !at_rest {
            tracing::warn!(
                library = &*self.name,
                "a native library did not come to rest and is left"
            );
            self.device.give_up(&format!("{} did not come to rest", self.name));
            if let Some(island) = self.island.upgrade() {
                // Whoever drops the last one leaves, and may never come back.
                std::mem::forget(island);
            }
        }
        at_rest
    }

    /// Leaves in good order, when nothing is under way. What did not come to rest is left as it is.
    pub(super) fn leave(mut self) {
        let rested = self.jobs.take().is_none();
        if rested && !self.shared.await_stage(Stage::AtRest, Duration::ZERO) {
            return;
        }
        if !self.shared.await_stage(Stage::Gone, LEAVE) {
            tracing::warn!(
                library = &*self.name,
                "a native communicator was not left in {LEAVE:?}"
            );
        }
    }
}

/// The thread that issues.
struct Issuer {
    island: Arc<dyn NativeIsland>,
    stream: CardStream<(u32, u32)>,
    card: Arc<dyn Card>,
    jobs: Receiver<Job>,
    shared: Arc<Shared>,
}

impl Issuer {
    fn run(mut self) {
        if let Err(error) = self.issue_all() {
            self.shared.tell(Err(error));
            // The driver ends the communicator; until then, nothing more is issued.
            while self.jobs.recv().is_ok() {}
        }
        let rested = self.stream.rest(Duration::MAX);
        let Self { island, stream, shared, .. } = self;
        if let Err(error) = rested {
            tracing::warn!(%error, library = island.name(), "a native stream did not come to rest");
            // The driver waits in vain, and leaves everything as it is.
            std::mem::forget((island, stream));
            return;
        }
        drop(stream);
        shared.reach(Stage::AtRest);
        drop(island);
        shared.reach(Stage::Gone);
    }

    /// Issues what comes until nothing more does.
    fn issue_all(&mut self) -> Result<()> {
        let mut nap = NAP;
        let mut asked = Instant::now();
        loop {
            let wait = if self.stream.is_idle() { ASK_IDLE } else { nap };
            match self.jobs.recv_timeout(wait) {
                Ok(job) => {
                    let stream = self.stream.handle();
                    let (call, given, card) = (&job.call, &job.given, &*self.card);
                    let operands = job.moved.as_ref().unwrap_or(given);
                    // SAFETY: the run keeps the memory of the job until it is done or all is at rest, and
                    // its schedule orders every other use of it.
                    unsafe { natural::copy(card, stream, &operands.sent, &given.sent, call) }?;
                    *lock(&self.shared.inside) = Some(call.collective);
                    // SAFETY: as above; what was moved is as long.
                    let called = unsafe { self.island.call(call, operands, stream) };
                    *lock(&self.shared.inside) = None;
                    called?;
                    let (from, to) = (&operands.received, &given.received);
                    // SAFETY: as above.
                    unsafe { natural::copy(card, stream, to, from, call) }?;
                    self.stream.then((job.serial, job.step))?;
                    nap = NAP;
                }
                Err(RecvTimeoutError::Timeout) => nap = (nap * 2).min(LONGEST_NAP),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            while let Some(done) = self.stream.next_landed()? {
                self.shared.tell(Ok(done));
                nap = NAP;
            }
            let between = if self.stream.is_idle() { ASK_IDLE } else { ASK_BUSY };
            if asked.elapsed() >= between {
                asked = Instant::now();
                self.island.async_error()?;
            }
        }
    }
}

impl State {
    /// A native call's dependencies are met, or the operation's turn has come: issues it, and those behind
    /// it that wait for it only.
    pub(super) fn issue_native(&mut self, index: usize) -> Result<()> {
        let run = &mut self.runs[index];
        let calls = run.program.native_calls();
        while let Some(step) = calls.get(run.native_issued as usize).copied() {
            if !run.released[step as usize] {
                break;
            }
            let schedule = run.program.schedule();
            let StepKind::Native { call, sources, destinations } =
                &schedule.steps[step as usize].kind
            else {
                unreachable!("only native calls are in the list of native calls")
            };
            let native = self.native.as_ref().ok_or_else(|| {
                let text = format!("{}: no native library for {call:?}", run.operation);
                Error::new(ErrorKind::Internal, text)
            })?;
            if !run.turn.has_come() {
                break;
            }
            let (sources, destinations) =
                (schedule.sources(sources), schedule.sources(destinations));
            let given = Operands::new(call, sources, destinations, |slice| run.address(slice));
            let moved = run.natural().and_then(|block| natural::moved(call, &given, block));
            native.issue(Job { serial: run.serial, step, call: *call, given, moved })?;
            self.counters.native_call();
            run.native_issued += 1;
        }
        Ok(())
    }

    /// Takes note of the native calls that are done. Says whether there were any.
    pub(super) fn land_native(&mut self) -> Result<bool> {
        let Some(native) = &self.native else { return Ok(false) };
        let done = native.take_done();
        if done.is_empty() {
            return Ok(false);
        }
        let name = native.name().to_owned();
        for one in done {
            let (serial, step) = one.map_err(|error| error.within(&name))?;
            if let Some(index) = self.runs.iter().position(|run| run.serial == serial) {
                let run = &mut self.runs[index];
                run.native_done += 1;
                if run.native_done as usize == run.program.native_calls().len() {
                    run.turn.end();
                }
                self.complete_step(index, step)?;
            }
        }
        Ok(true)
    }

    /// Brings the native library to rest. Says whether it is.
    #[must_use]
    pub(super) fn rest_native(&mut self, timeout: Duration) -> bool {
        self.native.as_mut().is_none_or(|native| native.rest(timeout))
    }
}
