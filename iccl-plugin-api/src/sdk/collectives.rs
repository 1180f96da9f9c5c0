//! Traits for native collectives libraries.

use core::ffi::c_void;

use super::{DeviceBackend, PluginError, PluginResult, Progress};
use crate::tables::CollectiveSupport;
use crate::{Collective, DataType, RedOp};

/// A library that runs collectives among devices of one kind.
pub trait NativeCollectives: Send + Sync + 'static {
    /// The devices that it works on: the device family of the same plugin.
    type Backend: DeviceBackend;
    /// A communicator of the library.
    type Communicator: NativeCommunicator;

    /// What the library can do. Called after `probe`.
    ///
    /// # Errors
    /// What the library says.
    fn facts(&self) -> PluginResult<CollectivesFacts>;

    /// A new unique id, exactly [`CollectivesFacts::unique_id_bytes`] long.
    ///
    /// # Errors
    /// What the library says.
    fn unique_id(&self) -> PluginResult<Vec<u8>>;

    /// Joins a communicator. Blocks until all ranks came; runs on an expendable thread.
    ///
    /// # Errors
    /// What the library says.
    fn join(
        &self,
        device: &<Self::Backend as DeviceBackend>::Device,
        unique_id: &[u8],
        ranks: u32,
        rank: u32,
    ) -> PluginResult<Self::Communicator>;

    /// Begins a group: the calls of this thread until `group_end` are issued together.
    ///
    /// # Errors
    /// `NotSupported`; what the library says.
    fn group_start(&self) -> PluginResult<()> {
        Err(PluginError::not_supported("this library has no groups"))
    }

    /// Ends a group and issues its calls.
    ///
    /// # Errors
    /// `NotSupported`; what the library says.
    fn group_end(&self) -> PluginResult<()> {
        Err(PluginError::not_supported("this library has no groups"))
    }
}

/// The device that a native library's calls run on.
pub type DeviceOf<C> = <<C as NativeCollectives>::Backend as DeviceBackend>::Device;

/// What a native library can do.
#[derive(Debug, Clone, Copy)]
pub struct CollectivesFacts {
    /// Length of a unique id in bytes, 1 to 65,536.
    pub unique_id_bytes: u64,
    /// The combinations that are right.
    pub support: &'static [CollectiveSupport],
    /// Bits of [`collectives_flag`](crate::tables::collectives_flag).
    pub flags: u64,
    /// Library and version; ranks share a communicator only if this text is equal.
    pub library: &'static str,
}

impl CollectiveSupport {
    /// `collective` with every one of `dtypes` and `ops` (none if it does not reduce).
    pub const fn new(collective: Collective, dtypes: &[DataType], ops: &[RedOp]) -> Self {
        let mut support = Self { collective: collective.code(), dtypes: 0, ops: 0, reserved: 0 };
        let mut index = 0;
        while index < dtypes.len() {
            support.dtypes |= dtypes[index].mask();
            index += 1;
        }
        index = 0;
        while index < ops.len() {
            support.ops |= ops[index].mask();
            index += 1;
        }
        support
    }
}

/// A communicator of a native library. Functions are called by one thread at a time, except where
/// one says "any thread".
///
/// Dropping it leaves the communicator; [`NativeCommunicator::leave`] can say what went wrong.
pub trait NativeCommunicator: Send + Sync + 'static {
    /// Enqueues one operation on a stream of the communicator's device.
    ///
    /// # Safety
    /// The buffers of the call are memory of the device, as large as the operation needs, and
    /// touched by nobody else until the stream is past it.
    ///
    /// # Errors
    /// `NotSupported` for a combination that the facts do not list; what the library says.
    unsafe fn call(&self, call: &NativeCall<'_>, stream: u64) -> PluginResult<()>;

    /// The error that the communicator met asynchronously, or whether it is still busy with being
    /// set up. Any thread.
    ///
    /// # Errors
    /// That error.
    fn async_error(&self) -> PluginResult<Progress>;

    /// Makes every pending call end. Any thread, also while another function runs.
    ///
    /// # Errors
    /// `NotSupported`; what the library says.
    fn abort(&self) -> PluginResult<()> {
        Err(PluginError::not_supported("this library cannot abort"))
    }

    /// Leaves and frees the communicator. May block.
    ///
    /// # Errors
    /// What the library says; it is freed all the same.
    fn leave(self) -> PluginResult<()>
    where
        Self: Sized,
    {
        Ok(())
    }
}

/// One operation for a native library, with its words known and its arrays borrowed.
#[derive(Debug, Clone, Copy)]
pub struct NativeCall<'a> {
    /// Which.
    pub collective: Collective,
    /// The type of an element.
    pub dtype: DataType,
    /// The reduction, for operations that reduce.
    pub op: Option<RedOp>,
    /// Root, or the peer of a send or a receive; 0 elsewhere.
    pub root: u32,
    /// Elements, by NCCL's meaning for the operation.
    pub count: u64,
    /// What is sent, or null.
    pub send: *const c_void,
    /// What is received, or null.
    pub receive: *mut c_void,
    /// Elements sent to each rank; empty unless the operation is a vector form.
    pub send_counts: &'a [u64],
    /// Displacements of these in elements; may be empty.
    pub send_displacements: &'a [u64],
    /// Elements received from each rank; empty unless the operation is a vector form.
    pub receive_counts: &'a [u64],
    /// Displacements of these in elements; may be empty.
    pub receive_displacements: &'a [u64],
}
