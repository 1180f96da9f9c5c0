//! A communicator of HCCL.
//!
//! HCCL cannot abort. So an event is recorded behind the last call on each stream: it tells, for an abort,
//! which streams are to be torn down, and, for leaving, when nothing is under way any more.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{NativeCall, NativeCommunicator, PluginError, PluginResult, Progress};
use iccl_vendor_support::plan::plan;
use iccl_vendor_support::{Pace, handle, wait_until_done};

use crate::context::CardContext;
use crate::device::{Card, create_event, query_event};
use crate::hccl::Hccl;
use crate::scratch::Scratch;
use crate::{calls, sys};

/// How long an abort waits for a call that is inside HCCL before it destroys the communicator beside it.
const ABORT_PATIENCE: Duration = Duration::from_secs(1);

/// How long the end of a communicator may take after an abort.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long leaving may take before the communicator is aborted instead.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(60);

/// As many streams are remembered before those whose calls are over are forgotten.
const MARKS: usize = 8;

/// A communicator. Dropping it leaves.
#[derive(Debug)]
pub struct HcclCommunicator {
    joined: Arc<Joined>,
}

/// What a communicator is, shared with the groups that it is called in.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) hccl: Arc<Hccl>,
    pub(crate) context: Arc<CardContext>,
    pub(crate) ranks: u32,
    pub(crate) rank: u32,
    /// Null once it is gone.
    handle: AtomicPtr<c_void>,
    /// One call at a time is inside HCCL.
    calls: Mutex<()>,
    is_aborted: AtomicBool,
    marks: Mutex<Vec<Mark>>,
    scratch: Scratch,
}

/// An event behind the last call on a stream.
#[derive(Clone, Copy, Debug)]
struct Mark {
    stream: sys::Stream,
    event: sys::Event,
}

// SAFETY: Ascend's handles may be used by any thread that has their context.
unsafe impl Send for Mark {}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HcclCommunicator {
    /// Joins, and waits for all ranks, as long as HCCL does (`HCCL_CONNECT_TIMEOUT`).
    pub(crate) fn join(
        hccl: &Arc<Hccl>,
        card: &Card,
        unique_id: &[u8],
        (ranks, rank): (u32, u32),
    ) -> PluginResult<Self> {
        let internal = unique_id.try_into().map_err(|_| {
            let (expected, length) = (sys::ROOT_INFO_BYTES, unique_id.len());
            PluginError::invalid(format!("HCCL's root infos have {expected} bytes, not {length}"))
        })?;
        if rank >= ranks {
            return Err(PluginError::invalid(format!("rank {rank} of {ranks}")));
        }
        let root = sys::RootInfo { internal };
        let context = Arc::clone(&card.context);
        let mut handle = std::ptr::null_mut();
        {
            // A card takes part in one of these at a time.
            let _one = locked(&context.joining);
            let _current = context.enter()?;
            // SAFETY: there is room for the handle, and the structure lives until this returns.
            let answer = unsafe {
                (hccl.table.HcclCommInitRootInfo)(ranks, &raw const root, rank, &raw mut handle)
            };
            let call = format_args!("HcclCommInitRootInfo on rank {rank} of {ranks}");
            hccl.table.check(call, answer)?;
        }
        let joined = Joined {
            hccl: Arc::clone(hccl),
            context,
            ranks,
            rank,
            handle: AtomicPtr::new(handle),
            calls: Mutex::default(),
            is_aborted: AtomicBool::new(false),
            marks: Mutex::default(),
            scratch: Scratch::default(),
        };
        Ok(Self { joined: Arc::new(joined) })
    }
}

impl Joined {
    /// Calls into HCCL with the handle, unless the communicator is gone.
    pub(crate) fn with_handle<T>(
        &self,
        call: impl FnOnce(sys::Communicator) -> PluginResult<T>,
    ) -> PluginResult<T> {
        let _one = locked(&self.calls);
        let handle = self.handle.load(Ordering::Acquire);
        if handle.is_null() || self.is_aborted.load(Ordering::Acquire) {
            return Err(aborted());
        }
        let _current = self.context.enter()?;
        call(handle)
    }

    /// Memory that only calls on this stream use. The card's context is current.
    pub(crate) fn scratch(&self, bytes: usize, stream: sys::Stream) -> PluginResult<*mut c_void> {
        self.scratch.room(&self.context.acl.table, stream, bytes)
    }

    /// Where a result goes: scratch, if it is not wanted.
    pub(crate) fn or_scratch(
        &self,
        receive: *mut c_void,
        bytes: usize,
        stream: sys::Stream,
    ) -> PluginResult<*mut c_void> {
        if receive.is_null() { self.scratch(bytes, stream) } else { Ok(receive) }
    }

