//! Communicators out of communicators: split, duplicate, shrink.
//!
//! Split and duplicate begin with an exchange over the communicator, numbered and compared like any
//! other operation. Shrink uses nothing of the communicator but what its bootstrap keeps for the
//! purpose (`bootstrap::Lineage`): where every rank listens, and a secret. In all three the members of
//! the new communicator then meet at the first of them and begin from there: they describe themselves,
//! plan, try, start.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use iccl_plugin_api::DataType;
use sha2::{Digest, Sha256};

use super::buffer::Buffer;
use super::call::Call;
use super::communicator::Communicator;
use super::group::group_depth;
use super::handle::Handle;
use super::initialise::{Joining, NEWS, initialise};
use super::runtime::RuntimeInner;
use super::stream::{Hold, Stream};
use super::turns::{Turn, Turns};
use crate::bootstrap::Lineage;
use crate::engine::envelope::Purpose;
use crate::lock::lock;
use crate::{Error, ErrorKind, Result};

/// How many ranks the text of a call names before it only counts them.
const NAMED_RANKS: usize = 12;
/// How many numbers a rank tells in the exchange: its color and its key.
const WORDS: usize = 2;
/// What stands for "no color" in the exchange.
const NO_COLOR: i64 = -1;

/// What a communicator keeps so that others can be made out of it.
pub(super) struct Family {
    runtime: Arc<RuntimeInner>,
    lineage: Arc<Lineage>,
    is_one_host: bool,
    /// By own rank; empty if it was not made out of another communicator.
    parent_ranks: Vec<u32>,
    /// One is made at a time, in the order of the calls.
    turns: Arc<Turns>,
    /// Gives up those that are being made.
    cancel: Mutex<Vec<Weak<AtomicBool>>>,
    /// Ranks that are gone, as far as attempts to shrink have shown.
    lost: Mutex<BTreeSet<u32>>,
}

impl Family {
    pub(super) fn new(
        runtime: &Arc<RuntimeInner>,
        lineage: &Arc<Lineage>,
        joining: &Joining,
    ) -> Self {
        Self {
            runtime: Arc::clone(runtime),
            lineage: Arc::clone(lineage),
            is_one_host: joining.is_one_host,
            parent_ranks: joining.parent_ranks.clone(),
            turns: Arc::default(),
            cancel: Mutex::default(),
            lost: Mutex::default(),
        }
    }

    /// How long making a communicator may take.
    pub(super) fn patience(&self) -> Duration {
        self.runtime.config.bootstrap.init_timeout
    }

    /// Gives up the communicators that are being made out of this one, if there are any.
    pub(super) fn give_up(&self) {
        let attempts = lock(&self.cancel);
        attempts
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|one| one.store(true, Ordering::Release));
    }

    /// A flag for a new attempt, which [`give_up`](Self::give_up) sets.
    fn new_attempt(&self) -> Arc<AtomicBool> {
        let cancel = Arc::<AtomicBool>::default();
        let mut attempts = lock(&self.cancel);
        attempts.retain(|one| one.strong_count() > 0);
        attempts.push(Arc::downgrade(&cancel));
        cancel
    }
}

/// The first half of a split or a duplicate: the exchange of what every rank asks for, which is enqueued
/// and numbered like any operation, at the end of its group if there is one. It takes place when what was
/// begun before is made, so that afterwards that is so on all ranks: their listeners are free.
pub(super) struct Exchange {
    purpose: Purpose,
    color: Option<u32>,
    handle: Handle,
    table: Buffer,
    cancel: Arc<AtomicBool>,
    turn: Arc<Turn>,
    /// Keeps the stream on which it takes place, whose end waits for it: released before.
    hold: Option<Hold>,
    _stream: Stream,
}

/// Color and key of each rank.
type Table = Vec<(Option<u32>, i32)>;

impl Exchange {
    /// Waits until the group that it was made in has ended, on another thread.
    pub(super) fn wait_enqueued(&self) {
        self.handle.wait_enqueued();
    }

    /// Waits until it is its turn, and all ranks have told what they ask for.
    fn wait(&mut self) -> Result<Table> {
        self.turn.wait();
        drop(self.hold.take());
        self.handle.wait()?;
        let table = self.table.read::<i64>()?;
        Ok(table
            .chunks_exact(WORDS)
            .map(|pair| (u32::try_from(pair[0]).ok(), pair[1] as i32))
            .collect())
    }
}

