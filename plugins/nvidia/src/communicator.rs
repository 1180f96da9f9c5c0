//! A communicator of NCCL.
//!
//! It is made in NCCL's non-blocking mode: a call that has to wait for a peer (the first one over a
//! connection) says so, and is waited for here, where an abort by another thread ends the wait.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{NativeCall, NativeCommunicator, PluginError, PluginResult, Progress};
use iccl_vendor_support::plan::plan;
use iccl_vendor_support::{Pace, wait_until_done};

use crate::calls;
use crate::context::PrimaryContext;
use crate::device::{Card, open_stream};
use crate::nccl::Nccl;
use crate::sys;

/// How long an abort waits for a call that is inside NCCL before it aborts beside it.
const ABORT_PATIENCE: Duration = Duration::from_secs(1);

/// How long leaving may take before the communicator is aborted instead.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(60);

/// A communicator. Dropping it leaves.
#[derive(Debug)]
pub struct NcclCommunicator {
    joined: Arc<Joined>,
}

/// What a communicator is, shared with the groups that it is called in.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) nccl: Arc<Nccl>,
    pub(crate) context: Arc<PrimaryContext>,
    pub(crate) ranks: u32,
    pub(crate) rank: u32,
    /// Null once it is gone.
    handle: AtomicPtr<c_void>,
    /// One call at a time is inside NCCL.
    calls: Mutex<()>,
    /// Nobody waits for NCCL any more.
    is_aborted: AtomicBool,
}

impl NcclCommunicator {
    /// Joins, and waits for all ranks, at most `timeout`.
    pub(crate) fn join(
        nccl: &Arc<Nccl>,
        card: &Card,
        unique_id: &[u8],
        (ranks, rank): (u32, u32),
        timeout: Duration,
    ) -> PluginResult<Self> {
        let internal = unique_id.try_into().map_err(|_| {
            let expected = sys::UNIQUE_ID_BYTES;
            let length = unique_id.len();
            PluginError::invalid(format!("NCCL's unique ids have {expected} bytes, not {length}"))
        })?;
        let (Ok(ranks_number), Ok(rank_number)) = (c_int::try_from(ranks), c_int::try_from(rank))
        else {
            return Err(PluginError::invalid(format!("rank {rank} of {ranks}")));
        };
        let mut config = config();
        let mut handle = std::ptr::null_mut();
        let joined = {
            let _current = card.context.enter()?;
            // SAFETY: there is room for the handle, and the configuration has the size that it says.
            let answer = unsafe {
                (nccl.table.ncclCommInitRankConfig)(
                    &raw mut handle,
                    ranks_number,
                    sys::UniqueId { internal },
                    rank_number,
                    &raw mut config,
                )
            };
            let joined = Joined {
                nccl: Arc::clone(nccl),
                context: Arc::clone(&card.context),
                ranks,
                rank,
                handle: AtomicPtr::new(handle),
                calls: Mutex::default(),
                is_aborted: AtomicBool::new(false),
            };
            let begun = nccl.table.check("ncclCommInitRankConfig", handle, answer);
            joined.or_aborted(begun)?;
            Arc::new(joined)
        };
        let ready = joined.settle("ncclCommInitRankConfig", Some(timeout));
        joined.or_aborted(ready)?;
        Ok(Self { joined })
    }
}

/// The configuration: nothing but that calls do not block.
fn config() -> sys::Config {
    sys::Config {
        size: size_of::<sys::Config>(),
        magic: sys::CONFIG_MAGIC,
        version: sys::CONFIG_VERSION,
        blocking: 0,
        cga_cluster_size: sys::CONFIG_UNDEFINED,
        min_ctas: sys::CONFIG_UNDEFINED,
        max_ctas: sys::CONFIG_UNDEFINED,
        net_name: std::ptr::null(),
        split_share: sys::CONFIG_UNDEFINED,
    }
}

impl Joined {
    fn locked(&self) -> MutexGuard<'_, ()> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls into NCCL with the handle, unless the communicator is gone.
    pub(crate) fn with_handle<T>(
        &self,
        call: impl FnOnce(sys::Communicator) -> PluginResult<T>,
    ) -> PluginResult<T> {
        let _one = self.locked();
        let handle = self.handle.load(Ordering::Acquire);
        if handle.is_null() || self.is_aborted.load(Ordering::Acquire) {
            return Err(aborted());
        }
        let _current = self.context.enter()?;
        call(handle)
    }

