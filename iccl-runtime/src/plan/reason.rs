//! Why a link does not take a way: stable codes for machines, a sentence for people.

use std::fmt;

use super::rule::RuleRef;
use super::tier::{Side, Tier};

/// Why a candidate of a link was refused. The code and the order of its parameters never change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The ranks run on different hosts.
    NotSameHost,
    /// The devices are of different vendors.
    VendorsDiffer,
    /// The device has no memory of its own.
    NoDeviceMemory(Side),
    /// No transport for this tier is loaded there.
    PluginAbsent(Side),
    /// Configuration switches the transport off there.
    TransportDisabled(Side),
    /// The transport, or a device under it, failed before and is not used again.
    Quarantined(Side),
    /// The versions of the transport's plugin cannot work together.
    VersionIncompatible {
        /// The version on the sending side.
        src: String,
        /// The version on the receiving side.
        dst: String,
    },
    /// Both have the transport, and no fabric in common.
    NoCommonFabric,
    /// The transport does not work on the memory that the tier needs.
    MemoryKindUnsupported {
        /// Where.
        side: Side,
        /// The kind of memory that is needed.
        kind: &'static str,
    },
    /// The NIC cannot reach the memory of the device there.
    NoGdr(Side),
    /// Registering device memory with the NIC failed.
    RegisterFailed {
        /// Where.
        side: Side,
        /// The name of the system's error number, or what device or transport said.
        cause: String,
    },
    /// A connection was tried and failed.
    ConnectFailed {
        /// The system's error number.
        errno: i32,
    },
    /// Attaching the other process's memory was tried and failed.
    AttachFailed {
        /// The name of the system's error number, or the transport's words.
        cause: String,
    },
    /// A rule forbids it, or requires something else.
    DeniedByRule(RuleRef),
    /// Not refused, but a `prefer` rule put another way first.
    OutrankedByRule(RuleRef),
    /// Not refused, but slower than the chosen way by [`super::Cost::score_ns`].
    Slower {
        /// Its own score.
        score_ns: u64,
        /// The chosen way's.
        chosen_ns: u64,
    },
}

