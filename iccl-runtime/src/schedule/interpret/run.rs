//! Runs all ranks, in a random order, under the rules of the room's introduction.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::types::{Finish, Schedule, Slice, StepKind};
use super::check::check;
use super::fault::Fault;
use super::memory::{Memory, Piece};
use super::native;
use super::shapes::{Shape, Shapes};

/// How far a send can go without its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffering {
    /// A send completes only after its receive was posted.
    Rendezvous,
    /// Every send completes as soon as it likes.
    Unbounded,
}

/// How to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How far a send can go without its receiver.
    pub buffering: Buffering,
    /// What goes first, and when bytes are read and written, follows from this number.
    pub seed: u64,
}

/// What memory holds after all ranks are done.
#[derive(Debug)]
pub struct Outcome<'a> {
    pub(super) schedules: &'a [Schedule],
    pub(super) memories: Vec<Memory>,
    pub(super) shapes: Shapes,
}

/// Checks every schedule ([`check`]) and runs them all together. `schedules` holds those of the
/// ranks that take part, in any order, each rank at most once.
///
/// # Errors
///
/// The first [`Fault`] met. Whether the results are right is left to [`Outcome::verify`].
pub fn interpret(schedules: &[Schedule], options: Options) -> Result<Outcome<'_>, Fault> {
    for schedule in schedules {
        check(schedule)?;
    }
    let mut run = Run::new(schedules, options);
    run.start();
    while let Some(action) = run.take_any() {
        run.act(action)?;
    }
    run.require_end()?;
    Ok(Outcome {
        schedules,
        memories: run.ranks.into_iter().map(|rank| rank.memory).collect(),
        shapes: run.shapes,
    })
}

/// Something that can happen next. Ranks are given as places in the list of schedules.
#[derive(Clone, Copy, Debug)]
enum Action {
    /// A message or a native call starts.
    Post { place: usize, step: u32 },
    /// A copy or a reduction happens.
    Local { place: usize, step: u32 },
    /// A native call that the whole island has issued happens.
    Native { island: usize, ordinal: usize },
    /// A message that both sides have posted is transferred.
    Transfer { channel: usize, ordinal: usize },
    /// A message or a native call ends.
    Complete { place: usize, step: u32 },
}

#[derive(Clone, Debug)]
enum Payload {
    Data(Vec<Piece>),
    /// What a native call gives, slice by slice.
    Blocks(Vec<Vec<Piece>>),
    /// The ranks whose fingerprints the message carries, as a set of bits.
    Gate(Vec<u64>),
}

struct Run<'a> {
    ranks: Vec<Rank<'a>>,
    channels: Vec<Channel>,
    islands: Vec<Group>,
    shapes: Shapes,
    possible: Vec<Action>,
    buffering: Buffering,
    random: Random,
}

struct Rank<'a> {
    schedule: &'a Schedule,
    memory: Memory,
    /// How many dependencies of each step are not complete.
    blockers: Vec<u32>,
    dependents: Vec<Vec<u32>>,
    done: Vec<bool>,
    /// The channel of each message step, and which message of it the step is; of each native call, the
    /// place of the island, and which call it is.
    seat: Vec<(usize, usize)>,
    native_calls: Vec<u32>,
    issued: usize,
    /// What native calls that are issued have read already.
    given: HashMap<u32, Vec<Vec<Piece>>>,
    /// What receives and native calls have got but not yet written.
    arrived: HashMap<u32, Payload>,
    /// Whose fingerprints are known after each gate receive; in the exchange of turns, whose turns.
    known: HashMap<u32, Vec<u64>>,
}

/// The messages of one ordered pair of ranks.
#[derive(Default)]
struct Channel {
    from: u32,
    to: u32,
    sender: Option<usize>,
    receiver: Option<usize>,
    sends: Vec<u32>,
    recvs: Vec<u32>,
    posted_sends: usize,
    posted_recvs: usize,
    payloads: HashMap<usize, Payload>,
}

