//! What the driving thread works on: operations in flight, their steps, and the completions that
//! move them on. No lock in here: whoever drives holds the engine's one lock.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use iccl_plugin_api::tables::{Completion, Segment, completion_kind};
use iccl_plugin_api::{Collective, Status};

use super::arithmetic;
use super::counters::Counters;
use super::domain::Domain;
use super::envelope::{Envelope, Kind, Lane};
use super::flight::Flights;
use super::inquiry::Inquiry;
use super::links::Links;
use super::native::Native;
use super::natural;
use super::operation::Operation;
use super::program::NO_QUEUE;
use super::regions::Regions;
use super::run::{Run, Scratch, scratch_bytes};
use super::scratch::Pool;
use super::staging::{Staged, StagedRun, Staging};
use super::turn::Turn;
use super::{EngineOptions, EngineParts};
use crate::schedule::{Buffer, Slice, StepKind};
use crate::{Error, ErrorKind, Result};

/// How long a lost connection is kept back before it counts as the peer's fault: the control plane
/// usually names the true culprit within this time, where the connection only shows a peer that
/// gave up because of it.
const SUSPICION: Duration = Duration::from_millis(700);

/// How long channels and cards may take to come to rest after a failure.
const REST: Duration = Duration::from_secs(2);
/// How long a native library may after an abort: who aborts does not want to wait.
const REST_AFTER_ABORT: Duration = Duration::from_millis(500);

/// How often a card is asked whether it has met an error of its own.
const ASK_CARD: Duration = Duration::from_millis(10);

/// Longer than any operation may take.
const FAR: Duration = Duration::from_secs(1 << 20);

/// Operations that wait for their turn in one order: all collectives, or all messages to (or from)
/// one peer.
struct Line {
    key: (Lane, Option<(u32, bool)>),
    waiting: VecDeque<Arc<Operation>>,
    busy: bool,
    /// Since when an operation whose stream has reached it waits behind one that is not reached.
    blocked: Option<Instant>,
}

impl Line {
    /// The operation that must start next though its stream has not reached it, and one that waits
    /// behind it and could.
    fn blockade(&self) -> Option<(&Operation, &Operation)> {
        let front = self.waiting.front().filter(|front| !self.busy && !front.is_ready())?;
        let behind = self.waiting.iter().find(|operation| operation.is_ready())?;
        Some((front, behind))
    }
}

pub(super) struct State {
    rank: u32,
    pub(super) communicator: u64,
    epoch: u32,
    options: EngineOptions,
    pub(super) domains: Vec<Box<dyn Domain>>,
    pub(super) links: Links,
    pub(super) counters: Arc<Counters>,
    lines: Vec<Line>,
    pub(super) runs: Vec<Run>,
    /// Where buffers lie in a card's memory.
    pub(super) staging: Option<Staging>,
    /// What of its memory, and of pinned memory, NICs reach.
    pub(super) regions: Option<Regions>,
    pub(super) native: Option<Native>,
    card_asked: Option<Instant>,
    next_serial: u32,
    pool: Pool,
    completions: Vec<Completion>,
    /// The highest sequence heard from each peer, for stall reports.
    last_seen: Vec<Option<u64>>,
    suspicion: Option<(Error, Instant)>,
    inquiry: Option<Inquiry>,
    /// What writes the last operations down, if they are asked for.
    pub(super) flights: Option<Flights>,
}

impl State {
    pub(super) fn new(
        parts: &EngineParts,
        links: Links,
        domains: Vec<Box<dyn Domain>>,
        counters: Arc<Counters>,
        (staging, regions): (Option<Staging>, Option<Regions>),
    ) -> Self {
        Self {
            rank: parts.rank,
            communicator: parts.communicator,
            epoch: parts.epoch,
            options: parts.options,
            domains,
            links,
            counters,
            lines: Vec::new(),
            runs: Vec::new(),
            staging,
            regions,
            native: None,
            card_asked: None,
            next_serial: 0,
            pool: Pool::default(),
            completions: Vec::new(),
            last_seen: vec![None; parts.ranks as usize],
            suspicion: None,
            inquiry: None,
            flights: None,
        }
    }

