//! How far two PCI devices of one host are apart, read from sysfs.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};
use std::str::FromStr;

/// The address of a PCI function: `domain:bus:device.function`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// The domain (segment); virtual machines may have domains above 16 bits.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device, 0 to 31.
    pub device: u8,
    /// The function, 0 to 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// Why a text is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a PCI address (expected, for example, 0000:3b:00.0)")]
pub struct PciAddressError(String);

impl FromStr for PciAddress {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            let hex = |part: &str| {
                let digits = part.bytes().all(|byte| byte.is_ascii_hexdigit());
                digits.then(|| u32::from_str_radix(part, 16).ok())?
            };
            let device = u8::try_from(hex(device)?).ok().filter(|device| *device < 32)?;
            let function = u8::try_from(hex(function)?).ok().filter(|function| *function < 8)?;
            Some(Self {
                domain: hex(domain)?,
                bus: u8::try_from(hex(bus)?).ok()?,
                device,
                function,
            })
        };
        parse().ok_or_else(|| PciAddressError(text.to_owned()))
    }
}

/// What lies between two devices, nearest first. The short names are the field's
/// (`nvidia-smi topo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PciDistance {
    /// The same device (perhaps another function of it).
    SameDevice,
    /// One bridge.
    SameSwitch,
    /// Several bridges, but not the host's.
    SameTree,
    /// The host bridge of one root.
    HostBridge,
    /// Different roots of one NUMA node.
    SameNuma,
    /// Different NUMA nodes.
    CrossNuma,
    /// One of the two is not in sysfs.
    Unknown,
}

impl PciDistance {
    /// The short name: `loc`, `pix`, `pxb`, `phb`, `node`, `sys`, or `unknown`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SameDevice => "loc",
            Self::SameSwitch => "pix",
            Self::SameTree => "pxb",
            Self::HostBridge => "phb",
            Self::SameNuma => "node",
            Self::CrossNuma => "sys",
            Self::Unknown => "unknown",
        }
    }
}

struct Node {
    /// The root (`pci0000:00`), then each bridge on the way, without the device itself.
    path: Vec<String>,
    numa_node: Option<u16>,
}

/// The PCI devices of this host and where each hangs.
pub struct PciTree {
    nodes: BTreeMap<PciAddress, Node>,
}

impl PciTree {
    /// Reads the sysfs that is mounted at `sysfs` (`/sys` on a real host). A host without PCI, or
    /// one that hides it, gives an empty tree: every distance is then unknown.
    pub fn read(sysfs: &Path) -> Self {
        let mut nodes = BTreeMap::new();
        let entries = std::fs::read_dir(sysfs.join("bus/pci/devices")).into_iter().flatten();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(address) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let Ok(real) = entry.path().canonicalize() else { continue };
            nodes.insert(address, Node { path: parents(&real), numa_node: numa_node(&real) });
        }
        Self { nodes }
    }

    /// How far two devices are apart; the same in both directions.
    pub fn distance(&self, a: PciAddress, b: PciAddress) -> PciDistance {
        let (Some(node_a), Some(node_b)) = (self.nodes.get(&a), self.nodes.get(&b)) else {
            return PciDistance::Unknown;
        };
        if (a.domain, a.bus, a.device) == (b.domain, b.bus, b.device) {
            return PciDistance::SameDevice;
        }
        let shared = node_a.path.iter().zip(&node_b.path).take_while(|(x, y)| x == y).count();
        let longest = node_a.path.len().max(node_b.path.len());
        match shared {
            0 if node_a.numa_node.is_some() && node_a.numa_node == node_b.numa_node => {
                PciDistance::SameNuma
            }
            0 => PciDistance::CrossNuma,
            1 => PciDistance::HostBridge,
            // Ports of one switch are themselves bridges: root port, upstream port, one downstream
            // port each.
            _ if longest - shared <= 1 => PciDistance::SameSwitch,
            _ => PciDistance::SameTree,
        }
    }

    /// The NUMA node that a device is nearest to, where the kernel knows one.
    pub fn numa_node(&self, address: PciAddress) -> Option<u16> {
        self.nodes.get(&address)?.numa_node
    }

    /// How many devices were found.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether no device was found.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

