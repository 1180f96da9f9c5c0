//! Send and receive: each on a buffer, and on memory that iccl does not own.

use std::ffi::c_void;
use std::ptr;

use iccl_plugin_api::DataType;

use super::buffer::Buffer;
use super::call::Call;
use super::communicator::Communicator;
use super::handle::Handle;
use super::stream::Stream;
use crate::Result;

impl Communicator {
    /// Sends `count` elements to `peer`, which receives them with [`Communicator::recv`]. Messages to
    /// one peer arrive in order. A send is over when the transport needs the buffer no more; it may
    /// wait for the peer to receive, so two ranks that both send first and receive afterwards on one
    /// stream wait for each other and end with `Timeout`; in one [`Group`](super::Group) they complete. It may also be over before the peer has
    /// looked at the message: if that then receives another count or dtype, the receive ends with
    /// `Mismatch` before a byte is written, and this rank learns of it within a moment through
    /// [`Communicator::async_error`] and every later call.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `InvalidArgument` for a peer that is no rank, and for this rank
    /// itself outside a group.
    pub fn send(
        &self,
        send: &Buffer,
        count: u64,
        dtype: DataType,
        peer: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        self.call_on_buffers(Call::send(count, dtype, peer), Some(send), None, stream)
    }

    /// As [`Communicator::send`], on memory that iccl does not own.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`].
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub unsafe fn send_raw(
        &self,
        send: *const c_void,
        count: u64,
        dtype: DataType,
        peer: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        // SAFETY: the caller promises it.
        unsafe {
            self.call_on_memory(Call::send(count, dtype, peer), send, ptr::null_mut(), stream)
        }
    }

    /// Receives `count` elements that `peer` sends. Count and dtype must be the sender's.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub fn recv(
        &self,
        receive: &Buffer,
        count: u64,
        dtype: DataType,
        peer: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        self.call_on_buffers(Call::recv(count, dtype, peer), None, Some(receive), stream)
    }

    /// As [`Communicator::recv`], on memory that iccl does not own.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`].
    ///
    /// # Errors
    /// As [`Communicator::recv`].
    pub unsafe fn recv_raw(
        &self,
        receive: *mut c_void,
        count: u64,
        dtype: DataType,
        peer: u32,
        stream: &Stream,
    ) -> Result<Handle> {
        // SAFETY: the caller promises it.
        unsafe { self.call_on_memory(Call::recv(count, dtype, peer), ptr::null(), receive, stream) }
    }
}
