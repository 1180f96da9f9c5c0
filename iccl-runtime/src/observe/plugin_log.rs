//! A plugin's log lines among ours.
//!
//! A plugin in its own `.so` has its own copy of `tracing`'s statics, so its events come through the
//! host table instead. They get the target [`TARGET`] and a field that names the plugin.

use iccl_plugin_api::LogLevel;
use iccl_plugin_api::host::LogSink;
use tracing::level_filters::LevelFilter;

/// The target of plugins' lines, to filter by.
pub const TARGET: &str = "iccl::plugin";

/// Most bytes of one line.
const LONGEST_LINE: usize = 4096;

/// Hands the lines of one plugin to `tracing`.
#[derive(Clone, Debug)]
pub struct PluginLog {
    plugin: String,
}

impl PluginLog {
    /// The sink for the plugin of this name.
    pub fn new(plugin: impl Into<String>) -> Self {
        Self { plugin: plugin.into() }
    }
}

impl LogSink for PluginLog {
    fn log(&self, level: LogLevel, target: &str, message: &str) {
        let plugin = self.plugin.as_str();
        let message = bounded_line(message);
        // The level of an event is a constant of its place in the code.
        macro_rules! event {
            ($level:ident) => {
                tracing::event!(
                    target: TARGET,
                    tracing::Level::$level,
                    plugin,
                    from = target,
                    "{message}"
                )
            };
        }
        match level {
            LogLevel::Error => event!(ERROR),
            LogLevel::Warn => event!(WARN),
            LogLevel::Info => event!(INFO),
            LogLevel::Debug => event!(DEBUG),
            LogLevel::Trace => event!(TRACE),
        }
    }

    fn wanted(&self) -> Option<LogLevel> {
        match LevelFilter::current().into_level()? {
            tracing::Level::ERROR => Some(LogLevel::Error),
            tracing::Level::WARN => Some(LogLevel::Warn),
            tracing::Level::INFO => Some(LogLevel::Info),
            tracing::Level::DEBUG => Some(LogLevel::Debug),
            tracing::Level::TRACE => Some(LogLevel::Trace),
        }
    }
}

/// A plugin's text as one line of bounded length: a plugin must not be able to write lines that
/// look like another's.
fn bounded_line(message: &str) -> String {
    let end = if message.len() <= LONGEST_LINE {
        message.len()
    } else {
        (0..=LONGEST_LINE).rev().find(|&end| message.is_char_boundary(end)).unwrap_or(0)
    };
    let mut line = String::with_capacity(end);
    for character in message[..end].chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    if end < message.len() {
        line.push_str("… (");
        line.push_str(&(message.len() - end).to_string());
        line.push_str(" bytes more)");
    }
    line
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::{Event, Metadata, Subscriber, span};

    use super::*;

    /// Keeps every event as text.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<String>>>);

    struct Text(String);

    impl Visit for Text {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            write!(self.0, " {}={value:?}", field.name()).unwrap();
        }
    }

    impl Subscriber for Kept {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &Event<'_>) {
            let mut text =
                Text(format!("{} {}", event.metadata().level(), event.metadata().target()));
            event.record(&mut text);
            self.0.lock().unwrap().push(text.0);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn lines_carry_plugin_level_and_part() {
        let kept = Kept::default();
        let log_all = || {
            for &level in LogLevel::ALL {
                PluginLog::new("acme").log(level, "acme::driver", "up");
            }
        };
        tracing::subscriber::with_default(kept.clone(), || {
            // A test beside this one may just have registered these events for no subscriber at all.
            log_all();
            tracing::callsite::rebuild_interest_cache();
            kept.0.lock().unwrap().clear();
            log_all();
        });
        let lines = kept.0.lock().unwrap();
        let levels = ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"];
        assert_eq!(lines.len(), levels.len());
        for (line, level) in lines.iter().zip(levels) {
            assert!(line.starts_with(&format!("{level} {TARGET}")), "{line}");
            assert!(
                line.contains("plugin=\"acme\"") && line.contains("from=\"acme::driver\""),
                "{line}"
            );
            assert!(line.contains("message=up"), "{line}");
        }
    }

    #[test]
    fn a_line_stays_one_line_of_bounded_length() {
        assert_eq!(bounded_line("a\nERROR b\u{1b}[2J"), "a\\nERROR b\\u{1b}[2J");
        let long = bounded_line(&"ä".repeat(LONGEST_LINE));
        assert!(long.len() < LONGEST_LINE + 40, "{}", long.len());
        assert!(long.ends_with("bytes more)"));
    }
}
