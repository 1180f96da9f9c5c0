//! One pass over all candidates: finds them, checks their files, settles who has a name, has the
//! rest loaded by `load`, and says what became of each.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use iccl_plugin_api::registry::{StaticPlugin, static_plugins};
use iccl_plugin_api::tables::family;

use super::file::{self, CheckedFile, FileId};
use super::folders::{Folder, list, search_order};
use super::names::{means, names_of};
use super::reason::{Reason, Refusal, State};
use super::record::{LINKED, Record, SelfTest};
use super::set::Inner;
use crate::Result;
use crate::config::Config;

/// A candidate on its way.
pub(super) struct Candidate {
    pub(super) record: Record,
    /// What passed the checks of its file; gone once it is refused.
    pub(super) file: Option<CheckedFile>,
    pub(super) started: Instant,
    pub(super) spent: Duration,
}

impl Candidate {
    pub(super) fn new(record: Record) -> Self {
        Self { record, file: None, started: Instant::now(), spent: Duration::ZERO }
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) {
        self.record.refuse(refusal);
        self.file = None;
    }
}

/// One pass over all candidates.
pub(super) struct Discovery<'a> {
    pub(super) config: &'a Config,
    folders: Vec<Folder>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) set: Inner,
}

impl<'a> Discovery<'a> {
    pub(super) fn new(config: &'a Config) -> Self {
        let folders = search_order(config);
        let searched = folders.iter().map(|folder| folder.path.clone()).collect();
        let set = Inner { searched, ..Inner::default() };
        Self { config, folders, candidates: Vec::new(), set }
    }

    pub(super) fn run(mut self) -> Result<Inner> {
        self.linked()?;
        self.find();
        self.settle_names();
        self.load()?;
        self.report();
        Ok(self.set)
    }

    /// Whether the configuration leaves a plugin out, by what is known before it is loaded.
    pub(super) fn left_out(&self, name: &str, families: u32) -> Option<Refusal> {
        if self.config.plugins.disable.iter().any(|written| means(written, name)) {
            return Some(Refusal::new(Reason::Disabled, "plugins.disable names it"));
        }
        if families == family::TRANSPORT && !self.enables(name) {
            let enabled = self.config.transport.enabled.join(", ");
            let detail = format!("transport.enabled is [{enabled}]");
            return Some(Refusal::new(Reason::TransportNotEnabled, detail));
        }
        None
    }

    /// Whether `transport.enabled` names the plugin.
    pub(super) fn enables(&self, name: &str) -> bool {
        self.config.transport.enabled.iter().any(|written| means(written, name))
    }

    /// Takes the plugins that are linked into the program, in the order of their names.
    fn linked(&mut self) -> Result<()> {
        let mut linked: Vec<&'static StaticPlugin> = static_plugins().collect();
        linked.sort_by_key(|plugin| plugin.name);
        for plugin in linked {
            let mut candidate = Candidate::new(Record::new(LINKED));
            candidate.record.name = Some(plugin.name.to_owned());
            if let Err(refusal) = self.load_linked(plugin, &mut candidate)? {
                candidate.refuse(refusal);
            }
            candidate.spent = candidate.started.elapsed();
            self.candidates.push(candidate);
        }
        Ok(())
    }

    /// Finds the candidates of all folders and checks their files.
    fn find(&mut self) {
        let allow_insecure = self.config.plugins.allow_insecure_plugins;
        let mut seen: HashMap<FileId, PathBuf> = HashMap::new();
        let mut seen_folders: HashMap<FileId, PathBuf> = HashMap::new();
        for folder in std::mem::take(&mut self.folders) {
            if let Some(id) = file::id_of(&folder.path)
                && let Some(first) = seen_folders.insert(id, folder.path.clone())
            {
                let (folder, first) = (folder.path.display(), first.display());
                tracing::debug!(%folder, %first, "a plugin folder is searched once");
                continue;
            }
            let (paths, others) = list(&folder, allow_insecure);
            self.candidates.extend(others.into_iter().map(Candidate::new));
            for path in paths {
                let mut candidate = Candidate::new(Record::new(path));
                match self.check(&candidate.record.path, &mut seen) {
                    Ok(file) => {
                        candidate.record.take_note(&file.note);
                        match self.left_out(&file.note.name, file.note.families) {
                            Some(refusal) => candidate.record.refuse(refusal),
                            None => candidate.file = Some(file),
                        }
                    }
                    Err(file::Failure { refusal, note }) => {
                        if let Some(note) = note {
                            candidate.record.take_note(&note);
                        }
                        candidate.record.refuse(refusal);
                    }
                }
                candidate.spent = candidate.started.elapsed();
                tracing::debug!(path = %candidate.record.path.display(), time = ?candidate.spent, "checked a plugin's file");
                self.candidates.push(candidate);
            }
        }
    }

