//! Fields of messages and descriptors: little-endian numbers, bytes and text with their length.

/// Why a message could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The message ends inside a field.
    #[error("the message ends inside {field}")]
    Truncated {
        /// The field that was being read.
        field: &'static str,
    },
    /// A length or count exceeds what the field allows.
    #[error("{field} says {count}, at most {limit} are allowed")]
    TooLong {
        /// The field that was being read.
        field: &'static str,
        /// What the message says.
        count: u64,
        /// What is allowed.
        limit: u64,
    },
    /// Text that is not UTF-8.
    #[error("{field} is not UTF-8")]
    NotText {
        /// The field that was being read.
        field: &'static str,
    },
    /// A number that stands for nothing.
    #[error("{field} has the unknown value {value}")]
    Unknown {
        /// The field that was being read.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// Bytes after the last field.
    #[error("{bytes} bytes follow the last field")]
    Trailing {
        /// How many.
        bytes: usize,
    },
}

/// Writes fields one after the other.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty message.
    pub const fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    /// The message.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    /// A 16-bit number.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// A 32-bit number.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// A 64-bit number.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// Bytes of a length that both sides know.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Bytes, preceded by their length as `u32`.
    ///
    /// # Panics
    ///
    /// `bytes` is longer than a `u32` can say.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let length = u32::try_from(bytes.len()).expect("a field of less than 4 GiB");
        self.u32(length).raw(bytes)
    }

    /// Text, preceded by its length in bytes as `u32`.
    ///
    /// # Panics
    ///
    /// As [`bytes`](Self::bytes).
    pub fn str(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }
}

