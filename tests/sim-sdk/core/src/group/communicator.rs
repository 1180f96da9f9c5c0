//! A rank of a communicator: puts calls into streams in the order in which they are made.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use super::collectives::Call;
use super::exchange::Ended;
use super::file::{GroupFile, Invitation, JoinError, NOTE_BYTES};
use crate::machine::{Machine, hash};
use crate::stream::Stream;

/// Why there is no communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitError {
    /// Whoever made the invitation is gone.
    NoFile,
    /// The ranks do not agree on their number, or one is there twice.
    Disagreement,
    /// Two ranks have the same card.
    SameCard,
    /// It was ended meanwhile.
    Stopped,
}

impl From<JoinError> for InitError {
    fn from(error: JoinError) -> Self {
        match error {
            JoinError::NoFile => Self::NoFile,
            JoinError::Disagreement => Self::Disagreement,
            JoinError::Stopped => Self::Stopped,
        }
    }
}

/// How a communicator is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Good,
    /// The process of a rank on another host has ended. (Nobody hears of one on the same host: whoever
    /// waits for it there waits in vain.)
    RemoteError,
}

/// Numbers calls, and lets them run one after the other, whatever stream they are in.
#[derive(Default)]
struct Turns {
    current: Mutex<u64>,
    changed: Condvar,
}

/// A rank of a communicator.
pub struct Communicator {
    group: GroupFile,
    device: u32,
    host: u64,
    hosts: Vec<u64>,
    next: Mutex<u64>,
    turns: Turns,
    is_interrupted: AtomicBool,
    is_aborted: AtomicBool,
    has_failed: AtomicBool,
}

const HOST_AT: usize = 0;
const CARD_AT: usize = 8;
const IDENTITY_BYTES: usize = 16;

impl Communicator {
    /// Joins, and waits for all ranks or until `stop`.
    pub fn join(
        machine: &Machine,
        invitation: Invitation,
        ranks: u32,
        rank: u32,
        device: u32,
        stop: &dyn Fn() -> bool,
    ) -> Result<Arc<Self>, InitError> {
        let group = GroupFile::join(invitation, ranks as usize, rank as usize, stop)?;
        let host = hash(machine.host());
        let mut own = [0; IDENTITY_BYTES];
        own[HOST_AT..CARD_AT].copy_from_slice(&host.to_le_bytes());
        let card = machine.identity(device).map_err(|_| InitError::Disagreement)?;
        own[CARD_AT..].copy_from_slice(&card.to_le_bytes());
        let all: Vec<usize> = (0..ranks as usize).collect();
        let notes = group.share(&all, &own, stop)?;
        let word = |note: &[u8], at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&note[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let mut cards: Vec<u64> = notes.iter().map(|note| word(note, CARD_AT)).collect();
        cards.sort_unstable();
        if cards.windows(2).any(|pair| pair[0] == pair[1]) {
            group.leave();
            return Err(InitError::SameCard);
        }
        Ok(Arc::new(Self {
            group,
            device,
            host,
            hosts: notes.iter().map(|note| word(note, HOST_AT)).collect(),
            next: Mutex::new(0),
            turns: Turns::default(),
            is_interrupted: AtomicBool::new(false),
            is_aborted: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        }))
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.group.rank as u32
    }

    /// How many there are.
    pub fn ranks(&self) -> u32 {
        self.group.ranks as u32
    }

    /// Its card.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// How it is.
    pub fn health(&self) -> Health {
        let failed = self.has_failed.load(Ordering::Acquire) || self.looks_dead();
        if failed { Health::RemoteError } else { Health::Good }
    }

    /// Gives the ranks in `members` a short note, and gets theirs in that order.
    pub fn share(&self, members: &[u32], note: &[u8]) -> Result<Vec<Vec<u8>>, InitError> {
        let members: Vec<usize> = members.iter().map(|&one| one as usize).collect();
        Ok(self.group.share(&members, note, &|| self.is_stopped())?)
    }

    /// The most that a note may have.
    pub const NOTE_BYTES: usize = NOTE_BYTES;

    /// Puts calls into a stream, behind the ends of others. They run one after the other, and after all
    /// earlier calls of this communicator; by the setting `exclusive`, also after those of other
    /// communicators that the card works on. `done` is called when they are over, however they ended.
    pub fn launch(
        self: &Arc<Self>,
        machine: &'static Machine,
        stream: &Arc<Stream>,
        others: &[Arc<Stream>],
        calls: Vec<Call>,
        done: impl FnOnce() + Send + 'static,
    ) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = *next;
        *next += 1;
        let own = Arc::clone(self);
        let after = others.iter().map(Stream::end).collect();
        // Late by the machine's delay, as all work is, and behind the other streams.
        machine.enqueue_after(stream, after, Box::new(|| ()));
        let in_stream = Arc::clone(stream);
        let run = move || {
            own.run(machine, turn, &calls, &in_stream);
            done();
        };
        // Also in a stream that was torn down, so that those behind it get their turn.
        let end = machine.enqueue_always(stream, Box::new(run));
        for other in others {
            machine.enqueue_after(other, vec![end.clone()], Box::new(|| ()));
        }
    }

    fn run(&self, machine: &Machine, turn: u64, calls: &[Call], stream: &Stream) {
        let mut current = self.turns.current.lock().unwrap_or_else(PoisonError::into_inner);
        while *current != turn {
            current = self.turns.changed.wait(current).unwrap_or_else(PoisonError::into_inner);
        }
        drop(current);
        let stop = || {
            self.is_interrupted.load(Ordering::Acquire) || stream.is_aborted() || self.is_stopped()
        };
        let _card = self.have_card(machine, &stop);
        for call in calls {
            if stop() || self.group.run(call, &stop) == Ended::Stopped {
                break;
            }
        }
        *self.turns.current.lock().unwrap_or_else(PoisonError::into_inner) = turn + 1;
        self.turns.changed.notify_all();
    }

    /// A kernel that fills its card keeps it until the other ranks' have come.
    fn have_card<'a>(
        &self,
        machine: &'a Machine,
        stop: &dyn Fn() -> bool,
    ) -> Option<MutexGuard<'a, ()>> {
        if !machine.settings().is_on("exclusive") {
            return None;
        }
        let device = machine.device(self.device).ok()?;
        loop {
            match device.call.try_lock() {
                Ok(card) => return Some(card),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if stop() => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }

    /// Ends the calls that are under way on this rank, and all that are yet to come. The others are not
    /// told. Notes are still shared.
    pub fn interrupt(&self) {
        self.is_interrupted.store(true, Ordering::Release);
        self.group.ring(self.group.rank);
    }

    /// Ends everything on this rank. The others are not told.
    pub fn abort(&self) {
        self.is_aborted.store(true, Ordering::Release);
        self.group.ring(self.group.rank);
    }

    /// This rank is done with it, in peace.
    pub fn leave(&self) {
        self.group.leave();
    }

    /// Waits until all ranks have left. If one never does, for ever.
    pub fn wait_until_all_left(&self) {
        self.group.wait_until_all_left();
    }

    fn is_stopped(&self) -> bool {
        if self.is_aborted.load(Ordering::Acquire) {
            return true;
        }
        if self.looks_dead() {
            self.has_failed.store(true, Ordering::Release);
        }
        self.has_failed.load(Ordering::Acquire)
    }

    fn looks_dead(&self) -> bool {
        let elsewhere = |&rank: &usize| self.hosts[rank] != self.host;
        (0..self.group.ranks).filter(elsewhere).any(|rank| self.group.is_dead(rank))
    }
}
