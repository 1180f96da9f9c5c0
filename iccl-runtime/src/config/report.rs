//! What the configuration says of itself: for `iccl config`, and for the comparison of ranks.

use serde::Serialize;

use crate::{Error, ErrorKind, Result};

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

    /// Compares what ranks said of [`Config::agreed`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] that names every key in which ranks differ, the values, and
    /// which ranks have which.
    pub fn compare_agreed(reports: &[(u32, Vec<(String, String)>)]) -> Result<()> {
        let mut keys: Vec<&str> = Vec::new();
        for (key, _) in reports.iter().flat_map(|(_, settings)| settings) {
            if !keys.contains(&key.as_str()) {
                keys.push(key);
            }
        }
        let lines: Vec<String> =
            keys.into_iter().filter_map(|key| difference(key, reports)).collect();
        if lines.is_empty() {
            return Ok(());
        }
        let message = format!("ranks have different settings: {}", lines.join("; "));
        Err(Error::new(ErrorKind::InvalidConfig, message)
            .with_hint("give all ranks the same iccl.toml and ICCL_* variables"))
    }
}

/// `engine.chunk_bytes is 64KiB on ranks 0, 2 and 1MiB on rank 1`, if it is not the same everywhere.
fn difference(key: &str, reports: &[(u32, Vec<(String, String)>)]) -> Option<String> {
    let mut groups: Vec<(Option<&str>, Vec<u32>)> = Vec::new();
    for (rank, settings) in reports {
        let value = settings.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
        match groups.iter_mut().find(|(other, _)| *other == value) {
            Some((_, ranks)) => ranks.push(*rank),
            None => groups.push((value, vec![*rank])),
        }
    }
    if groups.len() < 2 {
        return None;
    }
    let parts: Vec<String> = groups
        .iter()
        .map(|(value, ranks)| {
            // On thousands of ranks a few names are enough to go and look.
            let shown: Vec<String> = ranks.iter().take(8).map(ToString::to_string).collect();
            let more = if ranks.len() > 8 { ", …" } else { "" };
            let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
            let value = value.unwrap_or("unknown");
            format!("{value} on {noun} {}{more}", shown.join(", "))
        })
        .collect();
    Some(format!("{key} is {}", parts.join(" and ")))
}
