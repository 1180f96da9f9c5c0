//! `iccl plugins`: every candidate, and what became of it.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use iccl_runtime::plugins::{Plugin, PluginSet, Record, SelfTest};
use serde::Serialize;

use crate::context::Context;
use crate::failure::{Outcome, Result};
use crate::print;

pub(crate) const EXAMPLES: &str = "\
Examples:
  iccl plugins
  iccl plugins -v                          with details, hints, and each plugin's settings
  iccl plugins nvidia                      one plugin
  ICCL_PLUGIN_PATH=/opt/plugins iccl plugins --json | jq '.plugins[] | {name, state, reason}'

Exit status: 1 if a plugin was named and is not active, or one that the configuration requires is
not.";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Only these plugins, by name or file name.
    names: Vec<String>,
}

/// The answer as JSON.
#[derive(Serialize)]
struct Answer<'a> {
    searched: &'a [PathBuf],
    plugins: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    record: &'a Record,
    vendor: Option<&'static str>,
    description: Option<&'static str>,
    settings: Vec<SettingRow>,
}

#[derive(Serialize)]
struct SettingRow {
    key: &'static str,
    kind: &'static str,
    default: &'static str,
    description: &'static str,
}

pub(crate) fn show(context: &Context, arguments: &Arguments) -> Result {
    let config = context.config()?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    let plugins = PluginSet::discover(&config)?;
    let chosen: Vec<&Record> =
        plugins.records().iter().filter(|record| is_meant(record, &arguments.names)).collect();
    let rows: Vec<Row> = chosen.iter().map(|record| row(&plugins, record)).collect();
    if context.is_json() {
        print::json(&Answer { searched: plugins.searched(), plugins: rows })?;
    } else {
        print::text(&table(&chosen))?;
        if context.is_verbose() {
            print::text(&details(&rows))?;
        }
        if chosen.is_empty() || context.is_verbose() {
            print::text(&searched(plugins.searched()))?;
        }
    }
    let missing = arguments
        .names
        .iter()
        .find(|name| !chosen.iter().any(|one| one.is_active() && goes_by(one, name)));
    if let Some(name) = missing {
        return Err(plugins.missing(name, "the command line").into());
    }
    // As initialisation would: a plugin that the configuration requires has to be there.
    plugins.check_required(&config)?;
    Ok(Outcome::Right)
}

fn is_meant(record: &Record, names: &[String]) -> bool {
    names.is_empty() || names.iter().any(|name| goes_by(record, name))
}

fn goes_by(record: &Record, name: &str) -> bool {
    let own = record.name.as_deref().unwrap_or_default();
    own == name
        || own.strip_prefix("transport-") == Some(name)
        || record.path.file_name().is_some_and(|file| file == name)
}

fn row<'a>(plugins: &PluginSet, record: &'a Record) -> Row<'a> {
    let name = record.name.as_deref().filter(|_| record.is_active());
    let plugin = name.and_then(|name| plugins.plugins().find(|one| one.name() == name));
    Row {
        record,
        vendor: plugin.map(Plugin::vendor),
        description: plugin.map(Plugin::description),
        settings: plugin
            .map(Plugin::settings)
            .unwrap_or_default()
            .iter()
            .map(|one| SettingRow {
                key: one.key,
                kind: one.kind,
                default: one.default,
                description: one.description,
            })
            .collect(),
    }
}

fn table(records: &[&Record]) -> String {
    let text = |part: &Option<String>| part.clone().unwrap_or_else(|| "-".to_owned());
    let rows = records.iter().map(|record| {
        vec![
            text(&record.name),
            text(&record.version),
            if record.kinds.is_empty() { "-".to_owned() } else { record.kinds.join(", ") },
            record.state.name().to_owned(),
            record.reason.map_or("-", |reason| reason.code()).to_owned(),
            record.path.display().to_string(),
        ]
    });
    print::table(&["name", "version", "kinds", "state", "reason", "path"], rows.collect())
}

/// A paragraph for each plugin.
fn details(rows: &[Row]) -> String {
    let mut text = String::new();
    for Row { record, vendor, description, settings } in rows {
        let name = record.name.clone().unwrap_or_else(|| record.path.display().to_string());
        let _ = write!(text, "\n{name}");
        if let (Some(description), Some(vendor)) = (description, vendor) {
            let _ = write!(text, ": {description} ({vendor})");
        }
        text.push('\n');
        let mut line = |head: &str, what: &str| {
            if !what.is_empty() {
                let _ = writeln!(text, "  {head:<10} {what}");
            }
        };
        line("detail", &record.detail);
        line("hint", &record.hint);
        line("abi", record.abi.as_deref().unwrap_or_default());
        let door = record.door.map(|door| format!("{door:?}").to_lowercase());
        line("door", &door.unwrap_or_default());
        let took = record.probe_time.map(|time| format!("{:.1} ms", time.as_secs_f64() * 1e3));
        line("took", &took.unwrap_or_default());
        match &record.self_test {
            SelfTest::NotRun => {}
            SelfTest::Passed => line("self-test", "passed"),
            SelfTest::Struck(struck) => {
                line("self-test", &format!("struck: {}", struck.join(", ")));
            }

            SelfTest::Failed => line("self-test", "failed"),
        }
        for note in &record.notes {
            line("note", note);
        }
        for setting in settings {
            let default = if setting.default.is_empty() { "-" } else { setting.default };
            line(
                "setting",
                &format!(
                    "{} ({}, default {default}): {}",
                    setting.key, setting.kind, setting.description
                ),
            );
        }
    }
    text
}

fn searched(folders: &[PathBuf]) -> String {
    let mut text = "\nsearched, in this order:\n".to_owned();
    for folder in folders {
        let is_there = if folder.is_dir() { "" } else { " (not there)" };
        let _ = writeln!(text, "  {}{is_there}", folder.display());
    }
    text
}
