//! What belongs to a process stays with it: after a fork the child may look, not touch.

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
