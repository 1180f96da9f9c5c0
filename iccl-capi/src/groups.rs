//! Groups: calls that take effect together.

use std::cell::RefCell;
use std::sync::Arc;

use iccl_runtime::bootstrap::UniqueId;
use iccl_runtime::comm::{Communicator, Pending, Runtime};

use crate::entry::{self, Entry};
use crate::failure::{Failure, Refused, guard_alone};
use crate::numbers::Outcome;
use crate::types::{CommHandle, ResultNumber};

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// The group of a thread.
#[derive(Default)]
struct Group {
    /// How many starts have no end yet.
    depth: u32,
    /// Communicators that are being made.
    joining: Vec<(CommHandle, Arc<Entry>)>,
}

/// How a communicator is joined.
pub(crate) enum Joiner {
    World,
    Rank { id: UniqueId, rank: u32, ranks: u32 },
}

impl Joiner {
    pub(crate) fn join(&self, runtime: &Runtime) -> Refused<Communicator> {
        Ok(match self {
            Self::World => runtime.world()?,
            Self::Rank { id, rank, ranks } => runtime.communicator(id, *rank, *ranks)?,
        })
    }

    pub(crate) fn begin(&self, runtime: &Runtime) -> Refused<Pending> {
        Ok(match self {
            Self::World => runtime.begin_world()?,
            Self::Rank { id, rank, ranks } => runtime.begin_communicator(id, *rank, *ranks)?,
        })
    }
}

/// Whether this thread has a group open.
pub(crate) fn is_open() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

/// The end of this thread's group waits for a communicator.
pub(crate) fn waits_for(handle: CommHandle, entry: Arc<Entry>) {
    GROUP.with_borrow_mut(|group| group.joining.push((handle, entry)));
}

/// Begins a group of this thread: calls up to its end take effect together. Groups may be nested; the
/// outermost counts.
#[unsafe(no_mangle)]
pub extern "C" fn icclGroupStart() -> ResultNumber {
    guard_alone("icclGroupStart", || {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Ok(Outcome::Success)
    })
}

/// Ends a group. Communicators that were begun in it are made when this returns, except those with
/// blocking = 0: then it returns icclInProgress. The handle of one that cannot be made is ended.
#[unsafe(no_mangle)]
pub extern "C" fn icclGroupEnd() -> ResultNumber {
    guard_alone("icclGroupEnd", || {
        let ended = GROUP.with_borrow_mut(|group| {
            if group.depth == 0 {
                return Err(Failure::usage("there was no icclGroupStart on this thread"));
            }
            group.depth -= 1;
            Ok(if group.depth == 0 { std::mem::take(group) } else { Group::default() })
        })?;
        let mut outcome = Ok(Outcome::Success);
        for (handle, entry) in ended.joining {
            if !entry.blocking {
                outcome = outcome.map(|_| Outcome::InProgress);
                continue;
            }
            if let Err(failure) = entry.wait_made() {
                // If somebody aborted it, it is gone already.
                let _ = entry::take(handle);
                outcome = outcome.and(Err(failure));
            }
        }
        outcome
    })
}
