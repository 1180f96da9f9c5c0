//! The ELF note: what a plugin says of itself that can be read without loading it.
//!
//! [`export_plugin!`](crate::export_plugin) and the C macro `ICCL_PLUGIN_NOTE` put one
//! [`PluginNote`] into the section [`NOTE_SECTION`]; `readelf -n` lists it under the owner
//! [`NOTE_OWNER`]. All numbers are little-endian (the machines that iccl runs on are).

use crate::tables::{ABI_MAJOR, ABI_MINOR};

/// The section that holds the note.
pub const NOTE_SECTION: &str = ".note.iccl";

/// The owner of the note, as ELF stores it: with its terminating zero, padded to four bytes.
pub const NOTE_OWNER: [u8; 8] = *b"iccl\0\0\0\0";

/// The type of the note; a later layout of the description gets another number.
pub const NOTE_TYPE: u32 = 0x1CC1;

/// Most bytes of a name.
pub const NAME_BYTES: usize = 64;

/// Most bytes of a version.
pub const VERSION_BYTES: usize = 32;

/// Bytes of the note's description: everything after the owner.
const DESCRIPTION_BYTES: usize = 4 * 4 + NAME_BYTES + 2 * VERSION_BYTES;

/// Bytes of the owner without its padding, as ELF counts them.
const OWNER_BYTES: u32 = 5;

/// The note as it lies in the file: ELF's own header (`Elf64_Nhdr`), the owner, the description.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PluginNote {
    /// Bytes of the owner, without padding.
    pub owner_bytes: u32,
    /// Bytes of the description.
    pub description_bytes: u32,
    /// [`NOTE_TYPE`].
    pub note_type: u32,
    /// [`NOTE_OWNER`].
    pub owner: [u8; 8],
    /// The ABI's major version that the plugin was built with.
    pub abi_major: u32,
    /// The smallest minor version of a host that it works with.
    pub abi_minor_min: u32,
    /// The minor version that it was built with.
    pub abi_minor: u32,
    /// Bits of [`family`](crate::tables::family).
    pub families: u32,
    /// The plugin's name, padded with zeroes.
    pub name: [u8; NAME_BYTES],
    /// The plugin's own version, padded with zeroes.
    pub version: [u8; VERSION_BYTES],
    /// What it was built with: the version of this crate, or of the C header.
    pub sdk: [u8; VERSION_BYTES],
}

const _: () = assert!(size_of::<PluginNote>() == 12 + 8 + DESCRIPTION_BYTES);
const _: () = assert!(align_of::<PluginNote>() == 4);

impl PluginNote {
    /// The note of a plugin built with this SDK.
    ///
    /// # Panics
    /// At compile time, if the name is empty, or a text is too long or holds a zero.
    pub const fn new(name: &str, version: &str, families: u32) -> Self {
        assert!(!name.is_empty(), "a plugin needs a name");
        Self {
            owner_bytes: OWNER_BYTES,
            description_bytes: DESCRIPTION_BYTES as u32,
            note_type: NOTE_TYPE,
            owner: NOTE_OWNER,
            abi_major: ABI_MAJOR,
            abi_minor_min: 0,
            abi_minor: ABI_MINOR,
            families,
            name: padded(name),
            version: padded(version),
            sdk: padded(concat!("rust ", env!("CARGO_PKG_VERSION"))),
        }
    }
}

/// A text in a field of fixed size, with zeroes behind it.
const fn padded<const N: usize>(text: &str) -> [u8; N] {
    let text = text.as_bytes();
    assert!(text.len() <= N, "a text is too long for the plugin's ELF note");
    let mut bytes = [0; N];
    let mut index = 0;
    while index < text.len() {
        assert!(text[index] != 0, "a text of the plugin's ELF note holds a zero");
        bytes[index] = text[index];
        index += 1;
    }
    bytes
}

/// What a note says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteInfo {
    /// The plugin's name.
    pub name: String,
    /// The plugin's own version.
    pub version: String,
    /// Bits of [`family`](crate::tables::family).
    pub families: u32,
    /// The ABI's major version that the plugin was built with.
    pub abi_major: u32,
    /// The smallest minor version of a host that it works with.
    pub abi_minor_min: u32,
    /// The minor version that it was built with.
    pub abi_minor: u32,
    /// What it was built with.
    pub sdk: String,
}

/// Why the bytes of a section are no note of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    /// No note of owner `iccl` and a known type is there.
    #[error("no note of owner iccl and type {NOTE_TYPE} in the section")]
    Absent,
    /// A note says that it is longer than its section.
    #[error("the note is cut off")]
    Truncated,
    /// A text is no UTF-8 or empty where it must not be.
    #[error("the note's {0} is not readable text")]
    BadText(&'static str),
}

