//! The tables: what crosses between the runtime and a plugin.
//!
//! Rules that hold for every table and every struct here:
//!
//! * `#[repr(C)]`, fixed-width integers, `u64` handles and counts, pointer + length. No Rust-ABI
//!   types, no allocation that one side makes and the other frees.
//! * A table begins with `struct_size` (bytes). Fields are only ever appended. A reader uses a field
//!   only if `struct_size` reaches past it, and reads it as absent otherwise; a null function
//!   pointer means "absent".
//! * Structs that are passed by pointer *without* a size of their own ([`Completion`], [`Segment`],
//!   …) are frozen for the life of this ABI major version. Those passed with a size
//!   ([`DeviceInfo`], the capability structs, …) may grow: the callee writes at most the size that
//!   it was given, the caller zeroes what it passes.
//! * Every function takes `error` last: null, or a place where the plugin writes what went wrong.
//!   It is written only when the answer is not [`Status::Ok`](crate::Status) or `Pending`.
//! * Threads: functions of one *object* (a device, a stream, a transport domain, a communicator) are
//!   called by one thread at a time, not always the same one, except where a field says "any
//!   thread". Functions of different objects may be called at the same time.
//! * Blocking: a function must not wait for another process or for a device unless its field says
//!   that it may.

mod collectives;
mod device;
mod plugin;
mod transport;

pub use collectives::*;
pub use device::*;
pub use plugin::*;
pub use transport::*;

use abi_stable::StableAbi;

/// The ABI's major version. Different majors never work together.
pub const ABI_MAJOR: u32 = 1;

/// The ABI's minor version. Grows when fields are appended; any two minors work together.
pub const ABI_MINOR: u32 = 0;

/// The name of the Rust door's symbol: an `abi_stable` library header.
pub const ROOT_SYMBOL: &str = "iccl_plugin_root_v1";

/// The name of the C door's symbol: `const iccl_plugin_table *iccl_plugin_entry_v1(void)`.
pub const ENTRY_SYMBOL: &str = "iccl_plugin_entry_v1";

/// Most bytes of text that an [`ErrorInfo`] holds.
pub const ERROR_MESSAGE_BYTES: usize = 496;

/// Why a call failed. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct ErrorInfo {
    /// The vendor's or the operating system's own error number, 0 if there is none.
    pub vendor_code: i64,
    /// Bytes of `message` that are used.
    pub message_length: u32,
    /// Zero.
    pub reserved: u32,
    /// UTF-8 text, one line, without a terminating zero.
    pub message: [u8; ERROR_MESSAGE_BYTES],
}

/// A borrowed run of bytes. Frozen. `data` may be null only if `length` is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct Bytes {
    /// First byte.
    pub data: *const u8,
    /// Number of bytes.
    pub length: u64,
}

impl Bytes {
    /// No bytes.
    pub const EMPTY: Self = Self { data: core::ptr::null(), length: 0 };

    /// A run of bytes that lives for ever.
    pub const fn from_static(text: &'static str) -> Self {
        Self::borrow(text.as_bytes())
    }

    /// A run of bytes that the receiver may read only while `bytes` is borrowed by the caller, for
    /// arguments of one call.
    pub const fn borrow(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr(), length: bytes.len() as u64 }
    }

    /// The bytes.
    ///
    /// # Safety
    /// `data` is null with `length` 0, or points to `length` readable bytes that nobody changes
    /// during `'a`.
    pub const unsafe fn as_slice<'a>(self) -> &'a [u8] {
        if self.data.is_null() || self.length == 0 {
            return &[];
        }
        // SAFETY: the caller promises it.
        unsafe { core::slice::from_raw_parts(self.data, self.length as usize) }
    }

    /// The bytes as text, or `None` if they are no UTF-8.
    ///
    /// # Safety
    /// As for [`Bytes::as_slice`].
    pub unsafe fn as_text<'a>(self) -> Option<&'a str> {
        // SAFETY: the caller promises it.
        core::str::from_utf8(unsafe { self.as_slice() }).ok()
    }
}

impl ErrorInfo {
    /// Nothing went wrong yet.
    #[allow(clippy::new_without_default, reason = "a place to write to, not a value")]
    pub const fn new() -> Self {
        Self { vendor_code: 0, message_length: 0, reserved: 0, message: [0; ERROR_MESSAGE_BYTES] }
    }

