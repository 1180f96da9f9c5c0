//! Plugins that have to be there.

use semver::VersionReq;

use super::names::{means, names_of};
use super::record::Record;
use super::set::PluginSet;
use crate::config::{Config, nearest};
use crate::{Error, ErrorKind, Result};

/// Sees that every plugin of `[plugins.require]` is active in a version that matches.
pub(super) fn check(set: &PluginSet, config: &Config) -> Result<()> {
    for (name, requirement) in &config.plugins.require {
        let met = set.plugin(name).is_some_and(|plugin| requirement.matches(plugin.version()));
        if !met {
            return Err(missing(set, name, "plugins.require", Some(requirement)));
        }
    }
    Ok(())
}

/// The error for a plugin that is needed and not active, or not in the right version.
pub(super) fn missing(
    set: &PluginSet,
    name: &str,
    why: &str,
    requirement: Option<&VersionReq>,
) -> Error {
    let wanted = match requirement {
        Some(requirement) => format!("plugin {name} {requirement}"),
        None => format!("plugin {name}"),
    };
    let matching: Vec<String> = set
        .records()
        .iter()
        .filter(|record| claims(record, name))
        .map(ToString::to_string)
        .collect();
    let seen = if matching.is_empty() {
        let others: Vec<String> = set
            .records()
            .iter()
            .map(|record| match &record.name {
                Some(name) => format!("{name} ({})", record.state.name()),
                None => format!("{} ({})", record.path.display(), record.state.name()),
            })
            .collect();
        if others.is_empty() { "nothing".to_owned() } else { others.join(", ") }
    } else {
        matching.join(" | ")
    };
    let searched: Vec<String> =
        set.searched().iter().map(|folder| folder.display().to_string()).collect();
    let text = match set.plugin(name) {
        Some(plugin) => {
            format!("{wanted} is asked for by {why}, and version {} is here", plugin.version())
        }
        None => format!("{wanted} is asked for by {why}, and not active"),
    };
    let known = set.records().iter().filter_map(|record| record.name.as_deref());
    let near = if matching.is_empty() { nearest(name, known.flat_map(names_of)) } else { None };
    let shows = "`iccl plugins` shows every candidate and its reason";
    Error::new(
        ErrorKind::PluginMissing,
        format!("{text}; searched {}; seen: {seen}", searched.join(", ")),
    )
    .with_hint(match near {
        Some(near) => format!("did you mean {near}? {shows}"),
        None => shows.to_owned(),
    })
}

/// Whether a record is about the plugin of this name, by what is known or by its file's name.
fn claims(record: &Record, name: &str) -> bool {
    if let Some(known) = &record.name {
        return means(name, known);
    }
    record
        .path
        .file_name()
        .and_then(|file| file.to_str())
        .and_then(|file| file.strip_prefix("libiccl_")?.strip_suffix(".so"))
        .is_some_and(|stem| means(name, stem))
}
