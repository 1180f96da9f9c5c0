//! Hosts, devices, transports and islands of all ranks, as facts.
//!
//! What lives here: what a rank publishes about itself ([`RankDescriptor`]), how a host is told
//! from another ([`HostIdentity`]), how far two devices of one host are apart ([`PciTree`]), and
//! the map of the job that follows from all descriptors ([`Topology`]).
//!
//! What may not: a decision. Which way a link takes is for `plan`.

mod abilities;
pub(crate) mod codec;
mod descriptor;
mod host;
mod map;
mod pci;
mod ranks;

pub use abilities::{MAX_ABILITIES, NativeAbilities};
pub use codec::DecodeError;
pub use descriptor::{
    DeviceFacts, HostFacts, MAX_ADDRESS_BYTES, MAX_DESCRIPTOR_BYTES, MAX_FABRICS, MAX_NAME_BYTES,
    MAX_TRANSPORTS, NativeLibrary, RankDescriptor, TransportFacts, TransportState, reach,
};
pub use host::{HostIdentity, HostKey, HostSource};
pub(crate) use map::in_rank_order;
pub use map::{Host, Island, Topology, TopologyError};
pub use pci::{PciAddress, PciDistance, PciTree};
pub use ranks::RankSet;