impl Communicator {
    /// Makes a communicator for each color: its members are the ranks that give it, in the order of their
    /// `key`, and of their ranks here where keys are equal. A rank without a color takes part in the
    /// call and gets `None`. All ranks of this communicator make the call, as if it were a collective;
    /// it returns when the new communicator stands, and begins when the operations that were called
    /// before it are over.
    ///
    /// The new communicator has the settings, the device and the plugins of this one, and a plan of its
    /// own. The two are independent from then on: they progress, fail and end each for itself, in
    /// any order.
    ///
    /// # Errors
    /// `InvalidUsage` inside a group. The error that ended this communicator ([`Communicator::shrink`] works nevertheless).
    /// `Mismatch`, ending this communicator, if ranks call different things. As
    /// [`Runtime::communicator`] if the new one cannot be made, which leaves this one as it is; the
    /// culprit is named by its rank here. All that within `bootstrap.init_timeout`, once for the exchange
    /// and once for what follows.
    ///
    /// [`Runtime::communicator`]: super::Runtime::communicator
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>> {
        not_in_a_group("split")?;
        self.make_out_of(self.ask(Purpose::Split, color, key)?)
    }

    /// Makes a communicator of the same ranks, in the same order. See [`Communicator::split`].
    ///
    /// # Errors
    /// As [`Communicator::split`].
    pub fn duplicate(&self) -> Result<Self> {
        not_in_a_group("duplicate")?;
        self.make_out_of(self.ask(Purpose::Duplicate, None, 0)?)?.ok_or_else(|| {
            Error::new(ErrorKind::Internal, "a rank of a duplicate was left out of it")
        })
    }

    /// Makes a communicator of the ranks that are not in `exclude`, numbered anew in the same order. All of
    /// them make the call, with the same list; those in it do not, and nothing is asked of them. It
    /// works after this communicator has ended with an error, and uses nothing of it: ranks that have
    /// died or do not answer are left out, and the others go on without meeting anew. On a communicator
    /// that works it takes some ranks out of it; both can be used then.
    ///
    /// Which ranks have failed is told by the error ([`Error::rank`]) and by
    /// [`Communicator::lost_ranks`]. When several fail at once, not all survivors may know the same at
    /// the same moment. An attempt with lists that differ, or that lack a rank which is gone, ends
    /// with an error on every rank that has come, and can be repeated with a better list:
    ///
    /// ```no_run
    /// # fn f(broken: &iccl_runtime::comm::Communicator) -> iccl_runtime::Result<()> {
    /// use iccl_runtime::ErrorKind::{Mismatch, PeerLost};
    ///
    /// let smaller = loop {
    ///     match broken.shrink(&broken.lost_ranks()) {
    ///         Err(error) if matches!(error.kind(), PeerLost | Mismatch) => {}
    ///         outcome => break outcome?,
    ///     }
    /// };
    /// # drop(smaller); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `InvalidUsage` inside a group. `InvalidArgument`: this rank is in the list, or one that there is not, or the communicator was
    /// finalized. On every rank that has come, naming the culprit by its rank here, within
    /// `bootstrap.init_timeout`: `Mismatch` (lists differ; a rank that others leave out hears it too if it comes
    /// before they are all there, without disturbing them), `PeerLost` (another rank is gone), `Rendezvous` or `Timeout` (one that
    /// should come has not); and as [`Runtime::communicator`]. This communicator stays as it was.
    ///
    /// [`Runtime::communicator`]: super::Runtime::communicator
    pub fn shrink(&self, exclude: &[u32]) -> Result<Self> {
        let call = self.check_shrink(exclude)?;
        not_in_a_group(&call)?;
        self.shrink_at(&self.queue(), exclude)
    }

    /// Whether a shrink makes sense, and what it is called.
    pub(super) fn check_shrink(&self, exclude: &[u32]) -> Result<String> {
        let excluded: BTreeSet<u32> = exclude.iter().copied().collect();
        let call = shrink_call(&excluded);
        let refuse = |text: String| Err(Error::new(ErrorKind::InvalidArgument, text));
        if self.is_finalized() {
            return refuse(format!("{call}: the communicator was finalized on this rank"));
        }
        if let Some(rank) = excluded.last().filter(|rank| **rank >= self.ranks()) {
            return refuse(format!("{call}: there is no rank {rank} among {}", self.ranks()));
        }
        if excluded.contains(&self.rank()) {
            return refuse(format!("{call}: this is rank {} itself", self.rank()));
        }
        Ok(call)
    }

