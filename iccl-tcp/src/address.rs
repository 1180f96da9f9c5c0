//! Where a domain listens, and the bytes by which its peers find it.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};

/// The form of the address bytes.
const FORMAT: u8 = 1;

/// Most addresses of one domain; keeps the bytes below 128.
const MAXIMUM_ADDRESSES: usize = 5;

/// Format, count, then for each address: family (4 or 6), port, the address itself. The scope of a
/// link-local address is not sent: each host numbers its interfaces as it likes.
pub(crate) fn encode(addresses: &[SocketAddr]) -> Vec<u8> {
    let addresses = &addresses[..addresses.len().min(MAXIMUM_ADDRESSES)];
    let mut bytes = vec![FORMAT, addresses.len() as u8];
    for address in addresses {
        bytes.push(if address.is_ipv4() { 4 } else { 6 });
        bytes.extend_from_slice(&address.port().to_le_bytes());
        match address.ip() {
            IpAddr::V4(ip) => bytes.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes.extend_from_slice(&ip.octets()),
        }
    }
    bytes
}

/// What `encode` made; `here` lends its scope to link-local addresses.
///
/// # Errors
/// `InvalidArgument` if the bytes make no sense.
pub(crate) fn decode(bytes: &[u8], here: SocketAddr) -> PluginResult<Vec<SocketAddr>> {
    parse(bytes, here).ok_or_else(|| {
        PluginError::invalid(format!("{} bytes that are no TCP address", bytes.len()))
    })
}

fn parse(bytes: &[u8], here: SocketAddr) -> Option<Vec<SocketAddr>> {
    let (&[format, count], mut rest) = bytes.split_first_chunk::<2>()?;
    if format != FORMAT || count == 0 || usize::from(count) > MAXIMUM_ADDRESSES {
        return None;
    }
    let mut addresses = Vec::new();
    for _ in 0..count {
        let (&[family, low, high], after) = rest.split_first_chunk::<3>()?;
        let port = u16::from_le_bytes([low, high]);
        let address;
        (address, rest) = match family {
            4 => {
                let (&octets, after) = after.split_first_chunk::<4>()?;
                (SocketAddr::from((Ipv4Addr::from(octets), port)), after)
            }
            6 => {
                let (&octets, after) = after.split_first_chunk::<16>()?;
                let ip = Ipv6Addr::from(octets);
                let scope = match here {
                    SocketAddr::V6(here) if ip.is_unicast_link_local() => here.scope_id(),
                    _ => 0,
                };
                (SocketAddrV6::new(ip, port, 0, scope).into(), after)
            }
            _ => return None,
        };
        if port == 0 || address.ip().is_unspecified() {
            return None;
        }
        addresses.push(address);
    }
    rest.is_empty().then_some(addresses)
}

/// The address to connect from, so that what leaves uses the chosen interface; `None` lets the
/// kernel choose where the two cannot be combined.
pub(crate) fn source_for(here: SocketAddr, peer: SocketAddr) -> Option<SocketAddr> {
    let fits =
        here.is_ipv4() == peer.is_ipv4() && here.ip().is_loopback() == peer.ip().is_loopback();
    fits.then_some(here)
}

/// Where to listen, with port 0. `interface` is an address, an interface's name, or empty to
/// choose: loopback if all ranks are on this host, else the first address that others can reach.
/// Never the unspecified address.
///
/// # Errors
/// `InvalidArgument` naming the interface and what there is.
pub(crate) fn choose(interface: &str, is_one_host: bool) -> PluginResult<SocketAddr> {
    if interface.is_empty() {
        if is_one_host {
            return Ok((Ipv4Addr::LOCALHOST, 0).into());
        }
        return Ok(first_routable(&interfaces()?));
    }
    let (text, scope) = interface.split_once('%').unwrap_or((interface, ""));
    if let Ok(ip) = text.parse::<IpAddr>() {
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(PluginError::invalid(format!(
                "interface {interface}: iccl listens on one interface, never on all"
            )));
        }
        return match ip {
            IpAddr::V4(ip) => Ok((ip, 0).into()),
            IpAddr::V6(ip) => Ok(SocketAddrV6::new(ip, 0, 0, scope_id(scope)?).into()),
        };
    }
    let all = interfaces()?;
    let named: Vec<_> = all.iter().filter(|candidate| candidate.name == interface).collect();
    named.iter().min_by_key(|candidate| rank(candidate.address.ip())).map_or_else(
        || {
            let mut names: Vec<_> = all.iter().map(|candidate| candidate.name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            Err(PluginError::invalid(format!(
                "interface {interface}: not an address, and no interface with an address has this \
                 name; there are {}",
                names.join(", ")
            )))
        },
        |candidate| Ok(candidate.address),
    )
}

