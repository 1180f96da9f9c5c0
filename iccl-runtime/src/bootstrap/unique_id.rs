//! The unique id: where a job meets, and the secret that proves that one belongs to it.

use std::fmt;
use std::net::SocketAddr;

use iccl_wire::{FieldError, Key, Reader, Writer};
use sha2::{Digest, Sha256};

use super::message::{read_address, write_address};
use crate::{Error, ErrorKind, Result};

const MAGIC: [u8; 8] = *b"ICCL-uid";
const VERSION: u16 = 1;
const TEXT_PREFIX: &str = "iccl1:";
const CHECKSUM_BYTES: usize = 8;

/// The fields before the zeros and the checksum.
const USED_BYTES: usize = 8 + 2 + 23 + 32 + 16;

/// Everything that a rank needs to join a job: the root's address, a 256-bit secret and the job's
/// number. Whoever holds it can join, so it travels only where the job's own processes read it.
///
/// As bytes it fits in the 128 of NCCL's `ncclUniqueId`; as text it is `iccl1:` and hexadecimal
/// digits. `Debug` and `Display` do not show the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId {
    address: SocketAddr,
    secret: Key,
    job: [u8; 16],
}

impl UniqueId {
    /// The size of the binary form.
    pub const BYTES: usize = 128;

    pub(super) fn new(address: SocketAddr, secret: Key, job: [u8; 16]) -> Self {
        Self { address, secret, job }
    }

    /// Where the root listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The job's number; not a secret.
    pub fn job(&self) -> [u8; 16] {
        self.job
    }

    pub(super) fn secret(&self) -> &Key {
        &self.secret
    }

    /// The binary form: magic, version, address, secret, job, zeros, checksum.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut writer = Writer::new();
        writer.raw(&MAGIC).u16(VERSION);
        write_address(&mut writer, Some(self.address));
        writer.raw(self.secret.expose()).raw(&self.job);
        let fields = writer.finish();
        let mut bytes = [0; Self::BYTES];
        bytes[..fields.len()].copy_from_slice(&fields);
        let checksum = Sha256::digest(&bytes[..Self::BYTES - CHECKSUM_BYTES]);
        bytes[Self::BYTES - CHECKSUM_BYTES..].copy_from_slice(&checksum[..CHECKSUM_BYTES]);
        bytes
    }

    /// Reads the binary form.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`: not a unique id of this version, or damaged on its way.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let invalid = |message: String| Error::new(ErrorKind::InvalidArgument, message);
        if bytes.len() != Self::BYTES {
            let (is, should) = (bytes.len(), Self::BYTES);
            return Err(invalid(format!("unique id: {is} bytes long instead of {should}")));
        }
        let (fields, checksum) = bytes.split_at(Self::BYTES - CHECKSUM_BYTES);
        if fields[..MAGIC.len()] != MAGIC {
            return Err(invalid("unique id: these bytes are not an iccl unique id".into()));
        }
        let version = u16::from_le_bytes([fields[8], fields[9]]);
        if version != VERSION {
            return Err(Error::new(
                ErrorKind::VersionMismatch,
                format!("unique id: it has version {version}, this iccl reads {VERSION}"),
            ));
        }
        if Sha256::digest(fields)[..CHECKSUM_BYTES] != *checksum {
            return Err(invalid("unique id: the checksum is wrong; it was damaged or cut".into()));
        }
        let parse = || -> std::result::Result<Self, FieldError> {
            let mut reader = Reader::new(&fields[MAGIC.len() + 2..]);
            let address = read_address(&mut reader)?
                .ok_or(FieldError::Unknown { field: "address family", value: 0 })?;
            let secret = Key::from_bytes(reader.array("secret")?);
            Ok(Self { address, secret, job: reader.array("job")? })
        };
        parse().map_err(|error| invalid("unique id: unreadable".into()).with_source(error))
    }

    /// The text form, as it travels in an environment variable. It contains the secret.
    pub fn to_text(&self) -> String {
        let bytes = self.to_bytes();
        let used = bytes[..USED_BYTES].iter().chain(&bytes[Self::BYTES - CHECKSUM_BYTES..]);
        used.fold(TEXT_PREFIX.to_owned(), |mut text, byte| {
            text.push(char::from(HEX[usize::from(byte >> 4)]));
            text.push(char::from(HEX[usize::from(byte & 15)]));
            text
        })
    }

    /// Reads the text form.
    ///
    /// # Errors
    ///
    /// As [`from_bytes`](Self::from_bytes); the text itself is not repeated in the error.
    pub fn from_text(text: &str) -> Result<Self> {
        let invalid =
            |message: &str| Error::new(ErrorKind::InvalidArgument, format!("unique id: {message}"));
        let digits = text.trim().strip_prefix(TEXT_PREFIX);
        let digits = digits.ok_or_else(|| invalid("the text does not begin with \"iccl1:\""))?;
        if digits.len() != 2 * (USED_BYTES + CHECKSUM_BYTES) {
            return Err(invalid("the text has the wrong length; it was cut or changed"));
        }
        let mut bytes = [0; Self::BYTES];
        for (index, pair) in digits.as_bytes().chunks_exact(2).enumerate() {
            let value = |digit: u8| char::from(digit).to_digit(16);
            let (Some(high), Some(low)) = (value(pair[0]), value(pair[1])) else {
                return Err(invalid("the text contains something else than hexadecimal digits"));
            };
            let place = if index < USED_BYTES {
                index
            } else {
                Self::BYTES - CHECKSUM_BYTES + index - USED_BYTES
            };
            bytes[place] = (high * 16 + low) as u8;
        }
        Self::from_bytes(&bytes)
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {:?} at {}", JobNumber(&self.job), self.address)
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({self}, secret redacted)")
    }
}

