//! Collectives whose blocks are all as long, and reduce: each on buffers, and on memory that iccl does
//! not own.

use std::ffi::c_void;

use iccl_plugin_api::{Collective, DataType, RedOp};

use super::buffer::Buffer;
use super::communicator::{Call, Communicator, Operand};
use super::handle::Handle;
use super::stream::Stream;
use crate::Result;

impl Communicator {
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
        op: RedOp,
        root: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        let send = self.operand(send)?;
        let receive = self.operand_on(root, receive)?;
        let collective = Collective::Reduce;
        let call = Call { collective, dtype, op, count, root, send, receive, stream };
        // SAFETY: operands made of buffers are kept alive by the operation.
        unsafe { self.call(call) }
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
        op: RedOp,
        root: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        let send = Operand::raw(send.cast_mut());
        let receive = self.raw_on(root, receive);
        let collective = Collective::Reduce;
        let call = Call { collective, dtype, op, count, root, send, receive, stream };
        // SAFETY: the caller promises it.
        unsafe { self.call(call) }
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
        let send = self.operand(send)?;
        let receive = self.operand(receive)?;
        let collective = Collective::AllGather;
        let call =
            Call { collective, dtype, op: RedOp::Sum, count, root: 0, send, receive, stream };
        // SAFETY: operands made of buffers are kept alive by the operation.
        unsafe { self.call(call) }
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
        let send = Operand::raw(send.cast_mut());
        let receive = Operand::raw(receive);
        let collective = Collective::AllGather;
        let call =
            Call { collective, dtype, op: RedOp::Sum, count, root: 0, send, receive, stream };
        // SAFETY: the caller promises it.
        unsafe { self.call(call) }
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
        op: RedOp,
        stream: &Stream,
    ) -> Result<Handle> {
        let send = self.operand(send)?;
        let receive = self.operand(receive)?;
        let collective = Collective::ReduceScatter;
        let call = Call { collective, dtype, op, count, root: 0, send, receive, stream };
        // SAFETY: operands made of buffers are kept alive by the operation.
        unsafe { self.call(call) }
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
        op: RedOp,
        stream: &Stream,
    ) -> Result<Handle> {
        let send = Operand::raw(send.cast_mut());
        let receive = Operand::raw(receive);
        let collective = Collective::ReduceScatter;
        let call = Call { collective, dtype, op, count, root: 0, send, receive, stream };
        // SAFETY: the caller promises it.
        unsafe { self.call(call) }
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
        let send = self.operand(send)?;
        let receive = self.operand_on(root, receive)?;
        let collective = Collective::Gather;
        let call = Call { collective, dtype, op: RedOp::Sum, count, root, send, receive, stream };
        // SAFETY: operands made of buffers are kept alive by the operation.
        unsafe { self.call(call) }
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
        let send = Operand::raw(send.cast_mut());
        let receive = self.raw_on(root, receive);
        let collective = Collective::Gather;
        let call = Call { collective, dtype, op: RedOp::Sum, count, root, send, receive, stream };
        // SAFETY: the caller promises it.
        unsafe { self.call(call) }
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
        let send = self.operand_on(root, send)?;
        let receive = self.operand(receive)?;
        let collective = Collective::Scatter;
        let call = Call { collective, dtype, op: RedOp::Sum, count, root, send, receive, stream };
        // SAFETY: operands made of buffers are kept alive by the operation.
        unsafe { self.call(call) }
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
        let send = self.raw_on(root, send.cast_mut());
        let receive = Operand::raw(receive);
        let collective = Collective::Scatter;
        let call = Call { collective, dtype, op: RedOp::Sum, count, root, send, receive, stream };
        // SAFETY: the caller promises it.
        unsafe { self.call(call) }
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
        let send = self.operand(send)?;
        let receive = self.operand(receive)?;
        let collective = Collective::AllToAll;
        let call =
            Call { collective, dtype, op: RedOp::Sum, count, root: 0, send, receive, stream };
        // SAFETY: operands made of buffers are kept alive by the operation.
        unsafe { self.call(call) }
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
        let send = Operand::raw(send.cast_mut());
        let receive = Operand::raw(receive);
        let collective = Collective::AllToAll;
        let call =
            Call { collective, dtype, op: RedOp::Sum, count, root: 0, send, receive, stream };
        // SAFETY: the caller promises it.
        unsafe { self.call(call) }
    }

    /// A buffer that only the root uses.
    pub(super) fn operand_on(&self, root: u32, buffer: Option<&Buffer>) -> Result<Operand> {
        match buffer {
            Some(buffer) if self.rank() == root => self.operand(buffer),
            _ => Ok(Operand::NONE),
        }
    }

    /// Memory that only the root uses.
    pub(super) fn raw_on(&self, root: u32, pointer: *mut c_void) -> Operand {
        if self.rank() == root { Operand::raw(pointer) } else { Operand::NONE }
    }
}
