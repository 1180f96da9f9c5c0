//! What an operation gives back at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Result;
use crate::engine::{Engine, Operation};

/// An operation that was enqueued. Dropping it does not stop the operation.
#[must_use = "an operation's outcome is known only through its handle or its stream"]
#[derive(Clone)]
pub struct Handle {
    pub(super) engine: Arc<Engine>,
    pub(super) operation: Arc<Operation>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({})", self.operation)
    }
}

impl Handle {
    /// Waits until the operation is over. It has a deadline of its own (`engine.op_timeout`, from the
    /// moment at which its stream reaches it).
    ///
    /// # Errors
    /// How the operation ended.
    pub fn wait(&self) -> Result<()> {
        self.engine.wait(&self.operation, None)
    }

    /// Waits until the operation is over, at most `timeout`.
    ///
    /// # Errors
    /// How the operation ended; `Timeout` if it is not over (it goes on then, see
    /// [`Handle::is_over`]).
    pub fn wait_for(&self, timeout: Duration) -> Result<()> {
        self.engine.wait(&self.operation, Instant::now().checked_add(timeout))
    }

    /// Whether the operation is over, successfully or not. Does not block.
    pub fn is_over(&self) -> bool {
        self.operation.is_over()
    }
}
