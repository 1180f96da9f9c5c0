//! One operation of iccl as calls of NCCL.
//!
//! First it is planned, without NCCL, into a list of primitive calls, and all that can be refused is
//! refused; then the list is issued, in a group if there is more than one.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use iccl_plugin_api::sdk::{NativeCall, PluginError, PluginResult};
use iccl_plugin_api::{Collective, DataType};

use crate::communicator::Joined;
use crate::nccl::Nccl;
use crate::support::{is_offered, moved_type, reduced_type, reduction};
use crate::sys;

/// What is sent from, and received into.
type Send = *const c_void;
type Receive = *mut c_void;

/// One call of NCCL. Counts are in elements of the type that NCCL is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Primitive {
    AllReduce { send: Send, receive: Receive, count: usize, op: c_int },
    Reduce { send: Send, receive: Receive, count: usize, op: c_int, root: c_int },
    ReduceScatter { send: Send, receive: Receive, count: usize, op: c_int },
    Broadcast { send: Send, receive: Receive, count: usize, root: c_int },
    AllGather { send: Send, receive: Receive, count: usize },
    Send { send: Send, count: usize, peer: c_int },
    Recv { receive: Receive, count: usize, peer: c_int },
}

/// What is to be called.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// NCCL's number of the element type.
    dtype: c_int,
    primitives: Vec<Primitive>,
    /// NCCL 2.28 has a function for the whole of it.
    whole: Option<Whole>,
}

/// A function that later versions of NCCL have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    AllToAll { send: Send, receive: Receive, count: usize },
    Gather { send: Send, receive: Receive, count: usize, root: c_int },
    Scatter { send: Send, receive: Receive, count: usize, root: c_int },
}

/// Blocks of a buffer, one for each rank.
struct Blocks {
    address: usize,
    element_bytes: usize,
    /// Elements from the front, and elements, for each rank.
    places: Vec<(usize, usize)>,
}

impl Blocks {
    fn even(address: usize, dtype: DataType, count: usize, ranks: u32) -> PluginResult<Self> {
        let all = count.checked_mul(ranks as usize);
        all.and_then(|all| all.checked_mul(dtype.size_bytes())).ok_or_else(too_large)?;
        let places = (0..ranks as usize).map(|rank| (rank * count, count)).collect();
        Ok(Self { address, element_bytes: dtype.size_bytes(), places })
    }

    /// Blocks of the given counts; without displacements one after the other.
    fn uneven(
        address: usize,
        dtype: DataType,
        (counts, displacements): (&[u64], &[u64]),
        (what, ranks): (&str, u32),
    ) -> PluginResult<Self> {
        if counts.len() != ranks as usize || ![0, counts.len()].contains(&displacements.len()) {
            return Err(PluginError::invalid(format!(
                "{} {what} counts and {} displacements for {ranks} ranks",
                counts.len(),
                displacements.len()
            )));
        }
        let element_bytes = dtype.size_bytes();
        let mut next = 0_u64;
        let mut places = Vec::with_capacity(counts.len());
        for (rank, &count) in counts.iter().enumerate() {
            let begin = displacements.get(rank).copied().unwrap_or(next);
            next = begin.checked_add(count).ok_or_else(too_large)?;
            next.checked_mul(element_bytes as u64).ok_or_else(too_large)?;
            places.push((begin as usize, count as usize));
        }
        Ok(Self { address, element_bytes, places })
    }

    /// Where a rank's block begins.
    fn at(&self, rank: usize) -> usize {
        self.address.wrapping_add(self.places[rank].0 * self.element_bytes)
    }

    fn count(&self, rank: usize) -> usize {
        self.places[rank].1
    }
}

fn too_large() -> PluginError {
    PluginError::invalid("the buffers would be larger than an address space")
}

