//! The folder in which the ranks of a job leave each other something: where rank 0 is met, and what came out.
//!
//! Its command locks it, so that the next one can tell what a killed command left behind, and takes it
//! away.

use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::failure::{Failure, Result};

const PREFIX: &str = "iccl-cluster-";

/// A younger folder may be one that its command has yet to lock.
const OLD: Duration = Duration::from_secs(60);

/// A folder of this user's alone. Dropping it takes it away.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    pub(super) fn new() -> Result<Self> {
        Self::new_in(&std::env::temp_dir())
    }

    fn new_in(parent: &Path) -> Result<Self> {
        remove_left_behind(parent);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let path = parent.join(format!("{PREFIX}{}-{:x}", std::process::id(), now.as_nanos()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        let lock = made
            .and_then(|()| File::open(&path))
            .map_err(|error| Failure::new(format!("{} cannot be made: {error}", path.display())))?;
        // Where folders cannot be locked, none is taken for left behind.
        let _ = lock.try_lock();
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The next command takes away what cannot be removed now.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Removes this user's folders that nobody locks any more. What cannot be removed does no harm.
fn remove_left_behind(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.filter_map(std::result::Result::ok) {
        if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())
            && is_left_behind(&entry.path())
        {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn is_left_behind(path: &Path) -> bool {
    let Ok(facts) = path.symlink_metadata() else { return false };
    let is_ours = facts.is_dir() && facts.uid() == rustix::process::geteuid().as_raw();
    let age = facts.modified().ok().and_then(|time| time.elapsed().ok());
    is_ours
        && age.is_some_and(|age| age >= OLD)
        && File::open(path).is_ok_and(|folder| folder.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_command_left_is_taken_away_by_the_next() {
        let parent = tempfile::tempdir().expect("a folder");
        let long_ago = SystemTime::now() - 2 * OLD;
        let age = |path: &Path| {
            let folder = File::open(path).expect("it is there");
            folder.set_modified(long_ago).expect("its time is set");
        };
        let running = Folder::new_in(parent.path()).expect("a folder");
        age(running.path());
        let left = parent.path().join(format!("{PREFIX}1-1"));
        let young = parent.path().join(format!("{PREFIX}1-2"));
        let foreign = parent.path().join("other-1-3");
        for path in [&left, &young, &foreign] {
            std::fs::create_dir(path).expect("made");
        }
        std::fs::write(left.join("root"), "").expect("written");
        age(&left);
        age(&foreign);
        let next = Folder::new_in(parent.path()).expect("a folder");
        assert!(!left.exists());
        assert!(running.path().is_dir() && young.is_dir() && foreign.is_dir());
        let path = next.path().to_owned();
        drop(next);
        assert!(!path.exists());
    }
}
