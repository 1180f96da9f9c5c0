//! Connections that did not prove to belong to the job: counted, and mentioned now and then.

use std::time::{Duration, Instant};

/// At most one line in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Strangers {
    dropped: u64,
    unreported: u64,
    last: Option<(String, String)>,
    reported_at: Option<Instant>,
}

impl Strangers {
    /// Counts one that was dropped, and says whether that was worth a line.
    pub(super) fn count(&mut self, peer: &str, why: &str) -> bool {
        self.dropped += 1;
        self.unreported += 1;
        self.last = Some((peer.to_owned(), why.to_owned()));
        let is_due = self.reported_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL);
        is_due && self.report()
    }

    /// Mentions those that have not been mentioned, if there are any.
    pub(super) fn report(&mut self) -> bool {
        let Some((peer, why)) = self.last.take() else { return false };
        tracing::warn!(
            new = self.unreported,
            total = self.dropped,
            last = %peer,
            %why,
            "bootstrap: dropped connections that did not prove to belong to the job"
        );
        self.unreported = 0;
        self.reported_at = Some(Instant::now());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b040_a_thousand_strangers_are_one_line_and_one_at_the_end() {
        let mut strangers = Strangers::default();
        assert!(!strangers.report(), "nobody came");
        let lines = (0..1000).filter(|_| strangers.count("10.0.0.9:1", "no proof")).count();
        assert_eq!(lines, 1);
        assert_eq!(strangers.unreported, 999);
        assert!(strangers.report());
        assert!(!strangers.report(), "each is mentioned once");
        strangers.reported_at = Some(Instant::now().checked_sub(LOG_INTERVAL).unwrap());
        assert!(strangers.count("10.0.0.9:1", "no proof"), "and another one later");
    }
}
