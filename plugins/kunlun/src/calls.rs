//! A plan as calls of BKCL, messages in a group.

use std::ffi::c_int;
use std::sync::Arc;

use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_vendor_support::Direction;
use iccl_vendor_support::plan::{Plan, Primitive};

use crate::bkcl::rank_number;
use crate::communicator::Joined;
use crate::constants::{Op, Type};
use crate::face::{Copy, Handle};
use crate::{group, sys};

const TYPES: [Type; 7] = [
    Type::Float,
    Type::Float16,
    Type::Bfloat16,
    Type::Float64,
    Type::Uint8,
    Type::Int32,
    Type::Int64,
];
const OPS: [Op; 5] = [Op::Add, Op::Product, Op::Max, Op::Min, Op::Avg];

/// Issues a plan on a stream, and returns when it is on it (in a group: when the group has it). The card is
/// chosen.
///
/// # Safety
/// The buffers of the plan are the card's, and nobody else touches them until the stream is past it.
pub(crate) unsafe fn issue(joined: &Arc<Joined>, plan: &Plan, stream: Handle) -> PluginResult<()> {
    let is_message =
        |each: &&Primitive| matches!(each, Primitive::Send { .. } | Primitive::Recv { .. });
    let (messages, others): (Vec<_>, Vec<_>) = plan.primitives.iter().partition(is_message);
    let issue = |primitive: &&Primitive| {
        // SAFETY: the caller promises the buffers.
        unsafe { issue_one(joined, plan.dtype, primitive, stream) }
    };
    others.iter().try_for_each(issue)?;
    if messages.len() < 2 {
        return messages.iter().try_for_each(issue);
    }
    group::begin(&joined.bkcl, || joined.is_aborted())?;
    let issued = messages.iter().try_for_each(issue);
    let ended = group::end(&joined.bkcl);
    issued.and(ended)
}

/// One call of BKCL.
///
/// # Safety
/// As for [`issue`].
unsafe fn issue_one(
    joined: &Arc<Joined>,
    dtype: c_int,
    primitive: &Primitive,
    stream: Handle,
) -> PluginResult<()> {
    let bkcl = &joined.bkcl;
    let table = &bkcl.table;
    let number = TYPES.get(dtype as usize).and_then(|dtype| bkcl.constants.dtype(*dtype));
    let dtype = number.ok_or_else(not_there)?;
    let op = |op: c_int| {
        let number = OPS.get(op as usize).and_then(|op| bkcl.constants.op(*op));
        number.ok_or_else(not_there)
    };
    let face = &joined.chip.face;
    if let Primitive::Copy { from, to, bytes } = *primitive {
        let copy = Copy { to, from, bytes, direction: Direction::DeviceToDevice };
        // SAFETY: the caller promises the buffers.
        return unsafe { face.copy(stream.0, copy) };
    }
    if let Primitive::Send { peer, .. } = *primitive {
        group::note_send(joined, peer)?;
    }
    face.enqueue_on(stream.0)?;
    let mut scratch = None;
    if let Primitive::AllToAllV { sent, received, .. } = primitive {
        scratch = Some(joined.scratch.take(&joined.chip, sent, received)?);
    }
    let called = joined.with_context(|context| {
        let stream: sys::Stream = stream.0;
        // SAFETY: the context lives, and the caller promises buffers and stream.
        let (name, answer) = unsafe {
            match *primitive {
                Primitive::AllReduce { send, receive, count, op: which } => (
                    "bkcl_all_reduce",
                    (table.bkcl_all_reduce)(
                        context,
                        send,
                        receive,
                        count,
                        dtype,
                        op(which)?,
                        stream,
                    ),
                ),
                Primitive::Reduce { send, receive, count, op: which, root } => {
                    let (op, root) = (op(which)?, rank_number(root)?);
                    (
                        "bkcl_reduce",
                        (table.bkcl_reduce)(context, send, receive, count, dtype, op, root, stream),
                    )
                }
                Primitive::ReduceScatter { send, receive, count, op: which } => (
                    "bkcl_reduce_scatter",
                    (table.bkcl_reduce_scatter)(
                        context,
                        send,
                        receive,
                        count,
                        dtype,
                        op(which)?,
                        stream,
                    ),
                ),
                Primitive::Broadcast { send, receive, count, root } => {
                    let root = rank_number(root)?;
                    // Only the root's counts; the others' may be null.
                    let send = if send.is_null() { receive.cast_const() } else { send };
                    (
                        "bkcl_broadcast",
                        (table.bkcl_broadcast)(context, send, receive, count, dtype, root, stream),
                    )
                }
                Primitive::AllGather { send, receive, count } => (
                    "bkcl_all_gather",
                    (table.bkcl_all_gather)(context, send, count, receive, dtype, stream),
                ),
                Primitive::Send { send, count, peer } => (
                    "bkcl_send",
                    (table.bkcl_send)(context, send, count, rank_number(peer)?, dtype, stream),
                ),
                Primitive::Recv { receive, count, peer } => (
                    "bkcl_recv",
                    (table.bkcl_recv)(context, receive, count, rank_number(peer)?, dtype, stream),
                ),
                // The plan has these only if the library does.
                Primitive::AllToAll { send, receive, count } => {
                    let all_to_all = table.bkcl_all_to_all.ok_or_else(not_there)?;
                    ("bkcl_all_to_all", all_to_all(context, send, count, receive, dtype, stream))
                }
                Primitive::AllToAllV { send, receive, .. } => {
                    let all_to_all_v = table.bkcl_all_to_all_v.ok_or_else(not_there)?;
                    let arrays = scratch.as_ref().ok_or_else(not_there)?;
                    let [counts, places, receive_counts, receive_places] =
                        [0, 1, 2, 3].map(|index| arrays.array(index));
                    (
                        "bkcl_all_to_all_v",
                        all_to_all_v(
                            context,
                            send,
                            counts,
                            places,
                            dtype,
                            receive,
                            receive_counts,
                            receive_places,
                            dtype,
                            stream,
                        ),
                    )
                }
                Primitive::Gather { .. }
                | Primitive::Scatter { .. }
                | Primitive::Copy { .. }
                | Primitive::Barrier => return Err(not_there()),
            }
        };
        bkcl.check(name, answer, || face.last_words())
    });
    match scratch {
        Some(scratch) if group::is_open() => group::keep(joined, scratch, stream),
        Some(scratch) => joined.scratch.give_back(&joined.chip, scratch, stream)?,
        None => {}
    }
    called
}

fn not_there() -> PluginError {
    PluginError::not_supported("BKCL has no function or no number for this")
}