/// The ranks of an island, as places in the list of schedules.
struct Group {
    ranks: Arc<[u32]>,
    places: Vec<usize>,
}

impl Group {
    fn of(ranks: &Arc<[u32]>, schedules: &[Schedule]) -> Self {
        let is_member = |schedule: &Schedule| ranks.contains(&schedule.rank);
        let mut places: Vec<usize> =
            (0..schedules.len()).filter(|place| is_member(&schedules[*place])).collect();
        places.sort_by_key(|place| schedules[*place].rank);
        Self { ranks: Arc::clone(ranks), places }
    }

    /// Whether all its ranks make as many native calls, on this island.
    fn require_equal(&self, ranks: &[Rank<'_>]) -> Result<(), Fault> {
        let calls_of = |place: &usize| {
            let rank = &ranks[*place];
            let is_here = rank.schedule.island.as_ref() == Some(&self.ranks);
            if is_here { rank.native_calls.len() as u64 } else { 0 }
        };
        let rank_of = |place: &usize| ranks[*place].schedule.rank;
        let (Some(first), true) = (self.places.first(), self.places.len() == self.ranks.len())
        else {
            let (first, calls) = (self.ranks[0], 0);
            return Err(Fault::NativeUnmatched { first, calls, second: first, others: 0 });
        };
        let calls = calls_of(first);
        match self.places.iter().find(|place| calls_of(place) != calls) {
            None => Ok(()),
            Some(other) => Err(Fault::NativeUnmatched {
                first: rank_of(first),
                calls,
                second: rank_of(other),
                others: calls_of(other),
            }),
        }
    }
}

impl<'a> Run<'a> {
    fn new(schedules: &'a [Schedule], options: Options) -> Self {
        let mut shapes = Shapes::default();
        let mut channels: Vec<Channel> = Vec::new();
        let mut islands: Vec<Group> = Vec::new();
        let mut places = HashMap::new();
        let mut ranks = Vec::new();
        for (place, schedule) in schedules.iter().enumerate() {
            let own = shapes.number(Shape::Own(schedule.rank));
            let mut rank = Rank::new(schedule, Memory::new(schedule, own));
            for (index, step) in schedule.steps.iter().enumerate() {
                if let (StepKind::Native { .. }, Some(on)) = (&step.kind, &schedule.island) {
                    let known = islands.iter().position(|island| island.ranks == *on);
                    let island = known.unwrap_or_else(|| {
                        islands.push(Group::of(on, schedules));
                        islands.len() - 1
                    });
                    rank.seat[index] = (island, rank.native_calls.len());
                    rank.native_calls.push(index as u32);
                    continue;
                }
                let Some(peer) = step.kind.peer() else { continue };
                let sends = matches!(step.kind, StepKind::Send { .. } | StepKind::GateSend { .. });
                let (from, to) = if sends { (schedule.rank, peer) } else { (peer, schedule.rank) };
                let channel = *places.entry((from, to)).or_insert_with(|| {
                    channels.push(Channel { from, to, ..Channel::default() });
                    channels.len() - 1
                });
                let queue = if sends {
                    channels[channel].sender = Some(place);
                    &mut channels[channel].sends
                } else {
                    channels[channel].receiver = Some(place);
                    &mut channels[channel].recvs
                };
                rank.seat[index] = (channel, queue.len());
                queue.push(index as u32);
            }
            ranks.push(rank);
        }
        let random = Random(options.seed);
        let buffering = options.buffering;
        Self { ranks, channels, islands, shapes, possible: Vec::new(), buffering, random }
    }

    fn start(&mut self) {
        for place in 0..self.ranks.len() {
            for step in 0..self.ranks[place].blockers.len() {
                if self.ranks[place].blockers[step] == 0 {
                    self.on_ready(place, step as u32);
                }
            }
        }
    }

