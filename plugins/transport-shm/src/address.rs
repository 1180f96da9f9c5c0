//! The bytes by which peers reach a domain: the random name of its socket, and what tells a dialer
//! why it cannot reach it.

use std::os::linux::fs::MetadataExt;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_wire::{FieldError, Reader, Writer};
use rustix::net::SocketAddrUnix;

const VERSION: u8 = 1;

/// A domain's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    name: [u8; 16],
    place: Place,
}

/// Where a process is. Only used to explain a failed connection, never to refuse one: a container
/// may hide either number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// The kernel's id of this boot, zero if it is hidden.
    boot: [u8; 16],
    /// The network namespace, zero if it is hidden.
    network: u64,
}

impl Place {
    fn here() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .ok()
            .and_then(|text| {
                u128::from_str_radix(&text.trim().replace('-', ""), 16).ok().map(u128::to_be_bytes)
            })
            .unwrap_or_default();
        // The thread's, not the process's: that is where sockets are made.
        let network =
            std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |namespace| namespace.st_ino());
        Self { boot, network }
    }
}

impl Address {
    /// An address that nobody can guess.
    pub(crate) fn generate() -> PluginResult<Self> {
        let mut name = [0; 16];
        let mut filled = 0;
        while filled < name.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            match rustix::rand::getrandom(&mut name[filled..], flags) {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => {
                    return Err(PluginError::system(
                        Status::TransportError,
                        "getrandom",
                        &errno.into(),
                    ));
                }
            }
        }
        Ok(Self { name, place: Place::here() })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u8(VERSION).raw(&self.name).raw(&self.place.boot).u64(self.place.network);
        writer.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> PluginResult<Self> {
        let read = || -> Result<Self, FieldError> {
            let mut reader = Reader::new(bytes);
            let version = reader.u8("version")?;
            if version != VERSION {
                let value = u64::from(version);
                return Err(FieldError::Unknown { field: "version", value });
            }
            let name = reader.array("name")?;
            let place = Place { boot: reader.array("boot")?, network: reader.u64("network")? };
            reader.finish()?;
            Ok(Self { name, place })
        };
        read().map_err(|error| PluginError::invalid(format!("not an address of shm: {error}")))
    }

    /// The name of the socket, which exists in its network namespace and on no disk.
    pub(crate) fn socket_address(&self) -> PluginResult<SocketAddrUnix> {
        let name = format!("iccl-{:032x}", u128::from_be_bytes(self.name));
        SocketAddrUnix::new_abstract_name(name.as_bytes())
            .map_err(|errno| PluginError::invalid(format!("socket name {name}: {errno}")))
    }

    /// The likely reason why a connection to this address was refused.
    pub(crate) fn why_unreachable(&self) -> &'static str {
        self.why_unreachable_from(Place::here())
    }

    fn why_unreachable_from(&self, here: Place) -> &'static str {
        let there = self.place;
        if there.boot != here.boot && there.boot != [0; 16] && here.boot != [0; 16] {
            "it is on another host"
        } else if there.network != here.network && there.network != 0 && here.network != 0 {
            "it is in another network namespace"
        } else {
            "it does not listen any more, or is in another network namespace"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_journey_and_nonsense_is_refused() {
        let address = Address::generate().unwrap();
        let bytes = address.encode();
        assert!(bytes.len() <= 256);
        assert_eq!(Address::decode(&bytes).unwrap(), address);
        assert_ne!(Address::generate().unwrap().name, address.name);
        for wrong in
            [&bytes[..bytes.len() - 1], &[bytes.as_slice(), &[0]].concat(), &[], b"10.0.0.1:80"]
        {
            assert_eq!(Address::decode(wrong).unwrap_err().status, Status::InvalidArgument);
        }
        let mut other_version = bytes;
        other_version[0] = 2;
        assert!(Address::decode(&other_version).is_err());
    }

    #[test]
    fn the_reason_names_what_differs() {
        let there = Address { name: [0; 16], place: Place { boot: [1; 16], network: 5 } };
        let why = |boot, network| there.why_unreachable_from(Place { boot: [boot; 16], network });
        assert!(why(2, 5).contains("another host"));
        assert!(why(1, 6).starts_with("it is in another network namespace"));
        assert!(why(1, 5).contains("does not listen"));
        assert!(why(0, 5).contains("does not listen"));
    }
}
