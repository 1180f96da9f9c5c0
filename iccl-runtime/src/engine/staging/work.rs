//! Local work on a card's memory: copies are the card's; what is reduced and multiplied is computed by
//! the kernels of the host, piece by piece, from and to pinned memory.

use std::ops::Range;

use smallvec::SmallVec;

use super::{After, MOST_PIECES, Staging};
use crate::Result;
use crate::engine::arithmetic;
use crate::engine::pool::CardBlock;
use crate::engine::run::Run;
use crate::engine::state::State;
use crate::schedule::{Finish, Schedule, Slice, StepKind};

type Blocks = SmallVec<[CardBlock; 2]>;

/// A piece of local work that is under way.
pub(super) struct Piece {
    serial: u32,
    step: u32,
    /// Which bytes of the step's slices.
    range: Range<u64>,
    /// The blocks that its operands lie in; the first holds the result, if that goes to the card.
    blocks: Blocks,
    sources: SmallVec<[*const u8; 8]>,
    /// Where the result is made.
    result: *mut u8,
    has_right: bool,
}

// SAFETY: the pointers are used by the driver only, while the run that the piece belongs to lives.
unsafe impl Send for Piece {}

/// What is computed: from where, to where.
pub(super) struct Computation<'a> {
    sources: &'a [Slice],
    pub(super) destination: Slice,
    /// `None`: it is multiplied by the scalar.
    finish: Option<Finish>,
}

impl<'a> Computation<'a> {
    /// What a step computes; nothing if it copies.
    pub(super) fn of(schedule: &'a Schedule, step: u32) -> Option<Self> {
        match &schedule.steps[step as usize].kind {
            StepKind::Reduce { sources, destination, finish } => Some(Self {
                sources: schedule.sources(sources),
                destination: *destination,
                finish: Some(*finish),
            }),
            StepKind::Scale { source, destination } => Some(Self {
                sources: std::slice::from_ref(source),
                destination: *destination,
                finish: None,
            }),
            _ => None,
        }
    }

    fn on_card(&self) -> usize {
        self.sources.iter().filter(|source| Run::is_on_card(**source)).count()
    }

    /// Whether a source from the card may be loaded to where the result is made: kernels allow a
    /// destination that is a source, and nobody else reads it there.
    fn loads_into_result(&self) -> bool {
        Run::is_on_card(self.destination) || !self.sources.contains(&self.destination)
    }

    /// How many blocks a piece needs.
    pub(super) fn blocks(&self) -> usize {
        let loaded = self.on_card();
        match (Run::is_on_card(self.destination), self.loads_into_result()) {
            (true, _) => loaded.max(1),
            (false, true) => loaded.saturating_sub(1),
            (false, false) => loaded,
        }
    }
}

impl Staging {
    /// The blocks of a piece, and whether they are taken by right; `None` if it must wait.
    fn blocks_for_piece(&mut self, count: usize, bytes: u64) -> Result<Option<(Blocks, bool)>> {
        let has_right = count > 0 && !self.piece_has_right;
        let mut blocks = Blocks::new();
        if count > 0 && !has_right && self.pieces >= MOST_PIECES {
            return Ok(None);
        }
        for _ in 0..count {
            let block = if has_right {
                Some(self.memory.pinned.take(bytes)?)
            } else {
                self.memory.pinned.take_shared(bytes, self.limit)?
            };
            let Some(block) = block else { return Ok(None) };
            blocks.push(block);
        }
        Ok(Some((blocks, has_right)))
    }

