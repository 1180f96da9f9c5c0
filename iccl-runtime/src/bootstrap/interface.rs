//! Which network interface a job uses: by name, by address, or the best there is. Addresses as
//! people write them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use crate::limits::system_error;
use crate::{Error, ErrorKind, Result};

/// One address of one network interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The kernel's name, such as `eth0`.
    pub name: String,
    /// One of its addresses.
    pub ip: IpAddr,
    /// The kernel's number of the interface: the scope of a link-local IPv6 address.
    pub index: u32,
    /// Whether it is up.
    pub is_up: bool,
}

/// Which interface to use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum InterfaceChoice {
    /// Loopback if all ranks are known to be on this host, otherwise the first that other hosts
    /// can reach.
    #[default]
    Auto,
    /// The one with exactly this name.
    Name(String),
    /// The one that has this address.
    Address(IpAddr),
}

impl InterfaceChoice {
    /// Reads a setting: empty or `auto`, an address, or a name.
    ///
    /// # Errors
    ///
    /// `InvalidConfig`: a link-local address. It says nothing without its interface: name that.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.is_empty() || text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        match text.trim_start_matches('[').trim_end_matches(']').parse() {
            Ok(ip) if is_link_local(ip) => Err(Error::new(
                ErrorKind::InvalidConfig,
                format!("interface: {text} is a link-local address"),
            )
            .with_hint("give the interface's name instead")),
            Ok(ip) => Ok(Self::Address(ip)),
            Err(_) => Ok(Self::Name(text.to_owned())),
        }
    }
}

impl fmt::Display for InterfaceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Name(name) => f.write_str(name),
            Self::Address(ip) => write!(f, "{ip}"),
        }
    }
}

/// Every address of every interface of this host, in the kernel's order.
///
/// # Errors
///
/// `TransportError`: the kernel does not list them; `OutOfResources`.
pub fn interfaces() -> Result<Vec<Interface>> {
    let listed = if_addrs::get_if_addrs().map_err(|error| {
        let text = "interfaces: the kernel does not list them";
        system_error(ErrorKind::TransportError, text, error)
    })?;
    Ok(listed
        .into_iter()
        .map(|interface| Interface {
            is_up: interface.is_oper_up() || interface.is_loopback(),
            ip: interface.ip(),
            index: interface.index.unwrap_or(0),
            name: interface.name,
        })
        .collect())
}

/// The address to listen on. Never an unspecified one (`0.0.0.0`, `::`). `is_one_host`: every rank
/// is known to be on this host.
///
/// # Errors
///
/// `InvalidConfig`: there is no such interface or address, or none that fits; all are listed.
pub fn choose(
    available: &[Interface],
    choice: &InterfaceChoice,
    is_one_host: bool,
) -> Result<SocketAddr> {
    let found = match choice {
        InterfaceChoice::Name(name) => best(available.iter().filter(|i| i.name == *name), |i| {
            // Whoever names an interface may get its link-local address, but only for want of
            // another.
            Some((is_link_local(i.ip), i.ip.is_ipv6()))
        }),
        InterfaceChoice::Address(ip) if ip.is_unspecified() => None,
        InterfaceChoice::Address(ip) => available.iter().find(|i| i.ip == *ip),
        InterfaceChoice::Auto => best(available.iter(), |i| {
            let is_loopback = i.ip.is_loopback();
            let is_usable = i.is_up && !is_link_local(i.ip) && is_loopback == is_one_host;
            is_usable.then(|| (is_virtual(&i.name), i.ip.is_ipv6()))
        }),
    };
    let found = found.ok_or_else(|| {
        let what = match choice {
            InterfaceChoice::Auto if is_one_host => "no loopback interface is up".into(),
            InterfaceChoice::Auto => "none is up that other hosts can reach".into(),
            InterfaceChoice::Name(name) => format!("there is none named \"{name}\""),
            InterfaceChoice::Address(ip) => format!("none has the address {ip}"),
        };
        Error::new(ErrorKind::InvalidConfig, format!("interface: {what}"))
            .with("interfaces", list(available))
    })?;
    Ok(found.socket_address(0))
}

impl Interface {
    /// This address with a port, scoped where it has to be.
    pub fn socket_address(&self, port: u16) -> SocketAddr {
        let mut address = SocketAddr::new(self.ip, port);
        if let SocketAddr::V6(v6) = &mut address
            && is_link_local(self.ip)
        {
            v6.set_scope_id(self.index);
        }
        address
    }
}

/// The first of those with the smallest key; those without a key do not count.
fn best<'a, K: Ord>(
    candidates: impl Iterator<Item = &'a Interface>,
    key: impl Fn(&Interface) -> Option<K>,
) -> Option<&'a Interface> {
    candidates.filter_map(|i| key(i).map(|key| (key, i))).min_by(|a, b| a.0.cmp(&b.0)).map(|b| b.1)
}

