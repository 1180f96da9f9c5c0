//! `ncclGroupStart` and `ncclGroupEnd`: what is called in between happens at the end.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use iccl_sim_core::group::{self, Call};
use iccl_sim_core::{Machine, Stream};

use crate::communicators::{Comm, Start, run_all};
use crate::{IN_PROGRESS, INVALID_USAGE, Outcome, Status, call, fail};

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static DEFERRED: RefCell<Vec<Deferred>> = const { RefCell::new(Vec::new()) };
    static ERROR: Cell<Status> = const { Cell::new(0) };
}

/// What waits for the end of a group.
pub(crate) enum Deferred {
    Start(Start),
    Launch(Box<Launch>),
}

/// A call that is put into a stream.
pub(crate) struct Launch {
    pub(crate) machine: &'static Machine,
    pub(crate) comm: Arc<Comm>,
    pub(crate) stream: Arc<Stream>,
    pub(crate) call: Call,
}

pub(crate) fn is_open() -> bool {
    DEPTH.get() > 0
}

pub(crate) fn defer(what: Deferred) {
    DEFERRED.with_borrow_mut(|all| all.push(what));
}

/// A call in the group was refused: its end is too.
pub(crate) fn note_error(code: Status) {
    if is_open() && code != 0 && code != IN_PROGRESS {
        ERROR.set(code);
    }
}

pub(crate) fn open() {
    DEPTH.set(DEPTH.get() + 1);
}

/// Ends a group. With an error, nothing of it happens.
pub(crate) fn close(outcome: Outcome) -> Outcome {
    if let Err(code) = outcome {
        ERROR.set(code);
    }
    DEPTH.set(DEPTH.get() - 1);
    if is_open() {
        return outcome;
    }
    let deferred = DEFERRED.take();
    match ERROR.replace(0) {
        0 => run(deferred),
        code => Err(code),
    }
}

fn run(deferred: Vec<Deferred>) -> Outcome {
    let (mut starts, mut launches) = (Vec::new(), Vec::new());
    for one in deferred {
        match one {
            Deferred::Start(start) => starts.push(start),
            Deferred::Launch(launch) => launches.push(*launch),
        }
    }
    if !starts.is_empty() && !launches.is_empty() {
        return Err(fail(INVALID_USAGE, "init and collectives cannot be mixed in a group"));
    }
    if !starts.is_empty() {
        return run_all(starts);
    }
    launch(launches)
}

/// Puts calls into their streams.
pub(crate) fn launch(launches: Vec<Launch>) -> Outcome {
    let Some(machine) = launches.first().map(|one| one.machine) else { return Ok(()) };
    let ready = launches.into_iter().map(|one| {
        let (communicator, stream, call) = (one.comm.ready()?, one.stream, one.call);
        Ok(group::Launch { communicator, stream, call })
    });
    group::launch(machine, ready.collect::<Result<_, Status>>()?);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> Status {
    open();
    0
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> Status {
    if !is_open() {
        return fail(INVALID_USAGE, "ncclGroupEnd: not in a group call.");
    }
    if DEFERRED.with_borrow(Vec::is_empty) {
        return close(Ok(())).err().unwrap_or(0);
    }
    call("ncclGroupEnd", |_, _| close(Ok(())))
}
