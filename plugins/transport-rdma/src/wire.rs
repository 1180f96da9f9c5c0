//! What travels: offers over the control connection, headers in front of what queue pairs send.

use iccl_plugin_api::sdk::Envelope;
use iccl_plugin_api::tables::ENVELOPE_BYTES;

/// The form of offers and headers.
const FORMAT: u8 = 1;

/// Bytes of every message of the control connection.
pub(crate) const OFFER_BYTES: usize = 64;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 32;

/// Longest payload that travels behind its header.
pub(crate) const EAGER_BYTES: usize = 8 * 1024;

/// Bytes of a slot: the longest thing that is sent.
pub(crate) const SLOT_BYTES: usize = HEADER_BYTES + ENVELOPE_BYTES + EAGER_BYTES;

/// A queue pair that waits for its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) number: u32,
    pub(crate) psn: u32,
    pub(crate) lid: u16,
    pub(crate) mtu: u8,
    /// InfiniBand, not Ethernet.
    pub(crate) is_infiniband: bool,
    pub(crate) gid: [u8; 16],
}

impl Offer {
    pub(crate) fn encode(self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        bytes[0] = FORMAT;
        bytes[1] = self.mtu;
        bytes[2] = u8::from(self.is_infiniband);
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.psn.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.lid.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.gid);
        bytes
    }

    pub(crate) fn parse(bytes: &[u8; OFFER_BYTES]) -> Option<Self> {
        let gid = bytes[16..32].try_into().ok()?;
        let offer = Self {
            number: word(bytes, 4),
            psn: word(bytes, 8),
            lid: u16::from_le_bytes([bytes[12], bytes[13]]),
            mtu: bytes[1],
            is_infiniband: bytes[2] == 1,
            gid,
        };
        (bytes[0] == FORMAT && (1..=5).contains(&offer.mtu) && offer.psn < 1 << 24).then_some(offer)
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    u32::from_le_bytes(word.unwrap_or_default())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let long = bytes.get(at..at + 8).and_then(|long| long.try_into().ok());
    u64::from_le_bytes(long.unwrap_or_default())
}

/// What a header begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// A message, with its payload behind it.
    Eager { envelope: Envelope, length: u64 },
    /// A message whose payload waits for grants.
    Announced { envelope: Envelope, length: u64 },
    /// Leave to write the next bytes of the oldest announced message that lacks some.
    Grant(Grant),
    /// Nothing but what every header carries.
    Credit,
}

/// A run of the receiver's memory. Bytes are granted in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// What the write that ends it tells.
    pub(crate) note: u32,
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) length: u32,
}

/// What every header carries: how many of the peer's messages and grants were taken, modulo 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) messages: u32,
    pub(crate) control: u32,
}

impl Head {
    /// Whether it counts as a message, not as control.
    pub(crate) fn is_message(&self) -> bool {
        matches!(self, Self::Eager { .. } | Self::Announced { .. })
    }

    /// Writes it to the front of `bytes`; how many it took.
    pub(crate) fn write(&self, taken: Taken, bytes: &mut [u8]) -> usize {
        bytes[..HEADER_BYTES].fill(0);
        bytes[4..8].copy_from_slice(&taken.messages.to_le_bytes());
        bytes[8..12].copy_from_slice(&taken.control.to_le_bytes());
        match self {
            Self::Eager { envelope, length } | Self::Announced { envelope, length } => {
                bytes[0] = if matches!(self, Self::Eager { .. }) { 1 } else { 2 };
                bytes[16..24].copy_from_slice(&length.to_le_bytes());
                bytes[HEADER_BYTES..][..ENVELOPE_BYTES].copy_from_slice(envelope);
                HEADER_BYTES + ENVELOPE_BYTES
            }
            Self::Grant(grant) => {
                bytes[0] = 3;
                bytes[12..16].copy_from_slice(&grant.note.to_le_bytes());
                bytes[16..24].copy_from_slice(&grant.address.to_le_bytes());
                bytes[24..28].copy_from_slice(&grant.key.to_le_bytes());
                bytes[28..32].copy_from_slice(&grant.length.to_le_bytes());
                HEADER_BYTES
            }
            Self::Credit => {
                bytes[0] = 4;
                HEADER_BYTES
            }
        }
    }

    /// What stands at the front, and the payload behind it.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, Taken, &[u8])> {
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
        let taken = Taken { messages: word(header, 4), control: word(header, 8) };
        let head = match header[0] {
            1 | 2 => {
                let (envelope, payload) = rest.split_first_chunk::<ENVELOPE_BYTES>()?;
                let (envelope, length) = (*envelope, long(header, 16));
                if header[0] == 2 {
                    return payload.is_empty().then_some((
                        Self::Announced { envelope, length },
                        taken,
                        payload,
                    ));
                }
                if payload.len() as u64 != length {
                    return None;
                }
                return Some((Self::Eager { envelope, length }, taken, payload));
            }
            3 => Self::Grant(Grant {
                note: word(header, 12),
                address: long(header, 16),
                key: word(header, 24),
                length: word(header, 28),
            }),
            4 => Self::Credit,
            _ => return None,
        };
        rest.is_empty().then_some((head, taken, rest))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let taken = Taken { messages: 7, control: u32::MAX };
        let envelope = [5; ENVELOPE_BYTES];
        let grant = Grant { note: 3, address: 1 << 50, key: 9, length: 77 };
        for head in [
            Head::Announced { envelope, length: 1 << 40 },
            Head::Eager { envelope, length: 0 },
            Head::Grant(grant),
            Head::Credit,
        ] {
            let mut bytes = [0xee; SLOT_BYTES];
            let length = head.write(taken, &mut bytes);
            assert_eq!(Head::parse(&bytes[..length]), Some((head, taken, &[][..])));
        }
        let offer =
            Offer { number: 17, psn: 5, lid: 3, mtu: 4, is_infiniband: true, gid: [0xfe; 16] };
        assert_eq!(Offer::parse(&offer.encode()), Some(offer));
        assert_eq!(Offer::parse(&[0; OFFER_BYTES]), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_a_header_or_nothing(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            if let Some((head, _, payload)) = Head::parse(&bytes) {
                prop_assert!(payload.len() < bytes.len());
                prop_assert!(head.is_message() || payload.is_empty());
            }
        }
    }
}
