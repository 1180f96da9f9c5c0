//! The Kunlun plugin on simulated libraries of P800: the maker's own libcudart over libxpurt, and a libbkcl
//! with mangled C++ names.

mod absent;
#[path = "../plugin_kunlun/card.rs"]
mod card;
#[path = "../plugin_kunlun/collectives.rs"]
mod collectives;
#[path = "../plugin_kunlun/engine.rs"]
mod engine;
mod own;
mod simulator;
