//! The Kunlun plugin, found as plugins are and driven by its tables, on simulated libraries of the older
//! cards: libxpurt alone, and a libbkcl with plain C names.
//!
//! `card`, `collectives` and `engine` are shared with the tests on simulated libraries of P800, which are another
//! program: a process has one Kunlun plugin.

mod absent;
mod card;
mod collectives;
mod engine;
mod simulator;
