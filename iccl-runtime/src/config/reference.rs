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
    let mut page = introduction();
    let defaults = Config::default();
    for (section, doc) in SECTIONS {
        let _ = write!(page, "\n## `[{section}]`\n\n{}\n", trimmed(doc));
        let prefix = format!("{section}.");
        for setting in SETTINGS.iter().filter(|setting| setting.key.starts_with(&prefix)) {
            describe(&mut page, setting, &defaults);
        }
    }
    page.push_str("\n## Tables\n");
    for setting in SETTINGS.iter().filter(|setting| !setting.key.contains('.')) {
        describe(&mut page, setting, &defaults);
    }
    page
}

fn describe(page: &mut String, setting: &Setting, defaults: &Config) {
    let _ = write!(page, "\n### `{}`\n\n{}\n\n", setting.key, setting.text());
    let _ = writeln!(page, "- accepted: {}", setting.accepted());
    let default = setting
        .toml(defaults)
        .map_or_else(|| "not set".to_owned(), |default| format!("`{default}`"));
    let _ = writeln!(page, "- default: {default}");
    if setting.reach.file {
        let _ = writeln!(page, "- example: `{} = {}`", setting.key, setting.example);
    } else {
        page.push_str("- not read from files\n");
    }
    if let Some(variable) = setting.reach.environment {
        let _ = writeln!(page, "- environment: `{variable}`");
    }
    if setting.reach.agreed {
        page.push_str("- must be the same on all ranks\n");
    }
    if setting.reach.guarded {
        page.push_str("- not believed from the environment of a setuid process\n");
    }
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
by key: `plugins.require.nvidia`, `plugin.tcp.sockets`.

Durations have a unit: `ns`, `us`, `ms`, `s`, `min`, `h`. Sizes are bytes; `K`, `M`, `G`, `KiB`,
`MiB`, `GiB` count in powers of 1024, `KB`, `MB`, `GB` in powers of 1000.
"
    )
}
