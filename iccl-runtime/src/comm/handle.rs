//! What an operation gives back at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::enqueue::Begun;
use super::group::Promise;
use crate::{Error, ErrorKind, Result};

/// An operation that was enqueued, or will be at the end of its [`Group`](super::Group). Dropping it does
/// not stop the operation.
#[must_use = "an operation's outcome is known only through its handle or its stream"]
#[derive(Clone)]
pub struct Handle {
    of: Of,
}

#[derive(Clone)]
enum Of {
    Operation(Begun),
    Promise(Arc<Promise>),
    /// It was done when it was called; its number.
    Done(u64),
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.of, self.operation()) {
            (Of::Done(sequence), _) => write!(f, "Handle(seq {sequence}, done)"),
            (_, Ok(Some((_, operation)))) => write!(f, "Handle({operation})"),
            (Of::Promise(promise), _) => write!(f, "Handle({} of a group)", promise.collective),
            (Of::Operation(_), _) => unreachable!("an operation is one"),
        }
    }
}

impl Handle {
    pub(super) const fn begun(begun: Begun) -> Self {
        Self { of: Of::Operation(begun) }
    }

    pub(super) const fn done(sequence: u64) -> Self {
        Self { of: Of::Done(sequence) }
    }

    pub(super) const fn promised(promise: Arc<Promise>) -> Self {
        Self { of: Of::Promise(promise) }
    }

    /// Waits until the operation is over. It has a deadline of its own (`engine.op_timeout`, from the
    /// moment at which its stream reaches it).
    ///
    /// # Errors
    /// How the operation ended. `InvalidUsage` if its group has not ended; if the group enqueued nothing,
    /// why.
    pub fn wait(&self) -> Result<()> {
        match self.operation()? {
            Some((engine, operation)) => engine.wait(operation, None),
            None => Ok(()),
        }
    }

    /// Waits until the operation is over, at most `timeout`.
    ///
    /// # Errors
    /// As [`Handle::wait`]; `Timeout` if it is not over (it goes on then, see [`Handle::is_over`]).
    pub fn wait_for(&self, timeout: Duration) -> Result<()> {
        match self.operation()? {
            Some((engine, operation)) => {
                engine.wait(operation, Instant::now().checked_add(timeout))
            }
            None => Ok(()),
        }
    }

    /// How the operation ended, `None` if it is not over. Does not block.
    ///
    /// On the thread whose open group the call belongs to, where it cannot end, this is `InvalidUsage`, as
    /// from [`Handle::wait`], so that a loop over it ends.
    pub fn outcome(&self) -> Option<Result<()>> {
        match self.operation() {
            Ok(Some((_, operation))) => operation.outcome(),
            Ok(None) => Some(Ok(())),
            Err(_) if self.is_promised_elsewhere() => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Whether the operation is over, successfully or not: whether [`Handle::outcome`] has something to
    /// tell. Does not block.
    pub fn is_over(&self) -> bool {
        self.outcome().is_some()
    }

    /// The number of the operation in its order, if its group has ended.
    pub(super) fn sequence(&self) -> Option<u64> {
        if let Of::Done(sequence) = self.of {
            return Some(sequence);
        }
        let operation = self.operation().ok().flatten();
        operation.map(|(_, operation)| operation.fingerprint().sequence)
    }

    /// Waits until the group that the call belongs to has ended, on another thread.
    pub(super) fn wait_enqueued(&self) {
        if let Of::Promise(promise) = &self.of {
            // How it ended, waiting tells.
            let _ = promise.wait_kept();
        }
    }

    /// Whether the call belongs to a group that is open on another thread.
    fn is_promised_elsewhere(&self) -> bool {
        let Of::Promise(promise) = &self.of else { return false };
        promise.kept().is_none() && !promise.is_of_this_thread()
    }

    /// The operation; nothing if it was done when it was called.
    fn operation(&self) -> Result<Option<&Begun>> {
        match &self.of {
            Of::Operation(begun) => Ok(Some(begun)),
            Of::Done(_) => Ok(None),
            Of::Promise(promise) => promise.kept().map_or_else(
                || {
                    Err(Error::new(
                        ErrorKind::InvalidUsage,
                        format!("{}: its group has not ended", promise.collective),
                    )
                    .with_hint("end the group first, then wait"))
                },
                |kept| kept.map(Some),
            ),
        }
    }
}
