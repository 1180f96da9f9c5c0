//! What a rank publishes about itself, and its bytes on the wire.
//!
//! Format 1, little-endian: the format byte, then the fields of [`RankDescriptor`] in the order in
//! which they are declared. The device, the native library and every transport are sections with
//! their own length. A later version may append fields to the whole and to each section; this one
//! reads what it knows, keeps the rest, and writes it back unchanged, so that ranks of both versions
//! hold the same bytes and the same hash.

use iccl_plugin_api::MemoryKind;
use iccl_wire::{Reader, Writer};
use semver::Version;

use super::abilities::NativeAbilities;
use super::codec::{
    DecodeError, check_limit, read_number, read_rest, read_section, read_text, unknown,
    write_number, write_section, write_text,
};
use super::host::HostKey;
use super::pci::PciAddress;

/// The longest name (of a host, a vendor, a plugin, a fabric), in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// The longest address that a transport may publish.
pub const MAX_ADDRESS_BYTES: usize = 256;
/// The most transports that one rank may publish.
pub const MAX_TRANSPORTS: usize = 16;
/// The most fabrics that one transport may be attached to.
pub const MAX_FABRICS: usize = 8;
/// The longest encoded descriptor. A usual one (host device, TCP and shared memory) takes less
/// than 256 bytes.
pub const MAX_DESCRIPTOR_BYTES: usize = 8192;

const FORMAT: u8 = 1;

/// What one rank tells every other rank before there is a plan. Facts only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankDescriptor {
    /// The rank in the job, from 0.
    pub rank: u32,
    /// The version of iccl's own wire formats; ranks with different ones cannot work together.
    pub wire_version: u32,
    /// The version of iccl.
    pub iccl_version: Version,
    /// The host that the rank runs on.
    pub host: HostFacts,
    /// The process id, as the rank itself sees it.
    pub pid: u32,
    /// Digest of the settings that all ranks have to agree on (`plan::agreed_digest`).
    pub agreed_digest: u64,
    /// The device that the rank works with.
    pub device: DeviceFacts,
    /// The native collective library that serves this device, if one does.
    pub native_library: Option<NativeLibrary>,
    /// The transports that the rank has, at most [`MAX_TRANSPORTS`], one entry per name.
    pub transports: Vec<TransportFacts>,
    /// Fields of a later version, kept so that the descriptor can be passed on unchanged.
    pub later_fields: Vec<u8>,
}

/// The host of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// Equal keys mean the same host.
    pub key: HostKey,
    /// The name that messages use; says nothing about identity.
    pub name: String,
    /// The NUMA node that the rank's device (or the rank) is nearest to, where known.
    pub numa_node: Option<u16>,
}

/// The device of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Who made it: `host`, `nvidia`, `ascend`, …
    pub vendor: String,
    /// The device plugin's name.
    pub plugin: String,
    /// The device plugin's version.
    pub plugin_version: Version,
    /// The index that the plugin gives the device on its host.
    pub index: u32,
    /// Its PCI address, where it has one.
    pub pci: Option<PciAddress>,
    /// The kinds of memory that buffers on it may have: a mask of [`MemoryKind::mask`].
    pub memory_kinds: u32,
    /// Fields of a later version.
    pub later_fields: Vec<u8>,
}

impl DeviceFacts {
    /// Whether the device has memory of its own, apart from the host's.
    pub fn has_device_memory(&self) -> bool {
        self.memory_kinds & MemoryKind::Device.mask() != 0
    }
}

/// A native collective library, such as a vendor's, that can serve several ranks at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeLibrary {
    /// Name and version; ranks of one vendor with equal ids can be served together.
    pub id: String,
    /// How far one group of the library reaches: a mask of [`reach`].
    pub reach: u32,
    /// What it can do.
    pub abilities: NativeAbilities,
    /// Whether the rank's process does not use it on this device any more: it did not come to rest once.
    pub is_given_up: bool,
    /// Fields of a later version.
    pub later_fields: Vec<u8>,
}

