//! A plan as calls of CNCL; messages in a group.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_vendor_support::plan::{Block, Plan, Primitive};

use crate::clique::CnclCommunicator;
use crate::group::{self, Kept};
use crate::support::moved_bytes;
use crate::sys;

/// Issues a plan on a queue, and returns when it is on it (in a group: when the group has it).
///
/// # Safety
/// The buffers of the plan are the card's, and nobody else touches them until the queue is past it.
pub(crate) unsafe fn issue(
    communicator: &CnclCommunicator,
    plan: &Plan,
    queue: sys::Queue,
) -> PluginResult<()> {
    let is_message =
        |one: &Primitive| matches!(one, Primitive::Send { .. } | Primitive::Recv { .. });
    let issue_all = || {
        plan.primitives.iter().try_for_each(|primitive| {
            // SAFETY: the caller promises the buffers.
            unsafe { issue_one(communicator, plan.dtype, primitive, queue) }
        })
    };
    if plan.primitives.iter().filter(|one| is_message(one)).count() < 2 {
        return issue_all();
    }
    let table = &communicator.cncl().table;
    group::begin(table)?;
    let issued = issue_all();
    let ended = group::end(table);
    issued.and(ended)
}

/// One call of CNCL, or a copy of CNRT.
///
/// # Safety
/// As for [`issue`].
unsafe fn issue_one(
    communicator: &CnclCommunicator,
    dtype: c_int,
    primitive: &Primitive,
    queue: sys::Queue,
) -> PluginResult<()> {
    match primitive {
        Primitive::Copy { from, to, bytes } => {
            // SAFETY: the caller promises both sides.
            unsafe { copy(communicator, *from, *to, *bytes, queue) }
        }
        Primitive::AllToAllV { send, receive, sent, received } => {
            let buffers = Exchange { send: *send, receive: *receive, sent, received };
            // SAFETY: the caller promises the buffers.
            unsafe { all_to_all_v(communicator, dtype, &buffers, queue) }
        }
        // SAFETY: the caller promises the buffers.
        primitive => unsafe { collective(communicator, dtype, primitive, queue) },
    }
}

/// # Safety
/// Both sides are the card's.
unsafe fn copy(
    communicator: &CnclCommunicator,
    from: *const c_void,
    to: *mut c_void,
    bytes: usize,
    queue: sys::Queue,
) -> PluginResult<()> {
    let current = &communicator.member().current;
    let _current = current.enter()?;
    let (name, copy) = current.neuware.copy_async;
    // SAFETY: the caller promises it; the source is only read.
    let answer = unsafe { copy(to, from.cast_mut(), bytes, queue, sys::DEVICE_TO_DEVICE) };
    current.neuware.runtime.check(format_args!("{name}({bytes} bytes on the card)"), answer)
}

/// # Safety
/// The buffers are the card's.
unsafe fn collective(
    communicator: &CnclCommunicator,
    dtype: c_int,
    primitive: &Primitive,
    queue: sys::Queue,
) -> PluginResult<()> {
    let table = &communicator.cncl().table;
    let rank = communicator.member().rank;
    communicator.with_handle(|handle| {
        group::called(&communicator.member().current);
        // SAFETY: the communicator lives, and the caller promises buffers and queue.
        let (name, answer) = unsafe {
            match *primitive {
                Primitive::AllReduce { send, receive, count, op } => (
                    "cnclAllReduce",
                    (table.cnclAllReduce)(send, receive, count, dtype, op, handle, queue),
                ),
                Primitive::Reduce { send, receive, count, op, root } => {
                    let root = root as c_int;
                    (
                        "cnclReduce",
                        (table.cnclReduce)(send, receive, count, dtype, op, root, handle, queue),
                    )
                }
                Primitive::ReduceScatter { send, receive, count, op } => (
                    "cnclReduceScatter",
                    (table.cnclReduceScatter)(send, receive, count, dtype, op, handle, queue),
                ),
                Primitive::Broadcast { send, receive, count, root } => {
                    // Nobody says that it may be null where it is not read.
                    let send = if rank == root { send } else { receive.cast_const() };
                    let root = root as c_int;
                    match table.cnclBroadcast {
                        Some(broadcast) => (
                            "cnclBroadcast",
                            broadcast(send, receive, count, dtype, root, handle, queue),
                        ),
                        None => (
                            "cnclBcast",
                            (table.cnclBcast)(receive, count, dtype, root, handle, queue),
                        ),
                    }
                }
                Primitive::AllGather { send, receive, count } => (
                    "cnclAllGather",
                    (table.cnclAllGather)(send, receive, count, dtype, handle, queue),
                ),
                Primitive::AllToAll { send, receive, count } => {
                    let all_to_all = table.cnclAlltoAll.ok_or_else(not_there)?;
                    ("cnclAlltoAll", all_to_all(send, receive, count, dtype, handle, queue))
                }
                Primitive::Send { send, count, peer } => {
                    let (send, peer) = (send.cast_mut(), peer as c_int);
                    ("cnclSend", (table.cnclSend)(send, count, dtype, peer, handle, queue))
                }
                Primitive::Recv { receive, count, peer } => {
                    let peer = peer as c_int;
                    ("cnclRecv", (table.cnclRecv)(receive, count, dtype, peer, handle, queue))
                }
                Primitive::AllToAllV { .. }
                | Primitive::Gather { .. }
                | Primitive::Scatter { .. }
                | Primitive::Copy { .. }
                | Primitive::Barrier => return Err(not_there()),
            }
        };
        table.check(name, answer)
    })
}

