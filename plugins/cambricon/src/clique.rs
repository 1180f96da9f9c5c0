//! The communicators of a clique that this process has. CNCL wants all of them freed at once, or none.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{NativeCall, NativeCommunicator, PluginError, PluginResult, Progress};
use iccl_vendor_support::plan::plan;
use iccl_vendor_support::{Pace, handle, wait_until_done};

use crate::calls;
use crate::cncl::Cncl;
use crate::context::Current;
use crate::sys;

/// How long an abort waits for a call that is inside CNCL before it aborts beside it; and then for CNCL.
const ABORT_PATIENCE: Duration = Duration::from_secs(1);

/// How long leaving may take before the clique is aborted instead.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(60);

/// One rank of a clique.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) rank: u32,
    pub(crate) current: Arc<Current>,
    handle: Handle,
}

/// A communicator of CNCL.
#[derive(Clone, Copy, Debug)]
struct Handle(*mut c_void);

// SAFETY: CNCL's examples call communicators from threads that did not make them.
unsafe impl Send for Handle {}
// SAFETY: as above; only the question for errors and an abort come beside another call.
unsafe impl Sync for Handle {}

impl Member {
    pub(crate) fn new(rank: u32, current: Arc<Current>, handle: sys::Communicator) -> Self {
        Self { rank, current, handle: Handle(handle) }
    }
}

/// All communicators of one clique in this process.
#[derive(Debug)]
pub(crate) struct Clique {
    pub(crate) cncl: Arc<Cncl>,
    ranks: u32,
    members: Vec<Member>,
    /// Held by all that are inside CNCL; alone by who takes the communicators away.
    gate: RwLock<()>,
    is_aborted: AtomicBool,
    /// The communicators are CNCL's to free, or were never made.
    is_released: AtomicBool,
    left: AtomicUsize,
}

impl Clique {
    pub(crate) fn new(cncl: Arc<Cncl>, ranks: u32, members: Vec<Member>) -> Self {
        Self {
            cncl,
            ranks,
            members,
            gate: RwLock::new(()),
            is_aborted: AtomicBool::new(false),
            is_released: AtomicBool::new(false),
            left: AtomicUsize::new(0),
        }
    }

    fn enter(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of several ranks has left. The last takes all communicators away.
    fn leave_one(&self) -> PluginResult<()> {
        if self.left.fetch_add(1, Ordering::AcqRel) + 1 < self.members.len() {
            return Ok(());
        }
        let gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        if self.is_released.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        drop(gate);
        let cncl = Arc::clone(&self.cncl);
        let mut handles: Vec<Handle> = self.members.iter().map(|each| each.handle).collect();
        let destroyed = apart("iccl-cncl-leave", move || {
            let (first, number) = (handles.as_mut_ptr().cast(), handles.len() as c_int);
            // SAFETY: all communicators of the clique, which nobody uses after this.
            let answer = unsafe { (cncl.table.cnclDestroyComms)(first, number) };
            cncl.table.check("cnclDestroyComms", answer)
        })?;
        let Some(destroyed) = answer_within(&destroyed, LEAVE_TIMEOUT) else {
            self.is_aborted.store(true, Ordering::Release);
            let aborted = self.abort_all();
            let ranks = self.members.iter().map(|each| each.rank).collect::<Vec<_>>();
            let text = format!(
                "cnclDestroyComms: not done after {LEAVE_TIMEOUT:?} on ranks {ranks:?} of {}; aborted",
                self.ranks
            );
            return aborted.and(Err(PluginError::new(Status::Timeout, text)));
        };
        destroyed
    }

    /// Ends everything that is pending on all ranks of this process, once.
    pub(crate) fn abort(&self) -> PluginResult<()> {
        self.is_aborted.store(true, Ordering::Release);
        // Whoever is inside CNCL may come out by itself. If not, the abort comes beside it; that is what
        // it is for.
        let mut gate = None;
        wait_until_done(Pace::PEERS, Some(ABORT_PATIENCE), || {
            gate = self.gate.try_write().ok();
            Ok(if gate.is_some() { Progress::Done } else { Progress::Pending })
        })?;
        if self.is_released.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        drop(gate);
        self.abort_all()
    }

    /// Each on a thread of its own: CNCL comes back when all are aborted.
    fn abort_all(&self) -> PluginResult<()> {
        let mut pending = Vec::new();
        for member in &self.members {
            let (cncl, current) = (Arc::clone(&self.cncl), Arc::clone(&member.current));
            let handle = member.handle;
            pending.push(apart("iccl-cncl-abort", move || {
                let handle = { handle }.0;
                let _current = current.enter()?;
                // SAFETY: the communicators were taken away, so nobody else frees this one.
                let answer = unsafe { (cncl.table.cnclAbortComm)(handle) };
                cncl.table.check("cnclAbortComm", answer)
            })?);
        }
        let deadline = Instant::now() + ABORT_PATIENCE;
        for (member, pending) in self.members.iter().zip(&pending) {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(answer) = answer_within(pending, left) {
                answer?;
                continue;
            }
            // It has begun, and what is pending ends; what goes on is freeing.
            tracing::warn!(
                rank = member.rank,
                "cnclAbortComm waits for ranks of the clique in other processes"
            );
        }
        Ok(())
    }
}

/// Runs something that nobody can end on a thread of its own.
fn apart(
    name: &str,
    run: impl FnOnce() -> PluginResult<()> + Send + 'static,
) -> PluginResult<Receiver<PluginResult<()>>> {
    let (sender, receiver) = channel();
    let run = move || {
        // Nobody listens any more after the deadline.
        let _ = sender.send(run());
    };
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map_err(|error| {
        PluginError::new(Status::OutOfResources, format!("no thread for CNCL: {error}"))
    })?;
    Ok(receiver)
}

fn answer_within(
    receiver: &Receiver<PluginResult<()>>,
    time: Duration,
) -> Option<PluginResult<()>> {
    receiver.recv_timeout(time).ok()
}

/// A communicator: one rank of a clique. Dropping it leaves.
#[derive(Debug)]
pub struct CnclCommunicator {
    clique: Arc<Clique>,
    place: usize,
    has_left: AtomicBool,
}

impl CnclCommunicator {
    pub(crate) fn new(clique: Arc<Clique>, rank: u32) -> PluginResult<Self> {
        let place = clique.members.iter().position(|each| each.rank == rank);
        let place =
            place.ok_or_else(|| PluginError::invalid(format!("there is no rank {rank}")))?;
        Ok(Self { clique, place, has_left: AtomicBool::new(false) })
    }