    /// Loads what a piece reads from the card.
    fn begin_piece(
        &mut self,
        run: &mut Run,
        step: u32,
        range: Range<u64>,
        (blocks, has_right): (Blocks, bool),
    ) -> Result<()> {
        self.pieces += 1;
        self.piece_has_right |= has_right;
        let multiplies = self.load_scalar(run, step)?;
        let bytes = range.end - range.start;
        let at = |address: *mut u8| address.wrapping_add(range.start as usize);
        let Some(computation) = Computation::of(run.program.schedule(), step) else {
            return Ok(());
        };
        let on_card = Run::is_on_card(computation.destination);
        let result = match blocks.first() {
            Some(block) if on_card => block.pointer(),
            _ => at(run.address(computation.destination)),
        };
        let mut free = blocks.iter().map(CardBlock::pointer).skip(usize::from(on_card));
        let mut into_result = computation.loads_into_result().then_some(result);
        let mut loads = SmallVec::<[(*mut u8, *mut u8); 2]>::new();
        let mut sources = SmallVec::new();
        for source in computation.sources {
            let address = at(run.address(*source));
            if !Run::is_on_card(*source) {
                sources.push(address.cast_const());
                continue;
            }
            let to = into_result
                .take()
                .or_else(|| free.next())
                .unwrap_or_else(|| unreachable!("there is a block for each source on the card"));
            loads.push((to, address));
            sources.push(to.cast_const());
        }
        let serial = run.serial;
        let is_loaded = loads.is_empty() && !multiplies;
        let piece = Piece { serial, step, range, blocks, sources, result, has_right };
        if is_loaded {
            self.loaded.push_back(piece);
            return Ok(());
        }
        let loaded = loads
            .into_iter()
            // SAFETY: the sources lie in the user's buffers on the card and are not written while this step is
            // under way; where they go is a block of this piece, or scratch that only this step writes.
            // Both stay until what follows has landed, or the stream was brought to rest.
            .try_for_each(|(to, from)| unsafe { self.copy_to_host(to, from, bytes) });
        loaded.and(self.to_host.then(After::Loaded(piece)))
    }

    /// Copies a scalar that lies on the card to the host. Says whether the step multiplies: then it comes
    /// behind that copy.
    fn load_scalar(&mut self, run: &mut Run, step: u32) -> Result<bool> {
        let kind = &run.program.schedule().steps[step as usize].kind;
        let multiplies = matches!(kind, StepKind::Scale { .. });
        if multiplies && run.operation.scalar_is_on_device && run.staged.scalar.is_none() {
            let bytes = run.program.schedule().dtype.size_bytes() as u64;
            let block = self.memory.pinned.take(bytes)?;
            let pointer = block.pointer();
            run.staged.scalar = Some(block);
            // SAFETY: whoever asked for the operation keeps the scalar valid until it is over; the block
            // is the run's.
            unsafe { self.copy_to_host(pointer, run.operation.scalar, bytes) }?;
        }
        Ok(multiplies)
    }

    fn end_piece(&mut self, has_right: bool) {
        self.pieces -= 1;
        self.piece_has_right &= !has_right;
        self.has_freed = true;
    }
}

impl State {
    /// Begins local work of a run, as far as there is pinned memory for it. Says whether anything
    /// began.
    pub(in crate::engine) fn begin_work(&mut self, index: usize) -> Result<bool> {
        let mut moved = false;
        while let Some(step) = self.runs[index].work.front().copied() {
            let begun = match Computation::of(self.runs[index].program.schedule(), step) {
                None => self.begin_copy(index, step)?,
                Some(computation) if computation.destination.bytes == 0 => {
                    self.runs[index].work.pop_front();
                    self.complete_step(index, step)?;
                    true
                }
                Some(_) => self.begin_next_piece(index, step)?,
            };
            if !begun {
                break;
            }
            moved = true;
        }
        Ok(moved)
    }

    fn begin_copy(&mut self, index: usize, step: u32) -> Result<bool> {
        let Some(staging) = &mut self.staging else { return Ok(false) };
        let run = &mut self.runs[index];
        run.work.pop_front();
        let StepKind::Copy { source, destination } =
            run.program.schedule().steps[step as usize].kind
        else {
            unreachable!("messages are posted and native calls issued, not worked")
        };
        let (to, from) = (run.address(destination), run.address(source).cast_const());
        let ends = (Run::is_on_card(destination), Run::is_on_card(source));
        if source.bytes == 0 || ends == (false, false) {
            // SAFETY: both slices lie in scratch of the run, and do not overlap by the schedule's
            // contract; no step that is in flight touches them in a conflicting way.
            unsafe { std::ptr::copy_nonoverlapping(from, to, source.bytes as usize) };
            return self.complete_step(index, step).map(|()| true);
        }
        let after = After::Copied { serial: run.serial, step };
        // SAFETY: both slices lie in the user's buffers on the card or in scratch of the run, which stay
        // until the step is complete or the card is at rest, and do not overlap by the schedule's contract;
        // no step that is in flight touches them in a conflicting way.
        unsafe {
            match ends {
                (true, true) => staging.copy_on_card(to, from, source.bytes)?,
                (true, false) => staging.copy_to_card(to, from, source.bytes)?,
                _ => staging.copy_to_host(to, from, source.bytes)?,
            }
        }
        match ends {
            (true, true) => staging.on_card.then(after)?,
            (true, false) => staging.to_card.then(after)?,
            _ => staging.to_host.then(after)?,
        }
        Ok(true)
    }

