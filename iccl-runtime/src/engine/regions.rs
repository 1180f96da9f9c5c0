//! Memory that is registered with the NICs of transports, so that they read and write it by themselves.
//!
//! Pinned memory is registered block by block when a block first carries a message, and stays so until the
//! communicator ends: its pool keeps a block as long as it is registered. Memory of the card is registered
//! as a whole allocation, by the number that the allocation has for life. Whoever frees it has it forgotten
//! before ([`super::Engine::forget`]), so what is registered is never memory that somebody else got
//! since.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use iccl_plugin_api::tables::{MemoryRegion, region_form};

use super::device::Card;
use super::domain::Domain;
use super::operation::Allocation;
use super::pool::CardBlock;
use crate::lock::lock;
use crate::{Error, ErrorKind, Result};

/// The open transports of an engine.
type Domains = [Box<dyn Domain>];

/// The allocations of which an engine has registered something, by their numbers. Any thread may ask.
#[derive(Debug, Default)]
pub(super) struct Registered(Mutex<HashSet<u64>>);

impl Registered {
    pub(super) fn contains(&self, allocation: u64) -> bool {
        lock(&self.0).contains(&allocation)
    }
}

/// Memory of a card that a NIC reads and writes.
#[derive(Debug)]
pub struct CardRegion {
    /// Where it lies on the card.
    begin: usize,
    exported: MemoryRegion,
    key: u64,
}

impl CardRegion {
    /// Registers memory of a card with a transport, in the form that the card offers. What of the
    /// allocation lies between its borders of the card's alignment is registered.
    ///
    /// # Safety
    /// The range is an allocation of the card, and stays so until [`CardRegion::end`].
    ///
    /// # Errors
    /// What the card or the transport says; the error's context names which by the call.
    pub unsafe fn new(
        card: &dyn Card,
        domain: &mut dyn Domain,
        allocation: &Range<usize>,
    ) -> Result<Self> {
        let refuse = |text: &str| Err(Error::new(ErrorKind::NotSupported, text));
        let Some(alignment) = card.region_alignment() else {
            return refuse("the card gives its memory to no NIC");
        };
        let alignment = alignment.max(1) as usize;
        let begin = allocation.start.next_multiple_of(alignment);
        let bytes = allocation.end.saturating_sub(begin) / alignment * alignment;
        if bytes == 0 {
            return refuse("the memory is shorter than what the card gives to a NIC");
        }
        let exported = card.export_region(begin as *mut u8, bytes as u64)?;
        // SAFETY: the card gave the region, of memory that the caller promises.
        match unsafe { domain.register(&exported) } {
            Ok(key) => Ok(Self { begin, exported, key }),
            Err(error) => {
                release(card, &exported);
                Err(error)
            }
        }
    }

    /// The bit of the form in which it was given.
    pub fn form(&self) -> u32 {
        self.exported.form
    }

    /// Takes it back from the transport and the card.
    pub fn end(self, card: &dyn Card, domain: &mut dyn Domain) {
        deregister(domain, self.key);
        release(card, &self.exported);
    }

    /// How a segment names some bytes of it, if it holds all of them.
    fn place(&self, range: &Range<usize>) -> Option<Place> {
        let end = self.begin + self.exported.length as usize;
        let offset = range.start.checked_sub(self.begin).filter(|_| range.end <= end)?;
        Some(Place { address: self.exported.address as usize + offset, key: self.key })
    }
}

/// What a segment says of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: usize,
    pub(super) key: u64,
}

/// Pinned memory that is registered; the pool does not free it meanwhile.
struct Pinned {
    key: u64,
    _in_use: Arc<()>,
}

/// What of the card's memory a message may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// A buffer of the application.
    Allocation(Allocation),
    /// A block of the engine's own.
    Block(Allocation),
}

/// Everything that one engine has registered.
pub(super) struct Regions {
    card: Arc<dyn Card>,
    registered: Arc<Registered>,
    /// By the transport's place, and the first byte. Without a key where it could not be registered.
    pinned: HashMap<(usize, usize), Option<Pinned>>,
    /// By the transport's place, and the allocation. `None` where it could not be registered.
    on_card: HashMap<(usize, Origin), Option<CardRegion>>,
    /// Blocks of the card that are registered.
    in_use: Vec<Arc<()>>,
    has_warned: bool,
}

