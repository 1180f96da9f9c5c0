//! Secrets and what is derived from them.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

/// A 256-bit secret. Wiped when dropped; `Debug` does not show it; compared in constant time.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// The length of a key.
    pub const BYTES: usize = 32;

    /// A fresh key from the kernel's generator.
    ///
    /// # Errors
    ///
    /// The kernel's generator cannot be read.
    pub fn generate() -> std::io::Result<Self> {
        let mut key = Self([0; 32]);
        fill_random(&mut key.0)?;
        Ok(key)
    }

    /// The key with these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key for material of any length, such as the content of a secret file. The result is as
    /// hard to guess as the material.
    pub fn from_material(label: &str, material: &[u8]) -> Self {
        Self([0; 32]).derive(label, material)
    }

    /// The secret itself, to be stored or sent where its reader is entitled to it.
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// Another key, bound to `label` (what it is for) and `context` (which one of those). Knowing
    /// the derived key tells nothing about this one or about its other derivations.
    #[must_use]
    pub fn derive(&self, label: &str, context: &[u8]) -> Self {
        Self(self.mac(&[b"iccl derive 1", label.as_bytes(), context]))
    }

    /// HMAC-SHA256 over `parts`, each preceded by its length so that no two lists of parts collide.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&self.0)
            .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Key {}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(redacted)")
    }
}

/// Fills `bytes` from the kernel's generator.
pub(crate) fn fill_random(bytes: &mut [u8]) -> std::io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivations_differ_by_label_and_context_and_are_repeatable() {
        let key = Key::from_bytes([7; 32]);
        assert_eq!(key.derive("tree", b"1"), key.derive("tree", b"1"));
        assert_ne!(key.derive("tree", b"1"), key.derive("tree", b"2"));
        assert_ne!(key.derive("tree", b"1"), key.derive("data", b"1"));
        // The border between label and context is part of the input.
        assert_ne!(key.derive("ab", b"c"), key.derive("a", b"bc"));
        assert_ne!(key.derive("tree", b"1"), key);
    }

    #[test]
    fn mac_is_hmac_sha256() {
        // The encoding of one part, written out by hand.
        let key = Key::from_bytes([1; 32]);
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&[1; 32]).unwrap();
        mac.update(&[2, 0, 0, 0, 0, 0, 0, 0, b'h', b'i']);
        let expected: [u8; 32] = mac.finalize().into_bytes().into();
        assert_eq!(key.mac(&[b"hi"]), expected);
    }

    #[test]
    fn debug_redacts() {
        assert_eq!(format!("{:?}", Key::from_bytes([0xab; 32])), "Key(redacted)");
    }

    #[test]
    fn generated_keys_differ() {
        assert_ne!(Key::generate().unwrap(), Key::generate().unwrap());
    }
}
