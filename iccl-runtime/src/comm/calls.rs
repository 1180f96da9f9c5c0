//! Collectives whose blocks are all as long, and the barrier: each on buffers, and on memory that iccl
//! does not own. What the arguments mean is told once for both forms, in [`Call`].

use std::ffi::c_void;

use iccl_plugin_api::DataType;

use super::buffer::Buffer;
use super::call::Call;
use super::communicator::Communicator;
use super::handle::Handle;
use super::reduction::Reduction;
use super::stream::Stream;
use crate::Result;

impl Communicator {
    /// Every rank gets the reduction of all ranks' `send`: `count` elements of `dtype`.
    ///
    /// Sums of 8- and 16-bit floats are accumulated in f32 and rounded once; integers wrap; a NaN on
    /// any rank makes minimum and maximum NaN; AVG divides the sum, in a wider form, by the number of
    /// ranks, and truncates towards zero for integers; bits are combined of integers only; in a
    /// pre-multiplied sum ([`Reduction::pre_mul_sum`]) each rank's contribution is multiplied by a scalar
    /// of its own first. All ranks get the same bits. The rules in full, and what shows them, are in
    /// `docs/numerics.md`.
    ///
    /// # Errors
    /// `InvalidArgument` for buffers that are too small or overlap; `NotSupported` for a dtype and
    /// op that cannot be reduced; the error that ended the communicator.
    pub fn all_reduce(
        &self,
        send: &Buffer,
        receive: &Buffer,
        count: u64,
        dtype: DataType,
        op: impl Into<Reduction>,
        stream: &Stream,
    ) -> Result<Handle> {
        self.call_on_buffers(
            Call::all_reduce(count, dtype, op.into()),
            Some(send),
            Some(receive),
            stream,
        )
    }

