//! Logging bridge, counters, watchdog. Called by all rooms, calls none.
