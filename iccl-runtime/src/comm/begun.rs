//! Communicators out of communicators, without blocking: they are made on threads of their own.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use super::background::Background;
use super::communicator::Communicator;
use super::split::Exchange;
use crate::engine::envelope::Purpose;
use crate::{Error, ErrorKind, Result};

/// A communicator that is being made out of another. Dropping it does not give it up; that communicator's
/// [`abort`](Communicator::abort) does.
#[derive(Debug)]
pub struct PendingChild {
    making: Background<Option<Communicator>>,
}

impl PendingChild {
    /// Whether [`PendingChild::finish`] would return at once.
    pub fn is_over(&self) -> bool {
        self.making.is_over()
    }

    /// Waits until the communicator is made or has failed. `None` for a split without a color.
    ///
    /// # Errors
    /// As [`Communicator::split`], [`Communicator::duplicate`] or [`Communicator::shrink`]; if it was
    /// begun in a group that enqueued nothing, why.
    pub fn finish(self) -> Result<Option<Communicator>> {
        self.making.finish()
    }
}

impl Communicator {
    /// As [`Communicator::split`], without blocking: its place among the calls on this communicator is that
    /// of this call, in a group that of the group. Where several communicators are begun, they are made
    /// one after the other, in the order of the calls.
    ///
    /// # Errors
    /// The error that ended this communicator; `OutOfResources` if no thread can be started.
    pub fn begin_split(self: &Arc<Self>, color: Option<u32>, key: i32) -> Result<PendingChild> {
        self.begin(Purpose::Split, color, key)
    }

    /// As [`Communicator::duplicate`], without blocking. See [`Communicator::begin_split`].
    ///
    /// # Errors
    /// As [`Communicator::begin_split`].
    pub fn begin_duplicate(self: &Arc<Self>) -> Result<PendingChild> {
        self.begin(Purpose::Duplicate, None, 0)
    }

    /// As [`Communicator::shrink`], without blocking. It begins at once, also in a group.
    ///
    /// # Errors
    /// `InvalidArgument` as [`Communicator::shrink`]; `OutOfResources` if no thread can be started.
    pub fn begin_shrink(self: &Arc<Self>, exclude: &[u32]) -> Result<PendingChild> {
        self.check_shrink(exclude)?;
        let place = self.queue();
        let (parent, exclude) = (Arc::clone(self), exclude.to_vec());
        on_a_thread(self.rank(), move || parent.shrink_at(&place, &exclude).map(Some))
    }

    fn begin(
        self: &Arc<Self>,
        purpose: Purpose,
        color: Option<u32>,
        key: i32,
    ) -> Result<PendingChild> {
        // What was asked cannot be taken back, so the thread comes first.
        let (give, asked) = channel();
        let parent = Arc::clone(self);
        let pending = on_a_thread(self.rank(), move || parent.make_what_was_asked(&asked))?;
        let exchange = self.ask(purpose, color, key)?;
        // The thread waits for it.
        let _ = give.send(exchange);
        Ok(pending)
    }

    fn make_what_was_asked(&self, asked: &Receiver<Exchange>) -> Result<Option<Self>> {
        let Ok(exchange) = asked.recv() else {
            return Err(Error::new(ErrorKind::Aborted, "the call was refused"));
        };
        exchange.wait_enqueued();
        self.make_out_of(exchange)
    }
}

fn on_a_thread(
    rank: u32,
    body: impl FnOnce() -> Result<Option<Communicator>> + Send + 'static,
) -> Result<PendingChild> {
    Ok(PendingChild { making: Background::start(&format!("iccl-split-{rank}"), body)? })
}
