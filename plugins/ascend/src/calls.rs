//! A plan as calls of HCCL.
//!
//! Messages of a plan, or of all plans of a group, go into `HcclBatchSendRecv`, in which sends and
//! receives do not wait for each other. One send to and one receive from each rank is allowed in a batch:
//! the second ones make another batch, on both sides alike.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_vendor_support::plan::{Block, Plan, Primitive};

use crate::communicator::Joined;
use crate::support::element_bytes;
use crate::{hccl, sys};

/// Issues a plan on a stream; its messages at the end of the thread's group, if there is one.
///
/// # Safety
/// The buffers of the plan are the card's, and nobody else touches them until the stream is past it.
pub(crate) unsafe fn issue(
    joined: &Arc<Joined>,
    plan: &Plan,
    stream: sys::Stream,
) -> PluginResult<()> {
    // SAFETY: the caller promises it.
    let issued = unsafe { issue_all(joined, plan, stream) };
    // What came before a failure is under way.
    issued.and(joined.record(stream))
}

/// # Safety
/// As for [`issue`].
unsafe fn issue_all(joined: &Arc<Joined>, plan: &Plan, stream: sys::Stream) -> PluginResult<()> {
    let mut messages = Vec::new();
    let item = |kind, buffer: *mut c_void, count: usize, remote_rank| sys::SendRecvItem {
        kind,
        buffer,
        count: count as u64,
        dtype: plan.dtype,
        remote_rank,
    };
    let issuing = Issuing { joined, dtype: plan.dtype, stream };
    for primitive in &plan.primitives {
        match *primitive {
            Primitive::Send { send, count, peer } => {
                messages.push(item(sys::HCCL_SEND, send.cast_mut(), count, peer));
            }
            Primitive::Recv { receive, count, peer } => {
                messages.push(item(sys::HCCL_RECV, receive, count, peer));
            }
            ref other => {
                // SAFETY: the caller promises the buffers.
                unsafe { issuing.issue(other)? };
            }
        }
    }
    let messages = hccl::keep_for_group(joined, stream, messages);
    // SAFETY: the caller promises the buffers.
    unsafe { exchange(joined, &messages, stream) }
}

/// Issues messages: those of this rank to itself as copies, the others in batches.
///
/// # Safety
/// As for [`issue`].
pub(crate) unsafe fn exchange(
    joined: &Joined,
    messages: &[sys::SendRecvItem],
    stream: sys::Stream,
) -> PluginResult<()> {
    let Exchange { copies, batches } = Exchange::new(messages, joined.rank)?;
    for (from, to) in &copies {
        let bytes = from.count as usize * element_bytes(from.dtype);
        // SAFETY: the caller promises the buffers.
        unsafe { joined.copy(from.buffer, to.buffer, bytes, stream)? };
    }
    for mut batch in batches {
        let (table, count) = (&joined.hccl.table, batch.len() as u32);
        joined.with_handle(|handle| {
            let answer =
                // SAFETY: the communicator lives, and the caller promises buffers and stream.
                unsafe { (table.HcclBatchSendRecv)(batch.as_mut_ptr(), count, handle, stream) };
            table.check("HcclBatchSendRecv", answer)
        })?;
    }
    Ok(())
}

/// Messages, sorted into what HCCL takes at once.
#[derive(Debug, PartialEq, Eq)]
struct Exchange {
    /// A send and a receive of this rank's.
    copies: Vec<(sys::SendRecvItem, sys::SendRecvItem)>,
    batches: Vec<Vec<sys::SendRecvItem>>,
}

impl Exchange {
    fn new(messages: &[sys::SendRecvItem], rank: u32) -> PluginResult<Self> {
        let own =
            |kind| messages.iter().filter(move |one| one.remote_rank == rank && one.kind == kind);
        let (sends, receives) = (own(sys::HCCL_SEND).count(), own(sys::HCCL_RECV).count());
        if sends != receives {
            return Err(PluginError::invalid(format!(
                "rank {rank} has {sends} sends to itself and {receives} receives from itself in a group"
            )));
        }
        let copies: Vec<_> =
            own(sys::HCCL_SEND).copied().zip(own(sys::HCCL_RECV).copied()).collect();
        for (from, to) in &copies {
            if (from.count, from.dtype) != (to.count, to.dtype) {
                let (sent, received) = (from.count, to.count);
                let text =
                    format!("rank {rank} sends itself {sent} elements and receives {received}");
                return Err(PluginError::invalid(text));
            }
        }
        let mut batches: Vec<Vec<sys::SendRecvItem>> = Vec::new();
        for message in messages.iter().filter(|message| message.remote_rank != rank) {
            let same = |other: &&sys::SendRecvItem| {
                (other.kind, other.remote_rank) == (message.kind, message.remote_rank)
            };
            let number = batches.iter().flatten().filter(same).count();
            if number == batches.len() {
                batches.push(Vec::new());
            }
            batches[number].push(*message);
        }
        Ok(Self { copies, batches })
    }
}

