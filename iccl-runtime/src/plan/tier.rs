//! The ways a link can take.

use std::fmt;

use iccl_plugin_api::tables::region_form;
use serde::{Deserialize, Serialize};

/// A way between two ranks, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// A rank with itself: a copy on its own device.
    #[serde(rename = "self")]
    SelfCopy,
    /// Device memory of one vendor, mapped into the other process of the same host.
    Ipc,
    /// Memory that processes of one host share.
    Shm,
    /// The NICs read and write device memory on both sides.
    Direct,
    /// RDMA with pinned host memory between the device and the NIC, on one side or both.
    Staged,
    /// Host memory and the kernel's sockets.
    Tcp,
}

impl Tier {
    /// Every tier, best first.
    pub const ALL: [Self; 6] =
        [Self::SelfCopy, Self::Ipc, Self::Shm, Self::Direct, Self::Staged, Self::Tcp];

    /// The name in configuration, commands and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SelfCopy => "self",
            Self::Ipc => "ipc",
            Self::Shm => "shm",
            Self::Direct => "direct",
            Self::Staged => "staged",
            Self::Tcp => "tcp",
        }
    }

    /// The tier with this name, or `None`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.name() == name)
    }

    /// The transport that serves this tier in a usual installation, to name when there is none.
    pub(super) const fn usual_transport(self) -> Option<&'static str> {
        match self {
            Self::Shm => Some("shm"),
            Self::Tcp => Some("tcp"),
            Self::SelfCopy | Self::Ipc | Self::Direct | Self::Staged => None,
        }
    }

    /// A number for canonical encodings; never changes.
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::SelfCopy => 0,
            Self::Ipc => 1,
            Self::Shm => 2,
            Self::Direct => 3,
            Self::Staged => 4,
            Self::Tcp => 5,
        }
    }

    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.code() == code)
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How the bytes of one side of a link get between its device and the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// The transport reads and writes the rank's buffers where they are.
    Direct,
    /// The runtime copies through host memory that the transport can use.
    Staged,
}

impl Access {
    /// The name in commands and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Staged => "staged",
        }
    }
}

/// A form in which device memory is given to a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RegionForm {
    /// An address that the NIC's driver understands (peer memory).
    Address,
    /// A dma-buf.
    DmaBuf,
    /// An address of the host's that aliases the device's memory.
    HostAlias,
}

impl RegionForm {
    const ALL: [Self; 3] = [Self::Address, Self::DmaBuf, Self::HostAlias];

    /// The name in commands and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::DmaBuf => "dma-buf",
            Self::HostAlias => "host-alias",
        }
    }

    /// The form with this bit in the plugin ABI, or `None`.
    pub fn from_bit(bit: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|form| u32::from(form.code()) == bit)
    }

    /// The number in the plugin ABI, and in canonical encodings; never changes.
    pub(super) const fn code(self) -> u8 {
        let bit = match self {
            Self::Address => region_form::ADDRESS,
            Self::DmaBuf => region_form::DMA_BUF,
            Self::HostAlias => region_form::HOST_ALIAS,
        };
        bit as u8
    }

    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::from_bit(u32::from(code))
    }
}

/// Which end of a link a reason speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The sending rank.
    Src,
    /// The receiving rank.
    Dst,
    /// Both.
    Both,
}

impl Side {
    /// `src`, `dst` or `both`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Src => "src",
            Self::Dst => "dst",
            Self::Both => "both",
        }
    }

    /// The side on which something holds, given whether it does on each.
    pub(super) const fn of(src: bool, dst: bool) -> Option<Self> {
        match (src, dst) {
            (true, true) => Some(Self::Both),
            (true, false) => Some(Self::Src),
            (false, true) => Some(Self::Dst),
            (false, false) => None,
        }
    }

    /// The same seen from the other end.
    #[must_use]
    pub const fn flipped(self) -> Self {
        match self {
            Self::Src => Self::Dst,
            Self::Dst => Self::Src,
            Self::Both => Self::Both,
        }
    }

    /// The ranks it means on a link.
    pub fn phrase(self, src: u32, dst: u32) -> String {
        match self {
            Self::Src => format!("rank {src}"),
            Self::Dst => format!("rank {dst}"),
            Self::Both => format!("ranks {src} and {dst}"),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
