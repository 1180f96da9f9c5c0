//! What this process has loaded. Shared by all plugin sets, since a file can be loaded only once,
//! and nothing is ever unloaded.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use iccl_plugin_api::host::host_table;
use iccl_plugin_api::tables::HostTable;

use super::activate::Offer;
use super::file::FileId;
use super::record::{ProbeMethod, SelfTest};
use super::set::Plugin;
use crate::lock::lock;
use crate::observe::PluginLog;

/// A plugin that is loaded and was probed successfully.
#[derive(Clone, Debug)]
pub(super) struct Loaded {
    pub(super) plugin: Arc<Plugin>,
    pub(super) offer: Offer,
    /// The settings with which it was probed; it keeps them.
    pub(super) settings: Vec<(String, String)>,
    pub(super) probe: ProbeMethod,
    pub(super) self_test: SelfTest,
    pub(super) note: Option<String>,
}

/// Where a plugin came from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    File(FileId),
    /// Linked into the program, by name.
    Linked(&'static str),
}

/// What is known.
#[derive(Default)]
pub(super) struct Known {
    loaded: HashMap<Origin, Arc<Loaded>>,
    /// Which file each path meant when it was loaded. The loader goes by the path first: asked for
    /// the same one again, it gives what it has, whatever lies there now.
    paths: HashMap<PathBuf, FileId>,
    hosts: HashMap<String, &'static HostTable>,
}

impl Known {
    /// What is known. Nobody else loads as long as it is held.
    pub(super) fn lock() -> MutexGuard<'static, Self> {
        static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
        // Entries are made in one step, so a panic elsewhere can't have left one half-made.
        lock(&KNOWN)
    }

    /// The plugin from there, if it is loaded and was probed successfully.
    pub(super) fn get(&self, origin: &Origin) -> Option<Arc<Loaded>> {
        self.loaded.get(origin).cloned()
    }

    /// Whether another file was loaded from this path.
    pub(super) fn was_replaced(&self, path: &Path, id: FileId) -> bool {
        self.paths.get(path).is_some_and(|loaded| *loaded != id)
    }

    /// Remembers that the file was loaded from this path.
    pub(super) fn loaded_from(&mut self, path: &Path, id: FileId) {
        self.paths.insert(path.to_owned(), id);
    }

    /// Remembers a plugin.
    pub(super) fn insert(&mut self, origin: Origin, loaded: Loaded) -> Arc<Loaded> {
        let loaded = Arc::new(loaded);
        self.loaded.insert(origin, Arc::clone(&loaded));
        loaded
    }

    /// What the host offers to the plugin of this name. It lives as long as the process, so there is
    /// one for each name.
    pub(super) fn host(&mut self, plugin: &str) -> &'static HostTable {
        self.hosts.entry(plugin.to_owned()).or_insert_with(|| host_table(PluginLog::new(plugin)))
    }
}