/// Where one call after the other goes.
struct Issuing<'a> {
    joined: &'a Joined,
    dtype: c_int,
    stream: sys::Stream,
}

impl Issuing<'_> {
    /// One call of HCCL, or a copy.
    ///
    /// # Safety
    /// As for [`issue`].
    #[allow(clippy::too_many_lines, reason = "one arm for each primitive")]
    unsafe fn issue(&self, primitive: &Primitive) -> PluginResult<()> {
        let (joined, dtype, stream) = (self.joined, self.dtype, self.stream);
        let table = &joined.hccl.table;
        let element = element_bytes(dtype);
        // SAFETY: throughout: the communicator lives as long as it is used, and the caller promises
        // buffers and stream.
        unsafe {
            match *primitive {
                Primitive::AllReduce { send, receive, count, op } => {
                    aligned(&[send.addr(), receive.addr()], element)?;
                    joined.with_handle(|handle| {
                        let count = count as u64;
                        table.check(
                            "HcclAllReduce",
                            (table.HcclAllReduce)(send, receive, count, dtype, op, handle, stream),
                        )
                    })
                }
                Primitive::Reduce { send, receive, count, op, root } => {
                    // HCCL wants an address on every rank, and nobody says that it leaves it alone.
                    let receive = joined.or_scratch(receive, count * element, stream)?;
                    aligned(&[send.addr(), receive.addr()], element)?;
                    joined.with_handle(|handle| {
                        let count = count as u64;
                        let answer = (table.HcclReduce)(
                            send, receive, count, dtype, op, root, handle, stream,
                        );
                        table.check("HcclReduce", answer)
                    })
                }
                Primitive::ReduceScatter { send, receive, count, op } => {
                    aligned(&[send.addr(), receive.addr()], element)?;
                    let bytes = count * element;
                    // A block of the result may lie in the input, which HCCL does not promise.
                    let lies_inside = is_inside(
                        receive.addr(),
                        bytes,
                        send.addr(),
                        bytes * joined.ranks as usize,
                    );
                    let result = if lies_inside { joined.scratch(bytes, stream)? } else { receive };
                    joined.with_handle(|handle| {
                        let count = count as u64;
                        let answer = (table.HcclReduceScatter)(
                            send, result, count, dtype, op, handle, stream,
                        );
                        table.check("HcclReduceScatter", answer)
                    })?;
                    if lies_inside { joined.copy(result, receive, bytes, stream) } else { Ok(()) }
                }
                Primitive::Broadcast { receive, count, root, .. } => joined.with_handle(|handle| {
                    let count = count as u64;
                    table.check(
                        "HcclBroadcast",
                        (table.HcclBroadcast)(receive, count, dtype, root, handle, stream),
                    )
                }),
                Primitive::AllGather { send, receive, count } => {
                    let bytes = count * element;
                    let lies_inside = is_inside(
                        send.addr(),
                        bytes,
                        receive.addr(),
                        bytes * joined.ranks as usize,
                    );
                    let own = if lies_inside {
                        let own = joined.scratch(bytes, stream)?;
                        joined.copy(send, own, bytes, stream)?;
                        own.cast_const()
                    } else {
                        send
                    };
                    joined.with_handle(|handle| {
                        let count = count as u64;
                        table.check(
                            "HcclAllGather",
                            (table.HcclAllGather)(own, receive, count, dtype, handle, stream),
                        )
                    })
                }
                Primitive::Scatter { send, receive, count, root } => {
                    let receive = joined.or_scratch(receive, count * element, stream)?;
                    joined.with_handle(|handle| {
                        let count = count as u64;
                        table.check(
                            "HcclScatter",
                            (table.HcclScatter)(send, receive, count, dtype, root, handle, stream),
                        )
                    })
                }
                Primitive::AllToAll { send, receive, count } => joined.with_handle(|handle| {
                    let (receive, count) = (receive.cast_const(), count as u64);
                    let answer = (table.HcclAlltoAll)(
                        send, count, dtype, receive, count, dtype, handle, stream,
                    );
                    table.check("HcclAlltoAll", answer)
                }),
                Primitive::AllToAllV { send, receive, ref sent, ref received } => {
                    let (sent, received) = (Arrays::of(sent), Arrays::of(received));
                    joined.with_handle(|handle| {
                        let answer = (table.HcclAlltoAllV)(
                            send,
                            sent.counts.as_ptr(),
                            sent.displacements.as_ptr(),
                            dtype,
                            receive.cast_const(),
                            received.counts.as_ptr(),
                            received.displacements.as_ptr(),
                            dtype,
                            handle,
                            stream,
                        );
                        table.check("HcclAlltoAllV", answer)
                    })
                }
                Primitive::Copy { from, to, bytes } => joined.copy(from, to, bytes, stream),
                Primitive::Barrier => joined.with_handle(|handle| {
                    table.check("HcclBarrier", (table.HcclBarrier)(handle, stream))
                }),
                Primitive::Gather { .. } | Primitive::Send { .. } | Primitive::Recv { .. } => {
                    Err(PluginError::not_supported("HCCL has no function of its own for this"))
                }
            }
        }
    }
}

