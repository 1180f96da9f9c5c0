//! The order of a communicator's operations: what is needed of it after a call was checked. It outlives
//! the communicator where a group holds calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use iccl_plugin_api::Collective;

use crate::engine::Engine;
use crate::lock::lock;

/// Who numbers the operations of one communicator on this rank.
pub(super) struct Order {
    pub(super) rank: u32,
    pub(super) engine: Arc<Engine>,
    numbers: Mutex<Numbers>,
}

/// The numbers of the next operations. Who holds them enqueues before anyone else.
#[derive(Default)]
pub(super) struct Numbers {
    collectives: u64,
    sends: HashMap<u32, u64>,
    receives: HashMap<u32, u64>,
}

impl Order {
    pub(super) fn new(rank: u32, engine: Arc<Engine>) -> Self {
        Self { rank, engine, numbers: Mutex::default() }
    }

    /// The numbers, for the caller alone as long as it holds them.
    pub(super) fn numbers(&self) -> MutexGuard<'_, Numbers> {
        lock(&self.numbers)
    }
}

impl Numbers {
    /// The number of the next operation in the order that `collective` belongs to.
    pub(super) fn take(&mut self, collective: Collective, root: u32) -> u64 {
        let next = self.next(collective, root);
        *next += 1;
        *next - 1
    }

    /// Takes a number back: its operation did not take place.
    pub(super) fn give_back(&mut self, collective: Collective, root: u32) {
        *self.next(collective, root) -= 1;
    }

    /// The next number: of collectives, or of messages to or from `peer`.
    fn next(&mut self, collective: Collective, peer: u32) -> &mut u64 {
        match collective {
            Collective::Send => self.sends.entry(peer).or_default(),
            Collective::Recv => self.receives.entry(peer).or_default(),
            _ => &mut self.collectives,
        }
    }
}
