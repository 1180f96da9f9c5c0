//! The vector forms: collectives with a count per rank. Each on buffers, and on memory that iccl does
//! not own.
//!
//! Counts and displacements are in elements. Which of them a rank must know is told with
//! [`Counts`]; where two ranks know the same count, they are compared before a receive buffer is written,
//! and a difference is `Mismatch` on every rank. (In an all-to-all-v, a third rank that agrees with
//! everyone may have got all its blocks, rightly, by then.) Blocks may be empty, and then their
//! displacement means nothing; what lies between blocks is not touched.

use std::ffi::c_void;

use iccl_plugin_api::DataType;

use super::buffer::Buffer;
use super::call::Call;
use super::communicator::Communicator;
use super::handle::Handle;
use super::reduction::Reduction;
use super::stream::Stream;
use crate::Result;
use crate::schedule::Block;

impl Communicator {
    /// Every rank gets all ranks' `send`. `blocks[r]` tells how many elements rank r sends, and where
    /// they go in `receive`; all ranks must give the same counts, each its own displacements. In place:
    /// `send` is where this rank's block goes.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `InvalidArgument` for counts that contradict each other, blocks
    /// that overlap.
    pub fn all_gather_v(
        &self,
        send: &Buffer,
        receive: &Buffer,
        blocks: &[Block],
        dtype: DataType,
        stream: &Stream,
    ) -> Result<Handle> {
        self.call_on_buffers(Call::all_gather_v(blocks, dtype), Some(send), Some(receive), stream)
    }

    /// As [`Communicator::all_gather_v`], on memory that iccl does not own.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`], as far as the blocks reach; memory that no block reaches may
    /// be null.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_v`].
    pub unsafe fn all_gather_v_raw(
        &self,
        send: *const c_void,
        receive: *mut c_void,
        blocks: &[Block],
        dtype: DataType,
        stream: &Stream,
    ) -> Result<Handle> {
        // SAFETY: the caller promises it.
        unsafe { self.call_on_memory(Call::all_gather_v(blocks, dtype), send, receive, stream) }
    }

    /// Every rank gets its block of the reduction of all ranks' `send`, by the rules of
    /// [`Communicator::all_reduce`]. `blocks[r]` tells where in `send` the elements for rank r are; all
    /// ranks must give the same counts, each its own displacements, and blocks must not overlap.
    /// `receive` holds as many elements as this rank's block. In place: `receive` is this rank's block
    /// of `send`; the other blocks stay as they are.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `InvalidArgument` for counts that contradict each other, blocks
    /// that overlap.
    pub fn reduce_scatter_v(
        &self,
        send: &Buffer,
        receive: &Buffer,
        blocks: &[Block],
        dtype: DataType,
        op: impl Into<Reduction>,
        stream: &Stream,
    ) -> Result<Handle> {
        self.call_on_buffers(
            Call::reduce_scatter_v(blocks, dtype, op.into()),
            Some(send),
            Some(receive),
            stream,
        )
    }

