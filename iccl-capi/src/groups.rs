//! Groups: calls that take effect together.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use iccl_runtime::bootstrap::UniqueId;
use iccl_runtime::comm::{self as runtime, Communicator, Pending, Runtime, group_depth};

use crate::entry::{self, Entry, Siblings};
use crate::failure::{Failure, Refused, guard, guard_alone};
use crate::numbers::Outcome;
use crate::types::{CommHandle, ResultNumber};

thread_local! {
    /// Never destroyed: C calls to the very end of a thread, and of the program.
    static GROUP: RefCell<ManuallyDrop<Group>> =
        const { RefCell::new(ManuallyDrop::new(Group::NONE)) };
    /// Gives up what is begun when the thread ends in a group.
    static AT_END: AtEnd = const { AtEnd };
}

struct AtEnd;

impl Drop for AtEnd {
    fn drop(&mut self) {
        drop(take());
    }
}

/// What this library adds to the runtime's group of a thread.
struct Group {
    /// Communicators that are being made.
    joining: Vec<(CommHandle, Arc<Entry>)>,
    /// The first call that was refused.
    refused: Option<Failure>,
}

impl Group {
    const NONE: Self = Self { joining: Vec::new(), refused: None };
}

fn take() -> Group {
    GROUP.with_borrow_mut(|group| std::mem::replace(&mut **group, Group::NONE))
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
    group_depth() > 0
}

/// The end of this thread's group waits for a communicator.
pub(crate) fn waits_for(handle: CommHandle, entry: Arc<Entry>) {
    // Late destructors of the thread have nothing to be ended.
    let _ = AT_END.try_with(|_| ());
    GROUP.with_borrow_mut(|group| group.joining.push((handle, entry)));
}

/// A call of this thread's group was refused, so nothing of the group takes place, and its end says why.
fn refuse(function: &str, failure: &Failure) {
    // A group that is left open makes the runtime refuse all of it.
    drop(runtime::Group::start());
    let text =
        format!("{function} was refused, so nothing of the group was done: {}", failure.text);
    GROUP.with_borrow_mut(|group| {
        group.refused.get_or_insert(Failure::new(failure.outcome, text));
    });
}

/// As [`guard`], for functions that may stand in a group: one that is refused there takes the group with it.
pub(crate) fn guard_in_group(
    function: &str,
    comm: CommHandle,
    body: impl FnOnce() -> Refused<Outcome>,
) -> ResultNumber {
    guard(function, comm, || {
        body().inspect_err(|failure| {
            if is_open() {
                refuse(function, failure);
            }
        })
    })
}

/// Begins a group of this thread: calls up to its end take effect together. Groups may be nested; the
/// outermost counts.
#[unsafe(no_mangle)]
pub extern "C" fn icclGroupStart() -> ResultNumber {
    guard_alone("icclGroupStart", || {
        runtime::group_start();
        Ok(Outcome::Success)
    })
}

/// Ends a group. The outermost end enqueues what was called in it, all or, if a call was refused,
/// nothing; it answers that call's result then. Operations of one stream begin together, so a send and a
/// receive of one group never wait for each other. Communicators that were begun in the group are made
/// when this returns, except those with blocking = 0: then it answers icclInProgress. The handle of
/// one that cannot be made, or whose group was refused, is ended.
#[unsafe(no_mangle)]
pub extern "C" fn icclGroupEnd() -> ResultNumber {
    guard_alone("icclGroupEnd", || {
        let enqueued = runtime::group_end();
        if is_open() {
            return Ok(enqueued.map(|()| Outcome::Success)?);
        }
        let ended = take();
        match (ended.refused, enqueued) {
            (None, Ok(())) => wait_for(ended.joining),
            (refused, enqueued) => {
                give_up(ended.joining);
                let failure = refused.or_else(|| enqueued.err().map(Failure::from));
                Err(failure.unwrap_or_else(|| Failure::usage("nothing of the group was done")))
            }
        }
    })
}

/// Nothing of the group is done, and the other ranks need not wait for it.
fn give_up(joining: Vec<(CommHandle, Arc<Entry>)>) {
    for (handle, entry) in joining {
        // If somebody aborted it, or there never was one, it is gone already.
        let _ = entry::take(handle);
        entry.abort();
    }
}

/// Waits until communicators are made.
fn wait_for(joining: Vec<(CommHandle, Arc<Entry>)>) -> Refused<Outcome> {
    let mut outcome = Ok(Outcome::Success);
    let mut made = Vec::new();
    for (handle, entry) in joining {
        if !entry.blocking {
            outcome = outcome.map(|_| Outcome::InProgress);
        } else if let Err(failure) = entry.wait_made() {
            // If somebody aborted it, or there never was one, it is gone already.
            let _ = entry::take(handle);
            outcome = outcome.and(Err(failure));
        } else if !handle.is_null() {
            made.push(entry);
        }
    }
    Siblings::join(&made);
    outcome
}
