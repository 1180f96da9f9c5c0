//! The plugins that are used, and how they came to be: one pass over all candidates.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use iccl_plugin_api::host::{
    CollectivesView, OpenDevice, OpenDomain, PluginView, SettingDescription, TransportView,
};
use iccl_plugin_api::registry::{StaticPlugin, static_plugins};
use iccl_plugin_api::sdk::{CollectivesFacts, DeviceFacts, DomainRequest, TransportFacts};
use iccl_plugin_api::tables::{ABI_MAJOR, CollectiveSupport, family};

use super::activate::{Offer, SelfTests, activate};
use super::child::{self, Passed};
use super::error::call_error;
use super::file::{self, CheckedFile, FileId};
use super::folders::{Folder, list, search_order};
use super::image::{self, Image};
use super::names::{means, names_of};
use super::process::{Known, Loaded, Origin};
use super::reason::{Reason, Refusal};
use super::record::{Door, LINKED, ProbeMethod, Record, SelfTest, kinds};
use super::settings::settings_for;
use crate::config::{Config, ProbeMode};
use crate::{Error, Result};

/// Most child processes at a time.
const MOST_CHILDREN: usize = 8;

/// A plugin that is used.
#[derive(Clone, Debug)]
pub struct Plugin {
    name: &'static str,
    version: semver::Version,
    vendor: &'static str,
    description: &'static str,
    settings: Vec<SettingDescription>,
    view: PluginView,
    door: Door,
}

impl Plugin {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its version.
    pub fn version(&self) -> &semver::Version {
        &self.version
    }

    /// Who makes it.
    pub fn vendor(&self) -> &'static str {
        self.vendor
    }

    /// One line that says what it is.
    pub fn description(&self) -> &'static str {
        self.description
    }

    /// The settings that it understands.
    pub fn settings(&self) -> &[SettingDescription] {
        &self.settings
    }

    /// The ABI that it was built with, as major and minor.
    pub fn abi(&self) -> (u32, u32) {
        (ABI_MAJOR, self.view.abi_minor())
    }

    /// The door through which it was loaded.
    pub fn door(&self) -> Door {
        self.door
    }

    /// Its tables.
    pub fn view(&self) -> PluginView {
        self.view
    }
}

/// A device of a plugin. Nothing is opened yet.
#[derive(Clone, Debug)]
pub struct DevicePlugin {
    plugin: Arc<Plugin>,
    index: u32,
    facts: DeviceFacts,
}

impl DevicePlugin {
    /// The plugin that drives it.
    pub fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    /// Which of the plugin's devices it is.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What the plugin says of it.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// Opens it. The caller shares what it opened; a device that is opened twice is two to the
    /// plugin.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn open(&self) -> Result<OpenDevice> {
        let name = self.plugin.name;
        let view = self.plugin.view.device().ok_or_else(|| no_family(name, "device"))?;
        view.open(self.index).map_err(|error| call_error(name, error))
    }
}

/// A transport of a plugin. Nothing is opened yet.
#[derive(Clone, Debug)]
pub struct TransportPlugin {
    plugin: Arc<Plugin>,
    view: TransportView,
    facts: TransportFacts,
}

impl TransportPlugin {
    /// The plugin that offers it.
    pub fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    /// The tier's name: `shm`, `tcp`, …
    pub fn tier(&self) -> &'static str {
        self.facts.name
    }

    /// What the plugin says of it.
    pub fn facts(&self) -> &TransportFacts {
        &self.facts
    }

    /// Its functions.
    pub fn view(&self) -> TransportView {
        self.view
    }

    /// Opens a domain.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn open(&self, request: &DomainRequest<'_>) -> Result<OpenDomain> {
        self.view.open(request).map_err(|error| call_error(self.plugin.name, error))
    }
}

/// A native collectives library of a plugin.
#[derive(Clone, Debug)]
pub struct CollectivesPlugin {
    plugin: Arc<Plugin>,
    view: CollectivesView,
    facts: CollectivesFacts,
    support: Vec<CollectiveSupport>,
}

