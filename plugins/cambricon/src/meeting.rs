//! How ranks come to be in a clique. CNCL takes a clique id once in each process: one call makes the
//! communicators of all ranks that the process has. So these meet first.
//!
//! Nobody tells how many ranks of a communicator are in this process. They are complete when all ranks of the
//! communicator are here, or one for each card that the process has opened; and if cards are open that do not
//! come, when nobody else has come for a while.

use std::collections::{BTreeSet, HashMap};
use std::ffi::c_int;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};

use crate::clique::{Clique, Member};
use crate::cncl::Cncl;
use crate::context::Current;
use crate::open_cards::OpenCards;
use crate::sys;

/// The default of the setting `join_timeout`.
pub(crate) const JOIN_TIMEOUT: Duration = Duration::from_secs(600);
/// The default of the setting `gather_time`.
pub(crate) const GATHER_TIME: Duration = Duration::from_secs(2);

/// How long is waited for whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For all ranks.
    pub(crate) join: Duration,
    /// For ranks of this process, after the last that came.
    pub(crate) gather: Duration,
}

/// A rank that wants to join.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) rank: u32,
    pub(crate) current: Arc<Current>,
}

/// The meetings of this process, by clique id. They are never forgotten, since an id is good only once.
#[derive(Debug, Default)]
pub(crate) struct Meetings {
    known: Mutex<HashMap<[u8; 128], Arc<Meeting>>>,
}

#[derive(Debug)]
struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    arrivals: Vec<Arrival>,
    last_arrival: Instant,
    /// The ranks that CNCL was called for.
    begun: Vec<u32>,
    outcome: Option<PluginResult<Arc<Clique>>>,
}