    /// Puts an operation at the end of its line.
    pub(super) fn admit(&mut self, operation: Arc<Operation>) {
        if let Some(flights) = &mut self.flights {
            flights.called(&operation);
        }
        let key = line_key(&operation);
        let known = self.lines.iter().position(|line| line.key == key);
        let index = known.unwrap_or_else(|| {
            self.lines.push(Line { key, waiting: VecDeque::new(), busy: false, blocked: None });
            self.lines.len() - 1
        });
        self.lines[index].waiting.push_back(operation);
    }

    /// Whether operations wait or run.
    pub(super) fn has_operations(&self) -> bool {
        !self.runs.is_empty() || self.lines.iter().any(|line| !line.waiting.is_empty())
    }

    /// Whether operations run, could, or wait for what may never come.
    pub(super) fn has_work(&self) -> bool {
        !self.runs.is_empty()
            || self.inquiry.is_some()
            || self.startable().is_some()
            || self.lines.iter().any(|line| line.blockade().is_some())
    }

    /// The descriptors to poll when every domain is armed.
    pub(super) fn descriptors(&self) -> Vec<RawFd> {
        self.domains.iter().map(|domain| domain.event_descriptor()).collect()
    }

    fn startable(&self) -> Option<usize> {
        self.lines
            .iter()
            .position(|line| !line.busy && line.waiting.front().is_some_and(|op| op.is_ready()))
    }

    /// Does everything that can be done without waiting. Says whether anything moved.
    pub(super) fn advance(&mut self) -> Result<bool> {
        let mut moved = false;
        while let Some(line) = self.startable() {
            moved = true;
            self.start(line)?;
        }
        moved |= self.progress_domains()?;
        moved |= self.land()?;
        moved |= self.land_native()?;
        moved |= self.take_turns()?;
        for index in (0..self.runs.len()).rev() {
            if self.staging.is_some() {
                moved |= self.begin_work(index)?;
            } else if let Some(step) = self.runs[index].work.pop_front() {
                moved = true;
                self.do_work(index, step)?;
                self.complete_step(index, step)?;
            }
            if self.runs[index].left == 0 {
                moved = true;
                self.end_run(index);
            }
        }
        moved |= self.compute()?;
        Ok(moved)
    }

    fn start(&mut self, line: usize) -> Result<()> {
        let operation = self.lines[line]
            .waiting
            .pop_front()
            .unwrap_or_else(|| unreachable!("the line was found because its front is ready"));
        self.lines[line].busy = true;
        if let Some(flights) = &mut self.flights {
            flights.started(&operation);
        }
        let program = Arc::clone(&operation.program);
        let schedule = program.schedule();
        let serial = self.next_serial;
        self.next_serial = self.next_serial.wrapping_add(1);
        let steps = schedule.steps.len();
        let (scratch, staged) = match &self.staging {
            None => (Scratch::Host(self.pool.take(scratch_bytes(schedule))?), StagedRun::default()),
            Some(staging) => {
                let (pinned, on_card) = (schedule.scratch_bytes, schedule.device_scratch_bytes);
                let natural = natural::bytes(&program, operation.send, operation.receive);
                let scratch = staging.scratch(pinned, on_card, natural)?;
                (scratch, StagedRun::new(program.queues.len()))
            }
        };
        self.runs.push(Run {
            serial,
            scratch,
            staged,
            turn: Turn::new(&program),
            native_issued: 0,
            native_done: 0,
            waiting_for: program.dependency_counts.clone(),
            released: vec![false; steps],
            posted: vec![0; program.queues.len()],
            in_flight: vec![0; program.queues.len()],
            work: VecDeque::new(),
            left: steps,
            started: Instant::now(),
            stall_told: false,
            operation,
            program: Arc::clone(&program),
        });
        let index = self.runs.len() - 1;
        for step in 0..steps as u32 {
            if program.dependency_counts[step as usize] == 0 {
                self.release(index, step)?;
            }
        }
        Ok(())
    }

