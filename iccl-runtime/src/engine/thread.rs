//! The engine's own thread: drives what no caller waits for, and keeps an idle communicator
//! reachable.

use std::os::fd::RawFd;
use std::sync::atomic::{Ordering, fence};
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
        if serve(shared) {
            last_use = Instant::now();
        }
        if shared.shutdown.load(Ordering::SeqCst) {
            return;
        }
        if last_use.elapsed() < WARM {
            std::thread::sleep(LOOK);
        } else {
            sleep_cold(shared, last_news);
        }
    }
}

/// Drives until nothing is left to do or a caller wants to. Says whether operations are under way
/// that nobody else drives.
fn serve(shared: &Shared) -> bool {
    if shared.wanted.load(Ordering::SeqCst) > 0 {
        return false;
    }
    let Some(mut state) = shared.try_drive() else { return false };
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
    let wanted = shared.wanted.load(Ordering::SeqCst) > 0;
    let seat = if wanted { None } else { shared.try_drive() };
    let Some(mut state) = seat else { return sleep_beside(shared, last_news) };
    // Before the seat is free: whoever drives next disarms the domains, and must wake the thread.
    shared.thread_cold.store(true, Ordering::SeqCst);
    let failed = shared.failure.get().is_some();
    let (armed, descriptors) = if failed {
        (true, Vec::new())
    } else {
        (arm(&mut state.domains).unwrap_or(false), state.descriptors())
    };
    drop(state);
    shared.tell_bystanders();
    if armed {
        poll_unless_news(shared, last_news, &descriptors);
    } else {
        shared.thread_cold.store(false, Ordering::SeqCst);
        std::thread::sleep(LOOK);
    }
}

/// Sleeps while somebody else drives, who wakes the thread when leaving.
fn sleep_beside(shared: &Shared, last_news: u64) {
    shared.thread_cold.store(true, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let is_free = shared.try_drive().is_some();
    if is_free {
        // Whoever drove has left and may not have seen that the thread sleeps.
        shared.thread_cold.store(false, Ordering::SeqCst);
        shared.tell_bystanders();
        std::thread::sleep(LOOK);
    } else {
        poll_unless_news(shared, last_news, &[]);
    }
}

fn poll_unless_news(shared: &Shared, last_news: u64, descriptors: &[RawFd]) {
    if shared.news.load(Ordering::SeqCst) == last_news
        && !shared.shutdown.load(Ordering::SeqCst)
        && let Err(error) = poll_descriptors(descriptors, shared.thread_event.as_fd(), COLD_LOOK)
    {
        tracing::warn!(rank = shared.rank, %error, "the engine's thread");
        std::thread::sleep(LOOK);
    }
    shared.thread_cold.store(false, Ordering::SeqCst);
}