/// One transport of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportFacts {
    /// The transport's name: `tcp`, `shm`, …
    pub name: String,
    /// The plugin's version.
    pub plugin_version: Version,
    /// The ABI that the plugin was built for, major and minor.
    pub abi: (u16, u16),
    /// Whether this rank is willing and able to use it.
    pub state: TransportState,
    /// How far it reaches: a mask of [`reach`].
    pub reach: u32,
    /// The kinds of memory that it reads and writes by itself: a mask of [`MemoryKind::mask`].
    pub memory_kinds: u32,
    /// What the plugin says a small message takes one way, in nanoseconds; 0: it does not say.
    pub latency_ns: u32,
    /// What the plugin says one channel carries, in bytes per microsecond; 0: it does not say.
    pub bytes_per_us: u32,
    /// The fabrics that it is attached to (an RDMA subnet, an address family, a namespace). Two
    /// ranks reach each other over a fabric that both name; an empty list means any.
    pub fabrics: Vec<String>,
    /// Where it listens, in the transport's own words; at most [`MAX_ADDRESS_BYTES`].
    pub address: Vec<u8>,
    /// Fields of a later version.
    pub later_fields: Vec<u8>,
}

/// Whether a rank may use a transport that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum TransportState {
    /// It may.
    Active,
    /// Its configuration switches it off.
    Disabled,
    /// It failed before and is not to be used again.
    Quarantined,
    /// A state of a later version of iccl. Not usable.
    Other(u8),
}

impl TransportState {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Active => 0,
            Self::Disabled => 1,
            Self::Quarantined => 2,
            Self::Other(code) => code,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Active,
            1 => Self::Disabled,
            2 => Self::Quarantined,
            other => Self::Other(other),
        }
    }
}

/// How far a transport or a native library reaches, and by what means: bits of a mask. Bits of a
/// later version are kept and serve nothing.
pub mod reach {
    pub use iccl_plugin_api::tables::reach::{FABRIC, OTHER_HOSTS, SAME_HOST};
}

impl RankDescriptor {
    /// The descriptor as bytes.
    ///
    /// # Errors
    /// Names the field that does not fit.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        let mut out = Writer::new();
        out.u8(FORMAT);
        write_number(&mut out, self.rank);
        write_number(&mut out, self.wire_version);
        write_version(&mut out, "iccl version", &self.iccl_version)?;
        out.raw(&self.host.key.0);
        write_text(&mut out, "host name", MAX_NAME_BYTES, &self.host.name)?;
        // No machine has 65,535 NUMA nodes, so that number stands for "not known".
        out.u16(self.host.numa_node.unwrap_or(u16::MAX));
        write_number(&mut out, self.pid);
        out.u64(self.agreed_digest);
        write_section(&mut out, "device", self.device.encode()?)?;
        out.u8(u8::from(self.native_library.is_some()));
        if let Some(library) = &self.native_library {
            write_section(&mut out, "native library", library.encode()?)?;
        }
        check_limit("transports", self.transports.len(), MAX_TRANSPORTS)?;
        check_names(&self.transports)?;
        out.u8(self.transports.len() as u8);
        for transport in &self.transports {
            write_section(&mut out, "transport", transport.encode()?)?;
        }
        out.raw(&self.later_fields);
        let bytes = out.finish();
        check_limit("descriptor", bytes.len(), MAX_DESCRIPTOR_BYTES)?;
        Ok(bytes)
    }

    /// Reads a descriptor. Fields that a later version appended are kept, not understood.
    ///
    /// # Errors
    /// Names the field that is cut short, too long, or not what it should be.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        check_limit("descriptor", bytes.len(), MAX_DESCRIPTOR_BYTES)?;
        let mut input = Reader::new(bytes);
        let format = input.u8("descriptor format")?;
        if format != FORMAT {
            return Err(DecodeError::Format {
                what: "rank descriptor",
                found: format,
                expected: FORMAT,
            });
        }
        let rank = read_number(&mut input, "rank")?;
        let wire_version = read_number(&mut input, "wire version")?;
        let iccl_version = read_version(&mut input, "iccl version")?;
        let host = HostFacts {
            key: HostKey(input.array("host key")?),
            name: read_text(&mut input, "host name", MAX_NAME_BYTES)?,
            numa_node: Some(input.u16("NUMA node")?).filter(|node| *node != u16::MAX),
        };
        let pid = read_number(&mut input, "pid")?;
        let agreed_digest = input.u64("digest of agreed settings")?;
        let device = DeviceFacts::decode(read_section(&mut input, "device")?)?;
        let native_library = match input.u8("native library")? {
            0 => None,
            1 => Some(NativeLibrary::decode(read_section(&mut input, "native library")?)?),
            value => return Err(unknown("native library", value)),
        };
        let count = usize::from(input.u8("transports")?);
        check_limit("transports", count, MAX_TRANSPORTS)?;
        let transports: Vec<_> = (0..count)
            .map(|_| TransportFacts::decode(read_section(&mut input, "transport")?))
            .collect::<Result<_, _>>()?;
        check_names(&transports)?;
        Ok(Self {
            rank,
            wire_version,
            iccl_version,
            host,
            pid,
            agreed_digest,
            device,
            native_library,
            transports,
            later_fields: read_rest(input)?,
        })
    }

    /// The transport with this name.
    pub fn transport(&self, name: &str) -> Option<&TransportFacts> {
        self.transports.iter().find(|transport| transport.name == name)
    }
}

