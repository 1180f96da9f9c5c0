//! Communicators as their handles know them: being made, made, being finalized, or failed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use iccl_runtime::Error;
use iccl_runtime::comm::{Background, Communicator, Pending, PendingChild};

use crate::failure::{Failure, Refused};
use crate::handles::{Kind, Table};
use crate::numbers::Outcome;
use crate::reductions::Made;
use crate::types::CommHandle;

/// How often it is looked whether a communicator is made.
const GLANCE: Duration = Duration::from_millis(1);

static COMMUNICATORS: Table<Entry> = Table::new(Kind::Communicator);

/// What a communicator's handle stands for.
pub(crate) struct Entry {
    pub(crate) blocking: bool,
    pub(crate) name: Option<String>,
    state: Mutex<State>,
    /// The text of the last call on it that failed.
    last_error: Mutex<Option<String>>,
    /// Ranks of the same communicator that one thread made, which then ends them too.
    siblings: Mutex<Option<Arc<Siblings>>>,
    reductions: Mutex<Made>,
}

/// Ranks of one communicator that one thread made. A rank that leaves waits a moment for others to leave,
/// which they could do only after it, so they leave in the background; whoever comes last waits for
/// all.
pub(crate) struct Siblings(Mutex<Leaving>);

struct Leaving {
    still_there: usize,
    threads: Vec<Background<()>>,
}

impl Siblings {
    /// Makes ranks siblings.
    pub(crate) fn join(entries: &[Arc<Entry>]) {
        if entries.len() < 2 {
            return;
        }
        let leaving = Leaving { still_there: entries.len(), threads: Vec::new() };
        let siblings = Arc::new(Self(Mutex::new(leaving)));
        for entry in entries {
            *lock(&entry.siblings) = Some(Arc::clone(&siblings));
        }
    }

    /// One of them leaves; `thread` says goodbye. The last one waits for all.
    fn leave(&self, thread: Background<()>) {
        let threads = {
            let mut leaving = lock(&self.0);
            leaving.threads.push(thread);
            leaving.still_there -= 1;
            if leaving.still_there > 0 {
                return;
            }
            std::mem::take(&mut leaving.threads)
        };
        for thread in threads {
            // All its operations were over before, so there is nothing to tell.
            let _ = thread.finish();
        }
    }

    /// One of them is gone without a goodbye.
    fn forget_one(&self) {
        lock(&self.0).still_there -= 1;
    }
}

/// A communicator that is being made.
pub(crate) enum Making {
    Joining(Pending),
    /// Out of another one; a rank without a color gets none.
    Splitting(PendingChild),
}

impl From<Pending> for Making {
    fn from(pending: Pending) -> Self {
        Self::Joining(pending)
    }
}

impl From<PendingChild> for Making {
    fn from(pending: PendingChild) -> Self {
        Self::Splitting(pending)
    }
}

impl Making {
    fn is_over(&self) -> bool {
        match self {
            Self::Joining(pending) => pending.is_over(),
            Self::Splitting(pending) => pending.is_over(),
        }
    }

    fn finish(self) -> iccl_runtime::Result<Option<Communicator>> {
        match self {
            Self::Joining(pending) => pending.finish().map(Some),
            Self::Splitting(pending) => pending.finish(),
        }
    }
}

enum State {
    Making(Making),
    Ready(Arc<Communicator>),
    Finalizing(Arc<Communicator>, Background<()>),
    Finalized(Arc<Communicator>),
    /// It could not be made, or not be finalized.
    Failed(Error),
    /// This rank gets none.
    None,
    /// Its handle is gone.
    Gone,
}

/// The entry of a handle.
pub(crate) fn find(comm: CommHandle) -> Refused<Arc<Entry>> {
    COMMUNICATORS.get(comm)
}

/// The communicator of a handle, ready for a call.
pub(crate) fn ready(comm: CommHandle) -> Refused<Arc<Communicator>> {
    find(comm)?.ready()
}

/// Ends a handle.
pub(crate) fn take(comm: CommHandle) -> Refused<Arc<Entry>> {
    COMMUNICATORS.remove(comm)
}

impl Entry {
    /// A handle for a communicator that is being made.
    pub(crate) fn joining(
        blocking: bool,
        name: Option<String>,
        making: Making,
    ) -> Refused<(CommHandle, Arc<Self>)> {
        let entry = Arc::new(Self::new(blocking, name, State::Making(making)));
        Ok((COMMUNICATORS.insert(Arc::clone(&entry))?, entry))
    }

    /// A handle for a communicator.
    pub(crate) fn made(
        blocking: bool,
        name: Option<String>,
        communicator: Communicator,
    ) -> Refused<CommHandle> {
        let state = State::Ready(Arc::new(communicator));
        COMMUNICATORS.insert(Arc::new(Self::new(blocking, name, state)))
    }

    /// For what makes no communicator on this rank, but has to end.
    pub(crate) fn without_handle(blocking: bool, making: Making) -> Self {
        Self::new(blocking, None, State::Making(making))
    }

    fn new(blocking: bool, name: Option<String>, state: State) -> Self {
        Self {
            blocking,
            name,
            state: Mutex::new(state),
            last_error: Mutex::default(),
            siblings: Mutex::default(),
            reductions: Mutex::default(),
        }
    }

    /// The communicator, if calls on it are allowed now.
    pub(crate) fn ready(&self) -> Refused<Arc<Communicator>> {
        let mut state = lock(&self.state);
        state.step();
        match &*state {
            State::Ready(communicator) => Ok(Arc::clone(communicator)),
            State::Making(_) => Err(Failure::usage(
                "the communicator is still being made; call icclCommGetAsyncError until it says \
                 something else than icclInProgress",
            )),
            State::Finalizing(..) => Err(Failure::usage("the communicator is being finalized")),
            State::Finalized(_) => Err(Failure::usage("the communicator was finalized")),
            State::Failed(error) => Err(error.clone().into()),
            State::None | State::Gone => {
                Err(Failure::new(Outcome::InvalidHandle, "the communicator was destroyed"))
            }
        }
    }

