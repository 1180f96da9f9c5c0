//! The Cambricon plugin, found as plugins are and driven by its tables, on simulated libraries.
//!
//! `absent` is about machines without card, driver or library.

mod absent;
mod card;
mod cliques;
mod collectives;
mod engine;
mod simulator;
