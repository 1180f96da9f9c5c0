//! Where a job meets, and what its ranks prove to each other there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use iccl_wire::Key;
use sha2::{Digest, Sha256};

use super::interface::{HostPort, InterfaceChoice, choose, interfaces};
use super::lineage::Child;
use super::net::Endpoint;
use super::unique_id::UniqueId;
use crate::lock::lock;
use crate::{Error, ErrorKind, Result};

/// Where a job meets.
#[derive(Clone, Debug)]
pub enum Rendezvous {
    /// At the service behind a unique id.
    UniqueId(UniqueId),
    /// At an address that the launcher or the configuration names; rank 0 listens there.
    Address(Meeting),
    /// On this host, over a local socket that only processes of this user can use. `job` tells jobs
    /// apart.
    LocalSocket {
        /// The launcher's number of the job, or whatever else all its ranks know.
        job: String,
    },
    /// Wherever the file says: rank 0 writes a unique id into it, the others wait for that. The file
    /// lies where every rank can read it, and each job has its own.
    File(PathBuf),
    /// At the first of those ranks of a job that form another; see [`Lineage::child`].
    ///
    /// [`Lineage::child`]: super::Lineage::child
    Child(Child),
    /// The job has one rank: there is nobody to meet.
    Alone,
}

/// Where to try to reach the root, and what to prove there.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) endpoint: Endpoint,
    pub(super) key: Key,
    /// Tells jobs apart; not a secret.
    pub(super) job: Vec<u8>,
}

/// An address to meet at.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// The host's name or address.
    pub host: String,
    /// Ports in the order in which they are tried. Rank 0 takes the first that is free.
    pub ports: Vec<u16>,
    /// Tells jobs and their restarts apart; not a secret.
    pub job: String,
    /// The job secret. Without one, whoever knows `job` can join: weak, said once when the address
    /// is not loopback.
    pub secret: Option<Key>,
}

impl Rendezvous {
    /// Where to look for the root, asked anew for each attempt.
    pub(super) fn targets(&self, is_one_host: bool) -> std::io::Result<Vec<Target>> {
        let of_id = |id: &UniqueId| Target {
            endpoint: Endpoint::Tcp(id.address()),
            key: id.secret().clone(),
            job: id.job().to_vec(),
        };
        match self {
            Self::UniqueId(id) => Ok(vec![of_id(id)]),
            Self::File(path) => Ok(vec![of_id(&read_id(path)?)]),
            Self::Address(meeting) => {
                let endpoints = meeting.endpoints(is_one_host)?.into_iter();
                Ok(endpoints.map(|endpoint| meeting.target(endpoint)).collect())
            }
            Self::LocalSocket { job } => Ok(vec![local_target(job)]),
            Self::Child(child) => Ok(vec![child.target().map_err(std::io::Error::other)?]),
            Self::Alone => Ok(Vec::new()),
        }
    }
}

impl Rendezvous {
    /// The ranks of a job that form another, if it is one of those.
    pub(super) fn child(&self) -> Option<&Child> {
        match self {
            Self::Child(child) => Some(child),
            _ => None,
        }
    }

    /// The rank that the root runs on. A unique id's runs wherever that was made.
    pub(super) fn root_rank(&self) -> Option<u32> {
        match self {
            Self::UniqueId(_) | Self::Alone => None,
            Self::Child(child) => Some(child.first()),
            Self::Address(_) | Self::LocalSocket { .. } | Self::File(_) => Some(0),
        }
    }

    /// An error of a new job's ranks, as told to those who made it out of an old one: the culprit is
    /// named by its rank there.
    pub(crate) fn in_old_ranks(&self, error: Error) -> Error {
        let Some(child) = self.child() else { return error };
        let Some(new) = error.rank() else { return error };
        let Some(old) = child.members.get(new as usize).copied() else { return error };
        if old == new {
            return error;
        }
        error.with_rank(old).with("new_ranks", format!("rank {new} there is rank {old} here"))
    }
}