    /// A place in the line of communicators that are made out of this one, and what gives it up.
    pub(super) fn queue(&self) -> (Arc<Turn>, Arc<AtomicBool>) {
        let turn = Turn::new(&self.family.turns);
        turn.queue();
        (turn, self.family.new_attempt())
    }

    /// Shrinks when its turn has come.
    pub(super) fn shrink_at(
        &self,
        place: &(Arc<Turn>, Arc<AtomicBool>),
        exclude: &[u32],
    ) -> Result<Self> {
        let excluded: BTreeSet<u32> = exclude.iter().copied().collect();
        let call = self.check_shrink(exclude)?;
        let (turn, cancel) = place;
        turn.wait();
        let members: Vec<u32> = (0..self.ranks()).filter(|rank| !excluded.contains(rank)).collect();
        let excluded: Vec<u32> = excluded.into_iter().collect();
        self.make(&members, &call, &excluded, Arc::clone(cancel)).inspect_err(|error| {
            if error.kind() == ErrorKind::PeerLost {
                lock(&self.family.lost).extend(error.rank());
            }
        })
    }

    /// The ranks that are gone for good, as far as this rank knows: their processes ended without
    /// leaving the communicator, or an attempt to shrink found nobody where they listened, or failed
    /// because another rank left them out. In ascending order. The news of a death takes a moment;
    /// see [`Communicator::shrink`].
    pub fn lost_ranks(&self) -> Vec<u32> {
        let mut lost = lock(&self.family.lost).clone();
        lost.extend(self.control.lost());
        lost.extend(self.family.lineage.left_out_by_others());
        let failure = self.async_error().filter(|error| error.kind() == ErrorKind::PeerLost);
        lost.extend(failure.and_then(|error| error.rank()));
        lost.remove(&self.rank());
        lost.into_iter().collect()
    }

    /// For each rank the one that it had in the communicator that this one was made out of. Empty for
    /// one that was not.
    pub fn parent_ranks(&self) -> &[u32] {
        &self.family.parent_ranks
    }

    /// Tells the others what this rank asks for, and asks them.
    pub(super) fn ask(&self, purpose: Purpose, color: Option<u32>, key: i32) -> Result<Exchange> {
        let device = self.device();
        let mine: [i64; WORDS] = [color.map_or(NO_COLOR, i64::from), i64::from(key)];
        let send = device.buffer_from(&mine)?;
        let table = device.allocate::<i64>(WORDS * self.ranks() as usize)?;
        let turn = Turn::new(&self.family.turns);
        let call = Call {
            purpose,
            turn: Some(Arc::clone(&turn)),
            ..Call::all_gather(WORDS as u64, DataType::I64)
        };
        let stream = device.stream()?;
        // Where streams cannot wait, calls do, and nothing is begun before its turn.
        let hold = device.inner.waits_for_host().then(|| stream.hold()).transpose()?;
        let cancel = self.family.new_attempt();
        let handle = self
            .call_on_buffers(call, Some(&send), Some(&table), &stream)
            .map_err(|error| self.advise(error))?;
        Ok(Exchange { purpose, color, handle, table, cancel, turn, hold, _stream: stream })
    }

    fn advise(&self, error: Error) -> Error {
        match error.hint() {
            None if self.async_error().is_some() => {
                error.with_hint("shrink the communicator without the ranks that have failed")
            }
            _ => error,
        }
    }

    /// The second half of a split or a duplicate: the members meet and make the communicator.
    pub(super) fn make_out_of(&self, mut exchange: Exchange) -> Result<Option<Self>> {
        let table = exchange.wait().map_err(|error| self.advise(error))?;
        // The same on all ranks, and no other's.
        let number = exchange.handle.sequence().unwrap_or_default();
        let (members, call) = match (exchange.purpose, exchange.color) {
            (Purpose::Split, None) => return Ok(None),
            (Purpose::Split, Some(color)) => {
                (members_of(color, table), format!("split (seq {number}) with color {color}"))
            }
            _ => ((0..self.ranks()).collect(), format!("duplicate (seq {number})")),
        };
        self.make(&members, &call, &[], Arc::clone(&exchange.cancel))
            .map(Some)
            .map_err(|error| self.true_cause(error))
    }

