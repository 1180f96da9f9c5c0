//! In which order communicators are made out of one: one after the other, on all ranks alike.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use crate::lock::lock;

/// The order in which communicators are made out of one.
#[derive(Default)]
pub(super) struct Turns {
    line: Mutex<Line>,
    one_is_gone: Condvar,
}

#[derive(Default)]
struct Line {
    next: u64,
    /// Who stands in line, the first one's turn it is.
    waiting: BTreeSet<u64>,
}

/// A place in the line. Dropping it lets the next one come.
pub(super) struct Turn {
    turns: Arc<Turns>,
    number: OnceLock<u64>,
}

impl Turn {
    pub(super) fn new(turns: &Arc<Turns>) -> Arc<Self> {
        Arc::new(Self { turns: Arc::clone(turns), number: OnceLock::new() })
    }

    /// Joins the end of the line.
    pub(super) fn queue(&self) {
        self.number.get_or_init(|| {
            let mut line = lock(&self.turns.line);
            let number = line.next;
            line.next += 1;
            line.waiting.insert(number);
            number
        });
    }

    /// Waits until all who joined the line before are gone.
    pub(super) fn wait(&self) {
        let Some(number) = self.number.get() else { return };
        let line = lock(&self.turns.line);
        let others_first = |line: &mut Line| line.waiting.first().is_some_and(|at| at < number);
        drop(
            self.turns
                .one_is_gone
                .wait_while(line, others_first)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(number) = self.number.get() {
            lock(&self.turns.line).waiting.remove(number);
            self.turns.one_is_gone.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn who_queued_first_comes_first_and_who_has_gone_is_not_waited_for() {
        let turns = Arc::<Turns>::default();
        let [first, second, third] = std::array::from_fn(|_| Turn::new(&turns));
        // The order is that of `queue`, not that of `new`.
        for turn in [&third, &first, &second] {
            turn.queue();
        }
        third.wait();
        drop(first);
        let (come, has_come) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                second.wait();
                come.send(()).expect("it is received");
            });
            assert!(has_come.try_recv().is_err());
            drop(third);
            has_come.recv().expect("its turn came");
        });
    }
}