    fn take_any(&mut self) -> Option<Action> {
        let count = self.possible.len() as u64;
        (count > 0).then(|| self.possible.swap_remove((self.random.next() % count) as usize))
    }

    fn act(&mut self, action: Action) -> Result<(), Fault> {
        match action {
            Action::Post { place, step } => self.post(place, step),
            Action::Local { place, step } => {
                self.ranks[place].compute(step, &mut self.shapes)?;
                self.complete(place, step);
                Ok(())
            }
            Action::Native { island, ordinal } => self.perform(island, ordinal),
            Action::Transfer { channel, ordinal } => self.transfer(channel, ordinal),
            Action::Complete { place, step } => {
                let rank = &mut self.ranks[place];
                if rank.sends(step) {
                    self.capture(place, step)?;
                } else {
                    rank.store(step)?;
                }
                self.complete(place, step);
                Ok(())
            }
        }
    }

    /// All dependencies of the step are complete. A message waits further until it is the next one
    /// to be posted to its peer, a native call until it is the next one to be issued.
    fn on_ready(&mut self, place: usize, step: u32) {
        let rank = &self.ranks[place];
        if rank.is_native(step) {
            if rank.seat[step as usize].1 == rank.issued {
                self.possible.push(Action::Post { place, step });
            }
            return;
        }
        if rank.kind(step).peer().is_none() {
            self.possible.push(Action::Local { place, step });
            return;
        }
        let (channel, ordinal) = rank.seat[step as usize];
        let channel = &self.channels[channel];
        let next = if rank.sends(step) { channel.posted_sends } else { channel.posted_recvs };
        if ordinal == next {
            self.possible.push(Action::Post { place, step });
        }
    }

    /// A rank issues a native call.
    fn issue(&mut self, place: usize, step: u32) -> Result<(), Fault> {
        let (reads_now, disturbs) = (self.random.coin(), self.random.coin());
        let rank = &mut self.ranks[place];
        let (island, ordinal) = rank.seat[step as usize];
        rank.issued += 1;
        // In place, what is read must be known before it is disturbed.
        if reads_now || disturbs {
            let given = rank.read_all(step)?;
            rank.given.insert(step, given);
        }
        if disturbs {
            for destination in rank.schedule.writes(rank.kind(step)) {
                rank.memory.disturb(*destination, step);
            }
        }
        if let Some(follower) = rank.native_calls.get(ordinal + 1).copied()
            && rank.blockers[follower as usize] == 0
        {
            self.possible.push(Action::Post { place, step: follower });
        }
        let places = &self.islands[island].places;
        if places.iter().all(|other| self.ranks[*other].issued > ordinal) {
            self.possible.push(Action::Native { island, ordinal });
        }
        Ok(())
    }