    /// A rank that is gone may have left because another died. Where this communicator works, it hears of
    /// that death in a moment, and that is what counts.
    fn true_cause(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::PeerLost {
            return error;
        }
        let until = Instant::now() + NEWS;
        loop {
            match self.async_error() {
                Some(failure) if failure.kind() == ErrorKind::PeerLost => return failure,
                Some(_) => return error,
                None if Instant::now() >= until => return error,
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Makes the communicator of `members`, named by their ranks here, without those that have failed.
    fn make(
        &self,
        members: &[u32],
        call: &str,
        excluded: &[u32],
        cancel: Arc<AtomicBool>,
    ) -> Result<Self> {
        let Family { runtime, lineage, is_one_host, .. } = &self.family;
        let place = members.iter().position(|member| *member == self.rank());
        let joining = Joining {
            rendezvous: lineage.child(members, call, excluded)?,
            rank: place.map_or(0, |place| place as u32),
            ranks: members.len() as u32,
            is_one_host: *is_one_host,
            cancel,
            parent_ranks: members.to_vec(),
        };
        initialise(runtime, &joining).map_err(|error| {
            let is_told = error.message().contains(call);
            let error = if is_told { error } else { error.with("call", call) };
            match advice(error.kind()).filter(|_| error.hint().is_none()) {
                Some(advice) => error.with_hint(advice),
                None => error,
            }
        })
    }
}

/// The ranks that gave a color, in the order of their keys.
fn members_of(color: u32, table: Table) -> Vec<u32> {
    let mut members: Vec<(i32, u32)> = (0..)
        .zip(table)
        .filter(|(_, (theirs, _))| *theirs == Some(color))
        .map(|(rank, (_, key))| (key, rank))
        .collect();
    members.sort_unstable();
    members.into_iter().map(|(_, rank)| rank).collect()
}

/// What to do when a communicator could not be made out of another.
fn advice(kind: ErrorKind) -> Option<&'static str> {
    match kind {
        ErrorKind::PeerLost => Some("shrink without that rank"),
        ErrorKind::Mismatch => {
            Some("all ranks must make the same call; `lost_ranks` knows now whom others leave out")
        }
        ErrorKind::Rendezvous | ErrorKind::Timeout => {
            Some("every rank that is to be part of the new communicator must make the same call")
        }
        _ => None,
    }
}

/// Nothing waits inside a group, and making a communicator does.
fn not_in_a_group(call: &str) -> Result<()> {
    if group_depth() == 0 {
        return Ok(());
    }
    let text = format!("{call}: it waits for other ranks, and this thread is inside a group");
    Err(Error::new(ErrorKind::InvalidUsage, text).with_hint("end the group first"))
}

/// What ranks that shrink alike all call it, in at most 256 bytes.
fn shrink_call(excluded: &BTreeSet<u32>) -> String {
    let named: Vec<_> = excluded.iter().take(NAMED_RANKS).map(ToString::to_string).collect();
    let mut call = format!("shrink without [{}", named.join(", "));
    if excluded.len() > named.len() {
        let mut hash = Sha256::new();
        excluded.iter().for_each(|rank| hash.update(rank.to_le_bytes()));
        let digest = hash.finalize();
        let _ = write!(call, ", and {} more, digest ", excluded.len() - named.len());
        digest[..8].iter().for_each(|byte| {
            let _ = write!(call, "{byte:02x}");
        });
    }
    call.push(']');
    call
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lists_are_called_alike_and_others_are_not() {
        let call = |ranks: &[u32]| shrink_call(&ranks.iter().copied().collect());
        assert_eq!(call(&[3, 1, 3]), "shrink without [1, 3]");
        assert_eq!(call(&[]), "shrink without []");
        let many: Vec<u32> = (0..40).map(|rank| u32::MAX - rank).collect();
        let text = call(&many);
        assert!(text.len() <= 256 && text.contains("and 28 more"), "{text}");
        let mut others = many;
        others[0] = 5;
        others[1] = u32::MAX;
        assert_ne!(call(&others), text);
    }
}
