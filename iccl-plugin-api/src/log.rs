//! Carries a plugin's `tracing` events to the host.
//!
//! A plugin that is its own `.so` has its own copy of every static, so the host's subscriber never
//! sees its events. The first `probe` that comes through a door installs a subscriber here which
//! hands every event to [`HostTable::log`]. A plugin that is linked into the host shares the
//! host's `tracing` and gets none.
//!
//! How loud the host wants it is asked when a plugin is probed, a device or a domain is opened, a
//! channel is opened or a self-test begins, and kept until the next of these, so that an event that
//! is not wanted costs one comparison.

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::LogLevel;
use crate::tables::{Bytes, HostTable};

/// Whether this image was entered through a door, and so is a plugin of its own.
static BEHIND_A_DOOR: AtomicBool = AtomicBool::new(false);

/// The host, once it was told to us.
static HOST: OnceLock<HostTable> = OnceLock::new();

/// The loudest number that the host wanted when it was last asked.
static WANTED: AtomicU32 = AtomicU32::new(0);

/// Says that this image was entered through a door.
pub(crate) fn entered_through_a_door() {
    BEHIND_A_DOOR.store(true, Ordering::Release);
}

/// Hands all events of this image to `host` from now on, if this image is a plugin of its own.
pub(crate) fn attach(host: HostTable) {
    if !BEHIND_A_DOOR.load(Ordering::Acquire) || HOST.set(host).is_err() {
        return;
    }
    WANTED.store(ask(&host), Ordering::Relaxed);
    // A plugin that has installed a subscriber of its own keeps it.
    let _ = tracing::subscriber::set_global_default(Forwarder);
}

/// Asks the host again how loud it wants this image to be.
pub(crate) fn refresh() {
    if let Some(host) = HOST.get() {
        let wanted = ask(host);
        if WANTED.swap(wanted, Ordering::Relaxed) != wanted {
            tracing::callsite::rebuild_interest_cache();
        }
    }
}

/// The loudest number that the host wants now.
fn ask(host: &HostTable) -> u32 {
    // SAFETY: the host promises that the function takes its context, from any thread.
    host.log_level.map_or(LogLevel::Info.code(), |log_level| unsafe { log_level(host.context) })
}

/// The number of a level on the ABI.
fn code(level: Level) -> u32 {
    match level {
        Level::ERROR => LogLevel::Error,
        Level::WARN => LogLevel::Warn,
        Level::INFO => LogLevel::Info,
        Level::DEBUG => LogLevel::Debug,
        Level::TRACE => LogLevel::Trace,
    }
    .code()
}

/// The subscriber. Spans are not carried; their events are.
struct Forwarder;

impl Subscriber for Forwarder {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.is_event() && self.enabled(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        code(*metadata.level()) <= WANTED.load(Ordering::Relaxed)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match WANTED.load(Ordering::Relaxed) {
            0 => LevelFilter::OFF,
            1 => LevelFilter::ERROR,
            2 => LevelFilter::WARN,
            3 => LevelFilter::INFO,
            4 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let Some((host, log)) = HOST.get().and_then(|host| host.log.map(|log| (host, log))) else {
            return;
        };
        let mut line = Line::default();
        event.record(&mut line);
        let metadata = event.metadata();
        let target = Bytes::borrow(metadata.target().as_bytes());
        let text = line.text();
        // SAFETY: the host promises that the function takes its context, from any thread; the
        // bytes live during the call.
        unsafe {
            log(host.context, code(*metadata.level()), target, Bytes::borrow(text.as_bytes()));
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// An event as one line: the message, then `key=value` for every field.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Line {
    fn text(mut self) -> String {
        self.message.push_str(&self.fields);
        self.message
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing into a string cannot fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            let _ = write!(self.fields, " {}={value}", field.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::host::{LogSink, host_table};

    /// The lines that arrived, of this module's own target.
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    /// What the sink wants.
    static LEVEL: AtomicU32 = AtomicU32::new(0);

    struct Sink;

    impl LogSink for Sink {
        fn log(&self, level: LogLevel, target: &str, message: &str) {
            if target == "forwarded" {
                LINES.lock().expect("lines").push(format!("{level} {message}"));
            }
        }

        fn wanted(&self) -> Option<LogLevel> {
            LogLevel::from_code(LEVEL.load(Ordering::SeqCst))
        }
    }

    /// Every level once, from the same places, so that what is cached for a place shows.
    fn speak() -> Vec<String> {
        LINES.lock().expect("lines").clear();
        tracing::error!(target: "forwarded", code = 5, name = "n", "it {}", "failed");
        tracing::info!(target: "forwarded", path = ?Some("x"), "found");
        tracing::debug!(target: "forwarded", "looked");
        std::mem::take(&mut *LINES.lock().expect("lines"))
    }

    #[test]
    fn events_reach_the_host_as_loud_as_it_wants() {
        let host = host_table(Sink);
        attach(*host);
        assert!(HOST.get().is_none(), "an image without a door has the host's own subscriber");

        entered_through_a_door();
        LEVEL.store(LogLevel::Info.code(), Ordering::SeqCst);
        attach(*host);
        let loud = ["error it failed code=5 name=n", "info found path=Some(\"x\")"];
        assert_eq!(speak(), loud);

        LEVEL.store(LogLevel::Debug.code(), Ordering::SeqCst);
        assert_eq!(speak(), loud, "kept until the host is asked again");
        refresh();
        assert_eq!(speak(), [loud[0], loud[1], "debug looked"]);

        LEVEL.store(0, Ordering::SeqCst);
        refresh();
        assert!(speak().is_empty());
        LEVEL.store(LogLevel::Error.code(), Ordering::SeqCst);
        refresh();
        assert_eq!(speak(), [loud[0]]);
    }
}
