//! Several ranks of one communicator in one process, served by one thread.

use super::communicator::Communicator;
use super::runtime::{Pending, Runtime};
use crate::bootstrap::UniqueId;
use crate::{Error, ErrorKind, Result};

impl Runtime {
    /// Joins a communicator of `ranks` as each of the ranks `local`, all on the device of this runtime; the
    /// communicators come in that order. Blocks until all ranks have come and agreed. One thread cannot
    /// call [`Runtime::communicator`] for several ranks in turn, since each waits for the others.
    ///
    /// One thread can serve them all: calls return at once, so it makes them for every rank, alone or in a
    /// [`Group`](super::Group), before it waits for one. What all of them do on one stream must be in a
    /// group. End them with [`Communicator::finalize_all`].
    ///
    /// To do something else meanwhile, call [`Runtime::begin_communicator`] for each.
    ///
    /// # Errors
    /// As [`Runtime::communicator`]; then none of the ranks has one. `InvalidArgument` if a rank is named
    /// twice.
    pub fn communicators(
        &self,
        id: &UniqueId,
        local: &[u32],
        ranks: u32,
    ) -> Result<Vec<Communicator>> {
        if let Some((_, twice)) =
            local.iter().enumerate().find(|(at, rank)| local[..*at].contains(rank))
        {
            let message = format!("rank {twice} is named twice among the ranks of this process");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let begun: Vec<Pending> = local
            .iter()
            .map(|rank| self.begin_communicator(id, *rank, ranks))
            .collect::<Result<_>>()?;
        let (mut made, mut failure) = (Vec::with_capacity(local.len()), None);
        for pending in begun {
            match pending.finish() {
                Ok(communicator) => made.push(communicator),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        let Some(failure) = failure else { return Ok(made) };
        // What the others came to is not what is to be told.
        let _ = Communicator::finalize_all(made);
        Err(failure)
    }
}

impl Communicator {
    /// As [`Communicator::finalize`] for each, at once: a rank that leaves waits a while for others to
    /// leave, which those of one thread could do only one after the other.
    ///
    /// # Errors
    /// The first, in the order of `communicators`.
    pub fn finalize_all(communicators: impl IntoIterator<Item = Self>) -> Result<()> {
        let communicators: Vec<Self> = communicators.into_iter().collect();
        let threads: Vec<_> = communicators
            .into_iter()
            .map(|communicator| {
                let name = format!("iccl-end-{}", communicator.rank());
                let thread = std::thread::Builder::new().name(name);
                // Without a thread the communicator is dropped, which ends it as well.
                thread.spawn(move || communicator.finalize())
            })
            .collect();
        let mut outcome = Ok(());
        for thread in threads.into_iter().flatten() {
            let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome = outcome.and(ended);
        }
        outcome
    }
}
