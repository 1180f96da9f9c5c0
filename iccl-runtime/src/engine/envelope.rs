//! The wire envelope: 64 little-endian bytes before every payload.
//!
//! Both ends of a message compute the same envelope from what they were asked to do, and the
//! transport compares them before it writes a byte of the payload. So it carries the operation's
//! fingerprint to every rank that a message reaches, at no extra message.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | version of this layout |
//! | 2 | kind: 1 data, 2 gate |
//! | 3 | lane: 0 collectives, 1 point-to-point |
//! | 4..8 | epoch of the plan |
//! | 8..16 | communicator |
//! | 16..24 | sequence in the lane |
//! | 24..32 | offset in the operation's vector, bytes |
//! | 32..36 | index of this message among those from its sender to its receiver |
//! | 36..40 | root, or receiver of a point-to-point message |
//! | 40..48 | count, elements |
//! | 48..52 | collective, dtype, op, algorithm |
//! | 52 | purpose: 0 the application's, 1 split, 2 duplicate |
//! | 53..56 | zero |
//! | 56..64 | digest of the remaining arguments (chunk size, counts of the vector forms) |

use std::fmt;

use iccl_plugin_api::sdk::Envelope as Bytes;
use iccl_plugin_api::{Collective, DataType, RedOp};

use crate::schedule::Algorithm;

/// Version of the layout above.
pub const ENVELOPE_VERSION: u16 = 1;

/// On whose behalf an operation takes place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// The application asked for it.
    #[default]
    Application,
    /// The exchange with which a split of the communicator begins.
    Split,
    /// The exchange with which a duplication of the communicator begins.
    Duplicate,
}

impl Purpose {
    const ALL: [Self; 3] = [Self::Application, Self::Split, Self::Duplicate];

    const fn code(self) -> u8 {
        match self {
            Self::Application => 0,
            Self::Split => 1,
            Self::Duplicate => 2,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|purpose| purpose.code() == code)
    }
}

/// What a rank was asked to do, as the other ranks must have been too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Which operation of its lane this is, from 0.
    pub sequence: u64,
    /// The operation; `Send` for both sides of a point-to-point message.
    pub collective: Collective,
    /// Element type.
    pub dtype: DataType,
    /// Reduction; `Sum` where there is none.
    pub op: RedOp,
    /// Algorithm that carries it.
    pub algorithm: Algorithm,
    /// Root, or receiver of a point-to-point message.
    pub root: u32,
    /// Elements.
    pub count: u64,
    /// Digest of the remaining arguments.
    pub digest: u64,
    /// On whose behalf.
    pub purpose: Purpose,
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.purpose {
            Purpose::Application => {}
            Purpose::Split => return write!(f, "split seq {}", self.sequence),
            Purpose::Duplicate => return write!(f, "duplicate seq {}", self.sequence),
        }
        write!(f, "{} seq {} ({} × {}", self.collective, self.sequence, self.dtype, self.count)?;
        if self.collective.reduces() {
            write!(f, ", {}", self.op)?;
        }
        if self.collective.has_root() {
            write!(f, ", root {}", self.root)?;
        }
        f.write_str(")")
    }
}

impl Fingerprint {
    /// The first field in which two fingerprints differ, in words.
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        let fields = [
            (self.sequence != other.sequence, "sequence"),
            (self.purpose != other.purpose, "purpose"),
            (self.collective != other.collective, "collective"),
            (self.dtype != other.dtype, "dtype"),
            (self.count != other.count, "count"),
            (self.op != other.op, "op"),
            (self.root != other.root, "root"),
            (self.algorithm != other.algorithm, "algorithm"),
            (self.digest != other.digest, "arguments"),
        ];
        fields.iter().find(|(differs, _)| *differs).map(|(_, name)| *name)
    }
}

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A part of the operation's data.
    Data,
    /// A step of the fingerprint exchange, without payload.
    Gate,
}

/// Which of the two ordered streams of a pair of ranks a message travels in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Collectives.
    Collective,
    /// Sends and receives.
    PointToPoint,
}

impl Lane {
    /// The lane's channel number, the same on all ranks.
    pub const fn channel(self) -> u64 {
        match self {
            Self::Collective => 0,
            Self::PointToPoint => 1,
        }
    }
}

/// One message's envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// What the message is for.
    pub kind: Kind,
    /// Its lane.
    pub lane: Lane,
    /// Epoch of the plan.
    pub epoch: u32,
    /// Communicator.
    pub communicator: u64,
    /// Offset in the operation's vector in bytes.
    pub offset: u64,
    /// Index among the messages of this operation from the sender to the receiver.
    pub index: u32,
    /// The operation.
    pub fingerprint: Fingerprint,
}

