//! The engine's own thread: drives what no caller waits for, and keeps an idle communicator
//! reachable.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::fd::AsFd;

use super::{Shared, arm, poll_descriptors};

/// How often the thread looks up while the communicator is in use.
const LOOK: Duration = Duration::from_micros(200);
/// How long after the last operation the communicator counts as in use.
const WARM: Duration = Duration::from_millis(10);
/// How often an idle thread looks up although nothing woke it: a bound on the harm of a lost wake.
const COLD_LOOK: Duration = Duration::from_secs(1);

pub(super) fn run(shared: &Shared) {
    let mut last_use = Instant::now();
    let mut last_news = shared.news.load(Ordering::SeqCst);
    while !shared.shutdown.load(Ordering::SeqCst) {
        let news = shared.news.load(Ordering::SeqCst);
        if news != last_news {
            last_news = news;
            last_use = Instant::now();
        }
        let busy = serve(shared);
        if shared.shutdown.load(Ordering::SeqCst) {
            return;
        }
        if busy {
            last_use = Instant::now();
        }
        if last_use.elapsed() < WARM {
            std::thread::sleep(LOOK);
        } else {
            sleep_cold(shared, last_news);
        }
    }
}

/// Drives until nothing is left to do or a caller wants to. Says whether operations are under way.
fn serve(shared: &Shared) -> bool {
    if shared.wanted.load(Ordering::SeqCst) > 0 {
        return true;
    }
    let Some(mut state) = shared.try_drive() else { return true };
    let stop =
        || shared.wanted.load(Ordering::SeqCst) > 0 || shared.shutdown.load(Ordering::SeqCst);
    shared.take_inbox(&mut state);
    while state.has_work() && shared.failure.get().is_none() && !stop() {
        let finished = shared.counters.operations();
        let waiting = &|| stop() || shared.counters.operations() != finished;
        shared.drive(&mut state, waiting, None);
        shared.tell_bystanders();
    }
    if shared.failure.get().is_some() {
        shared.end_all(&mut state);
    } else if !state.has_work() {
        // Accepts connections and notices lost ones.
        let once = || true;
        shared.drive(&mut state, &once, None);
    }
    let busy = state.has_work();
    drop(state);
    shared.tell_bystanders();
    busy
}

/// Sleeps until a transport, an operation or the end wakes the thread.
fn sleep_cold(shared: &Shared, last_news: u64) {
    let Some(mut state) = shared.try_drive() else {
        std::thread::sleep(LOOK);
        return;
    };
    let armed = shared.failure.get().is_some() || arm(&mut state.domains).unwrap_or(false);
    let descriptors = if shared.failure.get().is_some() { Vec::new() } else { state.descriptors() };
    drop(state);
    shared.tell_bystanders();
    if !armed {
        return;
    }
    shared.thread_cold.store(true, Ordering::SeqCst);
    if shared.news.load(Ordering::SeqCst) == last_news
        && !shared.shutdown.load(Ordering::SeqCst)
        && let Err(error) = poll_descriptors(&descriptors, shared.event.as_fd(), COLD_LOOK)
    {
        tracing::warn!(rank = shared.rank, %error, "the engine's thread");
        std::thread::sleep(LOOK);
    }
    shared.thread_cold.store(false, Ordering::SeqCst);
}