impl DeviceFacts {
    fn encode(&self) -> Result<Writer, DecodeError> {
        let mut out = Writer::new();
        write_text(&mut out, "vendor", MAX_NAME_BYTES, &self.vendor)?;
        write_text(&mut out, "device plugin", MAX_NAME_BYTES, &self.plugin)?;
        write_version(&mut out, "device plugin version", &self.plugin_version)?;
        write_number(&mut out, self.index);
        out.u8(u8::from(self.pci.is_some()));
        if let Some(pci) = self.pci {
            write_number(&mut out, pci.domain);
            out.raw(&[pci.bus, pci.device, pci.function]);
        }
        write_number(&mut out, self.memory_kinds);
        out.raw(&self.later_fields);
        Ok(out)
    }

    fn decode(mut input: Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            vendor: read_text(&mut input, "vendor", MAX_NAME_BYTES)?,
            plugin: read_text(&mut input, "device plugin", MAX_NAME_BYTES)?,
            plugin_version: read_version(&mut input, "device plugin version")?,
            index: read_number(&mut input, "device index")?,
            pci: match input.u8("PCI address")? {
                0 => None,
                1 => Some(PciAddress {
                    domain: read_number(&mut input, "PCI domain")?,
                    bus: input.u8("PCI bus")?,
                    device: input.u8("PCI device")?,
                    function: input.u8("PCI function")?,
                }),
                value => return Err(unknown("PCI address", value)),
            },
            memory_kinds: read_number(&mut input, "device memory kinds")?,
            later_fields: read_rest(input)?,
        })
    }
}

impl NativeLibrary {
    fn encode(&self) -> Result<Writer, DecodeError> {
        let mut out = Writer::new();
        write_text(&mut out, "native library id", MAX_NAME_BYTES, &self.id)?;
        write_number(&mut out, self.reach);
        self.abilities.encode(&mut out)?;
        out.u8(u8::from(self.is_given_up));
        out.raw(&self.later_fields);
        Ok(out)
    }

    fn decode(mut input: Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: read_text(&mut input, "native library id", MAX_NAME_BYTES)?,
            reach: read_number(&mut input, "native library reach")?,
            abilities: NativeAbilities::decode(&mut input)?,
            is_given_up: match input.u8("whether the native library is given up")? {
                0 => false,
                1 => true,
                value => return Err(unknown("whether the native library is given up", value)),
            },
            later_fields: read_rest(input)?,
        })
    }
}

impl TransportFacts {
    fn encode(&self) -> Result<Writer, DecodeError> {
        let mut out = Writer::new();
        write_text(&mut out, "transport name", MAX_NAME_BYTES, &self.name)?;
        write_version(&mut out, "transport plugin version", &self.plugin_version)?;
        out.u16(self.abi.0);
        out.u16(self.abi.1);
        out.u8(self.state.code());
        write_number(&mut out, self.reach);
        for number in [self.memory_kinds, self.latency_ns, self.bytes_per_us] {
            write_number(&mut out, number);
        }
        check_limit("fabrics", self.fabrics.len(), MAX_FABRICS)?;
        out.u8(self.fabrics.len() as u8);
        for fabric in &self.fabrics {
            write_text(&mut out, "fabric", MAX_NAME_BYTES, fabric)?;
        }
        check_limit("transport address", self.address.len(), MAX_ADDRESS_BYTES)?;
        out.u16(self.address.len() as u16).raw(&self.address);
        out.raw(&self.later_fields);
        Ok(out)
    }