/// The components from the PCI root down to the bridge above the device.
fn parents(device: &Path) -> Vec<String> {
    let names = device.components().filter_map(|component| match component {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let mut path: Vec<String> =
        names.skip_while(|name| !is_root(name)).map(ToOwned::to_owned).collect();
    path.pop();
    path
}

/// `pci0000:00` is a root; `pci` alone is the bus's folder.
fn is_root(name: &str) -> bool {
    name.strip_prefix("pci").is_some_and(|rest| rest.contains(':'))
}

/// The kernel writes -1 where it does not know.
fn numa_node(device: &Path) -> Option<u16> {
    std::fs::read_to_string(device.join("numa_node")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server with two sockets: on root 00 a switch with two cards and a NIC behind it and a
    /// lone card beside it, on root 80 of the same node a card, on root c0 of another node a card.
    fn server() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let switch = "pci0000:00/0000:00:01.0/0000:01:00.0";
        let devices = [
            (format!("{switch}/0000:02:00.0/0000:03:00.0"), "0"),
            (format!("{switch}/0000:02:01.0/0000:04:00.0"), "0"),
            (format!("{switch}/0000:02:01.0/0000:04:00.1"), "0"),
            (format!("{switch}/0000:02:02.0/0000:05:00.0/0000:06:00.0/0000:07:00.0"), "0"),
            ("pci0000:00/0000:00:02.0/0000:10:00.0".to_owned(), "0"),
            ("pci0000:80/0000:80:01.0/0000:81:00.0".to_owned(), "0"),
            ("pci0000:c0/0000:c0:01.0/0000:c1:00.0".to_owned(), "1"),
            ("pci0000:d0/0000:d0:01.0/0000:d1:00.0".to_owned(), "-1"),
        ];
        let links = root.path().join("bus/pci/devices");
        std::fs::create_dir_all(&links).unwrap();
        for (device, numa) in devices {
            let real = root.path().join("devices").join(&device);
            std::fs::create_dir_all(&real).unwrap();
            std::fs::write(real.join("numa_node"), format!("{numa}\n")).unwrap();
            let name = device.rsplit('/').next().unwrap();
            std::os::unix::fs::symlink(&real, links.join(name)).unwrap();
        }
        root
    }

    #[test]
    fn distances_follow_the_tree_and_are_the_same_from_both_ends() {
        let root = server();
        let tree = PciTree::read(root.path());
        assert_eq!(tree.len(), 8);
        let cases = [
            ("0000:04:00.0", "0000:04:00.1", "loc"),
            ("0000:03:00.0", "0000:04:00.0", "pix"),
            ("0000:03:00.0", "0000:07:00.0", "pxb"),
            ("0000:03:00.0", "0000:10:00.0", "phb"),
            ("0000:03:00.0", "0000:81:00.0", "node"),
            ("0000:03:00.0", "0000:c1:00.0", "sys"),
            ("0000:03:00.0", "0000:d1:00.0", "sys"),
            ("0000:03:00.0", "0000:ff:00.0", "unknown"),
        ];
        for (a, b, expected) in cases {
            let (a, b): (PciAddress, PciAddress) = (a.parse().unwrap(), b.parse().unwrap());
            assert_eq!(tree.distance(a, b).name(), expected, "{a} {b}");
            assert_eq!(tree.distance(b, a).name(), expected, "{b} {a}");
        }
        assert_eq!(tree.numa_node("0000:c1:00.0".parse().unwrap()), Some(1));
        assert_eq!(tree.numa_node("0000:d1:00.0".parse().unwrap()), None);
    }

    #[test]
    fn a_host_without_pci_gives_an_empty_tree() {
        let root = tempfile::tempdir().unwrap();
        assert!(PciTree::read(root.path()).is_empty());
    }

    #[test]
    fn addresses_are_read_and_written_as_the_kernel_does() {
        let address: PciAddress = "10000:e1:1f.7".parse().unwrap();
        assert_eq!(address.to_string(), "10000:e1:1f.7");
        for bad in ["", "0000:3b:00", "0000:3b:20.0", "0000:3b:00.8", "0000:+1:00.0", "0:1ff:0.0"] {
            assert!(bad.parse::<PciAddress>().is_err(), "{bad}");
        }
    }
}