/// `lo 127.0.0.1, eth0 10.0.0.5 (down)`.
fn list(available: &[Interface]) -> String {
    let entries = available.iter().map(|interface| {
        let state = if interface.is_up { "" } else { " (down)" };
        format!("{} {}{state}", interface.name, interface.ip)
    });
    entries.collect::<Vec<_>>().join(", ")
}

/// Whether an address means something only on its own link.
pub fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Interfaces that containers and virtual machines leave on a host: their addresses exist on many
/// hosts at once, so they come last.
fn is_virtual(name: &str) -> bool {
    const PREFIXES: [&str; 10] =
        ["docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "tunl", "podman", "lxc"];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// A host and a port as people write them: `10.0.0.1:29500`, `[::1]:29500`, `node0:29500`,
/// `[fe80::1%eth0]:29500`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// A name, or an address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl HostPort {
    /// Reads `host:port`.
    ///
    /// # Errors
    ///
    /// `InvalidConfig`: no port, port 0, an IPv6 address without brackets, a link-local address
    /// without its scope, an unspecified address.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let invalid = |why: &str| {
            Error::new(ErrorKind::InvalidConfig, format!("address \"{text}\": {why}"))
                .with_hint("write host:port, such as 10.0.0.1:29500 or [::1]:29500")
        };
        if text.parse::<Ipv6Addr>().is_ok() {
            return Err(invalid("an IPv6 address needs brackets and a port"));
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| invalid("the port is missing"))?;
        let port = match port.parse() {
            Ok(0) | Err(_) => return Err(invalid("the port must be a number from 1 to 65535")),
            Ok(port) => port,
        };
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if bracketed.is_none() && (host.contains(':') || host.contains('[')) {
            return Err(invalid("an IPv6 address needs brackets"));
        }
        Self::new(bracketed.unwrap_or(host), port)
    }

    /// A host and a port that come apart, as in `MASTER_ADDR` and `MASTER_PORT`.
    ///
    /// # Errors
    ///
    /// `InvalidConfig`: no host, or an address that cannot be reached as it stands.
    pub fn new(host: &str, port: u16) -> Result<Self> {
        let host = host.trim().trim_start_matches('[').trim_end_matches(']');
        let invalid =
            |why: &str| Error::new(ErrorKind::InvalidConfig, format!("address \"{host}\": {why}"));
        if host.is_empty() {
            return Err(invalid("the host is missing"));
        }
        if let Ok(ip) = host.parse::<IpAddr>() {
            if ip.is_unspecified() {
                return Err(invalid("stands for every interface; give the one to be reached"));
            }
            if ip.is_ipv6() && is_link_local(ip) {
                return Err(invalid("a link-local address needs its scope")
                    .with_hint(format!("write [{host}%eth0]:port with the interface's name")));
            }
        }
        Ok(Self { host: host.to_owned(), port })
    }

    /// Whether the host is written as a loopback address or `localhost`.
    pub fn is_literal_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// Asks the resolver, IPv4 first. The answer may change: ask again before each attempt.
    ///
    /// # Errors
    ///
    /// The resolver's.
    pub fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        if let Some((address, scope)) = self.host.split_once('%')
            && let Ok(ip) = address.parse::<Ipv6Addr>()
        {
            let index = scope.parse().ok().or_else(|| interface_index(scope));
            let index = index.ok_or_else(|| {
                let message = format!("there is no interface named \"{scope}\"");
                std::io::Error::new(std::io::ErrorKind::NotFound, message)
            })?;
            return Ok(vec![std::net::SocketAddrV6::new(ip, self.port, 0, index).into()]);
        }
        let mut addresses: Vec<_> = (self.host.as_str(), self.port).to_socket_addrs()?.collect();
        addresses.sort_by_key(SocketAddr::is_ipv6);
        addresses.dedup();
        Ok(addresses)
    }
}