    fn decode(mut input: Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            name: read_text(&mut input, "transport name", MAX_NAME_BYTES)?,
            plugin_version: read_version(&mut input, "transport plugin version")?,
            abi: (input.u16("ABI major")?, input.u16("ABI minor")?),
            state: TransportState::from_code(input.u8("transport state")?),
            reach: read_number(&mut input, "transport reach")?,
            memory_kinds: read_number(&mut input, "transport memory kinds")?,
            latency_ns: read_number(&mut input, "transport latency")?,
            bytes_per_us: read_number(&mut input, "transport bandwidth")?,
            fabrics: {
                let count = usize::from(input.u8("fabrics")?);
                check_limit("fabrics", count, MAX_FABRICS)?;
                (0..count)
                    .map(|_| read_text(&mut input, "fabric", MAX_NAME_BYTES))
                    .collect::<Result<_, _>>()?
            },
            address: {
                let length = usize::from(input.u16("transport address")?);
                check_limit("transport address", length, MAX_ADDRESS_BYTES)?;
                input.raw("transport address", length)?.to_vec()
            },
            later_fields: read_rest(input)?,
        })
    }
}

fn check_names(transports: &[TransportFacts]) -> Result<(), DecodeError> {
    let mut names = std::collections::BTreeSet::new();
    match transports.iter().find(|transport| !names.insert(&transport.name)) {
        Some(twice) => Err(DecodeError::Repeated { field: "transport", name: twice.name.clone() }),
        None => Ok(()),
    }
}

fn write_version(
    out: &mut Writer,
    field: &'static str,
    version: &Version,
) -> Result<(), DecodeError> {
    write_text(out, field, MAX_NAME_BYTES, &version.to_string())
}

