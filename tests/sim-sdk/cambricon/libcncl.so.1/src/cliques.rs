//! Cliques: init, end, state. A process has some of the communicators of a clique, made by one call.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use iccl_sim_core::Machine;
use iccl_sim_core::group::{Communicator, Health, InitError, Invitation};

use crate::{
    ARGUMENTS, ASYNC_ERROR, BUILD_RING, CNRT_DEVICE, CliqueId, INTERNAL, NULL_POINTER, Outcome,
    REINIT, SYS_SOCKET, Status, call, put,
};

/// What C's `cnclComm_t` points to, so to speak.
pub(crate) struct Comm {
    pub(crate) handle: u64,
    pub(crate) ranks: u32,
    pub(crate) rank: u32,
    pub(crate) device: u32,
    pub(crate) inner: Arc<Communicator>,
    place: usize,
    local: Arc<LocalClique>,
}

/// The communicators that one call made.
struct LocalClique {
    /// How many collectives each has been given.
    given: Mutex<Vec<u64>>,
    changed: Condvar,
    is_ended: AtomicBool,
}

static COMMS: Mutex<BTreeMap<u64, Arc<Comm>>> = Mutex::new(BTreeMap::new());
static USED: Mutex<BTreeSet<[u8; 128]>> = Mutex::new(BTreeSet::new());
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(0x0cc2_0000_0000_0000);
const HANDLE_STEP: u64 = 0x1000;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The communicator behind a handle.
pub(crate) fn find(handle: *mut c_void) -> Result<Arc<Comm>, Status> {
    if handle.is_null() {
        return Err(NULL_POINTER);
    }
    lock(&COMMS).get(&(handle as u64)).cloned().ok_or(ARGUMENTS)
}

impl Comm {
    /// Counts a collective, and gives its number.
    pub(crate) fn count_collective(&self) -> u64 {
        let mut given = lock(&self.local.given);
        given[self.place] += 1;
        self.local.changed.notify_all();
        given[self.place]
    }

