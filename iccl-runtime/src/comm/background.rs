//! Work on threads of its own, which belong to the process that started them.

use std::thread::JoinHandle;

use crate::engine::ForkGuard;
use crate::{Error, ErrorKind, Result};

/// Work that a thread of its own does. Dropping it does not stop the work.
///
/// In a child of `fork` there is no such thread, and the system's number for it may be that of another: there,
/// nothing is asked of it.
#[derive(Debug)]
pub struct Background<T> {
    thread: Option<JoinHandle<Result<T>>>,
    fork: ForkGuard,
}

impl<T: Send + 'static> Background<T> {
    /// Starts `body` on a thread of that name.
    ///
    /// # Errors
    /// `OutOfResources` if no thread can be started.
    pub fn start(name: &str, body: impl FnOnce() -> Result<T> + Send + 'static) -> Result<Self> {
        let refused = |error| {
            Error::new(ErrorKind::OutOfResources, format!("no thread {name}")).with_source(error)
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
        Ok(Self { thread: Some(thread.map_err(refused)?), fork: ForkGuard::new() })
    }

    /// Whether [`Background::finish`] would return at once.
    pub fn is_over(&self) -> bool {
        self.fork.check().is_err() || self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// What the work says; `Forked` in a child of the process that started it; `Internal` if it panicked.
    pub fn finish(mut self) -> Result<T> {
        self.fork.check()?;
        let panicked = || Error::new(ErrorKind::Internal, "a thread panicked");
        let thread = self.thread.take().ok_or_else(panicked)?;
        thread.join().unwrap_or_else(|_| Err(panicked()))
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        if self.fork.check().is_err() {
            std::mem::forget(self.thread.take());
        }
    }
}