fn interface_index(name: &str) -> Option<u32> {
    interfaces().ok()?.into_iter().find(|i| i.name == name).map(|i| i.index)
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The loopback address of the family that this host has.
pub(super) fn loopback(available: &[Interface]) -> IpAddr {
    let v4 = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let has = |ip| available.iter().any(|i| i.ip == ip);
    if !has(v4) && has(IpAddr::V6(Ipv6Addr::LOCALHOST)) {
        return IpAddr::V6(Ipv6Addr::LOCALHOST);
    }
    v4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, ip: &str, index: u32) -> Interface {
        Interface { name: name.into(), ip: ip.parse().unwrap(), index, is_up: true }
    }

    fn host() -> Vec<Interface> {
        let mut down = interface("eth9", "192.168.9.1", 9);
        down.is_up = false;
        vec![
            interface("lo", "127.0.0.1", 1),
            interface("lo", "::1", 1),
            down,
            interface("docker0", "172.17.0.1", 2),
            interface("bond0.2093", "10.20.0.1", 3),
            interface("bond0", "fe80::1", 4),
            interface("bond0", "fd00::4", 4),
            interface("bond0", "10.0.0.4", 4),
        ]
    }

    fn chosen(choice: &InterfaceChoice, is_one_host: bool) -> String {
        choose(&host(), choice, is_one_host).unwrap().ip().to_string()
    }

    #[test]
    fn b054_auto_takes_loopback_for_one_host_and_never_for_several() {
        assert_eq!(chosen(&InterfaceChoice::Auto, true), "127.0.0.1");
        assert_eq!(chosen(&InterfaceChoice::Auto, false), "10.20.0.1");
        let only_lo = &host()[..2];
        let error = choose(only_lo, &InterfaceChoice::Auto, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("lo 127.0.0.1, lo ::1"), "{error}");
    }

    #[test]
    fn b054_names_match_exactly_and_an_unknown_one_lists_all() {
        let name = |name: &str| InterfaceChoice::Name(name.into());
        assert_eq!(chosen(&name("bond0"), false), "10.0.0.4");
        assert_eq!(chosen(&name("bond0.2093"), true), "10.20.0.1");
        for unknown in ["nosuch0", "bond", "bond0.2", "BOND0"] {
            let error = choose(&host(), &name(unknown), false).unwrap_err().to_string();
            assert!(error.contains(unknown) && error.contains("bond0.2093 10.20.0.1"), "{error}");
            assert!(error.contains("eth9 192.168.9.1 (down)"), "{error}");
        }
    }

    #[test]
    fn docker_bridges_come_last_but_count() {
        let available = &host()[..4];
        let chosen = choose(available, &InterfaceChoice::Auto, false).unwrap();
        assert_eq!(chosen.ip().to_string(), "172.17.0.1");
    }

    #[test]
    fn b056_link_local_is_never_chosen_automatically() {
        let available = [interface("eth0", "fe80::1", 7), interface("eth1", "169.254.3.1", 8)];
        assert!(choose(&available, &InterfaceChoice::Auto, false).is_err());
        // By name it may, and it comes with its scope.
        let chosen = choose(&available, &InterfaceChoice::Name("eth0".into()), false).unwrap();
        assert_eq!(chosen, "[fe80::1%7]:0".parse().unwrap());
    }

    #[test]
    fn b063_every_interface_at_once_cannot_be_chosen() {
        for all in ["0.0.0.0", "::"] {
            let choice = InterfaceChoice::parse(all).unwrap();
            assert!(choose(&host(), &choice, true).is_err());
            assert!(HostPort::new(all, 1).is_err());
        }
    }

    #[test]
    fn choices_are_read_as_people_write_them() {
        let parse = |text| InterfaceChoice::parse(text).unwrap();
        assert_eq!(parse(""), InterfaceChoice::Auto);
        assert_eq!(parse("Auto"), InterfaceChoice::Auto);
        assert_eq!(parse("eth0"), InterfaceChoice::Name("eth0".into()));
        assert_eq!(parse("10.0.0.4"), InterfaceChoice::Address("10.0.0.4".parse().unwrap()));
        assert_eq!(parse("[::1]"), InterfaceChoice::Address("::1".parse().unwrap()));
        assert!(InterfaceChoice::parse("fe80::1").is_err());
        assert_eq!(chosen(&parse("fd00::4"), false), "fd00::4");
        assert!(choose(&host(), &parse("10.0.0.5"), false).is_err());
    }

    #[test]
    fn b056_addresses_are_read_as_people_write_them() {
        for (text, host, port) in [
            ("127.0.0.1:29500", "127.0.0.1", 29500),
            ("[::1]:29500", "::1", 29500),
            ("node0.cluster:1", "node0.cluster", 1),
            ("[fe80::1%lo]:5", "fe80::1%lo", 5),
        ] {
            let parsed = HostPort::parse(text).unwrap();
            assert_eq!((parsed.host.as_str(), parsed.port), (host, port));
            assert_eq!(parsed.to_string(), text);
        }
        for text in [
            "fe80::1",
            "[fe80::1]:5",
            "::1",
            "host",
            "host:",
            "host:0",
            "host:65536",
            ":5",
            "a:b:5",
        ] {
            let error = HostPort::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{text}");
        }
        let error = HostPort::parse("[fe80::1]:5").unwrap_err().to_string();
        assert!(error.contains("scope"), "{error}");
    }

    #[test]
    fn addresses_resolve_with_their_scope() {
        let resolved = HostPort::parse("[::1]:7").unwrap().resolve().unwrap();
        assert_eq!(resolved, ["[::1]:7".parse().unwrap()]);
        let resolved = HostPort::parse("[fe80::1%lo]:5").unwrap().resolve().unwrap();
        let index = interface_index("lo").unwrap();
        assert_eq!(resolved, [format!("[fe80::1%{index}]:5").parse().unwrap()]);
        assert!(HostPort::parse("[fe80::1%nosuch0]:5").unwrap().resolve().is_err());
    }

    #[test]
    fn this_host_has_a_loopback() {
        let available = interfaces().unwrap();
        assert!(available.iter().any(|i| i.ip.is_loopback() && i.is_up));
        assert!(loopback(&available).is_loopback());
    }
}