    /// Waits until all communicators of the clique in this process have that collective.
    pub(crate) fn wait_for_local_ranks(&self, number: u64) -> Outcome {
        let mut given = lock(&self.local.given);
        while given.iter().any(|count| *count < number) {
            if self.local.is_ended.load(Ordering::Acquire) {
                return Err(ASYNC_ERROR);
            }
            given = self.local.changed.wait(given).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }
}

fn init_status(error: InitError) -> Status {
    match error {
        InitError::NoFile => SYS_SOCKET,
        InitError::Disagreement => BUILD_RING,
        InitError::SameCard => CNRT_DEVICE,
        InitError::Stopped => INTERNAL,
    }
}

/// Numbers of the caller's.
fn numbers(pointer: *const i32, count: usize) -> Result<Vec<i32>, Status> {
    if pointer.is_null() {
        return Err(NULL_POINTER);
    }
    // SAFETY: C passes as many numbers as communicators.
    let read = |index| unsafe { pointer.add(index).read_unaligned() };
    Ok((0..count).map(read).collect())
}

/// Joins as all ranks of this process, beside each other.
fn join(
    machine: &'static Machine,
    invitation: Invitation,
    ranks: u32,
    local: &[(u32, u32)],
) -> Result<Vec<Arc<Communicator>>, Status> {
    let has_failed = AtomicBool::new(false);
    let joined: Vec<Result<Arc<Communicator>, InitError>> = std::thread::scope(|scope| {
        let has_failed = &has_failed;
        let threads: Vec<_> = local
            .iter()
            .map(|&(rank, device)| {
                scope.spawn(move || {
                    let stop = || has_failed.load(Ordering::Acquire);
                    let joined =
                        Communicator::join(machine, invitation, ranks, rank, device, &stop);
                    has_failed.fetch_or(joined.is_err(), Ordering::AcqRel);
                    joined
                })
            })
            .collect();
        threads.into_iter().map(|one| one.join().unwrap_or(Err(InitError::Stopped))).collect()
    });
    let cause = joined.iter().filter_map(|one| one.as_ref().err());
    let cause = cause.copied().max_by_key(|error| *error != InitError::Stopped);
    match cause {
        Some(error) => Err(init_status(error)),
        None => Ok(joined.into_iter().flatten().collect()),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cnclInitComms(
    out: *mut *mut c_void,
    number: i32,
    devices: *const i32,
    ranks: *const i32,
    all_ranks: i32,
    id: *const CliqueId,
) -> Status {
    call("cnclInitComms", |machine, _| {
        if out.is_null() {
            return Err(NULL_POINTER);
        }
        if number < 1 || all_ranks < number {
            return Err(ARGUMENTS);
        }
        let (devices, ranks) =
            (numbers(devices, number as usize)?, numbers(ranks, number as usize)?);
        let mut seen = BTreeSet::new();
        let is_rank = |rank: &i32| (0..all_ranks).contains(rank) && seen.insert(*rank);
        if !ranks.iter().all(is_rank) {
            return Err(ARGUMENTS);
        }
        let is_card = |index: &i32| *index >= 0 && machine.device(*index as u32).is_ok();
        if !devices.iter().all(is_card) {
            return Err(CNRT_DEVICE);
        }
        let id = if id.is_null() {
            if number != all_ranks {
                return Err(NULL_POINTER);
            }
            CliqueId::new()?
        } else {
            // SAFETY: C passes an id.
            unsafe { id.read_unaligned() }
        };
        if !id.is_whole() {
            return Err(ARGUMENTS);
        }
        if !lock(&USED).insert(id.data) {
            return Err(REINIT);
        }
        let members: Vec<(u32, u32)> = ranks
            .iter()
            .zip(&devices)
            .map(|(rank, device)| (*rank as u32, *device as u32))
            .collect();
        let joined = join(machine, id.invitation(), all_ranks as u32, &members)?;
        let local = Arc::new(LocalClique {
            given: Mutex::new(vec![0; members.len()]),
            changed: Condvar::new(),
            is_ended: AtomicBool::new(false),
        });
        for (place, (inner, (rank, device))) in joined.into_iter().zip(members).enumerate() {
            let handle = NEXT_HANDLE.fetch_add(HANDLE_STEP, Ordering::Relaxed);
            let ranks = all_ranks as u32;
            let local = Arc::clone(&local);
            let comm = Comm { handle, ranks, rank, device, inner, place, local };
            lock(&COMMS).insert(handle, Arc::new(comm));
            // SAFETY: C passes room for as many communicators as it asks for.
            put(unsafe { out.add(place) }, handle as *mut c_void)?;
        }
        Ok(())
    })
}

// End: whoever frees, destroys or aborts waits until all of the clique have done so.

fn take(handle: *mut c_void) -> Result<Arc<Comm>, Status> {
    let comm = find(handle)?;
    lock(&COMMS).remove(&comm.handle);
    Ok(comm)
}

#[unsafe(no_mangle)]
extern "C" fn cnclFreeComm(handle: *mut c_void) -> Status {
    call("cnclFreeComm", |_, _| {
        let comm = take(handle)?;
        comm.inner.leave();
        comm.inner.wait_until_all_left();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnclDestroyComms(handles: *mut *mut c_void, number: i32) -> Status {
    call("cnclDestroyComms", |_, _| {
        if handles.is_null() {
            return Err(NULL_POINTER);
        }
        // SAFETY: C passes so many communicators.
        let read = |index| unsafe { handles.add(index).read_unaligned() };
        let handles: Vec<_> =
            (0..usize::try_from(number).map_err(|_| ARGUMENTS)?).map(read).collect();
        let comms = handles.into_iter().map(take).collect::<Result<Vec<_>, _>>()?;
        comms.iter().for_each(|comm| comm.inner.leave());
        comms.iter().for_each(|comm| comm.inner.wait_until_all_left());
        Ok(())
    })
}

/// What is under way ends at once.
#[unsafe(no_mangle)]
extern "C" fn cnclAbortComm(handle: *mut c_void) -> Status {
    call("cnclAbortComm", |_, _| {
        let comm = take(handle)?;
        comm.inner.abort();
        comm.local.is_ended.store(true, Ordering::Release);
        // Whoever waits has looked under this lock, or looks after it.
        drop(lock(&comm.local.given));
        comm.local.changed.notify_all();
        comm.inner.leave();
        comm.inner.wait_until_all_left();
        Ok(())
    })
}

// State.

/// The status is what it returns.
#[unsafe(no_mangle)]
extern "C" fn cnclGetCommAsyncError(handle: *mut c_void) -> Status {
    call("cnclGetCommAsyncError", |machine, _| {
        let comm = find(handle)?;
        let is_well = comm.inner.health() == Health::Good && machine.health(comm.device).is_ok();
        if is_well { Ok(()) } else { Err(ASYNC_ERROR) }
    })
}

/// `cnclCommConfig`.
#[repr(C)]
struct Config {
    priority: i32,
}

#[unsafe(no_mangle)]
extern "C" fn cnclSetCommConfig(handle: *mut c_void, config: *const Config) -> Status {
    call("cnclSetCommConfig", |_, _| {
        find(handle)?;
        // SAFETY: C passes null or a configuration.
        let config = unsafe { config.as_ref() }.ok_or(NULL_POINTER)?;
        if matches!(config.priority, 0 | 0x10 | 0x11) { Ok(()) } else { Err(ARGUMENTS) }
    })
}

/// The number comes before the communicator.
#[unsafe(no_mangle)]
extern "C" fn cnclGetCommCount(out: *mut i32, handle: *mut c_void) -> Status {
    call("cnclGetCommCount", |_, _| put(out, find(handle)?.ranks as i32))
}

#[unsafe(no_mangle)]
extern "C" fn cnclGetCommRank(out: *mut i32, handle: *mut c_void) -> Status {
    call("cnclGetCommRank", |_, _| put(out, find(handle)?.rank as i32))
}

#[unsafe(no_mangle)]
extern "C" fn cnclGetCommDevice(out: *mut i32, handle: *mut c_void) -> Status {
    call("cnclGetCommDevice", |_, _| put(out, find(handle)?.device as i32))
}
