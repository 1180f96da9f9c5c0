//! What the kernel says of a PCI device, and of memory.

use std::path::Path;

/// An address as the kernel writes it: `0000:3b:00.0`, lower case, with domain and function. `None`
/// if the text is no PCI address.
pub fn pci_address(text: &str) -> Option<String> {
    let (rest, function) = text.rsplit_once('.').unwrap_or((text, "0"));
    let mut parts = rest.rsplit(':');
    let (device, bus, domain) = (parts.next()?, parts.next()?, parts.next().unwrap_or("0"));
    let number =
        |text: &str, most: u32| u32::from_str_radix(text, 16).ok().filter(|number| *number <= most);
    if parts.next().is_some() {
        return None;
    }
    Some(format!(
        "{:04x}:{:02x}:{:02x}.{:x}",
        number(domain, u32::MAX)?,
        number(bus, 0xff)?,
        number(device, 0x1f)?,
        number(function, 7)?
    ))
}

/// Bytes of a page of host memory.
pub fn page_bytes() -> usize {
    // SAFETY: asks for a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// The NUMA node of the device with this address, if the kernel knows one.
pub fn numa_node(address: &str) -> Option<u32> {
    node_of(Path::new("/sys/bus/pci/devices"), address)
}

fn node_of(devices: &Path, address: &str) -> Option<u32> {
    let text = std::fs::read_to_string(devices.join(address).join("numa_node")).ok()?;
    // -1 where there is none.
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_the_kernel_does() {
        assert_eq!(pci_address("0000:3B:00.0").as_deref(), Some("0000:3b:00.0"));
        assert_eq!(pci_address("00000000:3B:1F.7").as_deref(), Some("0000:3b:1f.7"));
        assert_eq!(pci_address("10000:01:00.0").as_deref(), Some("10000:01:00.0"));
        assert_eq!(pci_address("3b:00.0").as_deref(), Some("0000:3b:00.0"));
        for wrong in ["", "3b", "0000:3b:20.0", "0000:3b:00.8", "1:2:3:4.0", "0000:zz:00.0"] {
            assert_eq!(pci_address(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_page_is_a_power_of_two() {
        assert!(page_bytes().is_power_of_two() && page_bytes() >= 4096);
    }

    #[test]
    fn a_node_of_minus_one_is_none() {
        let root = tempfile::tempdir().unwrap();
        for (address, node) in [("0000:01:00.0", "1\n"), ("0000:02:00.0", "-1\n")] {
            std::fs::create_dir(root.path().join(address)).unwrap();
            std::fs::write(root.path().join(address).join("numa_node"), node).unwrap();
        }
        assert_eq!(node_of(root.path(), "0000:01:00.0"), Some(1));
        assert_eq!(node_of(root.path(), "0000:02:00.0"), None);
        assert_eq!(node_of(root.path(), "0000:03:00.0"), None);
    }
}
