//! An operation's turn at the native library: its messages, and what waits for it. The order itself is
//! told in `turns`.

use std::sync::atomic::{AtomicU64, Ordering};

use iccl_plugin_api::Collective;
use iccl_plugin_api::tables::Segment;

use super::native::Witness;
use super::program::Program;
use super::run::Run;
use super::state::State;
use super::turns::Ticket;
use crate::Result;
use crate::schedule::StepKind;

/// Bytes of a message of the exchange.
const TURN_BYTES: u64 = size_of::<u64>() as u64;

/// How far an operation is with its turn.
#[derive(Default)]
pub(super) struct Turn {
    /// What is sent and what is received, for each round. Little-endian. Transports use it while messages
    /// are under way.
    messages: Box<[[AtomicU64; 2]]>,
    /// The largest number known so far.
    latest: u64,
    ticket: Option<Ticket>,
    native: Option<Witness>,
    is_agreed: bool,
    /// Whether native calls may be issued.
    has_come: bool,
}

impl Turn {
    pub(super) fn new(program: &Program) -> Self {
        let schedule = program.schedule();
        let sends = |kind: &StepKind| matches!(kind, StepKind::GateSend { .. });
        let is_turn = |kind: &StepKind| schedule.is_of_turn(kind);
        let kinds = schedule.steps.iter().map(|step| &step.kind);
        let rounds = match schedule.turn_round {
            None => 0,
            Some(_) => kinds.filter(|kind| sends(kind) && is_turn(kind)).count(),
        };
        Self {
            messages: (0..rounds).map(|_| Default::default()).collect(),
            has_come: schedule.turn_round.is_none(),
            ..Self::default()
        }
    }

    /// Whether native calls may be issued.
    pub(super) fn has_come(&self) -> bool {
        self.has_come
    }

    /// Whom it waits for, once its place is agreed.
    pub(super) fn waits_for(&self) -> Option<String> {
        let waits = self.is_agreed && !self.has_come;
        self.ticket.as_ref().filter(|_| waits).map(Ticket::waits_for)
    }

    /// The native call that has not returned, if one has not.
    pub(super) fn inside(&self) -> Option<Collective> {
        self.native.as_ref().and_then(Witness::inside)
    }

    /// The native library and whom it serves.
    pub(super) fn library(&self) -> &str {
        self.native.as_ref().map_or("the native library", Witness::name)
    }

    /// All native calls are done: the next operation's turn comes.
    pub(super) fn end(&mut self) {
        self.ticket = None;
    }

    /// A transport may still use the messages.
    pub(super) fn leak_messages(&mut self) {
        std::mem::forget(std::mem::take(&mut self.messages));
    }
}

impl Run {
    /// Which round of the exchange of turns a step belongs to, and whether it is the last.
    fn turn_round(&self, step: u32) -> Option<(usize, bool)> {
        let schedule = self.program.schedule();
        let kind = &schedule.steps[step as usize].kind;
        let (StepKind::GateSend { round, .. } | StepKind::GateRecv { round, .. }) = kind else {
            return None;
        };
        let round = round.checked_sub(schedule.turn_round?)? as usize;
        Some((round, round + 1 == self.turn.messages.len()))
    }

    /// Where the message of a step of the exchange lies.
    pub(super) fn turn_segment(&self, step: u32) -> Option<Segment> {
        let (round, _) = self.turn_round(step)?;
        let side = usize::from(!self.sends(step));
        let address = self.turn.messages[round][side].as_ptr().cast();
        Some(Segment { address, length: TURN_BYTES, key: 0 })
    }

    fn sends(&self, step: u32) -> bool {
        matches!(self.program.schedule().steps[step as usize].kind, StepKind::GateSend { .. })
    }
}

impl State {
    /// Before a message of the exchange of turns is sent: takes the operation's ticket if it is the first,
    /// and writes what this rank knows.
    pub(super) fn tell_turn(&mut self, index: usize, step: u32) {
        let communicator = self.communicator;
        let run = &mut self.runs[index];
        let Some((round, _)) = run.turn_round(step).filter(|_| run.sends(step)) else { return };
        if round == 0
            && !run.program.native_calls().is_empty()
            && let Some(native) = &self.native
        {
            let what = format!("{} of communicator {communicator:016x}", run.operation);
            let ticket = native.ticket(communicator, what);
            run.turn.latest = run.turn.latest.max(ticket.number());
            run.turn.ticket = Some(ticket);
            run.turn.native = Some(native.witness());
        }
        run.turn.messages[round][0].store(run.turn.latest.to_le(), Ordering::Relaxed);
    }

    /// After a message of the exchange of turns has come.
    pub(super) fn hear_turn(&mut self, index: usize, step: u32) {
        let run = &mut self.runs[index];
        let told = run.turn_round(step).filter(|_| !run.sends(step));
        let Some((round, is_last)) = told else { return };
        let turn = &mut run.turn;
        let told = u64::from_le(turn.messages[round][1].load(Ordering::Relaxed));
        turn.latest = turn.latest.max(told);
        if is_last {
            turn.is_agreed = true;
            turn.ticket.iter().for_each(|ticket| ticket.agree(turn.latest));
        }
    }

    /// Issues the native calls of operations whose turn has come. Says whether there is one.
    pub(super) fn take_turns(&mut self) -> Result<bool> {
        let mut moved = false;
        for index in 0..self.runs.len() {
            let run = &mut self.runs[index];
            let turn = &mut run.turn;
            let Some(ticket) = turn.ticket.as_ref().filter(|_| turn.is_agreed && !turn.has_come)
            else {
                continue;
            };
            let name = || self.native.as_ref().map_or("", |native| native.name());
            if ticket.is_first().map_err(|error| error.within(name()))? {
                turn.has_come = true;
                moved = true;
                self.issue_native(index)?;
            }
        }
        Ok(moved)
    }
}
