//! `docs/configuration.md`, made from the table of settings.

use std::fmt::Write as _;

use super::load::{CONFIG_FILE, CONFIG_VARIABLE};
use super::settings::{Config, SECTIONS, SETTINGS};
use super::table::Setting;

impl Setting {
    /// The documentation without the blanks that `///` leaves before each line.
    pub(super) fn text(&self) -> String {
        trimmed(self.doc)
    }
}

fn trimmed(doc: &str) -> String {
    doc.lines().map(str::trim).collect::<Vec<_>>().join(" ").trim().to_owned()
}

/// The reference of all settings, in Markdown.
pub fn reference_markdown() -> String {
    let defaults = Config::default();
    let mut page = introduction();
    overview(&mut page, &defaults);
    for (section, doc) in SECTIONS {
        let _ = write!(page, "\n## `[{section}]`\n\n{}\n", trimmed(doc));
        let prefix = format!("{section}.");
        for setting in SETTINGS.iter().filter(|setting| setting.key.starts_with(&prefix)) {
            describe(&mut page, setting, &defaults);
        }
    }
    page.push_str("\n## Tables of the user's own entries\n");
    for setting in SETTINGS.iter().filter(|setting| !setting.key.contains('.')) {
        describe(&mut page, setting, &defaults);
    }
    page
}

/// All settings at a glance.
fn overview(page: &mut String, defaults: &Config) {
    page.push_str("\n## All settings\n\n| key | default | environment | same on all ranks |\n");
    page.push_str("|---|---|---|---|\n");
    for setting in SETTINGS {
        let key = setting.key;
        let anchor = key.replace('.', "");
        let default = default_text(setting, defaults);
        let variable = setting.reach.environment.map(|name| format!("`{name}`"));
        let variable = variable.unwrap_or_default();
        let agreed = if setting.reach.agreed { "yes" } else { "" };
        let _ = writeln!(page, "| [`{key}`](#{anchor}) | {default} | {variable} | {agreed} |");
    }
}

fn describe(page: &mut String, setting: &Setting, defaults: &Config) {
    let _ = write!(page, "\n### `{}`\n\n{}\n\n", setting.key, setting.text());
    let _ = writeln!(page, "- accepted: {}", setting.accepted());
    let _ = writeln!(page, "- default: {}", default_text(setting, defaults));
    if let Some(variable) = setting.reach.environment {
        let setuid = if setting.reach.guarded { ", ignored in a setuid process" } else { "" };
        let _ = writeln!(page, "- environment: `{variable}`{setuid}");
    }
    if setting.reach.agreed {
        page.push_str("- must be the same on all ranks\n");
    }
    if setting.reach.file {
        let _ = write!(page, "\n```toml\n{}```\n", example(setting));
    } else {
        page.push_str("- not read from files\n");
    }
}

fn default_text(setting: &Setting, defaults: &Config) -> String {
    let default = setting.toml(defaults);
    default.map_or_else(|| "not set".to_owned(), |default| format!("`{default}`"))
}

/// The example as people write it, under its table; what has entries of its own is spelled out.
fn example(setting: &Setting) -> String {
    let key = setting.key;
    let inline = match key.split_once('.') {
        Some((table, name)) => format!("[{table}]\n{name} = {}\n", setting.example),
        None => format!("{key} = {}\n", setting.example),
    };
    if !setting.example.contains('{') {
        return inline;
    }
    toml::from_str::<toml::Table>(&inline).map_or(inline, |document| document.to_string())
}

fn introduction() -> String {
    format!(
        "<!-- Generated: cargo run -p iccl-runtime --example configuration_reference > docs/configuration.md -->
# Configuration

iccl needs no configuration: it finds out what is there. A setting overrules what it found.

A setting comes from, the later one winning:

1. its default;
2. a file: the one that the application or `--config` names, else the one that `{CONFIG_VARIABLE}`
   names, else `{CONFIG_FILE}` in the working directory, if there is one;
3. its environment variable (an empty one counts as not set);
4. the application, or an option of the command.

`iccl config` prints every setting with its value and where it came from. Whatever is wrong in a
file, in the environment or in the API is an error that lists all of it, a line each, with file,
line and column. A key that is not known is an error; an `ICCL_*` variable that is not known is a
warning. Relative paths start at the folder of the file that holds them, else at the working
directory.

In the environment and through the API a value is text: `30s`, `tcp`, `true`. Lists are parted by
commas (`tcp,shm`), lists of folders by colons, and tables are `name=value; name=value`. A list or
a table may also be given as TOML: `[\"tcp\", \"shm\"]`, `{{ nvidia = \">=1.2, <2\" }}`. Of a table, a
later source replaces single entries; a list is replaced as a whole. The API reaches single entries
by key: `plugins.require.nvidia`, `plugin.tcp.sockets_per_peer`.

Durations have a unit: `ns`, `us`, `ms`, `s`, `min`, `h`. Sizes are bytes; `K`, `M`, `G`, `KiB`,
`MiB`, `GiB` count in powers of 1024, `KB`, `MB`, `GB` in powers of 1000.
"
    )
}