    /// As [`Communicator::all_reduce`], on memory that iccl does not own.
    ///
    /// # Safety
    /// Both are memory of the communicator's device for `count` elements that stays valid, and is
    /// used by nobody else in a conflicting way, until the operation is over.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub unsafe fn all_reduce_raw(
        &self,
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        dtype: DataType,
        op: impl Into<Reduction>,
        stream: &Stream,
    ) -> Result<Handle> {
        // SAFETY: the caller promises it.
        unsafe {
            self.call_on_memory(Call::all_reduce(count, dtype, op.into()), send, receive, stream)
        }
    }

    /// The root gets the reduction of all ranks' `send`: `count` elements of `dtype`, by the rules of
    /// [`Communicator::all_reduce`]. On other ranks `receive` is not looked at and may be `None`.
    /// In place on the root: both the same.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `InvalidArgument` for a root that is no rank.
    #[allow(clippy::too_many_arguments)] // NCCL's, in NCCL's order.
    pub fn reduce(
        &self,
        send: &Buffer,
        receive: Option<&Buffer>,
        count: u64,
        dtype: DataType,
        op: impl Into<Reduction>,
        root: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        self.call_on_buffers(
            Call::reduce(count, dtype, op.into(), root),
            Some(send),
            receive,
            stream,
        )
    }

    /// As [`Communicator::reduce`], on memory that iccl does not own.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`], for as many elements as [`Communicator::reduce`] says.
    /// `receive` may be null except on the root.
    ///
    /// # Errors
    /// As [`Communicator::reduce`].
    #[allow(clippy::too_many_arguments)] // NCCL's, in NCCL's order.
    pub unsafe fn reduce_raw(
        &self,
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        dtype: DataType,
        op: impl Into<Reduction>,
        root: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        // SAFETY: the caller promises it.
        unsafe {
            self.call_on_memory(Call::reduce(count, dtype, op.into(), root), send, receive, stream)
        }
    }

    /// Every rank gets the root's `send`. On other ranks `send` is not looked at and may be `None`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `InvalidArgument` for a root that is no rank.
    pub fn broadcast(
        &self,
        send: Option<&Buffer>,
        receive: &Buffer,
        count: u64,
        dtype: DataType,
        root: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        self.call_on_buffers(Call::broadcast(count, dtype, root), send, Some(receive), stream)
    }

    /// As [`Communicator::broadcast`], on memory that iccl does not own.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`]; `send` may be null except on the root.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub unsafe fn broadcast_raw(
        &self,
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        dtype: DataType,
        root: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        // SAFETY: the caller promises it.
        unsafe { self.call_on_memory(Call::broadcast(count, dtype, root), send, receive, stream) }
    }

    /// Every rank gets all ranks' `send`, `count` elements each, one after the other: `receive` holds
    /// ranks · count elements. In place: `send` is where this rank's block goes, `receive` + rank ·
    /// count.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_gather(
        &self,
        send: &Buffer,
        receive: &Buffer,
        count: u64,
        dtype: DataType,
        stream: &Stream,
    ) -> Result<Handle> {
        self.call_on_buffers(Call::all_gather(count, dtype), Some(send), Some(receive), stream)
    }

    /// As [`Communicator::all_gather`], on memory that iccl does not own.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`], for as many elements as [`Communicator::all_gather`] says.
    ///
    /// # Errors
    /// As [`Communicator::all_gather`].
    pub unsafe fn all_gather_raw(
        &self,
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        dtype: DataType,
        stream: &Stream,
    ) -> Result<Handle> {
        // SAFETY: the caller promises it.
        unsafe { self.call_on_memory(Call::all_gather(count, dtype), send, receive, stream) }
    }

    /// Every rank gets its block of the reduction of all ranks' `send`, by the rules of
    /// [`Communicator::all_reduce`]. `count` is the length of a block: `send` holds ranks · count
    /// elements, so a vector whose length is no multiple of the ranks is padded, or cut with
    /// [`Communicator::reduce_scatter_v`]. In place: `receive` is this rank's block of `send`, `send` + rank · count; the
    /// other blocks stay as they are.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn reduce_scatter(
        &self,
        send: &Buffer,
        receive: &Buffer,
        count: u64,
        dtype: DataType,
        op: impl Into<Reduction>,
        stream: &Stream,
    ) -> Result<Handle> {
        self.call_on_buffers(
            Call::reduce_scatter(count, dtype, op.into()),
            Some(send),
            Some(receive),
            stream,
        )
    }

    /// As [`Communicator::reduce_scatter`], on memory that iccl does not own.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`], for as many elements as [`Communicator::reduce_scatter`] says.
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter`].
    pub unsafe fn reduce_scatter_raw(
        &self,
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        dtype: DataType,
        op: impl Into<Reduction>,
        stream: &Stream,
    ) -> Result<Handle> {
        // SAFETY: the caller promises it.
        unsafe {
            self.call_on_memory(
                Call::reduce_scatter(count, dtype, op.into()),
                send,
                receive,
                stream,
            )
        }
    }

    /// The root gets all ranks' `send`, `count` elements each, one after the other: its `receive` holds
    /// ranks · count elements. On other ranks `receive` is not looked at and may be `None`. In place
    /// on the root: `send` is where its own block goes, `receive` + root · count.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `InvalidArgument` for a root that is no rank.
    pub fn gather(
        &self,
        send: &Buffer,
        receive: Option<&Buffer>,
        count: u64,
        dtype: DataType,
        root: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        self.call_on_buffers(Call::gather(count, dtype, root), Some(send), receive, stream)
    }

    /// As [`Communicator::gather`], on memory that iccl does not own.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`], for as many elements as [`Communicator::gather`] says.
    /// `receive` may be null except on the root.
    ///
    /// # Errors
    /// As [`Communicator::gather`].
    pub unsafe fn gather_raw(
        &self,
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        dtype: DataType,
        root: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        // SAFETY: the caller promises it.
        unsafe { self.call_on_memory(Call::gather(count, dtype, root), send, receive, stream) }
    }

    /// Every rank gets its block, `count` elements, of the root's `send`, which holds ranks · count
    /// elements. On other ranks `send` is not looked at and may be `None`. In place on the root:
    /// `receive` is its own block, `send` + root · count.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `InvalidArgument` for a root that is no rank.
    pub fn scatter(
        &self,
        send: Option<&Buffer>,
        receive: &Buffer,
        count: u64,
        dtype: DataType,
        root: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        self.call_on_buffers(Call::scatter(count, dtype, root), send, Some(receive), stream)
    }

    /// As [`Communicator::scatter`], on memory that iccl does not own.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`], for as many elements as [`Communicator::scatter`] says.
    /// `send` may be null except on the root.
    ///
    /// # Errors
    /// As [`Communicator::scatter`].
    pub unsafe fn scatter_raw(
        &self,
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        dtype: DataType,
        root: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        // SAFETY: the caller promises it.
        unsafe { self.call_on_memory(Call::scatter(count, dtype, root), send, receive, stream) }
    }

    /// Every rank sends block r of its `send` to rank r, and gets the block from rank r as block r of
    /// `receive`. `count` is the length of a block: both hold ranks · count elements. In place: both
    /// the same (chunks then wait in memory of iccl's own until what they replace was sent).
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_to_all(
        &self,
        send: &Buffer,
        receive: &Buffer,
        count: u64,
        dtype: DataType,
        stream: &Stream,
    ) -> Result<Handle> {
        self.call_on_buffers(Call::all_to_all(count, dtype), Some(send), Some(receive), stream)
    }

    /// As [`Communicator::all_to_all`], on memory that iccl does not own.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`], for as many elements as [`Communicator::all_to_all`] says.
    ///
    /// # Errors
    /// As [`Communicator::all_to_all`].
    pub unsafe fn all_to_all_raw(
        &self,
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        dtype: DataType,
        stream: &Stream,
    ) -> Result<Handle> {
        // SAFETY: the caller promises it.
        unsafe { self.call_on_memory(Call::all_to_all(count, dtype), send, receive, stream) }
    }

    /// No rank passes before every rank has come.
    ///
    /// # Errors
    /// The error that ended the communicator.
    pub fn barrier(&self, stream: &Stream) -> Result<Handle> {
        self.call_on_buffers(Call::barrier(), None, None, stream)
    }
}