    /// All ranks of the island have issued their call number `ordinal`.
    fn perform(&mut self, island: usize, ordinal: usize) -> Result<(), Fault> {
        let places = self.islands[island].places.clone();
        let steps: Vec<u32> =
            places.iter().map(|place| self.ranks[*place].native_calls[ordinal]).collect();
        let mut calls = Vec::with_capacity(steps.len());
        let mut given = Vec::with_capacity(steps.len());
        for (place, step) in places.iter().zip(&steps) {
            let rank = &mut self.ranks[*place];
            let StepKind::Native { call, .. } = *rank.kind(*step) else {
                unreachable!("only native calls are in the list of native calls");
            };
            calls.push(call);
            let read_before = rank.given.remove(step);
            given.push(read_before.map_or_else(|| rank.read_all(*step), Ok)?);
        }
        let rank_of = |index: usize| self.ranks[places[index]].schedule.rank;
        if let Some(other) = calls.iter().position(|call| *call != calls[0]) {
            return Err(Fault::NativeDisagreement {
                first: rank_of(0),
                second: rank_of(other),
                ordinal: ordinal as u64,
                asked: native::text(&calls[0]),
                other: native::text(&calls[other]),
            });
        }
        if let Some((place, other)) = native::uneven(&calls[0], &given) {
            return Err(Fault::NativeDisagreement {
                first: rank_of(0),
                second: rank_of(place),
                ordinal: ordinal as u64,
                asked: native::text(&calls[0]),
                other,
            });
        }
        let first = &self.ranks[places[0]];
        let mut combine = |operands, finish, shapes: &mut Shapes| {
            first.combine(steps[0], operands, finish, shapes)
        };
        let results = native::perform(&calls[0], &given, &mut self.shapes, &mut combine)?;
        for ((place, step), result) in places.iter().zip(&steps).zip(&results) {
            let rank = &self.ranks[*place];
            let written = rank.schedule.writes(rank.kind(*step));
            if let Some((first, second)) = native::mismatch(written, result) {
                return Err(Fault::NativeDisagreement {
                    first: rank_of(first),
                    second: rank.schedule.rank,
                    ordinal: ordinal as u64,
                    asked: native::text(&calls[0]),
                    other: second,
                });
            }
        }
        for ((place, step), result) in places.into_iter().zip(steps).zip(results) {
            self.ranks[place].arrived.insert(step, Payload::Blocks(result));
            if self.random.coin() {
                self.ranks[place].store(step)?;
            }
            self.possible.push(Action::Complete { place, step });
        }
        Ok(())
    }

    fn post(&mut self, place: usize, step: u32) -> Result<(), Fault> {
        if self.ranks[place].is_native(step) {
            return self.issue(place, step);
        }
        let rank = &mut self.ranks[place];
        let (seat, ordinal) = rank.seat[step as usize];
        let channel = &mut self.channels[seat];
        let follower = if rank.sends(step) {
            channel.posted_sends += 1;
            channel.sends.get(ordinal + 1).copied()
        } else {
            channel.posted_recvs += 1;
            if let StepKind::Recv { destination, .. } = *rank.kind(step)
                && self.random.coin()
            {
                rank.memory.disturb(destination, step);
            }
            channel.recvs.get(ordinal + 1).copied()
        };
        if channel.posted_sends.min(channel.posted_recvs) > ordinal {
            self.possible.push(Action::Transfer { channel: seat, ordinal });
        }
        if let Some(follower) = follower
            && self.ranks[place].blockers[follower as usize] == 0
        {
            self.possible.push(Action::Post { place, step: follower });
        }
        if self.ranks[place].sends(step) {
            if self.random.coin() {
                self.capture(place, step)?;
            }
            if self.buffering == Buffering::Unbounded {
                self.possible.push(Action::Complete { place, step });
            }
        }
        Ok(())
    }

    /// A send reads its source, unless it has done so before.
    fn capture(&mut self, place: usize, step: u32) -> Result<(), Fault> {
        let (channel, ordinal) = self.ranks[place].seat[step as usize];
        if !self.channels[channel].payloads.contains_key(&ordinal) {
            let payload = self.ranks[place].payload(step)?;
            self.channels[channel].payloads.insert(ordinal, payload);
        }
        Ok(())
    }

    fn transfer(&mut self, channel: usize, ordinal: usize) -> Result<(), Fault> {
        let Channel { from, to, sender, receiver, ref sends, ref recvs, .. } =
            self.channels[channel];
        let (Some(sender), Some(receiver)) = (sender, receiver) else {
            unreachable!("both sides have posted this message");
        };
        let (send, recv) = (sends[ordinal], recvs[ordinal]);
        let fields = self.ranks[sender].envelope(send);
        let expected = self.ranks[receiver].envelope(recv);
        for ((field, sent), (_, expected)) in fields.into_iter().zip(expected) {
            if sent != expected {
                let ordinal = ordinal as u64;
                return Err(Fault::Disagreement { from, to, ordinal, field, sent, expected });
            }
        }
        self.capture(sender, send)?;
        let payload = self.channels[channel].payloads[&ordinal].clone();
        self.ranks[receiver].arrived.insert(recv, payload);
        if self.random.coin() {
            self.ranks[receiver].store(recv)?;
        }
        self.possible.push(Action::Complete { place: receiver, step: recv });
        if self.buffering == Buffering::Rendezvous {
            self.possible.push(Action::Complete { place: sender, step: send });
        }
        Ok(())
    }