impl Reason {
    /// The stable code, in kebab case.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotSameHost => "not-same-host",
            Self::VendorsDiffer => "vendors-differ",
            Self::NoDeviceMemory(_) => "no-device-memory",
            Self::PluginAbsent(_) => "plugin-absent",
            Self::TransportDisabled(_) => "transport-disabled",
            Self::Quarantined(_) => "quarantined",
            Self::VersionIncompatible { .. } => "version-incompatible",
            Self::NoCommonFabric => "no-common-fabric",
            Self::MemoryKindUnsupported { .. } => "memory-kind-unsupported",
            Self::NoGdr(Side::Src) => "no-gdr-src",
            Self::NoGdr(Side::Dst) => "no-gdr-dst",
            Self::NoGdr(Side::Both) => "no-gdr-both",
            Self::RegisterFailed { .. } => "register-failed",
            Self::ConnectFailed { .. } => "connect-failed",
            Self::AttachFailed { .. } => "attach-failed",
            Self::DeniedByRule(_) => "denied-by-rule",
            Self::OutrankedByRule(_) => "outranked-by-rule",
            Self::Slower { .. } => "slower",
        }
    }

    /// The parameters, in the order in which the text shows them.
    pub fn parameters(&self) -> Vec<String> {
        match self {
            Self::NotSameHost | Self::VendorsDiffer | Self::NoCommonFabric | Self::NoGdr(_) => {
                Vec::new()
            }
            Self::NoDeviceMemory(side)
            | Self::PluginAbsent(side)
            | Self::TransportDisabled(side)
            | Self::Quarantined(side) => vec![side.to_string()],
            Self::VersionIncompatible { src, dst } => vec![src.clone(), dst.clone()],
            Self::MemoryKindUnsupported { side, kind } => {
                vec![side.to_string(), (*kind).to_owned()]
            }
            Self::RegisterFailed { side, cause } => vec![side.to_string(), cause.clone()],
            Self::ConnectFailed { errno } => vec![errno_name(*errno)],
            Self::AttachFailed { cause } => vec![cause.clone()],
            Self::DeniedByRule(rule) | Self::OutrankedByRule(rule) => vec![rule.to_string()],
            Self::Slower { score_ns, chosen_ns } => {
                vec![format!("{score_ns} ns"), format!("{chosen_ns} ns")]
            }
        }
    }

    /// The same seen from the other end of the link.
    #[must_use]
    pub fn flipped(&self) -> Self {
        let mut reason = self.clone();
        match &mut reason {
            Self::NoDeviceMemory(side)
            | Self::PluginAbsent(side)
            | Self::TransportDisabled(side)
            | Self::Quarantined(side)
            | Self::NoGdr(side)
            | Self::MemoryKindUnsupported { side, .. }
            | Self::RegisterFailed { side, .. } => *side = side.flipped(),
            Self::VersionIncompatible { src, dst } => std::mem::swap(src, dst),
            Self::NotSameHost
            | Self::VendorsDiffer
            | Self::NoCommonFabric
            | Self::ConnectFailed { .. }
            | Self::AttachFailed { .. }
            | Self::DeniedByRule(_)
            | Self::OutrankedByRule(_)
            | Self::Slower { .. } => {}
        }
        reason
    }

    /// A sentence that names the ranks it is about.
    pub fn explain(&self, what: &str, src: u32, dst: u32) -> String {
        match self {
            Self::NotSameHost => format!("ranks {src} and {dst} are on different hosts"),
            Self::VendorsDiffer => {
                format!("the devices of ranks {src} and {dst} are of different vendors")
            }
            Self::NoDeviceMemory(side) => {
                format!("the device of {} has no memory of its own", side.phrase(src, dst))
            }
            Self::PluginAbsent(side) => format!("no {what} transport on {}", side.phrase(src, dst)),
            Self::TransportDisabled(side) => {
                format!("{what} is switched off on {}", side.phrase(src, dst))
            }
            Self::Quarantined(side) => {
                format!("{what} failed before on {}", side.phrase(src, dst))
            }
            Self::VersionIncompatible { src: a, dst: b } => {
                format!("{what} is {a} on rank {src} and {b} on rank {dst}")
            }
            Self::NoCommonFabric => {
                format!("{what} of ranks {src} and {dst} is on different fabrics")
            }
            Self::MemoryKindUnsupported { side, kind } => {
                format!("{what} does not work on {kind} memory on {}", side.phrase(src, dst))
            }
            Self::NoGdr(side) => {
                format!("the NIC cannot reach device memory on {}", side.phrase(src, dst))
            }
            Self::RegisterFailed { side, cause } => {
                format!("registering device memory failed on {}: {cause}", side.phrase(src, dst))
            }
            Self::ConnectFailed { errno } => {
                format!("{what} could not connect: {}", errno_name(*errno))
            }
            Self::AttachFailed { cause } => format!("{what} could not attach: {cause}"),
            Self::DeniedByRule(rule) => format!("denied by the rule `{rule}`"),
            Self::OutrankedByRule(rule) => format!("the rule `{rule}` puts another way first"),
            Self::Slower { score_ns, chosen_ns } => {
                format!("{what} scores {score_ns} ns, the chosen way {chosen_ns} ns")
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())?;
        let parameters = self.parameters();
        if parameters.is_empty() { Ok(()) } else { write!(f, "({})", parameters.join(", ")) }
    }
}

/// A candidate that was refused, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Refusal {
    /// The tier.
    pub tier: Tier,
    /// The transport; `None` if no rank of the link has one for this tier.
    pub transport: Option<String>,
    /// Why.
    pub reason: Reason,
}

impl Refusal {
    /// The same seen from the other end of the link.
    #[must_use]
    pub fn flipped(&self) -> Self {
        Self { reason: self.reason.flipped(), ..self.clone() }
    }

    /// A sentence that names the ranks it is about.
    pub fn explain(&self, src: u32, dst: u32) -> String {
        let what = self.transport.as_deref().unwrap_or(self.tier.name());
        self.reason.explain(what, src, dst)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.tier.name())?;
        match &self.transport {
            Some(transport) if transport != self.tier.name() => write!(f, " over {transport}")?,
            _ => {}
        }
        write!(f, ": {}", self.reason)
    }
}

