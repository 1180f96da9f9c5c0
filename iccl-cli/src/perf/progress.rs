//! One line on a terminal that says how far a long run is.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// A run shorter than this shows nothing.
const QUIET: Duration = Duration::from_secs(1);

/// The line; silent where standard error is no terminal.
pub(super) struct Progress {
    started: Instant,
    is_wanted: bool,
    is_shown: bool,
    total: usize,
}

impl Progress {
    pub(super) fn new(is_wanted: bool, total: usize) -> Self {
        let is_wanted = is_wanted && std::io::stderr().is_terminal();
        Self { started: Instant::now(), is_wanted, is_shown: false, total }
    }

    /// Says what is being done now, the `done` rows before it finished.
    pub(super) fn show(&mut self, done: usize, what: &str) {
        if !self.is_wanted || self.started.elapsed() < QUIET {
            return;
        }
        let seconds = self.started.elapsed().as_secs();
        eprint!("\r\x1b[K{done}/{} rows, {seconds} s: {what}", self.total);
        let _ = std::io::stderr().flush();
        self.is_shown = true;
    }

    /// Makes room for other lines.
    pub(super) fn clear(&mut self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
            let _ = std::io::stderr().flush();
            self.is_shown = false;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
