//! Vendors' libraries: whether they are where the loader looks. Nothing is loaded, since that runs
//! their code. A library is missed only where something says that it is needed: a card, or part of what
//! its maker installs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use iccl_runtime::config::Config;
use iccl_runtime::plugins::PluginSet;

use super::Check;
use super::network::rdma_devices;

/// What a plugin needs: its name, what it is for, and file names of which one is enough.
struct Wanted {
    plugin: &'static str,
    what: &'static str,
    files: &'static [&'static str],
    hint: &'static str,
}

const WANTED: &[Wanted] = &[
    Wanted {
        plugin: "transport-rdma",
        what: "libibverbs",
        files: &["libibverbs.so.1"],
        hint: "Debian: apt-get install libibverbs1 ibverbs-providers",
    },
    Wanted {
        plugin: "nvidia",
        what: "NVIDIA driver",
        files: &["libcuda.so.1"],
        hint: "install the driver, or start the container with --gpus all",
    },
    Wanted {
        plugin: "nvidia",
        what: "CUDA runtime",
        files: &["libcudart.so.13", "libcudart.so.12"],
        hint: "install the CUDA runtime; plugin.nvidia.library_dir names a folder elsewhere",
    },
    Wanted {
        plugin: "nvidia",
        what: "NCCL",
        files: &["libnccl.so.2"],
        hint: "install libnccl2; plugin.nvidia.library_dir names a folder elsewhere",
    },
    Wanted {
        plugin: "ascend",
        what: "Ascend runtime",
        files: &["libascendcl.so"],
        hint: "source the set_env.sh of the CANN toolkit",
    },
    Wanted {
        plugin: "ascend",
        what: "HCCL",
        files: &["libhccl.so"],
        hint: "source the set_env.sh of the CANN toolkit",
    },
    Wanted {
        plugin: "cambricon",
        what: "Cambricon runtime",
        files: &["libcnrt.so", "libcnrt.so.6", "libcnrt.so.7"],
        hint: "add the lib64 of NEUWARE_HOME to LD_LIBRARY_PATH",
    },
    Wanted {
        plugin: "cambricon",
        what: "CNCL",
        files: &["libcncl.so", "libcncl.so.1"],
        hint: "add the lib64 of NEUWARE_HOME to LD_LIBRARY_PATH",
    },
    Wanted {
        plugin: "kunlun",
        what: "Kunlun runtime",
        files: &["libxpurt.so.2", "libxpurt.so.1", "libxpurt.so"],
        hint: "set XRE_PATH, or name the folder in plugin.kunlun.library_dir",
    },
    Wanted {
        plugin: "kunlun",
        what: "BKCL",
        files: &["libbkcl.so", "libbkcl.so.1"],
        hint: "set BKCL_PATH, or name the folder in plugin.kunlun.library_dir",
    },
];

/// Those of [`WANTED`] without which a plugin is active too, and has no native collectives.
const NATIVE_LIBRARIES: [&str; 4] = ["NCCL", "HCCL", "CNCL", "BKCL"];

/// By what the kernel tells a maker's cards from other devices: the maker's number, and the class of
/// devices where the maker makes others too.
struct Cards {
    plugin: &'static str,
    vendor: &'static str,
    class: &'static str,
}

const CARDS: &[Cards] = &[
    Cards { plugin: "nvidia", vendor: "0x10de", class: "0x03" },
    Cards { plugin: "ascend", vendor: "0x19e5", class: "0x12" },
    Cards { plugin: "cambricon", vendor: "0xcabc", class: "" },
    Cards { plugin: "kunlun", vendor: "0x1d22", class: "" },
];

const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// Where libraries are, and what says that they are needed.
pub(super) struct Libraries<'a> {
    folders: Vec<PathBuf>,
    config: &'a Config,
    plugins: Option<&'a PluginSet>,
}

impl<'a> Libraries<'a> {
    pub(super) fn new(config: &'a Config, plugins: Option<&'a PluginSet>) -> Self {
        let path = config.environment().get("LD_LIBRARY_PATH").unwrap_or_default();
        Self { folders: loader_folders(path, Path::new("/etc/ld.so.conf")), config, plugins }
    }

    pub(super) fn checks(&self) -> Vec<Check> {
        WANTED.iter().map(|wanted| self.check(wanted, self.is_needed(wanted.plugin))).collect()
    }

    /// The checks of one maker's libraries, which are taken as needed.
    pub(super) fn checks_of(&self, plugin: &str) -> Vec<Check> {
        let wanted = WANTED.iter().filter(|wanted| wanted.plugin == plugin);
        wanted.map(|wanted| self.check(wanted, true)).collect()
    }

    fn check(&self, wanted: &Wanted, is_needed: bool) -> Check {
        let place = find(&self.folders, wanted.files);
        if place.is_none() && self.plugins.is_some_and(|set| wanted.is_in_use(set)) {
            return Check::ok(
                wanted.what,
                format!("plugin {} found it, not where the loader looks", wanted.plugin),
            );
        }
        wanted.check(place, is_needed)
    }

    fn is_needed(&self, plugin: &str) -> bool {
        if plugin == "transport-rdma" {
            return !rdma_devices().is_empty();
        }
        let records = self.plugins.map(PluginSet::records).unwrap_or_default();
        let mut records = records.iter().filter(|record| record.name.as_deref() == Some(plugin));
        let mut others = WANTED.iter().filter(|wanted| wanted.plugin == plugin);
        records.any(|record| {
            record.is_active()
                || self.config.plugins.require.contains_key(plugin)
                || has_card(Path::new(PCI_DEVICES), plugin)
                || others.any(|wanted| find(&self.folders, wanted.files).is_some())
        })
    }
}