impl Regions {
    pub(super) fn new(card: &Arc<dyn Card>, registered: &Arc<Registered>) -> Self {
        Self {
            card: Arc::clone(card),
            registered: Arc::clone(registered),
            pinned: HashMap::new(),
            on_card: HashMap::new(),
            in_use: Vec::new(),
            has_warned: false,
        }
    }

    /// The key of a block of pinned memory; 0 if the transport has none for it, and moves it in its own way.
    pub(super) fn key_of(&mut self, domains: &mut Domains, at: usize, block: &CardBlock) -> u64 {
        let domain = &mut domains[at];
        if !domain.registers() {
            return 0;
        }
        let start = block.pointer().addr();
        let known = self.pinned.entry((at, start)).or_insert_with(|| {
            let region = MemoryRegion {
                form: region_form::HOST_ALIAS,
                descriptor: -1,
                address: block.pointer().expose_provenance() as u64,
                offset: 0,
                length: block.bytes(),
                cookie: 0,
            };
            // SAFETY: the block is pinned memory of this length, and its pool keeps it as long as
            // the mark is held.
            match unsafe { domain.register(&region) } {
                Ok(key) => Some(Pinned { key, _in_use: block.mark() }),
                Err(error) => {
                    let transport = domain.name();
                    tracing::warn!(transport, %error, "pinned memory cannot be registered");
                    None
                }
            }
        });
        known.as_ref().map_or(0, |pinned| pinned.key)
    }

    /// How a segment names these bytes of the card's memory; `None` if the transport's NIC cannot
    /// reach them. `block` is held as long as it is registered.
    pub(super) fn place_of(
        &mut self,
        domains: &mut Domains,
        at: usize,
        origin: Origin,
        block: Option<&CardBlock>,
        range: &Range<usize>,
    ) -> Option<Place> {
        let domain = &mut domains[at];
        let known = match self.on_card.entry((at, origin)) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                let (Origin::Allocation(allocation) | Origin::Block(allocation)) = origin;
                let whole = allocation.range();
                // Before it is registered: whoever frees the memory asks this first.
                if let Origin::Allocation(allocation) = origin {
                    lock(&self.registered.0).insert(allocation.number);
                }
                self.in_use.extend(block.map(CardBlock::mark));
                // SAFETY: an operation that uses the allocation keeps it, and it is forgotten here
                // before it is freed; a block's pool keeps it as long as the mark is held.
                match unsafe { CardRegion::new(&*self.card, &mut **domain, &whole) } {
                    Ok(region) => new.insert(Some(region)),
                    Err(error) => {
                        let (transport, device) = (domain.name(), self.card.name());
                        let text = "memory of the card cannot be registered; it goes through pinned memory";
                        if std::mem::replace(&mut self.has_warned, true) {
                            tracing::debug!(transport, device, %error, "{text}");
                        } else {
                            tracing::warn!(transport, device, %error, "{text}");
                        }
                        new.insert(None)
                    }
                }
            }
        };
        known.as_ref()?.place(range)
    }

    /// Takes back everything of an allocation.
    pub(super) fn forget(&mut self, domains: &mut Domains, number: u64) {
        let is_of =
            |origin: &Origin| matches!(origin, Origin::Allocation(one) if one.number == number);
        let ended = self.on_card.extract_if(|(_, origin), _| is_of(origin));
        for ((at, _), region) in ended {
            if let (Some(region), Some(domain)) = (region, domains.get_mut(at)) {
                region.end(&*self.card, &mut **domain);
            }
        }
        lock(&self.registered.0).remove(&number);
    }

    /// Takes back everything.
    pub(super) fn end(&mut self, domains: &mut Domains) {
        for ((at, _), region) in self.on_card.drain() {
            if let (Some(region), Some(domain)) = (region, domains.get_mut(at)) {
                region.end(&*self.card, &mut **domain);
            }
        }
        for ((at, _), pinned) in self.pinned.drain() {
            if let (Some(pinned), Some(domain)) = (pinned, domains.get_mut(at)) {
                deregister(&mut **domain, pinned.key);
            }
        }
        self.in_use.clear();
        lock(&self.registered.0).clear();
    }
}

fn deregister(domain: &mut dyn Domain, key: u64) {
    if let Err(error) = domain.deregister(key) {
        tracing::warn!(transport = domain.name(), %error, "memory could not be deregistered");
    }
}

fn release(card: &dyn Card, region: &MemoryRegion) {
    if let Err(error) = card.release_region(region) {
        tracing::warn!(device = card.name(), %error, "a region could not be released");
    }
}