impl std::fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UniqueId(id) => write!(f, "{}", id.address()),
            Self::Address(meeting) => {
                let ports: Vec<_> = meeting.ports.iter().map(ToString::to_string).collect();
                write!(f, "{}:{}", meeting.host, ports.join("|"))
            }
            Self::LocalSocket { job } => write!(f, "{}", local_socket(job)),
            Self::File(path) => write!(f, "the address in {}", path.display()),
            Self::Child(child) => match child.address_of(child.first()) {
                Some(address) => write!(f, "{address}"),
                None => f.write_str("an unknown address"),
            },
            Self::Alone => f.write_str("nowhere"),
        }
    }
}

impl Meeting {
    pub(super) fn target(&self, endpoint: Endpoint) -> Target {
        let job = self.job.as_bytes();
        let key = match &self.secret {
            Some(secret) => secret.derive("iccl job", job),
            None => Key::from_material("iccl job without a secret", job),
        };
        Target { endpoint, key, job: job.to_vec() }
    }

    /// Whether strangers can reach `endpoint` and need no secret to join.
    pub(super) fn is_weak_at(&self, endpoint: &Endpoint) -> bool {
        let is_reachable = match endpoint {
            Endpoint::Tcp(address) => !address.ip().is_loopback(),
            Endpoint::Local(_) => false,
        };
        is_reachable && self.secret.is_none()
    }

    /// The addresses, the same on rank 0, which listens on one of them, and on the others, which try
    /// them all. A host name that means loopback here (Debian maps the host's own name to 127.0.1.1)
    /// stands for the address that other hosts see, unless all ranks are here.
    fn endpoints(&self, is_one_host: bool) -> std::io::Result<Vec<Endpoint>> {
        let to_io = |error: Error| std::io::Error::other(error.to_string());
        let mut found = Vec::new();
        for port in &self.ports {
            let host = HostPort::new(&self.host, *port).map_err(to_io)?;
            let mut addresses = host.resolve()?;
            if !is_one_host && !host.is_literal_loopback() {
                addresses.retain(|address| !address.ip().is_loopback());
                if addresses.is_empty() {
                    let mut own =
                        choose(&interfaces().map_err(to_io)?, &InterfaceChoice::Auto, false)
                            .map_err(to_io)?;
                    own.set_port(*port);
                    addresses.push(own);
                }
            }
            found.extend(addresses.into_iter().map(Endpoint::Tcp));
        }
        Ok(found)
    }

    /// The endpoints that rank 0 may listen on: those whose address is this host's, or all of them
    /// if none is, so that the error names them.
    pub(super) fn own_endpoints(&self, is_one_host: bool) -> Result<Vec<Endpoint>> {
        let found = self.endpoints(is_one_host).map_err(|error| {
            let message = format!("bootstrap: the root's address {} is of no use", self.host);
            Error::new(ErrorKind::InvalidConfig, message).with_source(error)
        })?;
        let own: BTreeSet<_> = interfaces()?.into_iter().map(|interface| interface.ip).collect();
        let is_own = |endpoint: &Endpoint| match endpoint {
            Endpoint::Tcp(address) => own.contains(&address.ip()) || address.ip().is_loopback(),
            Endpoint::Local(_) => true,
        };
        if found.iter().any(is_own) {
            return Ok(found.into_iter().filter(is_own).collect());
        }
        Ok(found)
    }
}

/// The local socket of `job`. What is proved there is no secret: the kernel says that the other side
/// belongs to the same user, and the root hands out a random key.
pub(super) fn local_target(job: &str) -> Target {
    Target {
        endpoint: local_socket(job),
        key: Key::from_material("iccl job on a local socket", job.as_bytes()),
        job: job.as_bytes().to_vec(),
    }
}

fn read_id(path: &Path) -> std::io::Result<UniqueId> {
    let content = super::secret::read_private(path)?;
    UniqueId::from_text(&String::from_utf8_lossy(&content))
        .map_err(|error| std::io::Error::other(error.to_string()))
}

/// The name of the socket on which the ranks of `job` of this user meet.
fn local_socket(job: &str) -> Endpoint {
    let digest = Sha256::digest(job.as_bytes());
    let mut number = [0; 16];
    number.copy_from_slice(&digest[..16]);
    let (user, number) = (rustix::process::geteuid().as_raw(), u128::from_be_bytes(number));
    Endpoint::Local(format!("iccl-{user}-{number:032x}"))
}

