//! Logging bridge, counters, watchdog. Called by all rooms, calls none.

mod plugin_log;

pub use plugin_log::{PluginLog, TARGET as PLUGIN_LOG_TARGET};
