//! Communicators: init and end.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iccl_sim_core::Machine;
use iccl_sim_core::entry::put_bytes;
use iccl_sim_core::group::{Communicator, InitError, Invitation};

use super::{
    INTERNAL_ERROR, INVALID_ARGUMENT, Outcome, RUNTIME_ERROR, SYSTEM_ERROR, Status, call, fail, put,
};
use crate::numbers::UNIQUE_ID_BYTES;

/// What C's `BKCLContext_t` points to, so to speak.
pub(crate) struct Comm {
    pub(crate) handle: u64,
    pub(crate) inner: Arc<Communicator>,
}

static COMMS: Mutex<BTreeMap<u64, Arc<Comm>>> = Mutex::new(BTreeMap::new());
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(0x0bcc_0000_0000_0000);
const HANDLE_STEP: u64 = 0x1000;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The communicator behind a handle.
pub(crate) fn find(handle: *mut c_void) -> Result<Arc<Comm>, Status> {
    let found = lock(&COMMS).get(&(handle as u64)).cloned();
    found.ok_or_else(|| fail(INVALID_ARGUMENT, "[INVALID PARAMETER] no such context"))
}

/// Where in the id, behind what the real one has of addresses, the invitation lies.
const INVITATION_AT: usize = 40;

/// Fills the whole id, and no more than it.
pub(crate) fn get_unique_id(out: *mut c_void) -> Status {
    call("bkcl_get_unique_id", |_, _| {
        let invitation = Invitation::new().map_err(|_| SYSTEM_ERROR)?.to_bytes();
        let mut id = [0x5b; UNIQUE_ID_BYTES];
        id[INVITATION_AT..INVITATION_AT + Invitation::BYTES].copy_from_slice(&invitation);
        put_bytes(out, &id).map_err(|_| INVALID_ARGUMENT)
    })
}

/// The real library reads this variable as a number, and throws if it is none.
fn read_debug_level() {
    let Ok(level) = std::env::var("BKCL_DEBUG") else { return };
    if level.parse::<i32>().is_err() {
        eprintln!("terminate called after throwing an instance of 'std::invalid_argument': stoi");
        std::process::abort();
    }
}

fn join(
    machine: &'static Machine,
    invitation: Invitation,
    (ranks, rank): (i32, i32),
    device: u32,
) -> Result<Arc<Comm>, Status> {
    let joined =
        Communicator::join(machine, invitation, ranks as u32, rank as u32, device, &|| false);
    let inner = joined.map_err(|error| match error {
        InitError::NoFile => fail(SYSTEM_ERROR, "the process of the unique id is gone"),
        InitError::Disagreement => fail(INVALID_ARGUMENT, "ranks disagree, or one came twice"),
        InitError::SameCard => fail(INVALID_ARGUMENT, "two ranks have the same card"),
        InitError::Stopped => INTERNAL_ERROR,
    })?;
    let handle = NEXT_HANDLE.fetch_add(HANDLE_STEP, Ordering::Relaxed);
    let comm = Arc::new(Comm { handle, inner });
    lock(&COMMS).insert(handle, Arc::clone(&comm));
    Ok(comm)
}

/// Blocks until all ranks have come.
pub(crate) fn init_rank(out: *mut *mut c_void, rank: i32, ranks: i32, id: *const c_void) -> Status {
    call("bkcl_init_rank", |machine, _| {
        read_debug_level();
        if out.is_null() || id.is_null() || ranks < 1 || !(0..ranks).contains(&rank) {
            return Err(fail(INVALID_ARGUMENT, "[INVALID PARAMETER] rank"));
        }
        let mut invitation = [0; Invitation::BYTES];
        // SAFETY: C passes an id, which is longer than this.
        unsafe {
            let from = id.cast::<u8>().add(INVITATION_AT);
            invitation.as_mut_ptr().copy_from_nonoverlapping(from, Invitation::BYTES);
        }
        let invitation = Invitation::from_bytes(invitation);
        let comm = join(machine, invitation, (ranks, rank), machine.current_device())?;
        put(out, comm.handle as *mut c_void)
    })
}

/// All ranks in one process.
pub(crate) fn comm_init_all(out: *mut *mut c_void, ranks: i32, devices: *const i32) -> Status {
    call("bkcl_comm_init_all", |machine, _| -> Outcome {
        if out.is_null() || devices.is_null() || ranks < 1 {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: C passes as many numbers as ranks.
        let devices = unsafe { std::slice::from_raw_parts(devices, ranks as usize) };
        let invitation = Invitation::new().map_err(|_| SYSTEM_ERROR)?;
        let all: Vec<_> = std::thread::scope(|scope| {
            let join = |rank: usize, device: i32| {
                scope.spawn(move || join(machine, invitation, (ranks, rank as i32), device as u32))
            };
            let threads: Vec<_> =
                devices.iter().enumerate().map(|(rank, device)| join(rank, *device)).collect();
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined.map(|one| one.unwrap_or(Err(INTERNAL_ERROR))).collect::<Result<_, _>>()
        })?;
        for (rank, comm) in all.iter().enumerate() {
            // SAFETY: C passes room for as many as ranks.
            put(unsafe { out.add(rank) }, comm.handle as *mut c_void)?;
        }
        Ok(())
    })
}

pub(crate) fn destroy_context(handle: *mut c_void) -> Status {
    call("bkcl_destroy_context", |machine, _| {
        let comm = find(handle)?;
        machine.synchronize_device(comm.inner.device()).map_err(|_| RUNTIME_ERROR)?;
        comm.inner.leave();
        lock(&COMMS).remove(&comm.handle);
        Ok(())
    })
}

/// Ends what is pending on this rank, and the context.
pub(crate) fn comm_abort(handle: *mut c_void) -> Status {
    call("bkcl_comm_abort", |_, _| {
        let comm = find(handle)?;
        comm.inner.abort();
        lock(&COMMS).remove(&comm.handle);
        Ok(())
    })
}

pub(crate) fn comm_count(handle: *mut c_void, out: *mut i32) -> Status {
    find(handle).and_then(|comm| put(out, comm.inner.ranks() as i32)).err().unwrap_or(0)
}

pub(crate) fn comm_user_rank(handle: *mut c_void, out: *mut i32) -> Status {
    find(handle).and_then(|comm| put(out, comm.inner.rank() as i32)).err().unwrap_or(0)
}
