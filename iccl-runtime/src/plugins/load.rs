//! The part of a discovery that runs plugins: first those that are not trusted in child processes,
//! then all that are left in this one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use iccl_plugin_api::host::PluginView;
use iccl_plugin_api::registry::StaticPlugin;
use iccl_plugin_api::tables::ABI_MAJOR;

use super::activate::{Offer, SelfTests, activate};
use super::child::{self, Passed};
use super::discovery::{Candidate, Discovery};
use super::file::CheckedFile;
use super::image::{self, Image};
use super::names::means;
use super::process::{Known, Loaded, Origin};
use super::reason::{Reason, Refusal};
use super::record::{Door, ProbeMethod, Record, SelfTest, kinds};
use super::set::{CollectivesPlugin, DevicePlugin, Plugin, TransportPlugin};
use super::settings::settings_for;
use crate::Result;
use crate::config::ProbeMode;

/// Most child processes at a time.
const MOST_CHILDREN: usize = 8;

impl Discovery<'_> {
    /// Takes a plugin that is linked into the program.
    pub(super) fn load_linked(
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

    /// Whether the configuration trusts a plugin to be run in this process at once.
    fn trusts(&self, candidate: &Candidate, file: &CheckedFile) -> bool {
        let file_name = candidate.record.path.file_name().and_then(|name| name.to_str());
        file.pinned
            || self.config.plugins.allow.iter().any(|written| {
                means(written, &file.note.name) || Some(written.as_str()) == file_name
            })
    }

    /// Runs those that are not trusted in child processes, then loads all that are left.
    pub(super) fn load(&mut self) -> Result<()> {
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
        let image = match load_image(file) {
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
        // With nothing that it can do, the family is there, and the library is not.
        if let (Some(native), Some(view)) = (collectives, plugin.view.collectives())
            && !native.support.is_empty()
        {
            self.set.collectives.push(CollectivesPlugin {
                plugin: Arc::clone(plugin),
                view,
                facts: native.facts,
                support: native.support.clone(),
            });
        }
        Ok(())
    }
}

/// Loads a file, unless another was loaded from its path before.
fn load_image(file: &CheckedFile) -> std::result::Result<Image, Refusal> {
    let mut known = Known::lock();
    if known.was_replaced(&file.path, file.id) {
        let detail = "another file was loaded from this path before, and is kept";
        return Err(Refusal::new(Reason::FileReplaced, detail));
    }
    let image = image::load(&file.path);
    let by_loader = |refusal: &Refusal| {
        use Reason::{LoadFailed, MissingDependency, UndefinedSymbol};
        matches!(refusal.reason, LoadFailed | MissingDependency | UndefinedSymbol)
    };
    // What was refused for its door only stays loaded too.
    if !image.as_ref().is_err_and(by_loader) {
        known.loaded_from(&file.path, file.id);
    }
    image
}
