//! Communicators out of communicators.

use std::ffi::c_int;
use std::sync::Arc;

use iccl_runtime::comm::Communicator;

use crate::config::{Overrides, icclConfig_t};
use crate::entry::{self, Entry};
use crate::failure::{Failure, Refused, guard};
use crate::groups;
use crate::numbers::Outcome;
use crate::types::{CommHandle, ResultNumber, answer, not_null, rank};

/// A color that makes no communicator.
pub const ICCL_SPLIT_NOCOLOR: c_int = -1;
/// The communicator that is made smaller goes on.
pub const ICCL_SHRINK_DEFAULT: c_int = 0;
/// The communicator that is made smaller is ended first, and with it what is under way on it.
pub const ICCL_SHRINK_ABORT: c_int = 1;

/// Makes a communicator for each color: its ranks are those that give it, in the order of their keys,
/// and of their ranks here where keys are equal. A rank whose color is ICCL_SPLIT_NOCOLOR takes part
/// and gets NULL. All ranks call it, as if it were a collective. One thread that calls it for several
/// ranks does so in a group, whose end waits. config may be NULL, and may set blocking and commName;
/// all else is the parent's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclCommSplit(
    comm: CommHandle,
    color: c_int,
    key: c_int,
    newcomm: *mut CommHandle,
    config: *const icclConfig_t,
) -> ResultNumber {
    guard("icclCommSplit", comm, || {
        let color = match color {
            ICCL_SPLIT_NOCOLOR => None,
            color => Some(u32::try_from(color).map_err(|_| {
                let text = format!("color is {color}, neither ICCL_SPLIT_NOCOLOR nor from 0 on");
                Failure::argument(text)
            })?),
        };
        let split = move |parent: &Communicator| parent.split(color, key);
        // SAFETY: the caller promises it.
        unsafe { make(comm, newcomm, config, color.is_some(), split) }
    })
}

/// Makes a communicator of the same ranks in the same order, independent of this one. Otherwise as
/// icclCommSplit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclCommDup(
    comm: CommHandle,
    newcomm: *mut CommHandle,
    config: *const icclConfig_t,
) -> ResultNumber {
    guard("icclCommDup", comm, || {
        let duplicate = |parent: &Communicator| parent.duplicate().map(Some);
        // SAFETY: the caller promises it.
        unsafe { make(comm, newcomm, config, true, duplicate) }
    })
}

/// Makes a communicator of the ranks that are not in excludeRanksList, in the same order. All of them
/// call it, with the same list; the others do not. It works after this communicator has ended with an
/// error: icclCommGetLostRanks gives whom to leave out, and if it answers icclRemoteError or
/// icclMismatch, survivors ask again and repeat. config is as for icclCommSplit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclCommShrink(
    comm: CommHandle,
    excludeRanksList: *const c_int,
    excludeRanksCount: c_int,
    newcomm: *mut CommHandle,
    config: *const icclConfig_t,
    shrinkFlags: c_int,
) -> ResultNumber {
    guard("icclCommShrink", comm, || {
        let parent = entry::ready(comm)?;
        let count = usize::try_from(excludeRanksCount).map_err(|_| {
            Failure::argument(format!("excludeRanksCount is {excludeRanksCount}, less than 0"))
        })?;
        if count > 0 {
            not_null("excludeRanksList", excludeRanksList)?;
        }
        let exclude: Vec<u32> = (0..count)
            .map(|at| {
                // SAFETY: the caller promises as many as it says.
                let number = unsafe { excludeRanksList.add(at).read_unaligned() };
                rank(&format!("excludeRanksList[{at}]"), number, parent.ranks())
            })
            .collect::<Refused<_>>()?;
        match shrinkFlags {
            ICCL_SHRINK_DEFAULT => {}
            ICCL_SHRINK_ABORT => parent.abort(),
            other => {
                let text = format!(
                    "shrinkFlags is {other}, neither ICCL_SHRINK_DEFAULT nor ICCL_SHRINK_ABORT"
                );
                return Err(Failure::argument(text));
            }
        }
        let shrink = move |parent: &Communicator| parent.shrink(&exclude).map(Some);
        // SAFETY: the caller promises it.
        unsafe { make(comm, newcomm, config, true, shrink) }
    })
}

/// Gives the ranks that are gone for good, as far as this rank knows, in ascending order. lostRanks
/// holds as many numbers as the communicator has ranks; lostCount is how many were written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclCommGetLostRanks(
    comm: CommHandle,
    lostRanks: *mut c_int,
    lostCount: *mut c_int,
) -> ResultNumber {
    guard("icclCommGetLostRanks", comm, || {
        not_null("lostRanks", lostRanks)?;
        let lost = entry::ready(comm)?.lost_ranks();
        // SAFETY: the caller promises it.
        unsafe { answer("lostCount", lostCount, lost.len() as c_int)? };
        for (at, rank) in lost.into_iter().enumerate() {
            // SAFETY: the caller promises as many as there are ranks.
            unsafe { lostRanks.add(at).write_unaligned(rank as c_int) };
        }
        Ok(Outcome::Success)
    })
}

/// Makes a communicator out of another, now, in the background, or at the end of the group. `gives_one`
/// is whether this rank gets one.
///
/// # Safety
/// `newcomm` may be written; `config` is as [`Overrides::read`] needs it.
unsafe fn make(
    comm: CommHandle,
    newcomm: *mut CommHandle,
    config: *const icclConfig_t,
    gives_one: bool,
    how: impl FnOnce(&Communicator) -> iccl_runtime::Result<Option<Communicator>> + Send + 'static,
) -> Refused<Outcome> {
    not_null("newcomm", newcomm)?;
    let parent_entry = entry::find(comm)?;
    let parent = parent_entry.ready()?;
    // SAFETY: the caller promises it.
    let overrides = unsafe { Overrides::read(config)? };
    let blocking = overrides.blocking.unwrap_or(parent_entry.blocking);
    let give = |handle| {
        // SAFETY: the caller promises it.
        unsafe { answer("newcomm", newcomm, handle) }
    };
    if blocking && !groups::is_open() {
        let handle = match how(&parent)? {
            Some(made) => Entry::made(blocking, overrides.name, made)?,
            None => std::ptr::null_mut(),
        };
        give(handle)?;
        return Ok(Outcome::Success);
    }
    let thread = std::thread::Builder::new()
        .name(format!("iccl-split-{}", parent.rank()))
        .spawn(move || how(&parent))
        .map_err(|error| Failure::new(Outcome::OutOfResources, format!("no thread: {error}")))?;
    let (handle, entry) = if gives_one {
        Entry::joining(blocking, overrides.name, thread.into())?
    } else {
        (std::ptr::null_mut(), Arc::new(Entry::without_handle(blocking, thread.into())))
    };
    give(handle)?;
    if groups::is_open() {
        groups::waits_for(handle, entry);
        return Ok(Outcome::Success);
    }
    Ok(if gives_one { Outcome::InProgress } else { Outcome::Success })
}
