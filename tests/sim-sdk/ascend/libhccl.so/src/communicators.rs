//! Communicators: init and end.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use iccl_sim_core::Machine;
use iccl_sim_core::group::{Communicator, Health, InitError, Invitation};

use crate::{
    AGAIN, INTERNAL, Outcome, PARA, PTR, REMOTE, RUNTIME_ERROR, RootInfo, Status, TCP_CONNECT,
    TIMEOUT, call, put,
};

/// What C's `HcclComm` points to.
pub(crate) struct Comm {
    magic: u64,
    pub(crate) inner: Arc<Communicator>,
    pub(crate) device: u32,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// How many of its calls are in streams.
    pub(crate) busy: Arc<AtomicU32>,
}

const MAGIC: u64 = 0x4843_434c_c0de_0001;

/// How long `HcclCommInitRootInfo` waits for the others, if nothing is set.
const CONNECT_SECONDS: u64 = 120;

/// The communicator behind a handle, called on its card.
pub(crate) fn find<'a>(machine: &Machine, handle: *mut c_void) -> Result<&'a Comm, Status> {
    if handle.is_null() {
        return Err(PTR);
    }
    // SAFETY: C passes what an init gave, and has not destroyed it yet.
    let comm = unsafe { &*handle.cast::<Comm>() };
    if comm.magic != MAGIC {
        return Err(PARA);
    }
    if machine.chosen_device() == Some(comm.device) { Ok(comm) } else { Err(RUNTIME_ERROR) }
}

fn connect_timeout() -> Duration {
    let set = std::env::var("HCCL_CONNECT_TIMEOUT").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(set.unwrap_or(CONNECT_SECONDS))
}

/// The cards on which an init is under way. Both copies of this library (see `lib.rs`) have a set of their
/// own, of which only the one with communicators is used.
static JOINING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Joins the others; takes as long as they take.
fn join(
    machine: &'static Machine,
    invitation: Invitation,
    (ranks, rank): (u32, u32),
) -> Result<*mut c_void, Status> {
    let device = machine.chosen_device().ok_or(RUNTIME_ERROR)?;
    if rank >= ranks {
        return Err(PARA);
    }
    // One card cannot take part in two inits at once.
    if !JOINING.lock().unwrap_or_else(PoisonError::into_inner).insert(device) {
        return Err(INTERNAL);
    }
    let (begin, timeout) = (Instant::now(), connect_timeout());
    let is_late = || begin.elapsed() >= timeout;
    let joined = Communicator::join(machine, invitation, ranks, rank, device, &is_late);
    JOINING.lock().unwrap_or_else(PoisonError::into_inner).remove(&device);
    let inner = joined.map_err(|error| match error {
        InitError::NoFile => TCP_CONNECT,
        InitError::Disagreement | InitError::SameCard => PARA,
        InitError::Stopped => TIMEOUT,
    })?;
    let comm = Comm { magic: MAGIC, inner, device, rank, ranks, busy: Arc::default() };
    Ok(Box::into_raw(Box::new(comm)).cast())
}

#[unsafe(no_mangle)]
extern "C" fn HcclCommInitRootInfo(
    ranks: u32,
    root: *const RootInfo,
    rank: u32,
    out: *mut *mut c_void,
) -> Status {
    call("HcclCommInitRootInfo", |machine, _| {
        if out.is_null() {
            return Err(PTR);
        }
        put(out, join(machine, RootInfo::invitation(root)?, (ranks, rank))?)
    })
}

/// All ranks in one process, of which each card is there once.
#[unsafe(no_mangle)]
extern "C" fn HcclCommInitAll(count: u32, devices: *const i32, out: *mut *mut c_void) -> Status {
    call("HcclCommInitAll", |machine, _| {
        if devices.is_null() || out.is_null() {
            return Err(PTR);
        }
        // SAFETY: C passes as many numbers.
        let devices = unsafe { std::slice::from_raw_parts(devices, count as usize) };
        let distinct: BTreeSet<i32> = devices.iter().copied().collect();
        if distinct.len() != devices.len() || devices.is_empty() {
            return Err(PARA);
        }
        let invitation = Invitation::new().map_err(|_| INTERNAL)?;
        let handles = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count)
                .zip(devices)
                .map(|(rank, device)| {
                    scope.spawn(move || {
                        let index = u32::try_from(*device).map_err(|_| PARA)?;
                        machine.set_current_device(index).map_err(|_| PARA)?;
                        join(machine, invitation, (count, rank)).map(|handle| handle as usize)
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or(Err(INTERNAL)))
                .collect::<Result<Vec<_>, _>>()
        })?;
        for (at, handle) in handles.into_iter().enumerate() {
            put(out.wrapping_add(at), handle as *mut c_void)?;
        }
        Ok(())
    })
}

/// Not while calls of it are in streams.
#[unsafe(no_mangle)]
extern "C" fn HcclCommDestroy(handle: *mut c_void) -> Status {
    call("HcclCommDestroy", |machine, _| {
        let comm = find(machine, handle)?;
        if comm.busy.load(Ordering::Acquire) > 0 {
            return Err(AGAIN);
        }
        comm.inner.leave();
        // SAFETY: made by an init; the caller uses it no more.
        let mut owned = unsafe { Box::from_raw(handle.cast::<Comm>()) };
        owned.magic = 0;
        Ok(())
    })
}

fn answer<T>(
    symbol: &'static str,
    handle: *mut c_void,
    out: *mut T,
    what: impl FnOnce(&Comm) -> T,
) -> Status {
    call(symbol, |machine, _| put(out, what(find(machine, handle)?)))
}

#[unsafe(no_mangle)]
extern "C" fn HcclGetRankSize(handle: *mut c_void, out: *mut u32) -> Status {
    answer("HcclGetRankSize", handle, out, |comm| comm.ranks)
}

#[unsafe(no_mangle)]
extern "C" fn HcclGetRankId(handle: *mut c_void, out: *mut u32) -> Status {
    answer("HcclGetRankId", handle, out, |comm| comm.rank)
}

#[unsafe(no_mangle)]
extern "C" fn HcclGetCommName(handle: *mut c_void, out: *mut c_char) -> Status {
    call("HcclGetCommName", |machine, _| -> Outcome {
        let comm = find(machine, handle)?;
        let name = format!("sim-{}-of-{}", comm.rank, comm.ranks);
        iccl_sim_core::entry::put_text(out.cast(), 128, &name).map_err(|_| PTR)
    })
}

/// Of errors on the way it only hears that a peer is gone.
#[unsafe(no_mangle)]
extern "C" fn HcclGetCommAsyncError(handle: *mut c_void, out: *mut Status) -> Status {
    answer("HcclGetCommAsyncError", handle, out, |comm| match comm.inner.health() {
        Health::Good => 0,
        Health::RemoteError => REMOTE,
    })
}

/// Up to the buffer's name: what CANN 9 knows.
#[unsafe(no_mangle)]
extern "C" fn HcclGetCommConfigCapability() -> u32 {
    12
}
