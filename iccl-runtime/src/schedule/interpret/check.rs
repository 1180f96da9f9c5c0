//! What can be checked on one rank's schedule alone.

use std::collections::HashMap;

use iccl_plugin_api::types::Collective;

use super::super::types::{Buffer, Schedule, Slice, Step, StepKind};
use super::fault::Fault;
use super::native;
use super::promise::place;
use super::ranges::Ranges;

/// Checks one schedule in itself: dependencies point backwards, slices stay inside their buffers and
/// do not split elements, the send buffer is not written, messages are numbered without gaps, no two
/// steps race for a byte, the receive buffer is written only once all ranks are known to agree, and
/// each rank comes to know that they do.
///
/// # Errors
///
/// The first [`Fault`] found.
pub fn check(schedule: &Schedule) -> Result<(), Fault> {
    let mut numbers = Numbers::default();
    let mut races = Races::new(schedule);
    let mut agreement = Agreement::new(schedule);
    for (index, step) in schedule.steps.iter().enumerate() {
        let index = index as u32;
        if let Some(later) = schedule.dependencies(step).iter().find(|other| **other >= index) {
            let what = format!("it depends on step {later}, which does not come before it");
            return Err(malformed(schedule, index, what));
        }
        check_slices(schedule, index, &step.kind)?;
        numbers.check(schedule, index, &step.kind)?;
        races.check(index, &step.kind)?;
        agreement.check(index, &step.kind)?;
    }
    require_everyone(schedule)
}

/// Without a gate, every rank must hear from every other, even where it gets nothing from it: so that
/// all come to know if two do not agree.
fn require_everyone(schedule: &Schedule) -> Result<(), Fault> {
    let Schedule { rank, ranks, gated, collective, .. } = *schedule;
    if gated || matches!(collective, Collective::Send | Collective::Recv) {
        return Ok(());
    }
    let hears = |other: u32| {
        let from = |step: &Step| matches!(step.kind, StepKind::Recv { peer, .. } if peer == other);
        schedule.steps.iter().any(from)
    };
    match (0..ranks).find(|other| *other != rank && !hears(*other)) {
        None => Ok(()),
        Some(unheard) => {
            let step = schedule.steps.len() as u32;
            Err(Fault::BeforeAgreement { rank, step, unheard })
        }
    }
}

fn malformed(schedule: &Schedule, step: u32, what: String) -> Fault {
    Fault::Malformed { rank: schedule.rank, step, what }
}

fn check_slices(schedule: &Schedule, step: u32, kind: &StepKind) -> Result<(), Fault> {
    let rank = schedule.rank;
    let element = schedule.dtype.size_bytes() as u64;
    let written = schedule.writes(kind);
    for slice in schedule.reads(kind).iter().chain(written).copied() {
        let length = match slice.buffer {
            Buffer::Send => schedule.send_bytes,
            Buffer::Recv => schedule.recv_bytes,
            Buffer::Scratch => schedule.scratch_bytes,
            Buffer::DeviceScratch => schedule.device_scratch_bytes,
        };
        if slice.offset.checked_add(slice.bytes).is_none_or(|end| end > length) {
            return Err(Fault::OutOfBounds { rank, step, slice, length });
        }
        if !slice.offset.is_multiple_of(element) || !slice.bytes.is_multiple_of(element) {
            return Err(malformed(schedule, step, format!("{slice:?} splits an element")));
        }
    }
    if written.iter().any(|slice| slice.buffer == Buffer::Send) {
        return Err(Fault::SendWritten { rank, step });
    }
    if let StepKind::Native { call, .. } = kind {
        return native::check(schedule, step, call, schedule.reads(kind), written);
    }
    if matches!(kind, StepKind::Recv { .. }) {
        return Ok(());
    }
    let Some(written) = written.first().copied() else { return Ok(()) };
    let (memory, start) = place(schedule, written.buffer);
    let start = start + written.offset;
    for read in schedule.reads(kind) {
        if read.bytes != written.bytes {
            return Err(malformed(
                schedule,
                step,
                format!("{read:?} and {written:?} differ in length"),
            ));
        }
        let (read_memory, read_start) = place(schedule, read.buffer);
        let read_start = read_start + read.offset;
        let apart = read_memory != memory
            || read_start + read.bytes <= start
            || start + written.bytes <= read_start;
        let same = read_start == start && matches!(kind, StepKind::Reduce { .. });
        if !apart && !same {
            return Err(malformed(schedule, step, format!("{read:?} and {written:?} overlap")));
        }
    }
    if schedule.reads(kind).is_empty() {
        return Err(malformed(schedule, step, "a reduction of nothing".into()));
    }
    Ok(())
}

