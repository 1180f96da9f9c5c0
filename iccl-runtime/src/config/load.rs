//! From sources to a [`Config`]: the file, over it the environment, over both the API (TOML text, then
//! single values). All that is wrong in any of them is reported at once.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Error, ErrorKind, Result};

use super::codec::Shape;
use super::node::{Document, Key, Node, Raw, Rejection, Rejections, parse_document, position};
use super::provenance::Provenance;
use super::settings::{Config, SETTINGS};
use super::sources::{Environment, Sources};
use super::suggest::{nearest, same_name, unknown_key};
use super::table::Setting;

/// Names the configuration file.
pub const CONFIG_VARIABLE: &str = "ICCL_CONFIG";
/// `ICCL_*` variables that are no settings: that one, and the name that a launcher gives the job.
const OTHER_VARIABLES: [&str; 2] = [CONFIG_VARIABLE, "ICCL_JOB_ID"];
/// What the simulated SDKs read, which are no part of iccl.
const SIMULATORS: &str = "ICCL_SIM_";
/// The file that is read where none is named, if it is there.
pub(super) const CONFIG_FILE: &str = "iccl.toml";
/// No configuration is longer; a device or an endless pipe is.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// More lines than this help nobody.
const MAX_PROBLEMS: usize = 25;

/// Where the values of a [`Config`] came from.
#[derive(Clone, Debug, Default)]
pub(super) struct Origins {
    provenance: BTreeMap<String, Provenance>,
    file: Option<PathBuf>,
    warnings: Vec<String>,
    environment: Environment,
}

impl Config {
    /// Reads all sources.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] with one line for everything that is wrong in any source:
    /// where it is, what was found, and what is accepted or which key was meant.
    pub fn load(sources: &Sources) -> Result<Self> {
        let mut loader = Loader {
            config: Self::default(),
            sources,
            folder: Arc::from(sources.working_directory.as_path()),
            problems: Vec::new(),
        };
        if let Some((path, named_by)) = loader.find_file() {
            loader.load_file(&path, &named_by);
        }
        loader.load_environment();
        if let Some((name, text)) = &sources.text {
            loader.load_text(text, &sources.working_directory.join(name), Path::new(name));
        }
        loader.load_api();
        loader.finish()
    }

    /// Where the value of `key` came from; for entries of tables the key is
    /// `plugins.require.nvidia` or `plugin.nvidia.library_dir`.
    pub fn provenance(&self, key: &str) -> Provenance {
        self.origins.provenance.get(key).cloned().unwrap_or_default()
    }

    /// The file that was read.
    pub fn file(&self) -> Option<&Path> {
        self.origins.file.as_deref()
    }

    /// What the user should hear of although it is no error, such as an unknown `ICCL_*` variable.
    pub fn warnings(&self) -> &[String] {
        &self.origins.warnings
    }

    /// The environment that was read, for what launchers say in variables of their own.
    pub fn environment(&self) -> &Environment {
        &self.origins.environment
    }
}

struct Loader<'a> {
    config: Config,
    sources: &'a Sources,
    /// The working directory.
    folder: Arc<Path>,
    problems: Vec<String>,
}

