//! Compares what the ranks hold in the end with what the collective promises.

use iccl_plugin_api::types::{Collective, RedOp};

use super::super::types::{Buffer, Finish, Schedule, Slice};
use super::fault::Fault;
use super::memory::{Memory, Piece};
use super::promise::{Promise, held, place, promises};
use super::run::Outcome;
use super::shapes::{Shape, ShapeId};

/// Reads of the finished memory are no step's.
const AFTER_ALL: u32 = u32::MAX;

impl Outcome<'_> {
    /// Whether every rank holds what the collective promises: every byte of the receive buffer at
    /// its place, made of the right ranks' contributions, each exactly once, in the order and with
    /// the rounding and the AVG that the algorithm's facts declare; in an all-reduce by the same
    /// expression on all ranks. Whatever is not promised, of either buffer, must be what it was.
    ///
    /// # Errors
    ///
    /// [`Fault::WrongResult`].
    pub fn verify(&mut self) -> Result<(), Fault> {
        let mut first: Option<Vec<Piece>> = None;
        for place in 0..self.schedules.len() {
            let schedule = &self.schedules[place];
            let promises = promises(schedule, self.schedules);
            require_lengths(schedule, &promises)?;
            let mut results = Vec::new();
            for promise in &promises {
                results.extend(self.require(place, promise)?);
            }
            self.require_the_rest_untouched(place, &promises)?;
            if schedule.collective != Collective::AllReduce {
                continue;
            }
            match &first {
                None => first = Some(results),
                Some(first) if *first == results => {}
                Some(_) => {
                    let what = "it was computed differently on another rank".into();
                    return Err(Fault::WrongResult { rank: schedule.rank, at: 0, what });
                }
            }
        }
        Ok(())
    }

    /// Whether the receive buffer holds what is promised, and in which runs.
    fn require(&mut self, place: usize, promise: &Promise) -> Result<Vec<Piece>, Fault> {
        let schedule = &self.schedules[place];
        let rank = schedule.rank;
        let (buffer, offset) = (Buffer::Recv, promise.bytes.start);
        let slice = Slice { buffer, offset, bytes: promise.bytes.end - offset };
        let pieces =
            self.memories[place].read(slice, rank, AFTER_ALL).map_err(|fault| match fault {
                Fault::Uninitialised { at, .. } => {
                    Fault::WrongResult { rank, at, what: format!("nobody wrote it to {buffer:?}") }
                }
                other => other,
            })?;
        let (mut at, mut origin) = (offset, promise.origin);
        for piece in &pieces {
            if piece.origin != origin {
                let what =
                    format!("byte {} of the contributions is there, not {origin}", piece.origin);
                return Err(Fault::WrongResult { rank, at, what });
            }
            let met = match promise.of {
                Some(from) => *self.shapes.get(piece.shape) == Shape::Own(from),
                None => self.is_reduction(schedule, piece.shape),
            };
            if !met {
                let what = format!(
                    "{} by {} must not give {}",
                    schedule.collective,
                    schedule.algorithm,
                    self.shapes.text(piece.shape)
                );
                return Err(Fault::WrongResult { rank, at, what });
            }
            at += piece.bytes;
            origin += piece.bytes;
        }
        Ok(pieces)
    }

    /// Whether nothing of the user's was written but what is promised.
    fn require_the_rest_untouched(
        &mut self,
        place: usize,
        promises: &[Promise],
    ) -> Result<(), Fault> {
        let schedule = &self.schedules[place];
        let own = self.shapes.number(Shape::Own(schedule.rank));
        let mut before = Memory::new(schedule, own);
        let after = &mut self.memories[place];
        // What is promised was looked at already.
        for Promise { bytes, .. } in promises {
            let bytes =
                Slice { buffer: Buffer::Recv, offset: bytes.start, bytes: bytes.end - bytes.start };
            let seen = after.read(bytes, schedule.rank, AFTER_ALL)?;
            before.write(bytes, &seen);
        }
        match before.difference(after) {
            None => Ok(()),
            Some((memory, at)) => {
                let what = format!("it was written, in the memory of {memory:?}, and nobody asked");
                Err(Fault::WrongResult { rank: schedule.rank, at, what })
            }
        }
    }

    /// Computes element `element` of the receive buffer of `rank`: `own` gives the contribution of
    /// a rank, `combine` reduces contributions in the given order and finishes. `None` if the rank
    /// takes no part or holds no such element.
    pub fn evaluate<T>(
        &mut self,
        rank: u32,
        element: u64,
        own: impl Fn(u32) -> T,
        combine: impl Fn(Vec<T>, Finish) -> T,
    ) -> Option<T> {
        let place = self.schedules.iter().position(|schedule| schedule.rank == rank)?;
        let bytes = self.schedules[place].dtype.size_bytes() as u64;
        let slice = Slice { buffer: Buffer::Recv, offset: element * bytes, bytes };
        let pieces = self.memories[place].read(slice, rank, AFTER_ALL).ok()?;
        Some(self.shapes.evaluate(pieces.first()?.shape, &own, &combine))
    }

    fn is_reduction(&self, schedule: &Schedule, shape: ShapeId) -> bool {
        let facts = schedule.algorithm.facts();
        let mut contributors = self.shapes.contributors(shape);
        if !facts.rank_order {
            contributors.sort_unstable();
        }
        if !contributors.into_iter().eq(0..schedule.ranks) {
            return false;
        }
        let last = match schedule.op {
            RedOp::Avg => Finish::DivideByRanks(schedule.ranks),
            _ => Finish::None,
        };
        match self.shapes.get(shape) {
            Shape::Own(_) | Shape::Scaled(_) => {
                schedule.ranks == 1 && is_contribution(schedule, self.shapes.get(shape))
            }
            Shape::Combined { operands, finish } => {
                let at_once = operands.len() == schedule.ranks as usize;
                *finish == last
                    && (at_once || !facts.keeps_narrow_exact)
                    && operands.iter().all(|operand| self.unfinished(schedule, *operand))
            }
        }
    }

    /// Whether nothing inside the expression was divided, and everything multiplied that had to be.
    fn unfinished(&self, schedule: &Schedule, shape: ShapeId) -> bool {
        match self.shapes.get(shape) {
            leaf @ (Shape::Own(_) | Shape::Scaled(_)) => is_contribution(schedule, leaf),
            Shape::Combined { operands, finish } => {
                *finish == Finish::None
                    && operands.iter().all(|operand| self.unfinished(schedule, *operand))
            }
        }
    }
}

