//! Communicators: init, split, end.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iccl_sim_core::Machine;
use iccl_sim_core::group::{Communicator, Health, InitError, Invitation};

use crate::group::{self, Deferred};
use crate::operators::Operator;
use crate::{
    IN_PROGRESS, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, Outcome, REMOTE_ERROR,
    SYSTEM_ERROR, Status, UNHANDLED_CUDA_ERROR, UniqueId, call, fail, put,
};

/// What C's `ncclComm_t` points to, so to speak.
pub(crate) struct Comm {
    pub(crate) handle: u64,
    pub(crate) ranks: u32,
    pub(crate) rank: u32,
    pub(crate) device: u32,
    blocking: bool,
    is_ended: AtomicBool,
    phase: Mutex<Phase>,
    pub(crate) operators: Mutex<BTreeMap<i32, Operator>>,
}

#[derive(Clone)]
enum Phase {
    Starting,
    Ready(Arc<Communicator>),
    Failed(Status),
    Finalized,
}

static COMMS: Mutex<BTreeMap<u64, Arc<Comm>>> = Mutex::new(BTreeMap::new());
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(0x0cc1_0000_0000_0000);
const HANDLE_STEP: u64 = 0x1000;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The communicator behind a handle.
pub(crate) fn find(handle: *mut c_void) -> Result<Arc<Comm>, Status> {
    let found = lock(&COMMS).get(&(handle as u64)).cloned();
    found.ok_or_else(|| fail(INVALID_ARGUMENT, "comm argument is NULL or corrupted"))
}

impl Comm {
    fn new(ranks: u32, rank: u32, device: u32, blocking: bool) -> Arc<Self> {
        Arc::new(Self {
            handle: NEXT_HANDLE.fetch_add(HANDLE_STEP, Ordering::Relaxed),
            ranks,
            rank,
            device,
            blocking,
            is_ended: AtomicBool::new(false),
            phase: Mutex::new(Phase::Starting),
            operators: Mutex::default(),
        })
    }

    /// What works behind it, once it is ready.
    pub(crate) fn ready(&self) -> Result<Arc<Communicator>, Status> {
        match &*lock(&self.phase) {
            Phase::Ready(inner) => Ok(Arc::clone(inner)),
            Phase::Starting => {
                Err(fail(INVALID_ARGUMENT, "comm is used before its init was complete"))
            }
            Phase::Failed(code) => Err(*code),
            Phase::Finalized => Err(fail(INVALID_USAGE, "comm is used after it was finalized")),
        }
    }

    /// Joins the others; takes as long as they take.
    fn join(&self, machine: &'static Machine, invitation: Invitation) -> Outcome {
        let stop = || self.is_ended.load(Ordering::Acquire);
        let (ranks, rank) = (self.ranks, self.rank);
        let joined = Communicator::join(machine, invitation, ranks, rank, self.device, &stop);
        let outcome = joined.map_err(init_status);
        *lock(&self.phase) = match &outcome {
            Ok(inner) => Phase::Ready(Arc::clone(inner)),
            Err(code) => Phase::Failed(*code),
        };
        outcome.map(|_| ())
    }
}

fn init_status(error: InitError) -> Status {
    match error {
        InitError::NoFile => fail(SYSTEM_ERROR, "the process of the unique id is gone"),
        InitError::Disagreement => fail(INTERNAL_ERROR, "ranks disagree, or one came twice"),
        InitError::SameCard => fail(INVALID_USAGE, "Duplicate GPU detected"),
        InitError::Stopped => fail(INTERNAL_ERROR, "init was aborted"),
    }
}

/// A communicator that is on its way: what `ncclGroupEnd` does for it.
pub(crate) struct Start {
    pub(crate) blocking: bool,
    pub(crate) run: Box<dyn FnOnce() -> Outcome + Send>,
}

/// Starts now, or at the end of the group.
fn start(start: Start) -> Outcome {
    if group::is_open() {
        group::defer(Deferred::Start(start));
        return Ok(());
    }
    run_all(vec![start])
}

/// Runs them beside each other, and waits for the blocking ones.
pub(crate) fn run_all(starts: Vec<Start>) -> Outcome {
    let mut outcome = Ok(());
    let mut threads = Vec::new();
    for start in starts {
        let thread = std::thread::Builder::new().name("sim-nccl-init".to_owned());
        let thread = thread.spawn(start.run).map_err(|_| SYSTEM_ERROR)?;
        if start.blocking {
            threads.push(thread);
        } else {
            outcome = Err(IN_PROGRESS);
        }
    }
    for thread in threads {
        if let Err(code) = thread.join().unwrap_or(Err(INTERNAL_ERROR)) {
            outcome = Err(code);
        }
    }
    outcome
}

