//! Compares what the ranks hold in the end with what the collective promises.

use iccl_plugin_api::types::{Collective, RedOp};

use super::super::types::{Buffer, Finish, Schedule, Slice};
use super::fault::Fault;
use super::memory::Piece;
use super::run::Outcome;
use super::shapes::{Shape, ShapeId};

/// Reads of the finished memory are no step's.
const AFTER_ALL: u32 = u32::MAX;

impl Outcome<'_> {
    /// Whether every rank holds what the collective promises: every byte of the receive buffer at
    /// its place, made of the right ranks' contributions, each exactly once, in the order and with
    /// the rounding and the AVG that the algorithm's facts declare, and by the same expression on
    /// all ranks. Out of place, the send buffer must be what it was.
    ///
    /// # Errors
    ///
    /// [`Fault::WrongResult`].
    pub fn verify(&mut self) -> Result<(), Fault> {
        let mut first: Option<Vec<Piece>> = None;
        for place in 0..self.schedules.len() {
            let schedule = &self.schedules[place];
            if !schedule.in_place {
                for (at, piece) in self.placed(place, Buffer::Send, schedule.send_bytes)? {
                    let own = Shape::Own(schedule.rank);
                    self.expect(schedule, at, piece.shape, *self.shapes.get(piece.shape) == own)?;
                }
            }
            if schedule.collective == Collective::Send {
                continue;
            }
            let pieces = self.placed(place, Buffer::Recv, schedule.recv_bytes)?;
            for (at, piece) in &pieces {
                self.expect(schedule, *at, piece.shape, self.promised(schedule, piece.shape))?;
            }
            let pieces: Vec<Piece> = pieces.into_iter().map(|(_, piece)| piece).collect();
            match &first {
                None => first = Some(pieces),
                Some(first) if *first == pieces => {}
                Some(_) => {
                    let what = "it was computed differently on another rank".into();
                    return Err(Fault::WrongResult { rank: schedule.rank, at: 0, what });
                }
            }
        }
        Ok(())
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

    /// The runs of a buffer with their offsets, each shown to hold its own part of the vector.
    fn placed(
        &mut self,
        place: usize,
        buffer: Buffer,
        bytes: u64,
    ) -> Result<Vec<(u64, Piece)>, Fault> {
        let rank = self.schedules[place].rank;
        let slice = Slice { buffer, offset: 0, bytes };
        let mut at = 0;
        let mut placed = Vec::new();
        let pieces =
            self.memories[place].read(slice, rank, AFTER_ALL).map_err(|fault| match fault {
                Fault::Uninitialised { at, .. } => {
                    Fault::WrongResult { rank, at, what: format!("nobody wrote it to {buffer:?}") }
                }
                other => other,
            })?;
        for piece in pieces {
            if piece.origin != at {
                let what = format!("{buffer:?} holds byte {} of the vector there", piece.origin);
                return Err(Fault::WrongResult { rank, at, what });
            }
            placed.push((at, piece));
            at += piece.bytes;
        }
        Ok(placed)
    }

    fn expect(&self, schedule: &Schedule, at: u64, shape: ShapeId, met: bool) -> Result<(), Fault> {
        if met {
            return Ok(());
        }
        let what = format!(
            "{} by {} must not give {}",
            schedule.collective,
            schedule.algorithm,
            self.shapes.text(shape)
        );
        Err(Fault::WrongResult { rank: schedule.rank, at, what })
    }

    fn promised(&self, schedule: &Schedule, shape: ShapeId) -> bool {
        let facts = schedule.algorithm.facts();
        if !schedule.collective.reduces() {
            return *self.shapes.get(shape) == Shape::Own(schedule.root);
        }
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
            Shape::Own(_) => schedule.ranks == 1,
            Shape::Combined { operands, finish } => {
                let at_once = operands.len() == schedule.ranks as usize;
                *finish == last
                    && (at_once || !facts.keeps_narrow_exact)
                    && operands.iter().all(|operand| self.unfinished(*operand))
            }
        }
    }

    /// Whether nothing inside the expression was divided.
    fn unfinished(&self, shape: ShapeId) -> bool {
        match self.shapes.get(shape) {
            Shape::Own(_) => true,
            Shape::Combined { operands, finish } => {
                *finish == Finish::None && operands.iter().all(|operand| self.unfinished(*operand))
            }
        }
    }
}
