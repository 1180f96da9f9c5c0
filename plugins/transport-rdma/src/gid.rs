//! Which address of a port is used: a pure function of the port's table.

use std::fmt::Write as _;
use std::net::Ipv6Addr;

use crate::verbs::{Fabric, GidEntry, GidKind};

/// What an address is worth; smaller is better. `None` for one that is no address.
fn rank(fabric: Fabric, entry: &GidEntry) -> Option<(u8, u8)> {
    let address = Ipv6Addr::from(entry.gid);
    // Connections name an entry by a byte.
    if address.is_unspecified() || entry.index > u8::MAX.into() {
        return None;
    }
    let reach = if address.to_ipv4_mapped().is_some_and(|ip| !ip.is_link_local()) {
        0
    } else if address.is_unicast_link_local() || address.to_ipv4_mapped().is_some() {
        2
    } else {
        1
    };
    match (fabric, entry.kind) {
        (Fabric::Ethernet, GidKind::RoceV2) => Some((0, reach)),
        (Fabric::Ethernet, GidKind::RoceV1) => Some((1, reach)),
        (Fabric::Ethernet, GidKind::InfiniBand) => None,
        // The first entry of an InfiniBand port is its own; others are aliases.
        (Fabric::InfiniBand | Fabric::Iwarp | Fabric::Other, _) => Some((0, 0)),
    }
}

/// The entry to use: the one asked for, or the best, of equal ones the first. `RoCE` v2 comes before v1,
/// and of either kind IPv4-mapped addresses, routable IPv6, link-local ones.
///
/// # Errors
/// Why there is none, with the table.
pub(crate) fn choose(
    fabric: Fabric,
    table: &[GidEntry],
    wanted: Option<u32>,
) -> Result<GidEntry, String> {
    if let Some(index) = wanted {
        let entry = table.iter().find(|entry| entry.index == index);
        let is_usable = |entry: &&GidEntry| rank(fabric, entry).is_some();
        return entry.copied().filter(|entry| is_usable(&entry)).ok_or_else(|| {
            format!("gid_index {index} is no address of this port; there are: {}", show(table))
        });
    }
    let usable = table.iter().filter_map(|entry| Some((rank(fabric, entry)?, entry)));
    let best = usable.min_by_key(|(rank, entry)| (*rank, entry.index));
    best.map(|(_, entry)| *entry)
        .ok_or_else(|| format!("the port has no address to use; there are: {}", show(table)))
}

/// The table in a line.
fn show(table: &[GidEntry]) -> String {
    let mut text = String::new();
    for entry in table {
        let kind = match entry.kind {
            GidKind::InfiniBand => "IB",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        };
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{comma}{}: {} ({kind})", entry.index, Ipv6Addr::from(entry.gid));
    }
    if text.is_empty() { "none".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use GidKind::{RoceV1, RoceV2};

    use super::*;

    fn table(entries: &[(&str, GidKind)]) -> Vec<GidEntry> {
        let entry = |(index, (address, kind)): (usize, &(&str, GidKind))| {
            let address: Ipv6Addr = address.parse().unwrap();
            GidEntry { index: index as u32, gid: address.octets(), kind: *kind }
        };
        entries.iter().enumerate().map(entry).collect()
    }

    #[test]
    fn b085_the_address_that_reaches_farthest_is_chosen() {
        let chosen = |entries: &[_]| choose(Fabric::Ethernet, &table(entries), None).unwrap().index;
        let mapped = "::ffff:10.14.1.72";
        assert_eq!(
            chosen(&[("fe80::1", RoceV1), ("fe80::1", RoceV2), (mapped, RoceV1), (mapped, RoceV2)]),
            3
        );
        assert_eq!(chosen(&[("fe80::1", RoceV2), ("fd93::5", RoceV2)]), 1);
        assert_eq!(chosen(&[("fe80::1", RoceV2), (mapped, RoceV1)]), 0);
        assert_eq!(chosen(&[("::ffff:169.254.3.4", RoceV2), ("fd93::5", RoceV2)]), 1);
        assert_eq!(chosen(&[(mapped, RoceV2), (mapped, RoceV2)]), 0);
        let mut far = table(&[("fe80::1", RoceV2), (mapped, RoceV2)]);
        far[1].index = 256;
        assert_eq!(choose(Fabric::Ethernet, &far, None).unwrap().index, 0);
        let error = choose(Fabric::Ethernet, &[], None).unwrap_err();
        assert_eq!(error, "the port has no address to use; there are: none");
    }

    #[test]
    fn b085_an_index_is_obeyed_or_refused_with_the_table() {
        let table = table(&[("fe80::1", RoceV2), ("::ffff:10.0.0.1", RoceV2), ("::", RoceV2)]);
        assert_eq!(choose(Fabric::Ethernet, &table, Some(0)).unwrap().index, 0);
        for index in [2, 3] {
            let error = choose(Fabric::Ethernet, &table, Some(index)).unwrap_err();
            let expected = format!("gid_index {index} is no address of this port");
            assert!(error.starts_with(&expected), "{error}");
            assert!(error.contains("1: ::ffff:10.0.0.1 (RoCE v2)"), "{error}");
        }
    }

    #[test]
    fn an_infiniband_port_uses_its_first_address() {
        let mut table = table(&[("fe80::1", RoceV2), ("fec0::1", RoceV2)]);
        for entry in &mut table {
            entry.kind = GidKind::InfiniBand;
        }
        assert_eq!(choose(Fabric::InfiniBand, &table, None).unwrap().index, 0);
    }
}