impl Envelope {
    /// The 64 bytes.
    pub fn encode(&self) -> Bytes {
        let mut bytes = [0; 64];
        let fingerprint = &self.fingerprint;
        bytes[0..2].copy_from_slice(&ENVELOPE_VERSION.to_le_bytes());
        bytes[2] = match self.kind {
            Kind::Data => 1,
            Kind::Gate => 2,
        };
        bytes[3] = self.lane.channel() as u8;
        bytes[4..8].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.communicator.to_le_bytes());
        bytes[16..24].copy_from_slice(&fingerprint.sequence.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.offset.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.index.to_le_bytes());
        bytes[36..40].copy_from_slice(&fingerprint.root.to_le_bytes());
        bytes[40..48].copy_from_slice(&fingerprint.count.to_le_bytes());
        bytes[48] = fingerprint.collective.code() as u8;
        bytes[49] = fingerprint.dtype.code() as u8;
        bytes[50] = fingerprint.op.code() as u8;
        bytes[51] = fingerprint.algorithm.code();
        bytes[52] = fingerprint.purpose.code();
        bytes[56..64].copy_from_slice(&fingerprint.digest.to_le_bytes());
        bytes
    }

    /// Reads what a peer sent, or `None` if it is of another version or makes no sense.
    pub fn decode(bytes: &Bytes) -> Option<Self> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << u32::BITS;
        if u16_at(0) != ENVELOPE_VERSION {
            return None;
        }
        Some(Self {
            kind: match bytes[2] {
                1 => Kind::Data,
                2 => Kind::Gate,
                _ => return None,
            },
            lane: match bytes[3] {
                0 => Lane::Collective,
                1 => Lane::PointToPoint,
                _ => return None,
            },
            epoch: u32_at(4),
            communicator: u64_at(8),
            offset: u64_at(24),
            index: u32_at(32),
            fingerprint: Fingerprint {
                sequence: u64_at(16),
                collective: Collective::from_code(bytes[48].into())?,
                dtype: DataType::from_code(bytes[49].into())?,
                op: RedOp::from_code(bytes[50].into())?,
                algorithm: Algorithm::from_code(bytes[51])?,
                root: u32_at(36),
                count: u64_at(40),
                digest: u64_at(56),
                purpose: Purpose::from_code(bytes[52])?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example() -> Envelope {
        Envelope {
            kind: Kind::Data,
            lane: Lane::Collective,
            epoch: 3,
            communicator: 0x0102_0304_0506_0708,
            offset: 1 << 40,
            index: 7,
            fingerprint: Fingerprint {
                sequence: 5,
                collective: Collective::AllReduce,
                dtype: DataType::F32,
                op: RedOp::Avg,
                algorithm: Algorithm::ALL[0],
                root: 0,
                count: 8,
                digest: 9,
                purpose: Purpose::Application,
            },
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let envelope = example();
        assert_eq!(Envelope::decode(&envelope.encode()), Some(envelope));
        assert_eq!(envelope.fingerprint.to_string(), "all_reduce seq 5 (f32 × 8, avg)");
    }

    #[test]
    fn what_iccl_asks_for_itself_is_told_apart() {
        let mut envelope = example();
        for (purpose, text) in [(Purpose::Split, "split"), (Purpose::Duplicate, "duplicate")] {
            envelope.fingerprint.purpose = purpose;
            assert_eq!(Envelope::decode(&envelope.encode()), Some(envelope));
            assert_eq!(envelope.fingerprint.to_string(), format!("{text} seq 5"));
            assert_eq!(envelope.fingerprint.difference(&example().fingerprint), Some("purpose"));
        }
    }

    #[test]
    fn every_field_changes_the_bytes_and_is_named() {
        let ours = example().fingerprint;
        let mut theirs = ours;
        theirs.dtype = DataType::I32;
        assert_eq!(ours.difference(&theirs), Some("dtype"));
        assert_eq!(ours.difference(&ours), None);
        let mut envelope = example();
        envelope.fingerprint = theirs;
        assert_ne!(envelope.encode(), example().encode());
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 64)) {
            let bytes: [u8; 64] = bytes.try_into().expect("64 bytes");
            if let Some(envelope) = Envelope::decode(&bytes) {
                let again = envelope.encode();
                prop_assert_eq!(Envelope::decode(&again), Some(envelope));
            }
        }
    }
}
