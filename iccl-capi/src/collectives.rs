//! Collectives whose blocks are all as long.

use std::ffi::{c_int, c_void};

use iccl_runtime::comm::{Communicator, Handle, Stream};

use crate::entry;
use crate::failure::Refused;
use crate::groups::guard_in_group;
use crate::numbers::Outcome;
use crate::reductions::reduction;
use crate::streams::stream_of;
use crate::types::{
    CommHandle, DataTypeNumber, RedOpNumber, ResultNumber, StreamHandle, data_type, rank,
};

/// Enqueues an operation: finds communicator and stream, and makes the call. How the operation ends,
/// the stream and the communicator tell.
pub(crate) fn enqueue(
    function: &str,
    comm: CommHandle,
    stream: StreamHandle,
    call: impl FnOnce(&Communicator, &Stream) -> Refused<Handle>,
) -> ResultNumber {
    guard_in_group(function, comm, || {
        let communicator = entry::ready(comm)?;
        let stream = stream_of(stream, &communicator)?;
        // A handle that is dropped does not stop the operation.
        drop(call(&communicator, &stream)?);
        Ok(Outcome::Success)
    })
}

/// Every rank gets the reduction of all ranks' sendbuff: count elements. In place: both the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclAllReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeNumber,
    op: RedOpNumber,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultNumber {
    enqueue("icclAllReduce", comm, stream, |communicator, stream| {
        let dtype = data_type(datatype)?;
        let op = reduction(op, dtype, comm)?;
        // SAFETY: the caller promises it.
        let handle = unsafe {
            communicator.all_reduce_raw(sendbuff, recvbuff, count as u64, dtype, op, stream)
        };
        Ok(handle?)
    })
}

/// The root gets the reduction of all ranks' sendbuff: count elements. recvbuff is used on the root
/// only. In place: both the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeNumber,
    op: RedOpNumber,
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultNumber {
    enqueue("icclReduce", comm, stream, |communicator, stream| {
        let dtype = data_type(datatype)?;
        let op = reduction(op, dtype, comm)?;
        let root = rank("root", root, communicator.ranks())?;
        // SAFETY: the caller promises it.
        let handle = unsafe {
            communicator.reduce_raw(sendbuff, recvbuff, count as u64, dtype, op, root, stream)
        };
        Ok(handle?)
    })
}

/// Every rank gets the root's sendbuff: count elements. sendbuff is used on the root only. In place:
/// both the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclBroadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeNumber,
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultNumber {
    enqueue("icclBroadcast", comm, stream, |communicator, stream| {
        let dtype = data_type(datatype)?;
        let root = rank("root", root, communicator.ranks())?;
        // SAFETY: the caller promises it.
        let handle = unsafe {
            communicator.broadcast_raw(sendbuff, recvbuff, count as u64, dtype, root, stream)
        };
        Ok(handle?)
    })
}

/// icclBroadcast in place: buff is read on the root and written on the others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclBcast(
    buff: *mut c_void,
    count: usize,
    datatype: DataTypeNumber,
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultNumber {
    enqueue("icclBcast", comm, stream, |communicator, stream| {
        let dtype = data_type(datatype)?;
        let root = rank("root", root, communicator.ranks())?;
        let handle =
            // SAFETY: the caller promises it.
            unsafe { communicator.broadcast_raw(buff, buff, count as u64, dtype, root, stream) };
        Ok(handle?)
    })
}

/// Every rank gets all ranks' sendbuff, sendcount elements each, in the order of the ranks: recvbuff
/// holds ranks * sendcount. In place: sendbuff is recvbuff + rank * sendcount elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclAllGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: DataTypeNumber,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultNumber {
    enqueue("icclAllGather", comm, stream, |communicator, stream| {
        let dtype = data_type(datatype)?;
        // SAFETY: the caller promises it.
        let handle = unsafe {
            communicator.all_gather_raw(sendbuff, recvbuff, sendcount as u64, dtype, stream)
        };
        Ok(handle?)
    })
}

/// Every rank gets its block, recvcount elements, of the reduction of all ranks' sendbuff, which holds
/// ranks * recvcount. In place: recvbuff is sendbuff + rank * recvcount elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclReduceScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: DataTypeNumber,
    op: RedOpNumber,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultNumber {
    enqueue("icclReduceScatter", comm, stream, |communicator, stream| {
        let dtype = data_type(datatype)?;
        let op = reduction(op, dtype, comm)?;
        // SAFETY: the caller promises it.
        let handle = unsafe {
            communicator.reduce_scatter_raw(sendbuff, recvbuff, recvcount as u64, dtype, op, stream)
        };
        Ok(handle?)
    })
}

/// The root gets all ranks' sendbuff, count elements each, in the order of the ranks: its recvbuff
/// holds ranks * count, and is used on the root only. In place on the root: sendbuff is recvbuff +
/// root * count elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeNumber,
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultNumber {
    enqueue("icclGather", comm, stream, |communicator, stream| {
        let dtype = data_type(datatype)?;
        let root = rank("root", root, communicator.ranks())?;
        // SAFETY: the caller promises it.
        let handle = unsafe {
            communicator.gather_raw(sendbuff, recvbuff, count as u64, dtype, root, stream)
        };
        Ok(handle?)
    })
}

/// Every rank gets its block, count elements, of the root's sendbuff, which holds ranks * count, and is
/// used on the root only. In place on the root: recvbuff is sendbuff + root * count elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeNumber,
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultNumber {
    enqueue("icclScatter", comm, stream, |communicator, stream| {
        let dtype = data_type(datatype)?;
        let root = rank("root", root, communicator.ranks())?;
        // SAFETY: the caller promises it.
        let handle = unsafe {
            communicator.scatter_raw(sendbuff, recvbuff, count as u64, dtype, root, stream)
        };
        Ok(handle?)
    })
}

/// Every rank sends block r of its sendbuff to rank r, and gets the block from rank r as block r of
/// recvbuff. count is a block's length: both hold ranks * count elements. In place: both the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclAlltoAll(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeNumber,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultNumber {
    enqueue("icclAlltoAll", comm, stream, |communicator, stream| {
        let dtype = data_type(datatype)?;
        let handle =
            // SAFETY: the caller promises it.
            unsafe { communicator.all_to_all_raw(sendbuff, recvbuff, count as u64, dtype, stream) };
        Ok(handle?)
    })
}

/// No rank's stream passes before every rank's has come.
#[unsafe(no_mangle)]
pub extern "C" fn icclBarrier(comm: CommHandle, stream: StreamHandle) -> ResultNumber {
    enqueue("icclBarrier", comm, stream, |communicator, stream| Ok(communicator.barrier(stream)?))
}
