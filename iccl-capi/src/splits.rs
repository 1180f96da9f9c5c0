//! Communicators out of communicators.

use std::ffi::c_int;
use std::sync::Arc;

use iccl_runtime::comm::{Communicator, PendingChild};

use crate::config::{Overrides, icclConfig_t};
use crate::entry::{self, Entry};
use crate::failure::{Failure, Refused, guard};
use crate::groups::{self, guard_in_group};
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
    guard_in_group("icclCommSplit", comm, || {
        let color = match color {
            ICCL_SPLIT_NOCOLOR => None,
            color => Some(u32::try_from(color).map_err(|_| {
                let text = format!("color is {color}, neither ICCL_SPLIT_NOCOLOR nor from 0 on");
                Failure::argument(text)
            })?),
        };
        let how = How {
            gives_one: color.is_some(),
            now: &|parent| parent.split(color, key),
            later: &|parent| parent.begin_split(color, key),
        };
        // SAFETY: the caller promises it.
        unsafe { make(comm, newcomm, config, &how) }
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
    guard_in_group("icclCommDup", comm, || {
        let how = How {
            gives_one: true,
            now: &|parent| parent.duplicate().map(Some),
            later: &|parent| parent.begin_duplicate(),
        };
        // SAFETY: the caller promises it.
        unsafe { make(comm, newcomm, config, &how) }
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
    guard_in_group("icclCommShrink", comm, || {
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
        let aborts = match shrinkFlags {
            ICCL_SHRINK_DEFAULT => false,
            ICCL_SHRINK_ABORT => true,
            other => {
                let text = format!(
                    "shrinkFlags is {other}, neither ICCL_SHRINK_DEFAULT nor ICCL_SHRINK_ABORT"
                );
                return Err(Failure::argument(text));
            }
        };
        // Not before everything was checked.
        let abort_first = |parent: &Communicator| {
            if aborts && !exclude.contains(&parent.rank()) {
                parent.abort();
            }
        };
        let how = How {
            gives_one: true,
            now: &|parent| {
                abort_first(parent);
                parent.shrink(&exclude).map(Some)
            },
            later: &|parent| {
                abort_first(parent);
                parent.begin_shrink(&exclude)
            },
        };
        // SAFETY: the caller promises it.
        unsafe { make(comm, newcomm, config, &how) }
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

/// How a communicator is made out of another.
struct How<'a> {
    /// Whether this rank gets one.
    gives_one: bool,
    now: &'a dyn Fn(&Communicator) -> iccl_runtime::Result<Option<Communicator>>,
    /// In the background, in the order of the calls.
    later: &'a dyn Fn(&Arc<Communicator>) -> iccl_runtime::Result<PendingChild>,
}

/// Makes a communicator out of another, now, in the background, or at the end of the group.
///
/// # Safety
/// `newcomm` may be written; `config` is as [`Overrides::read`] needs it.
unsafe fn make(
    comm: CommHandle,
    newcomm: *mut CommHandle,
    config: *const icclConfig_t,
    how: &How<'_>,
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
        let handle = match (how.now)(&parent)? {
            Some(made) => Entry::made(blocking, overrides.name, made)?,
            None => std::ptr::null_mut(),
        };
        give(handle)?;
        return Ok(Outcome::Success);
    }
    let making = (how.later)(&parent)?.into();
    let (handle, entry) = if how.gives_one {
        Entry::joining(blocking, overrides.name, making)?
    } else {
        (std::ptr::null_mut(), Arc::new(Entry::without_handle(blocking, making)))
    };
    give(handle)?;
    if groups::is_open() {
        groups::waits_for(handle, entry);
        return Ok(Outcome::Success);
    }
    Ok(if how.gives_one { Outcome::InProgress } else { Outcome::Success })
}