    /// A step's dependencies are met: posts it, or puts it among the work to do.
    fn release(&mut self, index: usize, step: u32) -> Result<()> {
        let run = &mut self.runs[index];
        let queue = run.program.queue_of[step as usize];
        let kind = &run.program.schedule().steps[step as usize].kind;
        if matches!(kind, StepKind::Native { .. }) {
            run.released[step as usize] = true;
            return self.issue_native(index);
        }
        if queue == NO_QUEUE {
            run.work.push_back(step);
            return Ok(());
        }
        run.released[step as usize] = true;
        self.post_queue(index, queue)
    }

    /// Posts the messages of a queue whose dependencies are met, in their order; where buffers lie on a card,
    /// as far as copies from there have landed.
    pub(super) fn post_queue(&mut self, index: usize, queue: u32) -> Result<()> {
        self.stage_queue(index, queue)?;
        let program = Arc::clone(&self.runs[index].program);
        let steps = &program.queues[queue as usize].steps;
        let on_card = self.staging.is_some();
        loop {
            let run = &self.runs[index];
            let next = run.posted[queue as usize] as usize;
            match steps.get(next) {
                Some(step)
                    if run.released[*step as usize]
                        && (!on_card || run.is_staged(queue, *step)) =>
                {
                    self.post(index, queue, *step)?;
                    self.runs[index].posted[queue as usize] += 1;
                }
                _ => return Ok(()),
            }
        }
    }

