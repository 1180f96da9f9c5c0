//! The NVIDIA plugin, found as plugins are and driven by its tables, on simulated libraries.
//!
//! `absent` is about machines without card, driver or library, which are real here: no simulator
//! is needed to lack something.

mod absent;
mod card;
mod collectives;
mod engine;
mod simulator;