    /// As [`Communicator::reduce_scatter_v`], on memory that iccl does not own.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`], as far as the blocks reach; memory that no block reaches may
    /// be null.
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter_v`].
    pub unsafe fn reduce_scatter_v_raw(
        &self,
        send: *const c_void,
        receive: *mut c_void,
        blocks: &[Block],
        dtype: DataType,
        op: impl Into<Reduction>,
        stream: &Stream,
    ) -> Result<Handle> {
        // SAFETY: the caller promises it.
        unsafe {
            self.call_on_memory(
                Call::reduce_scatter_v(blocks, dtype, op.into()),
                send,
                receive,
                stream,
            )
        }
    }

    /// The root gets all ranks' `send`, `send_count` elements of this one. On the root, `blocks[r]`
    /// tells how many come from rank r, and where they go in `receive`; on other ranks `receive` and
    /// `blocks` are not looked at. In place on the root: `send` is where its own block goes.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `InvalidArgument` for counts that contradict each other, blocks
    /// that overlap, and a root that is no rank.
    #[allow(clippy::too_many_arguments)] // MPI's, in MPI's order.
    pub fn gather_v(
        &self,
        send: &Buffer,
        send_count: u64,
        receive: Option<&Buffer>,
        blocks: &[Block],
        dtype: DataType,
        root: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        self.call_on_buffers(
            Call::gather_v(send_count, self.blocks_on(root, blocks), dtype, root),
            Some(send),
            receive,
            stream,
        )
    }

    /// As [`Communicator::gather_v`], on memory that iccl does not own.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`], as far as the blocks reach; memory that no block reaches may
    /// be null.
    ///
    /// # Errors
    /// As [`Communicator::gather_v`].
    #[allow(clippy::too_many_arguments)] // MPI's, in MPI's order.
    pub unsafe fn gather_v_raw(
        &self,
        send: *const c_void,
        send_count: u64,
        receive: *mut c_void,
        blocks: &[Block],
        dtype: DataType,
        root: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        // SAFETY: the caller promises it.
        unsafe {
            self.call_on_memory(
                Call::gather_v(send_count, self.blocks_on(root, blocks), dtype, root),
                send,
                receive,
                stream,
            )
        }
    }

    /// Every rank gets its block of the root's `send`, `receive_count` elements on this one. On the
    /// root, `blocks[r]` tells where in `send` the elements for rank r are; on other ranks `send` and
    /// `blocks` are not looked at. In place on the root: `receive` is its own block.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `InvalidArgument` for counts that contradict each other, blocks
    /// that overlap, and a root that is no rank.
    #[allow(clippy::too_many_arguments)] // MPI's, in MPI's order.
    pub fn scatter_v(
        &self,
        send: Option<&Buffer>,
        blocks: &[Block],
        receive: &Buffer,
        receive_count: u64,
        dtype: DataType,
        root: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        self.call_on_buffers(
            Call::scatter_v(self.blocks_on(root, blocks), receive_count, dtype, root),
            send,
            Some(receive),
            stream,
        )
    }

    /// As [`Communicator::scatter_v`], on memory that iccl does not own.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`], as far as the blocks reach; memory that no block reaches may
    /// be null.
    ///
    /// # Errors
    /// As [`Communicator::scatter_v`].
    #[allow(clippy::too_many_arguments)] // MPI's, in MPI's order.
    pub unsafe fn scatter_v_raw(
        &self,
        send: *const c_void,
        blocks: &[Block],
        receive: *mut c_void,
        receive_count: u64,
        dtype: DataType,
        root: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        // SAFETY: the caller promises it.
        unsafe {
            self.call_on_memory(
                Call::scatter_v(self.blocks_on(root, blocks), receive_count, dtype, root),
                send,
                receive,
                stream,
            )
        }
    }

    /// Every rank sends each rank a block and gets one from it: `send_blocks[r]` tells where in `send`
    /// the elements for rank r are, `receive_blocks[r]` how many come from rank r, and where they go in
    /// `receive`. There is no form in place.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `InvalidArgument` for counts that contradict each other, blocks
    /// that overlap.
    pub fn all_to_all_v(
        &self,
        send: &Buffer,
        send_blocks: &[Block],
        receive: &Buffer,
        receive_blocks: &[Block],
        dtype: DataType,
        stream: &Stream,
    ) -> Result<Handle> {
        self.call_on_buffers(
            Call::all_to_all_v(send_blocks, receive_blocks, dtype),
            Some(send),
            Some(receive),
            stream,
        )
    }

    /// As [`Communicator::all_to_all_v`], on memory that iccl does not own.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`], as far as the blocks reach; memory that no block reaches may
    /// be null.
    ///
    /// # Errors
    /// As [`Communicator::all_to_all_v`].
    pub unsafe fn all_to_all_v_raw(
        &self,
        send: *const c_void,
        send_blocks: &[Block],
        receive: *mut c_void,
        receive_blocks: &[Block],
        dtype: DataType,
        stream: &Stream,
    ) -> Result<Handle> {
        // SAFETY: the caller promises it.
        unsafe {
            self.call_on_memory(
                Call::all_to_all_v(send_blocks, receive_blocks, dtype),
                send,
                receive,
                stream,
            )
        }
    }

    /// Blocks that only the root knows.
    fn blocks_on<'a>(&self, root: u32, blocks: &'a [Block]) -> &'a [Block] {
        if self.rank() == root { blocks } else { &[] }
    }
}