/// Plans a call of rank `rank` of `ranks`, or says what is wrong with it.
pub(crate) fn plan(call: &NativeCall<'_>, ranks: u32, rank: u32) -> PluginResult<Plan> {
    let NativeCall { collective, dtype, op, root, .. } = *call;
    let not_offered = || {
        let op = op.map_or_else(String::new, |op| format!(" {op}"));
        PluginError::not_supported(format!("NCCL is not used for {collective} {dtype}{op}"))
    };
    if !is_offered(collective, dtype, op) || (collective.reduces() && op.is_none()) {
        return Err(not_offered());
    }
    let names_a_rank =
        collective.has_root() || matches!(collective, Collective::Send | Collective::Recv);
    if names_a_rank && root >= ranks {
        return Err(PluginError::invalid(format!("{collective}: there is no rank {root}")));
    }
    let planner = Planner { call, ranks, rank, root: root as c_int };
    if let Some(op) = op.filter(|_| collective.reduces()) {
        let (Some(number), Some(op)) = (reduced_type(dtype), reduction(dtype, op)) else {
            return Err(not_offered());
        };
        let primitives = planner.reductions(op)?;
        return Ok(Plan { dtype: number, primitives, whole: None });
    }
    let (number, factor) = moved_type(dtype);
    let (primitives, whole) = planner.moves(factor)?;
    Ok(Plan { dtype: number, primitives, whole })
}

struct Planner<'a> {
    call: &'a NativeCall<'a>,
    ranks: u32,
    rank: u32,
    root: c_int,
}