/// Whether the kernel sees a card of the maker.
fn has_card(devices: &Path, plugin: &str) -> bool {
    let Some(cards) = CARDS.iter().find(|cards| cards.plugin == plugin) else { return false };
    let Ok(entries) = fs::read_dir(devices) else { return false };
    let says = |device: &Path, fact: &str, start: &str| {
        fs::read_to_string(device.join(fact)).is_ok_and(|text| text.starts_with(start))
    };
    entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .any(|device| says(&device, "vendor", cards.vendor) && says(&device, "class", cards.class))
}

impl Wanted {
    /// Whether the plugin has it, wherever it was found.
    fn is_in_use(&self, plugins: &PluginSet) -> bool {
        if NATIVE_LIBRARIES.contains(&self.what) {
            return plugins.collectives_of(self.plugin).is_some();
        }
        let mut records = plugins.records().iter();
        records.any(|record| record.is_active() && record.name.as_deref() == Some(self.plugin))
    }

    fn check(&self, place: Option<PathBuf>, is_needed: bool) -> Check {
        match place {
            Some(place) => Check::ok(self.what, place.display().to_string()),
            None if is_needed => {
                let found = format!(
                    "{} not found, and plugin {} needs it",
                    self.files.join(" or "),
                    self.plugin
                );
                Check::warn(self.what, found, self.hint)
            }
            None => Check::ok(self.what, "not there, and nothing here needs it"),
        }
    }
}

fn find(folders: &[PathBuf], files: &[&str]) -> Option<PathBuf> {
    let places = folders.iter().flat_map(|folder| files.iter().map(|file| folder.join(file)));
    places.into_iter().find(|place| place.exists())
}

/// The folders where the loader looks, in its order.
fn loader_folders(path: &str, settings: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        path.split([':', ';']).filter(|part| !part.is_empty()).map(PathBuf::from).collect();
    read_settings(settings, &mut folders, &mut BTreeSet::new());
    folders.extend(["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from));
    folders
}

/// `/etc/ld.so.conf`: folders, and `include` with `*` in the last part.
fn read_settings(file: &Path, folders: &mut Vec<PathBuf>, seen: &mut BTreeSet<PathBuf>) {
    if !seen.insert(file.to_owned()) {
        return;
    }
    let Ok(text) = fs::read_to_string(file) else { return };
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        match line.strip_prefix("include").map(str::trim_start) {
            Some(pattern) if line.starts_with("include ") || line.starts_with("include\t") => {
                let base = file.parent().unwrap_or(Path::new("/"));
                for included in matching(&base.join(pattern)) {
                    read_settings(&included, folders, seen);
                }
            }
            _ if line.is_empty() || line.starts_with("hwcap") => {}
            _ => folders.push(PathBuf::from(line)),
        }
    }
}

/// Files whose name matches a pattern with at most one `*` in its last part.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((before, behind)) = name.split_once('*') else { return vec![pattern.to_owned()] };
    let Some(Ok(entries)) = pattern.parent().map(fs::read_dir) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.len() >= before.len() + behind.len()
                && name.starts_with(before)
                && name.ends_with(behind)
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn the_loaders_settings_are_followed_in_order() {
        let root = tempfile::tempdir().expect("a folder");
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("conf.d")).expect("made");
        fs::create_dir_all(at("lib-b")).expect("made");
        let write = |name: &str, text: &str| fs::write(at(name), text).expect("written");
        write("ld.so.conf", "include conf.d/*.conf # all\n/last\ninclude ld.so.conf\n");
        write("conf.d/b.conf", &format!("{}\n", at("lib-b").display()));
        write("conf.d/a.conf", "# nothing\n/first\n");
        write("conf.d/c.txt", "/never\n");
        write("lib-b/libcuda.so.1", "");
        let folders = loader_folders("/env", &at("ld.so.conf"));
        let expected: Vec<PathBuf> =
            ["/env".into(), "/first".into(), at("lib-b"), "/last".into()].to_vec();
        assert_eq!(folders[..4], expected);
        assert_eq!(find(&folders, &["libcuda.so.1"]), Some(at("lib-b").join("libcuda.so.1")));
        assert_eq!(find(&folders, &["libcuda.so.2"]), None);
    }

    #[test]
    fn a_makers_card_is_known_by_its_number_and_class() {
        let devices = tempfile::tempdir().expect("a folder");
        let device = |name: &str, vendor: &str, class: &str| {
            let folder = devices.path().join(name);
            fs::create_dir(&folder).expect("made");
            fs::write(folder.join("vendor"), format!("{vendor}\n")).expect("written");
            fs::write(folder.join("class"), format!("{class}\n")).expect("written");
        };
        let has = |plugin: &str| has_card(devices.path(), plugin);
        // A network card of Huawei's, the sound of a card of NVIDIA's.
        device("0000:00:01.0", "0x19e5", "0x020000");
        device("0000:00:02.1", "0x10de", "0x040300");
        assert!(!CARDS.iter().any(|cards| has(cards.plugin)) && !has("host"));
        device("0000:00:02.0", "0x10de", "0x030200");
        assert!(has("nvidia") && !has("ascend"));
        device("0000:00:03.0", "0x19e5", "0x120000");
        device("0000:00:04.0", "0xcabc", "0x120000");
        assert!(has("ascend") && has("cambricon") && !has("kunlun"));
    }

    #[test]
    fn a_library_is_missed_only_if_it_is_needed() {
        let wanted = &WANTED[0];
        assert_eq!(wanted.check(None, false).result, Verdict::Ok);
        let check = wanted.check(None, true);
        assert_eq!(check.result, Verdict::Warn);
        assert!(check.hint.contains("apt-get install libibverbs1"));
    }
}