fn read_version(input: &mut Reader<'_>, field: &'static str) -> Result<Version, DecodeError> {
    let text = read_text(input, field, MAX_NAME_BYTES)?;
    Version::parse(&text).map_err(|_| DecodeError::NotVersion { field })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A library that moves everything, and reduces floats and integers differently.
    fn abilities() -> NativeAbilities {
        use iccl_plugin_api::tables::CollectiveSupport;
        use iccl_plugin_api::{Collective, DataType, RedOp};
        let floats = [DataType::F16, DataType::Bf16, DataType::F32, DataType::F64];
        let integers = [DataType::I8, DataType::U8, DataType::I32, DataType::U64];
        let mut support = Vec::new();
        for collective in Collective::ALL {
            if collective.reduces() {
                let ops = [RedOp::Sum, RedOp::Prod, RedOp::Avg];
                support.push(CollectiveSupport::new(*collective, &floats, &ops));
                let ops = [RedOp::Sum, RedOp::Prod, RedOp::Min, RedOp::Max];
                support.push(CollectiveSupport::new(*collective, &integers, &ops));
            } else {
                support.push(CollectiveSupport::new(*collective, DataType::ALL, &[]));
            }
        }
        NativeAbilities::new(20, &support)
    }

    /// What a rank on a host with the two transports of the first release publishes.
    fn usual() -> RankDescriptor {
        let transport = |name: &str, reach, address: &[u8]| TransportFacts {
            name: name.to_owned(),
            plugin_version: Version::new(0, 1, 0),
            abi: (1, 0),
            state: TransportState::Active,
            reach,
            memory_kinds: MemoryKind::Host.mask() | MemoryKind::PinnedHost.mask(),
            latency_ns: 3_000,
            bytes_per_us: 12_000,
            fabrics: Vec::new(),
            address: address.to_vec(),
            later_fields: Vec::new(),
        };
        RankDescriptor {
            rank: 3,
            wire_version: 1,
            iccl_version: Version::new(0, 1, 0),
            host: HostFacts {
                key: HostKey([7; 16]),
                name: "node-0017.rack-04.cluster".to_owned(),
                numa_node: Some(1),
            },
            pid: 123_456,
            agreed_digest: 0x0123_4567_89ab_cdef,
            device: DeviceFacts {
                vendor: "host".to_owned(),
                plugin: "host".to_owned(),
                plugin_version: Version::new(0, 1, 0),
                index: 0,
                pci: Some("0000:3b:00.0".parse().unwrap()),
                memory_kinds: MemoryKind::Host.mask(),
                later_fields: Vec::new(),
            },
            native_library: Some(NativeLibrary {
                id: "host 0.1.0".to_owned(),
                reach: reach::SAME_HOST,
                abilities: abilities(),
                is_given_up: true,
                later_fields: Vec::new(),
            }),
            transports: vec![
                // Two IPv6 addresses with port and length; an abstract socket's name of 128 bits.
                transport("tcp", reach::SAME_HOST | reach::OTHER_HOSTS, &[9; 38]),
                transport("shm", reach::SAME_HOST, &[8; 32]),
            ],
            later_fields: Vec::new(),
        }
    }

    #[test]
    fn a_usual_descriptor_takes_at_most_256_bytes() {
        let length = usual().encode().unwrap().len();
        assert!(length <= 256, "{length} bytes");
    }

    #[test]
    fn what_was_written_is_read_back() {
        let mut descriptor = usual();
        assert_eq!(RankDescriptor::decode(&descriptor.encode().unwrap()).unwrap(), descriptor);
        descriptor.host.numa_node = None;
        descriptor.device.pci = None;
        descriptor.native_library = None;
        descriptor.transports[0].fabrics = vec!["ip4".to_owned(), "ip6".to_owned()];
        descriptor.transports[1].state = TransportState::Disabled;
        assert_eq!(RankDescriptor::decode(&descriptor.encode().unwrap()).unwrap(), descriptor);
    }

    #[test]
    fn fields_and_values_of_a_later_version_survive_the_passage() {
        let mut descriptor = usual();
        descriptor.later_fields = vec![1, 2, 3];
        descriptor.device.later_fields = vec![4];
        descriptor.transports[0].later_fields = vec![5, 6];
        descriptor.transports[0].reach = 1 << 30;
        descriptor.transports[1].state = TransportState::Other(77);
        let bytes = descriptor.encode().unwrap();
        let read = RankDescriptor::decode(&bytes).unwrap();
        assert_eq!(read, descriptor);
        assert_eq!(read.encode().unwrap(), bytes);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let mut descriptor = usual();
        descriptor.transports[0].address = vec![0; MAX_ADDRESS_BYTES + 1];
        let error = descriptor.encode().unwrap_err();
        assert_eq!(error.to_string(), "transport address says 257, at most 256 are allowed");
        let mut descriptor = usual();
        descriptor.host.name = "two\nlines".to_owned();
        assert_eq!(
            descriptor.encode().unwrap_err(),
            DecodeError::ControlCharacters { field: "host name" }
        );
        let mut descriptor = usual();
        "tcp".clone_into(&mut descriptor.transports[1].name);
        assert_eq!(descriptor.encode().unwrap_err().to_string(), "transport tcp comes twice");
        let mut bytes = usual().encode().unwrap();
        let shm = bytes.windows(3).position(|three| three == b"shm").unwrap();
        bytes[shm..shm + 3].copy_from_slice(b"tcp");
        let error = RankDescriptor::decode(&bytes).unwrap_err().to_string();
        assert_eq!(error, "transport tcp comes twice");
        let mut bytes = usual().encode().unwrap();
        bytes[0] = 2;
        let error = RankDescriptor::decode(&bytes).unwrap_err().to_string();
        assert_eq!(error, "rank descriptor has format 2, this iccl reads format 1");
    }

    #[test]
    fn a_descriptor_cut_anywhere_is_refused() {
        let bytes = usual().encode().unwrap();
        for length in 0..bytes.len() {
            assert!(RankDescriptor::decode(&bytes[..length]).is_err(), "cut at {length}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused_and_what_is_read_is_written_back_the_same(
            noise in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..6),
        ) {
            let mut bytes = usual().encode().unwrap();
            let length = bytes.len();
            for (place, value) in noise {
                bytes[usize::from(place) % length] = value;
            }
            if let Ok(read) = RankDescriptor::decode(&bytes) {
                prop_assert_eq!(RankDescriptor::decode(&read.encode().unwrap()).unwrap(), read);
            }
        }
    }
}