    /// What NCCL says that the communicator met, or is still at.
    fn state(&self) -> PluginResult<Progress> {
        self.with_handle(|handle| {
            let table = &self.nccl.table;
            let mut result = sys::NCCL_SUCCESS;
            // SAFETY: the communicator lives; there is room for the number.
            let answer = unsafe { (table.ncclCommGetAsyncError)(handle, &raw mut result) };
            table.check("ncclCommGetAsyncError", handle, answer)?;
            table.check("communicator", handle, result)?;
            let is_busy = result == sys::NCCL_IN_PROGRESS;
            Ok(if is_busy { Progress::Pending } else { Progress::Done })
        })
    }

    /// Waits until NCCL is over with the last call. Ends when another thread aborts.
    pub(crate) fn settle(&self, call: &str, timeout: Option<Duration>) -> PluginResult<()> {
        let state = || {
            self.state().map_err(|error| PluginError {
                message: format!("{call}: {}", error.message),
                ..error
            })
        };
        if wait_until_done(Pace::PEERS, timeout, state)? {
            return Ok(());
        }
        let (rank, ranks, timeout) = (self.rank, self.ranks, timeout.unwrap_or_default());
        let text = format!("{call}: not done after {timeout:?} on rank {rank} of {ranks}");
        Err(PluginError::new(Status::Timeout, text))
    }

    /// Aborts the communicator if something failed: NCCL wants no other end after a failure.
    fn or_aborted<T>(&self, outcome: PluginResult<T>) -> PluginResult<T> {
        outcome.inspect_err(|_| {
            if let Err(error) = self.abort() {
                tracing::warn!(%error, "a failed NCCL communicator could not be aborted");
            }
        })
    }

    /// Ends everything that is pending, once.
    fn abort(&self) -> PluginResult<()> {
        self.is_aborted.store(true, Ordering::Release);
        // A call inside NCCL returns soon in non-blocking mode. If one does not, NCCL allows an
        // abort beside it; that is what an abort is for.
        let begin = Instant::now();
        let one = loop {
            match self.calls.try_lock() {
                Ok(one) => break Some(one),
                Err(TryLockError::Poisoned(poisoned)) => break Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if begin.elapsed() >= ABORT_PATIENCE => break None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Pace::PEERS.longest_sleep),
            }
        };
        let handle = self.handle.swap(std::ptr::null_mut(), Ordering::AcqRel);
        drop(one);
        if handle.is_null() {
            return Ok(());
        }
        let _current = self.context.enter()?;
        // SAFETY: the handle was taken out, so nobody uses it after this.
        let answer = unsafe { (self.nccl.table.ncclCommAbort)(handle) };
        self.nccl.table.check("ncclCommAbort", std::ptr::null_mut(), answer)
    }

    /// Waits for what is enqueued on all ranks and frees the communicator; aborts it if that fails.
    fn leave(&self) -> PluginResult<()> {
        if self.handle.load(Ordering::Acquire).is_null() {
            return Ok(());
        }
        let table = &self.nccl.table;
        let finalized = self.with_handle(|handle| {
            // SAFETY: the communicator lives.
            let answer = unsafe { (table.ncclCommFinalize)(handle) };
            table.check("ncclCommFinalize", handle, answer)
        });
        let finalized =
            finalized.and_then(|()| self.settle("ncclCommFinalize", Some(LEAVE_TIMEOUT)));
        self.or_aborted(finalized)?;
        let handle = {
            let _one = self.locked();
            self.handle.swap(std::ptr::null_mut(), Ordering::AcqRel)
        };
        if handle.is_null() {
            return Ok(());
        }
        let _current = self.context.enter()?;
        // SAFETY: the handle was taken out, so nobody uses it after this.
        let answer = unsafe { (table.ncclCommDestroy)(handle) };
        table.check("ncclCommDestroy", std::ptr::null_mut(), answer)
    }
}

fn aborted() -> PluginError {
    PluginError::new(Status::Aborted, "the communicator was aborted")
}

impl NativeCommunicator for NcclCommunicator {
    unsafe fn call(&self, call: &NativeCall<'_>, stream: u64) -> PluginResult<()> {
        let joined = &self.joined;
        let plan = plan(&joined.nccl.repertoire, call, joined.ranks, joined.rank)?;
        {
            let _current = joined.context.enter()?;
            open_stream(&joined.context.cuda.runtime, stream)?;
        }
        let stream = std::ptr::with_exposed_provenance_mut(stream as usize);
        // SAFETY: the caller promises the buffers; the stream was looked at just now.
        unsafe { calls::issue(joined, &plan, stream) }
    }

    fn async_error(&self) -> PluginResult<Progress> {
        self.joined.state()
    }

    fn abort(&self) -> PluginResult<()> {
        self.joined.abort()
    }

    fn leave(self) -> PluginResult<()> {
        self.joined.leave()
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        if let Err(error) = self.joined.leave() {
            tracing::warn!(%error, "an NCCL communicator could not be left");
        }
    }
}
