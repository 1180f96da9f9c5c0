//! Which libraries this process has mapped.

use std::fs;
use std::path::{Path, PathBuf};

/// The shared objects that this process has mapped, each once, in the order of their addresses.
pub fn loaded_libraries() -> Vec<PathBuf> {
    libraries_in(&fs::read_to_string("/proc/self/maps").unwrap_or_default())
}

/// The shared objects named in a text in the form of `/proc/self/maps`.
fn libraries_in(maps: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for line in maps.lines() {
        // Address, permissions, offset, device, inode, path.
        let Some(start) = line.find('/') else { continue };
        let path = Path::new(line[start..].trim_end().trim_end_matches(" (deleted)"));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_library = name.ends_with(".so") || name.contains(".so.");
        if is_library && !found.iter().any(|known| known == path) {
            found.push(path.to_owned());
        }
    }
    found
}

/// Whether a file is the library `soname`, or a more exact version of it: `libx.so.1.2` is a
/// `libx.so.1`, and `libx.so.12` is not.
pub(crate) fn is_called(path: &Path, soname: &str) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix(soname).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Those of `loaded` that are the library of `used` in another file: what this process loaded
/// before, or beside it.
pub fn other_versions(loaded: &[PathBuf], used: &Path) -> Vec<PathBuf> {
    let name = used.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(end) = name.find(".so") else { return Vec::new() };
    let stem = &name[..end + ".so".len()];
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let used = real(used);
    loaded.iter().filter(|path| is_called(path, stem) && real(path) != used).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c8a00000-55d0c8a21000 r--p 00000000 08:01 1311 /usr/bin/python3.11
7f3a10000000-7f3a10021000 rw-p 00000000 00:00 0 
7f3a1a000000-7f3a1a0b1000 r-xp 00000000 08:01 99 /opt/a b/libx.so.12.9.79
7f3a1a0b1000-7f3a1a0c1000 rw-p 000b1000 08:01 99 /opt/a b/libx.so.12.9.79
7f3a1b000000-7f3a1b0b1000 r-xp 00000000 08:01 98 /old/libx.so.12 (deleted)
7f3a1c000000-7f3a1c0b1000 r-xp 00000000 08:01 97 /opt/libxy.so
7ffc12000000-7ffc12021000 rw-p 00000000 00:00 0                          [stack]
";

    #[test]
    fn maps_name_each_library_once() {
        let expected = ["/opt/a b/libx.so.12.9.79", "/old/libx.so.12", "/opt/libxy.so"];
        assert_eq!(libraries_in(MAPS), expected.map(PathBuf::from));
    }

    #[test]
    fn an_exact_version_is_of_its_soname_and_a_longer_number_is_not() {
        let is = |name: &str, soname| is_called(&Path::new("/lib").join(name), soname);
        assert!(is("libx.so.1", "libx.so.1"));
        assert!(is("libx.so.1.2.3", "libx.so.1"));
        assert!(!is("libx.so.12", "libx.so.1"));
        assert!(!is("libxy.so.1", "libx.so.1"));
    }

    #[test]
    fn other_versions_are_those_of_the_same_library_elsewhere() {
        let loaded = libraries_in(MAPS);
        let others = |used: &str| other_versions(&loaded, Path::new(used));
        assert_eq!(others("/old/libx.so.12"), [PathBuf::from("/opt/a b/libx.so.12.9.79")]);
        assert_eq!(others("/new/libx.so.13").len(), 2);
        assert_eq!(others("/opt/libxy.so"), [] as [PathBuf; 0]);
        assert_eq!(others("libnccl"), [] as [PathBuf; 0]);
    }

    #[test]
    fn this_process_has_a_c_library() {
        assert!(loaded_libraries().iter().any(|path| is_called(path, "libc.so.6")));
    }
}
