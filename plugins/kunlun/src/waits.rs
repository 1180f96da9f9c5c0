//! Asking whether something is over, of a library that can only wait for it.
//!
//! The wait runs on a thread of its own, and the question is answered by whether it has ended. A wait says
//! nothing of what was put into a stream after it began, so everything that is put in is counted.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use iccl_plugin_api::sdk::{PluginResult, Progress};

/// A wait of the library's.
pub(crate) type Wait = Box<dyn FnOnce() -> PluginResult<()> + Send>;

/// How long a question waits for its own wait: what is over already is told at once.
const PATIENCE: Duration = Duration::from_micros(200);

/// What is known of the streams and events of a card.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    state: Mutex<State>,
    /// There is a wait to do, or one has ended.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// By handle.
    things: HashMap<u64, Thing>,
    /// Streams into which nobody else puts anything.
    own: HashSet<u64>,
    /// Where events were recorded last: the stream, and what it had been given by then.
    recorded: HashMap<u64, (u64, u64)>,
    queue: Vec<(u64, Wait)>,
    idle_threads: usize,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("own", &self.own).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Thing {
    /// How much was put in.
    given: u64,
    /// How much of it is over.
    passed: u64,
    /// A wait that is under way, and how much it covers.
    waiting: Option<u64>,
    /// What is to be done when that has ended, and nobody asks any more.
    retired: Option<Wait>,
    /// How the last wait ended, until somebody has asked.
    ended: Option<(u64, PluginResult<()>)>,
}

impl Waits {
    /// A stream that was made here.
    pub(crate) fn adopt(&self, stream: u64) {
        self.locked().own.insert(stream);
    }

    /// Something was put into a stream.
    pub(crate) fn given(&self, stream: u64) {
        self.locked().things.entry(stream).or_default().given += 1;
    }

    /// All that was put into a stream before `given` is over.
    pub(crate) fn passed(&self, stream: u64, given: u64) {
        let mut state = self.locked();
        let thing = state.things.entry(stream).or_default();
        thing.passed = thing.passed.max(given);
    }

    /// How much was put into a stream.
    pub(crate) fn count(&self, stream: u64) -> u64 {
        self.locked().things.get(&stream).map_or(0, |thing| thing.given)
    }

    /// An event was recorded.
    pub(crate) fn recorded(&self, event: u64, stream: u64) {
        let mut state = self.locked();
        let thing = state.things.entry(stream).or_default();
        thing.given += 1;
        let given = thing.given;
        state.recorded.insert(event, (stream, given));
        state.things.entry(event).or_default().given += 1;
    }

    /// Whether a stream is done; `wait` waits for it.
    pub(crate) fn ask_stream(self: &Arc<Self>, stream: u64, wait: Wait) -> PluginResult<Progress> {
        let state = self.locked();
        if let Some(thing) = state.things.get(&stream)
            && state.own.contains(&stream)
            && thing.passed == thing.given
            && thing.ended.as_ref().is_none_or(|(_, outcome)| outcome.is_ok())
        {
            return Ok(Progress::Done);
        }
        self.ask(state, stream, wait)
    }

    /// Whether an event's last record is over; `wait` waits for it. An event that was never recorded is.
    pub(crate) fn ask_event(self: &Arc<Self>, event: u64, wait: Wait) -> PluginResult<Progress> {
        let state = self.locked();
        let Some((stream, given)) = state.recorded.get(&event) else { return Ok(Progress::Done) };
        if state.things.get(stream).is_some_and(|thing| thing.passed >= *given) {
            return Ok(Progress::Done);
        }
        self.ask(state, event, wait)
    }

    /// Forgets an event, and destroys it by `destroy`: at once, or when a wait for it that is under way has
    /// ended, which nobody waits for. The stream may be stuck.
    pub(crate) fn retire(&self, event: u64, destroy: Wait) -> PluginResult<()> {
        let mut state = self.locked();
        state.recorded.remove(&event);
        if let Some(thing) = state.things.get_mut(&event)
            && thing.waiting.is_some()
        {
            thing.retired = Some(destroy);
            return Ok(());
        }
        state.things.remove(&event);
        drop(state);
        destroy()
    }