    fn complete(&mut self, place: usize, step: u32) {
        self.ranks[place].done[step as usize] = true;
        for dependent in std::mem::take(&mut self.ranks[place].dependents[step as usize]) {
            let blockers = &mut self.ranks[place].blockers[dependent as usize];
            *blockers -= 1;
            if *blockers == 0 {
                self.on_ready(place, dependent);
            }
        }
    }

    /// Nothing is possible any more: all must be done, all messages received, all gates complete.
    fn require_end(&self) -> Result<(), Fault> {
        for channel in &self.channels {
            let (sends, receives) = (channel.sends.len() as u64, channel.recvs.len() as u64);
            if sends != receives {
                let Channel { from, to, .. } = *channel;
                return Err(Fault::Unmatched { from, to, sends, receives });
            }
        }
        self.islands.iter().try_for_each(|island| island.require_equal(&self.ranks))?;
        for rank in &self.ranks {
            let stuck = |step: &usize| !rank.done[*step] && rank.blockers[*step] == 0;
            if let Some(step) = (0..rank.done.len()).find(stuck) {
                let step = step as u32;
                let why = self.why_stuck(rank, step);
                return Err(Fault::Deadlock { rank: rank.schedule.rank, step, why });
            }
        }
        self.ranks.iter().try_for_each(Rank::require_whole_gate)
    }

    fn why_stuck(&self, rank: &Rank<'_>, step: u32) -> String {
        if rank.is_native(step) {
            let (island, ordinal) = rank.seat[step as usize];
            if rank.issued <= ordinal {
                let first = rank.native_calls[rank.issued];
                return format!("step {first}, a native call too, comes first");
            }
            let behind = |place: &&usize| self.ranks[**place].issued <= ordinal;
            let other = self.islands[island].places.iter().find(behind);
            let other = other.map_or(0, |place| self.ranks[*place].schedule.rank);
            return format!("rank {other} never comes to its native call {ordinal}");
        }
        let (channel, ordinal) = rank.seat[step as usize];
        let channel = &self.channels[channel];
        let Channel { from, to, posted_sends, posted_recvs, .. } = *channel;
        let sends = rank.sends(step);
        let posted = if sends { posted_sends } else { posted_recvs };
        if posted <= ordinal {
            let queue = if sends { &channel.sends } else { &channel.recvs };
            return format!("step {}, a message with the same peer, comes first", queue[posted]);
        }
        let (other, step) =
            if sends { (to, channel.recvs[ordinal]) } else { (from, channel.sends[ordinal]) };
        format!("rank {other} never comes to its step {step}")
    }
}

impl<'a> Rank<'a> {
    fn new(schedule: &'a Schedule, memory: Memory) -> Self {
        let count = schedule.steps.len();
        let mut dependents = vec![Vec::new(); count];
        let mut blockers = Vec::with_capacity(count);
        for (index, step) in schedule.steps.iter().enumerate() {
            let dependencies = schedule.dependencies(step);
            blockers.push(dependencies.len() as u32);
            for other in dependencies {
                dependents[*other as usize].push(index as u32);
            }
        }
        Self {
            schedule,
            memory,
            blockers,
            dependents,
            done: vec![false; count],
            seat: vec![(0, 0); count],
            native_calls: Vec::new(),
            issued: 0,
            given: HashMap::new(),
            arrived: HashMap::new(),
            known: HashMap::new(),
        }
    }

