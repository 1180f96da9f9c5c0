//! What the tests of every maker's plugin share: the plugin alone in a command or in this process, on
//! its simulated libraries, and checks of what its native collectives promise.
//!
//! No maker's fact may live here: a test says what its maker is ([`Maker`]) and what it promises.

mod card;
mod machine;
mod process;
pub mod program;
mod ranks;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

use crate::command::{iccl_with, run_to_end};
use crate::{maker_plugin_folder, sim_sdk};

pub use card::{
    BYTES, LATE_US, allocate, free, from_card, host_functions_are_called, on_card, pattern, read,
    write,
};
pub use machine::Machine;
pub use process::Process;
pub use ranks::{
    BLOCK, RANKS, Rank, SOON, blocks_are_moved_and_reduced, contributions, every_type_is_moved,
    on_all_ranks, reductions_are_right, rings_meet_in_groups,
};

/// A maker, as far as its plugin is found and its simulator is set.
#[derive(Clone, Copy, Debug)]
pub struct Maker {
    /// The simulator's folder: the plugin's name, and after a dash which of several simulators it is.
    pub name: &'static str,
    /// The simulated library that owns the machine.
    pub owner: &'static str,
    /// The cards of the simulated machine of this process.
    pub cards: usize,
    /// Where the simulated libraries lie, if these are not as the folder has them.
    pub variant: Option<fn() -> PathBuf>,
    /// Settings of the plugin, without its name.
    pub settings: &'static [(&'static str, &'static str)],
    /// Settings of the simulator, when a [`Machine`] begins.
    pub simulated: &'static [(&'static str, &'static str)],
}

impl Maker {
    /// The plugin's name.
    pub fn plugin(&self) -> &'static str {
        self.name.split('-').next().unwrap_or(self.name)
    }

    /// A folder with this plugin alone. Built once for a test process.
    ///
    /// # Panics
    /// If it can't be built.
    pub fn plugin_folder(&self) -> PathBuf {
        static FOLDERS: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
        let mut folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        folders.entry(self.plugin()).or_insert_with(|| maker_plugin_folder(self.plugin())).clone()
    }

    /// Where the simulated libraries lie.
    pub fn folder(&self) -> PathBuf {
        self.variant.map_or_else(|| sim_sdk::folder(self.name), |variant| variant())
    }

    /// `iccl plugins --json` with the plugin alone, which runs in the command's own process.
    pub fn plugins(&self, libraries: Option<&Path>, variables: &[(&str, &str)]) -> Command {
        let words = ["plugins", "--json", "--set", "plugins.probe=inline"];
        let mut command = iccl_with(&self.plugin_folder(), &words);
        if let Some(libraries) = libraries {
            let setting = format!("plugin.{}.library_dir={}", self.plugin(), libraries.display());
            command.args(["--set", &setting]);
        }
        command.envs(variables.iter().copied());
        command
    }

    /// What `iccl plugins --json` says of the plugin, with the libraries taken from a folder only.
    pub fn record(&self, libraries: &Path, variables: &[(&str, &str)]) -> serde_json::Value {
        let ran = run_to_end(&mut self.plugins(Some(libraries), variables));
        ran.json()["plugins"][0].clone()
    }

    /// Some of the simulated libraries, in a folder of their own.
    pub fn libraries(&self, files: &[&str]) -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for file in files {
            let from = self.folder().join(file);
            std::fs::copy(from, folder.path().join(file)).expect("copied");
        }
        folder
    }
}

/// A shared library of a C source that is written here, under any name.
pub fn small_library(folder: &Path, name: &str, source: &str) -> PathBuf {
    let file = folder.join(format!("{name}.c"));
    std::fs::write(&file, source).expect("written");
    let library = folder.join(name);
    crate::run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &file]));
    library
}