    /// The text, with what is no UTF-8 replaced.
    pub fn message(&self) -> std::borrow::Cow<'_, str> {
        let length = (self.message_length as usize).min(ERROR_MESSAGE_BYTES);
        String::from_utf8_lossy(&self.message[..length])
    }

    /// Sets the text, cut at the last whole character that fits.
    pub fn set_message(&mut self, text: &str) {
        let length = whole_characters(text, ERROR_MESSAGE_BYTES);
        self.message[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.message_length = length as u32;
    }
}

/// The largest number of bytes, at most `most`, after which `text` can be cut.
pub(crate) fn whole_characters(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0)
}

/// Bits of the families that a plugin offers, as its ELF note says them.
pub mod family {
    /// [`DeviceTable`](super::DeviceTable).
    pub const DEVICE: u32 = 1;
    /// [`CollectivesTable`](super::CollectivesTable).
    pub const COLLECTIVES: u32 = 2;
    /// [`TransportTable`](super::TransportTable).
    pub const TRANSPORT: u32 = 4;
}

/// A struct or table that may grow in a later minor version. All-zero bytes are a valid value of
/// each, which stands for "absent" in every field.
///
/// # Safety
/// Made of integers, pointers, `Option`s of function pointers, [`Bytes`] and arrays of these only.
pub(crate) unsafe trait Growing: Copy {
    /// The value in which everything is absent.
    fn absent() -> Self {
        // SAFETY: the trait's contract says that zeroes are a valid value.
        unsafe { core::mem::zeroed() }
    }

    /// Reads what the other side wrote with its own idea of the size: at most `size` bytes, and
    /// what is missing is absent.
    ///
    /// # Safety
    /// `source` points to `size` readable bytes, whatever its alignment.
    unsafe fn read_prefix(source: *const Self, size: u64) -> Self {
        let mut value = Self::absent();
        let bytes = (size as usize).min(size_of::<Self>());
        // SAFETY: the caller promises `size` readable bytes; `value` has room for `bytes`, and any
        // bytes that another version's struct begins with are valid by the trait's contract.
        unsafe {
            core::ptr::copy_nonoverlapping(
                source.cast::<u8>(),
                core::ptr::from_mut(&mut value).cast::<u8>(),
                bytes,
            );
        }
        value
    }

    /// Writes into a struct that the other side sized: at most `size` bytes. What lies beyond this
    /// version's struct stays as the caller zeroed it.
    ///
    /// # Safety
    /// `destination` points to `size` writable bytes, whatever its alignment.
    unsafe fn write_prefix(self, destination: *mut Self, size: u64) {
        let bytes = (size as usize).min(size_of::<Self>());
        // SAFETY: the caller promises `size` writable bytes, and `self` has `bytes` of them.
        unsafe {
            core::ptr::copy_nonoverlapping(
                core::ptr::from_ref(&self).cast::<u8>(),
                destination.cast::<u8>(),
                bytes,
            );
        }
    }
}

/// Marks structs as [`Growing`], and lets them stand behind a pointer in a signature that
/// `abi_stable` checks: their layout is then compared field by field, as that of a prefix.
macro_rules! growing {
    ($($name:ident, $prefix_ref:ident;)+) => {
        $(
            // SAFETY: made of the kinds of fields that the trait names.
            unsafe impl Growing for $name {}

            /// Everything absent. Name the fields you know and take the rest from here, so that a
            /// field of a later version does not break your source.
            impl Default for $name {
                fn default() -> Self {
                    Growing::absent()
                }
            }

            // SAFETY: the type has no parameters and is its own equivalent.
            unsafe impl abi_stable::abi_stability::GetStaticEquivalent_ for $name {
                type StaticEquivalent = Self;
            }

            // SAFETY: the layout is that of a reference to the struct's prefix. It is read only
            // through pointers to the struct, which never promise its size, so comparing the
            // prefixes is what a pointer needs.
            unsafe impl StableAbi for $name {
                type IsNonZeroType = abi_stable::reexports::False;
                const LAYOUT: &'static abi_stable::type_layout::TypeLayout =
                    <$prefix_ref as StableAbi>::LAYOUT;
            }
        )+
    };
}

growing! {
    PluginTable, PluginTableRef;
    PluginInfo, PluginInfoRef;
    HostTable, HostTableRef;
    DeviceTable, DeviceTableRef;
    DeviceInfo, DeviceInfoRef;
    DeviceCapabilities, DeviceCapabilitiesRef;
    MemoryRegion, MemoryRegionRef;
    CollectivesTable, CollectivesTableRef;
    CollectivesCapabilities, CollectivesCapabilitiesRef;
    TransportTable, TransportTableRef;
    TransportCapabilities, TransportCapabilitiesRef;
    DomainOptions, DomainOptionsRef;
    ChannelOptions, ChannelOptionsRef;
}
