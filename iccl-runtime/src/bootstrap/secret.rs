//! Files that hold a secret: nobody else's, and readable by nobody else.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use iccl_wire::Key;
use zeroize::Zeroizing;

use crate::{Error, ErrorKind, Result};

/// A secret shorter than this can be guessed.
const LEAST_BYTES: usize = 16;
/// A secret needs no more than this; a wrong file may.
const MOST_BYTES: u64 = 64 * 1024;

/// Reads the secret that all ranks of a job share. White space at both ends does not count.
///
/// # Errors
/// `InvalidConfig` if the file cannot be read, others than its owner may read it, or what it holds is
/// too short to be a secret. What it holds is not part of the message.
pub(super) fn read_secret(path: &Path) -> Result<Key> {
    let refuse = |why: String| {
        let message = format!("bootstrap.job_secret_file: {}: {why}", path.display());
        Error::new(ErrorKind::InvalidConfig, message)
    };
    let content = read_private(path).map_err(|error| {
        let hint = (error.kind() == io::ErrorKind::PermissionDenied)
            .then(|| format!("chmod 600 {}", path.display()));
        let refusal = refuse(error.to_string());
        hint.into_iter().fold(refusal, Error::with_hint)
    })?;
    let secret = content.trim_ascii();
    if secret.len() < LEAST_BYTES {
        return Err(refuse(format!("it holds fewer than {LEAST_BYTES} bytes"))
            .with_hint("head -c 32 /dev/urandom | base64"));
    }
    Ok(Key::from_material("iccl job secret", secret))
}

/// The content of a file that belongs to this user (or root) and that nobody else can read or change.
pub(super) fn read_private(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let refuse = |why: &str| io::Error::new(io::ErrorKind::PermissionDenied, why.to_owned());
    let file = File::open(path)?;
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if facts.uid() != rustix::process::geteuid().as_raw() && facts.uid() != 0 {
        return Err(refuse("it belongs to another user"));
    }
    if facts.mode() & 0o077 != 0 {
        return Err(refuse("others than its owner may read or write it"));
    }
    let mut content = Zeroizing::new(Vec::new());
    file.take(MOST_BYTES + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MOST_BYTES {
        return Err(io::Error::other(format!("it is longer than {MOST_BYTES} bytes")));
    }
    Ok(content)
}

/// Replaces such a file in one step, so that a reader sees the old content or the new.
pub(super) fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::other("it is no file name"))?;
    let mut name = name.to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let temporary = path.with_file_name(name);
    // What a process with the same number left behind.
    let _ = std::fs::remove_file(&temporary);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = file.write_all(content).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_a_private_file_with_enough_in_it_is_a_secret() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        let write = |text: &str, mode: u32| {
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("rights");
        };
        let refusal = || read_secret(&path).expect_err("no secret").to_string();
        assert!(refusal().contains("No such file"));
        write("0123456789abcdef0123", 0o640);
        assert!(refusal().contains("others than its owner"));
        write("short\n", 0o600);
        assert!(refusal().contains("fewer than 16 bytes"));
        assert!(!refusal().contains("short\n"));
        write("0123456789abcdef0123\n", 0o600);
        let first = read_secret(&path).expect("a secret");
        write("0123456789abcdef0123", 0o600);
        assert!(read_secret(&path).expect("a secret") == first);
        write("0123456789abcdef0124", 0o600);
        assert!(read_secret(&path).expect("a secret") != first);
    }
}
