//! A pre-multiplied sum: each rank multiplies its contribution by a scalar of its own, and the products
//! are summed.
//!
//! The products go to scratch (the device's, where a native library reads them), and there the steps
//! of the sum read what they would have read in the send buffer. So every algorithm carries it as it carries a sum, each element is multiplied once,
//! and the send buffer stays as it is.

use std::ops::Range;

use iccl_plugin_api::types::RedOp;

use super::types::{Buffer, Request, Schedule, Slice, Step, StepKind};
use crate::error::Result;

/// Short enough for the first messages to leave while the rest is multiplied.
const PIECE_BYTES: u64 = 1 << 20;
/// Longer vectors are multiplied in longer pieces.
const MOST_PIECES: u64 = 1024;
/// Of scratch, as kernels like it; a multiple of every element.
const ALIGNMENT: u64 = 64;

/// Compiles a request whose op is [`RedOp::PreMulSum`] and that was found to be legal.
pub(super) fn compile(request: &Request) -> Result<Schedule> {
    // The sum never touches the send buffer, so for it nothing is in place.
    let sum = super::compile(&Request { op: RedOp::Sum, in_place: false, ..request.clone() })?;
    Ok(Premultiplied::new(sum, request).rewrite())
}

struct Premultiplied {
    schedule: Schedule,
    /// In which scratch the products lie.
    products: Buffer,
    /// Where they start in it; each is as far from there as its factor is from the start
    /// of the send buffer.
    products_at: u64,
    /// Runs of the send buffer, in their order; step i multiplies run i.
    pieces: Vec<Range<u64>>,
}

impl Premultiplied {
    fn new(mut schedule: Schedule, request: &Request) -> Self {
        let pieces = pieces(&schedule);
        let products =
            if schedule.island.is_some() { Buffer::DeviceScratch } else { Buffer::Scratch };
        let products_at = scratch_bytes(&mut schedule, products).next_multiple_of(ALIGNMENT);
        schedule.op = request.op;
        schedule.in_place = request.in_place && schedule.send_bytes > 0 && schedule.recv_bytes > 0;
        if schedule.in_place {
            schedule.origins = request.in_place_origins();
        }
        Self { schedule, products, products_at, pieces }
    }

    fn rewrite(mut self) -> Schedule {
        let Some(last) = self.pieces.last() else { return self.schedule };
        *scratch_bytes(&mut self.schedule, self.products) = self.products_at + last.end;
        let first_steps = self.pieces.len() as u32;
        let mut steps: Vec<Step> = self.pieces.iter().map(|piece| self.multiply(piece)).collect();
        let mut dependency_list = Vec::new();
        for step in &self.schedule.steps {
            let start = dependency_list.len() as u32;
            self.add_pieces_that_come_before(&step.kind, &mut dependency_list);
            let others = self.schedule.dependencies(step);
            dependency_list.extend(others.iter().map(|other| other + first_steps));
            let dependencies = start..dependency_list.len() as u32;
            steps.push(Step { kind: self.on_products(&step.kind), dependencies });
        }
        let slices = self.schedule.slices.iter().map(|slice| self.product(*slice)).collect();
        Schedule { steps, slices, dependency_list, ..self.schedule }
    }

    fn multiply(&self, piece: &Range<u64>) -> Step {
        let (offset, bytes) = (piece.start, piece.end - piece.start);
        let source = Slice { buffer: Buffer::Send, offset, bytes };
        let kind = StepKind::Scale { source, destination: self.product(source) };
        Step { kind, dependencies: 0..0 }
    }

    /// Where the products of a slice of the send buffer are; any other slice as it is.
    fn product(&self, slice: Slice) -> Slice {
        match slice.buffer {
            Buffer::Send => {
                Slice { buffer: self.products, offset: self.products_at + slice.offset, ..slice }
            }
            Buffer::Recv | Buffer::Scratch | Buffer::DeviceScratch => slice,
        }
    }

    fn on_products(&self, kind: &StepKind) -> StepKind {
        let mut kind = kind.clone();
        if let StepKind::Send { source, .. } | StepKind::Copy { source, .. } = &mut kind {
            *source = self.product(*source);
        }
        kind
    }

    /// A step needs the products that it reads. In place, it may overwrite only what was multiplied.
    fn add_pieces_that_come_before(&self, kind: &StepKind, list: &mut Vec<u32>) {
        let mut needed = Vec::new();
        for read in self.schedule.reads(kind).iter().filter(|read| read.buffer == Buffer::Send) {
            needed.extend(self.pieces_within(read.offset, read.end()));
        }
        if self.schedule.in_place {
            let origins = self.schedule.origins;
            let in_send = |offset: u64| (offset + origins.recv).saturating_sub(origins.send);
            let written = self.schedule.writes(kind).iter();
            for written in written.filter(|slice| slice.buffer == Buffer::Recv && slice.bytes > 0) {
                needed.extend(self.pieces_within(in_send(written.offset), in_send(written.end())));
            }
        }
        needed.sort_unstable();
        needed.dedup();
        list.append(&mut needed);
    }

    /// The pieces that have bytes from `start` to `end` of the send buffer.
    fn pieces_within(&self, start: u64, end: u64) -> Range<u32> {
        let first = self.pieces.partition_point(|piece| piece.end <= start);
        let after = self.pieces.partition_point(|piece| piece.start < end);
        first as u32..(after.max(first)) as u32
    }
}

/// How much there is of a scratch.
fn scratch_bytes(schedule: &mut Schedule, scratch: Buffer) -> &mut u64 {
    match scratch {
        Buffer::DeviceScratch => &mut schedule.device_scratch_bytes,
        _ => &mut schedule.scratch_bytes,
    }
}

/// What the steps read of the send buffer, in pieces. Gaps between the blocks of a vector form are left
/// out: nothing need be there.
fn pieces(schedule: &Schedule) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = schedule
        .steps
        .iter()
        .flat_map(|step| schedule.reads(&step.kind))
        .filter(|slice| slice.buffer == Buffer::Send && slice.bytes > 0)
        .map(|slice| slice.offset..slice.end())
        .collect();
    runs.sort_unstable_by_key(|run| run.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for run in runs {
        match merged.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => merged.push(run),
        }
    }
    let longest = merged.iter().map(|run| run.end - run.start).sum::<u64>() / MOST_PIECES;
    let longest = longest.next_multiple_of(ALIGNMENT).max(PIECE_BYTES);
    let cut = |run: Range<u64>| {
        let starts = (run.start..run.end).step_by(usize::try_from(longest).unwrap_or(usize::MAX));
        starts.map(move |start| start..run.end.min(start + longest))
    };
    merged.into_iter().flat_map(cut).collect()
}
