//! What ranks exchange before they have a plan, over [`iccl_wire`]'s bounded fields: short texts
//! with a one-byte length (a descriptor has 256 bytes to live in) and sections that a later version
//! may append to.

use iccl_wire::{FieldError, Reader, Writer};
use thiserror::Error;

/// Why bytes from another rank, or a value of this one, do not fit the format.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// A field is cut short, longer than it may be, or has a value that stands for nothing.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A text holds control characters: names end up in logs and tables of every rank, so none may
    /// carry a line break or an escape.
    #[error("{field} has control characters")]
    ControlCharacters {
        /// The field.
        field: &'static str,
    },
    /// A version is not one that semver knows.
    #[error("{field} is not a version")]
    NotVersion {
        /// The field.
        field: &'static str,
    },
    /// Two entries of a list have one name.
    #[error("{field} {name} comes twice")]
    Repeated {
        /// The list's entries.
        field: &'static str,
        /// The name.
        name: String,
    },
    /// The format is one that this version of iccl does not read.
    #[error("{what} has format {found}, this iccl reads format {expected}")]
    Format {
        /// What was read.
        what: &'static str,
        /// The format number found.
        found: u8,
        /// The format number that this version reads.
        expected: u8,
    },
}

/// Refuses a length or count above its limit.
pub(crate) fn check_limit(
    field: &'static str,
    length: usize,
    limit: usize,
) -> Result<(), DecodeError> {
    if length > limit {
        let (count, limit) = (length as u64, limit as u64);
        return Err(FieldError::TooLong { field, count, limit }.into());
    }
    Ok(())
}

fn check_text(field: &'static str, text: &str) -> Result<(), DecodeError> {
    if text.chars().any(char::is_control) {
        return Err(DecodeError::ControlCharacters { field });
    }
    Ok(())
}

/// A number that stands for nothing.
pub(crate) fn unknown(field: &'static str, value: impl Into<u64>) -> DecodeError {
    FieldError::Unknown { field, value: value.into() }.into()
}

/// Writes a number in seven bits a byte, low bits first: masks and counts are small.
pub(crate) fn write_number(out: &mut Writer, mut value: u32) {
    while value >= 0x80 {
        out.u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.u8(value as u8);
}

/// Reads a number that [`write_number`] wrote. Each number has one encoding, so that what is read
/// and written again is the same bytes.
pub(crate) fn read_number(input: &mut Reader<'_>, field: &'static str) -> Result<u32, DecodeError> {
    let mut value = 0_u64;
    for shift in (0..35).step_by(7) {
        let byte = input.u8(field)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            let padded = byte == 0 && shift > 0;
            let number = u32::try_from(value).ok().filter(|_| !padded);
            return number.ok_or_else(|| unknown(field, value));
        }
    }
    Err(unknown(field, value))
}

/// Writes bytes after a one-byte length.
pub(crate) fn write_bytes(
    out: &mut Writer,
    field: &'static str,
    limit: usize,
    bytes: &[u8],
) -> Result<(), DecodeError> {
    check_limit(field, bytes.len(), limit.min(usize::from(u8::MAX)))?;
    out.u8(bytes.len() as u8).raw(bytes);
    Ok(())
}

/// Reads bytes after a one-byte length.
pub(crate) fn read_bytes<'a>(
    input: &mut Reader<'a>,
    field: &'static str,
    limit: usize,
) -> Result<&'a [u8], DecodeError> {
    let length = usize::from(input.u8(field)?);
    check_limit(field, length, limit)?;
    Ok(input.raw(field, length)?)
}

/// Writes text after a one-byte length.
pub(crate) fn write_text(
    out: &mut Writer,
    field: &'static str,
    limit: usize,
    text: &str,
) -> Result<(), DecodeError> {
    check_text(field, text)?;
    write_bytes(out, field, limit, text.as_bytes())
}

/// Reads text after a one-byte length.
pub(crate) fn read_text(
    input: &mut Reader<'_>,
    field: &'static str,
    limit: usize,
) -> Result<String, DecodeError> {
    let bytes = read_bytes(input, field, limit)?;
    let text = std::str::from_utf8(bytes).map_err(|_| FieldError::NotText { field })?;
    check_text(field, text)?;
    Ok(text.to_owned())
}

/// Writes a part with its own two-byte length.
pub(crate) fn write_section(
    out: &mut Writer,
    field: &'static str,
    section: Writer,
) -> Result<(), DecodeError> {
    let bytes = section.finish();
    check_limit(field, bytes.len(), usize::from(u16::MAX))?;
    out.u16(bytes.len() as u16).raw(&bytes);
    Ok(())
}

/// Reads a part with its own two-byte length.
pub(crate) fn read_section<'a>(
    input: &mut Reader<'a>,
    field: &'static str,
) -> Result<Reader<'a>, DecodeError> {
    let length = usize::from(input.u16(field)?);
    Ok(Reader::new(input.raw(field, length)?))
}

/// All that has not been read: the fields of a later version.
pub(crate) fn read_rest(mut input: Reader<'_>) -> Result<Vec<u8>, DecodeError> {
    Ok(input.raw("later fields", input.remaining_bytes())?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_encoding() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u32::MAX - 1, u32::MAX] {
            let mut out = Writer::new();
            write_number(&mut out, value);
            let bytes = out.finish();
            assert_eq!(read_number(&mut Reader::new(&bytes), "x"), Ok(value));
        }
        for bad in [&[0x80, 0x00][..], &[0xff; 5], &[0xff, 0xff, 0xff, 0xff, 0x7f], &[0x80]] {
            assert!(read_number(&mut Reader::new(bad), "x").is_err(), "{bad:x?}");
        }
    }
}