    /// Forgets a stream that is done, after a wait for it that is under way.
    pub(crate) fn forget(&self, handle: u64) {
        let mut state = self.locked();
        while state.things.get(&handle).is_some_and(|thing| thing.waiting.is_some()) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.things.remove(&handle);
        state.own.remove(&handle);
    }

    fn ask(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        handle: u64,
        wait: Wait,
    ) -> PluginResult<Progress> {
        let thing = state.things.entry(handle).or_default();
        if let Some(answer) = thing.answer() {
            return answer;
        }
        if thing.waiting.is_some() {
            return Ok(Progress::Pending);
        }
        thing.waiting = Some(thing.given);
        state.queue.push((handle, wait));
        // A thread that was woken may not have taken its wait yet: one for each that is in the queue.
        if state.queue.len() > state.idle_threads {
            let waits = Arc::clone(self);
            let name = "iccl-kunlun-wait".to_owned();
            if let Err(error) = std::thread::Builder::new().name(name).spawn(move || waits.work()) {
                // Nobody waits, and the answer stays "not yet"; the next question tries again.
                tracing::warn!(%error, "no thread to wait for a stream");
                state.queue.pop();
                if let Some(thing) = state.things.get_mut(&handle) {
                    thing.waiting = None;
                }
                return Ok(Progress::Pending);
            }
        }
        self.changed.notify_all();
        let is_under_way =
            |state: &mut State| state.things.get(&handle).is_some_and(|it| it.waiting.is_some());
        let waited = self.changed.wait_timeout_while(state, PATIENCE, is_under_way);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.things.get_mut(&handle).and_then(Thing::answer).unwrap_or(Ok(Progress::Pending))
    }

