//! `bkcl_group_start` and `bkcl_group_end`: what is called in between happens at the end.
//!
//! There is one group in a process: nobody may count on groups of different threads, nor inside each other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use iccl_sim_core::group::{self, Call, Operation};
use iccl_sim_core::{Machine, Stream};

use super::communicators::Comm;
use super::{INVALID_ARGUMENT, Outcome, RUNTIME_ERROR, Status, call, fail};

static GROUP: Mutex<Option<Group>> = Mutex::new(None);

struct Group {
    owner: ThreadId,
    launches: Vec<Launch>,
    /// To whom something was sent, by communicator.
    peers: Vec<(u64, u32)>,
    error: Option<Status>,
}

/// A call that is put into a stream.
pub(crate) struct Launch {
    pub(crate) machine: &'static Machine,
    pub(crate) comm: Arc<Comm>,
    pub(crate) stream: Arc<Stream>,
    pub(crate) call: Call,
}

fn open_group() -> MutexGuard<'static, Option<Group>> {
    GROUP.lock().unwrap_or_else(PoisonError::into_inner)
}

const OTHER_THREAD: &str = "another thread is in a group";

/// Puts a call into its stream, or into the group.
pub(crate) fn launch_or_defer(launch: Launch) -> Outcome {
    let mut open = open_group();
    let Some(group) = open.as_mut() else {
        drop(open);
        run(vec![launch]);
        return Ok(());
    };
    if group.owner != std::thread::current().id() {
        return Err(fail(RUNTIME_ERROR, OTHER_THREAD));
    }
    if let Operation::Messages { sends, .. } = &launch.call.operation {
        for (peer, _) in sends {
            let pair = (launch.comm.handle, *peer);
            if group.peers.contains(&pair) {
                group.error = Some(RUNTIME_ERROR);
                let text = "BKCL dont support send to one peer multi times in one group";
                return Err(fail(RUNTIME_ERROR, text));
            }
            group.peers.push(pair);
        }
    }
    group.launches.push(launch);
    Ok(())
}

/// A call in the group was refused: its end is too.
pub(crate) fn note_error(code: Status) {
    if let Some(group) = open_group().as_mut()
        && code != 0
        && group.owner == std::thread::current().id()
    {
        group.error = Some(code);
    }
}

pub(crate) fn group_start() -> Status {
    let mut open = open_group();
    let owner = std::thread::current().id();
    match open.as_mut() {
        Some(group) if group.owner != owner => return fail(RUNTIME_ERROR, OTHER_THREAD),
        Some(_) => return fail(RUNTIME_ERROR, "a group inside a group"),
        None => {
            let (launches, peers) = (Vec::new(), Vec::new());
            *open = Some(Group { owner, launches, peers, error: None });
        }
    }
    0
}

pub(crate) fn group_end() -> Status {
    let mut open = open_group();
    let owner = std::thread::current().id();
    if open.as_ref().is_none_or(|group| group.owner != owner) {
        return fail(INVALID_ARGUMENT, "not in a group");
    }
    let ended = open.take();
    drop(open);
    call("bkcl_group_end", |_, _| match ended {
        Some(Group { error: Some(code), .. }) => Err(code),
        Some(group) => {
            run(group.launches);
            Ok(())
        }
        None => Ok(()),
    })
}

/// Puts calls into their streams.
fn run(launches: Vec<Launch>) {
    let Some(machine) = launches.first().map(|one| one.machine) else { return };
    let launches = launches.into_iter().map(|Launch { comm, stream, call, .. }| group::Launch {
        communicator: Arc::clone(&comm.inner),
        stream,
        call,
    });
    group::launch(machine, launches.collect());
}