    /// The communicator, to be asked for what does not change.
    pub(crate) fn made_communicator(&self) -> Refused<Arc<Communicator>> {
        if let State::Finalizing(communicator, _) | State::Finalized(communicator) =
            &*lock(&self.state)
        {
            return Ok(Arc::clone(communicator));
        }
        self.ready()
    }

    /// How it is with the communicator: the error that ended it, if one has. Does not block.
    pub(crate) fn condition(&self) -> (Outcome, Option<Error>) {
        let mut state = lock(&self.state);
        state.step();
        let error = match &*state {
            State::Making(_) | State::Finalizing(..) => return (Outcome::InProgress, None),
            State::Ready(communicator) => communicator.async_error(),
            State::Failed(error) => Some(error.clone()),
            State::Finalized(_) | State::None | State::Gone => None,
        };
        (error.as_ref().map_or(Outcome::Success, |error| Outcome::of(error.kind())), error)
    }

    /// Waits until it is made or has failed. An abort from another thread ends the wait.
    pub(crate) fn wait_made(&self) -> Refused<()> {
        loop {
            {
                let mut state = lock(&self.state);
                state.step();
                match &*state {
                    State::Making(_) => {}
                    State::Failed(error) => return Err(error.clone().into()),
                    State::Gone => return Err(Failure::new(Outcome::Aborted, "aborted meanwhile")),
                    State::Ready(_) | State::Finalizing(..) | State::Finalized(_) | State::None => {
                        return Ok(());
                    }
                }
            }
            std::thread::sleep(GLANCE);
        }
    }

    /// Finalizes it: waits for the end, or has it done, as the communicator is blocking or not.
    pub(crate) fn finalize(&self) -> Refused<Outcome> {
        let communicator = self.ready()?;
        if self.blocking {
            let left = self.leave(&communicator);
            let mut state = lock(&self.state);
            if matches!(*state, State::Ready(_)) {
                *state = State::finalized(communicator, &left);
            }
            left?;
            return Ok(Outcome::Success);
        }
        let thread = finalizing(&communicator)?;
        *lock(&self.state) = State::Finalizing(communicator, thread);
        Ok(Outcome::InProgress)
    }

    fn leave(&self, communicator: &Arc<Communicator>) -> iccl_runtime::Result<()> {
        let Some(siblings) = lock(&self.siblings).take() else {
            return communicator.finalize();
        };
        let outcome = communicator.drain();
        siblings.leave(finalizing(communicator)?);
        outcome
    }

    /// The end of a communicator whose handle is gone: says goodbye to the other ranks.
    pub(crate) fn destroy(&self) -> Refused<Outcome> {
        match std::mem::replace(&mut *lock(&self.state), State::Gone) {
            State::Ready(communicator) => self.leave(&communicator)?,
            State::Finalizing(_, thread) => thread.finish()?,
            // Dropping one that is being made gives it up.
            State::Finalized(_)
            | State::Making(_)
            | State::Failed(_)
            | State::None
            | State::Gone => {}
        }
        Ok(Outcome::Success)
    }

    /// The end of a communicator whose handle is gone: waits for nobody.
    pub(crate) fn abort(&self) {
        if let Some(siblings) = lock(&self.siblings).take() {
            siblings.forget_one();
        }
        match std::mem::replace(&mut *lock(&self.state), State::Gone) {
            State::Ready(communicator)
            | State::Finalizing(communicator, _)
            | State::Finalized(communicator) => communicator.abort(),
            State::Making(_) | State::Failed(_) | State::None | State::Gone => {}
        }
    }

    /// The reductions that it was given.
    pub(crate) fn reductions(&self) -> MutexGuard<'_, Made> {
        lock(&self.reductions)
    }

    pub(crate) fn keep_error(&self, text: &str) {
        *lock(&self.last_error) = Some(text.to_owned());
    }

    /// The text of its last failure: that of a call, or what ended it.
    pub(crate) fn last_error(&self) -> Option<String> {
        let of_a_call = lock(&self.last_error).clone();
        of_a_call.or_else(|| self.condition().1.map(|error| error.to_string()))
    }
}

impl State {
    fn finalized(communicator: Arc<Communicator>, outcome: &iccl_runtime::Result<()>) -> Self {
        match outcome {
            Ok(()) => Self::Finalized(communicator),
            Err(error) => Self::Failed(error.clone()),
        }
    }

    /// Goes on if what it waited for is over.
    fn step(&mut self) {
        let is_over = match self {
            Self::Making(making) => making.is_over(),
            Self::Finalizing(_, thread) => thread.is_over(),
            _ => false,
        };
        if !is_over {
            return;
        }
        *self = match std::mem::replace(self, Self::Gone) {
            Self::Making(making) => match making.finish() {
                Ok(Some(communicator)) => Self::Ready(Arc::new(communicator)),
                Ok(None) => Self::None,
                Err(error) => Self::Failed(error),
            },
            Self::Finalizing(communicator, thread) => {
                Self::finalized(communicator, &thread.finish())
            }
            other => other,
        };
    }
}

fn finalizing(communicator: &Arc<Communicator>) -> iccl_runtime::Result<Background<()>> {
    let finalized = Arc::clone(communicator);
    let name = format!("iccl-end-{}", communicator.rank());
    Background::start(&name, move || finalized.finalize())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
