//! What belongs to a process stays with it: after a `fork` the child may look, not touch.
//!
//! Connections are worse than useless in a forked child (a data loader, say): as long as it holds its
//! copies, the kernel does not tell the peers that the parent was killed. So the child closes them
//! first thing; it closes only, since shutting a socket down would end the parent's as well.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::{Error, ErrorKind, Result};

/// The process that made something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner(rustix::process::Pid);

impl Owner {
    pub(super) fn current() -> Self {
        Self(rustix::process::getpid())
    }

    pub(super) fn is_current(self) -> bool {
        self.0 == rustix::process::getpid()
    }

    pub(super) fn check(self, what: &str) -> Result<()> {
        if self.is_current() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Forked, format!("{what}: it belongs to the process that forked"))
            .with("owner", self.0.as_raw_nonzero())
            .with_hint("initialise after the fork, in the child"))
    }
}

/// Connections that a forked child closes. Beyond this many the rest is kept, as before a fork
/// handler was thought of.
const SLOTS: usize = 4096;
const FREE: i32 = -1;

/// A plain table of atomics: the handler runs in a child whose locks may be held by threads that no
/// longer exist.
static OPEN: [AtomicI32; SLOTS] = [const { AtomicI32::new(FREE) }; SLOTS];

/// Marks a socket as one that a forked child closes, until this is dropped. It must be dropped before
/// the socket is closed, and the socket either be used by one thread only, which does not fork, or be
/// left alone in the child by whoever has it there: then nobody misses it.
#[derive(Debug)]
pub(super) struct CloseInChild(Option<usize>);

impl CloseInChild {
    pub(super) fn new(socket: &OwnedFd) -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            // SAFETY: the handler is a plain function of the right type that touches atomics and
            // calls `close`, both of which are allowed in a child of a process with threads.
            let status = unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
            if status != 0 {
                tracing::debug!(status, "bootstrap: no fork handler");
            }
        });
        let fd = socket.as_raw_fd();
        let free = |slot: &AtomicI32| {
            slot.compare_exchange(FREE, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        Self(OPEN.iter().position(free))
    }
}

impl Drop for CloseInChild {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            OPEN[slot].store(FREE, Ordering::Release);
        }
    }
}

extern "C" fn close_in_child() {
    for slot in &OPEN {
        let fd = slot.swap(FREE, Ordering::AcqRel);
        if fd != FREE {
            // SAFETY: the descriptor was open and registered in the parent at the moment of the
            // fork, so it is this process's copy; the thread that owns it does not exist here, or its
            // owner forgets it in a child, so nobody uses or closes it again.
            unsafe { libc::close(fd) };
        }
    }
}