struct JobNumber<'a>(&'a [u8; 16]);

impl fmt::Debug for JobNumber<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(address: &str) -> UniqueId {
        UniqueId::new(address.parse().unwrap(), Key::from_bytes([0xab; 32]), [0x5c; 16])
    }

    #[test]
    fn both_forms_survive() {
        for address in ["127.0.0.1:4000", "[::1]:65535", "[fe80::1%3]:1"] {
            let id = id(address);
            assert_eq!(UniqueId::from_bytes(&id.to_bytes()).unwrap(), id);
            assert_eq!(UniqueId::from_text(&id.to_text()).unwrap(), id);
            assert_eq!(id.address(), address.parse().unwrap());
        }
    }

    #[test]
    fn the_secret_is_not_printed() {
        let text = format!("{0} {0:?}", id("127.0.0.1:4000"));
        assert!(text.contains("127.0.0.1:4000") && text.contains("5c5c5c5c"), "{text}");
        assert!(!text.contains("abab") && !text.contains("171"), "{text}");
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let bytes = id("10.0.0.1:80").to_bytes();
        for index in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[index] ^= 1;
            assert!(UniqueId::from_bytes(&damaged).is_err(), "byte {index}");
        }
        assert!(UniqueId::from_bytes(&bytes[..127]).is_err());
        assert!(UniqueId::from_bytes(&[0; 128]).is_err());
    }

    #[test]
    fn a_later_version_is_said_to_be_one() {
        let mut bytes = id("10.0.0.1:80").to_bytes();
        bytes[8] = 2;
        let error = UniqueId::from_bytes(&bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::VersionMismatch);
    }

    #[test]
    fn an_error_about_the_text_does_not_repeat_it() {
        let text = id("10.0.0.1:80").to_text();
        for broken in [&text[..text.len() - 2], &text[6..], &text.replace('a', "x")] {
            let error = UniqueId::from_text(broken).unwrap_err().to_string();
            assert!(!error.contains("bbbb") && !error.contains("xbxb"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn b065_arbitrary_bytes_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            text in ".{0,300}",
        ) {
            let _ = UniqueId::from_bytes(&bytes);
            let _ = UniqueId::from_text(&text);
            let _ = UniqueId::from_text(&format!("iccl1:{text}"));
        }
    }
}
