//! Messages from one rank to another.

use std::ffi::{c_int, c_void};

use crate::collectives::enqueue;
use crate::types::{CommHandle, DataTypeNumber, ResultNumber, StreamHandle, data_type, rank};

/// Sends count elements to peer, which receives them with icclRecv. Messages to one peer arrive in
/// order. Two ranks that both send first and receive afterwards on one stream may wait for each other;
/// within a group they do not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: DataTypeNumber,
    peer: c_int,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultNumber {
    enqueue("icclSend", comm, stream, |communicator, stream| {
        let dtype = data_type(datatype)?;
        let peer = rank("peer", peer, communicator.ranks())?;
        // SAFETY: the caller promises it.
        let handle = unsafe { communicator.send_raw(sendbuff, count as u64, dtype, peer, stream) };
        Ok(handle?)
    })
}

/// Receives count elements that peer sends. count and datatype must be the sender's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeNumber,
    peer: c_int,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultNumber {
    enqueue("icclRecv", comm, stream, |communicator, stream| {
        let dtype = data_type(datatype)?;
        let peer = rank("peer", peer, communicator.ranks())?;
        // SAFETY: the caller promises it.
        let handle = unsafe { communicator.recv_raw(recvbuff, count as u64, dtype, peer, stream) };
        Ok(handle?)
    })
}
