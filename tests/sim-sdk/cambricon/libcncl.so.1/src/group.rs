//! `cnclGroupStart` and `cnclGroupEnd`: what is called in between happens at the end.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use iccl_sim_core::group::{self, Call, Launch, Operation};
use iccl_sim_core::{Machine, Stream};

use crate::cliques::Comm;
use crate::{ARGUMENTS, Outcome, Status, call};

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static DEFERRED: RefCell<Vec<Deferred>> = const { RefCell::new(Vec::new()) };
    static ERROR: Cell<Status> = const { Cell::new(0) };
}

/// A call that waits for the end of a group.
pub(crate) struct Deferred {
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
    if is_open() && code != 0 {
        ERROR.set(code);
    }
}

/// Puts calls into their queues. A collective of one communicator does not come back before the others of its
/// clique in this process have it too: a thread that calls for several has to do so in a group.
pub(crate) fn run(deferred: Vec<Deferred>) -> Outcome {
    let Some(machine) = deferred.first().map(|one| one.machine) else { return Ok(()) };
    let mut waits: Vec<(Arc<Comm>, u64)> = Vec::new();
    let mut launches = Vec::new();
    for one in deferred {
        if !matches!(one.call.operation, Operation::Messages { .. }) {
            let number = one.comm.count_collective();
            waits.push((Arc::clone(&one.comm), number));
        }
        let communicator = Arc::clone(&one.comm.inner);
        launches.push(Launch { communicator, stream: one.stream, call: one.call });
    }
    group::launch(machine, launches);
    waits.iter().try_for_each(|(comm, number)| comm.wait_for_local_ranks(*number))
}

#[unsafe(no_mangle)]
extern "C" fn cnclGroupStart() -> Status {
    call("cnclGroupStart", |_, _| {
        DEPTH.set(DEPTH.get() + 1);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnclGroupEnd() -> Status {
    call("cnclGroupEnd", |_, _| {
        DEPTH.set(DEPTH.get().checked_sub(1).ok_or(ARGUMENTS)?);
        if is_open() {
            return Ok(());
        }
        let deferred = DEFERRED.take();
        match ERROR.replace(0) {
            0 => run(deferred),
            // With an error, nothing of it happens.
            code => Err(code),
        }
    })
}
