//! Making, asking and ending communicators.

use std::ffi::c_int;
use std::sync::Arc;

use iccl_runtime::bootstrap::UniqueId;

use crate::config::{Settings, icclConfig_t};
use crate::entry::{self, Entry, Siblings};
use crate::failure::{Failure, Refused, guard, guard_alone};
use crate::groups::{self, Joiner};
use crate::numbers::Outcome;
use crate::types::{CommHandle, ResultNumber, answer, icclUniqueId, not_null, rank};
use crate::{config, process};

/// Gives the version of the library: major * 10000 + minor * 100 + patch. The header's is
/// ICCL_VERSION_CODE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclGetVersion(version: *mut c_int) -> ResultNumber {
    guard_alone("icclGetVersion", || {
        // SAFETY: the caller promises it.
        unsafe { answer("version", version, config::ICCL_VERSION_CODE)? };
        Ok(Outcome::Success)
    })
}

/// Gives an id for a new communicator. Called by one rank, which gives its bytes to all; its process
/// must live until all ranks have joined. Each communicator needs an id of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclGetUniqueId(uniqueId: *mut icclUniqueId) -> ResultNumber {
    guard_alone("icclGetUniqueId", || {
        not_null("uniqueId", uniqueId)?;
        let id = process::runtime()?.unique_id()?;
        // SAFETY: the caller promises it.
        unsafe { answer("uniqueId", uniqueId, icclUniqueId::of(&id))? };
        Ok(Outcome::Success)
    })
}

/// Joins a communicator of nranks as rank. Returns when all ranks have come and agreed; within a
/// group, icclGroupEnd does. The id is that of icclGetUniqueId on one of the ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclCommInitRank(
    comm: *mut CommHandle,
    nranks: c_int,
    commId: icclUniqueId,
    rank: c_int,
) -> ResultNumber {
    groups::guard_in_group("icclCommInitRank", std::ptr::null_mut(), || {
        // SAFETY: the caller promises it.
        unsafe { init_rank(comm, nranks, &commId, rank, std::ptr::null()) }
    })
}

/// As icclCommInitRank, with settings; config may be NULL. With blocking = 0 it returns icclInProgress
/// at once, and the handle may be asked by icclCommGetAsyncError and be aborted meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclCommInitRankConfig(
    comm: *mut CommHandle,
    nranks: c_int,
    commId: icclUniqueId,
    rank: c_int,
    config: *const icclConfig_t,
) -> ResultNumber {
    groups::guard_in_group("icclCommInitRankConfig", std::ptr::null_mut(), || {
        // SAFETY: the caller promises it.
        unsafe { init_rank(comm, nranks, &commId, rank, config) }
    })
}

/// Joins the communicator of all ranks that the launcher started (`iccl run`, torchrun, mpirun, srun,
/// Kubernetes): rank, number of ranks and where they meet are read from its variables. A process that
/// nothing says is one of several gets a communicator of one rank. config may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclCommInitWorld(
    comm: *mut CommHandle,
    config: *const icclConfig_t,
) -> ResultNumber {
    groups::guard_in_group("icclCommInitWorld", std::ptr::null_mut(), || {
        not_null("comm", comm)?;
        // SAFETY: the caller promises it.
        let settings = unsafe { Settings::read(config)? };
        // SAFETY: as above.
        unsafe { join(comm, settings, &Joiner::World) }
    })
}

/// Makes a communicator whose ndev ranks are all in this process: comm[i] is rank i. devlist[i] is
/// which device of its kind rank i uses, modulo their number; NULL is 0, 1, 2, …. (All ranks share the
/// host's memory, which is one device.) Not allowed within a group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclCommInitAll(
    comm: *mut CommHandle,
    ndev: c_int,
    devlist: *const c_int,
) -> ResultNumber {
    guard_alone("icclCommInitAll", || {
        not_null("comm", comm)?;
        let ranks = number_of_ranks("ndev", ndev)?;
        if groups::is_open() {
            return Err(Failure::usage(
                "it waits for all ranks, so it cannot be called in a group",
            ));
        }
        let runtime = process::runtime()?;
        let id = runtime.local_unique_id()?;
        let mut made = Made(Vec::new());
        for rank in 0..ranks {
            // SAFETY: the caller promises as many as there are ranks.
            let device = unsafe { device_of(devlist, rank)? };
            let runtime = process::runtime_with(
                &iccl_runtime::config::Sources::of_process()
                    .with("bootstrap.local_rank", device.to_string()),
            )?;
            let pending = runtime.begin_communicator(&id, rank, ranks)?;
            made.0.push(Entry::joining(true, None, pending.into())?);
        }
        for (_, entry) in &made.0 {
            entry.wait_made()?;
        }
        let entries: Vec<_> = made.0.iter().map(|(_, entry)| Arc::clone(entry)).collect();
        Siblings::join(&entries);
        for (rank, (handle, _)) in std::mem::take(&mut made.0).into_iter().enumerate() {
            // SAFETY: the caller promises as many as there are ranks.
            unsafe { comm.add(rank).write_unaligned(handle) };
        }
        Ok(Outcome::Success)
    })
}

/// Handles that nobody has seen yet: ended if not all come to be.
struct Made(Vec<(CommHandle, Arc<Entry>)>);

impl Drop for Made {
    fn drop(&mut self) {
        for (handle, entry) in &self.0 {
            let _ = entry::take(*handle);
            entry.abort();
        }
    }
}