fn scope_id(scope: &str) -> PluginResult<u32> {
    if scope.is_empty() {
        return Ok(0);
    }
    if let Ok(number) = scope.parse() {
        return Ok(number);
    }
    let unknown = || PluginError::invalid(format!("there is no interface {scope}"));
    let name = std::ffi::CString::new(scope).map_err(|_| unknown())?;
    // SAFETY: the name is terminated and lives through the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(unknown()),
        index => Ok(index),
    }
}

/// An address of an interface that is up.
#[derive(Debug, Clone)]
struct Interface {
    name: String,
    address: SocketAddr,
}

/// Smaller is better reachable.
fn rank(ip: IpAddr) -> u32 {
    match ip {
        ip if ip.is_loopback() => 9,
        IpAddr::V4(ip) if ip.is_link_local() => 3,
        IpAddr::V6(ip) if ip.is_unicast_link_local() => 4,
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) => 1,
    }
}

/// The first of the best; addresses of container bridges are on every host and reach none.
fn first_routable(all: &[Interface]) -> SocketAddr {
    let is_bridge = |name: &str| {
        ["docker", "br-", "virbr", "veth", "cni", "flannel", "cali"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    all.iter()
        .min_by_key(|candidate| {
            let ip = candidate.address.ip();
            (ip.is_loopback(), is_bridge(&candidate.name), rank(ip))
        })
        .map_or_else(|| (Ipv4Addr::LOCALHOST, 0).into(), |candidate| candidate.address)
}

fn interfaces() -> PluginResult<Vec<Interface>> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call writes the head of a list that is freed below.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        let error = io::Error::last_os_error();
        return Err(PluginError::system(Status::TransportError, "getifaddrs", &error));
    }
    let mut all = Vec::new();
    let mut next = head;
    while !next.is_null() {
        // SAFETY: `next` is an element of the list, which is not freed yet.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: the address of an element is valid as long as the list.
        let Some(address) = (unsafe { socket_address(entry.ifa_addr) }) else { continue };
        // SAFETY: the name of an element is a terminated string.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        all.push(Interface { name, address });
    }
    // SAFETY: `head` came from `getifaddrs` and nothing borrowed from it is left.
    unsafe { libc::freeifaddrs(head) };
    Ok(all)
}

/// # Safety
/// `address` points to a socket address whose family says its size.
unsafe fn socket_address(address: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: every socket address begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that it is one of these; it may be unaligned.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some((Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()), 0).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, 0, 0, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn v4(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_come_back_and_link_local_ones_get_the_readers_scope() {
        let here = SocketAddrV6::new("fe80::1".parse().unwrap(), 1, 0, 7).into();
        let sent = SocketAddrV6::new("fe80::2".parse().unwrap(), 5, 0, 3).into();
        let seen: SocketAddr = SocketAddrV6::new("fe80::2".parse().unwrap(), 5, 0, 7).into();
        let bytes = encode(&[v4("10.1.2.3:77"), sent]);
        assert_eq!(decode(&bytes, here).unwrap(), [v4("10.1.2.3:77"), seen]);
        assert!(encode(&[sent; MAXIMUM_ADDRESSES]).len() <= 128);
    }

    #[test]
    fn b063_the_unspecified_address_is_refused() {
        for text in ["0.0.0.0", "::", "224.0.0.1"] {
            let error = choose(text, false).unwrap_err();
            assert!(error.message.contains("never on all"), "{error}");
        }
    }

    #[test]
    fn an_interface_is_found_by_name_and_an_unknown_one_is_named() {
        assert!(choose("lo", false).unwrap().ip().is_loopback());
        let error = choose("nic77", false).unwrap_err();
        assert!(error.message.contains("nic77") && error.message.contains("lo"), "{error}");
        assert_eq!(choose("", true).unwrap(), v4("127.0.0.1:0"));
        assert!(!choose("", false).unwrap().ip().is_unspecified());
    }

    #[test]
    fn the_first_address_that_others_reach_is_preferred() {
        let interface = |name: &str, ip: &str| Interface {
            name: name.to_owned(),
            address: SocketAddr::new(ip.parse().unwrap(), 0),
        };
        let all = [
            interface("lo", "127.0.0.1"),
            interface("docker0", "172.17.0.1"),
            interface("eth0", "fe80::1"),
            interface("eth0", "10.0.0.5"),
            interface("eth1", "10.1.0.5"),
        ];
        assert_eq!(first_routable(&all), v4("10.0.0.5:0"));
        assert_eq!(first_routable(&all[..2]), v4("172.17.0.1:0"));
        assert_eq!(first_routable(&all[..1]), v4("127.0.0.1:0"));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_an_address_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..130),
        ) {
            let here = v4("127.0.0.1:1");
            if let Ok(addresses) = decode(&bytes, here) {
                prop_assert_eq!(encode(&addresses), bytes);
            }
        }
    }
}
