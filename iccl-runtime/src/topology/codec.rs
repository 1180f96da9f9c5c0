//! Bounded little-endian reading and writing of what ranks exchange before they have a plan.
//!
//! Every list and every text is preceded by its length, every length has a limit, and nothing is
//! allocated for a length that the input does not hold.

use thiserror::Error;

/// Why bytes from another rank, or a value of this one, do not fit the format.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end in the middle of a field.
    #[error("{what}: cut short: {needed} bytes needed, {left} left")]
    Truncated {
        /// The field.
        what: &'static str,
        /// Bytes that the field needs.
        needed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// A length is above the limit of its field.
    #[error("{what}: {length} is above the limit of {limit}")]
    TooLong {
        /// The field.
        what: &'static str,
        /// The length found.
        length: usize,
        /// The largest length allowed.
        limit: usize,
    },
    /// A text is not UTF-8, or holds control characters.
    #[error("{what}: not plain UTF-8 text")]
    BadText {
        /// The field.
        what: &'static str,
    },
    /// The format is one that this version of iccl does not read.
    #[error("{what}: format {found}, this iccl reads format {expected}")]
    Format {
        /// What was read.
        what: &'static str,
        /// The format number found.
        found: u8,
        /// The format number that this version reads.
        expected: u8,
    },
    /// A number stands for nothing that this version knows.
    #[error("{what}: {value} is not a known value")]
    BadValue {
        /// The field.
        what: &'static str,
        /// The number found.
        value: u64,
    },
}

/// Reads fields from the front of a slice.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn bytes(
        &mut self,
        what: &'static str,
        needed: usize,
    ) -> Result<&'a [u8], DecodeError> {
        let Some((taken, rest)) = self.rest.split_at_checked(needed) else {
            return Err(DecodeError::Truncated { what, needed, left: self.rest.len() });
        };
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(what, N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        Ok(self.array::<1>(what)?[0])
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(crate) fn key(&mut self, what: &'static str) -> Result<[u8; 16], DecodeError> {
        self.array(what)
    }

    /// Bytes after a one-byte length.
    pub(crate) fn short_bytes(
        &mut self,
        what: &'static str,
        limit: usize,
    ) -> Result<&'a [u8], DecodeError> {
        let length = usize::from(self.u8(what)?);
        check_limit(what, length, limit)?;
        self.bytes(what, length)
    }

    /// Text after a one-byte length.
    pub(crate) fn text(&mut self, what: &'static str, limit: usize) -> Result<String, DecodeError> {
        let bytes = self.short_bytes(what, limit)?;
        let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::BadText { what })?;
        check_text(what, text)?;
        Ok(text.to_owned())
    }

    /// A part that carries its own length in two bytes, so that a later version may append to it.
    pub(crate) fn section(&mut self, what: &'static str) -> Result<Reader<'a>, DecodeError> {
        let length = usize::from(self.u16(what)?);
        self.bytes(what, length).map(Reader::new)
    }
}

/// Appends fields to a buffer.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    pub(crate) fn short_bytes(
        &mut self,
        what: &'static str,
        limit: usize,
        bytes: &[u8],
    ) -> Result<(), DecodeError> {
        check_limit(what, bytes.len(), limit.min(usize::from(u8::MAX)))?;
        self.u8(bytes.len() as u8);
        self.raw(bytes);
        Ok(())
    }

    pub(crate) fn text(
        &mut self,
        what: &'static str,
        limit: usize,
        text: &str,
    ) -> Result<(), DecodeError> {
        check_text(what, text)?;
        self.short_bytes(what, limit, text.as_bytes())
    }

    pub(crate) fn section(
        &mut self,
        what: &'static str,
        section: Writer,
    ) -> Result<(), DecodeError> {
        let bytes = section.finish();
        check_limit(what, bytes.len(), usize::from(u16::MAX))?;
        self.u16(bytes.len() as u16);
        self.raw(&bytes);
        Ok(())
    }
}

pub(crate) fn check_limit(
    what: &'static str,
    length: usize,
    limit: usize,
) -> Result<(), DecodeError> {
    if length > limit { Err(DecodeError::TooLong { what, length, limit }) } else { Ok(()) }
}

/// Names end up in logs and tables of every rank, so none may carry a line break or an escape.
fn check_text(what: &'static str, text: &str) -> Result<(), DecodeError> {
    if text.chars().any(char::is_control) { Err(DecodeError::BadText { what }) } else { Ok(()) }
}
