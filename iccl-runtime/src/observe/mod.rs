//! Logging bridge, flight recorder. Called by all rooms, calls none.

mod flight;
mod plugin_log;

pub use flight::{
    FLIGHT_SCHEMA, FlightLink, FlightOperation, FlightRecord, FlightState, RECORDED_OPERATIONS,
    Recorder, microseconds,
};
pub use plugin_log::{PluginLog, TARGET as PLUGIN_LOG_TARGET};