    pub(crate) fn member(&self) -> &Member {
        &self.clique.members[self.place]
    }

    pub(crate) fn cncl(&self) -> &Cncl {
        &self.clique.cncl
    }

    /// Calls into CNCL with the handle, unless the communicator is gone.
    pub(crate) fn with_handle<T>(
        &self,
        call: impl FnOnce(sys::Communicator) -> PluginResult<T>,
    ) -> PluginResult<T> {
        let _inside = self.clique.enter();
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Acquire);
        if is_set(&self.clique.is_aborted) || is_set(&self.clique.is_released) {
            return Err(aborted());
        }
        let answer = {
            let _current = self.member().current.enter()?;
            call(self.member().handle.0)
        };
        // What a call says that an abort ended is that.
        if is_set(&self.clique.is_aborted) { answer.map_err(|_| aborted()) } else { answer }
    }

    fn leave_once(&self) -> PluginResult<()> {
        if self.has_left.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.clique.leave_one()
    }
}

fn aborted() -> PluginError {
    PluginError::new(Status::Aborted, "the communicator was aborted")
}

impl NativeCommunicator for CnclCommunicator {
    unsafe fn call(&self, call: &NativeCall<'_>, stream: u64) -> PluginResult<()> {
        let plan = plan(&self.cncl().repertoire, call, self.clique.ranks, self.member().rank)?;
        let queue = handle(stream)?;
        // SAFETY: the caller promises the buffers and a stream of the card.
        unsafe { calls::issue(self, &plan, queue) }
    }

    fn async_error(&self) -> PluginResult<Progress> {
        self.with_handle(|handle| {
            let table = &self.cncl().table;
            // SAFETY: the communicator lives. The status is what it returns.
            match unsafe { (table.cnclGetCommAsyncError)(handle) } {
                sys::CNCL_ASYNC_IN_PROGRESS => Ok(Progress::Pending),
                answer => table.check("communicator", answer).map(|()| Progress::Done),
            }
        })
    }

    fn abort(&self) -> PluginResult<()> {
        self.clique.abort()
    }

    fn leave(self) -> PluginResult<()> {
        self.leave_once()
    }
}

impl Drop for CnclCommunicator {
    fn drop(&mut self) {
        if let Err(error) = self.leave_once() {
            tracing::warn!(%error, "a CNCL communicator could not be left");
        }
    }
}