impl Meetings {
    /// Waits for the others of this process, and with them for all ranks.
    pub(crate) fn join(
        &self,
        cncl: &Arc<Cncl>,
        id: sys::CliqueId,
        ranks: u32,
        arrival: Arrival,
        open_cards: &OpenCards,
        patience: Patience,
    ) -> PluginResult<Arc<Clique>> {
        let begin = Instant::now();
        let rank = arrival.rank;
        let meeting = Arc::clone(lock(&self.known).entry(id.data).or_insert_with(|| {
            let (arrivals, begun) = (Vec::new(), Vec::new());
            let state = State { arrivals, last_arrival: begin, begun, outcome: None };
            Arc::new(Meeting { state: Mutex::new(state), changed: Condvar::new() })
        }));
        let mut state = meeting.arrive(arrival)?;
        loop {
            if let Some(outcome) = &state.outcome {
                let outcome = outcome.clone();
                state.begun.retain(|other| *other != rank);
                if state.begun.is_empty() {
                    // All have it. What came later is told that the id is spent.
                    state.outcome = Some(Err(PluginError::invalid("the clique id is spent")));
                }
                return outcome;
            }
            let now = Instant::now();
            let deadline = begin + patience.join;
            let gathered_by = state.last_arrival + patience.gather;
            if state.begun.is_empty() && state.is_complete(ranks, open_cards, now >= gathered_by) {
                meeting.begin(&mut state, cncl, id, ranks)?;
            } else if now >= deadline {
                // Also if CNCL was not called yet: all that are here are told.
                if state.begun.is_empty() {
                    state.begun = state.arrived();
                }
                let here = &state.begun;
                let text = format!(
                    "cnclInitComms: not done after {:?} on rank {rank} of {ranks}; in this process \
                     there are ranks {here:?}",
                    patience.join
                );
                state.outcome = Some(Err(PluginError::new(Status::Timeout, text)));
                meeting.changed.notify_all();
                continue;
            }
            let until = if state.begun.is_empty() { gathered_by.min(deadline) } else { deadline };
            let wait = until.saturating_duration_since(now).max(Duration::from_millis(1));
            let waited = meeting.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    fn arrived(&self) -> Vec<u32> {
        self.arrivals.iter().map(|each| each.rank).collect()
    }

    fn is_complete(&self, ranks: u32, open_cards: &OpenCards, is_late: bool) -> bool {
        let cards: BTreeSet<i32> = self.arrivals.iter().map(|each| each.current.ordinal).collect();
        if self.arrivals.len() == ranks as usize || open_cards.are_within(&cards) {
            return true;
        }
        if is_late {
            let here = self.arrived();
            tracing::info!(ranks = ?here, "cards of this process are open and did not join with these");
        }
        is_late
    }
}

impl Meeting {
    fn arrive(&self, arrival: Arrival) -> PluginResult<MutexGuard<'_, State>> {
        let mut state = lock(&self.state);
        let rank = arrival.rank;
        if state.outcome.is_some() || !state.begun.is_empty() {
            return Err(PluginError::invalid(format!(
                "rank {rank} came after others of this process: CNCL takes a clique id once in each \
                 process, for all its ranks; open all cards before the first joins"
            )));
        }
        if state.arrivals.iter().any(|other| other.rank == rank) {
            return Err(PluginError::invalid(format!("rank {rank} joins twice")));
        }
        state.arrivals.push(arrival);
        state.last_arrival = Instant::now();
        self.changed.notify_all();
        Ok(state)
    }

    /// Calls CNCL on a thread of its own: nobody can end that call.
    fn begin(
        self: &Arc<Self>,
        state: &mut State,
        cncl: &Arc<Cncl>,
        id: sys::CliqueId,
        ranks: u32,
    ) -> PluginResult<()> {
        state.begun = state.arrived();
        let mut arrivals = std::mem::take(&mut state.arrivals);
        arrivals.sort_by_key(|each| each.rank);
        let (meeting, cncl) = (Arc::clone(self), Arc::clone(cncl));
        let init = move || {
            let made = init(&cncl, id, ranks, arrivals);
            let mut state = lock(&meeting.state);
            if state.outcome.is_none() {
                state.outcome = Some(made);
                meeting.changed.notify_all();
            } else if let Ok(clique) = made {
                // Everybody gave up meanwhile.
                drop(state);
                if let Err(error) = clique.abort() {
                    tracing::warn!(%error, "a clique that came too late could not be aborted");
                }
            }
        };
        let spawned = std::thread::Builder::new().name("iccl-cncl-init".to_owned()).spawn(init);
        spawned.map(drop).map_err(|error| {
            let error = PluginError::new(Status::OutOfResources, format!("no thread: {error}"));
            state.outcome = Some(Err(error.clone()));
            self.changed.notify_all();
            error
        })
    }
}

/// Makes the communicators of all ranks of this process. Blocks until all ranks came.
fn init(
    cncl: &Arc<Cncl>,
    id: sys::CliqueId,
    ranks: u32,
    arrivals: Vec<Arrival>,
) -> PluginResult<Arc<Clique>> {
    let mut handles: Vec<sys::Communicator> = vec![std::ptr::null_mut(); arrivals.len()];
    let devices: Vec<c_int> = arrivals.iter().map(|each| each.current.ordinal).collect();
    let numbers: Vec<c_int> = arrivals.iter().map(|each| each.rank as c_int).collect();
    // SAFETY: there is room for as many communicators as devices and ranks are listed.
    let answer = unsafe {
        (cncl.table.cnclInitComms)(
            handles.as_mut_ptr(),
            handles.len() as c_int,
            devices.as_ptr(),
            numbers.as_ptr(),
            ranks as c_int,
            &raw const id,
        )
    };
    cncl.table.check(format_args!("cnclInitComms(ranks {numbers:?} of {ranks})"), answer)?;
    let members = arrivals.into_iter().zip(handles);
    let members =
        members.map(|(arrival, handle)| Member::new(arrival.rank, arrival.current, handle));
    Ok(Arc::new(Clique::new(Arc::clone(cncl), ranks, members.collect())))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