impl CollectivesPlugin {
    /// The plugin that offers it.
    pub fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    /// Its functions.
    pub fn view(&self) -> CollectivesView {
        self.view
    }

    /// The library's name and version; ranks share a communicator only if this text is equal.
    pub fn library(&self) -> &'static str {
        self.facts.library
    }

    /// Bits of [`collectives_flag`](iccl_plugin_api::tables::collectives_flag).
    pub fn flags(&self) -> u64 {
        self.facts.flags
    }

    /// The combinations that the library offers and the self-test did not find wrong.
    pub fn support(&self) -> &[CollectiveSupport] {
        &self.support
    }
}

/// The error for a family that a plugin turned out not to have.
fn no_family(plugin: &str, family: &str) -> Error {
    Error::new(
        crate::ErrorKind::Internal,
        format!("plugin {plugin} has no {family} family although it was active with one"),
    )
}

/// All plugins that are used, and the record of every candidate. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PluginSet {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    records: Vec<Record>,
    searched: Vec<PathBuf>,
    plugins: Vec<Arc<Plugin>>,
    devices: Vec<DevicePlugin>,
    transports: Vec<TransportPlugin>,
    collectives: Vec<CollectivesPlugin>,
}

impl PluginSet {
    /// Finds, checks, loads and probes all plugins, and sees that those which the configuration
    /// requires are active.
    ///
    /// # Errors
    /// `PluginMissing` if a required plugin is not active; as [`PluginSet::discover`].
    pub fn load(config: &Config) -> Result<Self> {
        let set = Self::discover(config)?;
        set.check_required(config)?;
        Ok(set)
    }

    /// Sees that every plugin that the configuration requires is active.
    ///
    /// # Errors
    /// `PluginMissing`, with where it was looked for and what was seen.
    pub fn check_required(&self, config: &Config) -> Result<()> {
        super::require::check(self, config)
    }

    /// As [`PluginSet::load`], but does not mind that a required plugin is missing: for commands
    /// that show what there is.
    ///
    /// # Errors
    /// `InvalidConfig` for a setting that a plugin does not have, or a value of the wrong kind.
    pub fn discover(config: &Config) -> Result<Self> {
        Discovery::new(config).run()
    }

    /// One record for each candidate, in the order of the search.
    pub fn records(&self) -> &[Record] {
        &self.inner.records
    }

    /// The folders that were searched, in order, whether they exist or not.
    pub fn searched(&self) -> &[PathBuf] {
        &self.inner.searched
    }

    /// The plugins that are used.
    pub fn plugins(&self) -> impl Iterator<Item = &Plugin> {
        self.inner.plugins.iter().map(Arc::as_ref)
    }

    /// The plugin that configuration calls `name`.
    pub fn plugin(&self, name: &str) -> Option<&Plugin> {
        self.plugins().find(|plugin| means(name, plugin.name))
    }

    /// All devices, plugin by plugin.
    pub fn devices(&self) -> &[DevicePlugin] {
        &self.inner.devices
    }

    /// The devices of one plugin.
    pub fn devices_of<'a>(&'a self, plugin: &'a str) -> impl Iterator<Item = &'a DevicePlugin> {
        self.inner.devices.iter().filter(move |device| means(plugin, device.plugin.name))
    }

    /// All transports that may be used.
    pub fn transports(&self) -> &[TransportPlugin] {
        &self.inner.transports
    }

    /// The transport of a tier.
    pub fn transport(&self, tier: &str) -> Option<&TransportPlugin> {
        self.inner.transports.iter().find(|transport| transport.tier() == tier)
    }

    /// All native collectives libraries.
    pub fn collectives(&self) -> &[CollectivesPlugin] {
        &self.inner.collectives
    }