    /// Enqueues a copy within the card. Its context is current.
    ///
    /// # Safety
    /// Both are the card's, this long, do not overlap, and stay until the stream is past the copy.
    pub(crate) unsafe fn copy(
        &self,
        from: *const c_void,
        to: *mut c_void,
        bytes: usize,
        stream: sys::Stream,
    ) -> PluginResult<()> {
        let (table, kind) = (&self.context.acl.table, sys::MEMCPY_DEVICE_TO_DEVICE);
        // SAFETY: the caller promises both sides.
        let answer = unsafe { (table.aclrtMemcpyAsync)(to, bytes, from, bytes, kind, stream) };
        table.check(format_args!("aclrtMemcpyAsync({bytes} bytes on the card)"), answer)
    }

    /// Marks the end of what was called on a stream. The card's context is current.
    pub(crate) fn record(&self, stream: sys::Stream) -> PluginResult<()> {
        let table = &self.context.acl.table;
        let mut marks = locked(&self.marks);
        let known = marks.iter().find(|mark| mark.stream == stream).map(|mark| mark.event);
        let event = if let Some(event) = known {
            event
        } else {
            if marks.len() >= MARKS {
                forget_what_is_over(table, &mut marks)?;
            }
            let event = create_event(table)?;
            marks.push(Mark { stream, event });
            event
        };
        // SAFETY: the event is this communicator's, and the caller promises the stream.
        table.check("aclrtRecordEvent", unsafe { (table.aclrtRecordEvent)(event, stream) })
    }

    /// Whether all that was called is over. The card's context is current.
    fn progress(&self) -> PluginResult<Progress> {
        let table = &self.context.acl.table;
        for mark in locked(&self.marks).iter() {
            if query_event(table, mark.event)? == Progress::Pending {
                return Ok(Progress::Pending);
            }
        }
        Ok(Progress::Done)
    }

    /// What HCCL says that the communicator met, which is no more than that a peer is gone.
    fn state(&self) -> PluginResult<Progress> {
        self.with_handle(|handle| {
            let table = &self.hccl.table;
            let mut result = sys::HCCL_SUCCESS;
            // SAFETY: the communicator lives; there is room for the number.
            let answer = unsafe { (table.HcclGetCommAsyncError)(handle, &raw mut result) };
            table.check("HcclGetCommAsyncError", answer)?;
            table.check("communicator", result)?;
            Ok(Progress::Done)
        })
    }

    /// Tears down the streams on which something of this communicator is under way, and destroys it,
    /// once.
    fn abort(&self) -> PluginResult<()> {
        self.is_aborted.store(true, Ordering::Release);
        let _current = self.context.enter()?;
        let table = &self.context.acl.table;
        let mut outcome = Ok(());
        for mark in locked(&self.marks).iter() {
            // A stream whose work is over may be gone already; one that is at it is not.
            if query_event(table, mark.event) == Ok(Progress::Pending) {
                // SAFETY: as just said.
                let answer = unsafe { (table.aclrtStreamAbort)(mark.stream) };
                outcome = outcome.and(table.check("aclrtStreamAbort", answer));
            }
        }
        // A call that makes connections may be stuck inside HCCL; the end of the communicator lets it go.
        let begin = Instant::now();
        let one = loop {
            match self.calls.try_lock() {
                Ok(one) => break Some(one),
                Err(TryLockError::Poisoned(poisoned)) => break Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if begin.elapsed() >= ABORT_PATIENCE => break None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Pace::PEERS.longest_sleep),
            }
        };
        let destroyed = self.destroy(ABORT_TIMEOUT);
        drop(one);
        outcome.and(destroyed)
    }

    /// Destroys the communicator, if it is still there. The card's context is current.
    fn destroy(&self, timeout: Duration) -> PluginResult<()> {
        let handle = self.handle.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if handle.is_null() {
            return Ok(());
        }
        let table = &self.hccl.table;
        let mut answer = sys::HCCL_SUCCESS;
        let is_over = wait_until_done(Pace::PEERS, Some(timeout), || {
            // SAFETY: the handle was taken out, so nobody uses it after this.
            answer = unsafe { (table.HcclCommDestroy)(handle) };
            // Something is still under way.
            let is_busy = answer == sys::HCCL_E_AGAIN;
            Ok(if is_busy { Progress::Pending } else { Progress::Done })
        })?;
        if !is_over {
            let text = format!("HcclCommDestroy: still busy after {timeout:?}");
            return Err(PluginError::new(Status::Timeout, text));
        }
        table.check("HcclCommDestroy", answer)
    }

    /// Waits for what is under way on this rank, and frees the communicator; aborts it if that fails.
    fn leave(&self) -> PluginResult<()> {
        let _current = self.context.enter()?;
        if self.handle.load(Ordering::Acquire).is_null() {
            return self.tidy_up();
        }
        if !wait_until_done(Pace::PEERS, Some(LEAVE_TIMEOUT), || self.progress())? {
            self.abort()?;
            let text = format!("a call was not over after {LEAVE_TIMEOUT:?}");
            return Err(PluginError::new(Status::Timeout, text));
        }
        {
            let _one = locked(&self.calls);
            self.destroy(LEAVE_TIMEOUT)?;
        }
        self.tidy_up()
    }

    /// Gives back what nothing is on its way to any more; after an abort that may be never.
    fn tidy_up(&self) -> PluginResult<()> {
        if self.progress() != Ok(Progress::Done) {
            tracing::debug!("a stream that was torn down keeps what it was on its way to");
            return Ok(());
        }
        forget_what_is_over(&self.context.acl.table, &mut locked(&self.marks))?;
        self.scratch.free(&self.context.acl.table)
    }
}