/// Whether this is what a rank contributes: multiplied in a pre-multiplied sum, else as it is.
fn is_contribution(schedule: &Schedule, leaf: &Shape) -> bool {
    match leaf {
        Shape::Own(_) => schedule.op != RedOp::PreMulSum,
        Shape::Scaled(_) => schedule.op == RedOp::PreMulSum,
        Shape::Combined { .. } => false,
    }
}

/// Whether the schedule says rightly how much of the user's buffers it uses, and where they lie.
fn require_lengths(schedule: &Schedule, promises: &[Promise]) -> Result<(), Fault> {
    let held = held(schedule);
    let sent = held.iter().map(|held| held.bytes.end).max().unwrap_or(0);
    let received = promises.iter().map(|promise| promise.bytes.end).max().unwrap_or(0);
    let (_, send) = place(schedule, Buffer::Send);
    let (_, recv) = place(schedule, Buffer::Recv);
    for (what, said, is) in [
        ("send_bytes", schedule.send_bytes, sent),
        ("recv_bytes", schedule.recv_bytes, received),
        ("origins.send", schedule.origins.send, send),
        ("origins.recv", schedule.origins.recv, recv),
    ] {
        if said != is {
            let what = format!("{what} is {said} and should be {is}");
            return Err(Fault::WrongResult { rank: schedule.rank, at: is, what });
        }
    }
    Ok(())
}
