//! Discovers, checks, loads, negotiates, probes and self-tests plugins.
//!
//! [`PluginSet::load`] is the way in. Every candidate leaves one [`Record`], whatever became of it,
//! and no candidate ends the process. `discovery` takes all of them, in order, through `folders`
//! (where they are found), `file` and `elf` (what can be known without running them), and `load`:
//! `child` (the first run, in a process of its own, whose side is `helper`), `image` (the doors),
//! `activate` (probe and facts) and `self_test`. What stays loaded is known to `process`, once for
//! all sets. `docs/plugins.md` is the operator's view.
//!
//! Nothing here reads a setting or the environment, plans, or knows what a link is.

mod activate;
mod child;
mod discovery;
mod elf;
mod error;
mod file;
mod folders;
mod helper;
mod image;
mod load;
mod names;
mod process;
mod reason;
mod record;
mod require;
mod self_test;
mod set;
mod settings;

pub use error::call_error;
pub use helper::{HELPER_NAME, helper_main};
pub use reason::{Reason, State};
pub use record::{Door, ProbeMethod, Record, SelfTest};
pub use set::{CollectivesPlugin, DevicePlugin, Plugin, PluginSet, TransportPlugin};