    fn check(
        &self,
        path: &Path,
        seen: &mut HashMap<FileId, PathBuf>,
    ) -> std::result::Result<CheckedFile, file::Failure> {
        let opened = file::open(path)?;
        if let Some(first) = seen.get(&opened.id()) {
            let detail = format!("the same file as {}", first.display());
            return Err(Refusal::new(Reason::SameFile, detail).into());
        }
        seen.insert(opened.id(), path.to_owned());
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let pin = self.config.plugins.sha256.get(name);
        opened.check(pin.map(String::as_str), self.config.plugins.allow_insecure_plugins)
    }

    /// Sees that every name has one file. Names that differ only by case are one name.
    fn settle_names(&mut self) {
        let linked: Vec<String> = self
            .candidates
            .iter()
            .filter(|candidate| candidate.record.path == Path::new(LINKED))
            .filter_map(|candidate| candidate.record.name.clone())
            .collect();
        let mut claims: Vec<(String, Vec<usize>)> = Vec::new();
        for (index, candidate) in self.candidates.iter_mut().enumerate() {
            let Some(file) = &candidate.file else { continue };
            let name = file.note.name.to_ascii_lowercase();
            if linked.contains(&name) {
                let detail = "a plugin of this name is linked into the program";
                candidate.refuse(Refusal::new(Reason::LinkedIn, detail));
                continue;
            }
            match claims.iter_mut().find(|(claimed, _)| *claimed == name) {
                Some((_, indices)) => indices.push(index),
                None => claims.push((name, vec![index])),
            }
        }
        for (name, indices) in claims.iter().filter(|(_, indices)| indices.len() > 1) {
            self.settle_name(name, indices);
        }
    }

    /// The first folder of the search order wins; within it, nobody can tell which file is meant.
    fn settle_name(&mut self, name: &str, indices: &[usize]) {
        let paths: Vec<PathBuf> =
            indices.iter().map(|&index| self.candidates[index].record.path.clone()).collect();
        let first_folder = paths[0].parent();
        let rivals = paths.iter().filter(|path| path.parent() == first_folder).count();
        for (place, &index) in indices.iter().enumerate() {
            if place == 0 && rivals == 1 {
                continue;
            }
            let other = if place == 0 { &paths[1] } else { &paths[0] };
            let detail = if rivals == 1 {
                format!("{} comes first and is plugin {name} too", other.display())
            } else {
                format!("{} claims the name {name} too, and neither is used", other.display())
            };
            self.candidates[index].refuse(Refusal::new(Reason::NameClash, detail));
        }
    }

    /// Says what became of each candidate, one line each, and keeps the records.
    fn report(&mut self) {
        for mut candidate in std::mem::take(&mut self.candidates) {
            candidate.record.probe_time = Some(candidate.spent);
            let record = candidate.record;
            if record.state == State::Rejected || matches!(record.self_test, SelfTest::Struck(_)) {
                tracing::warn!("{record}");
            } else {
                tracing::info!("{record}");
            }
            self.set.records.push(record);
        }
        let present: Vec<&str> = self
            .set
            .records
            .iter()
            .filter_map(|record| record.name.as_deref())
            .flat_map(names_of)
            .collect();
        for line in self.config.tables_without_plugin(present.iter().copied()) {
            tracing::warn!("{line}");
        }
        for line in self.config.transports_without_plugin(&present) {
            tracing::warn!("{line}");
        }
    }
}