    /// The native collectives of one plugin.
    pub fn collectives_of(&self, plugin: &str) -> Option<&CollectivesPlugin> {
        self.inner.collectives.iter().find(|each| means(plugin, each.plugin.name))
    }

    /// The error for a plugin that is needed and not active: says where it was looked for and what
    /// was seen. `why` tells who needs it, such as `device.backend`.
    pub fn missing(&self, name: &str, why: &str) -> Error {
        super::require::missing(self, name, why, None)
    }
}

/// A candidate on its way.
struct Candidate {
    record: Record,
    /// What passed the checks of its file; gone once it is refused.
    file: Option<CheckedFile>,
    started: Instant,
    spent: Duration,
}

impl Candidate {
    fn new(record: Record) -> Self {
        Self { record, file: None, started: Instant::now(), spent: Duration::ZERO }
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.record.refuse(refusal);
        self.file = None;
    }
}

/// One pass over all candidates.
struct Discovery<'a> {
    config: &'a Config,
    folders: Vec<Folder>,
    candidates: Vec<Candidate>,
    set: Inner,
}

impl<'a> Discovery<'a> {
    fn new(config: &'a Config) -> Self {
        let folders = search_order(config);
        let searched = folders.iter().map(|folder| folder.path.clone()).collect();
        let set = Inner { searched, ..Inner::default() };
        Self { config, folders, candidates: Vec::new(), set }
    }

    fn run(mut self) -> Result<PluginSet> {
        self.linked()?;
        self.find();
        self.settle_names();
        self.load()?;
        self.report();
        Ok(PluginSet { inner: Arc::new(self.set) })
    }