/// Whether messages to and from each peer are numbered 0, 1, 2, …
#[derive(Default)]
struct Numbers {
    sent: HashMap<u32, u32>,
    received: HashMap<u32, u32>,
}

impl Numbers {
    fn check(&mut self, schedule: &Schedule, step: u32, kind: &StepKind) -> Result<(), Fault> {
        if let Some(peer) = kind.peer()
            && (peer == schedule.rank || peer >= schedule.ranks)
        {
            return Err(malformed(schedule, step, format!("rank {peer} is no peer")));
        }
        let (counters, peer, index) = match kind {
            StepKind::Send { peer, index, .. } => (&mut self.sent, *peer, *index),
            StepKind::Recv { peer, index, .. } => (&mut self.received, *peer, *index),
            _ => return Ok(()),
        };
        let counter = counters.entry(peer).or_insert(0);
        if *counter != index {
            let what = format!("message {counter} with rank {peer} is numbered {index}");
            return Err(malformed(schedule, step, what));
        }
        *counter += 1;
        Ok(())
    }
}

/// Who has touched which bytes so far, to find steps that nothing orders.
struct Races<'a> {
    schedule: &'a Schedule,
    recv: Ranges<Accesses>,
    scratch: Ranges<Accesses>,
    device_scratch: Ranges<Accesses>,
    /// For the search below: in which search each step was last seen.
    seen: Vec<u32>,
    searches: u32,
}

#[derive(Clone, Debug, Default)]
struct Accesses {
    writer: Option<u32>,
    readers: Vec<u32>,
}