    fn kind(&self, step: u32) -> &'a StepKind {
        &self.schedule.steps[step as usize].kind
    }

    fn is_native(&self, step: u32) -> bool {
        matches!(self.kind(step), StepKind::Native { .. })
    }

    fn sends(&self, step: u32) -> bool {
        matches!(self.kind(step), StepKind::Send { .. } | StepKind::GateSend { .. })
    }

    /// What both ends of a message must agree on.
    fn envelope(&self, step: u32) -> Vec<(&'static str, u64)> {
        let kind = self.kind(step);
        match kind {
            StepKind::Send { index, source: slice, offset, .. }
            | StepKind::Recv { index, destination: slice, offset, .. } => vec![
                ("gate", 0),
                ("count", self.schedule.block_count(kind).unwrap_or(self.schedule.count)),
                ("index", u64::from(*index)),
                ("offset", *offset),
                ("length", slice.bytes),
            ],
            StepKind::GateSend { round, .. } | StepKind::GateRecv { round, .. } => {
                vec![("gate", 1), ("round", u64::from(*round))]
            }
            StepKind::Copy { .. }
            | StepKind::Reduce { .. }
            | StepKind::Scale { .. }
            | StepKind::Native { .. } => Vec::new(),
        }
    }

    /// All that a native call reads.
    fn read_all(&mut self, step: u32) -> Result<Vec<Vec<Piece>>, Fault> {
        let slices = self.schedule.reads(self.kind(step)).iter();
        slices.map(|slice| self.read(*slice, step)).collect()
    }

    fn read(&mut self, slice: Slice, step: u32) -> Result<Vec<Piece>, Fault> {
        self.memory.read(slice, self.schedule.rank, step)
    }

    /// A copy, a reduction, or a multiplication by the rank's scalar.
    fn compute(&mut self, step: u32, shapes: &mut Shapes) -> Result<(), Fault> {
        match self.kind(step) {
            StepKind::Copy { source, destination } => {
                let pieces = self.read(*source, step)?;
                self.memory.write(*destination, &pieces);
            }
            StepKind::Scale { source, destination } => {
                let mut pieces = self.read(*source, step)?;
                let rank = self.schedule.rank;
                for piece in &mut pieces {
                    if *shapes.get(piece.shape) != Shape::Own(rank) {
                        let what = format!("it multiplies {}", shapes.text(piece.shape));
                        return Err(Fault::Malformed { rank, step, what });
                    }
                    piece.shape = shapes.number(Shape::Scaled(rank));
                }
                self.memory.write(*destination, &pieces);
            }
            StepKind::Reduce { sources, destination, finish } => {
                let operands = self.schedule.sources(sources).iter();
                let operands: Vec<Vec<Piece>> =
                    operands.map(|source| self.read(*source, step)).collect::<Result<_, _>>()?;
                let result = self.combine(step, operands, *finish, shapes)?;
                self.memory.write(*destination, &result);
            }
            other => unreachable!("{other:?} is no local work"),
        }
        Ok(())
    }

    /// Combines operands of equal length, run by run.
    fn combine(
        &self,
        step: u32,
        mut operands: Vec<Vec<Piece>>,
        finish: Finish,
        shapes: &mut Shapes,
    ) -> Result<Vec<Piece>, Fault> {
        for operand in &mut operands {
            operand.reverse();
        }
        let mut result = Vec::new();
        while let Some(first) = operands[0].last().copied() {
            let lengths = operands.iter().filter_map(|operand| operand.last());
            let bytes = lengths.map(|piece| piece.bytes).min().unwrap_or(0);
            let mut parts = Vec::with_capacity(operands.len());
            for operand in &mut operands {
                let Some(piece) = operand.last_mut() else {
                    unreachable!("the check found operands of equal length");
                };
                if piece.origin != first.origin {
                    let rank = self.schedule.rank;
                    let (first, second) = (first.origin, piece.origin);
                    return Err(Fault::Misaligned { rank, step, first, second });
                }
                parts.push(piece.shape);
                piece.origin += bytes;
                piece.bytes -= bytes;
                if piece.bytes == 0 {
                    operand.pop();
                }
            }
            let shape = shapes.number(Shape::Combined { operands: parts, finish });
            result.push(Piece { bytes, shape, origin: first.origin });
        }
        Ok(result)
    }