/// What is read of `ncclConfig_t`: whether calls block.
fn is_blocking(config: *const c_void) -> Result<bool, Status> {
    const MAGIC: u32 = 0xcafe_beef;
    if config.is_null() {
        return Ok(true);
    }
    // SAFETY: every version of the structure starts with size, magic and version, then `blocking`.
    let (magic, blocking) = unsafe {
        (
            config.byte_add(8).cast::<u32>().read_unaligned(),
            config.byte_add(16).cast::<i32>().read_unaligned(),
        )
    };
    match (magic, blocking) {
        (MAGIC, 1 | i32::MIN) => Ok(true),
        (MAGIC, 0) => Ok(false),
        _ => Err(fail(INVALID_ARGUMENT, "ncclConfig_t argument not initialized")),
    }
}

struct Init {
    ranks: i32,
    rank: i32,
    device: u32,
    id: UniqueId,
    blocking: bool,
}

fn init(machine: &'static Machine, out: *mut *mut c_void, init: &Init) -> Outcome {
    if out.is_null() || init.ranks < 1 || !(0..init.ranks).contains(&init.rank) {
        return Err(fail(INVALID_ARGUMENT, "Invalid rank requested"));
    }
    let comm = Comm::new(init.ranks as u32, init.rank as u32, init.device, init.blocking);
    put(out, comm.handle as *mut c_void)?;
    lock(&COMMS).insert(comm.handle, Arc::clone(&comm));
    let (invitation, out) = (init.id.invitation(), Out(out));
    let blocking = init.blocking;
    start(Start {
        blocking,
        run: Box::new(move || {
            let outcome = comm.join(machine, invitation);
            // One that blocks is no communicator if it fails.
            if outcome.is_err() && blocking {
                lock(&COMMS).remove(&comm.handle);
                put(out.pointer(), std::ptr::null_mut())?;
            }
            outcome
        }),
    })
}

/// An output that another thread writes while the caller waits.
#[derive(Clone, Copy)]
struct Out(*mut *mut c_void);
// SAFETY: the caller waits in init or in `ncclGroupEnd` until all is written.
unsafe impl Send for Out {}

