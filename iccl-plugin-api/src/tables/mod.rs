//! The tables: what crosses between the runtime and a plugin.
//!
//! Rules that hold for every table and every struct here:
//!
//! * `#[repr(C)]`, fixed-width integers, `u64` handles and counts, pointer + length. No Rust-ABI
//!   types, no allocation that one side makes and the other frees.
//! * A table begins with `struct_size` (bytes). Fields are only ever appended. A reader uses a field
//!   only if `struct_size` reaches past it ([`field_present`]); a null function pointer means
//!   "absent".
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

/// The ABI's major version. Different majors never work together.
pub const ABI_MAJOR: u32 = 1;

/// The ABI's minor version. Grows when fields are appended; any two minors work together.
pub const ABI_MINOR: u32 = 0;

/// The name of the C door's symbol: `const iccl_plugin_table *iccl_plugin_entry_v1(void)`.
pub const ENTRY_SYMBOL: &str = "iccl_plugin_entry_v1";

/// Most bytes of text that an [`ErrorInfo`] holds.
pub const ERROR_MESSAGE_BYTES: usize = 496;

/// Why a call failed. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug, abi_stable::StableAbi)]
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
#[derive(Clone, Copy, Debug, abi_stable::StableAbi)]
pub struct Bytes {
    /// First byte.
    pub data: *const u8,
    /// Number of bytes.
    pub length: u64,
}

/// Whether `$field` of the table `$table` lies inside the `struct_size` that the table states.
///
/// `$table` is a `*const` to a table; the expression reads only its `struct_size`.
#[macro_export]
macro_rules! field_present {
    ($table:expr, $type:ty, $field:ident, $struct_size:expr) => {{
        let _: *const $type = $table;
        let end =
            core::mem::offset_of!($type, $field) + $crate::tables::size_of_field!($type, $field);
        ($struct_size as usize) >= end
    }};
}

/// Size in bytes of a field of a struct.
#[macro_export]
#[doc(hidden)]
macro_rules! size_of_field {
    ($type:ty, $field:ident) => {{
        const fn size<T, F>(_: fn(&T) -> &F) -> usize {
            core::mem::size_of::<F>()
        }
        size(|value: &$type| &value.$field)
    }};
}

#[doc(hidden)]
pub use size_of_field;
