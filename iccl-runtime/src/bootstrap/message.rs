//! What ranks, root and neighbours in the tree say to each other once they have proved themselves.
//! Every parser checks every length and refuses what it does not know.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use iccl_wire::{FieldError, Key, Reader, Writer};

use crate::{Error, ErrorKind};

/// The most that a rank may contribute to the table of descriptors or to one all-gather.
pub const CONTRIBUTION_LIMIT_BYTES: usize = 64 * 1024;

/// The longest frame between a rank and the root.
pub(super) const ROOT_FRAME_LIMIT_BYTES: usize = 4 * 1024;

const TEXT_LIMIT_BYTES: usize = 1024;
const NAME_LIMIT_BYTES: usize = 256;

/// The longest frame on an edge of the tree: a table with a full contribution of every rank.
pub(super) fn tree_frame_limit_bytes(world_size: u32) -> usize {
    (world_size as usize)
        .saturating_mul(CONTRIBUTION_LIMIT_BYTES + 4)
        .saturating_add(4 * TEXT_LIMIT_BYTES)
        .min(u32::MAX as usize)
}

/// How many ranks that have no part in a new job are named in one message.
pub(super) const LEFT_OUT_LIMIT: usize = 256;

/// Why a job cannot go on, told by one rank to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) kind: ErrorKind,
    pub(super) rank: Option<u32>,
    pub(super) message: String,
    /// Where ranks did not agree on who is left out of a new job: those that any of them leaves out.
    pub(super) left_out: Vec<u32>,
}

impl Failure {
    pub(super) fn new(kind: ErrorKind, rank: Option<u32>, message: impl Into<String>) -> Self {
        Self { kind, rank, message: message.into(), left_out: Vec::new() }
    }

    pub(super) fn to_error(&self) -> Error {
        let error = Error::new(self.kind, self.message.clone());
        match self.rank {
            Some(rank) => error.with_rank(rank),
            None => error,
        }
    }

    fn write(&self, writer: &mut Writer) {
        writer.str(self.kind.name());
        write_rank(writer, self.rank);
        writer.str(shorten(&self.message));
        write_ranks(writer, &self.left_out);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, FieldError> {
        let kind = reader.str("failure kind", NAME_LIMIT_BYTES)?;
        Ok(Self {
            // A kind that only a later version knows is still a failure.
            kind: KINDS
                .into_iter()
                .find(|known| known.name() == kind)
                .unwrap_or(ErrorKind::Internal),
            rank: read_rank(reader)?,
            message: reader.str("failure message", TEXT_LIMIT_BYTES)?.to_owned(),
            left_out: read_ranks(reader)?,
        })
    }
}

/// The kinds that may travel.
const KINDS: [ErrorKind; 21] = [
    ErrorKind::InvalidArgument,
    ErrorKind::InvalidUsage,
    ErrorKind::InvalidConfig,
    ErrorKind::PluginMissing,
    ErrorKind::PluginPanic,
    ErrorKind::NotSupported,
    ErrorKind::DeviceError,
    ErrorKind::TransportError,
    ErrorKind::Timeout,
    ErrorKind::PeerLost,
    ErrorKind::Mismatch,
    ErrorKind::Aborted,
    ErrorKind::Authentication,
    ErrorKind::VersionMismatch,
    ErrorKind::Rendezvous,
    ErrorKind::PlanUnsatisfiable,
    ErrorKind::PlanDiverged,
    ErrorKind::ConcurrentUse,
    ErrorKind::Forked,
    ErrorKind::OutOfResources,
    ErrorKind::Internal,
];

/// A failure of a communicator, flooded to every rank of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The communicator that failed; 0 when the whole process is meant, as when a rank is lost.
    pub communicator: u64,
    /// The rank that noticed.
    pub origin: u32,
    /// The rank that is to blame, where it is known.
    pub culprit: Option<u32>,
    /// What happened.
    pub kind: ErrorKind,
    /// One line that says what failed and where; at most 1 KiB of it travels.
    pub message: String,
}

impl Notice {
    /// The error that operations of the communicator end with.
    pub fn to_error(&self) -> Error {
        Failure::new(self.kind, self.culprit, self.message.clone())
            .to_error()
            .with("noticed_by", self.origin)
    }
}

