//! Groups: calls that take effect together.

use std::cell::RefCell;
use std::sync::Arc;

use iccl_runtime::bootstrap::UniqueId;
use iccl_runtime::comm::{self as runtime, Communicator, Pending, Runtime, group_depth};

use crate::entry::{self, Entry, Siblings};
use crate::failure::{Failure, Refused, guard_alone};
use crate::numbers::Outcome;
use crate::types::{CommHandle, ResultNumber};

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// What this library adds to the runtime's group of a thread.
#[derive(Default)]
struct Group {
    /// Communicators that are being made.
    joining: Vec<(CommHandle, Arc<Entry>)>,
    /// The first call that was refused.
    refused: Option<Failure>,
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
    GROUP.with_borrow_mut(|group| group.joining.push((handle, entry)));
}

/// A call of this thread's group was refused, so nothing of the group takes place, and its end says why.
pub(crate) fn refuse(function: &str, failure: &Failure) {
    // A group that is left open makes the runtime refuse all of it.
    drop(runtime::Group::start());
    let text =
        format!("{function} was refused, so nothing of the group was done: {}", failure.text);
    GROUP.with_borrow_mut(|group| {
        group.refused.get_or_insert(Failure::new(failure.outcome, text));
    });
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
/// one that cannot be made is ended.
#[unsafe(no_mangle)]
pub extern "C" fn icclGroupEnd() -> ResultNumber {
    guard_alone("icclGroupEnd", || {
        let enqueued = runtime::group_end();
        if is_open() {
            return Ok(enqueued.map(|()| Outcome::Success)?);
        }
        let ended = GROUP.take();
        let made = wait_for(ended.joining);
        match (ended.refused, enqueued) {
            (Some(failure), _) => Err(failure),
            (None, Err(error)) => Err(error.into()),
            (None, Ok(())) => made,
        }
    })
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