/// Three ports that everyone who knows `job` derives alike, in `range`, begun at `base`. Used where
/// a launcher names a port that is or will be taken by somebody else (the store of
/// `torch.distributed` on `MASTER_PORT`), or none at all.
pub(super) fn derived_ports(base: u16, job: &str) -> Vec<u16> {
    const LOWEST: u32 = 1024;
    const PORTS: u32 = 65536 - LOWEST;
    let digest = Sha256::digest(format!("iccl port {job}").as_bytes());
    let offset = u32::from(u16::from_le_bytes([digest[0], digest[1]])) % 500;
    let port = |attempt: u32| {
        let distance = u32::from(base).saturating_sub(LOWEST) + 1 + offset + attempt * 501;
        (LOWEST + distance % PORTS) as u16
    };
    (0..3).map(port).collect()
}

/// Unique ids that this process has joined with, by job and rank.
static USED: Mutex<BTreeSet<([u8; 16], u32)>> = Mutex::new(BTreeSet::new());

/// Notes that `rank` joins with `id` from this process.
///
/// # Errors
///
/// `InvalidArgument`: it has done so before.
pub(super) fn use_once(id: &UniqueId, rank: u32) -> Result<()> {
    let mut used = lock(&USED);
    if used.insert((id.job(), rank)) {
        return Ok(());
    }
    let message = format!("bootstrap: rank {rank} has used this unique id before ({id})");
    Err(Error::new(ErrorKind::InvalidArgument, message)
        .with_rank(rank)
        .with_hint("a unique id serves one job: generate another"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_ports_avoid_the_base_and_differ_by_job() {
        for base in [0, 80, 1024, 29500, 65535] {
            let ports = derived_ports(base, "job/0");
            assert_eq!(ports, derived_ports(base, "job/0"));
            assert!(ports.iter().all(|port| *port >= 1024 && *port != base), "{base}: {ports:?}");
            assert_eq!(BTreeSet::from_iter(&ports).len(), 3);
            assert_ne!(ports, derived_ports(base, "job/1"));
        }
    }

    #[test]
    fn a_key_depends_on_secret_and_job() {
        let meeting = |job: &str, secret: Option<u8>| {
            let secret = secret.map(|byte| Key::from_bytes([byte; 32]));
            let host = "localhost".into();
            let meeting = Meeting { host, ports: vec![1], job: job.into(), secret };
            meeting.target(Endpoint::Tcp("127.0.0.1:1".parse().unwrap())).key
        };
        assert_eq!(meeting("a", Some(1)), meeting("a", Some(1)));
        assert_ne!(meeting("a", Some(1)), meeting("b", Some(1)));
        assert_ne!(meeting("a", Some(1)), meeting("a", Some(2)));
        assert_ne!(meeting("a", None), meeting("b", None));
    }

    #[test]
    fn a_name_that_means_loopback_here_is_not_published_to_other_hosts() {
        let meeting =
            Meeting { host: "127.0.1.1".into(), ports: vec![9], job: String::new(), secret: None };
        // Written as such, it is what was asked for.
        let written = meeting.endpoints(false).unwrap();
        assert_eq!(written, [Endpoint::Tcp("127.0.1.1:9".parse().unwrap())]);
        let named = Meeting { host: "localhost".into(), ..meeting };
        let found = named.endpoints(true).unwrap();
        assert!(found.iter().all(|e| matches!(e, Endpoint::Tcp(a) if a.ip().is_loopback())));
    }

    #[test]
    fn b064_no_secret_is_weak_where_others_can_reach() {
        let endpoint = |text: &str| Endpoint::Tcp(text.parse().unwrap());
        let mut meeting =
            Meeting { host: "node0".into(), ports: vec![9], job: String::new(), secret: None };
        assert!(meeting.is_weak_at(&endpoint("10.0.0.1:9")));
        assert!(!meeting.is_weak_at(&endpoint("127.0.0.1:9")));
        assert!(!meeting.is_weak_at(&local_socket("job")));
        meeting.secret = Some(Key::from_bytes([1; 32]));
        assert!(!meeting.is_weak_at(&endpoint("10.0.0.1:9")));
    }
}