/// Destroys the events that were passed. If something fails, the others stay known.
fn forget_what_is_over(table: &sys::Acl, marks: &mut Vec<Mark>) -> PluginResult<()> {
    let mut index = 0;
    while let Some(&Mark { event, .. }) = marks.get(index) {
        if query_event(table, event)? == Progress::Pending {
            index += 1;
            continue;
        }
        marks.swap_remove(index);
        // SAFETY: the event is the communicator's and in no stream any more.
        table.check("aclrtDestroyEvent", unsafe { (table.aclrtDestroyEvent)(event) })?;
    }
    Ok(())
}

fn aborted() -> PluginError {
    PluginError::new(Status::Aborted, "the communicator was aborted")
}

impl NativeCommunicator for HcclCommunicator {
    unsafe fn call(&self, call: &NativeCall<'_>, stream: u64) -> PluginResult<()> {
        let joined = &self.joined;
        let plan = plan(&joined.hccl.repertoire, call, joined.ranks, joined.rank)?;
        let stream = handle(stream)?;
        if joined.is_aborted.load(Ordering::Acquire) {
            return Err(aborted());
        }
        let _current = joined.context.enter()?;
        // SAFETY: the caller promises buffers and stream.
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

impl Drop for HcclCommunicator {
    fn drop(&mut self) {
        if let Err(error) = self.joined.leave() {
            tracing::warn!(%error, "a communicator of HCCL could not be left");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVER: usize = 1;
    const UNDER_WAY: usize = 2;
    const BROKEN: usize = 3;

    unsafe extern "C" fn query(event: sys::Event, status: *mut i32) -> sys::AclError {
        // SAFETY: the caller has room for the number.
        unsafe { status.write(i32::from(event.addr() == OVER)) };
        if event.addr() == BROKEN { sys::ACL_ERROR_RT_INVALID_HANDLE } else { sys::ACL_SUCCESS }
    }

    unsafe extern "C" fn destroy(event: sys::Event) -> sys::AclError {
        assert_eq!(event.addr(), OVER);
        sys::ACL_SUCCESS
    }

    unsafe extern "C" fn no_words() -> *const std::ffi::c_char {
        std::ptr::null()
    }

    #[test]
    fn what_is_under_way_stays_known_also_if_something_fails() {
        let find = |name: &str| {
            Some(match name {
                "aclrtQueryEventStatus" => query as *const c_void,
                "aclrtDestroyEvent" => destroy as *const c_void,
                _ => no_words as *const c_void,
            })
        };
        // SAFETY: only these are called.
        let table = unsafe { sys::Acl::resolve_by(find) }.unwrap();
        let marks = |events: &[usize]| -> Vec<Mark> {
            let handle = std::ptr::without_provenance_mut;
            events.iter().map(|event| Mark { stream: handle(8), event: handle(*event) }).collect()
        };
        let known = |marks: &[Mark]| marks.iter().map(|mark| mark.event.addr()).collect::<Vec<_>>();
        let mut all = marks(&[UNDER_WAY, OVER, UNDER_WAY]);
        forget_what_is_over(&table, &mut all).unwrap();
        assert_eq!(known(&all), [UNDER_WAY; 2]);
        let mut all = marks(&[UNDER_WAY, OVER, BROKEN, UNDER_WAY]);
        forget_what_is_over(&table, &mut all).unwrap_err();
        let mut left = known(&all);
        left.sort_unstable();
        assert_eq!(left, [UNDER_WAY, UNDER_WAY, BROKEN]);
    }
}
