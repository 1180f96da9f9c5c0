//! Where a maker's library is looked for.
//!
//! If the operator named folders, there and nowhere else. Otherwise, in this order: what the process
//! has loaded already (a second version beside it would have a state of its own), what the loader
//! finds (`LD_LIBRARY_PATH` and its cache), then the folders that the maker's installers use.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::library::Library;
use crate::loaded::is_called;

/// Where a candidate was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A folder that the operator named.
    Named,
    /// Something in this process had loaded it.
    Loaded,
    /// Where the loader looks.
    Loader,
    /// A folder that the maker's installers use.
    Usual,
}

/// One file, or one name for the loader, to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// A path, or a bare name.
    pub name: PathBuf,
    /// Why it is tried.
    pub place: Place,
}

impl Candidate {
    /// Opens it.
    ///
    /// # Safety
    /// As for [`Library::open`].
    ///
    /// # Errors
    /// What the loader says, one line.
    pub unsafe fn open(&self) -> Result<Library, String> {
        // SAFETY: the caller promises it.
        unsafe { Library::open(&self.name) }
    }
}

/// Where to look.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The folders that the operator named. If there are any, nothing else is looked at.
    pub named: Vec<PathBuf>,
    /// The folders that the maker's installers use, the best first.
    pub usual: Vec<PathBuf>,
}

impl Search {
    /// What to try for a library that has these names, the best first. Files that do not exist are
    /// left out.
    pub fn candidates(&self, names: &[&str], loaded: &[PathBuf]) -> Vec<Candidate> {
        let files = |folders: &[PathBuf], place| {
            let paths =
                folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
            paths.filter(|path| path.exists()).map(|name| Candidate { name, place }).collect()
        };
        if !self.named.is_empty() {
            return files(&self.named, Place::Named);
        }
        let mut candidates: Vec<Candidate> = loaded
            .iter()
            .filter(|path| names.iter().any(|name| is_called(path, name)))
            .map(|path| Candidate { name: path.clone(), place: Place::Loaded })
            .collect();
        let by_name =
            names.iter().map(|name| Candidate { name: name.into(), place: Place::Loader });
        candidates.extend(by_name);
        candidates.extend::<Vec<_>>(files(&self.usual, Place::Usual));
        candidates
    }

    /// Where a driver with these names is looked for. It belongs to the machine, not to a toolkit: a
    /// named folder without one does not hide it. `usual` is where the maker's drivers are installed.
    #[must_use]
    pub fn for_driver(&self, names: &[&str], usual: Vec<PathBuf>) -> Self {
        let holds_driver = |folder: &&PathBuf| names.iter().any(|name| folder.join(name).exists());
        Self { named: self.named.iter().filter(holds_driver).cloned().collect(), usual }
    }

    /// Where is looked, for a message.
    pub fn places(&self) -> String {
        let list = |folders: &[PathBuf]| {
            folders.iter().map(|each| each.display().to_string()).collect::<Vec<_>>().join(", ")
        };
        match (self.named.as_slice(), self.usual.as_slice()) {
            ([], []) => "where the loader looks".to_owned(),
            ([], usual) => format!("where the loader looks, then {}", list(usual)),
            (named, _) => list(named),
        }
    }
}

/// `$VARIABLE/below` for each variable that is set to an absolute path and each of `below`. None in
/// a setuid process, where the caller's environment is not to be trusted.
pub fn variable_folders(
    variables: &[&str],
    below: &[&str],
    value: impl Fn(&str) -> Option<std::ffi::OsString>,
) -> Vec<PathBuf> {
    // SAFETY: reads a word that the kernel gave the process when it began.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return Vec::new();
    }
    let roots = variables.iter().filter_map(|variable| value(variable)).map(PathBuf::from);
    roots
        .filter(|root| root.is_absolute())
        .flat_map(|root| below.iter().map(move |below| root.join(below)))
        .collect()
}

/// The folders of packages of a Python environment: `ROOT/lib/python3*/site-packages/below`, newest
/// Python first.
pub fn python_folders(root: &Path, below: &[&str]) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root.join("lib")) else { return Vec::new() };
    let mut pythons: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter_map(|path| {
            let minor = path.file_name().and_then(OsStr::to_str)?.strip_prefix("python3.")?;
            Some((minor.parse().ok()?, path))
        })
        .collect();
    pythons.sort_by_key(|(minor, _)| std::cmp::Reverse(*minor));
    pythons
        .iter()
        .flat_map(|(_, python)| below.iter().map(|below| python.join("site-packages").join(below)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_driver_does_not_hide_the_machines() {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().to_owned();
        let search = Search { named: vec![named.clone()], usual: vec!["/toolkit".into()] };
        let driver = || search.for_driver(&["libdriver.so"], vec!["/opt".into()]);
        assert!(driver().named.is_empty());
        assert_eq!(driver().usual, [PathBuf::from("/opt")]);
        fs::write(folder.path().join("libdriver.so"), "").unwrap();
        assert_eq!(driver().named, [named]);
    }

    #[test]
    fn named_folders_are_the_only_ones() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for folder in ["named", "usual"] {
            fs::create_dir(at(folder)).unwrap();
            fs::write(at(folder).join("libx.so.1"), "").unwrap();
        }
        let loaded = [PathBuf::from("/opt/libx.so.1.5")];
        let mut search = Search { named: vec![], usual: vec![at("none"), at("usual")] };
        let names = ["libx.so.2", "libx.so.1"];
        let found = |search: &Search| -> Vec<_> {
            let candidates = search.candidates(&names, &loaded).into_iter();
            candidates.map(|each| (each.name, each.place)).collect()
        };
        assert_eq!(
            found(&search),
            [
                (loaded[0].clone(), Place::Loaded),
                ("libx.so.2".into(), Place::Loader),
                ("libx.so.1".into(), Place::Loader),
                (at("usual").join("libx.so.1"), Place::Usual),
            ]
        );
        search.named = vec![at("named")];
        assert_eq!(found(&search), [(at("named").join("libx.so.1"), Place::Named)]);
        assert_eq!(search.places(), at("named").display().to_string());
    }

    #[test]
    fn variables_give_folders_if_they_are_absolute() {
        let value = |name: &str| match name {
            "A_HOME" => Some("/opt/a".into()),
            "RELATIVE" => Some("a".into()),
            _ => None,
        };
        let folders = variable_folders(&["A_HOME", "RELATIVE", "UNSET"], &["lib64", "lib"], value);
        assert_eq!(folders, [PathBuf::from("/opt/a/lib64"), PathBuf::from("/opt/a/lib")]);
    }

    #[test]
    fn the_newest_python_comes_first() {
        let root = tempfile::tempdir().unwrap();
        for python in ["python3.9", "python3.11", "python3", "perl5"] {
            fs::create_dir_all(root.path().join("lib").join(python)).unwrap();
        }
        let folders = python_folders(root.path(), &["x/lib"]);
        let expected = ["python3.11", "python3.9"]
            .map(|python| root.path().join("lib").join(python).join("site-packages/x/lib"));
        assert_eq!(folders, expected);
    }
}
