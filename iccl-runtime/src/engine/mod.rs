//! Runs schedules over links and devices.
