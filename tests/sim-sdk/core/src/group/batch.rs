//! Calls that are made together, at the end of a maker's group.

use std::sync::Arc;

use super::collectives::{Call, Operation};
use super::communicator::Communicator;
use crate::machine::Machine;
use crate::reduce::Element;
use crate::stream::Stream;

/// A call that is to be put into a stream.
pub struct Launch {
    pub communicator: Arc<Communicator>,
    pub stream: Arc<Stream>,
    pub call: Call,
}

/// Puts calls into their streams: for each communicator its collectives in order, then all messages at
/// once, in the first stream that was named for it; the others wait for that.
pub fn launch(machine: &'static Machine, mut launches: Vec<Launch>) {
    while let Some(first) = launches.first() {
        let communicator = Arc::clone(&first.communicator);
        let is_own = |one: &Launch| Arc::ptr_eq(&one.communicator, &communicator);
        let (own, others): (Vec<_>, Vec<_>) = launches.into_iter().partition(is_own);
        launches = others;
        let mut streams: Vec<Arc<Stream>> = Vec::new();
        let (mut sends, mut receives, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        let mut flaw = None;
        for one in own {
            if !streams.iter().any(|known| known.handle() == one.stream.handle()) {
                streams.push(one.stream);
            }
            if let Operation::Messages { sends: some, receives: more } = one.call.operation {
                sends.extend(some);
                receives.extend(more);
                flaw = flaw.or(one.call.flaw);
            } else {
                calls.push(one.call);
            }
        }
        if !sends.is_empty() || !receives.is_empty() {
            let operation = Operation::Messages { sends, receives };
            calls.push(Call { operation, element: Element::U8, factor_at: None, flaw });
        }
        communicator.launch(machine, &streams[0], &streams[1..], calls, || ());
    }
}
