//! Puts steps in a row and derives their dependencies from the bytes that they touch.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use iccl_plugin_api::types::RedOp;

use super::cuts::Cut;
use super::types::{Buffer, Finish, IslandCall, Origins, Request, Schedule, Slice, Step, StepKind};
use crate::error::{Error, ErrorKind, Result};

/// Collects the steps of one rank, in the order of the algorithm's sequence.
pub(super) struct Builder<'a> {
    pub(super) request: &'a Request,
    pub(super) element_bytes: u64,
    steps: Vec<Step>,
    slices: Vec<Slice>,
    dependency_list: Vec<u32>,
    scratch_bytes: u64,
    device_scratch_bytes: u64,
    island: Option<Arc<[u32]>>,
    /// Who touched which bytes of the receive buffer (in place: of the one buffer there is). The
    /// send buffer needs no such record: out of place it is never written.
    recv_touched: Touched,
    scratch_touched: Touched,
    device_scratch_touched: Touched,
    sent: HashMap<u32, u32>,
    received: HashMap<u32, u32>,
    /// Whether the user's two buffers are one memory, and where they start in it.
    in_place: bool,
    origins: Origins,
    gated: bool,
    turn_round: Option<u32>,
    /// After which steps all ranks are known to agree: nothing is written to the receive buffer
    /// before. Once a step comes after all of them, it stands for them.
    agreement: Vec<u32>,
    /// Dependencies of the step that is being added.
    pending: Vec<u32>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(request: &'a Request) -> Self {
        let (send, recv) = request.buffer_elements();
        let in_place = request.in_place && send > 0 && recv > 0;
        Self {
            request,
            element_bytes: request.element_bytes(),
            steps: Vec::new(),
            slices: Vec::new(),
            dependency_list: Vec::new(),
            scratch_bytes: 0,
            device_scratch_bytes: 0,
            island: None,
            recv_touched: Touched::default(),
            scratch_touched: Touched::default(),
            device_scratch_touched: Touched::default(),
            sent: HashMap::new(),
            received: HashMap::new(),
            in_place,
            origins: if in_place { request.in_place_origins() } else { Origins::default() },
            gated: false,
            turn_round: None,
            agreement: Vec::new(),
            pending: Vec::new(),
        }
    }

    /// `cut` of the vector in `buffer`.
    pub(super) const fn slice(&self, buffer: Buffer, cut: Cut) -> Slice {
        cut.within(buffer, self.element_bytes)
    }

    /// Asks for `bytes` of scratch in all.
    pub(super) fn reserve_scratch(&mut self, bytes: u64) {
        self.scratch_bytes = self.scratch_bytes.max(bytes);
    }

    /// Asks for `bytes` of the device's memory in all.
    pub(super) fn reserve_device_scratch(&mut self, bytes: u64) {
        self.device_scratch_bytes = self.device_scratch_bytes.max(bytes);
    }

    /// Makes native calls those of `ranks`, this one among them.
    pub(super) fn on_island(&mut self, ranks: &Arc<[u32]>) {
        self.island = Some(Arc::clone(ranks));
    }

    /// Whether the user's two buffers are one memory.
    pub(super) const fn in_place(&self) -> bool {
        self.in_place
    }

    /// Sends `source`, which holds `cut` of the vector.
    pub(super) fn send(&mut self, peer: u32, source: Slice, cut: Cut) {
        let index = next(&mut self.sent, peer);
        let offset = cut.first * self.element_bytes;
        self.read(source);
        self.push(StepKind::Send { peer, index, source, offset });
    }

    /// Receives `cut` of the vector into `destination`.
    pub(super) fn recv(&mut self, peer: u32, destination: Slice, cut: Cut) {
        let index = next(&mut self.received, peer);
        let offset = cut.first * self.element_bytes;
        self.write(destination);
        self.push(StepKind::Recv { peer, index, destination, offset });
    }

    /// As [`Builder::recv`]; the message is one of those that show that all ranks agree, so nothing
    /// is written to the receive buffer before it has come.
    pub(super) fn hear(&mut self, peer: u32, destination: Slice, cut: Cut) {
        let step = self.steps.len() as u32;
        self.recv(peer, destination, cut);
        self.agreement.push(step);
    }

    /// Copies.
    pub(super) fn copy(&mut self, source: Slice, destination: Slice) {
        self.read(source);
        self.write(destination);
        self.push(StepKind::Copy { source, destination });
    }

    /// Calls the native library, once all ranks are known to agree: who is inside it cannot be told of
    /// anything.
    pub(super) fn native(&mut self, call: IslandCall, source: Slice, destination: Slice) {
        self.native_blocks(call, &[source], &[destination]);
    }

    /// As [`Builder::native`], for vector forms.
    pub(super) fn native_blocks(
        &mut self,
        call: IslandCall,
        sources: &[Slice],
        destinations: &[Slice],
    ) {
        let first = self.slices.len() as u32;
        let between = first + sources.len() as u32;
        let end = between + destinations.len() as u32;
        self.slices.extend(sources.iter().chain(destinations));
        sources.iter().for_each(|source| self.read(*source));
        destinations.iter().for_each(|destination| self.write(*destination));
        self.pending.extend(&self.agreement);
        let (sources, destinations) = (first..between, between..end);
        self.push(StepKind::Native { call, sources, destinations });
    }

    /// Reduces `sources` in their order. `all` says that these are the contributions of all ranks,
    /// so that this is where AVG divides.
    pub(super) fn reduce(
        &mut self,
        sources: impl IntoIterator<Item = Slice>,
        destination: Slice,
        all: bool,
    ) {
        let start = self.slices.len() as u32;
        self.slices.extend(sources);
        let end = self.slices.len() as u32;
        for source in start..end {
            self.read(self.slices[source as usize]);
        }
        self.write(destination);
        let finish = match self.request.op {
            RedOp::Avg if all => Finish::DivideByRanks(self.request.ranks),
            _ => Finish::None,
        };
        self.push(StepKind::Reduce { sources: start..end, destination, finish });
    }

    /// Copies `cut` of the block that this rank sends to itself to its place in the receive buffer,
    /// unless it is there already.
    pub(super) fn copy_own(&mut self, cut: Cut) {
        let rank = self.request.rank;
        let source = cut.inside(self.request.send_block(rank));
        let destination = cut.inside(self.request.recv_block(rank));
        if !self.in_place && cut.elements > 0 {
            self.copy(self.slice(Buffer::Send, source), self.slice(Buffer::Recv, destination));
        }
    }

    /// Copies all that this rank sends to itself.
    pub(super) fn copy_own_block(&mut self) {
        self.copy_own(Cut::whole(self.request.send_block(self.request.rank).elements));
    }

    /// The exchange of fingerprints: dissemination (Hensgen, Finkel, Manber 1988, "Two algorithms
    /// for barrier synchronization"), ⌈log₂ n⌉ rounds. In round k this rank sends what it knows to
    /// rank + 2^k and hears from rank - 2^k, after which it knows of 2^(k+1) ranks.
    ///
    /// Comes before all data steps, so that both ends of a pair see the same order of messages. The
    /// receives form a chain, so that a step that waits for the last one waits for all. A rank that
    /// must [hear](Builder::hear) others first sends nothing before it has.
    ///
    /// Where native libraries are called, a second exchange of the same form follows, over which the
    /// ranks agree on the operation's turn. Not in one: a rank that offered a turn before all have begun
    /// would hold up what comes after it for as long as another rank does not call.
    pub(super) fn gate(&mut self) {
        let rounds = self.disseminate(0);
        if self.request.takes_turns() {
            self.turn_round = Some(rounds);
            self.disseminate(rounds);
        }
    }

    /// Tells every rank what every rank knows, in rounds numbered from `round`. Gives the number of the
    /// next.
    fn disseminate(&mut self, mut round: u32) -> u32 {
        let ranks = u64::from(self.request.ranks);
        let rank = u64::from(self.request.rank);
        let mut distance = 1;
        while distance < ranks {
            self.pending.extend(&self.agreement);
            let peer = ((rank + distance) % ranks) as u32;
            self.push(StepKind::GateSend { peer, round });
            self.pending.extend(&self.agreement);
            let peer = ((rank + ranks - distance) % ranks) as u32;
            let step = self.push(StepKind::GateRecv { peer, round });
            self.agreement = vec![step];
            self.gated = true;
            distance *= 2;
            round += 1;
        }
        round
    }

    pub(super) fn finish(self) -> Result<Schedule> {
        let request = self.request;
        if self.steps.len() > i32::MAX as usize || self.dependency_list.len() > i32::MAX as usize {
            return Err(Error::new(
                ErrorKind::OutOfResources,
                format!("{request}: the schedule has more steps than can be numbered"),
            ));
        }
        let (send, recv) = request.buffer_elements();
        Ok(Schedule {
            steps: self.steps,
            slices: self.slices,
            dependency_list: self.dependency_list,
            send_bytes: send * self.element_bytes,
            recv_bytes: recv * self.element_bytes,
            scratch_bytes: self.scratch_bytes,
            device_scratch_bytes: self.device_scratch_bytes,
            island: self.island,
            gated: self.gated,
            turn_round: self.turn_round,
            algorithm: request.algorithm,
            collective: request.collective,
            dtype: request.dtype,
            op: request.op,
            count: request.count,
            root: request.root,
            rank: request.rank,
            ranks: request.ranks,
            in_place: self.in_place,
            origins: self.origins,
            counts: request.counts.clone(),
        })
    }

    /// The record that covers `slice`, if its bytes are ever written, and where the slice starts in it.
    fn touched(&mut self, slice: &mut Slice) -> Option<&mut Touched> {
        match slice.buffer {
            Buffer::Send if self.in_place => {
                slice.offset += self.origins.send;
                Some(&mut self.recv_touched)
            }
            Buffer::Send => None,
            Buffer::Recv => {
                slice.offset += self.origins.recv;
                Some(&mut self.recv_touched)
            }
            Buffer::Scratch => Some(&mut self.scratch_touched),
            Buffer::DeviceScratch => Some(&mut self.device_scratch_touched),
        }
    }

    /// The step that is about to be pushed reads `slice`. All reads are declared before the write.
    fn read(&mut self, mut slice: Slice) {
        let step = self.steps.len() as u32;
        let mut pending = std::mem::take(&mut self.pending);
        if let Some(touched) = self.touched(&mut slice) {
            touched.read(slice, step, &mut pending);
        }
        self.pending = pending;
    }

    /// The step that is about to be pushed writes `slice`.
    fn write(&mut self, mut slice: Slice) {
        let step = self.steps.len() as u32;
        let mut pending = std::mem::take(&mut self.pending);
        if let Some(touched) = self.touched(&mut slice) {
            touched.write(slice, step, &mut pending);
        }
        if slice.buffer == Buffer::Recv {
            pending.extend(&self.agreement);
            if self.agreement.len() > 1 {
                self.agreement = vec![step];
            }
        }
        self.pending = pending;
    }

    fn push(&mut self, kind: StepKind) -> u32 {
        let step = self.steps.len() as u32;
        self.pending.sort_unstable();
        self.pending.dedup();
        let start = self.dependency_list.len() as u32;
        // A reduction in place meets itself as the reader of its destination.
        self.dependency_list.extend(self.pending.drain(..).filter(|other| *other != step));
        let end = self.dependency_list.len() as u32;
        self.steps.push(Step { kind, dependencies: start..end });
        step
    }
}

