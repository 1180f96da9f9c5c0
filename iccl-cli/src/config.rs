//! `iccl config`: every setting, its value, and where the value came from.

use std::path::PathBuf;

use clap::Args;
use iccl_runtime::config::{Entry, Provenance, SETTINGS, nearest};
use serde::Serialize;

use crate::context::Context;
use crate::failure::{Failure, Outcome, Result};
use crate::print;

pub(crate) const EXAMPLES: &str = "\
Examples:
  iccl config
  iccl config --changed                    only what somebody set
  iccl config engine plugins.path          one section and one setting
  iccl config --set engine.op_timeout=30s engine -v
  iccl config --json | jq '.settings[] | select(.agreed)'";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Only these settings or sections.
    keys: Vec<String>,
    /// Only settings that somebody set.
    #[arg(long)]
    changed: bool,
}

#[derive(Serialize)]
struct Answer {
    file: Option<PathBuf>,
    settings: Vec<Entry>,
    warnings: Vec<String>,
}

pub(crate) fn show(context: &Context, arguments: &Arguments) -> Result {
    let config = context.config()?;
    let mut settings = config.entries();
    for key in &arguments.keys {
        if !settings.iter().any(|entry| is_under(&entry.key, key)) {
            return Err(unknown(key));
        }
    }
    settings.retain(|entry| {
        let is_meant =
            arguments.keys.is_empty() || arguments.keys.iter().any(|key| is_under(&entry.key, key));
        is_meant && (!arguments.changed || entry.provenance != Provenance::Default)
    });
    if context.is_json() {
        let file = config.file().map(ToOwned::to_owned);
        print::json(&Answer { file, settings, warnings: config.warnings().to_vec() })?;
        return Ok(Outcome::Right);
    }
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    let file = config.file().map_or_else(
        || "no configuration file (--config, ICCL_CONFIG, ./iccl.toml)".to_owned(),
        |file| file.display().to_string(),
    );
    print::text(&format!("# {file}\n"))?;
    if settings.is_empty() {
        print::text("# nothing is set; every setting has its default\n")?;
        return Ok(Outcome::Right);
    }
    let is_verbose = context.is_verbose();
    let rows = settings.iter().map(|entry| {
        let mut row = vec![
            entry.key.clone(),
            entry.value.clone().unwrap_or_else(|| "-".to_owned()),
            entry.provenance.to_string(),
        ];
        if is_verbose {
            row.push(entry.environment.unwrap_or("-").to_owned());
            row.push(if entry.agreed { "yes".to_owned() } else { String::new() });
            row.push(wrapped(&entry.doc));
        }
        row
    });
    let heads: &[&str] = if is_verbose {
        &["setting", "value", "from", "variable", "same on all ranks", "meaning"]
    } else {
        &["setting", "value", "from"]
    };
    print::text(&print::table(heads, rows.collect()))?;
    Ok(Outcome::Right)
}

/// Whether `key` is `section`, or lies in it.
fn is_under(key: &str, section: &str) -> bool {
    key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn unknown(key: &str) -> Failure {
    let failure = Failure::usage(format!("there is no setting and no section {key}"));
    let keys = || SETTINGS.iter().map(|setting| setting.key);
    let sections = keys().filter_map(|key| key.split_once('.')).map(|(section, _)| section);
    match nearest(key, keys().chain(sections)) {
        Some(near) => failure.with_hint(format!("did you mean {near}?")),
        None => failure.with_hint("`iccl config` shows all"),
    }
}

/// A text in lines of at most 60 characters.
fn wrapped(text: &str) -> String {
    const WIDTH: usize = 60;
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}