/// Rank to root: who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckIn {
    pub(super) rank: u32,
    pub(super) world_size: u32,
    /// Tells the same process coming again from another one that claims the same rank.
    pub(super) instance: u64,
    pub(super) protocol_version: u32,
    pub(super) software: String,
    /// Host and process, for messages.
    pub(super) process: String,
    /// How long the root may wait for the others before it must say that they are missing.
    pub(super) patience_milliseconds: u32,
    /// Where this rank listens; `None` if it is alone.
    pub(super) listener: Option<SocketAddr>,
    /// What the rank was asked to do, where ranks of one job form another; else empty.
    pub(super) call: String,
    /// Who has no part in that; at most [`LEFT_OUT_LIMIT`].
    pub(super) left_out: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToRoot {
    CheckIn(CheckIn),
    /// All edges of the tree stand; the root is not needed any more.
    Wired,
    /// The rank cannot go on, and why.
    Failed(Failure),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FromRoot {
    /// The check-in has arrived; wait.
    Welcome,
    /// Everyone is there.
    Assigned {
        /// Where the parent in the tree listens; `None` for rank 0.
        parent: Option<SocketAddr>,
        /// The job's key, where the rendezvous had none that was worth the name.
        key: Option<Key>,
    },
    Failed(Failure),
}

/// Between neighbours in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TreeMessage {
    /// The parent has taken the child's connection as the edge between them.
    Welcome,
    /// One rank's part of an all-gather, on its way to rank 0.
    Up {
        sequence: u64,
        tag: u32,
        rank: u32,
        bytes: Vec<u8>,
    },
    /// The whole of it, or why there is none, on its way to everyone.
    Down {
        sequence: u64,
        outcome: Result<Vec<Vec<u8>>, Failure>,
    },
    Notice(Notice),
    /// The sender closes this edge on purpose.
    Goodbye,
    /// A rank below has said goodbye; on its way to rank 0.
    Left {
        rank: u32,
    },
}

impl ToRoot {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        match self {
            Self::CheckIn(check_in) => {
                writer
                    .u8(1)
                    .u32(check_in.rank)
                    .u32(check_in.world_size)
                    .u64(check_in.instance)
                    .u32(check_in.protocol_version)
                    .str(shorten_to(&check_in.software, NAME_LIMIT_BYTES))
                    .str(shorten_to(&check_in.process, NAME_LIMIT_BYTES))
                    .u32(check_in.patience_milliseconds);
                write_address(&mut writer, check_in.listener);
                writer.str(shorten_to(&check_in.call, NAME_LIMIT_BYTES));
                write_ranks(&mut writer, &check_in.left_out);
            }
            Self::Wired => {
                writer.u8(2);
            }
            Self::Failed(failure) => {
                writer.u8(3);
                failure.write(&mut writer);
            }
        }
        writer.finish()
    }

    pub(super) fn decode(message: &[u8]) -> Result<Self, FieldError> {
        let mut reader = Reader::new(message);
        let decoded = match reader.u8("message type")? {
            1 => Self::CheckIn(CheckIn {
                rank: reader.u32("rank")?,
                world_size: reader.u32("world size")?,
                instance: reader.u64("instance")?,
                protocol_version: reader.u32("protocol version")?,
                software: reader.str("software", NAME_LIMIT_BYTES)?.to_owned(),
                process: reader.str("process", NAME_LIMIT_BYTES)?.to_owned(),
                patience_milliseconds: reader.u32("patience")?,
                listener: read_address(&mut reader)?,
                call: reader.str("call", NAME_LIMIT_BYTES)?.to_owned(),
                left_out: read_ranks(&mut reader)?,
            }),
            2 => Self::Wired,
            3 => Self::Failed(Failure::read(&mut reader)?),
            other => return Err(unknown("message type", other)),
        };
        reader.finish()?;
        Ok(decoded)
    }
}

impl FromRoot {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        match self {
            Self::Welcome => {
                writer.u8(1);
            }
            Self::Assigned { parent, key } => {
                writer.u8(2);
                write_address(&mut writer, *parent);
                match key {
                    Some(key) => writer.u8(1).raw(key.expose()),
                    None => writer.u8(0),
                };
            }
            Self::Failed(failure) => {
                writer.u8(3);
                failure.write(&mut writer);
            }
        }
        writer.finish()
    }

    pub(super) fn decode(message: &[u8]) -> Result<Self, FieldError> {
        let mut reader = Reader::new(message);
        let decoded = match reader.u8("message type")? {
            1 => Self::Welcome,
            2 => Self::Assigned {
                parent: read_address(&mut reader)?,
                key: match reader.u8("key present")? {
                    0 => None,
                    1 => Some(Key::from_bytes(reader.array("key")?)),
                    other => return Err(unknown("key present", other)),
                },
            },
            3 => Self::Failed(Failure::read(&mut reader)?),
            other => return Err(unknown("message type", other)),
        };
        reader.finish()?;
        Ok(decoded)
    }
}

