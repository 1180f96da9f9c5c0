//! The control plane as a communicator uses it: tells the other ranks what went wrong here, and hears
//! what went wrong there.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::bootstrap::Bootstrap;
use crate::engine::Engine;
use crate::lock::lock;
use crate::{Error, ErrorKind};

/// How long a rank that leaves waits for the ranks behind it in the tree, so that news still reaches
/// everyone.
const LINGER: Duration = Duration::from_secs(1);

/// A communicator's end of the control plane.
#[derive(Clone)]
pub(super) struct Control {
    bootstrap: Arc<Mutex<Option<Bootstrap>>>,
}

impl Control {
    pub(super) fn new(bootstrap: Bootstrap) -> Self {
        Self { bootstrap: Arc::new(Mutex::new(Some(bootstrap))) }
    }

    /// Makes failures that other ranks tell of end `engine`.
    pub(super) fn listen(&self, communicator: u64, engine: &Arc<Engine>) {
        let engine: Weak<Engine> = Arc::downgrade(engine);
        self.with(|bootstrap| {
            bootstrap.on_notice(move |notice| {
                let concerned = notice.communicator == communicator || notice.communicator == 0;
                let Some(engine) = engine.upgrade().filter(|_| concerned) else { return };
                if notice.communicator == communicator && notice.kind == ErrorKind::Timeout {
                    engine.hear_timeout(notice.origin, notice.culprit, notice.to_error());
                } else {
                    engine.fail_soon(notice.to_error());
                }
            });
        });
    }

    /// Tells every other rank that the communicator has failed here.
    pub(super) fn tell(&self, communicator: u64, error: &Error) {
        self.with(|bootstrap| {
            let told =
                bootstrap.notify_failure(communicator, error.rank(), error.kind(), error.message());
            if let Err(error) = told {
                tracing::debug!(%error, "the other ranks could not be told");
            }
        });
    }

    /// The ranks whose connection ended without a goodbye, as far as the news has come.
    pub(super) fn lost(&self) -> Vec<u32> {
        let mut lost = Vec::new();
        self.with(|bootstrap| {
            let notices = bootstrap.notices().into_iter();
            let deaths = notices
                .filter(|notice| notice.communicator == 0 && notice.kind == ErrorKind::PeerLost);
            lost.extend(deaths.filter_map(|notice| notice.culprit));
        });
        lost
    }

    /// Says goodbye. After a failure nobody is waited for.
    pub(super) fn leave(&self, failure: Option<&Error>) {
        let bootstrap = lock(&self.bootstrap).take();
        if let Some(bootstrap) = bootstrap {
            bootstrap.goodbye(if failure.is_some() { Duration::from_millis(100) } else { LINGER });
        }
    }

    fn with(&self, work: impl FnOnce(&Bootstrap)) {
        if let Some(bootstrap) = lock(&self.bootstrap).as_ref() {
            work(bootstrap);
        }
    }
}
