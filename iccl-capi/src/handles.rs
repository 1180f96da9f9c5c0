//! Handles: numbers that look like pointers to C and are only ever looked up.
//!
//! A handle is, from its highest bits: 8 of its kind, 24 of the place's generation, 28 of the place,
//! and 4 fixed ones. No address of a program has anything in its highest bits, so no pointer is taken
//! for a handle; and a place that is used again has another generation, so a handle that was destroyed
//! stays invalid. A place whose generations are used up is not used again.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::failure::{Failure, Refused};
use crate::numbers::Outcome;

const FIXED_BITS: u64 = 0b1100;
const PLACE_BITS: u32 = 28;
const GENERATION_BITS: u32 = 24;
const LAST_GENERATION: u64 = (1 << GENERATION_BITS) - 1;

const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "handles need 64 bits");

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Communicator = 0xC1,
    Stream = 0xC2,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Communicator, Self::Stream];

    fn name(self) -> &'static str {
        match self {
            Self::Communicator => "communicator",
            Self::Stream => "stream",
        }
    }
}

/// All handles of a kind.
pub(crate) struct Table<T> {
    kind: Kind,
    places: Mutex<Places<T>>,
}

struct Places<T> {
    all: Vec<Place<T>>,
    free: Vec<usize>,
}

struct Place<T> {
    generation: u64,
    value: Option<Arc<T>>,
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: Kind) -> Self {
        Self { kind, places: Mutex::new(Places { all: Vec::new(), free: Vec::new() }) }
    }

    /// A handle for `value`.
    pub(crate) fn insert(&self, value: Arc<T>) -> Refused<*mut c_void> {
        let mut places = self.lock();
        let at = match places.free.pop() {
            Some(at) => at,
            None if places.all.len() < 1 << PLACE_BITS => {
                places.all.push(Place { generation: 0, value: None });
                places.all.len() - 1
            }
            None => {
                let text = format!("there are too many {}s", self.kind.name());
                return Err(Failure::new(Outcome::OutOfResources, text));
            }
        };
        let place = &mut places.all[at];
        place.generation += 1;
        place.value = Some(value);
        let handle = FIXED_BITS
            | (at as u64) << 4
            | place.generation << (4 + PLACE_BITS)
            | u64::from(self.kind as u8) << (4 + PLACE_BITS + GENERATION_BITS);
        Ok(std::ptr::without_provenance_mut(handle as usize))
    }

    /// What `handle` stands for.
    pub(crate) fn get(&self, handle: *mut c_void) -> Refused<Arc<T>> {
        let (at, generation) = self.parse(handle)?;
        let places = self.lock();
        let place = places.all.get(at).filter(|place| place.generation == generation);
        place.and_then(|place| place.value.clone()).ok_or_else(|| self.gone(handle))
    }

    /// Ends a handle, and gives what it stood for.
    pub(crate) fn remove(&self, handle: *mut c_void) -> Refused<Arc<T>> {
        let (at, generation) = self.parse(handle)?;
        let mut places = self.lock();
        let place = places.all.get_mut(at).filter(|place| place.generation == generation);
        let value = place.and_then(|place| place.value.take()).ok_or_else(|| self.gone(handle))?;
        if generation < LAST_GENERATION {
            places.free.push(at);
        }
        Ok(value)
    }

    fn parse(&self, handle: *mut c_void) -> Refused<(usize, u64)> {
        let invalid = |text: String| Err(Failure::new(Outcome::InvalidHandle, text));
        let name = self.kind.name();
        let number = handle.addr() as u64;
        if number == 0 {
            return invalid(format!("the {name} is NULL"));
        }
        let kind = (number >> (4 + PLACE_BITS + GENERATION_BITS)) as u8;
        let kind = Kind::ALL.into_iter().find(|one| *one as u8 == kind);
        let is_one = number & 0xF == FIXED_BITS;
        match kind.filter(|_| is_one) {
            Some(kind) if kind == self.kind => {
                let at = (number >> 4) & ((1 << PLACE_BITS) - 1);
                Ok((at as usize, (number >> (4 + PLACE_BITS)) & LAST_GENERATION))
            }
            Some(other) => {
                invalid(format!("{handle:p} is the handle of a {}, not of a {name}", other.name()))
            }
            None => invalid(format!("{handle:p} is no handle of a {name}")),
        }
    }

    fn gone(&self, handle: *mut c_void) -> Failure {
        let name = self.kind.name();
        Failure::new(
            Outcome::InvalidHandle,
            format!("the {name} {handle:p} was destroyed or never existed"),
        )
    }

    fn lock(&self) -> MutexGuard<'_, Places<T>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b051_a_handle_that_was_removed_stays_invalid_though_its_place_is_used_again() {
        let table = Table::new(Kind::Stream);
        let first = table.insert(Arc::new(1)).expect("a place");
        assert_eq!(*table.remove(first).expect("there"), 1);
        let second = table.insert(Arc::new(2)).expect("a place");
        assert_eq!(table.lock().all.len(), 1);
        for gone in [table.get(first), table.remove(first)] {
            assert_eq!(gone.expect_err("gone").outcome, Outcome::InvalidHandle);
        }
        assert_eq!(*table.get(second).expect("there"), 2);
    }

    #[test]
    fn a_place_is_given_up_when_its_generations_are_used_up() {
        let table = Table::new(Kind::Stream);
        let first = table.insert(Arc::new(())).expect("a place");
        table.remove(first).expect("there");
        table.lock().all[0].generation = LAST_GENERATION - 1;
        let last = table.insert(Arc::new(())).expect("a place");
        table.remove(last).expect("there");
        let next = table.insert(Arc::new(())).expect("a place");
        assert_eq!(table.lock().all.len(), 2);
        assert!(table.get(next).is_ok() && table.get(last).is_err() && table.get(first).is_err());
    }

    #[test]
    fn b051_pointers_garbage_and_other_kinds_are_refused_by_what_they_are() {
        let streams = Table::new(Kind::Stream);
        let communicators = Table::<u8>::new(Kind::Communicator);
        let stream = streams.insert(Arc::new(0_u8)).expect("a place");
        let text = |handle| communicators.get(handle).expect_err("no communicator").text;
        assert_eq!(text(std::ptr::null_mut()), "the communicator is NULL");
        assert!(text(stream).contains("handle of a stream, not of a communicator"));
        let local = 5_u64;
        assert!(text((&raw const local).cast_mut().cast()).contains("no handle"));
        for shift in 0..64 {
            let near = stream.addr() ^ (1 << shift);
            assert!(streams.get(std::ptr::without_provenance_mut(near)).is_err(), "bit {shift}");
        }
    }
}