fn next(counters: &mut HashMap<u32, u32>, peer: u32) -> u32 {
    let counter = counters.entry(peer).or_insert(0);
    *counter += 1;
    *counter - 1
}

/// Who last wrote each run of bytes, and who has read it since. Runs are keyed by their start.
#[derive(Default)]
struct Touched {
    runs: BTreeMap<u64, Run>,
}

#[derive(Clone, Default)]
struct Run {
    end: u64,
    writer: Option<u32>,
    readers: Vec<u32>,
}

impl Touched {
    fn read(&mut self, slice: Slice, step: u32, dependencies: &mut Vec<u32>) {
        self.visit(slice, |run| {
            dependencies.extend(run.writer);
            run.readers.push(step);
        });
    }

    fn write(&mut self, slice: Slice, step: u32, dependencies: &mut Vec<u32>) {
        self.visit(slice, |run| {
            // Readers come after the writer before them already.
            if run.readers.is_empty() {
                dependencies.extend(run.writer);
            }
            dependencies.append(&mut run.readers);
            run.writer = Some(step);
        });
    }

    /// Calls `change` for runs that cover exactly the bytes of `slice`.
    fn visit(&mut self, slice: Slice, change: impl FnMut(&mut Run)) {
        if slice.bytes == 0 {
            return;
        }
        let (start, end) = (slice.offset, slice.end());
        self.split(start);
        self.split(end);
        let mut gaps = Vec::new();
        let mut covered = start;
        for (&run_start, run) in self.runs.range(start..end) {
            if run_start > covered {
                gaps.push((covered, run_start));
            }
            covered = run.end;
        }
        if covered < end {
            gaps.push((covered, end));
        }
        for (gap, end) in gaps {
            self.runs.insert(gap, Run { end, ..Run::default() });
        }
        self.runs.range_mut(start..end).map(|(_, run)| run).for_each(change);
    }

    /// Makes `at` a border if it lies inside a run.
    fn split(&mut self, at: u64) {
        if let Some((_, run)) = self.runs.range_mut(..at).next_back()
            && run.end > at
        {
            let upper = run.clone();
            run.end = at;
            self.runs.insert(at, upper);
        }
    }
}