/// Counts and displacements as HCCL reads them: on the host, in 64 bits, in elements.
struct Arrays {
    counts: Vec<u64>,
    displacements: Vec<u64>,
}

impl Arrays {
    fn of(blocks: &[Block]) -> Self {
        Self {
            counts: blocks.iter().map(|block| block.count as u64).collect(),
            displacements: blocks.iter().map(|block| block.offset as u64).collect(),
        }
    }
}

/// HCCL reduces only what lies at multiples of its element.
fn aligned(addresses: &[usize], element: usize) -> PluginResult<()> {
    match addresses.iter().find(|address| !address.is_multiple_of(element)) {
        None => Ok(()),
        Some(address) => Err(PluginError::invalid(format!(
            "HCCL reduces memory at multiples of {element} bytes, which {address:#x} is not"
        ))),
    }
}

/// Whether a part is of a whole, at any place in it.
fn is_inside(part: usize, part_bytes: usize, whole: usize, whole_bytes: usize) -> bool {
    part < whole.saturating_add(whole_bytes) && whole < part.saturating_add(part_bytes)
}

#[cfg(test)]
mod tests {
    use iccl_plugin_api::Status;

    use super::*;

    fn message(kind: c_int, address: usize, remote_rank: u32) -> sys::SendRecvItem {
        sys::SendRecvItem {
            kind,
            buffer: std::ptr::without_provenance_mut(address),
            count: 4,
            dtype: sys::HCCL_DATA_TYPE_FP32,
            remote_rank,
        }
    }

    fn send(address: usize, to: u32) -> sys::SendRecvItem {
        message(sys::HCCL_SEND, address, to)
    }

    fn recv(address: usize, from: u32) -> sys::SendRecvItem {
        message(sys::HCCL_RECV, address, from)
    }

    #[test]
    fn a_batch_has_one_send_to_and_one_receive_from_each_rank() {
        let all = [send(1, 2), send(2, 3), recv(3, 2), send(4, 2), recv(5, 3), recv(6, 3)];
        let sorted = Exchange::new(&all, 0).unwrap();
        let first = vec![send(1, 2), send(2, 3), recv(3, 2), recv(5, 3)];
        assert_eq!(sorted.batches, [first, vec![send(4, 2), recv(6, 3)]]);
        assert_eq!(sorted.copies, []);
        assert_eq!(Exchange::new(&[], 0).unwrap().batches.len(), 0);
    }

    #[test]
    fn what_a_rank_sends_itself_is_copied() {
        let sorted = Exchange::new(&[recv(1, 0), send(2, 0), send(3, 1)], 0).unwrap();
        assert_eq!(sorted.copies, [(send(2, 0), recv(1, 0))]);
        assert_eq!(sorted.batches, [vec![send(3, 1)]]);
        let error = Exchange::new(&[send(2, 0)], 0).unwrap_err();
        assert_eq!(error.status, Status::InvalidArgument);
        let longer = sys::SendRecvItem { count: 5, ..recv(1, 0) };
        assert!(Exchange::new(&[send(2, 0), longer], 0).is_err());
    }

    #[test]
    fn buffers_that_are_reduced_are_aligned() {
        assert_eq!(aligned(&[0x1000, 0x1004], 4), Ok(()));
        assert_eq!(aligned(&[0x1000, 0x1002], 4).unwrap_err().status, Status::InvalidArgument);
    }

    #[test]
    fn a_block_inside_a_buffer_is_seen() {
        assert!(is_inside(0x1010, 16, 0x1000, 64) && is_inside(0x1000, 64, 0x1000, 64));
        assert!(!is_inside(0x1040, 16, 0x1000, 64) && !is_inside(0xff0, 16, 0x1000, 64));
    }
}
