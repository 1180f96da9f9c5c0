//! Settings: typed TOML, environment and API values, each with its provenance.
//!
//! Everything is made from one table, [`SETTINGS`]: parsing, the typed [`Config`], `iccl config`
//! and `docs/configuration.md`. A file is overruled by the environment, both by the API. The
//! process's environment is read in one function, [`Sources::of_process`]; all else is pure.
//!
//! No other room reads a setting, a file of settings or an environment variable, and this room
//! looks at nothing but settings: whether a named plugin, algorithm or interface exists is for
//! the room that owns it to say.

mod algorithm;
mod codec;
mod collections;
mod load;
mod node;
mod plugin_tables;
mod provenance;
mod reference;
mod report;
mod rules;
mod settings;
mod sources;
mod suggest;
mod table;
mod units;

pub use algorithm::{AlgorithmChoice, AlgorithmRange};
pub use codec::Secret;
pub use load::CONFIG_VARIABLE;
pub use plugin_tables::PluginTables;
pub(crate) use plugin_tables::plugin_value;
pub use provenance::Provenance;
pub use reference::reference_markdown;
pub use report::Entry;
pub use rules::{PlanRule, RuleAction, Selector, TIERS};
pub use settings::{
    Accumulate, Bootstrap, Config, Device, Engine, Log, LogFormat, Numerics, OnDegrade, Plan,
    Plugins, ProbeMode, SETTINGS, Transport,
};
pub use sources::{Environment, Sources};
pub use suggest::nearest;
pub use table::{Reach, Setting};
pub use units::parse_bandwidth;
