//! A folder of candidates, and a look at what becomes of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use iccl_runtime::config::{Config, Sources};
use iccl_runtime::plugins::{PluginSet, Record, State};
use iccl_runtime::{Error, Result};

/// A folder that only this test uses, with mode 0700.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Compiles the corpus plugin called `name` as `libiccl_NAME.so`, with definitions such as
    /// `FAULT_NO_NOTE`.
    pub(crate) fn compile(&self, name: &str, definitions: &[&str]) -> PathBuf {
        let path = self.file(&format!("libiccl_{name}.so"));
        let mut compiler = Command::new("gcc");
        if !definitions.iter().any(|each| each.starts_with("NAME=")) {
            compiler.arg(format!("-DNAME=\"{name}\""));
        }
        compiler.args(definitions.iter().map(|each| format!("-D{each}")));
        compile_shared(&mut compiler, &path, &[]);
        path
    }

    /// The set of this folder's plugins and the workspace's.
    pub(crate) fn discover(&self) -> PluginSet {
        self.discover_with(&[]).unwrap()
    }

    /// As `discover`, with settings.
    pub(crate) fn discover_with(&self, settings: &[(&str, &str)]) -> Result<PluginSet> {
        PluginSet::discover(&self.config(settings))
    }

    pub(crate) fn config(&self, settings: &[(&str, &str)]) -> Config {
        config(&[self.path(), iccl_tests::plugin_folder()], settings)
    }

    /// The only record of a file of this folder, after seeing that the good plugins are active.
    pub(crate) fn record(&self, set: &PluginSet, file: &str) -> Record {
        good_plugins_work(set);
        let path = self.file(file);
        let mut records = set.records().iter().filter(|record| record.path == path);
        let record = records.next().unwrap_or_else(|| panic!("no record of {file}")).clone();
        assert!(records.next().is_none(), "two records of {file}");
        record
    }

    /// Discovers, and sees that the file is refused with this code and a line that holds `words`.
    pub(crate) fn refused(&self, file: &str, code: &str, words: &str) -> Record {
        self.refused_with(file, code, words, &[])
    }

    pub(crate) fn refused_with(
        &self,
        file: &str,
        code: &str,
        words: &str,
        settings: &[(&str, &str)],
    ) -> Record {
        let set = self.discover_with(settings).unwrap();
        let record = self.record(&set, file);
        let reason = record.reason.unwrap_or_else(|| panic!("{record}"));
        assert_eq!(reason.code(), code, "{record}");
        assert_eq!(record.state, reason.state());
        let line = record.to_string();
        assert!(line.contains(words), "{words:?} is not in {line:?}");
        assert!(line.contains(self.path().to_str().unwrap()), "{line}");
        assert!(!line.contains('\n'), "{line}");
        assert!(!record.hint.is_empty());
        record
    }
}

/// A configuration that searches `folders`.
pub(crate) fn config(folders: &[&Path], settings: &[(&str, &str)]) -> Config {
    crate::log_lines::install();
    let path = folders.iter().map(|folder| folder.to_str().unwrap()).collect::<Vec<_>>().join(":");
    let mut sources = Sources::default().with("plugins.path", path);
    for (key, value) in settings {
        sources = sources.with(*key, *value);
    }
    Config::load(&sources).unwrap()
}

/// Compiles the corpus plugin.
pub(crate) fn compile_shared(compiler: &mut Command, path: &Path, libraries: &[&str]) {
    let workspace = iccl_tests::workspace();
    compiler
        .args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-w", "-shared", "-fPIC", "-fvisibility=hidden"])
        .arg("-I")
        .arg(workspace.join("iccl-plugin-api/include"))
        .arg(workspace.join("tests/corpus/plugin.c"))
        .args(libraries)
        .arg("-o")
        .arg(path);
    iccl_tests::run(compiler);
}

/// The workspace's own plugins are active, whatever else there is.
pub(crate) fn good_plugins_work(set: &PluginSet) {
    let states: BTreeMap<&str, State> = set
        .records()
        .iter()
        .filter_map(|record| Some((record.name.as_deref()?, record.state)))
        .collect();
    assert_eq!(states.get("host"), Some(&State::Active), "{states:?}");
    assert!(set.transport("tcp").is_some(), "{states:?}");
    let device = set.devices_of("host").next().expect("the host device").open().unwrap();
    device.close().unwrap();
}

/// Whether a file is mapped into this process.
pub(crate) fn mappings(path: &Path) -> usize {
    let path = std::fs::canonicalize(path).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.ends_with(path.to_str().unwrap())).count()
}

/// The error of something that must fail.
pub(crate) fn failure<T>(result: Result<T>) -> Error {
    result.err().expect("this must fail")
}