    /// What a send sends.
    fn payload(&mut self, step: u32) -> Result<Payload, Fault> {
        match self.kind(step) {
            StepKind::Send { source, .. } => Ok(Payload::Data(self.read(*source, step)?)),
            kind => {
                // A turn is offered when all are known to have begun.
                if self.schedule.is_of_turn(kind) {
                    self.require_all(&self.fingerprints_before(step, false), step)?;
                }
                Ok(Payload::Gate(self.known_before(step)))
            }
        }
    }

    /// A receive or a native call puts away what has arrived for it, if it has not done so before.
    fn store(&mut self, step: u32) -> Result<(), Fault> {
        match (self.arrived.remove(&step), self.kind(step)) {
            (Some(Payload::Data(pieces)), StepKind::Recv { destination, .. }) => {
                self.memory.write(*destination, &pieces);
            }
            (Some(Payload::Blocks(blocks)), kind) => {
                for (destination, pieces) in self.schedule.writes(kind).iter().zip(blocks) {
                    self.memory.write(*destination, &pieces);
                }
            }
            (Some(Payload::Gate(mut known)), kind) => {
                if self.schedule.is_of_turn(kind) {
                    self.require_all(&self.fingerprints_before(step, false), step)?;
                }
                add(&mut known, &self.known_before(step));
                self.known.insert(step, known);
            }
            _ => {}
        }
        Ok(())
    }

    /// What a gate step certainly knows: fingerprints or turns, whichever it tells.
    fn known_before(&self, step: u32) -> Vec<u64> {
        self.fingerprints_before(step, self.schedule.is_of_turn(self.kind(step)))
    }

    /// The fingerprints, or turns, that a gate step certainly knows: those that the steps before it
    /// brought.
    fn fingerprints_before(&self, step: u32, turns: bool) -> Vec<u64> {
        let mut known = vec![0; self.schedule.ranks.div_ceil(64) as usize];
        known[self.schedule.rank as usize / 64] |= 1 << (self.schedule.rank % 64);
        let mut open = vec![step];
        while let Some(step) = open.pop() {
            for other in self.schedule.dependencies(&self.schedule.steps[step as usize]) {
                if turns == self.schedule.is_of_turn(self.kind(*other)) {
                    self.known.get(other).into_iter().for_each(|before| add(&mut known, before));
                } else {
                    open.push(*other);
                }
            }
        }
        known
    }

    fn require_whole_gate(&self) -> Result<(), Fault> {
        for turns in [false, true] {
            let of_sort = |step: &&u32| self.schedule.is_of_turn(self.kind(**step)) == turns;
            if let Some(last) = self.known.keys().filter(of_sort).max() {
                self.require_all(&self.known[last], *last)?;
            }
        }
        Ok(())
    }

    fn require_all(&self, known: &[u64], step: u32) -> Result<(), Fault> {
        let knows = |other: u32| known[other as usize / 64] >> (other % 64) & 1 == 1;
        match (0..self.schedule.ranks).find(|other| !knows(*other)) {
            None => Ok(()),
            Some(unheard) => {
                Err(Fault::BeforeAgreement { rank: self.schedule.rank, step, unheard })
            }
        }
    }
}

fn add(set: &mut [u64], other: &[u64]) {
    for (bits, more) in set.iter_mut().zip(other) {
        *bits |= more;
    }
}

/// `SplitMix64` (Steele, Lea, Flood 2014): small, and good enough to shuffle with.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }
}
