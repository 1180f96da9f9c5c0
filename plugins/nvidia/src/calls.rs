//! A plan as calls of NCCL, in a group if there is more than one.

use std::ffi::c_int;
use std::sync::Arc;

use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_vendor_support::plan::{Plan, Primitive};

use crate::communicator::Joined;
use crate::nccl::Nccl;
use crate::sys;

/// Issues a plan on a stream, and returns when it is on it (in a group: when the group has it).
///
/// # Safety
/// The buffers of the plan are the card's, and nobody else touches them until the stream is past it.
pub(crate) unsafe fn issue(
    joined: &Arc<Joined>,
    plan: &Plan,
    stream: sys::Stream,
) -> PluginResult<()> {
    let nccl = &joined.nccl;
    let [single] = &plan.primitives[..] else {
        if plan.primitives.is_empty() {
            return Ok(());
        }
        // The inner group is part of the thread's, if there is one; else its end settles.
        nccl.begin_group()?;
        Nccl::is_grouped(joined);
        let issued = plan.primitives.iter().try_for_each(|primitive| {
            // SAFETY: the caller promises the buffers.
            unsafe { issue_one(joined, plan.dtype, primitive, stream) }
        });
        let ended = nccl.end_group();
        return issued.and(ended);
    };
    // SAFETY: the caller promises the buffers.
    unsafe { issue_one(joined, plan.dtype, single, stream)? };
    settle_unless_grouped(joined)
}

fn settle_unless_grouped(joined: &Arc<Joined>) -> PluginResult<()> {
    if Nccl::is_grouped(joined) { Ok(()) } else { joined.settle("NCCL", None) }
}

/// One call of NCCL.
///
/// # Safety
/// As for [`issue`].
unsafe fn issue_one(
    joined: &Joined,
    dtype: c_int,
    primitive: &Primitive,
    stream: sys::Stream,
) -> PluginResult<()> {
    let table = &joined.nccl.table;
    joined.with_handle(|handle| {
        // SAFETY: the communicator lives, and the caller promises buffers and stream.
        let (name, answer) = unsafe {
            match *primitive {
                Primitive::AllReduce { send, receive, count, op } => (
                    "ncclAllReduce",
                    (table.ncclAllReduce)(send, receive, count, dtype, op, handle, stream),
                ),
                Primitive::Reduce { send, receive, count, op, root } => {
                    let root = root as c_int;
                    (
                        "ncclReduce",
                        (table.ncclReduce)(send, receive, count, dtype, op, root, handle, stream),
                    )
                }
                Primitive::ReduceScatter { send, receive, count, op } => (
                    "ncclReduceScatter",
                    (table.ncclReduceScatter)(send, receive, count, dtype, op, handle, stream),
                ),
                Primitive::Broadcast { send, receive, count, root } => {
                    let root = root as c_int;
                    (
                        "ncclBroadcast",
                        (table.ncclBroadcast)(send, receive, count, dtype, root, handle, stream),
                    )
                }
                Primitive::AllGather { send, receive, count } => (
                    "ncclAllGather",
                    (table.ncclAllGather)(send, receive, count, dtype, handle, stream),
                ),
                Primitive::Send { send, count, peer } => {
                    let peer = peer as c_int;
                    ("ncclSend", (table.ncclSend)(send, count, dtype, peer, handle, stream))
                }
                Primitive::Recv { receive, count, peer } => {
                    let peer = peer as c_int;
                    ("ncclRecv", (table.ncclRecv)(receive, count, dtype, peer, handle, stream))
                }
                // Later versions have these; the plan has them only then.
                Primitive::AllToAll { send, receive, count } => {
                    let all_to_all = table.ncclAlltoAll.ok_or_else(not_there)?;
                    ("ncclAlltoAll", all_to_all(send, receive, count, dtype, handle, stream))
                }
                Primitive::Gather { send, receive, count, root } => {
                    let (gather, root) = (table.ncclGather.ok_or_else(not_there)?, root as c_int);
                    ("ncclGather", gather(send, receive, count, dtype, root, handle, stream))
                }
                Primitive::Scatter { send, receive, count, root } => {
                    let (scatter, root) = (table.ncclScatter.ok_or_else(not_there)?, root as c_int);
                    ("ncclScatter", scatter(send, receive, count, dtype, root, handle, stream))
                }
                Primitive::AllToAllV { .. } | Primitive::Copy { .. } | Primitive::Barrier => {
                    return Err(not_there());
                }
            }
        };
        table.check(name, handle, answer)
    })
}

fn not_there() -> PluginError {
    PluginError::not_supported("NCCL has no function for this")
}
