//! The vector forms: collectives with a count per rank.

use std::ffi::{c_int, c_void};

use iccl_runtime::comm::Block;

use crate::collectives::enqueue;
use crate::failure::{Failure, Refused};
use crate::reductions::reduction;
use crate::types::{
    CommHandle, DataTypeNumber, RedOpNumber, ResultNumber, StreamHandle, data_type, not_null, rank,
};

/// The blocks that counts and displacements describe; without displacements, one behind the other.
///
/// # Safety
/// Each is null or holds a number for each rank.
unsafe fn blocks(
    names: (&str, &str),
    counts: *const usize,
    displacements: *const usize,
    ranks: u32,
) -> Refused<Vec<Block>> {
    not_null(names.0, counts)?;
    let mut next = 0_u64;
    (0..ranks as usize)
        .map(|at| {
            // SAFETY: the caller promises as many as there are ranks.
            let count = unsafe { counts.add(at).read_unaligned() } as u64;
            let first = if displacements.is_null() {
                next
            } else {
                // SAFETY: as above.
                unsafe { displacements.add(at).read_unaligned() as u64 }
            };
            next = first.checked_add(count).ok_or_else(|| {
                let (counts, displacements) = names;
                Failure::argument(format!("{counts}[{at}] and {displacements} are beyond memory"))
            })?;
            Ok(Block { first, count })
        })
        .collect()
}

/// As [`blocks`], where only the root knows them.
///
/// # Safety
/// As [`blocks`], on the root.
unsafe fn blocks_on(
    root: (u32, u32),
    names: (&str, &str),
    counts: *const usize,
    displacements: *const usize,
    ranks: u32,
) -> Refused<Vec<Block>> {
    let (root, rank) = root;
    if root != rank {
        return Ok(Vec::new());
    }
    // SAFETY: the caller promises it.
    unsafe { blocks(names, counts, displacements, ranks) }
}

const SENT: (&str, &str) = ("sendcounts", "sdispls");
const RECEIVED: (&str, &str) = ("recvcounts", "rdispls");

/// icclAllGather with a count per rank: rank r's sendbuff has recvcounts[r] elements, which go to
/// recvbuff + rdispls[r] elements. All ranks give the same counts, each its own displacements; rdispls
/// may be NULL: one behind the other. In place: sendbuff is recvbuff + rdispls[rank] elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclAllGatherV(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    rdispls: *const usize,
    datatype: DataTypeNumber,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultNumber {
    enqueue("icclAllGatherV", comm, stream, |communicator, stream| {
        let dtype = data_type(datatype)?;
        // SAFETY: the caller promises it.
        let blocks = unsafe { blocks(RECEIVED, recvcounts, rdispls, communicator.ranks())? };
        let handle =
            // SAFETY: as above.
            unsafe { communicator.all_gather_v_raw(sendbuff, recvbuff, &blocks, dtype, stream) };
        Ok(handle?)
    })
}

/// icclReduceScatter with a count per rank: rank r gets the reduction of sendcounts[r] elements at
/// sendbuff + sdispls[r] elements. All ranks give the same counts, each its own displacements; sdispls
/// may be NULL: one behind the other. In place: recvbuff is sendbuff + sdispls[rank] elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclReduceScatterV(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcounts: *const usize,
    sdispls: *const usize,
    datatype: DataTypeNumber,
    op: RedOpNumber,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultNumber {
    enqueue("icclReduceScatterV", comm, stream, |communicator, stream| {
        let dtype = data_type(datatype)?;
        let op = reduction(op, dtype, comm)?;
        // SAFETY: the caller promises it.
        let blocks = unsafe { blocks(SENT, sendcounts, sdispls, communicator.ranks())? };
        // SAFETY: as above.
        let handle = unsafe {
            communicator.reduce_scatter_v_raw(sendbuff, recvbuff, &blocks, dtype, op, stream)
        };
        Ok(handle?)
    })
}

/// icclGather with a count per rank: each gives its own sendcount; on the root, what rank r sends,
/// recvcounts[r] elements, goes to recvbuff + rdispls[r] elements. recvbuff, recvcounts and rdispls are
/// used on the root only; rdispls may be NULL: one behind the other. In place on the root: sendbuff is
/// recvbuff + rdispls[root] elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclGatherV(
    sendbuff: *const c_void,
    sendcount: usize,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    rdispls: *const usize,
    datatype: DataTypeNumber,
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultNumber {
    enqueue("icclGatherV", comm, stream, |communicator, stream| {
        let dtype = data_type(datatype)?;
        let ranks = communicator.ranks();
        let root = rank("root", root, ranks)?;
        let at = (root, communicator.rank());
        // SAFETY: the caller promises it.
        let blocks = unsafe { blocks_on(at, RECEIVED, recvcounts, rdispls, ranks)? };
        let count = sendcount as u64;
        // SAFETY: as above.
        let handle = unsafe {
            communicator.gather_v_raw(sendbuff, count, recvbuff, &blocks, dtype, root, stream)
        };
        Ok(handle?)
    })
}

/// icclScatter with a count per rank: each gives its own recvcount; on the root, what rank r gets are
/// sendcounts[r] elements at sendbuff + sdispls[r] elements. sendbuff, sendcounts and sdispls are used
/// on the root only; sdispls may be NULL: one behind the other. In place on the root: recvbuff is
/// sendbuff + sdispls[root] elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclScatterV(
    sendbuff: *const c_void,
    sendcounts: *const usize,
    sdispls: *const usize,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: DataTypeNumber,
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultNumber {
    enqueue("icclScatterV", comm, stream, |communicator, stream| {
        let dtype = data_type(datatype)?;
        let ranks = communicator.ranks();
        let root = rank("root", root, ranks)?;
        let at = (root, communicator.rank());
        // SAFETY: the caller promises it.
        let blocks = unsafe { blocks_on(at, SENT, sendcounts, sdispls, ranks)? };
        let count = recvcount as u64;
        // SAFETY: as above.
        let handle = unsafe {
            communicator.scatter_v_raw(sendbuff, &blocks, recvbuff, count, dtype, root, stream)
        };
        Ok(handle?)
    })
}

/// icclAlltoAll with a count per pair of ranks: rank r is sent sendcounts[r] elements at sendbuff +
/// sdispls[r], and what it sends, recvcounts[r] elements, goes to recvbuff + rdispls[r]. sdispls and
/// rdispls may be NULL: one behind the other. There is no form in place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclAlltoAllV(
    sendbuff: *const c_void,
    sendcounts: *const usize,
    sdispls: *const usize,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    rdispls: *const usize,
    datatype: DataTypeNumber,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultNumber {
    enqueue("icclAlltoAllV", comm, stream, |communicator, stream| {
        let dtype = data_type(datatype)?;
        let ranks = communicator.ranks();
        // SAFETY: the caller promises it.
        let sent = unsafe { blocks(SENT, sendcounts, sdispls, ranks)? };
        // SAFETY: as above.
        let received = unsafe { blocks(RECEIVED, recvcounts, rdispls, ranks)? };
        // SAFETY: as above.
        let handle = unsafe {
            communicator.all_to_all_v_raw(sendbuff, &sent, recvbuff, &received, dtype, stream)
        };
        Ok(handle?)
    })
}
