//! A communicator of BKCL.
//!
//! Init blocks inside the library until all ranks have come, so it runs on a thread that can be given up.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{NativeCall, NativeCommunicator, PluginError, PluginResult, Progress};
use iccl_vendor_support::Pace;
use iccl_vendor_support::plan::plan;

use crate::bkcl::{Bkcl, rank_number};
use crate::device::Card;
use crate::face::{Chip, Handle};
use crate::scratch::Pool;
use crate::{calls, group, sys};

/// How long an abort waits for a call that is inside BKCL before it aborts beside it.
const ABORT_PATIENCE: Duration = Duration::from_secs(1);

/// A communicator. Dropping it leaves.
#[derive(Debug)]
pub struct BkclCommunicator {
    joined: Arc<Joined>,
}

/// What a communicator is, shared with the group that it is called in.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) bkcl: Arc<Bkcl>,
    pub(crate) chip: Chip,
    pub(crate) scratch: Pool,
    ranks: u32,
    rank: u32,
    /// Null once it is gone.
    context: AtomicPtr<c_void>,
    /// One call at a time is inside BKCL.
    calls: Mutex<()>,
    is_aborted: AtomicBool,
}

impl BkclCommunicator {
    /// Joins, and waits for all ranks, at most `timeout`.
    pub(crate) fn join(
        bkcl: &Arc<Bkcl>,
        card: &Card,
        unique_id: &[u8],
        (ranks, rank): (u32, u32),
        timeout: Duration,
    ) -> PluginResult<Self> {
        let expected = bkcl.constants.unique_id_bytes;
        if unique_id.len() != expected {
            let length = unique_id.len();
            let text = format!("BKCL's unique ids have {expected} bytes, not {length}");
            return Err(PluginError::invalid(text));
        }
        let scratch = {
            let _current = card.chip.enter()?;
            Pool::new(&card.chip)?
        };
        let handle = init(bkcl, &card.chip, unique_id, (ranks, rank), timeout);
        let handle = handle.inspect_err(|_| scratch.free_or_say(&card.chip))?;
        let joined = Joined {
            bkcl: Arc::clone(bkcl),
            chip: card.chip.clone(),
            scratch,
            ranks,
            rank,
            context: AtomicPtr::new(handle.0),
            calls: Mutex::default(),
            is_aborted: AtomicBool::new(false),
        };
        Ok(Self { joined: Arc::new(joined) })
    }
}

/// `bkcl_init_rank` on a thread of its own, at most for a time. A context that comes too late is destroyed.
fn init(
    bkcl: &Arc<Bkcl>,
    chip: &Chip,
    unique_id: &[u8],
    (ranks, rank): (u32, u32),
    timeout: Duration,
) -> PluginResult<Handle> {
    let (number_of_ranks, own_rank) = (rank_number(ranks)?, rank_number(rank)?);
    let (sender, receiver) = channel();
    let (own, own_chip) = (Arc::clone(bkcl), chip.clone());
    // The library may have more room in it than the id needs, and gets at least as much.
    let mut id = vec![0_u8; sys::MOST_UNIQUE_ID_BYTES];
    id[..unique_id.len()].copy_from_slice(unique_id);
    let run = move || {
        let mut init = || {
            let mut context = std::ptr::null_mut();
            // SAFETY: there is room for the context, and the id has its length.
            let answer = unsafe {
                let id = id.as_mut_ptr().cast();
                (own.table.bkcl_init_rank)(&raw mut context, own_rank, number_of_ranks, id)
            };
            own.check("bkcl_init_rank", answer, || own_chip.face.last_words())?;
            Ok(Handle(context))
        };
        // Also for the end of a context that comes too late.
        let current = own_chip.enter();
        let outcome = current.as_ref().map_err(Clone::clone).and_then(|_| init());
        if let Err(unheard) = sender.send(outcome)
            && let Ok(context) = unheard.0
        {
            // SAFETY: nobody else has the context.
            let answer = unsafe { (own.table.bkcl_destroy_context)(context.0) };
            tracing::warn!(answer, "a BKCL communicator came after its time was over");
        }
    };
    let thread = std::thread::Builder::new().name(format!("iccl-bkcl-init-{rank}"));
    let no_thread =
        |error: std::io::Error| PluginError::new(Status::OutOfResources, error.to_string());
    thread.spawn(run).map_err(no_thread)?;
    match receiver.recv_timeout(timeout) {
        Ok(outcome) => outcome.map_err(with_hint),
        Err(RecvTimeoutError::Timeout) => {
            let text =
                format!("bkcl_init_rank: not done after {timeout:?} on rank {rank} of {ranks}");
            Err(PluginError::new(Status::Timeout, text))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(PluginError::new(Status::Internal, "bkcl_init_rank: its thread ended"))
        }
    }
}

