//! The settings of a plugin, in the form in which they cross to it.

use super::names::names_of;
use crate::config::{Config, plugin_value};
use crate::{Error, ErrorKind, Result};

/// What the configuration says for the plugin, checked against the keys and kinds that it declares,
/// and written as the ABI wants it: bytes as plain numbers, durations in microseconds.
///
/// # Errors
/// `InvalidConfig`: an unknown key, or a value that is not of the declared kind.
pub(super) fn settings_for(
    config: &Config,
    plugin: &str,
    declared: &[(&str, &str)],
) -> Result<Vec<(String, String)>> {
    let mut settings: Vec<(String, String)> = Vec::new();
    for name in names_of(plugin) {
        for (key, value) in config.plugin_settings(name, declared.iter().map(|(key, _)| *key))? {
            let kind = declared
                .iter()
                .find(|(known, _)| *known == key)
                .map_or("string", |(_, kind)| *kind);
            let value = plugin_value(kind, value).ok_or_else(|| {
                let key = format!("plugin.{name}.{key}");
                let origin = config.provenance(&key);
                Error::new(
                    ErrorKind::InvalidConfig,
                    format!("{origin}: {key} = \"{value}\": expected a value of kind {kind}"),
                )
            })?;
            settings.retain(|(known, _)| known != key);
            settings.push((key.to_owned(), value));
        }
    }
    Ok(settings)
}
