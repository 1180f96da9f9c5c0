//! The order in which operations of several communicators use the native library of one device.
//!
//! A call into such a library may hold its device until the calls of all ranks have come. So two
//! communicators on the same devices must be served in the same order on each of them, or they wait for
//! each other for ever. The order is agreed for each operation, as in Skeen's algorithm for messages to
//! overlapping groups (Birman and Joseph 1987, "Reliable communication in the presence of failures"):
//!
//! 1. The gate shows that all ranks have begun the operation. From here on it needs no application.
//! 2. Each rank with native calls takes a [`Ticket`], whose number is larger than all that its device has
//!    seen. The ranks agree on the largest, in a second exchange.
//! 3. A device serves its tickets in the order of the agreed numbers (those alike by the communicator's id),
//!    one at a time, from the first native call until the last is done. One whose number is not agreed yet
//!    may still become any larger number, so whatever lies behind its first one waits for it.
//!
//! So the operation with the least number of all that are under way has its turn on all of its devices, and
//! nobody waits in a circle. Nothing depends on timing but which of two operations comes first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::lock::lock;
use crate::{Error, ErrorKind, Result};

/// What the communicators of this process share of a device's native library.
pub struct NativeDevice {
    name: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// No ticket of a larger number was seen.
    clock: u64,
    waiting: Vec<Waiting>,
    /// Why the library is not to be used here again.
    given_up: Option<String>,
}

/// An operation in the order of tickets.
struct Waiting {
    number: u64,
    communicator: u64,
    is_agreed: bool,
    /// For messages.
    what: String,
    bell: Arc<dyn Fn() + Send + Sync>,
}

impl Waiting {
    fn place(&self) -> (u64, u64) {
        (self.number, self.communicator)
    }
}

impl State {
    fn first(&self) -> Option<&Waiting> {
        self.waiting.iter().min_by_key(|one| one.place())
    }

    /// What tells the operation whose turn it is.
    fn bell(&self) -> Option<Arc<dyn Fn() + Send + Sync>> {
        self.first().filter(|first| first.is_agreed).map(|first| Arc::clone(&first.bell))
    }

    fn of(&mut self, communicator: u64) -> Option<&mut Waiting> {
        self.waiting.iter_mut().find(|one| one.communicator == communicator)
    }
}

impl NativeDevice {
    /// A device that nobody else knows, with a name for messages.
    pub fn new(name: &str) -> Arc<Self> {
        Arc::new(Self { name: name.to_owned(), state: Mutex::default() })
    }

    /// A plugin's device: the same for all who ask in this process.
    pub fn of(plugin: &str, index: u32) -> Arc<Self> {
        static KNOWN: Mutex<BTreeMap<(String, u32), Arc<NativeDevice>>> =
            Mutex::new(BTreeMap::new());
        let mut known = lock(&KNOWN);
        let device = known
            .entry((plugin.to_owned(), index))
            .or_insert_with(|| Self::new(&format!("{plugin}:{index}")));
        Arc::clone(device)
    }

    /// The library did not come to rest: nobody uses it on this device again. The first reason counts.
    pub fn give_up(&self, why: &str) {
        let mut state = lock(&self.state);
        state.given_up.get_or_insert_with(|| why.to_owned());
        let bells: Vec<_> = state.waiting.iter().map(|one| Arc::clone(&one.bell)).collect();
        drop(state);
        bells.iter().for_each(|bell| bell());
    }

    /// Why the library is not used here any more, if so.
    pub fn why_given_up(&self) -> Option<String> {
        lock(&self.state).given_up.clone()
    }

    /// A ticket behind all that the device has seen. `bell` is rung when its turn may have come, on any
    /// thread. A communicator has one at a time.
    pub(super) fn ticket(
        self: &Arc<Self>,
        communicator: u64,
        what: String,
        bell: Arc<dyn Fn() + Send + Sync>,
    ) -> Ticket {
        let mut state = lock(&self.state);
        state.clock += 1;
        let number = state.clock;
        state.waiting.push(Waiting { number, communicator, is_agreed: false, what, bell });
        Ticket { device: Arc::clone(self), communicator, number }
    }
}

/// An operation's place in the order of a device. The next one's turn comes when it is dropped.
pub(super) struct Ticket {
    device: Arc<NativeDevice>,
    communicator: u64,
    number: u64,
}

impl Ticket {
    /// The number that its device offers.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// All ranks have agreed on a number.
    pub(super) fn agree(&self, number: u64) {
        let mut state = lock(&self.device.state);
        state.clock = state.clock.max(number);
        if let Some(own) = state.of(self.communicator) {
            own.number = number;
            own.is_agreed = true;
        }
        let bell = state.bell();
        drop(state);
        bell.iter().for_each(|bell| bell());
    }