/// Reads the first plugin note of a section's bytes.
///
/// # Errors
/// See [`NoteError`]. Bytes of any kind and length are answered, never trusted.
pub fn parse(section: &[u8]) -> Result<NoteInfo, NoteError> {
    let mut rest = section;
    while !rest.is_empty() {
        let owner_bytes = take_u32(&mut rest)? as usize;
        let description_bytes = take_u32(&mut rest)? as usize;
        let note_type = take_u32(&mut rest)?;
        let owner = take_padded(&mut rest, owner_bytes)?;
        let description = take_padded(&mut rest, description_bytes)?;
        if owner == &NOTE_OWNER[..OWNER_BYTES as usize] && note_type == NOTE_TYPE {
            return parse_description(description);
        }
    }
    Err(NoteError::Absent)
}

/// Reads the description of one note.
fn parse_description(mut bytes: &[u8]) -> Result<NoteInfo, NoteError> {
    let rest = &mut bytes;
    Ok(NoteInfo {
        abi_major: take_u32(rest)?,
        abi_minor_min: take_u32(rest)?,
        abi_minor: take_u32(rest)?,
        families: take_u32(rest)?,
        name: take_text(rest, NAME_BYTES, "name")?,
        version: take_text(rest, VERSION_BYTES, "version")?,
        sdk: take_text(rest, VERSION_BYTES, "sdk")?,
    })
}

/// Takes `length` bytes from the front.
fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], NoteError> {
    let (head, tail) = rest.split_at_checked(length).ok_or(NoteError::Truncated)?;
    *rest = tail;
    Ok(head)
}

/// Takes `length` bytes and their padding to four bytes, which may be missing at the very end.
fn take_padded<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], NoteError> {
    let head = take(rest, length)?;
    let padding = (length.wrapping_neg() % 4).min(rest.len());
    take(rest, padding)?;
    Ok(head)
}

/// Takes a number.
fn take_u32(rest: &mut &[u8]) -> Result<u32, NoteError> {
    let bytes = take(rest, 4)?;
    Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// Takes a text that is padded with zeroes.
fn take_text(rest: &mut &[u8], length: usize, what: &'static str) -> Result<String, NoteError> {
    let bytes = take(rest, length)?;
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(length);
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| NoteError::BadText(what))?;
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(NoteError::BadText(what));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tables::family;

    /// The bytes of a note as they lie in the file.
    fn bytes_of(note: &PluginNote) -> Vec<u8> {
        // SAFETY: the struct has no padding: its size is the sum of its fields, as asserted above.
        unsafe {
            std::slice::from_raw_parts(
                std::ptr::from_ref(note).cast::<u8>(),
                size_of::<PluginNote>(),
            )
        }
        .to_vec()
    }

    #[test]
    fn what_is_written_is_read() {
        const NOTE: PluginNote = PluginNote::new("transport-tcp", "1.2.3-rc.1", family::TRANSPORT);
        let info = parse(&bytes_of(&NOTE)).expect("a note");
        assert_eq!(info.name, "transport-tcp");
        assert_eq!(info.version, "1.2.3-rc.1");
        assert_eq!(info.families, family::TRANSPORT);
        assert_eq!((info.abi_major, info.abi_minor_min, info.abi_minor), (ABI_MAJOR, 0, ABI_MINOR));
        assert_eq!(info.sdk, concat!("rust ", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn other_notes_are_passed_over() {
        let mut section = Vec::new();
        // Owner "GNU", a description of 5 bytes and its padding.
        section.extend([4, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0]);
        section.extend(b"GNU\0");
        section.extend([1, 2, 3, 4, 5, 0, 0, 0]);
        assert_eq!(parse(&section), Err(NoteError::Absent));
        section.extend(bytes_of(&PluginNote::new("a", "1.0.0", 0)));
        assert_eq!(parse(&section).map(|info| info.name), Ok("a".to_owned()));
        assert_eq!(parse(&[]), Err(NoteError::Absent));
    }

    #[test]
    fn a_note_that_is_cut_or_garbled_is_refused() {
        let whole = bytes_of(&PluginNote::new("a", "1.0.0", 0));
        for length in 1..whole.len() {
            assert_eq!(parse(&whole[..length]), Err(NoteError::Truncated), "{length} bytes");
        }
        let mut garbled = whole.clone();
        garbled[36] = 0xFF;
        assert_eq!(parse(&garbled), Err(NoteError::BadText("name")));
        garbled[36] = b'\n';
        assert_eq!(parse(&garbled), Err(NoteError::BadText("name")));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn any_damage_is_answered(at in 0_usize..164, byte in any::<u8>()) {
            let mut bytes = bytes_of(&PluginNote::new("name", "1.0.0", 7));
            bytes[at] = byte;
            if let Ok(info) = parse(&bytes) {
                prop_assert!(info.name.len() <= NAME_BYTES);
            }
        }
    }
}
