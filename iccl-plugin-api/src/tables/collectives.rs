//! The native collectives family: a maker's own library, or the host device's own.

use core::ffi::c_void;

use abi_stable::StableAbi;

use super::ErrorInfo;

/// Functions of a native collectives library. All mandatory unless said.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
#[sabi(kind(Prefix(prefix_ref = CollectivesTableRef, prefix_fields = CollectivesTablePrefix)))]
#[sabi(missing_field(option))]
pub struct CollectivesTable {
    /// Bytes of this table as the plugin was built.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// What the library can do on the devices of this plugin.
    pub capabilities: Option<
        unsafe extern "C" fn(
            capabilities: *mut CollectivesCapabilities,
            size: u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Writes a new unique id of `unique_id_bytes` bytes.
    pub unique_id:
        Option<unsafe extern "C" fn(id: *mut u8, capacity: u64, error: *mut ErrorInfo) -> i32>,
    /// Joins a communicator of `ranks` as `rank` with the id of its rank 0. Blocks until all came,
    /// so it is called on an expendable thread with a deadline.
    pub communicator_create: Option<
        unsafe extern "C" fn(
            device: u64,
            id: *const u8,
            id_bytes: u64,
            ranks: u32,
            rank: u32,
            communicator: *mut u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Leaves and frees the communicator. May block.
    pub communicator_destroy:
        Option<unsafe extern "C" fn(communicator: u64, error: *mut ErrorInfo) -> i32>,
    /// Optional. Makes every pending call of the communicator end. Any thread.
    pub communicator_abort:
        Option<unsafe extern "C" fn(communicator: u64, error: *mut ErrorInfo) -> i32>,
    /// `Ok`, `Pending`, or the error that the communicator met asynchronously. Any thread.
    pub async_error: Option<unsafe extern "C" fn(communicator: u64, error: *mut ErrorInfo) -> i32>,
    /// Enqueues one operation on `stream` of the communicator's device.
    pub call: Option<
        unsafe extern "C" fn(
            communicator: u64,
            call: *const CollectiveCall,
            stream: u64,
            error: *mut ErrorInfo,
        ) -> i32,
    >,
    /// Begins a group: the calls until `group_end` are issued together.
    pub group_start: Option<unsafe extern "C" fn(error: *mut ErrorInfo) -> i32>,
    /// Ends a group and issues its calls.
    #[sabi(last_prefix_field)]
    pub group_end: Option<unsafe extern "C" fn(error: *mut ErrorInfo) -> i32>,
}

/// One operation for a native library. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct CollectiveCall {
    /// A [`Collective`](crate::Collective) number.
    pub collective: u32,
    /// A [`DataType`](crate::DataType) number.
    pub dtype: u32,
    /// A [`RedOp`](crate::RedOp) number; 0 where the operation does not reduce.
    pub op: u32,
    /// Root, or the peer of a send or a receive; 0 elsewhere.
    pub root: u32,
    /// Elements, by NCCL's meaning for the operation.
    pub count: u64,
    /// What is sent, or null.
    pub send: *const c_void,
    /// What is received, or null.
    pub receive: *mut c_void,
    /// Elements for each rank in the vector forms (host memory, one per rank), else null.
    pub send_counts: *const u64,
    /// Displacements in elements for each rank, or null.
    pub send_displacements: *const u64,
    /// As `send_counts`, for what is received.
    pub receive_counts: *const u64,
    /// As `send_displacements`, for what is received.
    pub receive_displacements: *const u64,
    /// Zeroes.
    pub reserved: [u64; 4],
}

/// What a native library can do. May grow.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
#[sabi(kind(Prefix(prefix_ref = CollectivesCapabilitiesRef, prefix_fields = CollectivesCapabilitiesPrefix)))]
#[sabi(missing_field(option))]
pub struct CollectivesCapabilities {
    /// Length of a unique id in bytes, 1 to 65,536.
    pub unique_id_bytes: u64,
    /// The combinations that are right, a static of the plugin.
    pub support: *const CollectiveSupport,
    /// Number of entries of `support`.
    pub support_count: u64,
    /// Bits of [`collectives_flag`].
    pub flags: u64,
    /// Two ranks can share a native communicator only if this text is equal (library and version).
    #[sabi(last_prefix_field)]
    pub library: super::Bytes,
}

/// Bits of [`CollectivesCapabilities::flags`].
pub mod collectives_flag {
    /// 8- and 16-bit floats are accumulated in f32 and rounded once.
    pub const ACCUMULATES_IN_F32: u64 = 1;
    /// The same inputs give the same bits on every run.
    pub const DETERMINISTIC: u64 = 2;
    /// Several calls can be grouped.
    pub const GROUPS: u64 = 4;
    /// At most one send to each peer in a group.
    pub const ONE_SEND_PER_PEER_AND_GROUP: u64 = 8;
    /// `send` and `receive` may be the same buffer.
    pub const IN_PLACE: u64 = 16;
}

/// One combination that a native library offers: `collective` with every dtype of `dtypes` and every
/// op of `ops`. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct CollectiveSupport {
    /// A [`Collective`](crate::Collective) number; unknown numbers are ignored.
    pub collective: u32,
    /// Mask of [`DataType::mask`](crate::DataType::mask).
    pub dtypes: u32,
    /// Mask of [`RedOp::mask`](crate::RedOp::mask); 0 where the operation does not reduce. A call of
    /// this version has no place for a scalar, so a claim of a pre-multiplied sum is struck off, as are
    /// bitwise operations on floats.
    pub ops: u32,
    /// Zero.
    pub reserved: u32,
}
