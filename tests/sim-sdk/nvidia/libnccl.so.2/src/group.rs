//! `ncclGroupStart` and `ncclGroupEnd`: what is called in between happens at the end.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use iccl_sim_core::group::{Call, Operation};
use iccl_sim_core::reduce::Element;
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

/// Puts calls into their streams: for each communicator its collectives in order, then all messages at
/// once, in the first stream that was named for it; the others wait for that.
pub(crate) fn launch(mut launches: Vec<Launch>) -> Outcome {
    while let Some(first) = launches.first() {
        let (machine, comm) = (first.machine, Arc::clone(&first.comm));
        let (own, others): (Vec<_>, Vec<_>) =
            launches.into_iter().partition(|one| one.comm.handle == comm.handle);
        launches = others;
        let mut streams: Vec<Arc<Stream>> = Vec::new();
        let (mut sends, mut receives, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        let mut flaw = None;
        for one in own {
            if !streams.iter().any(|known| known.handle() == one.stream.handle()) {
                streams.push(one.stream);
            }
            if let Operation::Messages { sends: some, receives: more } = one.call.operation {
                sends.extend(some);
                receives.extend(more);
                flaw = flaw.or(one.call.flaw);
            } else {
                calls.push(one.call);
            }
        }
        if !sends.is_empty() || !receives.is_empty() {
            let operation = Operation::Messages { sends, receives };
            calls.push(Call { operation, element: Element::U8, factor_at: None, flaw });
        }
        comm.ready()?.launch(machine, &streams[0], &streams[1..], calls, || ());
    }
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