/// # Safety
/// `devlist` is null or holds a number for each rank.
unsafe fn device_of(devlist: *const c_int, rank: u32) -> Refused<u32> {
    if devlist.is_null() {
        return Ok(rank);
    }
    // SAFETY: the caller promises it.
    let device = unsafe { devlist.add(rank as usize).read_unaligned() };
    u32::try_from(device).map_err(|_| {
        Failure::argument(format!("devlist[{rank}] is {device}, and devices are counted from 0"))
    })
}

/// Joins as one rank, by an id.
///
/// # Safety
/// `comm` may be written; `config` is as [`Settings::read`] needs it.
unsafe fn init_rank(
    comm: *mut CommHandle,
    nranks: c_int,
    id: &icclUniqueId,
    number: c_int,
    config: *const icclConfig_t,
) -> Refused<Outcome> {
    not_null("comm", comm)?;
    let ranks = number_of_ranks("nranks", nranks)?;
    let rank = rank("rank", number, ranks)?;
    let id: UniqueId = id.read()?;
    // SAFETY: the caller promises it.
    let settings = unsafe { Settings::read(config)? };
    // SAFETY: as above.
    unsafe { join(comm, settings, &Joiner::Rank { id, rank, ranks }) }
}

/// Joins now, in the background, or at the end of the group.
///
/// # Safety
/// `comm` may be written.
unsafe fn join(comm: *mut CommHandle, settings: Settings, joiner: &Joiner) -> Refused<Outcome> {
    if settings.blocking && !groups::is_open() {
        let communicator = joiner.join(&settings.runtime)?;
        let handle = Entry::made(settings.blocking, settings.name, communicator)?;
        // SAFETY: the caller promises it.
        unsafe { answer("comm", comm, handle)? };
        return Ok(Outcome::Success);
    }
    let pending = joiner.begin(&settings.runtime)?;
    let blocking = settings.blocking;
    let (handle, entry) = Entry::joining(blocking, settings.name, pending.into())?;
    // SAFETY: the caller promises it.
    unsafe { answer("comm", comm, handle)? };
    if groups::is_open() {
        groups::waits_for(handle, entry);
    }
    Ok(if blocking { Outcome::Success } else { Outcome::InProgress })
}

fn number_of_ranks(name: &str, number: c_int) -> Refused<u32> {
    u32::try_from(number)
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| Failure::argument(format!("{name} is {number}, and must be at least 1")))
}

/// Waits until every operation of the communicator is over and says goodbye to the other ranks. The
/// handle stays, to be destroyed. With blocking = 0 it returns icclInProgress at once.
#[unsafe(no_mangle)]
pub extern "C" fn icclCommFinalize(comm: CommHandle) -> ResultNumber {
    guard("icclCommFinalize", comm, || entry::find(comm)?.finalize())
}

/// Finalizes the communicator, if that was not done, and ends its handle, whatever it answers: an error
/// is that of an operation, or what ended the communicator.
#[unsafe(no_mangle)]
pub extern "C" fn icclCommDestroy(comm: CommHandle) -> ResultNumber {
    guard("icclCommDestroy", comm, || entry::take(comm)?.destroy())
}

/// Ends the communicator on every rank, and its handle: operations that are not over end with
/// icclAborted, here before this returns. Waits for no other rank. May be called from any thread, also
/// while the communicator is being made. A communicator that was aborted is not destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn icclCommAbort(comm: CommHandle) -> ResultNumber {
    guard("icclCommAbort", comm, || {
        entry::take(comm)?.abort();
        Ok(Outcome::Success)
    })
}

/// Gives how many ranks the communicator has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclCommCount(comm: CommHandle, count: *mut c_int) -> ResultNumber {
    guard("icclCommCount", comm, || {
        let ranks = entry::find(comm)?.made_communicator()?.ranks();
        // SAFETY: the caller promises it.
        unsafe { answer("count", count, ranks as c_int)? };
        Ok(Outcome::Success)
    })
}

/// Gives this rank, from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclCommUserRank(comm: CommHandle, rank: *mut c_int) -> ResultNumber {
    guard("icclCommUserRank", comm, || {
        let own = entry::find(comm)?.made_communicator()?.rank();
        // SAFETY: the caller promises it.
        unsafe { answer("rank", rank, own as c_int)? };
        Ok(Outcome::Success)
    })
}

/// Gives which of its plugin's devices this rank computes on, from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclCommDevice(comm: CommHandle, device: *mut c_int) -> ResultNumber {
    guard("icclCommDevice", comm, || {
        let index = entry::find(comm)?.made_communicator()?.device().index();
        // SAFETY: the caller promises it.
        unsafe { answer("device", device, index as c_int)? };
        Ok(Outcome::Success)
    })
}

/// Gives how it is with the communicator: icclSuccess, icclInProgress while it is being made or
/// finalized without blocking, or the error that ended it; icclGetLastError(comm) then has the text.
/// Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclCommGetAsyncError(
    comm: CommHandle,
    asyncError: *mut ResultNumber,
) -> ResultNumber {
    guard("icclCommGetAsyncError", comm, || {
        not_null("asyncError", asyncError)?;
        let entry = entry::find(comm)?;
        let (outcome, error) = entry.condition();
        if let Some(error) = error {
            entry.keep_error(&error.to_string());
        }
        // SAFETY: the caller promises it.
        unsafe { answer("asyncError", asyncError, outcome.number())? };
        Ok(Outcome::Success)
    })
}