impl TreeMessage {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        match self {
            Self::Up { sequence, tag, rank, bytes } => {
                writer.u8(1).u64(*sequence).u32(*tag).u32(*rank).bytes(bytes);
            }
            Self::Down { sequence, outcome: Ok(table) } => {
                writer.u8(2).u64(*sequence).u32(table.len() as u32);
                for entry in table {
                    writer.bytes(entry);
                }
            }
            Self::Down { sequence, outcome: Err(failure) } => {
                writer.u8(3).u64(*sequence);
                failure.write(&mut writer);
            }
            Self::Notice(notice) => {
                writer.u8(4).u64(notice.communicator).u32(notice.origin);
                Failure::new(notice.kind, notice.culprit, notice.message.clone())
                    .write(&mut writer);
            }
            Self::Goodbye => {
                writer.u8(5);
            }
            Self::Left { rank } => {
                writer.u8(6).u32(*rank);
            }
            Self::Welcome => {
                writer.u8(7);
            }
        }
        writer.finish()
    }

    pub(super) fn decode(message: &[u8]) -> Result<Self, FieldError> {
        let mut reader = Reader::new(message);
        let decoded = match reader.u8("message type")? {
            1 => Self::Up {
                sequence: reader.u64("sequence")?,
                tag: reader.u32("tag")?,
                rank: reader.u32("rank")?,
                bytes: reader.bytes("contribution", CONTRIBUTION_LIMIT_BYTES)?.to_vec(),
            },
            2 => {
                let sequence = reader.u64("sequence")?;
                let count = reader.count("table entries", 4)?;
                let mut table = Vec::with_capacity(count);
                for _ in 0..count {
                    table.push(reader.bytes("contribution", CONTRIBUTION_LIMIT_BYTES)?.to_vec());
                }
                Self::Down { sequence, outcome: Ok(table) }
            }
            3 => Self::Down {
                sequence: reader.u64("sequence")?,
                outcome: Err(Failure::read(&mut reader)?),
            },
            4 => {
                let communicator = reader.u64("communicator")?;
                let origin = reader.u32("origin")?;
                let Failure { kind, rank, message, .. } = Failure::read(&mut reader)?;
                Self::Notice(Notice { communicator, origin, culprit: rank, kind, message })
            }
            5 => Self::Goodbye,
            6 => Self::Left { rank: reader.u32("rank")? },
            7 => Self::Welcome,
            other => return Err(unknown("message type", other)),
        };
        reader.finish()?;
        Ok(decoded)
    }
}

fn unknown(field: &'static str, value: u8) -> FieldError {
    FieldError::Unknown { field, value: u64::from(value) }
}

fn shorten(text: &str) -> &str {
    shorten_to(text, TEXT_LIMIT_BYTES)
}

/// The longest beginning of `text` that fits and does not cut a character.
fn shorten_to(text: &str, limit_bytes: usize) -> &str {
    let mut end = text.len().min(limit_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn write_rank(writer: &mut Writer, rank: Option<u32>) {
    match rank {
        Some(rank) => writer.u8(1).u32(rank),
        None => writer.u8(0),
    };
}

fn write_ranks(writer: &mut Writer, ranks: &[u32]) {
    let ranks = &ranks[..ranks.len().min(LEFT_OUT_LIMIT)];
    writer.u32(ranks.len() as u32);
    for rank in ranks {
        writer.u32(*rank);
    }
}

fn read_ranks(reader: &mut Reader<'_>) -> Result<Vec<u32>, FieldError> {
    let count = reader.count("ranks", 4)?;
    (0..count).map(|_| reader.u32("rank")).collect()
}

fn read_rank(reader: &mut Reader<'_>) -> Result<Option<u32>, FieldError> {
    match reader.u8("rank present")? {
        0 => Ok(None),
        1 => Ok(Some(reader.u32("rank")?)),
        other => Err(unknown("rank present", other)),
    }
}

/// Family, address, scope, port. An IPv4 address takes the first four of the sixteen bytes.
pub(super) fn write_address(writer: &mut Writer, address: Option<SocketAddr>) {
    let (family, octets, scope, port) = match address {
        None => (0, [0; 16], 0, 0),
        Some(SocketAddr::V4(address)) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.ip().octets());
            (4, octets, 0, address.port())
        }
        Some(SocketAddr::V6(address)) => {
            (6, address.ip().octets(), address.scope_id(), address.port())
        }
    };
    writer.u8(family).raw(&octets).u32(scope).u16(port);
}

