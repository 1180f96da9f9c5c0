//! Waiting by asking again and again, for libraries whose own waits know no deadline.

use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult, Progress};

/// How a waiter spends its time.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long it looks without sleeping.
    pub spin: Duration,
    /// Its longest sleep; it gets there step by step.
    pub longest_sleep: Duration,
}

impl Pace {
    /// For a stream, whose end is waited for by somebody who has nothing else to do.
    pub const STREAM: Self =
        Self { spin: Duration::from_micros(50), longest_sleep: Duration::from_micros(200) };
    /// For what takes a network or a peer.
    pub const PEERS: Self =
        Self { spin: Duration::from_micros(100), longest_sleep: Duration::from_millis(1) };
}

/// By how much each sleep is longer than the one before.
const LONGER: Duration = Duration::from_micros(10);

/// Asks until the answer is that it is done, at most for a time. True if it is done; false if time is
/// over. It is asked once more after the time is over, so that a short one still finds what is done.
///
/// # Errors
/// What the question meets.
pub fn wait_until_done(
    pace: Pace,
    timeout: Option<Duration>,
    mut ask: impl FnMut() -> PluginResult<Progress>,
) -> PluginResult<bool> {
    let begin = Instant::now();
    let mut pause = Duration::ZERO;
    loop {
        let waited = begin.elapsed();
        if ask()? == Progress::Done {
            return Ok(true);
        }
        if timeout.is_some_and(|timeout| waited >= timeout) {
            return Ok(false);
        }
        if waited < pace.spin {
            std::thread::yield_now();
        } else {
            pause = (pause + LONGER).min(pace.longest_sleep);
            std::thread::sleep(pause);
        }
    }
}

/// Waits for a stream; `query` asks whether it is done.
///
/// # Errors
/// `Timeout`, or what the question meets.
pub fn synchronize(
    timeout: Duration,
    query: impl FnMut() -> PluginResult<Progress>,
) -> PluginResult<()> {
    if wait_until_done(Pace::STREAM, Some(timeout), query)? {
        return Ok(());
    }
    let text = format!("the stream is not done after {timeout:?}");
    Err(PluginError::new(Status::Timeout, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_is_seen_however_short_the_time() {
        let asked = wait_until_done(Pace::STREAM, Some(Duration::ZERO), || Ok(Progress::Done));
        assert_eq!(asked, Ok(true));
        let mut times = 0;
        let asked = wait_until_done(Pace::PEERS, None, || {
            times += 1;
            Ok(if times < 40 { Progress::Pending } else { Progress::Done })
        });
        assert_eq!((asked, times), (Ok(true), 40));
    }

    #[test]
    fn a_wait_ends_with_its_time_or_with_an_error() {
        let begin = Instant::now();
        let timeout = Duration::from_millis(5);
        let asked = wait_until_done(Pace::STREAM, Some(timeout), || Ok(Progress::Pending));
        assert_eq!(asked, Ok(false));
        assert!(begin.elapsed() >= timeout);
        let asked = wait_until_done(Pace::STREAM, None, || Err(PluginError::invalid("broken")));
        assert_eq!(asked.unwrap_err().message, "broken");
        let error = synchronize(timeout, || Ok(Progress::Pending)).unwrap_err();
        assert_eq!(error.status, Status::Timeout);
        assert_eq!(error.message, "the stream is not done after 5ms");
        assert_eq!(synchronize(Duration::ZERO, || Ok(Progress::Done)), Ok(()));
    }
}