/// Blocks from each to each.
struct Exchange<'a> {
    send: *const c_void,
    receive: *mut c_void,
    sent: &'a [Block],
    received: &'a [Block],
}

/// What `cnclAlltoAllv` is given: for each rank an address, a count and a type.
struct Arrays {
    send: Vec<*const c_void>,
    send_counts: Vec<u32>,
    receive: Vec<*mut c_void>,
    receive_counts: Vec<u32>,
    dtypes: [Vec<c_int>; 2],
}

// SAFETY: addresses of the card, which nobody follows here.
unsafe impl Send for Arrays {}

impl Arrays {
    /// # Errors
    /// `NotSupported` for a count that CNCL's 32 bits do not hold.
    fn new(exchange: &Exchange<'_>, dtype: c_int) -> PluginResult<Self> {
        let bytes = moved_bytes(dtype).ok_or_else(not_there)?;
        let count = |(peer, block): (usize, &Block)| {
            u32::try_from(block.count).map_err(|_| {
                PluginError::not_supported(format!(
                    "cnclAlltoAllv counts in 32 bits, and {} elements are for or from rank {peer}",
                    block.count
                ))
            })
        };
        let counts = |blocks: &[Block]| -> PluginResult<Vec<u32>> {
            blocks.iter().enumerate().map(count).collect()
        };
        let offsets = |blocks: &[Block]| -> Vec<usize> {
            blocks.iter().map(|block| block.offset * bytes).collect()
        };
        let place = |offset| exchange.send.wrapping_byte_add(offset);
        let place_mut = |offset| exchange.receive.wrapping_byte_add(offset);
        Ok(Self {
            send: offsets(exchange.sent).into_iter().map(place).collect(),
            send_counts: counts(exchange.sent)?,
            receive: offsets(exchange.received).into_iter().map(place_mut).collect(),
            receive_counts: counts(exchange.received)?,
            dtypes: [vec![dtype; exchange.sent.len()], vec![dtype; exchange.received.len()]],
        })
    }
}

/// # Safety
/// The buffers are the card's.
unsafe fn all_to_all_v(
    communicator: &CnclCommunicator,
    dtype: c_int,
    exchange: &Exchange<'_>,
    queue: sys::Queue,
) -> PluginResult<()> {
    let table = &communicator.cncl().table;
    let current = &communicator.member().current;
    let call = table.cnclAlltoAllv.ok_or_else(not_there)?;
    let mut arrays = Box::new(Arrays::new(exchange, dtype)?);
    communicator.with_handle(|handle| {
        group::called(current);
        let [send_dtypes, receive_dtypes] = &mut arrays.dtypes;
        // SAFETY: the communicator lives, each array has an entry for each rank, and the caller promises
        // buffers and queue.
        let answer = unsafe {
            call(
                arrays.send.as_mut_ptr(),
                arrays.send_counts.as_mut_ptr(),
                send_dtypes.as_mut_ptr(),
                arrays.receive.as_mut_ptr(),
                arrays.receive_counts.as_mut_ptr(),
                receive_dtypes.as_mut_ptr(),
                handle,
                queue,
            )
        };
        table.check("cnclAlltoAllv", answer)
    })?;
    // Nobody says when CNCL is done with the arrays.
    group::keep(Kept { arrays, current: Arc::clone(current), queue });
    Ok(())
}

fn not_there() -> PluginError {
    PluginError::not_supported("CNCL has no function for this")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_to_all_v_has_an_address_and_32_bits_for_each_rank() {
        let sent = [Block { offset: 0, count: 3 }, Block { offset: 5, count: 0 }];
        let received = [Block { offset: 2, count: 1 }, Block { offset: 9, count: 7 }];
        let exchange = Exchange {
            send: std::ptr::without_provenance(0x1000),
            receive: std::ptr::without_provenance_mut(0x2000),
            sent: &sent,
            received: &received,
        };
        let arrays = Arrays::new(&exchange, sys::CNCL_INT32).unwrap();
        assert_eq!(arrays.send_counts, [3, 0]);
        assert_eq!(arrays.receive_counts, [1, 7]);
        let addresses: Vec<usize> = arrays.send.iter().map(|each| each.addr()).collect();
        assert_eq!(addresses, [0x1000, 0x1014]);
        let addresses: Vec<usize> = arrays.receive.iter().map(|each| each.addr()).collect();
        assert_eq!(addresses, [0x2008, 0x2024]);
        assert_eq!(arrays.dtypes, [vec![0x22; 2], vec![0x22; 2]]);
    }

    #[test]
    fn a_count_of_more_than_32_bits_is_refused_with_its_rank() {
        let large = [Block { offset: 0, count: 4 }, Block { offset: 4, count: 1 << 32 }];
        for (sent, received) in [(&large, &[large[0]; 2]), (&[large[0]; 2], &large)] {
            let exchange =
                Exchange { send: std::ptr::null(), receive: std::ptr::null_mut(), sent, received };
            let error = Arrays::new(&exchange, sys::CNCL_UINT8).err().unwrap();
            assert!(
                error.message.contains("4294967296 elements are for or from rank 1"),
                "{error}"
            );
        }
    }
}