    fn post(&mut self, index: usize, queue: u32, step: u32) -> Result<()> {
        self.tell_turn(index, step);
        let run = &mut self.runs[index];
        let (peer, slice, kind, message_index, offset, sends) =
            match run.program.schedule().steps[step as usize].kind {
                StepKind::Send { peer, index, source, offset } => {
                    (peer, Some(source), Kind::Data, index, offset, true)
                }
                StepKind::Recv { peer, index, destination, offset } => {
                    (peer, Some(destination), Kind::Data, index, offset, false)
                }
                StepKind::GateSend { peer, round } => (peer, None, Kind::Gate, round, 0, true),
                StepKind::GateRecv { peer, round } => (peer, None, Kind::Gate, round, 0, false),
                StepKind::Copy { .. }
                | StepKind::Reduce { .. }
                | StepKind::Scale { .. }
                | StepKind::Native { .. } => unreachable!("local work is in no queue"),
            };
        run.in_flight[queue as usize] += 1;
        let envelope = Envelope {
            kind,
            lane: run.operation.lane,
            epoch: self.epoch,
            communicator: self.communicator,
            offset,
            index: message_index,
            fingerprint: run.operation.fingerprint_of(step),
        }
        .encode();
        let token = u64::from(run.serial) << u32::BITS | u64::from(step);
        let path = run.path_of(step);
        let (domain, channel) = self.links.channel(&mut self.domains, peer, run.operation.lane)?;
        let segment = match slice {
            Some(slice) => Some(self.segment(index, step, slice, domain)),
            None => self.runs[index].turn_segment(step),
        };
        let segments = segment.as_slice();
        let domain = &mut self.domains[domain];
        let posted = if sends {
            self.counters.sent(peer, segment.map_or(0, |segment| segment.length), path);
            // SAFETY: the slice lies in the user's send buffer, which whoever asked for the
            // operation keeps valid until it is over, or in scratch, pinned memory or a turn's messages,
            // which the run owns; the schedule orders every write to it after this step's completion.
            unsafe { domain.post_send(channel, token, segments, &envelope) }
        } else {
            // SAFETY: as above; the schedule orders every other use of the bytes before this step
            // or after its completion.
            unsafe { domain.post_receive(channel, token, segments, &envelope) }
        };
        let operation = Arc::clone(&self.runs[index].operation);
        match posted {
            Ok(()) => Ok(()),
            // The channel failed a moment ago; what is known of that is on its way.
            Err(error) if error.kind() == ErrorKind::PeerLost => {
                self.suspect(peer, &operation, &error);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Mismatch => {
                self.suspect_refusal(peer, &operation, error);
                Ok(())
            }
            Err(error) => Err(Error::new(
                error.kind(),
                format!("{operation}: rank {} cannot reach rank {peer}", self.rank),
            )
            .with_rank(peer)
            .with_source(error)),
        }
    }

    /// Takes an allocation that nobody uses any more back from every NIC.
    pub(super) fn forget(&mut self, allocation: u64) {
        if let Some(regions) = &mut self.regions {
            regions.forget(&mut self.domains, allocation);
        }
    }

    /// Where a message lies, as its transport is told.
    fn segment(&mut self, index: usize, step: u32, slice: Slice, domain: usize) -> Segment {
        let run = &self.runs[index];
        let length = slice.bytes;
        let (address, pinned) = match (run.staged(step), &run.scratch) {
            (Some(Staged::OnCard(place)), _) => {
                let address = std::ptr::without_provenance_mut(place.address);
                return Segment { address, length, key: place.key };
            }
            (Some(Staged::Pinned(block)), _) => (block.pointer(), Some(block)),
            (None, Scratch::Card { pinned, .. }) if slice.buffer == Buffer::Scratch => {
                (run.address(slice), pinned.as_ref())
            }
            (None, _) => (run.address(slice), None),
        };
        let regions = self.regions.as_mut().zip(pinned).filter(|_| length > 0);
        let key =
            regions.map_or(0, |(regions, block)| regions.key_of(&mut self.domains, domain, block));
        Segment { address: address.cast(), length, key }
    }

    /// Keeps back the news of a lost peer for a moment; see [`SUSPICION`].
    fn suspect(&mut self, peer: u32, what: &dyn std::fmt::Display, source: &Error) {
        if self.suspicion.is_none() {
            let error = Error::new(
                ErrorKind::PeerLost,
                format!("{what}: rank {peer} is gone (the connection to it ended)"),
            )
            .with_rank(peer)
            .with_source(source.clone());
            self.hold_back(error);
        }
    }

    /// The peer has refused a message or the link, and tells all ranks what differs.
    fn suspect_refusal(&mut self, peer: u32, what: &dyn std::fmt::Display, source: Error) {
        let text = format!("{what}: rank {peer} expected something else");
        self.hold_back(Error::new(ErrorKind::Mismatch, text).with_rank(peer).with_source(source));
    }

    /// Gives the control plane a moment to tell more than this error does.
    fn hold_back(&mut self, error: Error) {
        self.suspicion.get_or_insert_with(|| (error, Instant::now() + SUSPICION));
    }

    fn progress_domains(&mut self) -> Result<bool> {
        let mut moved = false;
        for index in 0..self.domains.len() {
            let mut completions = std::mem::take(&mut self.completions);
            let progressed = self.domains[index].progress(&mut completions);
            let result = progressed.and_then(|()| {
                completions.iter().try_for_each(|completion| {
                    moved = true;
                    self.completed(index, completion)
                })
            });
            completions.clear();
            self.completions = completions;
            result?;
        }
        Ok(moved)
    }

    fn completed(&mut self, domain: usize, completion: &Completion) -> Result<()> {
        let status = Status::from_code(completion.status).unwrap_or(Status::Internal);
        let peer = self.links.peer(domain, completion.channel);
        if completion.kind == completion_kind::CHANNEL_FAILED {
            return self.channel_failed(domain, completion, status, peer);
        }
        let serial = (completion.token >> u32::BITS) as u32;
        let step = completion.token as u32;
        let Some(index) = self.runs.iter().position(|run| run.serial == serial) else {
            return Ok(());
        };
        if status != Status::Ok {
            return self.message_failed(domain, completion, status, peer, index);
        }
        let run = &mut self.runs[index];
        let queue = run.program.queue_of[step as usize];
        run.in_flight[queue as usize] -= 1;
        if completion.kind == completion_kind::RECEIVE
            && let Some((peer, lane)) = peer
        {
            self.counters.received(peer, completion.length, run.path_of(step));
            if lane == Lane::Collective {
                self.last_seen[peer as usize] = Some(run.operation.fingerprint.sequence);
            }
        }
        if !self.end_transfer(index, step)? {
            return Ok(());
        }
        self.hear_turn(index, step);
        self.complete_step(index, step)?;
        // The next messages of the queue may wait for the memory of this one.
        if self.staging.is_some() { self.post_queue(index, queue) } else { Ok(()) }
    }

    fn channel_failed(
        &mut self,
        domain: usize,
        completion: &Completion,
        status: Status,
        peer: Option<(u32, Lane)>,
    ) -> Result<()> {
        let Some((peer, lane)) = peer else { return Ok(()) };
        let needed = self.runs.iter().any(|run| {
            run.operation.lane == lane
                && run.program.queues.iter().zip(&run.posted).any(|(queue, posted)| {
                    queue.peer == peer && (*posted as usize) < queue.steps.len()
                })
        });
        if !needed {
            // Messages that were posted tell of it themselves; nobody else waits for this peer now.
            return Ok(());
        }
        self.lost(domain, completion, status, peer, &"a link failed")
    }

    fn lost(
        &mut self,
        domain: usize,
        completion: &Completion,
        status: Status,
        peer: u32,
        what: &dyn std::fmt::Display,
    ) -> Result<()> {
        let domain = &mut self.domains[domain];
        let detail =
            domain.failure(completion.channel).unwrap_or_else(|| match completion.vendor_code {
                0 => status.name().to_owned(),
                code => std::io::Error::from_raw_os_error(code as i32).to_string(),
            });
        let source = Error::new(ErrorKind::TransportError, format!("{}: {detail}", domain.name()));
        if status == Status::PeerLost {
            self.suspect(peer, what, &source);
            return Ok(());
        }
        if status == Status::Mismatch {
            self.suspect_refusal(peer, what, source);
            return Ok(());
        }
        let kind = match status {
            Status::Timeout => ErrorKind::Timeout,
            Status::Unauthenticated => ErrorKind::Authentication,
            Status::OutOfResources => ErrorKind::OutOfResources,
            Status::Panic => ErrorKind::PluginPanic,
            _ => ErrorKind::TransportError,
        };
        Err(Error::new(kind, format!("{what}: the link to rank {peer} failed"))
            .with_rank(peer)
            .with_source(source))
    }

    fn message_failed(
        &mut self,
        domain: usize,
        completion: &Completion,
        status: Status,
        peer: Option<(u32, Lane)>,
        index: usize,
    ) -> Result<()> {
        let operation = Arc::clone(&self.runs[index].operation);
        let (peer, _) = peer.unwrap_or((u32::MAX, operation.lane));
        // Without an envelope it is the peer that got another message than it expected.
        if status == Status::Mismatch && completion.envelope.iter().any(|byte| *byte != 0) {
            return Err(self.mismatch(&operation, completion, peer));
        }
        if status == Status::Aborted {
            return Ok(());
        }
        self.lost(domain, completion, status, peer, &operation)
    }

    /// Says how two ranks' calls differ, the lower rank first, so that both say the same.
    fn mismatch(&self, operation: &Operation, completion: &Completion, peer: u32) -> Error {
        let Some(theirs) = Envelope::decode(&completion.envelope) else {
            return Error::new(
                ErrorKind::VersionMismatch,
                format!("{operation}: rank {peer} sent an envelope of another version of iccl"),
            )
            .with_rank(peer);
        };
        if theirs.communicator != self.communicator || theirs.epoch != self.epoch {
            return Error::new(
                ErrorKind::Internal,
                format!("{operation}: a message of another communicator or epoch came"),
            )
            .with_rank(peer);
        }
        let ours = &operation.fingerprint_of(completion.token as u32);
        let field = ours.difference(&theirs.fingerprint).unwrap_or("message");
        let mut sides = [(self.rank, *ours), (peer, theirs.fingerprint)];
        sides.sort_by_key(|(rank, _)| *rank);
        let [(low, at_low), (high, at_high)] = sides;
        Error::new(
            ErrorKind::Mismatch,
            format!(
                "ranks called different operations: rank {low} {at_low}, rank {high} {at_high}"
            ),
        )
        .with("field", field)
        .with_hint("all ranks of a communicator must make the same calls in the same order")
    }

    pub(super) fn complete_step(&mut self, index: usize, step: u32) -> Result<()> {
        self.runs[index].left -= 1;
        let program = Arc::clone(&self.runs[index].program);
        for successor in program.successors(step) {
            let waiting_for = &mut self.runs[index].waiting_for[*successor as usize];
            *waiting_for -= 1;
            if *waiting_for == 0 {
                self.release(index, *successor)?;
            }
        }
        Ok(())
    }

    /// Does a copy, a reduction or a multiplication on this thread.
    fn do_work(&mut self, index: usize, step: u32) -> Result<()> {
        let run = &self.runs[index];
        let schedule = run.program.schedule();
        match &schedule.steps[step as usize].kind {
            StepKind::Copy { source, destination } => {
                // SAFETY: both slices lie in memory that is valid until the operation is over, they
                // do not overlap (the schedule's contract), and no step that is in flight touches
                // them in a conflicting way.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        run.address(*source),
                        run.address(*destination),
                        source.bytes as usize,
                    );
                }
                Ok(())
            }
            StepKind::Scale { source, destination } => {
                // SAFETY: as above; whoever asked for the operation keeps the scalar valid likewise.
                unsafe {
                    arithmetic::scale(
                        &run.operation,
                        run.address(*destination),
                        run.address(*source),
                        run.operation.scalar,
                        destination.bytes,
                    );
                }
                Ok(())
            }
            StepKind::Reduce { sources, destination, finish } => {
                let sources: Vec<*const u8> = schedule
                    .sources(sources)
                    .iter()
                    .map(|slice| run.address(*slice).cast_const())
                    .collect();
                let address = run.address(*destination);
                // SAFETY: as above; the destination equals a source or overlaps none.
                unsafe {
                    arithmetic::reduce(
                        &run.operation,
                        *finish,
                        address,
                        &sources,
                        destination.bytes,
                    )
                }
            }
            StepKind::Send { .. }
            | StepKind::Recv { .. }
            | StepKind::GateSend { .. }
            | StepKind::GateRecv { .. } => unreachable!("messages are posted, not worked"),
            StepKind::Native { .. } => unreachable!("native calls are issued, not worked"),
        }
    }

    fn end_run(&mut self, index: usize) {
        let run = self.runs.swap_remove(index);
        match run.scratch {
            Scratch::Host(block) => self.pool.give_back(block),
            on_card @ Scratch::Card { .. } => drop((on_card, run.staged)),
        }
        if let Some(flights) = &mut self.flights {
            flights.done(&run.operation);
        }
        self.free_line(&run.operation);
        self.counters.operation_done(run.operation.program.schedule.algorithm);
        run.operation.finish(Ok(()));
        self.counters.operation_over();
    }

    fn free_line(&mut self, operation: &Operation) {
        let key = line_key(operation);
        if let Some(line) = self.lines.iter_mut().find(|line| line.key == key) {
            line.busy = false;
        }
    }

    /// What has run out of time, if anything; warns of what is slow. `now` is the present.
    pub(super) fn check_deadlines(&mut self, now: Instant) -> Result<()> {
        if let Some((error, until)) = &self.suspicion
            && now >= *until
        {
            return Err(error.clone());
        }
        for line in &mut self.lines {
            let Some((front, behind)) = line.blockade() else {
                line.blocked = None;
                continue;
            };
            let waited = now.duration_since(line.blocked.unwrap_or(now));
            if waited >= behind.timeout {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!(
                        "{behind} waited longer than {:?} behind {front}, which the work before it \
                         on its stream keeps from starting",
                        behind.timeout
                    ),
                )
                .with_hint("operations of a communicator start in the order of the calls"));
            }
            line.blocked.get_or_insert(now);
        }
        self.ask_card(now)?;
        if self.inquiry.is_none()
            && let Some(late) = self.runs.iter().find(|run| run.is_late(now))
        {
            let error = late.timeout(&self.last_seen);
            self.inquiry = Some(Inquiry::new(self.rank, error, late.waits_first_for()));
        }
        if let Some(inquiry) = &self.inquiry
            && now >= inquiry.until
        {
            return Err(inquiry.conclusion());
        }
        for run in &mut self.runs {
            let elapsed = now.duration_since(run.started);
            if elapsed >= self.options.stall_warn && !run.stall_told {
                run.stall_told = true;
                let (_, text) = run.waits_for(&self.last_seen);
                tracing::warn!(rank = self.rank, "{} {text}", run.operation);
            }
        }
        Ok(())
    }

    /// Whether the card has met an error of its own, if it was not asked a moment ago: nothing lands then.
    fn ask_card(&mut self, now: Instant) -> Result<()> {
        let asked = self.card_asked.is_some_and(|asked| now.duration_since(asked) < ASK_CARD);
        if asked || self.staging.is_none() {
            return Ok(());
        }
        self.card_asked = Some(now);
        self.check_card()
    }

    /// Another rank's operation has run out of time: says whom that one waits for (itself, if it is
    /// in no operation), so that all find out who keeps the others waiting.
    pub(super) fn hear(&mut self, origin: u32, waits_for: Option<u32>, told: &Error) {
        if self.inquiry.is_none() {
            let waits_first_for = match self.runs.first() {
                Some(run) => run.waits_first_for(),
                None => Some(self.rank),
            };
            let error = match self.runs.first() {
                Some(run) => run.timeout(&self.last_seen),
                None => told.clone(),
            };
            self.inquiry = Some(Inquiry::new(self.rank, error, waits_first_for));
        }
        if let Some(inquiry) = &mut self.inquiry {
            inquiry.waits.entry(origin).or_insert(waits_for);
        }
    }

    /// What the other ranks must be told of this one's waiting; once.
    pub(super) fn take_report(&mut self) -> Option<Error> {
        let inquiry = self.inquiry.as_mut().filter(|inquiry| !inquiry.told)?;
        inquiry.told = true;
        let waits_for = inquiry.waits.get(&self.rank).copied().flatten();
        let report = Error::new(ErrorKind::Timeout, inquiry.error.message());
        Some(match waits_for {
            Some(peer) => report.with_rank(peer),
            None => report,
        })
    }

    /// When something may run out of time next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let suspicion = self.suspicion.as_ref().map(|(_, until)| *until);
        let runs = self.runs.iter().map(|run| {
            // Once there is an inquiry, its end counts.
            let timeout = if self.inquiry.is_some() { FAR } else { run.operation.timeout };
            let limit = if run.stall_told { timeout } else { timeout.min(self.options.stall_warn) };
            run.started + limit
        });
        let inquiry = self.inquiry.as_ref().map(|inquiry| inquiry.until);
        let blocked = self.lines.iter().filter_map(|line| {
            let (_, behind) = line.blockade()?;
            Some(line.blocked.unwrap_or_else(Instant::now) + behind.timeout)
        });
        runs.chain(suspicion).chain(inquiry).chain(blocked).min()
    }

    /// Ends everything with `error`: no memory of an operation is touched after this.
    pub(super) fn fail(&mut self, error: &Error) {
        if let Some(flights) = &mut self.flights {
            flights.write(error, &self.runs, &self.last_seen);
        }
        let links_rest = self.links.quiesce(&mut self.domains, REST);
        let is_abort = error.kind() == ErrorKind::Aborted;
        let native_rests = self.rest_native(if is_abort { REST_AFTER_ABORT } else { REST });
        let all_rest = self.rest_card(REST) && links_rest && native_rests;
        let waiting = self.lines.drain(..).flat_map(|line| line.waiting);
        let started = self.runs.drain(..).map(|mut run| {
            if !all_rest {
                // A transport or the card may still write there.
                run.turn.leak_messages();
                std::mem::forget((run.scratch, run.staged));
                run.operation.leak_buffers();
            }
            run.operation
        });
        let operations: Vec<_> = started.chain(waiting).collect();
        self.suspicion = None;
        self.inquiry = None;
        for operation in operations {
            operation.finish(Err(error.clone()));
        }
    }
}

/// The line that an operation stands in.
fn line_key(operation: &Operation) -> (Lane, Option<(u32, bool)>) {
    let schedule = operation.program.schedule();
    let peer = match schedule.collective {
        Collective::Send => Some((schedule.root, true)),
        Collective::Recv => Some((schedule.root, false)),
        _ => None,
    };
    (operation.lane, peer)
}