/// The errors that a transport meets, by the names that people search for. The numbers differ
/// between architectures only outside this list.
const ERRNO_NAMES: &[(i32, &str)] = &[
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::EIO, "EIO"),
    (libc::EBADF, "EBADF"),
    (libc::ENOMEM, "ENOMEM"),
    (libc::EACCES, "EACCES"),
    (libc::EFAULT, "EFAULT"),
    (libc::EBUSY, "EBUSY"),
    (libc::ENODEV, "ENODEV"),
    (libc::EINVAL, "EINVAL"),
    (libc::EMFILE, "EMFILE"),
    (libc::ENOSPC, "ENOSPC"),
    (libc::EPIPE, "EPIPE"),
    (libc::ENOSYS, "ENOSYS"),
    (libc::EPROTO, "EPROTO"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::EADDRNOTAVAIL, "EADDRNOTAVAIL"),
    (libc::ENETUNREACH, "ENETUNREACH"),
    (libc::ECONNABORTED, "ECONNABORTED"),
    (libc::ECONNRESET, "ECONNRESET"),
    (libc::ETIMEDOUT, "ETIMEDOUT"),
    (libc::ECONNREFUSED, "ECONNREFUSED"),
    (libc::EHOSTUNREACH, "EHOSTUNREACH"),
];

/// `ECONNREFUSED`, or `errno 12345`; 0 means that the system gave no number. Not the system's text,
/// which depends on a rank's C library and locale: all ranks print the same.
pub(super) fn errno_name(errno: i32) -> String {
    match ERRNO_NAMES.iter().find(|(number, _)| *number == errno) {
        Some((_, name)) => (*name).to_owned(),
        None if errno == 0 => "unknown".to_owned(),
        None => format!("errno {errno}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_reason() -> Vec<Reason> {
        let rule = RuleRef { text: "forbid shm between * and *".into(), origin: "f:1".into() };
        let mut reasons = vec![
            Reason::NotSameHost,
            Reason::VendorsDiffer,
            Reason::VersionIncompatible { src: "1.0.0".into(), dst: "2.0.0".into() },
            Reason::NoCommonFabric,
            Reason::ConnectFailed { errno: libc::ECONNREFUSED },
            Reason::AttachFailed { cause: "EMFILE".into() },
            Reason::DeniedByRule(rule.clone()),
            Reason::OutrankedByRule(rule),
            Reason::Slower { score_ns: 2, chosen_ns: 1 },
        ];
        for side in [Side::Src, Side::Dst, Side::Both] {
            reasons.extend([
                Reason::NoDeviceMemory(side),
                Reason::PluginAbsent(side),
                Reason::TransportDisabled(side),
                Reason::Quarantined(side),
                Reason::NoGdr(side),
                Reason::MemoryKindUnsupported { side, kind: "host" },
                Reason::RegisterFailed { side, cause: "EFAULT".to_owned() },
            ]);
        }
        reasons
    }

    #[test]
    fn every_code_is_on_the_page() {
        let page = include_str!("../../../docs/plan.md");
        for reason in every_reason() {
            assert!(page.contains(&format!("`{}`", reason.code())), "{reason}");
        }
    }

    #[test]
    fn flipping_twice_changes_nothing_and_flipping_once_names_the_other_rank() {
        for reason in every_reason() {
            assert_eq!(reason.flipped().flipped(), reason);
            assert_eq!(reason.explain("x", 3, 7).contains("rank 3"), {
                reason.flipped().explain("x", 7, 3).contains("rank 3")
            });
        }
        let reason = Reason::PluginAbsent(Side::Src);
        assert_eq!(reason.explain("shm", 3, 7), "no shm transport on rank 3");
        assert_eq!(reason.flipped().explain("shm", 3, 7), "no shm transport on rank 7");
    }

    #[test]
    fn the_text_is_the_code_with_its_parameters() {
        let text = |reason: Reason| reason.to_string();
        assert_eq!(text(Reason::NotSameHost), "not-same-host");
        assert_eq!(text(Reason::NoGdr(Side::Dst)), "no-gdr-dst");
        assert_eq!(text(Reason::ConnectFailed { errno: 111 }), "connect-failed(ECONNREFUSED)");
        let cause = "EMFILE".to_owned();
        assert_eq!(text(Reason::AttachFailed { cause }), "attach-failed(EMFILE)");
        let reason = Reason::RegisterFailed { side: Side::Src, cause: errno_name(12_345) };
        assert_eq!(text(reason), "register-failed(src, errno 12345)");
    }
}