    fn begin_next_piece(&mut self, index: usize, step: u32) -> Result<bool> {
        let Some(staging) = &mut self.staging else { return Ok(false) };
        let run = &mut self.runs[index];
        let Some(computation) = Computation::of(run.program.schedule(), step) else {
            return Ok(false);
        };
        let bytes = computation.destination.bytes;
        let start = run.staged.begun_bytes;
        let end = bytes.min(start + staging.piece_bytes);
        let blocks = computation.blocks();
        let Some(taken) = staging.blocks_for_piece(blocks, end - start)? else {
            return Ok(false);
        };
        run.staged.pieces_left.entry(step).or_insert(bytes.div_ceil(staging.piece_bytes));
        if end == bytes {
            run.work.pop_front();
        }
        run.staged.begun_bytes = if end == bytes { 0 } else { end };
        staging.begin_piece(run, step, start..end, taken)?;
        Ok(true)
    }

    /// Computes one piece whose operands lie in host memory, if there is one. One at a time, since
    /// transports are not served meanwhile.
    pub(in crate::engine) fn compute(&mut self) -> Result<bool> {
        let Some(staging) = &mut self.staging else { return Ok(false) };
        let Some(piece) = staging.loaded.pop_front() else { return Ok(false) };
        let index = self.index_of(piece.serial);
        let run = &self.runs[index];
        let Some(computation) = Computation::of(run.program.schedule(), piece.step) else {
            return Ok(false);
        };
        let bytes = piece.range.end - piece.range.start;
        match (computation.finish, &piece.sources[..]) {
            // SAFETY: the sources lie in scratch that nobody writes now or in blocks of the piece, as the
            // result does, which equals one of them or overlaps none.
            (Some(finish), sources) => unsafe {
                arithmetic::reduce(&run.operation, finish, piece.result, sources, bytes)?;
            },
            (None, [source]) => {
                let scalar = match &run.staged.scalar {
                    Some(block) => block.pointer().cast_const(),
                    None => run.operation.scalar,
                };
                // SAFETY: as above; the scalar lies in host memory, in a block of the run or where whoever
                // asked for the operation keeps it.
                unsafe {
                    arithmetic::scale(&run.operation, piece.result, *source, scalar, bytes);
                }
            }
            (None, _) => unreachable!("one source is multiplied"),
        }
        if !Run::is_on_card(computation.destination) {
            self.piece_done(piece)?;
            return Ok(true);
        }
        let address = run.address(computation.destination).wrapping_add(piece.range.start as usize);
        let Some(staging) = &mut self.staging else { return Ok(false) };
        // SAFETY: the destination lies in the user's receive buffer on the card, and no other step that is
        // in flight uses it; the block is the piece's until the copy has landed.
        let copied = unsafe { staging.copy_to_card(address, piece.result, bytes) };
        copied.and(staging.to_card.then(After::Stored(piece))).map(|()| true)
    }

    /// A piece is where it belongs.
    pub(super) fn piece_done(&mut self, piece: Piece) -> Result<()> {
        let index = self.index_of(piece.serial);
        let Some(staging) = &mut self.staging else { return Ok(()) };
        let run = &mut self.runs[index];
        let Piece { step, range, blocks, has_right, .. } = piece;
        staging.end_piece(has_right);
        let Some(computation) = Computation::of(run.program.schedule(), step) else {
            return Ok(());
        };
        let is_whole = range == (0..computation.destination.bytes);
        if is_whole
            && Run::is_on_card(computation.destination)
            && let Some(block) = blocks.into_iter().next()
        {
            drop(run.keep(step, block, staging.limit));
        }
        let left = run.staged.pieces_left.get_mut(&step);
        if left.is_some_and(|left| {
            *left -= 1;
            *left == 0
        }) {
            run.staged.pieces_left.remove(&step);
            self.complete_step(index, step)?;
        }
        Ok(())
    }
}
