//! What the configuration says of itself: for `iccl config`, and for the comparison of ranks.

use serde::Serialize;

use super::codec::Shape;
use super::provenance::Provenance;
use super::settings::{Config, SETTINGS};

/// A setting with its value and where it came from; for JSON, these names are stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// The key: `engine.op_timeout`, or `plugins.require.nvidia` for an entry of a table.
    pub key: String,
    /// The value as text, the form that the environment takes; `None` where it is not set.
    pub value: Option<String>,
    /// The default as text.
    pub default: Option<String>,
    /// Where the value came from.
    pub provenance: Provenance,
    /// The environment variable that sets it.
    pub environment: Option<&'static str>,
    /// Whether all ranks must have the same.
    pub agreed: bool,
    /// What it does.
    pub doc: String,
}

impl Config {
    /// Every setting, in the order of the reference. A table that has entries is listed entry by
    /// entry. Secrets are redacted.
    pub fn entries(&self) -> Vec<Entry> {
        let defaults = Self::default();
        let mut list = Vec::new();
        for setting in SETTINGS {
            let entry = |key: String, value, default| Entry {
                provenance: self.provenance(&key),
                key,
                value,
                default,
                environment: setting.reach.environment,
                agreed: setting.reach.agreed,
                doc: setting.text(),
            };
            let entries = (setting.list_entries)(self);
            if (setting.shape)() == Shape::Value || entries.is_empty() {
                let (value, default) = (setting.value(self), setting.value(&defaults));
                list.push(entry(setting.key.to_owned(), value, default));
            } else {
                list.extend(entries.into_iter().map(|(name, value)| {
                    entry(format!("{}.{name}", setting.key), Some(value), None)
                }));
            }
        }
        list
    }

    /// Key and canonical text of every setting that must be the same on all ranks, in the order of
    /// the table: what ranks exchange when they initialise.
    pub fn agreed(&self) -> Vec<(String, String)> {
        SETTINGS
            .iter()
            .filter(|setting| setting.reach.agreed)
            .map(|setting| (setting.key.to_owned(), setting.value(self).unwrap_or_default()))
            .collect()
    }
}
