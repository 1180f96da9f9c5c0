//! The engine's own thread: drives what no caller waits for, and keeps an idle communicator
//! reachable.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::state::State;
use super::{Shared, arm};

/// How often the thread looks up while the communicator is in use.
const LOOK: Duration = Duration::from_micros(200);
/// How long after the last operation the communicator counts as in use.
const WARM: Duration = Duration::from_millis(10);
/// How often an idle thread looks up although nothing woke it: a bound on the harm of a lost wake.
const COLD_LOOK: Duration = Duration::from_secs(1);

pub(super) fn run(shared: &Shared) {
    let mut last_use = Instant::now();
    let mut last_news = shared.seat.news();
    while !shared.shutdown.load(Ordering::SeqCst) {
        let news = shared.seat.news();
        if news != last_news {
            last_news = news;
            last_use = Instant::now();
        }
        if serve(shared) {
            last_use = Instant::now();
        }
        if shared.shutdown.load(Ordering::SeqCst) {
            return;
        }
        if last_use.elapsed() < WARM || !sleep_cold(shared, last_news) {
            std::thread::sleep(LOOK);
        }
    }
}

/// Drives until nothing is left to do or a caller wants to. Says whether operations are under way
/// that nobody else drives.
fn serve(shared: &Shared) -> bool {
    if shared.seat.is_wanted() {
        return false;
    }
    let Some(mut state) = shared.seat.try_take() else { return false };
    let stop = || shared.seat.is_wanted() || shared.shutdown.load(Ordering::SeqCst);
    shared.notice_panic();
    shared.take_inbox(&mut state);
    while state.has_work() && shared.failure.get().is_none() && !stop() {
        let finished = shared.counters.operations_over();
        let waiting = &|| stop() || shared.counters.operations_over() != finished;
        shared.drive(&mut state, waiting, None);
        shared.seat.tell_bystanders();
    }
    if shared.failure.get().is_some() {
        shared.end_all(&mut state);
    } else if !state.has_work() {
        // Accepts connections and notices lost ones.
        let once = || true;
        shared.drive(&mut state, &once, None);
        // Operations that wait for their streams wait for ever if the card is broken.
        if state.has_operations()
            && let Err(error) = state.check_card()
        {
            shared.found_failure(&mut state, &error);
        }
    }
    let busy = state.has_work();
    shared.seat.leave(state);
    busy
}

/// Sleeps until a transport, an operation, a driver that leaves, or the end wakes the thread. Says whether
/// it slept.
fn sleep_cold(shared: &Shared, last_news: u64) -> bool {
    let arm_all = |state: &mut State| {
        shared.notice_panic();
        if shared.failure.get().is_some() {
            // The channels have been brought to rest.
            return Some(Vec::new());
        }
        arm(&mut state.domains).unwrap_or(false).then(|| state.descriptors())
    };
    shared.seat.sleep_cold(last_news, arm_all, |descriptors| {
        if let Err(error) = shared.seat.bells().sleep_of_thread(&descriptors, COLD_LOOK) {
            tracing::warn!(rank = shared.rank, %error, "the engine's thread");
            std::thread::sleep(LOOK);
        }
    })
}