impl Out {
    fn pointer(self) -> *mut *mut c_void {
        self.0
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRank(
    out: *mut *mut c_void,
    ranks: i32,
    id: UniqueId,
    rank: i32,
) -> Status {
    call("ncclCommInitRank", |machine, _| {
        let device = machine.current_device();
        init(machine, out, &Init { ranks, rank, device, id, blocking: true })
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRankConfig(
    out: *mut *mut c_void,
    ranks: i32,
    id: UniqueId,
    rank: i32,
    config: *const c_void,
) -> Status {
    call("ncclCommInitRankConfig", |machine, _| {
        let (device, blocking) = (machine.current_device(), is_blocking(config)?);
        init(machine, out, &Init { ranks, rank, device, id, blocking })
    })
}

/// Only the first id is used.
#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRankScalable(
    out: *mut *mut c_void,
    ranks: i32,
    rank: i32,
    ids: i32,
    id: *const UniqueId,
    config: *const c_void,
) -> Status {
    call("ncclCommInitRankScalable", |machine, _| {
        if ids < 1 || id.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: C passes at least one id.
        let id = unsafe { id.read_unaligned() };
        let (device, blocking) = (machine.current_device(), is_blocking(config)?);
        init(machine, out, &Init { ranks, rank, device, id, blocking })
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitAll(out: *mut *mut c_void, ranks: i32, devices: *const i32) -> Status {
    call("ncclCommInitAll", |machine, _| {
        if out.is_null() || ranks < 1 {
            return Err(INVALID_ARGUMENT);
        }
        let id = UniqueId::new()?;
        group::open();
        let mut outcome = Ok(());
        for rank in 0..ranks {
            let offset = rank as usize;
            let device = if devices.is_null() {
                rank
            } else {
                // SAFETY: C passes as many numbers as ranks.
                unsafe { devices.add(offset).read_unaligned() }
            };
            let device = device as u32;
            if machine.device(device).is_err() {
                outcome = Err(fail(INVALID_ARGUMENT, "Invalid device"));
                break;
            }
            // SAFETY: C passes room for as many communicators as ranks.
            let out = unsafe { out.add(offset) };
            outcome = init(machine, out, &Init { ranks, rank, device, id, blocking: true });
        }
        group::close(outcome)
    })
}

// Out of others.

const NO_COLOR: i32 = -1;

fn word(note: &[u8], at: usize) -> i32 {
    i32::from_le_bytes([note[at], note[at + 1], note[at + 2], note[at + 3]])
}

/// The members of a new communicator, in its order, agree on where they meet; this rank joins them.
fn found(
    machine: &'static Machine,
    parent: &Communicator,
    asked: &[u32],
    members: &[u32],
    comm: Option<&Arc<Comm>>,
) -> Outcome {
    let mut note = [0; Invitation::BYTES];
    let is_first = members.first() == Some(&parent.rank());
    if is_first {
        note = Invitation::new().map_err(|_| SYSTEM_ERROR)?.to_bytes();
    }
    let notes = parent.share(asked, &note).map_err(init_status)?;
    let Some(comm) = comm else { return Ok(()) };
    let first = asked.iter().position(|rank| *rank == members[0]).ok_or(INTERNAL_ERROR)?;
    note.copy_from_slice(&notes[first]);
    comm.join(machine, Invitation::from_bytes(note))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommSplit(
    handle: *mut c_void,
    color: i32,
    key: i32,
    out: *mut *mut c_void,
    config: *const c_void,
) -> Status {
    call("ncclCommSplit", |machine, _| {
        let parent = find(handle)?;
        let inner = parent.ready()?;
        let blocking = if config.is_null() { parent.blocking } else { is_blocking(config)? };
        if color < NO_COLOR {
            return Err(fail(INVALID_ARGUMENT, "Color must be greater or equal to -1"));
        }
        put(out, std::ptr::null_mut())?;
        let out = Out(out);
        start(Start {
            blocking,
            run: Box::new(move || {
                let own = [color.to_le_bytes(), key.to_le_bytes()].concat();
                let all: Vec<u32> = (0..inner.ranks()).collect();
                let notes = inner.share(&all, &own).map_err(init_status)?;
                let mut members: Vec<(i32, u32)> = Vec::new();
                for (rank, note) in notes.iter().enumerate() {
                    if word(note, 0) == color {
                        members.push((word(note, 4), rank as u32));
                    }
                }
                members.sort_unstable();
                let members: Vec<u32> = members.into_iter().map(|(_, rank)| rank).collect();
                if color == NO_COLOR {
                    return found(machine, &inner, &all, &[], None);
                }
                let place = members.iter().position(|rank| *rank == inner.rank());
                let place = place.ok_or(INTERNAL_ERROR)? as u32;
                let comm = Comm::new(members.len() as u32, place, inner.device(), blocking);
                found(machine, &inner, &all, &members, Some(&comm))?;
                lock(&COMMS).insert(comm.handle, Arc::clone(&comm));
                put(out.pointer(), comm.handle as *mut c_void)
            }),
        })
    })
}

const SHRINK_ABORT: i32 = 1;

/// The ranks that stay call it; those that are left out are not asked.
#[unsafe(no_mangle)]
extern "C" fn ncclCommShrink(
    handle: *mut c_void,
    excluded: *const i32,
    count: i32,
    out: *mut *mut c_void,
    config: *const c_void,
    flags: i32,
) -> Status {
    call("ncclCommShrink", |machine, _| {
        let parent = find(handle)?;
        let inner = parent.ready()?;
        let blocking = if config.is_null() { parent.blocking } else { is_blocking(config)? };
        if excluded.is_null() || count < 1 || flags & !SHRINK_ABORT != 0 {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: C passes so many numbers.
        let excluded = unsafe { std::slice::from_raw_parts(excluded, count as usize) };
        let stays = |rank: &u32| !excluded.contains(&(*rank as i32));
        let members: Vec<u32> = (0..inner.ranks()).filter(stays).collect();
        let place = members.iter().position(|rank| *rank == inner.rank());
        let place = place.ok_or_else(|| fail(INVALID_ARGUMENT, "this rank is left out"))? as u32;
        if flags & SHRINK_ABORT != 0 {
            inner.interrupt();
        }
        put(out, std::ptr::null_mut())?;
        let out = Out(out);
        start(Start {
            blocking,
            run: Box::new(move || {
                let comm = Comm::new(members.len() as u32, place, inner.device(), blocking);
                found(machine, &inner, &members, &members, Some(&comm))?;
                lock(&COMMS).insert(comm.handle, Arc::clone(&comm));
                put(out.pointer(), comm.handle as *mut c_void)
            }),
        })
    })
}

// State and end.

#[unsafe(no_mangle)]
extern "C" fn ncclCommGetAsyncError(handle: *mut c_void, out: *mut Status) -> Status {
    call("ncclCommGetAsyncError", |machine, _| {
        let comm = find(handle)?;
        let state = match &*lock(&comm.phase) {
            Phase::Starting => IN_PROGRESS,
            Phase::Failed(code) => *code,
            Phase::Finalized => 0,
            Phase::Ready(inner) => match inner.health() {
                Health::RemoteError => REMOTE_ERROR,
                Health::Good if machine.health(comm.device).is_err() => UNHANDLED_CUDA_ERROR,
                Health::Good => 0,
            },
        };
        put(out, state)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommCount(handle: *mut c_void, out: *mut i32) -> Status {
    find(handle).and_then(|comm| put(out, comm.ranks as i32)).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommUserRank(handle: *mut c_void, out: *mut i32) -> Status {
    find(handle).and_then(|comm| put(out, comm.rank as i32)).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommCuDevice(handle: *mut c_void, out: *mut i32) -> Status {
    find(handle).and_then(|comm| put(out, comm.device as i32)).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(handle: *mut c_void) -> Status {
    if handle.is_null() {
        return 0;
    }
    call("ncclCommFinalize", |_, _| {
        let comm = find(handle)?;
        let inner = comm.ready()?;
        inner.leave();
        *lock(&comm.phase) = Phase::Finalized;
        if comm.blocking { Ok(()) } else { Err(IN_PROGRESS) }
    })
}

/// What is under way goes on.
#[unsafe(no_mangle)]
extern "C" fn ncclCommDestroy(handle: *mut c_void) -> Status {
    if handle.is_null() {
        return 0;
    }
    call("ncclCommDestroy", |_, _| {
        let comm = find(handle)?;
        lock(&COMMS).remove(&comm.handle);
        if let Phase::Ready(inner) = &*lock(&comm.phase) {
            inner.leave();
        }
        Ok(())
    })
}

/// What is under way ends.
#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(handle: *mut c_void) -> Status {
    if handle.is_null() {
        return 0;
    }
    call("ncclCommAbort", |_, _| {
        let comm = find(handle)?;
        lock(&COMMS).remove(&comm.handle);
        comm.is_ended.store(true, Ordering::Release);
        if let Phase::Ready(inner) = &*lock(&comm.phase) {
            inner.abort();
            inner.leave();
        }
        Ok(())
    })
}

/// What is under way ends; the communicator is good for its end and for making others out of it.
#[unsafe(no_mangle)]
extern "C" fn ncclCommRevoke(handle: *mut c_void, flags: i32) -> Status {
    call("ncclCommRevoke", |_, _| {
        if flags != 0 {
            return Err(INVALID_ARGUMENT);
        }
        find(handle)?.ready()?.interrupt();
        Ok(())
    })
}

// Memory.

#[unsafe(no_mangle)]
extern "C" fn ncclMemAlloc(out: *mut *mut c_void, bytes: usize) -> Status {
    call("ncclMemAlloc", |machine, _| {
        let made = machine.allocate(machine.current_device(), bytes as u64);
        let address =
            made.map_err(|_| fail(UNHANDLED_CUDA_ERROR, "Cuda failure 'out of memory'"))?;
        put(out, address as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclMemFree(pointer: *mut c_void) -> Status {
    call("ncclMemFree", |machine, _| machine.free(pointer as u64).map_err(|_| UNHANDLED_CUDA_ERROR))
}

/// Has no effect; the handle is the address.
fn register(handle: *mut c_void, buffer: *mut c_void, out: *mut *mut c_void) -> Outcome {
    find(handle)?;
    if buffer.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    put(out, buffer)
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommRegister(
    handle: *mut c_void,
    buffer: *mut c_void,
    _bytes: usize,
    out: *mut *mut c_void,
) -> Status {
    call("ncclCommRegister", |_, _| register(handle, buffer, out))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommDeregister(handle: *mut c_void, _registered: *mut c_void) -> Status {
    call("ncclCommDeregister", |_, _| find(handle).map(|_| ()))
}

const WINDOW_ALIGNMENT: u64 = 4096;

#[unsafe(no_mangle)]
extern "C" fn ncclCommWindowRegister(
    handle: *mut c_void,
    buffer: *mut c_void,
    _bytes: usize,
    out: *mut *mut c_void,
    _flags: i32,
) -> Status {
    call("ncclCommWindowRegister", |_, _| {
        if !(buffer as u64).is_multiple_of(WINDOW_ALIGNMENT) {
            return Err(fail(INVALID_ARGUMENT, "window buffers are aligned to 4096 bytes"));
        }
        register(handle, buffer, out)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommWindowDeregister(handle: *mut c_void, _window: *mut c_void) -> Status {
    call("ncclCommWindowDeregister", |_, _| find(handle).map(|_| ()))
}
