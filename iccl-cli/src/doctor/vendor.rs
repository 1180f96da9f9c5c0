//! `iccl doctor --vendor NAME`: what a person with that maker's cards sends back, so that facts which nobody
//! could confirm are confirmed.

use std::fmt::Write as _;

use iccl_runtime::config::Config;
use iccl_runtime::plugins::{PluginSet, Record, SelfTest};
use serde::Serialize;

use super::Check;
use super::libraries::Libraries;
use crate::capabilities::{self, Capabilities};
use crate::cluster::VENDORS;
use crate::context::Context;
use crate::failure::{Failure, Outcome, Result};
use crate::print;

/// What is known of each maker, with what is not confirmed marked so.
const DOCUMENT: &str = include_str!("../../../docs/vendors.md");

/// By what the document marks a fact.
const MARK: &str = "not confirmed";

#[derive(Serialize)]
struct Answer<'a> {
    vendor: &'a str,
    iccl: &'static str,
    kernel: String,
    system: String,
    plugin: Option<&'a Record>,
    settings: Vec<String>,
    libraries: Vec<Check>,
    devices: Vec<String>,
    capabilities: Option<Capabilities>,
    unconfirmed: Vec<String>,
}

pub(super) fn report(context: &Context, vendor: &str) -> Result {
    if !VENDORS.contains(&vendor) {
        let near = iccl_runtime::config::nearest(vendor, VENDORS.iter().copied());
        return Err(Failure::usage(format!("no vendor {vendor} is known")).with_hint(
            near.map_or_else(
                || format!("one of {}", VENDORS.join(", ")),
                |near| format!("did you mean {near}?"),
            ),
        ));
    }
    let config = context.config()?;
    let plugins = PluginSet::discover(&config)?;
    let is_meant = |record: &&Record| record.name.as_deref() == Some(vendor);
    let answer = Answer {
        vendor,
        iccl: env!("CARGO_PKG_VERSION"),
        kernel: first_line("/proc/version"),
        system: system(),
        plugin: plugins.records().iter().find(is_meant),
        settings: settings(&config, vendor),
        libraries: Libraries::new(&config, Some(&plugins)).checks_of(vendor),
        devices: plugins
            .devices_of(vendor)
            .map(|device| {
                let facts = device.facts();
                format!("{}: {}, {}", device.index(), facts.name, print::bytes(facts.memory_bytes))
            })
            .collect(),
        capabilities: capabilities::all(&plugins, &config)
            .into_iter()
            .find(|one| one.plugin() == vendor),
        unconfirmed: unconfirmed(DOCUMENT, vendor),
    };
    if context.is_json() {
        print::json(&answer)?;
    } else {
        print::text(&answer.text())?;
    }
    Ok(Outcome::Right)
}

fn first_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// The distribution, as it calls itself.
fn system() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "unknown".to_owned(), |name| name.trim_matches('"').to_owned())
}

/// What somebody set for the plugin.
fn settings(config: &Config, vendor: &str) -> Vec<String> {
    let of_plugin = format!("plugin.{vendor}.");
    let entries = config.entries().into_iter().filter(|entry| entry.key.starts_with(&of_plugin));
    entries
        .map(|entry| {
            let value = entry.value.unwrap_or_default();
            format!("{} = {value} ({})", entry.key, entry.provenance)
        })
        .collect()
}

/// What a maker's section says is not confirmed: sentences that say so of something, and all rows of a
/// table whose heading does.
fn unconfirmed(document: &str, vendor: &str) -> Vec<String> {
    let mut sections = document.split("\n## ").skip(1);
    let is_meant = |section: &&str| {
        let head = section.lines().next().unwrap_or_default();
        head.split(|c: char| !c.is_alphanumeric()).any(|word| word.eq_ignore_ascii_case(vendor))
    };
    let Some(section) = sections.find(is_meant) else { return Vec::new() };
    let mut found = Vec::new();
    let mut heading = "";
    for paragraph in section.split("\n\n").skip(1).map(str::trim) {
        if paragraph.starts_with('#') {
            heading = paragraph;
        } else if paragraph.starts_with('|') {
            // Its first two lines are the names of columns, and dashes.
            let rows = paragraph
                .lines()
                .skip(2)
                .filter(|row| heading.contains(MARK) || row.contains(MARK));
            found.extend(rows.map(|row| {
                let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
                cells.join("; ")
            }));
        } else {
            let words: Vec<&str> = paragraph.split_whitespace().collect();
            let text = words.join(" ");
            let sentences = text.split_inclusive(". ").filter(|one| one.contains(MARK));
            found.extend(sentences.map(|one| one.trim().trim_start_matches("- ").to_owned()));
        }
    }
    found
}

impl Answer<'_> {
    fn text(&self) -> String {
        let mut facts = vec![
            ("iccl", self.iccl.to_owned()),
            ("kernel", self.kernel.clone()),
            ("system", self.system.clone()),
        ];
        match self.plugin {
            None => facts.push(("plugin", "not found".to_owned())),
            Some(record) => {
                facts.push(("plugin", record.to_string()));
                facts.push(("file", record.path.display().to_string()));
                facts.push((
                    "self-test",
                    match &record.self_test {
                        SelfTest::NotRun => "not run".to_owned(),
                        SelfTest::Passed => "passed".to_owned(),
                        SelfTest::Struck(struck) => format!("struck: {}", struck.join(", ")),
                        SelfTest::Failed => "failed".to_owned(),
                    },
                ));
                facts.extend(record.notes.iter().map(|note| ("note", note.clone())));
            }
        }
        facts.extend(self.settings.iter().map(|one| ("setting", one.clone())));
        facts.extend(
            self.libraries.iter().map(|one| ("library", format!("{}: {}", one.name, one.found))),
        );
        facts.extend(self.devices.iter().map(|one| ("device", one.clone())));
        let rows: Vec<Vec<String>> =
            facts.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
        let mut text = format!("# {}: send all of this back\n", self.vendor);
        text += &iccl_runtime::plan::text_table(&rows);
        if let Some(capabilities) = &self.capabilities {
            text.push('\n');
            text += &capabilities.text();
        }
        if !self.unconfirmed.is_empty() {
            text += "\nNobody could confirm on a card so far (docs/vendors.md); say what is so on yours:\n";
            for fact in &self.unconfirmed {
                let _ = writeln!(text, "- {fact}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::HOST;

    #[test]
    fn a_makers_unconfirmed_facts_are_found_sentence_by_sentence() {
        let document = "# All\n\n## One\n\nIt is blue. Its size\n(not confirmed) is two. It ends.\n\n\
                        ### More\n\n- That is so; not confirmed.\n\n### What is not confirmed\n\n\
                        | fact | test |\n|---|---|\n| all | `a || b` |\n| none | c |\n\n## Two\n\nNot it: not confirmed.\n";
        assert_eq!(
            unconfirmed(document, "one"),
            [
                "Its size (not confirmed) is two.",
                "That is so; not confirmed.",
                "all; `a || b`",
                "none; c",
            ]
        );
        assert_eq!(unconfirmed(document, "three"), Vec::<String>::new());
    }

    #[test]
    fn the_document_has_a_section_for_each_maker_with_facts_to_confirm() {
        for maker in VENDORS.iter().filter(|maker| **maker != HOST) {
            assert!(!unconfirmed(DOCUMENT, maker).is_empty(), "{maker}");
        }
        // A table.
        assert!(unconfirmed(DOCUMENT, "kunlun").len() >= 10);
    }
}
