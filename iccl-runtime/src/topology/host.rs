//! How a host is told from another.
//!
//! Two ranks are on one host when they run under one kernel, because that is what shared memory
//! needs. The kernel's boot id says so and is the same in every container, whatever its PID, network
//! or mount namespace and whatever machine id or host name its image carries; names say nothing
//! (every node of some clusters has the same one, others differ only behind the first dot). The
//! machine id and the name serve only where the boot id cannot be read. Two virtual machines that
//! were restored from one snapshot share a boot id; there the attach of shared memory fails, and
//! that failure is evidence for the plan.

use std::fmt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::descriptor::MAX_NAME_BYTES;
use crate::limits::system_error;
use crate::{ErrorKind, Result};

/// A 128-bit digest of what identifies a host. Equal keys mean the same host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostKey(pub [u8; 16]);

impl HostKey {
    /// The key of an identity text of some kind. The whole text counts, to its last byte.
    fn of(source: HostSource, identity: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"iccl host 1\0");
        hash.update(source.name().as_bytes());
        hash.update(b"\0");
        hash.update(identity.as_bytes());
        let digest = hash.finalize();
        let mut key = [0; 16];
        key.copy_from_slice(&digest[..16]);
        Self(key)
    }
}

impl fmt::Display for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostKey({self})")
    }
}

/// Where a host's identity was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostSource {
    /// The setting `host_id`.
    Override,
    /// `/proc/sys/kernel/random/boot_id`.
    BootId,
    /// `/etc/machine-id`.
    MachineId,
    /// The host's name: the last resort.
    Name,
}

impl HostSource {
    /// A stable name in kebab case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Override => "override",
            Self::BootId => "boot-id",
            Self::MachineId => "machine-id",
            Self::Name => "name",
        }
    }
}

/// This host's identity and the name that messages use for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    /// The digest that other ranks compare.
    pub key: HostKey,
    /// The host's whole name (not cut at a dot), at most [`MAX_NAME_BYTES`].
    pub name: String,
    /// What the key was made from.
    pub source: HostSource,
}

impl HostIdentity {
    /// The identity of this host; `host_id` (the setting of that name) takes its place when given,
    /// so that one machine can play several hosts.
    ///
    /// # Errors
    /// `OutOfResources` if what tells it cannot be read for want of descriptors or memory: an identity made
    /// of what is left would be that of another host.
    pub fn detect(host_id: Option<&str>) -> Result<Self> {
        Self::detect_under(Path::new("/"), host_id)
    }

    /// [`HostIdentity::detect`] on a file system that starts at `root`.
    ///
    /// # Errors
    /// As [`HostIdentity::detect`].
    pub fn detect_under(root: &Path, host_id: Option<&str>) -> Result<Self> {
        if let Some(id) = host_id {
            return Ok(Self::from_parts(HostSource::Override, id, id));
        }
        let read = |path: &str| read(&root.join(path));
        let name = read("proc/sys/kernel/hostname")?.unwrap_or_else(|| "unnamed-host".to_owned());
        let sources = [
            (HostSource::BootId, "proc/sys/kernel/random/boot_id"),
            (HostSource::MachineId, "etc/machine-id"),
        ];
        for (source, path) in sources {
            if let Some(identity) = read(path)? {
                return Ok(Self::from_parts(source, &identity, &name));
            }
        }
        Ok(Self::from_parts(HostSource::Name, &name, &name))
    }

    fn from_parts(source: HostSource, identity: &str, name: &str) -> Self {
        Self { key: HostKey::of(source, identity), name: printable(name), source }
    }
}

/// What a file says; `None` if there is none, or none that this process may read.
fn read(path: &Path) -> Result<Option<String>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if is_shortage(&error) => {
            let text = format!("which host this is cannot be read from {}", path.display());
            return Err(system_error(ErrorKind::OutOfResources, text, error));
        }
        Err(_) => return Ok(None),
    };
    let text = text.trim();
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

fn is_shortage(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// A name as a descriptor may carry it: no control characters, bounded, cut between characters.
fn printable(name: &str) -> String {
    let mut printable = String::new();
    for character in name.chars().filter(|character| !character.is_control()) {
        if printable.len() + character.len_utf8() > MAX_NAME_BYTES {
            break;
        }
        printable.push(character);
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake_root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    fn identity(files: &[(&str, &str)]) -> HostIdentity {
        HostIdentity::detect_under(fake_root(files).path(), None).unwrap()
    }

    const BOOT: &str = "proc/sys/kernel/random/boot_id";
    const NAME: &str = "proc/sys/kernel/hostname";
    const MACHINE: &str = "etc/machine-id";

    #[test]
    fn b057_names_that_differ_behind_a_dot_are_different_hosts() {
        let (a, b) = (identity(&[(NAME, "n.a\n")]), identity(&[(NAME, "n.b\n")]));
        assert_ne!(a.key, b.key);
        assert_eq!((a.name.as_str(), a.source), ("n.a", HostSource::Name));
        let (a, b) = (
            HostIdentity::detect(Some("n.a")).unwrap().key,
            HostIdentity::detect(Some("n.b")).unwrap().key,
        );
        assert_ne!(a, b);
    }

    #[test]
    fn b057_names_that_collide_in_a_small_hash_are_different_hosts() {
        let djb2 = |name: &str| {
            let step = |hash: u64, byte| hash.wrapping_mul(33).wrapping_add(u64::from(byte));
            name.bytes().fold(5381, step)
        };
        let (a, b) = ("compute00000R", "compute000011");
        assert_eq!(djb2(a), djb2(b), "the pair collides in the hash that the report is about");
        assert_ne!(
            HostIdentity::detect(Some(a)).unwrap().key,
            HostIdentity::detect(Some(b)).unwrap().key
        );
    }

    #[test]
    fn b057_containers_of_one_kernel_are_one_host_and_one_name_on_all_nodes_is_not() {
        let boot = "4b9c2d0e-0000-4000-8000-000000000001\n";
        let one = identity(&[(BOOT, boot), (NAME, "pod-a"), (MACHINE, "aaaa")]);
        let two = identity(&[(BOOT, boot), (NAME, "pod-b"), (MACHINE, "bbbb")]);
        assert_eq!(one.key, two.key);
        assert_eq!(one.source, HostSource::BootId);
        let other = identity(&[(BOOT, "4b9c2d0e-0000-4000-8000-000000000002"), (NAME, "pod-a")]);
        assert_ne!(one.key, other.key);
    }

    #[test]
    fn an_override_differs_from_the_same_text_found_elsewhere() {
        let found = identity(&[(NAME, "n1")]);
        assert_ne!(found.key, HostIdentity::detect(Some("n1")).unwrap().key);
        assert_eq!(
            HostIdentity::detect(Some("n1")).unwrap(),
            HostIdentity::detect(Some("n1")).unwrap()
        );
    }

    #[test]
    fn a_long_or_dirty_name_is_made_fit_for_a_descriptor_and_its_key_uses_all_of_it() {
        let long = "é".repeat(40);
        let a = HostIdentity::detect(Some(&format!("{long}a"))).unwrap();
        let b = HostIdentity::detect(Some(&format!("{long}b"))).unwrap();
        assert_eq!(a.name, "é".repeat(32));
        assert_eq!(a.name, b.name);
        assert_ne!(a.key, b.key);
        assert_eq!(HostIdentity::detect(Some("a\x1b[31m\nb")).unwrap().name, "a[31mb");
    }

    #[test]
    fn this_machine_has_an_identity_that_does_not_change() {
        assert_eq!(HostIdentity::detect(None).unwrap(), HostIdentity::detect(None).unwrap());
    }
}