pub(super) fn read_address(reader: &mut Reader<'_>) -> Result<Option<SocketAddr>, FieldError> {
    let family = reader.u8("address family")?;
    let octets: [u8; 16] = reader.array("address")?;
    let scope = reader.u32("address scope")?;
    let port = reader.u16("port")?;
    match family {
        0 => Ok(None),
        4 => {
            let ip = IpAddr::from([octets[0], octets[1], octets[2], octets[3]]);
            Ok(Some(SocketAddr::new(ip, port)))
        }
        6 => Ok(Some(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope).into())),
        other => Err(unknown("address family", other)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn failure() -> Failure {
        let failure = Failure::new(ErrorKind::Rendezvous, Some(3), "rank 3 checked in twice");
        Failure { left_out: vec![1, 2], ..failure }
    }

    #[test]
    fn messages_survive_the_wire() {
        let check_in = ToRoot::CheckIn(CheckIn {
            rank: 1,
            world_size: 2,
            instance: 3,
            protocol_version: 4,
            software: "iccl 0.1".into(),
            process: "pid 5 on host".into(),
            patience_milliseconds: 6,
            listener: Some("[fe80::1%7]:9".parse().unwrap()),
            call: "shrink without [3]".into(),
            left_out: vec![3],
        });
        for message in [check_in, ToRoot::Wired, ToRoot::Failed(failure())] {
            assert_eq!(ToRoot::decode(&message.encode()), Ok(message));
        }
        for message in [
            FromRoot::Welcome,
            FromRoot::Assigned { parent: None, key: None },
            FromRoot::Assigned {
                parent: Some("10.1.2.3:4".parse().unwrap()),
                key: Some(Key::from_bytes([9; 32])),
            },
            FromRoot::Failed(failure()),
        ] {
            assert_eq!(FromRoot::decode(&message.encode()), Ok(message));
        }
        for message in [
            TreeMessage::Up { sequence: 1, tag: 2, rank: 3, bytes: vec![4; 5] },
            TreeMessage::Down { sequence: 1, outcome: Ok(vec![vec![], vec![1, 2]]) },
            TreeMessage::Down { sequence: 1, outcome: Err(failure()) },
            TreeMessage::Notice(Notice {
                communicator: 7,
                origin: 2,
                culprit: None,
                kind: ErrorKind::Timeout,
                message: "late".into(),
            }),
            TreeMessage::Goodbye,
            TreeMessage::Left { rank: 4 },
            TreeMessage::Welcome,
        ] {
            assert_eq!(TreeMessage::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn every_kind_of_error_travels() {
        for kind in KINDS {
            let message = FromRoot::Failed(Failure::new(kind, None, ""));
            assert_eq!(FromRoot::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        let long = "é".repeat(TEXT_LIMIT_BYTES);
        let message = FromRoot::Failed(Failure::new(ErrorKind::Timeout, None, long));
        let encoded = message.encode();
        assert!(encoded.len() <= ROOT_FRAME_LIMIT_BYTES);
        let FromRoot::Failed(failure) = FromRoot::decode(&encoded).unwrap() else {
            panic!("a failure was encoded")
        };
        assert_eq!(failure.message, "é".repeat(TEXT_LIMIT_BYTES / 2));
    }

    proptest! {
        #[test]
        fn b065_arbitrary_bytes_never_panic(
            kind in 0_u8..9,
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let message = [&[kind], bytes.as_slice()].concat();
            for message in [message.as_slice(), &bytes] {
                let _ = ToRoot::decode(message);
                let _ = FromRoot::decode(message);
                let _ = TreeMessage::decode(message);
            }
        }

        #[test]
        fn b065_a_cut_message_is_an_error(cut in 0_usize..60) {
            let message = TreeMessage::Down { sequence: 1, outcome: Ok(vec![vec![7; 20]; 2]) }.encode();
            let cut = cut.min(message.len() - 1);
            prop_assert!(TreeMessage::decode(&message[..cut]).is_err());
        }
    }
}