    /// Whether its turn has come.
    ///
    /// # Errors
    /// `DeviceError` if the library is not used on the device any more.
    pub(super) fn is_first(&self) -> Result<bool> {
        let state = lock(&self.device.state);
        if let Some(why) = &state.given_up {
            let text = format!("the native library of {} is given up: {why}", self.device.name);
            return Err(Error::new(ErrorKind::DeviceError, text).with("device", &self.device.name));
        }
        Ok(state.first().is_some_and(|one| one.communicator == self.communicator && one.is_agreed))
    }

    /// Whom it waits for.
    pub(super) fn waits_for(&self) -> String {
        let state = lock(&self.device.state);
        let device = &self.device.name;
        match state.first() {
            Some(first) if first.communicator != self.communicator => {
                format!("waits for its turn on {device}, behind {}", first.what)
            }
            _ => format!("waits for its turn on {device}"),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = lock(&self.device.state);
        state.waiting.retain(|one| one.communicator != self.communicator);
        let bell = state.bell();
        drop(state);
        bell.iter().for_each(|bell| bell());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn ticket(device: &Arc<NativeDevice>, communicator: u64) -> (Ticket, Arc<AtomicU32>) {
        let rings = Arc::new(AtomicU32::new(0));
        let bell = Arc::clone(&rings);
        let bell = Arc::new(move || {
            bell.fetch_add(1, Ordering::SeqCst);
        });
        (device.ticket(communicator, format!("operation {communicator}"), bell), rings)
    }

    /// Two devices, two communicators on both, begun in different order: whatever order the numbers are
    /// agreed in, both devices serve the same one first.
    #[test]
    fn devices_serve_in_the_same_order() {
        for agreed_first in [1_u64, 2] {
            let devices = [NativeDevice::new("card:0"), NativeDevice::new("card:1")];
            let (mut ones, mut twos) = (Vec::new(), Vec::new());
            ones.push(ticket(&devices[0], 1).0);
            twos.push(ticket(&devices[0], 2).0);
            twos.push(ticket(&devices[1], 2).0);
            ones.push(ticket(&devices[1], 1).0);
            let agree = |tickets: &[Ticket]| {
                let number = tickets.iter().map(Ticket::number).max().unwrap();
                tickets.iter().for_each(|ticket| ticket.agree(number));
            };
            let (first, second) = if agreed_first == 1 { (&ones, &twos) } else { (&twos, &ones) };
            agree(first);
            // What is agreed waits where something before it might still come before it.
            let is_first = |ticket: &Ticket| ticket.is_first().unwrap();
            assert!(first.iter().filter(|one| is_first(one)).count() < 2);
            agree(second);
            let served: Vec<bool> = ones.iter().map(is_first).collect();
            assert!(served.iter().all(|one| *one == served[0]), "{served:?}");
            assert!(twos.iter().all(|two| is_first(two) != served[0]));
            let (served, waiting) = if served[0] { (ones, twos) } else { (twos, ones) };
            assert!(waiting[0].waits_for().contains("on card:0, behind operation"));
            drop(served);
            assert!(waiting.iter().all(is_first));
        }
    }

    #[test]
    fn a_later_ticket_is_behind_what_was_agreed() {
        let device = NativeDevice::new("card:0");
        let (far, _) = ticket(&device, 1);
        far.agree(1000);
        let (next, rings) = ticket(&device, 2);
        assert_eq!(next.number(), 1001);
        next.agree(1001);
        assert!(far.is_first().unwrap() && !next.is_first().unwrap());
        let before = rings.load(Ordering::SeqCst);
        drop(far);
        assert!(next.is_first().unwrap() && rings.load(Ordering::SeqCst) > before);
    }

    #[test]
    fn who_waits_for_a_library_that_is_given_up_hears_of_it() {
        let device = NativeDevice::new("card:0");
        let (first, _) = ticket(&device, 1);
        let (next, rings) = ticket(&device, 2);
        next.agree(2);
        device.give_up("it did not come to rest");
        device.give_up("another reason");
        assert!(rings.load(Ordering::SeqCst) > 0);
        let error = next.is_first().unwrap_err();
        let text = "the native library of card:0 is given up: it did not come to rest";
        assert_eq!(error.message(), text);
        drop(first);
        assert!(next.is_first().is_err());
    }

    #[test]
    fn a_device_is_the_same_for_all() {
        let name = "a plugin of this test";
        assert!(Arc::ptr_eq(&NativeDevice::of(name, 1), &NativeDevice::of(name, 1)));
        assert!(!Arc::ptr_eq(&NativeDevice::of(name, 1), &NativeDevice::of(name, 2)));
    }
}