    /// A thread that waits, for one thing after the other.
    fn work(&self) {
        let mut state = self.locked();
        loop {
            let Some((handle, wait)) = state.queue.pop() else {
                state.idle_threads += 1;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle_threads -= 1;
                continue;
            };
            drop(state);
            let outcome = wait();
            state = self.locked();
            let retired = state.things.get_mut(&handle).and_then(|thing| thing.retired.take());
            if let Some(destroy) = retired {
                state.things.remove(&handle);
                drop(state);
                if let Err(error) = destroy() {
                    tracing::warn!(%error, "an event could not be destroyed");
                }
                state = self.locked();
            } else if let Some(thing) = state.things.get_mut(&handle)
                && let Some(covered) = thing.waiting.take()
            {
                if outcome.is_ok() {
                    thing.passed = thing.passed.max(covered);
                }
                thing.ended = Some((covered, outcome));
            }
            self.changed.notify_all();
        }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        // Nothing in here is left half-made by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Thing {
    /// What the last wait that has ended says, if it covers everything. It says it once.
    fn answer(&mut self) -> Option<PluginResult<Progress>> {
        let (covered, outcome) = self.ended.take()?;
        match outcome {
            Err(error) => Some(Err(error)),
            Ok(()) if covered == self.given => Some(Ok(Progress::Done)),
            Ok(()) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Instant;

    use iccl_plugin_api::sdk::PluginError;

    use super::*;

    const STREAM: u64 = 1;
    const EVENT: u64 = 2;

    /// A wait that ends when it is told to.
    fn until(told: Receiver<PluginResult<()>>) -> Wait {
        Box::new(move || told.recv().unwrap_or(Ok(())))
    }

    fn never_asked() -> Wait {
        Box::new(|| Err(PluginError::invalid("it is not waited for")))
    }

    /// Asks until there is another answer than "not yet".
    fn settled(ask: impl Fn() -> PluginResult<Progress>) -> PluginResult<Progress> {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(60) {
            let answer = ask();
            if answer != Ok(Progress::Pending) {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("it is never over");
    }

    #[test]
    fn a_stream_is_done_when_a_wait_that_covers_everything_has_ended() {
        let waits = Arc::new(Waits::default());
        waits.adopt(STREAM);
        waits.given(STREAM);
        let (first, told) = channel();
        assert_eq!(waits.ask_stream(STREAM, until(told)), Ok(Progress::Pending));
        // More is put in while it is waited for: the wait says nothing of that.
        waits.given(STREAM);
        first.send(Ok(())).unwrap();
        let (second, told) = channel();
        let told = Mutex::new(Some(told));
        let ask = || {
            let wait = told.lock().unwrap().take().map_or_else(never_asked, until);
            waits.ask_stream(STREAM, wait)
        };
        let begin = Instant::now();
        while told.lock().unwrap().is_some() && begin.elapsed() < Duration::from_secs(60) {
            // A question that finds the first wait under way does not begin another.
            let state = waits.locked().things.get(&STREAM).is_some_and(|it| it.waiting.is_some());
            if !state {
                assert_eq!(ask(), Ok(Progress::Pending));
            }
        }
        second.send(Ok(())).unwrap();
        assert_eq!(settled(|| waits.ask_stream(STREAM, Box::new(|| Ok(())))), Ok(Progress::Done));
        // Nothing was put in since: nobody waits again.
        assert_eq!(waits.ask_stream(STREAM, never_asked()), Ok(Progress::Done));
    }

    #[test]
    fn a_stream_of_somebody_else_is_asked_each_time() {
        let waits = Arc::new(Waits::default());
        for _ in 0..2 {
            assert_eq!(
                settled(|| waits.ask_stream(STREAM, Box::new(|| Ok(())))),
                Ok(Progress::Done)
            );
        }
        let error = settled(|| waits.ask_stream(STREAM, never_asked())).unwrap_err();
        assert_eq!(error.message, "it is not waited for");
    }

    #[test]
    fn an_event_is_over_when_its_stream_has_passed_it() {
        let waits = Arc::new(Waits::default());
        assert_eq!(waits.ask_event(EVENT, never_asked()), Ok(Progress::Done));
        waits.recorded(EVENT, STREAM);
        let count = waits.count(STREAM);
        waits.given(STREAM);
        let (end, told) = channel();
        assert_eq!(waits.ask_event(EVENT, until(told)), Ok(Progress::Pending));
        waits.passed(STREAM, count);
        assert_eq!(waits.ask_event(EVENT, never_asked()), Ok(Progress::Done));
        // Recorded again, it is not over before that.
        waits.recorded(EVENT, STREAM);
        assert_eq!(waits.ask_event(EVENT, never_asked()), Ok(Progress::Pending));
        end.send(Ok(())).unwrap();
        assert_eq!(settled(|| waits.ask_event(EVENT, Box::new(|| Ok(())))), Ok(Progress::Done));
        waits.retire(EVENT, Box::new(|| Ok(()))).unwrap();
        assert_eq!(waits.ask_event(EVENT, never_asked()), Ok(Progress::Done));
    }

    #[test]
    fn an_event_that_is_waited_for_is_destroyed_behind_the_wait() {
        let waits = Arc::new(Waits::default());
        waits.recorded(EVENT, STREAM);
        let (end, told) = channel();
        assert_eq!(waits.ask_event(EVENT, until(told)), Ok(Progress::Pending));
        let (destroyed, is_destroyed) = channel();
        let destroy = move || {
            destroyed.send(()).unwrap();
            Ok(())
        };
        waits.retire(EVENT, Box::new(destroy)).unwrap();
        assert!(is_destroyed.try_recv().is_err(), "the wait is under way");
        end.send(Ok(())).unwrap();
        is_destroyed.recv_timeout(Duration::from_secs(60)).unwrap();
        let broken = || Err(PluginError::invalid("broken"));
        assert_eq!(waits.retire(EVENT, Box::new(broken)).unwrap_err().message, "broken");
    }

    #[test]
    fn no_wait_stays_behind_another_whose_thread_has_not_woken_yet() {
        let waits = Arc::new(Waits::default());
        // A thread that was told of the first wait and has not come to take it.
        waits.locked().idle_threads = 1;
        let (_never, told) = channel();
        assert_eq!(waits.ask_stream(STREAM, until(told)), Ok(Progress::Pending));
        let ask = || waits.ask_stream(STREAM + 10, Box::new(|| Ok(())));
        assert_eq!(settled(ask), Ok(Progress::Done));
    }

    #[test]
    fn what_a_wait_meets_is_told() {
        let waits = Arc::new(Waits::default());
        waits.adopt(STREAM);
        waits.given(STREAM);
        let broken = || -> Wait { Box::new(|| Err(PluginError::invalid("broken"))) };
        assert_eq!(settled(|| waits.ask_stream(STREAM, broken())).unwrap_err().message, "broken");
    }
}
