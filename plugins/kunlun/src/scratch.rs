//! Arrays of counts in a card's memory, kept and used again when the stream is past them.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{PluginResult, Progress};
use iccl_vendor_support::Direction;
use iccl_vendor_support::plan::Block;

use crate::face::{Chip, Copy, Handle};

/// Counts and displacements of what is sent, then of what is received.
const ARRAYS: usize = 4;

/// Memory for the arrays of one call.
#[derive(Debug)]
pub(crate) struct Scratch {
    memory: Handle,
    /// Recorded behind the call that uses it.
    event: Handle,
    ranks: usize,
}

impl Scratch {
    /// One of the arrays, in the order above.
    pub(crate) fn array(&self, index: usize) -> *const usize {
        self.memory.0.cast::<usize>().wrapping_add(index * self.ranks).cast_const()
    }
}

/// The scratch of a communicator.
#[derive(Debug)]
pub(crate) struct Pool {
    kept: Mutex<Vec<Scratch>>,
    /// For the copies, which are over before the call is made.
    own_stream: Handle,
}

impl Pool {
    /// The card is chosen.
    pub(crate) fn new(chip: &Chip) -> PluginResult<Self> {
        Ok(Self { kept: Mutex::default(), own_stream: Handle(chip.face.stream_create()?) })
    }

    /// Puts counts and displacements onto the card. It is chosen.
    pub(crate) fn take(
        &self,
        chip: &Chip,
        sent: &[Block],
        received: &[Block],
    ) -> PluginResult<Scratch> {
        let ranks = sent.len();
        let columns: [fn(&Block) -> usize; 2] = [|block| block.count, |block| block.offset];
        let numbers: Vec<usize> = [sent, received]
            .iter()
            .flat_map(|blocks| columns.map(|column| blocks.iter().map(column)))
            .flatten()
            .collect();
        let scratch = match self.free_one(chip)? {
            Some(scratch) => scratch,
            None => Scratch {
                memory: Handle(chip.face.allocate(ARRAYS * ranks * 8, MemoryKind::Device)?),
                event: Handle(chip.face.event_create()?),
                ranks,
            },
        };
        let copy = Copy {
            to: scratch.memory.0,
            from: numbers.as_ptr().cast::<c_void>(),
            bytes: ARRAYS * ranks * 8,
            direction: Direction::HostToDevice,
        };
        // SAFETY: both sides have this length, and the copy is over when it returns.
        unsafe { chip.copy_now(self.own_stream, copy)? };
        Ok(scratch)
    }

    /// One that no call uses any more.
    fn free_one(&self, chip: &Chip) -> PluginResult<Option<Scratch>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        for index in 0..kept.len() {
            let event = kept[index].event.0;
            if chip.face.event_query(chip.ordinal, event)? == Progress::Done {
                return Ok(Some(kept.swap_remove(index)));
            }
        }
        Ok(None)
    }

    /// A call on this stream uses it until the stream is past what is on it now.
    pub(crate) fn give_back(
        &self,
        chip: &Chip,
        scratch: Scratch,
        stream: Handle,
    ) -> PluginResult<()> {
        let _current = chip.enter()?;
        let recorded = chip.face.event_record(scratch.event.0, stream.0);
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        recorded
    }

    /// Frees everything, which no call uses any more.
    pub(crate) fn free_or_say(&self, chip: &Chip) {
        if let Err(error) = self.free(chip) {
            tracing::warn!(%error, "a BKCL communicator's memory could not be freed");
        }
    }

    fn free(&self, chip: &Chip) -> PluginResult<()> {
        let _current = chip.enter()?;
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        let freed = kept.into_iter().try_for_each(|scratch| {
            chip.face.event_destroy(scratch.event.0)?;
            // SAFETY: it came from the card, and the communicator that used it is over.
            unsafe { chip.face.free(scratch.memory.0, MemoryKind::Device) }
        });
        freed.and(chip.face.stream_destroy(self.own_stream.0))
    }
}