impl Planner<'_> {
    fn reductions(&self, op: c_int) -> PluginResult<Vec<Primitive>> {
        let NativeCall { collective, send, receive, dtype, .. } = *self.call;
        let count = self.count(1)?;
        let root = self.root;
        Ok(match collective {
            Collective::AllReduce => vec![Primitive::AllReduce { send, receive, count, op }],
            Collective::Reduce => vec![Primitive::Reduce { send, receive, count, op, root }],
            Collective::ReduceScatter => {
                vec![Primitive::ReduceScatter { send, receive, count, op }]
            }
            // A reduce to each rank of its block.
            Collective::ReduceScatterV => {
                let counts = (self.call.send_counts, self.call.send_displacements);
                let blocks = Blocks::uneven(send.addr(), dtype, counts, ("send", self.ranks))?;
                let owners = (0..self.ranks as usize).filter(|owner| blocks.count(*owner) > 0);
                owners
                    .map(|owner| Primitive::Reduce {
                        send: send.with_addr(blocks.at(owner)),
                        receive,
                        count: blocks.count(owner),
                        op,
                        root: owner as c_int,
                    })
                    .collect()
            }
            _ => return Err(PluginError::not_supported("it reduces nothing")),
        })
    }

    /// `factor` elements of NCCL are one of iccl.
    fn moves(&self, factor: usize) -> PluginResult<(Vec<Primitive>, Option<Whole>)> {
        let NativeCall { collective, send, receive, dtype, count: elements, .. } = *self.call;
        let count = self.count(factor)?;
        let (ranks, root) = (self.ranks, self.root);
        let is_root = self.rank == self.call.root;
        let elements = elements as usize;
        let even = |address| Blocks::even(address, dtype, elements, ranks);
        let sent = || {
            let counts = (self.call.send_counts, self.call.send_displacements);
            Blocks::uneven(send.addr(), dtype, counts, ("send", ranks))
        };
        let received = || {
            let counts = (self.call.receive_counts, self.call.receive_displacements);
            Blocks::uneven(receive.addr(), dtype, counts, ("receive", ranks))
        };
        let mut list = Vec::new();
        let mut whole = None;
        match collective {
            Collective::Broadcast => {
                list.push(Primitive::Broadcast { send, receive, count, root });
            }
            Collective::AllGather => list.push(Primitive::AllGather { send, receive, count }),
            Collective::Send => list.push(Primitive::Send { send, count, peer: root }),
            Collective::Recv => list.push(Primitive::Recv { receive, count, peer: root }),
            Collective::Gather => {
                whole = Some(Whole::Gather { send, receive, count, root });
                let into = if is_root { Some(even(receive.addr())?) } else { None };
                self.gather(&mut list, count, into.as_ref(), factor);
            }
            Collective::GatherV => {
                let into = if is_root { Some(received()?) } else { None };
                self.gather(&mut list, count, into.as_ref(), factor);
            }
            Collective::Scatter => {
                whole = Some(Whole::Scatter { send, receive, count, root });
                let from = if is_root { Some(even(send.addr())?) } else { None };
                self.scatter(&mut list, count, from.as_ref(), factor);
            }
            Collective::ScatterV => {
                let from = if is_root { Some(sent()?) } else { None };
                self.scatter(&mut list, count, from.as_ref(), factor);
            }
            Collective::AllToAll => {
                self.not_in_place()?;
                whole = Some(Whole::AllToAll { send, receive, count });
                self.exchange(&mut list, &even(send.addr())?, &even(receive.addr())?, factor);
            }
            Collective::AllToAllV => {
                self.not_in_place()?;
                self.exchange(&mut list, &sent()?, &received()?, factor);
            }
            // A broadcast of each rank's block.
            Collective::AllGatherV => {
                let into = received()?;
                for owner in (0..ranks as usize).filter(|owner| into.count(*owner) > 0) {
                    let place = receive.with_addr(into.at(owner));
                    let from = if owner == self.rank as usize { send } else { place.cast_const() };
                    list.push(Primitive::Broadcast {
                        send: from,
                        receive: place,
                        count: into.count(owner) * factor,
                        root: owner as c_int,
                    });
                }
            }
            Collective::AllReduce
            | Collective::Reduce
            | Collective::ReduceScatter
            | Collective::ReduceScatterV
            | Collective::Barrier => {
                return Err(PluginError::not_supported("it moves nothing"));
            }
        }
        Ok((list, whole))
    }

    /// NCCL's elements of the call's count.
    fn count(&self, factor: usize) -> PluginResult<usize> {
        let count = usize::try_from(self.call.count).ok();
        let bytes = count.and_then(|count| count.checked_mul(self.call.dtype.size_bytes()));
        bytes.ok_or_else(too_large)?;
        Ok(self.call.count as usize * factor)
    }

    /// A block for the root; the root has one of each rank.
    fn gather(
        &self,
        list: &mut Vec<Primitive>,
        count: usize,
        into: Option<&Blocks>,
        factor: usize,
    ) {
        let NativeCall { send, receive, .. } = *self.call;
        let own = into.map(|into| into.at(self.rank as usize));
        let is_there = own == Some(send.addr());
        if count > 0 && !is_there {
            list.push(Primitive::Send { send, count, peer: self.root });
        }
        let Some(into) = into else { return };
        for peer in 0..self.ranks as usize {
            let is_own = peer == self.rank as usize;
            if into.count(peer) > 0 && !(is_own && is_there) {
                let receive = receive.with_addr(into.at(peer));
                let count = into.count(peer) * factor;
                list.push(Primitive::Recv { receive, count, peer: peer as c_int });
            }
        }
    }

    /// A block from the root; the root has one for each rank.
    fn scatter(
        &self,
        list: &mut Vec<Primitive>,
        count: usize,
        from: Option<&Blocks>,
        factor: usize,
    ) {
        let NativeCall { send, receive, .. } = *self.call;
        let own = from.map(|from| from.at(self.rank as usize));
        let is_there = own == Some(receive.addr());
        for peer in 0..self.ranks as usize {
            let Some(from) = from else { break };
            let is_own = peer == self.rank as usize;
            if from.count(peer) > 0 && !(is_own && is_there) {
                let send = send.with_addr(from.at(peer));
                let count = from.count(peer) * factor;
                list.push(Primitive::Send { send, count, peer: peer as c_int });
            }
        }
        if count > 0 && !is_there {
            list.push(Primitive::Recv { receive, count, peer: self.root });
        }
    }

    /// A block for each rank, and one from each.
    fn exchange(&self, list: &mut Vec<Primitive>, from: &Blocks, into: &Blocks, factor: usize) {
        let NativeCall { send, receive, .. } = *self.call;
        for peer in 0..self.ranks as usize {
            if from.count(peer) > 0 {
                let send = send.with_addr(from.at(peer));
                let count = from.count(peer) * factor;
                list.push(Primitive::Send { send, count, peer: peer as c_int });
            }
            if into.count(peer) > 0 {
                let receive = receive.with_addr(into.at(peer));
                let count = into.count(peer) * factor;
                list.push(Primitive::Recv { receive, count, peer: peer as c_int });
            }
        }
    }

    /// NCCL does not promise an all-to-all of a buffer into itself.
    fn not_in_place(&self) -> PluginResult<()> {
        let NativeCall { send, receive, collective, .. } = *self.call;
        if send == receive.cast_const() && !send.is_null() {
            return Err(PluginError::not_supported(format!(
                "NCCL is not used for {collective} in place"
            )));
        }
        Ok(())
    }
}

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
    let whole = plan.whole.and_then(|whole| {
        // SAFETY: the caller promises the buffers.
        unsafe { issue_whole(joined, plan, whole, stream) }
    });
    if let Some(issued) = whole {
        issued?;
        return settle_unless_grouped(joined);
    }
    let [single] = plan.primitives[..] else {
        if plan.primitives.is_empty() {
            return Ok(());
        }
        // The inner group is part of the thread's, if there is one; else its end settles.
        nccl.begin_group()?;
        Nccl::is_grouped(joined);
        let issued = plan.primitives.iter().try_for_each(|primitive| {
            // SAFETY: the caller promises the buffers.
            unsafe { issue_one(joined, plan.dtype, *primitive, stream) }
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
    primitive: Primitive,
    stream: sys::Stream,
) -> PluginResult<()> {
    let table = &joined.nccl.table;
    joined.with_handle(|handle| {
        // SAFETY: the communicator lives, and the caller promises buffers and stream.
        let (name, answer) = unsafe {
            match primitive {
                Primitive::AllReduce { send, receive, count, op } => (
                    "ncclAllReduce",
                    (table.ncclAllReduce)(send, receive, count, dtype, op, handle, stream),
                ),
                Primitive::Reduce { send, receive, count, op, root } => (
                    "ncclReduce",
                    (table.ncclReduce)(send, receive, count, dtype, op, root, handle, stream),
                ),
                Primitive::ReduceScatter { send, receive, count, op } => (
                    "ncclReduceScatter",
                    (table.ncclReduceScatter)(send, receive, count, dtype, op, handle, stream),
                ),
                Primitive::Broadcast { send, receive, count, root } => (
                    "ncclBroadcast",
                    (table.ncclBroadcast)(send, receive, count, dtype, root, handle, stream),
                ),
                Primitive::AllGather { send, receive, count } => (
                    "ncclAllGather",
                    (table.ncclAllGather)(send, receive, count, dtype, handle, stream),
                ),
                Primitive::Send { send, count, peer } => {
                    ("ncclSend", (table.ncclSend)(send, count, dtype, peer, handle, stream))
                }
                Primitive::Recv { receive, count, peer } => {
                    ("ncclRecv", (table.ncclRecv)(receive, count, dtype, peer, handle, stream))
                }
            }
        };
        table.check(name, handle, answer)
    })
}

/// One call of a function that only later versions have; `None` if this one has it not.
///
/// # Safety
/// As for [`issue`].
unsafe fn issue_whole(
    joined: &Joined,
    plan: &Plan,
    whole: Whole,
    stream: sys::Stream,
) -> Option<PluginResult<()>> {
    let (table, dtype) = (&joined.nccl.table, plan.dtype);
    Some(match whole {
        Whole::AllToAll { send, receive, count } => {
            let all_to_all = table.ncclAlltoAll?;
            joined.with_handle(|handle| {
                // SAFETY: the communicator lives, and the caller promises buffers and stream.
                let answer = unsafe { all_to_all(send, receive, count, dtype, handle, stream) };
                table.check("ncclAlltoAll", handle, answer)
            })
        }
        Whole::Gather { send, receive, count, root } => {
            let gather = table.ncclGather?;
            joined.with_handle(|handle| {
                // SAFETY: as above.
                let answer = unsafe { gather(send, receive, count, dtype, root, handle, stream) };
                table.check("ncclGather", handle, answer)
            })
        }
        Whole::Scatter { send, receive, count, root } => {
            let scatter = table.ncclScatter?;
            joined.with_handle(|handle| {
                // SAFETY: as above.
                let answer = unsafe { scatter(send, receive, count, dtype, root, handle, stream) };
                table.check("ncclScatter", handle, answer)
            })
        }
    })
}

#[cfg(test)]
mod tests {
    use iccl_plugin_api::{RedOp, Status};

    use super::*;

    const SEND: usize = 0x1_0000;
    const RECEIVE: usize = 0x2_0000;

    fn at(address: usize) -> (Send, Receive) {
        let pointer = std::ptr::without_provenance_mut::<c_void>(address);
        (pointer.cast_const(), pointer)
    }

    fn call(collective: Collective, dtype: DataType, op: Option<RedOp>) -> NativeCall<'static> {
        NativeCall {
            collective,
            dtype,
            op,
            root: 1,
            count: 4,
            send: at(SEND).0,
            receive: at(RECEIVE).1,
            send_counts: &[],
            send_displacements: &[],
            receive_counts: &[],
            receive_displacements: &[],
        }
    }

    fn send(address: usize, count: usize, peer: c_int) -> Primitive {
        Primitive::Send { send: at(address).0, count, peer }
    }

    fn recv(address: usize, count: usize, peer: c_int) -> Primitive {
        Primitive::Recv { receive: at(address).1, count, peer }
    }

    fn primitives(call: &NativeCall<'_>, rank: u32) -> Vec<Primitive> {
        plan(call, 3, rank).unwrap().primitives
    }

    #[test]
    fn what_is_not_offered_is_refused_before_nccl_is_called() {
        let refused = [
            call(Collective::Barrier, DataType::U8, None),
            call(Collective::AllReduce, DataType::F32, Some(RedOp::Max)),
            call(Collective::Reduce, DataType::I32, Some(RedOp::Avg)),
            call(Collective::ReduceScatter, DataType::I16, Some(RedOp::Sum)),
            call(Collective::AllReduce, DataType::F32, None),
            NativeCall { receive: at(SEND).1, ..call(Collective::AllToAll, DataType::F32, None) },
        ];
        for call in refused {
            let error = plan(&call, 3, 0).unwrap_err();
            assert_eq!(error.status, Status::NotSupported, "{call:?}");
        }
        let error = plan(&call(Collective::AllReduce, DataType::F32, Some(RedOp::Max)), 3, 0);
        assert_eq!(error.unwrap_err().message, "NCCL is not used for all_reduce f32 max");
    }

    #[test]
    fn a_root_that_is_no_rank_and_counts_beyond_memory_are_refused() {
        for collective in [Collective::Broadcast, Collective::Reduce, Collective::Send] {
            let op = collective.reduces().then_some(RedOp::Sum);
            let call = NativeCall { root: 3, ..call(collective, DataType::F32, op) };
            assert_eq!(plan(&call, 3, 0).unwrap_err().status, Status::InvalidArgument);
        }
        for (collective, count) in [
            (Collective::AllReduce, u64::MAX / 2),
            (Collective::Gather, u64::MAX / 8),
            (Collective::Broadcast, u64::MAX),
        ] {
            let op = collective.reduces().then_some(RedOp::Sum);
            let call = NativeCall { count, ..call(collective, DataType::F32, op) };
            assert!(plan(&call, 3, 1).is_err(), "{collective}");
        }
        let counts = NativeCall {
            send_counts: &[1, 2],
            receive_counts: &[1, 2, 3],
            ..call(Collective::AllToAllV, DataType::F32, None)
        };
        assert_eq!(plan(&counts, 3, 0).unwrap_err().status, Status::InvalidArgument);
    }

    #[test]
    fn types_that_nccl_lacks_are_moved_as_bytes_of_the_same_length() {
        let planned = plan(&call(Collective::AllGather, DataType::U16, None), 3, 0).unwrap();
        assert_eq!(planned.dtype, sys::NCCL_UINT8);
        let (send, receive) = (at(SEND).0, at(RECEIVE).1);
        assert_eq!(planned.primitives, [Primitive::AllGather { send, receive, count: 8 }]);
        let planned = plan(&call(Collective::AllGather, DataType::F8E4M3, None), 3, 0).unwrap();
        assert_eq!(planned.dtype, sys::NCCL_UINT8);
        assert_eq!(planned.primitives, [Primitive::AllGather { send, receive, count: 4 }]);
    }

    #[test]
    fn gather_and_scatter_are_blocks_to_and_from_the_root() {
        let gather = call(Collective::Gather, DataType::F32, None);
        assert_eq!(primitives(&gather, 0), [send(SEND, 4, 1)]);
        assert_eq!(
            primitives(&gather, 1),
            [
                send(SEND, 4, 1),
                recv(RECEIVE, 4, 0),
                recv(RECEIVE + 16, 4, 1),
                recv(RECEIVE + 32, 4, 2)
            ]
        );
        // In place at the root, its own block stays where it is.
        let in_place = NativeCall { send: at(RECEIVE + 16).0, ..gather };
        assert_eq!(primitives(&in_place, 1), [recv(RECEIVE, 4, 0), recv(RECEIVE + 32, 4, 2)]);
        let scatter = NativeCall {
            send_counts: &[1, 0, 2],
            count: 2,
            ..call(Collective::ScatterV, DataType::I16, None)
        };
        assert_eq!(primitives(&scatter, 2), [recv(RECEIVE, 4, 1)]);
        assert_eq!(
            primitives(&NativeCall { count: 0, ..scatter }, 1),
            [send(SEND, 2, 0), send(SEND + 2, 4, 2)]
        );
    }

    #[test]
    fn blocks_of_any_length_lie_where_the_displacements_say() {
        let all_to_all = NativeCall {
            send_counts: &[1, 2, 0],
            send_displacements: &[9, 0, 0],
            receive_counts: &[0, 3, 1],
            ..call(Collective::AllToAllV, DataType::F32, None)
        };
        assert_eq!(
            primitives(&all_to_all, 0),
            [
                send(SEND + 36, 1, 0),
                send(SEND, 2, 1),
                recv(RECEIVE, 3, 1),
                recv(RECEIVE + 12, 1, 2)
            ]
        );
        let gather = NativeCall {
            receive_counts: &[1, 0, 3],
            ..call(Collective::AllGatherV, DataType::F64, None)
        };
        let broadcast = |from, to, count, root| Primitive::Broadcast {
            send: at(from).0,
            receive: at(to).1,
            count,
            root,
        };
        assert_eq!(
            primitives(&gather, 2),
            [broadcast(RECEIVE, RECEIVE, 1, 0), broadcast(SEND, RECEIVE + 8, 3, 2)]
        );
        let reduce = NativeCall {
            send_counts: &[2, 1, 0],
            ..call(Collective::ReduceScatterV, DataType::F32, Some(RedOp::Avg))
        };
        let (op, receive) = (sys::NCCL_AVG, at(RECEIVE).1);
        assert_eq!(
            primitives(&reduce, 0),
            [
                Primitive::Reduce { send: at(SEND).0, receive, count: 2, op, root: 0 },
                Primitive::Reduce { send: at(SEND + 8).0, receive, count: 1, op, root: 1 }
            ]
        );
    }
}
