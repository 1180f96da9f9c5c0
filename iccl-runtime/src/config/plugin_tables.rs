//! `[plugin.NAME]`: settings that a plugin declares itself, kept as text until it is known.

use std::collections::BTreeMap;

use crate::{Error, ErrorKind, Result};

use super::codec::{Codec, Shape};
use super::collections::{inline_table, toml_key};
use super::node::{Node, Raw, Rejection, Rejections, quoted};
use super::settings::{Config, Transport};
use super::suggest::nearest;
use super::units::{parse_bytes, parse_duration};

/// Per plugin, its settings as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginTables(BTreeMap<String, BTreeMap<String, String>>);

impl PluginTables {
    /// The settings of one plugin, by name.
    pub fn of<'a>(&'a self, plugin: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.get(plugin).into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The plugins that have a table, by name.
    pub fn plugins(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// Tables of text by plugin and key.
pub(super) struct PerPlugin;

impl PerPlugin {
    fn value(node: &Node) -> Result<String, Rejection> {
        match &node.raw {
            Raw::Word(text) | Raw::Text(text) | Raw::Integer { text, .. } | Raw::Float(text) => {
                Ok(text.clone())
            }
            Raw::Boolean(value) => Ok(value.to_string()),
            Raw::DateTime(_) | Raw::List(_) | Raw::Table(_) => {
                Err(node.reject("expected a string, a number, or true or false"))
            }
        }
    }
}

impl Codec for PerPlugin {
    type Value = PluginTables;

    fn read(&self, node: &Node) -> Result<PluginTables, Rejections> {
        let mut tables = PluginTables::default();
        self.assign(&mut tables, node)?;
        Ok(tables)
    }

    fn assign(&self, target: &mut PluginTables, node: &Node) -> Result<(), Rejections> {
        for (plugin, table) in node.entries(&self.accepted())? {
            if plugin.name.is_empty() || plugin.name.contains('.') {
                return Err(plugin.complain("a plugin's name has no dots").into());
            }
            for (key, value) in table.entries("a table [plugin.NAME]")? {
                let value = Self::value(&value)?;
                target.0.entry(plugin.name.clone()).or_default().insert(key.name, value);
            }
        }
        Ok(())
    }

    fn show(&self, value: &PluginTables) -> Option<String> {
        let tables: Vec<String> = value
            .0
            .iter()
            .map(|(plugin, table)| {
                let entries: Vec<String> = table
                    .iter()
                    .map(|(key, value)| format!("{} = {}", toml_key(key), quoted(value)))
                    .collect();
                format!("{} = {}", toml_key(plugin), inline_table(&entries))
            })
            .collect();
        Some(inline_table(&tables))
    }

    fn toml(&self, value: &PluginTables) -> Option<String> {
        self.show(value)
    }

    fn entries(&self, value: &PluginTables) -> Vec<(String, String)> {
        let of_plugin = |(plugin, table): (&String, &BTreeMap<String, String>)| {
            let plugin = plugin.clone();
            let entry =
                |(key, value): (&String, &String)| (format!("{plugin}.{key}"), value.clone());
            table.iter().map(entry).collect::<Vec<_>>()
        };
        value.0.iter().flat_map(of_plugin).collect()
    }

    fn accepted(&self) -> String {
        "a table per plugin, written [plugin.NAME]".to_owned()
    }

    fn shape(&self) -> Shape {
        Shape::TableOfTables
    }
}

/// A setting's text in the form in which it crosses to a plugin that declares it to be of `kind`:
/// bytes as a plain number, durations in microseconds. `None` if it is not of that kind.
pub(crate) fn plugin_value(kind: &str, text: &str) -> Option<String> {
    match kind {
        "bool" => text.parse::<bool>().ok().map(|value| value.to_string()),
        "integer" => text.parse::<i128>().ok().map(|value| value.to_string()),
        "bytes" => parse_bytes(text).map(|bytes| bytes.to_string()),
        "duration" => parse_duration(text).map(|time| time.as_micros().to_string()),
        _ => Some(text.to_owned()),
    }
}

impl Config {
    /// The settings of `plugin`, checked against the names that it `declared`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] with a line for every setting that the plugin does not
    /// declare: where it is written, and the nearest name that it does declare.
    pub fn plugin_settings<'a>(
        &self,
        plugin: &str,
        declared: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<(&str, &str)>> {
        let declared: Vec<&str> = declared.into_iter().collect();
        let settings: Vec<(&str, &str)> = self.plugin.of(plugin).collect();
        let problems: Vec<String> = settings
            .iter()
            .filter(|(key, _)| !declared.contains(key))
            .map(|(key, _)| {
                let origin = self.provenance(&format!("plugin.{plugin}.{key}"));
                let hint = match nearest(key, declared.iter().copied()) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None if declared.is_empty() => "it has no settings".to_owned(),
                    None => format!("it has {}", declared.join(", ")),
                };
                format!("{origin}: plugin {plugin} has no setting \"{key}\"; {hint}")
            })
            .collect();
        if problems.is_empty() {
            Ok(settings)
        } else {
            Err(Error::new(ErrorKind::InvalidConfig, problems.join("\n")))
        }
    }

    /// A line for every `[plugin.NAME]` whose plugin is not among those `present`: the table has
    /// no effect here, which is right on a host without that plugin and wrong after a slip.
    pub fn tables_without_plugin<'a>(
        &self,
        present: impl IntoIterator<Item = &'a str>,
    ) -> Vec<String> {
        let present: Vec<&str> = present.into_iter().collect();
        self.plugin
            .plugins()
            .filter(|plugin| !present.contains(plugin))
            .map(|plugin| {
                let hint = nearest(plugin, present.iter().copied())
                    .map_or_else(String::new, |near| format!("; did you mean [plugin.{near}]?"));
                format!("[plugin.{plugin}] has no effect: there is no plugin {plugin}{hint}")
            })
            .collect()
    }

    /// A line for every name in `transport.enabled` that is no transport of iccl's and not among the
    /// plugins `present`.
    pub(crate) fn transports_without_plugin(&self, present: &[&str]) -> Vec<String> {
        const KEY: &str = "transport.enabled";
        let usual = Transport::default().enabled;
        let known = || present.iter().copied().chain(usual.iter().map(String::as_str));
        let unknown = self.transport.enabled.iter().filter(|name| known().all(|one| one != *name));
        unknown
            .map(|name| {
                let hint = nearest(name, known())
                    .map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
                let origin = self.provenance(KEY);
                format!("{origin}: {KEY} lists \"{name}\", and there is no such plugin{hint}")
            })
            .collect()
    }
}