    /// Whether the configuration leaves a plugin out, by what is known before it is loaded.
    fn left_out(&self, name: &str, families: u32) -> Option<Refusal> {
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
    fn enables(&self, name: &str) -> bool {
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

    fn load_linked(
        &mut self,
        plugin: &'static StaticPlugin,
        candidate: &mut Candidate,
    ) -> Result<std::result::Result<(), Refusal>> {
        // SAFETY: the table is a static of this program, made by `export_plugin!`.
        let view = match unsafe { PluginView::new((plugin.table)()) } {
            Ok(view) => view,
            Err(error) => {
                let refusal = Refusal::new(image::table_reason(&error), error.to_string());
                return Ok(Err(refusal));
            }
        };
        candidate.record.kinds = kinds(view.families());
        candidate.record.abi = Some(format!("{ABI_MAJOR}.{}", view.abi_minor()));
        if let Some(refusal) = self.left_out(plugin.name, view.families()) {
            return Ok(Err(refusal));
        }
        let image = Image { view, door: Door::Linked, note: None };
        let trusted = (ProbeMethod::Inline, None);
        self.activate(Origin::Linked(plugin.name), image, trusted, candidate)
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

    /// Whether the configuration trusts a plugin to be run in this process at once.
    fn trusts(&self, candidate: &Candidate, file: &CheckedFile) -> bool {
        let file_name = candidate.record.path.file_name().and_then(|name| name.to_str());
        file.pinned
            || self.config.plugins.allow.iter().any(|written| {
                means(written, &file.note.name) || Some(written.as_str()) == file_name
            })
    }

    /// Runs those that are not trusted in child processes, then loads all that are left.
    fn load(&mut self) -> Result<()> {
        let mut passed = self.run_children()?;
        for index in 0..self.candidates.len() {
            let Some(file) = self.candidates[index].file.take() else { continue };
            let begin = Instant::now();
            let mut candidate =
                std::mem::replace(&mut self.candidates[index], Candidate::new(Record::new("")));
            let trusted = passed.remove(&index).unwrap_or((ProbeMethod::Inline, None));
            candidate.record.probe = Some(trusted.0);
            let outcome = self.load_file(&file, trusted, &mut candidate)?;
            if let Err(refusal) = outcome {
                candidate.refuse(refusal);
            }
            candidate.spent += begin.elapsed();
            self.candidates[index] = candidate;
        }
        Ok(())
    }

    fn load_file(
        &mut self,
        file: &CheckedFile,
        first_run: (ProbeMethod, Option<Passed>),
        candidate: &mut Candidate,
    ) -> Result<std::result::Result<(), Refusal>> {
        let image = match image::load(&file.path) {
            Ok(image) => image,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Err(refusal) = image::describe(image.view, Some(&file.note)) {
            return Ok(Err(refusal));
        }
        self.activate(Origin::File(file.id), image, first_run, candidate)
    }

    /// The children's verdicts, by candidate. Those that did not pass are refused here.
    fn run_children(&mut self) -> Result<HashMap<usize, (ProbeMethod, Option<Passed>)>> {
        let mut verdicts = HashMap::new();
        if self.config.plugins.probe == ProbeMode::Inline {
            return Ok(verdicts);
        }
        let waiting: Vec<(usize, CheckedFile)> = {
            let known = Known::lock();
            self.candidates
                .iter()
                .enumerate()
                .filter_map(|(index, candidate)| {
                    let file = candidate.file.as_ref()?;
                    let run_before = known.get(&Origin::File(file.id)).is_some();
                    (!run_before && !self.trusts(candidate, file)).then(|| (index, file.clone()))
                })
                .collect()
        };
        if waiting.is_empty() {
            return Ok(verdicts);
        }
        let allow_insecure = self.config.plugins.allow_insecure_plugins;
        let helper = match child::find_helper(&self.set.searched, allow_insecure) {
            Ok(helper) => helper,
            Err(places) => {
                let places: Vec<String> =
                    places.iter().map(|place| place.display().to_string()).collect();
                let note = format!(
                    "probed in this process, since {} is not in {}",
                    super::HELPER_NAME,
                    places.join(", ")
                );
                for (index, _) in waiting {
                    self.candidates[index].record.notes.push(note.clone());
                    verdicts.insert(index, (ProbeMethod::InlineWithoutHelper, None));
                }
                return Ok(verdicts);
            }
        };
        let config = self.config;
        for batch in waiting.chunks(MOST_CHILDREN) {
            let outcomes: Vec<_> = std::thread::scope(|scope| {
                let runs: Vec<_> = batch
                    .iter()
                    .map(|(index, file)| {
                        let helper = &helper;
                        let run = scope.spawn(move || {
                            let begin = Instant::now();
                            let outcome = child::probe(helper, file, config);
                            (outcome, begin.elapsed())
                        });
                        (*index, run)
                    })
                    .collect();
                runs.into_iter().map(|(index, run)| (index, run.join())).collect()
            });
            for (index, outcome) in outcomes {
                let (outcome, time) =
                    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                let candidate = &mut self.candidates[index];
                candidate.spent += time;
                candidate.record.probe = Some(ProbeMethod::Child);
                tracing::debug!(path = %candidate.record.path.display(), ?time, "probed a plugin in a child process");
                match outcome? {
                    Ok(passed) => {
                        verdicts.insert(index, (ProbeMethod::Child, Some(passed)));
                    }
                    Err(refusal) => candidate.refuse(refusal),
                }
            }
        }
        Ok(verdicts)
    }

    /// Probes a loaded plugin unless this process did so before, and takes what it offers.
    fn activate(
        &mut self,
        origin: Origin,
        image: Image,
        (probe, passed): (ProbeMethod, Option<Passed>),
        candidate: &mut Candidate,
    ) -> Result<std::result::Result<(), Refusal>> {
        let (description, version) = match image::describe(image.view, None) {
            Ok(described) => described,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let declared: Vec<(&str, &str)> =
            description.settings.iter().map(|setting| (setting.key, setting.kind)).collect();
        let settings = settings_for(self.config, description.name, &declared)?;

        let mut known = Known::lock();
        if let Some(loaded) = known.get(&origin) {
            if loaded.settings != settings {
                candidate.record.notes.push(
                    "it keeps the settings with which it was probed first in this process"
                        .to_owned(),
                );
            }
            drop(known);
            return Ok(self.take(&loaded, candidate));
        }
        let host = known.host(description.name);
        let run_tests = self.config.plugins.self_test;
        let self_tests = match &passed {
            _ if !run_tests => SelfTests::Off,
            Some(passed) => SelfTests::Known(&passed.support),
            None => SelfTests::Run,
        };
        let mut offer = match activate(image.view, host, &settings, self_tests, |_| {}) {
            Ok(offer) => offer,
            Err(refusal) => {
                if refusal.reason == Reason::SelfTestFailed {
                    candidate.record.self_test = SelfTest::Failed;
                }
                return Ok(Err(refusal));
            }
        };
        if let Some(passed) = passed {
            offer.struck = passed.struck;
        }
        let self_test = match offer.struck.as_slice() {
            _ if !run_tests => SelfTest::NotRun,
            [] => SelfTest::Passed,
            struck => SelfTest::Struck(struck.to_vec()),
        };
        let plugin = Plugin {
            name: description.name,
            version,
            vendor: description.vendor,
            description: description.description,
            settings: description.settings,
            view: image.view,
            door: image.door,
        };
        let loaded = Loaded {
            plugin: Arc::new(plugin),
            offer,
            settings,
            probe,
            self_test,
            note: image.note,
        };
        let loaded = known.insert(origin, loaded);
        drop(known);
        Ok(self.take(&loaded, candidate))
    }

    /// Adds what a plugin offers to the set.
    fn take(
        &mut self,
        loaded: &Loaded,
        candidate: &mut Candidate,
    ) -> std::result::Result<(), Refusal> {
        let (plugin, record) = (&loaded.plugin, &mut candidate.record);
        let Offer { devices, transport, collectives, struck } = &loaded.offer;
        let transport = transport.as_ref().filter(|_| self.enables(plugin.name));
        if let Some(rival) = transport
            .and_then(|facts| self.set.transports.iter().find(|rival| rival.tier() == facts.name))
        {
            let detail =
                format!("plugin {} offers the tier {} too", rival.plugin.name, rival.tier());
            return Err(Refusal::new(Reason::NameClash, detail));
        }
        record.name = Some(plugin.name.to_owned());
        record.version = Some(plugin.version.to_string());
        record.kinds = kinds(plugin.view.families());
        record.abi = Some(format!("{}.{}", plugin.abi().0, plugin.abi().1));
        record.door = Some(plugin.door);
        record.probe = Some(loaded.probe);
        record.self_test = loaded.self_test.clone();
        record.notes.extend(loaded.note.clone());
        if !struck.is_empty() {
            record.notes.push(format!("not used for {}", struck.join(", ")));
        }

        self.set.plugins.push(Arc::clone(plugin));
        self.set.devices.extend((0..).zip(devices).map(|(index, facts)| DevicePlugin {
            plugin: Arc::clone(plugin),
            index,
            facts: facts.clone(),
        }));
        if let (Some(facts), Some(view)) = (transport, plugin.view.transport()) {
            let (plugin, facts) = (Arc::clone(plugin), facts.clone());
            self.set.transports.push(TransportPlugin { plugin, view, facts });
        }
        if let (Some(native), Some(view)) = (collectives, plugin.view.collectives()) {
            self.set.collectives.push(CollectivesPlugin {
                plugin: Arc::clone(plugin),
                view,
                facts: native.facts,
                support: native.support.clone(),
            });
        }
        Ok(())
    }

    /// Says what became of each candidate, one line each, and keeps the records.
    fn report(&mut self) {
        for mut candidate in std::mem::take(&mut self.candidates) {
            candidate.record.probe_time = Some(candidate.spent);
            let record = candidate.record;
            if record.state == super::State::Rejected
                || matches!(record.self_test, SelfTest::Struck(_))
            {
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
        for line in self.config.tables_without_plugin(present) {
            tracing::warn!("{line}");
        }
    }
}