/// Reads fields one after the other; nothing is copied or reserved, every length is checked.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader of `message`.
    pub const fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Bytes not read yet.
    pub const fn remaining_bytes(&self) -> usize {
        self.rest.len()
    }

    /// Bytes of a length that both sides know.
    ///
    /// # Errors
    ///
    /// [`FieldError::Truncated`].
    pub fn raw(&mut self, field: &'static str, length: usize) -> Result<&'a [u8], FieldError> {
        let Some((bytes, rest)) = self.rest.split_at_checked(length) else {
            return Err(FieldError::Truncated { field });
        };
        self.rest = rest;
        Ok(bytes)
    }

    /// Bytes of a length that the type says.
    ///
    /// # Errors
    ///
    /// [`FieldError::Truncated`].
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], FieldError> {
        let mut array = [0; N];
        array.copy_from_slice(self.raw(field, N)?);
        Ok(array)
    }

    /// One byte.
    ///
    /// # Errors
    ///
    /// [`FieldError::Truncated`].
    pub fn u8(&mut self, field: &'static str) -> Result<u8, FieldError> {
        Ok(self.array::<1>(field)?[0])
    }

    /// A 16-bit number.
    ///
    /// # Errors
    ///
    /// [`FieldError::Truncated`].
    pub fn u16(&mut self, field: &'static str) -> Result<u16, FieldError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    /// A 32-bit number.
    ///
    /// # Errors
    ///
    /// [`FieldError::Truncated`].
    pub fn u32(&mut self, field: &'static str) -> Result<u32, FieldError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    /// A 64-bit number.
    ///
    /// # Errors
    ///
    /// [`FieldError::Truncated`].
    pub fn u64(&mut self, field: &'static str) -> Result<u64, FieldError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// Bytes preceded by their length, at most `limit_bytes`.
    ///
    /// # Errors
    ///
    /// [`FieldError::TooLong`], [`FieldError::Truncated`].
    pub fn bytes(
        &mut self,
        field: &'static str,
        limit_bytes: usize,
    ) -> Result<&'a [u8], FieldError> {
        let length = self.u32(field)?;
        if length as usize > limit_bytes {
            let (count, limit) = (u64::from(length), limit_bytes as u64);
            return Err(FieldError::TooLong { field, count, limit });
        }
        self.raw(field, length as usize)
    }

    /// Text preceded by its length, at most `limit_bytes`.
    ///
    /// # Errors
    ///
    /// [`FieldError::TooLong`], [`FieldError::Truncated`], [`FieldError::NotText`].
    pub fn str(&mut self, field: &'static str, limit_bytes: usize) -> Result<&'a str, FieldError> {
        std::str::from_utf8(self.bytes(field, limit_bytes)?)
            .map_err(|_| FieldError::NotText { field })
    }

    /// A `u32` that counts entries of at least `entry_bytes` each: no more than the rest of the
    /// message can hold, so that the caller may reserve for it.
    ///
    /// # Errors
    ///
    /// [`FieldError::TooLong`], [`FieldError::Truncated`].
    pub fn count(&mut self, field: &'static str, entry_bytes: usize) -> Result<usize, FieldError> {
        let count = self.u32(field)?;
        let limit = self.rest.len() / entry_bytes.max(1);
        if count as usize > limit {
            let (count, limit) = (u64::from(count), limit as u64);
            return Err(FieldError::TooLong { field, count, limit });
        }
        Ok(count as usize)
    }

    /// Ends the message.
    ///
    /// # Errors
    ///
    /// [`FieldError::Trailing`]: there are bytes left.
    pub const fn finish(self) -> Result<(), FieldError> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(FieldError::Trailing { bytes }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let mut writer = Writer::new();
        writer.u8(1).u16(2).u32(3).u64(4).bytes(b"five").str("six").raw(&[7; 3]);
        let message = writer.finish();
        let mut reader = Reader::new(&message);
        assert_eq!(reader.u8("a"), Ok(1));
        assert_eq!(reader.u16("b"), Ok(2));
        assert_eq!(reader.u32("c"), Ok(3));
        assert_eq!(reader.u64("d"), Ok(4));
        assert_eq!(reader.bytes("e", 4), Ok(b"five".as_slice()));
        assert_eq!(reader.str("f", 100), Ok("six"));
        assert_eq!(reader.finish(), Err(FieldError::Trailing { bytes: 3 }));
        assert_eq!(reader.array::<3>("g"), Ok([7; 3]));
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn b065_lengths_are_checked() {
        let huge = [0xff; 4];
        assert_eq!(
            Reader::new(&huge).bytes("x", 10),
            Err(FieldError::TooLong { field: "x", count: 0xffff_ffff, limit: 10 })
        );
        assert_eq!(
            Reader::new(&huge).bytes("x", usize::MAX),
            Err(FieldError::Truncated { field: "x" })
        );
        assert_eq!(
            Reader::new(&huge).count("x", 8),
            Err(FieldError::TooLong { field: "x", count: 0xffff_ffff, limit: 0 })
        );
        assert_eq!(Reader::new(&[1, 0]).u32("x"), Err(FieldError::Truncated { field: "x" }));
        let mut writer = Writer::new();
        writer.bytes(&[0xc3, 0x28]);
        assert_eq!(
            Reader::new(&writer.finish()).str("x", 10),
            Err(FieldError::NotText { field: "x" })
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            calls in proptest::collection::vec((0_u8..8, 0_usize..200), 0..20),
        ) {
            let mut reader = Reader::new(&bytes);
            for (call, limit) in calls {
                let before = reader.remaining_bytes();
                match call {
                    0 => { let _ = reader.u8("x"); }
                    1 => { let _ = reader.u16("x"); }
                    2 => { let _ = reader.u32("x"); }
                    3 => { let _ = reader.u64("x"); }
                    4 => { let _ = reader.array::<5>("x"); }
                    5 => { if let Ok(field) = reader.bytes("x", limit) { prop_assert!(field.len() <= limit); } }
                    6 => { let _ = reader.str("x", limit); }
                    _ => { if let Ok(count) = reader.count("x", 3) { prop_assert!(count * 3 <= reader.remaining_bytes()); } }
                }
                prop_assert!(reader.remaining_bytes() <= before);
            }
            let _ = reader.finish();
        }
    }
}
