//! Files that hold a secret: nobody else's, and readable by nobody else.

use std::fs::{File, OpenOptions};
use std::io::{Error, Read, Result, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// More than any secret or unique id.
const LIMIT_BYTES: u64 = 64 * 1024;

/// The file's content, if it belongs to this user (or root) and nobody else can read or change it.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Error::other("not a regular file"));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() && metadata.uid() != 0 {
        return Err(Error::other("it belongs to another user"));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(Error::other("other users can read or change it: chmod 600"));
    }
    let mut content = Vec::new();
    file.take(LIMIT_BYTES).read_to_end(&mut content)?;
    Ok(content)
}

/// Replaces the file in one step, so that a reader sees the old content or the new.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<()> {
    let mut name = path.file_name().ok_or_else(|| Error::other("not a file name"))?.to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let temporary = path.with_file_name(name);
    let _ = std::fs::remove_file(&temporary);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = file.write_all(content).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}