/// What is known to help where init fails.
fn with_hint(error: PluginError) -> PluginError {
    let hint = match error.status {
        Status::InvalidArgument => {
            "some P800 hosts fail its check of address windows, which BKCL_CHECK_AW=0 skips"
        }
        Status::TransportError => "it needs a network interface besides lo; see BKCL_SOCKET_IFNAME",
        _ => return error,
    };
    PluginError { message: format!("{}; {hint}", error.message), ..error }
}

impl Joined {
    /// Calls into BKCL with the context, unless the communicator is gone. The card is chosen.
    pub(crate) fn with_context<T>(
        &self,
        call: impl FnOnce(sys::Context) -> PluginResult<T>,
    ) -> PluginResult<T> {
        let _turn = group::enter(|| self.is_aborted())?;
        let _one = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let context = self.context.load(Ordering::Acquire);
        if context.is_null() || self.is_aborted() {
            return Err(aborted());
        }
        call(context)
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Acquire)
    }

    /// Ends everything that is pending, once.
    fn abort(&self) -> PluginResult<()> {
        let Some(abort) = self.bkcl.table.bkcl_comm_abort else {
            return Err(PluginError::not_supported("this BKCL has no bkcl_comm_abort"));
        };
        self.is_aborted.store(true, Ordering::Release);
        let begin = Instant::now();
        let one = loop {
            match self.calls.try_lock() {
                Ok(one) => break Some(one),
                Err(TryLockError::Poisoned(poisoned)) => break Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if begin.elapsed() >= ABORT_PATIENCE => break None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Pace::PEERS.longest_sleep),
            }
        };
        let context = self.context.swap(std::ptr::null_mut(), Ordering::AcqRel);
        drop(one);
        if context.is_null() {
            return Ok(());
        }
        let _current = self.chip.enter()?;
        // SAFETY: the context was taken out, so nobody uses it after this.
        let answer = unsafe { abort(context) };
        self.bkcl.check("bkcl_comm_abort", answer, || self.chip.face.last_words())
    }

    /// Frees the communicator.
    fn leave(&self) -> PluginResult<()> {
        let context = {
            let _one = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            self.context.swap(std::ptr::null_mut(), Ordering::AcqRel)
        };
        if context.is_null() {
            return Ok(());
        }
        let _current = self.chip.enter()?;
        // SAFETY: the context was taken out, so nobody uses it after this.
        let answer = unsafe { (self.bkcl.table.bkcl_destroy_context)(context) };
        self.bkcl.check("bkcl_destroy_context", answer, || self.chip.face.last_words())
    }
}

fn aborted() -> PluginError {
    PluginError::new(Status::Aborted, "the communicator was aborted")
}

impl NativeCommunicator for BkclCommunicator {
    unsafe fn call(&self, call: &NativeCall<'_>, stream: u64) -> PluginResult<()> {
        let joined = &self.joined;
        let plan = plan(&joined.bkcl.repertoire, call, joined.ranks, joined.rank)?;
        let stream = Handle::of(stream)?;
        let _current = joined.chip.enter()?;
        // SAFETY: the caller promises the buffers and the stream.
        unsafe { calls::issue(joined, &plan, stream) }
    }

    fn async_error(&self) -> PluginResult<Progress> {
        // BKCL has no answer to this: what is known is whether it was aborted.
        if self.joined.is_aborted() {
            return Err(aborted());
        }
        Ok(Progress::Done)
    }

    fn abort(&self) -> PluginResult<()> {
        self.joined.abort()
    }

    fn leave(self) -> PluginResult<()> {
        self.joined.leave()
    }
}

impl Drop for BkclCommunicator {
    fn drop(&mut self) {
        if let Err(error) = self.joined.leave() {
            tracing::warn!(%error, "a BKCL communicator could not be left");
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.scratch.free_or_say(&self.chip);
    }
}
