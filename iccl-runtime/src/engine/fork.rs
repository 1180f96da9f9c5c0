//! Notices that this process is a fork of the one that made an object: the threads that serve it are
//! not here, and its connections belong to the parent.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, ErrorKind, Result};

/// How many forks lie between this process and the one that loaded iccl.
static GENERATION: AtomicU64 = AtomicU64::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
}

/// Remembers in which process it was made.
#[derive(Clone, Copy, Debug)]
pub struct ForkGuard {
    generation: u64,
}

impl Default for ForkGuard {
    fn default() -> Self {
        Self::new()
    }
}

impl ForkGuard {
    /// Belongs to this process.
    pub fn new() -> Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: the handler only adds to an atomic, which is allowed after a fork. It lives in
            // this image, which iccl never unloads (libiccl.so is linked with `-z nodelete`).
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Self { generation: GENERATION.load(Ordering::Relaxed) }
    }

    /// Refuses in a child process.
    ///
    /// # Errors
    /// `Forked`.
    pub fn check(&self) -> Result<()> {
        if GENERATION.load(Ordering::Relaxed) == self.generation {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Forked,
            "this process is a fork of the one that made the communicator",
        )
        .with_hint("create communicators after the fork, or exec another program in the child"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b060_a_forked_child_is_refused() {
        let guard = ForkGuard::new();
        assert!(guard.check().is_ok());
        // SAFETY: the child only loads an atomic and exits without running destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(guard.check().is_ok());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: `child` is this process's own child, `status` a valid place.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(waited, child);
        assert_eq!(status, 0, "the child saw no fork");
        assert!(guard.check().is_ok());
    }
}
