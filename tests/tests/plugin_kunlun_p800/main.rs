//! The Kunlun plugin on simulated libraries of P800: the maker's own libcudart over libxpurt, and a libbkcl
//! with mangled C++ names.

mod absent;
#[path = "../plugin_kunlun/card.rs"]
mod card;
#[path = "../plugin_kunlun/collectives.rs"]
mod collectives;
mod own;
mod simulator;