impl<'a> Races<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        Self {
            schedule,
            recv: Ranges::default(),
            scratch: Ranges::default(),
            device_scratch: Ranges::default(),
            seen: vec![0; schedule.steps.len()],
            searches: 0,
        }
    }

    /// It is enough to compare a step with the last writer of its bytes and, if it writes, with
    /// those who have read them since: order is transitive.
    fn check(&mut self, step: u32, kind: &StepKind) -> Result<(), Fault> {
        for slice in self.schedule.reads(kind) {
            self.touch(*slice, |races, at, accesses| {
                races.require_order(accesses.writer, step, *slice, at)?;
                accesses.readers.push(step);
                Ok(())
            })?;
        }
        for slice in self.schedule.writes(kind) {
            self.touch(*slice, |races, at, accesses| {
                for reader in accesses.readers.drain(..).chain(accesses.writer) {
                    races.require_order(Some(reader), step, *slice, at)?;
                }
                accesses.writer = Some(step);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn touch(
        &mut self,
        slice: Slice,
        mut change: impl FnMut(&mut Self, u64, &mut Accesses) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        // Out of place nobody writes the send buffer.
        if slice.buffer == Buffer::Send && !self.schedule.in_place {
            return Ok(());
        }
        let (memory, start) = place(self.schedule, slice.buffer);
        let start = start + slice.offset;
        for (range, accesses) in self.ranges(memory).pieces(start..start + slice.bytes) {
            let mut accesses = accesses.unwrap_or_default();
            change(self, range.start, &mut accesses)?;
            self.ranges(memory).set(range, accesses);
        }
        Ok(())
    }

    fn ranges(&mut self, memory: Buffer) -> &mut Ranges<Accesses> {
        match memory {
            Buffer::Send | Buffer::Recv => &mut self.recv,
            Buffer::Scratch => &mut self.scratch,
            Buffer::DeviceScratch => &mut self.device_scratch,
        }
    }

    fn require_order(
        &mut self,
        first: Option<u32>,
        second: u32,
        slice: Slice,
        at: u64,
    ) -> Result<(), Fault> {
        let Some(first) = first.filter(|first| *first != second) else { return Ok(()) };
        if self.comes_before(first, second) {
            return Ok(());
        }
        let buffer = match slice.buffer {
            scratch @ (Buffer::Scratch | Buffer::DeviceScratch) => scratch,
            Buffer::Send | Buffer::Recv => Buffer::Recv,
        };
        Err(Fault::Race { rank: self.schedule.rank, first, second, buffer, at })
    }

    /// Whether a chain of dependencies leads from `second` back to `first`.
    fn comes_before(&mut self, first: u32, second: u32) -> bool {
        self.searches += 1;
        let mut open = vec![second];
        while let Some(step) = open.pop() {
            let dependencies = self.schedule.dependencies(&self.schedule.steps[step as usize]);
            if dependencies.contains(&first) {
                return true;
            }
            for other in dependencies.iter().copied().filter(|other| *other > first) {
                if self.seen[other as usize] != self.searches {
                    self.seen[other as usize] = self.searches;
                    open.push(other);
                }
            }
        }
        false
    }
}

/// Whether the user's receive buffer is written only after all ranks agreed: after the last gate
/// receive (whose completeness the run checks), or, without a gate, after a message from every other
/// rank. A receive operation has but one peer, and the message brings its fingerprint.
struct Agreement<'a> {
    schedule: &'a Schedule,
    last_gate_recv: Option<u32>,
    after_gate: Vec<bool>,
}

impl<'a> Agreement<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        let gate = |kind: &StepKind| matches!(kind, StepKind::GateRecv { .. });
        let last_gate_recv = schedule.steps.iter().rposition(|step| gate(&step.kind));
        Self {
            schedule,
            last_gate_recv: last_gate_recv.map(|step| step as u32),
            after_gate: Vec::with_capacity(schedule.steps.len()),
        }
    }

    fn check(&mut self, index: u32, kind: &StepKind) -> Result<(), Fault> {
        let Schedule { rank, gated, collective, .. } = *self.schedule;
        self.check_gate_send(index, kind)?;
        let step = &self.schedule.steps[index as usize];
        let after_gate = Some(index) == self.last_gate_recv
            || self
                .schedule
                .dependencies(step)
                .iter()
                .any(|other| self.after_gate[*other as usize]);
        self.after_gate.push(after_gate);
        if gated != self.last_gate_recv.is_some() {
            let what = format!("gated is {gated}, which the steps belie");
            return Err(malformed(self.schedule, index, what));
        }
        let written = self.schedule.writes(kind);
        let writes_recv = written.iter().any(|slice| slice.buffer == Buffer::Recv);
        // Who is inside a native library hears of nothing, so only a gate will do.
        let is_native = matches!(kind, StepKind::Native { .. });
        if (!writes_recv && !is_native) || collective == Collective::Recv || after_gate {
            return Ok(());
        }
        if gated || is_native {
            let unheard = u32::from(rank == 0);
            return Err(Fault::BeforeAgreement { rank, step: index, unheard });
        }
        self.require_heard(index)
    }

    /// In gather-v and scatter-v, only the root can compare all counts: it lets nobody through the
    /// gate before it has.
    fn check_gate_send(&self, index: u32, kind: &StepKind) -> Result<(), Fault> {
        let Schedule { rank, root, collective, .. } = *self.schedule;
        let compares = matches!(collective, Collective::GatherV | Collective::ScatterV);
        if rank == root && compares && matches!(kind, StepKind::GateSend { .. }) {
            return self.require_heard(index);
        }
        Ok(())
    }

    fn require_heard(&self, index: u32) -> Result<(), Fault> {
        let Schedule { rank, ranks, .. } = *self.schedule;
        let heard = self.heard(index);
        match (0..ranks).find(|other| *other != rank && !heard.contains(other)) {
            None => Ok(()),
            Some(unheard) => Err(Fault::BeforeAgreement { rank, step: index, unheard }),
        }
    }

    /// The ranks from which a message must have arrived before the step starts.
    fn heard(&self, step: u32) -> Vec<u32> {
        let mut seen = vec![false; self.schedule.steps.len()];
        let mut open = vec![step];
        let mut heard = Vec::new();
        while let Some(step) = open.pop() {
            for other in self.schedule.dependencies(&self.schedule.steps[step as usize]) {
                if std::mem::replace(&mut seen[*other as usize], true) {
                    continue;
                }
                open.push(*other);
                if let StepKind::Recv { peer, .. } = self.schedule.steps[*other as usize].kind {
                    heard.push(peer);
                }
            }
        }
        heard
    }
}
