//! The Ascend plugin, found as plugins are and driven by its tables, on simulated libraries.

mod absent;
mod application;
mod card;
mod collectives;
mod engine;
mod simulator;