impl Loader<'_> {
    /// The file and who named it; `None` where there is none.
    fn find_file(&mut self) -> Option<(PathBuf, String)> {
        if let Some(file) = &self.sources.file {
            return Some((self.folder.join(file), "the caller".to_owned()));
        }
        let named = self.sources.environment.get(CONFIG_VARIABLE).map(|file| {
            (self.folder.join(file), format!("environment variable {CONFIG_VARIABLE}"))
        });
        let here = self.folder.join(CONFIG_FILE);
        let found = named.or_else(|| {
            // A dangling link or a folder of this name is reported, not passed over.
            here.symlink_metadata().is_ok().then(|| (here, "the working directory".to_owned()))
        })?;
        if self.sources.raised_privileges {
            self.config.origins.warnings.push(format!(
                "{} of {} is ignored: the process has raised privileges",
                found.0.display(),
                found.1
            ));
            return None;
        }
        Some(found)
    }

    fn load_file(&mut self, path: &Path, named_by: &str) {
        let mut bytes = Vec::new();
        let read = std::fs::File::open(path)
            .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
        if let Err(error) = read {
            self.problems.push(format!(
                "{}: the configuration file named by {named_by} cannot be read: {error}",
                path.display()
            ));
            return;
        }
        if bytes.len() as u64 > MAX_FILE_BYTES {
            self.problems.push(format!(
                "{}: longer than {MAX_FILE_BYTES} bytes, which no configuration file is",
                path.display()
            ));
            return;
        }
        self.config.origins.file = Some(path.to_owned());
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                let valid = error.utf8_error().valid_up_to();
                let text = String::from_utf8_lossy(error.as_bytes());
                let place = position(&text, path, valid);
                self.problems.push(format!("{place}: not UTF-8"));
                return;
            }
        };
        self.load_text(&text, path, path);
    }

    /// Takes over what a TOML text says. Relative paths start where `place` lies; `name` is what
    /// messages call it.
    fn load_text(&mut self, text: &str, place: &Path, name: &Path) {
        let folder: Arc<Path> = Arc::from(place.parent().unwrap_or(Path::new("")));
        let Document { entries, problems } = parse_document(text, name, &folder);
        // After a syntax error the tree is a guess; after a duplicate key it is whole.
        let whole = problems.iter().all(|(_, message)| message.starts_with("duplicate key"));
        let lines = problems.into_iter().map(|(place, message)| format!("{place}: {message}"));
        self.problems.extend(lines);
        if whole {
            self.walk("", &entries);
        }
    }

    /// Takes over the entries of the table `prefix`, which ends with a dot unless it is the root.
    fn walk(&mut self, prefix: &str, entries: &[(Key, Node)]) {
        for (key, node) in entries {
            let path = format!("{prefix}{}", key.name);
            let below = format!("{path}.");
            if let Some(setting) = Setting::find(&path) {
                if setting.reach.file {
                    self.assign(setting, node);
                } else {
                    self.problems.push(format!(
                        "{}: {path} is not read from files; {}",
                        key.origin,
                        elsewhere(setting)
                    ));
                }
            } else if SETTINGS.iter().any(|setting| setting.key.starts_with(&below)) {
                match &node.raw {
                    Raw::Table(inner) => self.walk(&below, inner),
                    _ => self.problems.push(format!(
                        "{}: [{path}] is a table, not {}",
                        node.origin,
                        node.describe()
                    )),
                }
            } else {
                let message = unknown_key(prefix, &key.name, matches!(node.raw, Raw::Table(_)));
                self.problems.push(format!("{}: {message}", key.origin));
            }
        }
    }

    fn load_environment(&mut self) {
        let environment = &self.sources.environment;
        self.config.origins.environment = environment.clone();
        for setting in SETTINGS {
            let Some(variable) = setting.reach.environment else { continue };
            let Some(value) = environment.get(variable) else { continue };
            if setting.reach.guarded && self.sources.raised_privileges {
                self.config.origins.warnings.push(format!(
                    "environment variable {variable} is ignored: the process has raised privileges"
                ));
                continue;
            }
            if value.contains(char::REPLACEMENT_CHARACTER) {
                self.problems.push(format!("environment variable {variable} is not UTF-8"));
                continue;
            }
            let origin = Provenance::Environment { variable: variable.to_owned() };
            self.assign(setting, &self.word(value, origin));
        }
        let known = || {
            SETTINGS.iter().filter_map(|setting| setting.reach.environment).chain(OTHER_VARIABLES)
        };
        for name in environment.names().filter(|name| name.starts_with("ICCL_")) {
            if name.starts_with(SIMULATORS) || known().any(|variable| variable == name) {
                continue;
            }
            // All share the prefix, so it must not count as likeness.
            let bare = |name: &'static str| name.trim_start_matches("ICCL_");
            let hint = nearest(name.trim_start_matches("ICCL_"), known().map(bare))
                .map_or_else(String::new, |near| format!("; did you mean ICCL_{near}?"));
            self.config
                .origins
                .warnings
                .push(format!("environment variable {name} is not known and has no effect{hint}"));
        }
    }

    fn load_api(&mut self) {
        for (key, value) in &self.sources.api {
            let word = self.word(value, Provenance::Api);
            if let Some(setting) = Setting::find(key) {
                self.assign(setting, &word);
                continue;
            }
            let entry = SETTINGS.iter().find_map(|setting| {
                let rest = key.strip_prefix(setting.key)?.strip_prefix('.')?;
                let node = match (setting.shape)() {
                    Shape::Value => return None,
                    Shape::Table => nest(rest, &word),
                    Shape::TableOfTables => {
                        let Some((outer, inner)) = rest.split_once('.') else {
                            return Some((setting, nest(rest, &word)));
                        };
                        nest(outer, &nest(inner, &word))
                    }
                };
                Some((setting, node))
            });
            if let Some((setting, node)) = entry {
                self.assign(setting, &node);
            } else {
                let (prefix, name) = match key.rsplit_once('.') {
                    Some((table, name)) => (format!("{table}."), name),
                    None => (String::new(), key.as_str()),
                };
                self.problems.push(format!("API: {}", unknown_key(&prefix, name, false)));
            }
        }
    }

    fn word(&self, text: &str, origin: Provenance) -> Node {
        Node { raw: Raw::Word(text.to_owned()), origin, folder: self.folder.clone() }
    }

    /// Takes over one setting; of a table entry by entry, so that each has its own provenance.
    fn assign(&mut self, setting: &Setting, node: &Node) {
        let table = |node: &Node| node.entries(&setting.accepted());
        let entries = match (setting.shape)() {
            Shape::Value => {
                self.apply(setting, setting.key, node, &node.origin);
                return;
            }
            Shape::Table => table(node).map(|entries| {
                let entry = |(key, value): (Key, Node)| {
                    (format!("{}.{}", setting.key, key.name), vec![key], value)
                };
                entries.into_iter().map(entry).collect::<Vec<_>>()
            }),
            Shape::TableOfTables => table(node).and_then(|tables| {
                let mut entries = Vec::new();
                for (outer, inner) in split_dotted(node, tables) {
                    let inner_entries = inner.entries("a table").map_err(|mut rejection| {
                        let hint = same_name(&outer.name)
                            .map_or_else(String::new, |hint| format!("; did you mean {hint}?"));
                        rejection.found = None;
                        rejection.reason = format!(
                            "[{}] holds tables [{0}.NAME], \"{}\" is none{hint}",
                            setting.key, outer.name
                        );
                        rejection
                    })?;
                    for (key, value) in inner_entries {
                        let path = format!("{}.{}.{}", setting.key, outer.name, key.name);
                        entries.push((path, vec![outer.clone(), key], value));
                    }
                }
                Ok(entries)
            }),
        };
        match entries {
            Err(rejection) => self.reject(setting.key, &rejection),
            Ok(entries) => {
                for (path, keys, value) in entries {
                    let origin = value.origin.clone();
                    let nested = keys.into_iter().rev().fold(value, |value, key| {
                        value.with_raw(Raw::Table(vec![(key, value.clone())]))
                    });
                    self.apply(setting, &path, &nested, &origin);
                }
            }
        }
    }

    fn apply(&mut self, setting: &Setting, path: &str, node: &Node, origin: &Provenance) {
        match (setting.assign)(&mut self.config, node) {
            Ok(()) => {
                self.config.origins.provenance.insert(path.to_owned(), origin.clone());
            }
            Err(Rejections(rejections)) => {
                for rejection in &rejections {
                    self.reject(path, rejection);
                }
            }
        }
    }

    fn reject(&mut self, path: &str, rejection: &Rejection) {
        let Rejection { origin, found, reason } = rejection;
        let found = found.as_ref().map_or_else(String::new, |found| format!(" = {found}"));
        self.problems.push(format!("{origin}: {path}{found}: {reason}"));
    }

    fn finish(self) -> Result<Config> {
        let mut lines: Vec<String> = self.problems.iter().map(|line| one_line(line)).collect();
        let count = lines.len();
        if count > MAX_PROBLEMS {
            lines.truncate(MAX_PROBLEMS);
            lines.push(format!("… and {} more", count - MAX_PROBLEMS));
        }
        match count {
            0 => Ok(self.config),
            1 => Err(Error::new(ErrorKind::InvalidConfig, lines.concat())),
            _ => {
                let message =
                    format!("{count} problems in the configuration:\n{}", lines.join("\n"));
                Err(Error::new(ErrorKind::InvalidConfig, message))
            }
        }
    }
}

/// Names of the user's own may hold anything; a problem is one line all the same.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

/// A table with one entry.
fn nest(name: &str, value: &Node) -> Node {
    let key = Key { name: name.to_owned(), origin: value.origin.clone() };
    value.with_raw(Raw::Table(vec![(key, value.clone())]))
}

/// `nvidia.library_dir=…` of a word is an entry `library_dir` of a table `nvidia`. In TOML the dot
/// has been read already, and one that is left is part of a quoted name.
fn split_dotted(node: &Node, entries: Vec<(Key, Node)>) -> Vec<(Key, Node)> {
    if !matches!(node.raw, Raw::Word(_)) {
        return entries;
    }
    let split = |(key, value): (Key, Node)| match key.name.split_once('.') {
        Some((outer, inner)) if matches!(value.raw, Raw::Word(_)) => {
            (Key { name: outer.to_owned(), origin: key.origin }, nest(inner, &value))
        }
        _ => (key, value),
    };
    entries.into_iter().map(split).collect()
}

/// Where a setting that files may not set is set.
fn elsewhere(setting: &Setting) -> String {
    match setting.reach.environment {
        Some(variable) => format!("set the environment variable {variable}, or use the API"),
        None => "use the API".to_owned(),
    }
}
